"""``commonwatt attach slurm`` over a real Slurm, which it does not change."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")

from commonwatt.controlplane.wiring import open_live, read_config
from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.connect import slurm_of
from commonwatt.model.errors import EngineError, InputError
from commonwatt.model.job_file import JobFile
from commonwatt.model.live import SlurmSpec
from commonwatt.store.queries import queue
from commonwatt.store.records import RequestKind
from commonwatt.studies.draft import DraftOptions, load_study
from tests.cli.console import run
from tests.engines.slurm.conftest import running_site, site  # noqa: F401
from tests.engines.slurm.site import Site, missing
from tests.engines.waiting import until
from tests.machine import lacking

pytestmark = pytest.mark.slow
HEAD = "JobID|Account|User|Submit|Start|Elapsed|Timelimit|State|AllocTRES|ReqTRES|NodeList|Partition|ConsumedEnergyRaw"


def history():
    """What ``sacct`` printed: a day of jobs, some of which waited."""
    began = datetime.now(UTC).replace(tzinfo=None) - timedelta(days=2)
    rows = [HEAD]
    for k in range(60):
        submit = began + timedelta(minutes=20 * k)
        start = submit + timedelta(minutes=5 * (k % 3))
        gpus, node = 1 + k % 2, f"n-{1 + k % 2}"
        tres = f"cpu=2,gres/gpu:v100={gpus},gres/gpu={gpus},node=1"
        times = f"{submit:%Y-%m-%dT%H:%M:%S}|{start:%Y-%m-%dT%H:%M:%S}|00:{25 + k % 20}:00|02:00:00"
        rows.append(f"{k + 1}|team{k % 3}|ada|{times}|COMPLETED|{tres}|{tres}|{node}|debug|")
        rows.append(f"{k + 1}.batch|team{k % 3}||{times}|COMPLETED|{tres}||{node}||")
    return "\n".join(rows) + "\n"


@pytest.fixture
def accounts(site, tmp_path, monkeypatch):  # noqa: F811
    """A ``sacct`` that answers, as this Slurm keeps no accounts; returns the file of its arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "history").write_text(history())
    script = folder / "sacct"
    script.write_text(f'#!/bin/sh\necho "$@" >>{folder}/asked\nexec /bin/cat {folder}/history\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{site.env['PATH']}")
    return folder / "asked"


@pytest.mark.long
def test_what_it_finds_and_what_would_have_been_saved(site, tmp_path, accounts):  # noqa: F811
    out = tmp_path / "out"
    done = run("attach", "slurm", "--out", out, "--conf", site.conf, "--price", "0.3", "--json")
    assert done.code == 0, done.err
    assert "--allusers --starttime=now-168hours --parsable2" in accounts.read_text()
    document = done.document
    assert (document["nodes"], document["gpus"], document["history_jobs"]) == (3, 5, 60)
    assert (document["running"], document["queued"]) == (0, 0)
    assert document["report"] == str(out / "study" / "report.html")
    assert (out / "study" / "report.html").stat().st_size > 10_000
    assert document["saving_pct"] is not None
    assert document["saving_with_everything_pct"] >= document["saving_pct"]
    assert any("left out of the study" in note and "GPU" in note for note in document["notes"])
    config = read_config(out / "live.yaml")
    assert (config.engine, config.live.mode, config.live.slurm.read_only) == ("slurm", "dry-run", True)
    assert config.electricity.price_per_kwh == 0.3
    assert [policy.solver for policy in config.policies] == ["lookahead", "easy"]


@pytest.mark.long
def test_its_control_plane_observes_and_cannot_be_made_to_act(site, tmp_path):  # noqa: F811
    slurm, out = site, tmp_path / "out"
    assert run("attach", "slurm", "--out", out, "--conf", site.conf).code == 0
    before = Slurm(slurm.conf).nodes()
    with pytest.raises(InputError, match=r"live\.slurm\.read_only is set"):
        open_live(out / "live.yaml", mode="live")
    live = open_live(out / "live.yaml")
    live.start()
    try:
        end_s = time.monotonic() + 120
        while not live.supervisor.snapshot().decided_s:
            assert time.monotonic() < end_s
            time.sleep(0.05)
        live.store.add_tenant("a", 1.0, 0.0)
        job = live.store.submit("a", JobFile(name="x", command=("true",)), time.time())[0].id  # past the API
        live.store.ask(RequestKind.MODE, time.time(), value="live")  # as well
        live.supervisor.wake()
        while live.store.setting("controller") and queue(live.database).requests and time.monotonic() < end_s:
            time.sleep(0.05)
        assert (live.supervisor.snapshot().mode, live.store.setting("mode")) == ("dry-run", "dry-run")
        assert live.store.job(job).began_s is None
    finally:
        live.close()
    assert [j for j in Slurm(slurm.conf).jobs() if "commonwatt" in j.comment] == []
    assert Slurm(slurm.conf).nodes() == before
    client = slurm_of(SlurmSpec(conf=str(slurm.conf), read_only=True))
    for change in (
        lambda: client.cancel([1]), lambda: client.terminate([1]), lambda: client.update_node("n-1", "DRAIN", "x"),
        lambda: client.submit([], out, "x"),
    ):  # fmt: skip
        with pytest.raises(EngineError, match="nothing is changed in Slurm"):
            change()


def test_without_accounts_there_is_no_study_and_everything_else(site, tmp_path):  # noqa: F811
    done = run("attach", "slurm", "--out", tmp_path / "out", "--conf", site.conf)
    assert done.code == 0, done.err
    assert "attached, read-only: 3 nodes with 5 GPUs; 0 jobs with GPUs running, 0 waiting" in done.out
    assert "note: no history, and so no study: sacct: " in done.out
    again = run("attach", "slurm", "--out", tmp_path / "out", "--conf", site.conf)
    assert (again.code, "a new folder, or --overwrite" in again.err) == (2, True)
    away = run("attach", "slurm", "--out", tmp_path / "other", "--conf", tmp_path / "none.conf")
    assert away.code == 2
    assert "field 'conf': got '" in away.err
    assert "expected a slurm.conf that exists" in away.err
    assert not (tmp_path / "other").exists()
    assert "Traceback" not in away.err


def answers(slurm: Site) -> bool:
    """Whether its controller is up; while it begins, ``scontrol ping`` fails."""
    with suppress(AssertionError):
        return "is UP" in slurm.ask("scontrol", "ping")
    return False


@pytest.fixture
def wired(tmp_path, monkeypatch):
    """The controller of a Slurm whose three nodes are on two switches, below one."""
    if reason := missing():
        lacking("slurm", reason)
    with tempfile.TemporaryDirectory(prefix="slurm", ignore_cleanup_errors=True) as folder:
        slurm = Site(Path(folder))
        slurm.conf.write_text(f"{slurm.conf.read_text()}TopologyPlugin=topology/tree\n")
        switches = "SwitchName=s0 Nodes=n-1\nSwitchName=s1 Nodes=n-2,spare\nSwitchName=top Switches=s[0-1]\n"
        (Path(folder) / "topology.conf").write_text(switches)
        monkeypatch.setenv("PATH", slurm.env["PATH"])
        monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
        try:
            slurm.begin("slurmctld")
            until(lambda: answers(slurm))
            yield slurm
        finally:
            slurm.stop()


def test_the_switches_of_nodes_are_their_domains(wired, tmp_path):
    out, expected = tmp_path / "out", {"n-1": "s0", "n-2": "s1", "spare": "s1"}
    done = run("attach", "slurm", "--out", out, "--conf", wired.conf)
    assert done.code == 0, done.err
    assert {node.name: node.domain for node in read_config(out / "live.yaml").nodes} == expected
    asked, again = run("init"), run("init", "--from", out / "nodes.txt")
    for written in (asked, again):
        assert written.code == 0, written.err
        assert {node["name"]: node["domain"] for node in yaml.safe_load(written.out)["nodes"]} == expected
    assert "SwitchName=top Level=1" in (out / "nodes.txt").read_text()
    (tmp_path / "jobs.txt").write_text(history())
    options = DraftOptions(nodes=out / "nodes.txt", source="slurm")
    study, _ = load_study(str(tmp_path / "jobs.txt"), options)
    assert {node.name: node.domain for node in study.nodes} == expected
