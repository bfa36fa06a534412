"""A dry run beside jobs of others: what would be done with them is said once, how they went is kept and counted."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.control.external_jobs import ExternalJob
from commonwatt.controlplane.observer import SETTING
from commonwatt.controlplane.savings import estimate, jobs_for_estimate
from commonwatt.controlplane.supervisor import Pace
from commonwatt.controlplane.wiring import open_live
from commonwatt.model.errors import EngineError
from commonwatt.store.records import RequestKind
from tests.controlplane.bench import Bench, node
from tests.controlplane.chaos import config_in
from tests.engines.slurm.conftest import running_site, site  # noqa: F401
from tests.engines.slurm.site import until

JOBS_OF = "commonwatt.controlplane.wiring.external_jobs_of"


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A dry run on a cluster of which others use a part; ``there`` is what it says of them."""
    there: list[ExternalJob] = []
    monkeypatch.setattr(
        "commonwatt.controlplane.wiring.external_jobs_of", lambda config, folder, engine: lambda: list(there)
    )
    b = Bench(tmp_path, live={"mode": "dry-run"})
    b.there = there
    yield b
    b.close()


def job(b, number, state="waiting", gpus=2, **more):
    now_s = b.clock()
    nothing = {
        "user": "eve", "submit_s": now_s - 50, "start_s": None, "end_s": None, "limit_s": 3600.0, "gpu_type": None,
        "nodes": (),
    }  # fmt: skip
    return ExternalJob(id=number, state=state, gpus=gpus, **nothing | more)


def said(b):
    return [(e.kind, e.job, e.nodes, e.gpus) for e in b.live.store.events() if e.job is None]


def look(b):
    b.advance(31.0)
    b.settle()


@pytest.mark.slow
def test_what_would_be_started_is_said_once_and_again_when_it_changes(bench):
    b = bench
    b.there += [job(b, 1, "running", start_s=b.clock(), nodes=("n-1",)), job(b, 2)]
    look(b)
    assert said(b) == [("would-start", None, ("n-2",), 2)]
    (event,) = [e for e in b.live.store.events() if e.job is None]
    assert event.sentence.startswith("job 2 of eve, submitted to the cluster directly: ")
    look(b)
    assert len(said(b)) == 1
    b.there[0] = replace(b.there[0], nodes=("n-2",))
    look(b)
    assert said(b)[1:] == [("would-start", None, ("n-1",), 2)]


@pytest.mark.slow
def test_another_place_that_is_no_better_is_not_said(tmp_path, opened, monkeypatch):
    there = []
    monkeypatch.setattr(
        "commonwatt.controlplane.wiring.external_jobs_of", lambda config, folder, engine: lambda: list(there)
    )
    policies = [{"solver": "random-greedy", "iterations": 3}]
    b = opened(Bench(tmp_path, live={"mode": "dry-run"}, nodes=[node("n", count=6)], policies=policies))
    there += [job(b, k) for k in range(3)]
    for _ in range(20):
        look(b)
    assert len(said(b)) == 3


def test_nothing_would_be_started_on_a_drained_node_but_who_is_there_stays(bench):
    b = bench
    b.there += [job(b, 1, "running", 1, start_s=b.clock(), nodes=("n-1",)), job(b, 2, gpus=1), job(b, 3, gpus=2)]
    b.ask(RequestKind.DRAIN, node="n-1")
    look(b)
    assert {nodes for _, _, nodes, _ in said(b)} == {("n-2",)}


@pytest.mark.parametrize("error", [EngineError("away"), ZeroDivisionError("a defect")])
def test_whatever_goes_wrong_with_jobs_of_others_ours_go_on(bench, error, monkeypatch):
    b = bench

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr("commonwatt.controlplane.observer.dry_run", fail)
    b.there.append(job(b, 2))
    mine = b.submit()
    look(b)
    assert "would-start" in b.kinds(mine)
    assert b.snapshot().trouble is None


def test_in_live_mode_nobody_looks(bench):
    b = bench
    b.ask(RequestKind.MODE, value="live")
    b.settle()
    b.there.append(job(b, 2))
    look(b)
    assert said(b) == []
    b.ask(RequestKind.MODE, value="dry-run")
    look(b)
    assert len(said(b)) == 1


def test_a_cluster_that_does_not_tell_holds_nothing_up(bench, monkeypatch):
    b = bench

    def fails():
        raise EngineError("squeue: Invalid job format specification")

    monkeypatch.setattr(b.reconciler._observer, "external_jobs", fails)
    number = b.submit()
    look(b)
    assert b.snapshot().trouble is None
    assert "would-start" in b.kinds(number)
    assert said(b) == []


def test_what_has_ended_is_kept_through_a_restart_and_counts_in_the_estimate(bench):
    b = bench
    now_s = b.clock()
    b.there += [
        job(b, k, "ended", 1, submit_s=now_s - 3000 + k, start_s=now_s - 2000 + k, end_s=now_s - 800, nodes=("n-1",))
        for k in range(4)
    ]
    b.there.append(job(b, 9, "ended", start_s=None, end_s=now_s))  # cancelled before it ran
    look(b)
    b.close()
    b.open()
    b.there.clear()
    look(b)
    kept = b.live.store.setting(SETTING)
    assert [row["id"] for row in kept] == [0, 1, 2, 3]
    jobs, period_s = jobs_for_estimate([], b.live.maker, b.clock(), kept)
    assert [j.submit_s for j in jobs] == [0.0, 1.0, 2.0, 3.0]
    assert [j.times_s["V100"][1] for j in jobs] == [1200.0, 1199.0, 1198.0, 1197.0]
    assert period_s == pytest.approx(b.clock() - (now_s - 3000))
    saved = estimate(b.live.config, jobs, period_s, 0)
    assert saved["jobs"] == 4
    assert saved["baseline_energy_kwh"] > 0
    assert jobs_for_estimate([], b.live.maker, b.clock() + 8 * 86_400, kept)[0] == []  # of the last days only


@pytest.mark.long
def test_a_dry_run_over_a_real_slurm_leaves_it_alone_and_says_what_it_would_do(site, tmp_path):  # noqa: F811
    ask = ("sbatch", "--parsable", "--output=/dev/null", "--gres=gpu:v100:2", "--nodelist=n-1", "--time=10")
    runs = site.ask(*ask, "--wrap=sleep 600").strip()
    until(lambda: site.ask("squeue", "--noheader", f"--jobs={runs}", "--format=%T").strip() == "RUNNING")
    waits = site.ask(*ask, "--wrap=true").strip()  # there is room on n-2, but its owner wants n-1
    live = {"mode": "dry-run", "slurm": {"conf": str(site.conf), "poll_s": 0.2, "python": sys.executable}}
    plane = open_live(config_in(tmp_path, engine="slurm", live=live), pace=Pace(beat_s=0.2, requests_s=0.1))
    try:
        plane.supervisor.start()
        until(lambda: [e for e in plane.store.events() if e.job is None])
        (event,) = [e for e in plane.store.events() if e.job is None]
        assert (event.kind, event.nodes, event.gpus) == ("would-start", ("n-2",), 2)
        assert event.sentence.startswith(f"job {waits} of ")
        assert site.ask("squeue", "--noheader", "--sort=i", "--format=%A %T").split() == [
            runs, "RUNNING", waits, "PENDING",
        ]  # fmt: skip
        assert plane.supervisor.snapshot().trouble is None
    finally:
        plane.close()
    assert time.time() > event.time_s
