"""The ledger agrees with a real slurmdbd job by job, and `store check` reports differences."""

from __future__ import annotations

import getpass
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import yaml

pytest.importorskip("sqlalchemy")
pytest.importorskip("pymysql")

from tests.cli.console import run
from tests.controlplane.chaos import running, store_of, until_all_end, witness
from tests.controlplane.test_over_slurm import config_over
from tests.engines.slurm.site import Site, _path, missing
from tests.engines.waiting import until
from tests.machine import lacking
from tests.store.conftest import mariadb  # noqa: F401

pytestmark = pytest.mark.long
DBD = """AuthType=auth/none
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={server}
StorageUser=root
StorageLoc={database}
"""


class AccountedSite(Site):
    """A Slurm that keeps accounts."""

    port = 0

    def configure(self, slurmd_timeout_s: int = 30) -> None:
        super().configure(slurmd_timeout_s)
        own = f"slurmdbd\nAccountingStorageHost=localhost\nAccountingStoragePort={self.port}"
        text = self.conf.read_text().replace("accounting_storage/none", f"accounting_storage/{own}")
        self.conf.write_text(f"{text}AccountingStorageTRES=gres/gpu\nJobAcctGatherFrequency=0\n")


class EnforcedSite(AccountedSite):
    """A Slurm that takes only accounts and QOS that its users have."""

    def configure(self, slurmd_timeout_s: int = 30) -> None:
        super().configure(slurmd_timeout_s)
        self.conf.write_text(f"{self.conf.read_text()}AccountingStorageEnforce=associations,qos\n")


@pytest.fixture
def accounted(mariadb, monkeypatch):  # noqa: F811
    yield from started(AccountedSite, mariadb, monkeypatch)


@pytest.fixture
def enforced(mariadb, monkeypatch):  # noqa: F811
    yield from started(EnforcedSite, mariadb, monkeypatch)


def started(kind, mariadb, monkeypatch):  # noqa: F811
    """Yield a running site of this *kind* with its slurmdbd."""
    import socket

    if reason := missing() or (None if shutil.which("slurmdbd", path=_path()) else "slurmdbd is not installed"):
        lacking("slurm", reason)
    with tempfile.TemporaryDirectory(prefix="slurm", ignore_cleanup_errors=True) as folder:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            kind.port = free.getsockname()[1]
        site = kind(Path(folder))
        monkeypatch.setenv("PATH", site.env["PATH"])
        conf = Path(folder) / "slurmdbd.conf"
        conf.touch(mode=0o600)
        database = mariadb.database().rpartition("/")[2]
        conf.write_text(DBD.format(
            port=site.port, user=getpass.getuser(), folder=folder, server=mariadb.port, database=database
        ))  # fmt: skip
        with (Path(folder) / "daemons.log").open("a") as log:
            dbd = subprocess.Popen(["slurmdbd", "-D"], env=site.env, stdout=log, stderr=log)
        try:
            add = ("sacctmgr", "-i", "add", "cluster", "commonwatt")
            until(lambda: subprocess.run(add, env=site.env, capture_output=True, check=False).returncode == 0, 60.0)
            site.start()
            yield site
        finally:
            site.stop()
            dbd.terminate()
            dbd.wait(30)
            mariadb.drop(f"/{database}")


def test_the_ledger_and_slurm_charge_the_same(accounted, tmp_path):
    path = config_over(accounted, tmp_path)
    store = store_of(path, tenants="ab")
    with running(path):
        jobs = [
            store.submit(tenant, witness(f"j{k}", tmp_path, seconds, gpus=gpus), time.time())[0].id
            for k, (tenant, seconds, gpus) in enumerate((("a", 6.0, 1), ("b", 4.0, 2), ("a", 2.0, 2)))
        ]
        until_all_end(store, jobs, 120.0)
    file = tmp_path / "jobs.txt"
    fields = "JobID,JobName,User,Submit,Start,ElapsedRaw,State,AllocTRES"
    command = ("sacct", "--allusers", "--duplicates", "--allocations", "--parsable2", f"--format={fields}")

    def told():
        file.write_text(accounted.ask(*command, SLURM_TIME_FORMAT="%s"))
        return file.read_text().count("|COMPLETED|") == 3

    until(told, 60.0)
    done = run("store", "check", path, "--sacct", file, "--within", "5", "--json")
    assert done.code == 0, done.document
    assert done.document["accounted_jobs"] == 3
    by_tenant = {row["tenant"]: (row["ledger_gpu_h"], row["slurm_gpu_h"]) for row in done.document["accounts"]}
    assert min(by_tenant["a"] + by_tenant["b"]) >= 7 / 3600  # Slurm counts whole seconds
    assert by_tenant["a"][0] == pytest.approx(by_tenant["a"][1], abs=3 * 5 / 3600)  # within 5 s of each GPU's run

    lines = file.read_text().splitlines()
    wrong, kept = file.with_name("wrong.txt"), [line for line in lines if f"|{jobs[1]}-j1|" not in line]
    wrong.write_text("\n".join(kept) + "\n")
    done = run("store", "check", path, "--sacct", wrong, "--within", "1", "--json")
    assert done.code == 1
    (said,) = [problem["problem"] for problem in done.document["problems"] if problem["job"] == jobs[1]]
    assert said.endswith(" GPU s are charged, and no run of it is accounted")
    again = file.with_name("again.txt")  # a dump that overlaps: a run counts once, as it was seen last
    again.write_text(file.read_text() + "\n".join(lines[1:]).replace("|COMPLETED|", "|RUNNING|") + "\n")
    done = run("store", "check", path, "--sacct", again, "--within", "5", "--json")
    assert (done.code, done.document["accounted_jobs"]) == (0, 3)
    nameless = file.with_name("nameless.txt")
    nameless.write_text(file.read_text().replace("JobName", "Comment", 1))
    done = run("store", "check", path, "--sacct", nameless)
    assert done.code == 2
    assert "field 'JobName'" in done.err


def test_jobs_run_under_the_account_and_qos_of_their_tenant_where_slurm_enforces_them(enforced, tmp_path):
    for words in (
        ("qos", "urgent"), ("account", "vision"), ("account", "speech"), ("user", getpass.getuser(), "account=vision"),
    ):  # fmt: skip
        enforced.ask("sacctmgr", "-i", "add", *words)
    enforced.ask("sacctmgr", "-i", "modify", "user", getpass.getuser(), "set", "qos+=urgent")
    slurm = {
        "accounts": {"a": "vision", "b": "speech", "c": "vision"},
        "qos": {"a": "urgent", "b": "normal", "c": "unheard"},
    }
    path = config_over(enforced, tmp_path)
    config = yaml.safe_load(path.read_text())
    config["live"]["slurm"] = config["live"].get("slurm", {}) | slurm
    path.write_text(yaml.safe_dump(config))
    store = store_of(path, tenants="abc")
    refused = {"b": "Invalid account", "c": "Invalid qos"}
    with running(path):
        jobs = {
            tenant: store.submit(tenant, witness(f"of-{tenant}", tmp_path, 1.0), time.time())[0].id for tenant in "abc"
        }
        until_all_end(store, [jobs["a"]], 60.0)
        for tenant, why in refused.items():  # they wait until the site has mended it
            until(lambda tenant=tenant, why=why: why in (store.job(jobs[tenant]).sentence or ""), 60.0)
            assert store.job(jobs[tenant]).status == "waiting"
        enforced.ask("sacctmgr", "-i", "add", "user", getpass.getuser(), "account=speech")
        enforced.ask("sacctmgr", "-i", "add", "qos", "unheard")
        enforced.ask("sacctmgr", "-i", "modify", "user", getpass.getuser(), "set", "qos+=unheard")
        until_all_end(store, list(jobs.values()), 180.0)
    assert {str(store.job(job).status) for job in jobs.values()} == {"completed"}
    told = "sacct", "--allusers", "--allocations", "--noheader", "--parsable2", "--format=JobName,Account,QOS,State"
    wanted = {f"{jobs['a']}-of-a|vision|urgent", f"{jobs['b']}-of-b|speech|normal", f"{jobs['c']}-of-c|vision|unheard"}
    until(lambda: {f"{line}|COMPLETED" for line in wanted} <= set(enforced.ask(*told).splitlines()), 60.0)
