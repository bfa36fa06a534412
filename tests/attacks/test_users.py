"""A job that looks for what is not its own: the store, the runs and the secrets of others.

As the user of the server it finds everything; as its tenant's own user, nothing.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")

from commonwatt.controlplane.engines import options_of
from commonwatt.controlplane.identity import broken_promises
from commonwatt.controlplane.wiring import read_config
from commonwatt.model.errors import InputError
from commonwatt.model.scenario import Scenario
from tests.attacks.site import NODES, served, until
from tests.engines.slurm.conftest import running_site  # noqa: F401

USERS = {"red": "games", "blue": "daemon"}
ATTACK = """
cd "$1"
for f in live.db live.db-wal live.yaml state/runs/*/run.json state/*/*/output.log state/jobs/*/secret $3; do
    cat "$f" >/dev/null 2>&1 && echo "read $f"
    ( : >>"$f" ) 2>/dev/null && echo "could write $f"
done
for p in /proc/[0-9]*; do
    if tr '\\0' '\\n' <$p/environ | grep -q ^SECRET_OF_BLUE=; then echo "read an environment"; fi
done 2>/dev/null
kill -0 "$2" 2>/dev/null && echo "could kill the server"
id -un
"""


@pytest.fixture
def folder():
    """A folder that everybody may pass through, as a site's is."""
    path = Path(tempfile.mkdtemp(prefix="cw-users-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def attack(site, *more):
    """What a job of tenant red finds while one of tenant blue runs; it also tries the paths in *more*."""
    victim = site.submit(
        "sh", "-c", "echo mine >secret; chmod 600 secret; sleep 60", tenant="blue",
        environment={"SECRET_OF_BLUE": "x"}, name="victim",
    )  # fmt: skip
    until((site.folder / "state" / "jobs" / str(victim) / "secret").exists)
    arguments = (str(site.folder), str(site.process.pid), " ".join(more))
    job = site.submit("sh", "-c", ATTACK, "sh", *arguments, tenant="red")
    until(lambda: site.status(job) in ("completed", "failed"))
    return site.call("GET", f"/jobs/{job}/log").text.splitlines()


@pytest.mark.long
def test_as_the_user_of_the_server_a_job_can_become_operator(folder):
    with served(folder, tenants=[{"name": "red"}, {"name": "blue"}]) as site:
        found = attack(site)
        assert {"read live.db", "could write live.db", "read an environment", "could kill the server"} <= set(found)
        assert any(line.startswith("read state/jobs/") for line in found)


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run jobs as other users")
def test_as_the_user_of_its_tenant_it_finds_nothing(folder):
    tenants = [{"name": "red"}, {"name": "blue"}, {"name": "grey"}]
    with served(folder, tenants=tenants, live={"local": {"grace_s": 0.5, "users": USERS}}) as site:
        (folder / "live.yaml").chmod(0o640)
        assert attack(site) == ["games"]
        own = site.submit("sh", "-c", "id -un; echo $HOME; pwd; echo 1 >$COMMONWATT_PROGRESS; env", tenant="blue")
        until(lambda: site.status(own) == "completed")
        said = site.call("GET", f"/jobs/{own}/log").text.splitlines()
        home = folder / "state" / "jobs" / str(own)
        assert said[:3] == ["daemon", pwd.getpwnam("daemon").pw_dir, str(home)]
        assert {"USER=daemon", "LOGNAME=daemon"} <= set(said)
        assert (home.stat().st_uid, home.stat().st_mode & 0o777) == (pwd.getpwnam("daemon").pw_uid, 0o700)
        refused = site.call("POST", "/jobs?tenant=grey", json={"name": "x", "command": ["true"]})
        assert (refused.status_code, refused.json()["field"]) == (422, "tenant")
        stopped = site.submit("sh", "-c", "trap '' TERM; while :; do sleep 0.1; done", tenant="red")
        until(lambda: site.status(stopped) == "running")
        site.call("POST", f"/jobs/{stopped}/cancel")
        until(lambda: site.status(stopped) == "cancelled")  # it is killed all the same


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can submit jobs as other users")
def test_over_slurm_it_finds_nothing_either(folder, running_site):  # noqa: F811
    running_site.folder.chmod(0o711)
    nodes = [{"name": "n-1", "gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 100}]
    slurm = {
        "conf": str(running_site.conf), "grace_s": 1, "poll_s": 0.2, "users": USERS, "accounts": {"blue": "deep"},
    }  # fmt: skip
    tenants = [{"name": "red"}, {"name": "blue"}, {"name": "grey"}]
    with served(folder, engine="slurm", nodes=nodes, tenants=tenants, live={"slurm": slurm}) as site:
        (folder / "live.yaml").chmod(0o640)
        of_blue = [f"state/users/1-1/{name}" for name in ("run.json", "output.log", "end.json")]
        assert attack(site, *of_blue) == ["games"]
        queue = running_site.ask("squeue", "--noheader", "--states=RUNNING", "--format=%u %a").split()
        assert queue == ["daemon", "deep"]
        refused = site.call("POST", "/jobs?tenant=grey", json={"name": "x", "command": ["true"]})
        assert (refused.status_code, refused.json()["field"]) == (422, "tenant")
        assert "live.slurm.users" in refused.json()["detail"]
        secret = folder / "secret"
        secret.write_text("of root")
        for link in (f"ln -s {secret} output.log", f"ln {secret} output.log"):  # a second name of what it may not read
            job = site.submit("sh", "-c", "sleep 600", tenant="red")
            own = folder / "state" / "users" / f"{job}-1"
            until((own / "runner.json").exists)
            (own / "output.log").unlink()
            subprocess.run(["sh", "-c", link], cwd=own, check=True)
            assert site.call("GET", f"/jobs/{job}/log").status_code == 404
            site.call("POST", f"/jobs/{job}/cancel")
            until(lambda job=job: site.status(job) == "cancelled")


def test_what_slurm_is_told_of_a_tenant():
    live = {"slurm": {"accounts": {"red": "games"}, "qos": {"red": "high"}}}
    scenario = Scenario.model_validate({"engine": "slurm", "nodes": NODES, "live": live})
    assert options_of(scenario, "red") == ("--account=games", "--qos=high")
    assert options_of(scenario, "blue") == ()
    with pytest.raises(ValueError, match="pattern"):
        Scenario.model_validate({"nodes": NODES, "live": {"slurm": {"accounts": {"red": "a --uid=root"}}}})


def test_users_that_would_keep_nothing_apart_are_refused_or_warned_of(tmp_path, monkeypatch):
    def config(users, engine="local"):
        path = tmp_path / "live.yaml"
        live = {"local": {"users": users}}
        path.write_text(str({"engine": engine, "nodes": NODES, "live": live}).replace("'", '"'))
        return path

    for user, expected in (("nobody-at-all", "a Unix user of this machine"), ("root", "a Unix user other than root")):
        with pytest.raises(InputError, match=expected) as refused:
            read_config(config({"red": user}))
        assert refused.value.field == "live.local.users.red"
    with pytest.raises(InputError, match="engine local, or no users: of engine slurm, these change nothing"):
        read_config(config({"red": "games"}, "slurm"))
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    with pytest.raises(InputError, match="root to start this"):
        read_config(config({"red": "games"}))
    live = {"local": {"users": {"red": "games", "blue": "games"}}}
    scenario = Scenario.model_validate({"engine": "local", "nodes": NODES, "live": live})
    lines = [line.found for line in broken_promises(scenario, {"red": 1.0, "blue": 1.0, "grey": 1.0})]
    assert "jobs of tenants without a Unix user do not run (grey)" in lines
    assert "several tenants share a Unix user (games): their jobs are not kept apart" in lines
    assert not any("become an operator" in line for line in lines)
