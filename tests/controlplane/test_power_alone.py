"""Mode ``power``: others place all jobs, or those outside some partitions, and the capacity plan is carried out."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from datetime import UTC, datetime

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.control.external_jobs import ExternalJob
from commonwatt.controlplane.observer import SETTING
from commonwatt.controlplane.savings import with_power_alone
from commonwatt.controlplane.wiring import open_live, read_config
from commonwatt.model.errors import EngineError, InputError
from commonwatt.model.job_file import JobFile
from commonwatt.store.records import JobStatus, RequestKind
from tests.cli.console import run
from tests.controlplane.bench import Bench
from tests.controlplane.chaos import config_in

OFF = [{"name": "off", "power_w": 5, "enter_s": 10, "wake_s": 30}]
WATTS = {"gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 200, "states": OFF}
NODES = [{"name": "n", "count": 3, "partitions": ["main"], **WATTS}]
PLAN = {"policy": "last-value", "step_s": 60}


class Others:
    """External jobs, as a cluster tells of them."""

    def __init__(self):
        self.jobs: list[ExternalJob] = []
        self.error: Exception | None = None

    def __call__(self):
        if self.error is not None:
            raise self.error
        return list(self.jobs)

    def add(self, number, state, gpus, nodes=(), **more):
        given = {
            "user": "ada", "submit_s": 1.0, "start_s": 2.0 if nodes else None, "end_s": None, "limit_s": 3600.0,
            "gpu_type": None, "partition": "main",
        }  # fmt: skip
        self.jobs.append(ExternalJob(id=number, state=state, gpus=gpus, nodes=nodes, **{**given, **more}))


@pytest.fixture
def others(monkeypatch):
    others = Others()
    monkeypatch.setattr("commonwatt.controlplane.wiring.external_jobs_of", lambda *_: others)
    return others


@pytest.fixture
def bench(tmp_path, opened, others, monkeypatch):
    def make(placed=(), **changes) -> Bench:
        if placed:
            monkeypatch.setattr(
                "commonwatt.controlplane.wiring._check_partitions", lambda *_: None
            )  # of engine slurm only
            changes["live"] = {"slurm": {"place_in": list(placed)}}
        return opened(Bench(tmp_path, **{"nodes": NODES, "capacity": PLAN, **changes}))

    return make


def go_on(b: Bench, seconds: float, step_s: float = 10.0) -> None:
    for _ in range(int(seconds / step_s)):
        b.advance(step_s)
        b.look()


def asleep(b: Bench) -> list[bool]:
    return [state >= 0 for state in b.reconciler.controller.engine.nodes().power_state.tolist()]


def power(b: Bench) -> None:
    b.ask(RequestKind.MODE, value="power")
    b.settle()


def test_nodes_follow_what_others_want_and_our_own_jobs_wait(bench, others):
    b = bench()
    others.add(1, "running", 2, ("n-2",))
    power(b)
    mine = b.submit(100.0, gpus=2)
    go_on(b, 200)
    assert b.snapshot().mode == "power"
    assert asleep(b) == [True, False, True]
    assert b.status(mine) == JobStatus.WAITING
    row = b.row(mine)
    assert (row.reason, "it can start in mode live" in row.sentence) == ("mode-power", True)
    assert b.snapshot().jobs[mine].expected_start_s is None
    others.add(2, "waiting", 2)
    go_on(b, 200)
    assert sum(asleep(b)) == 1
    others.jobs.clear()
    go_on(b, 200)
    assert asleep(b) == [True, True, True]
    assert b.status(mine) == JobStatus.WAITING
    b.ask(RequestKind.MODE, value="live")
    go_on(b, 100)
    assert b.status(mine) == JobStatus.RUNNING


def test_samples_count_what_others_have_and_want(bench, others):
    b = bench()
    others.add(1, "running", 4, ("n-1", "n-2"))
    others.add(2, "waiting", 2)
    others.add(3, "waiting", 2, limited=True)
    power(b)
    go_on(b, 120)
    last = b.live.store.samples(0.0, limit=1000)[-1]
    assert (last.busy_gpus, last.wanted_gpus, last.running, last.waiting) == (4, 6, 1, 1)
    b.ask(RequestKind.MODE, value="live")
    go_on(b, 120)
    last = b.live.store.samples(0.0, limit=1000)[-1]
    assert (last.busy_gpus, last.wanted_gpus, last.running, last.waiting) == (0, 0, 0, 0)


def test_while_nobody_knows_what_others_want_no_node_is_switched(bench, others):
    b = bench()
    others.error = EngineError("squeue: no answer")
    power(b)
    go_on(b, 200)
    assert asleep(b) == [False, False, False]
    assert "would-start" not in [event.kind for event in b.live.store.events()]
    others.error = None
    go_on(b, 200)
    assert asleep(b) == [True, True, True]


def test_what_a_node_runs_keeps_it_on_whatever_the_queue_says(bench, others):
    """Between two looks at the queue, Slurm may have started something: the engine says what is in use."""
    b = bench()
    b.engine.nodes = lambda inner=b.engine.nodes: _used(inner(), 1)
    power(b)
    go_on(b, 200)
    assert asleep(b)[1] is False


def _used(view, n):
    used = np.zeros(len(view.usable_gpus), dtype=bool)
    used[n] = True
    return replace(view, in_use=used)


@pytest.mark.parametrize(
    "given",
    [
        {"gpus": 4},  # with a power budget, whose nodes it would claim
        {"gpus": 2, "begin": "2099-01-01"},
    ],
)
def test_our_own_jobs_switch_nothing_whatever_they_wait_for(bench, others, given):
    b = bench(capacity={**PLAN, "horizon": 10, "power_kw": 0.55})
    others.add(1, "running", 2, ("n-2",))
    power(b)
    if "begin" in given:
        given = given | {"begin": datetime.fromtimestamp(b.clock() + 300, UTC).isoformat()}
    b.submit(100.0, **given)
    go_on(b, 120)
    seen = set()
    for _ in range(60):
        b.advance(10.0)
        b.look()
        seen.add(tuple(asleep(b)))
    assert seen == {(True, False, True)}


def test_nodes_are_drained_where_others_place_jobs(bench, others):
    b = bench()
    drained = []
    b.reconciler.engine.capabilities = replace(b.engine.capabilities, drain=True)
    b.engine.drain = lambda nodes: drained.append(sorted(nodes))
    power(b)
    b.ask(RequestKind.DRAIN, node="n-2")
    b.settle()
    b.ask(RequestKind.UNDRAIN, node="n-2")
    b.settle()
    assert drained[-2:] == [[1], []]


def test_a_mode_that_has_changed_in_the_file_is_taken(bench, others, tmp_path):
    b = bench(live={"mode": "dry-run"})
    assert b.snapshot().mode == "dry-run"
    b.close()
    b = bench(live={"mode": "live"})
    assert b.snapshot().mode == "live"
    b.ask(RequestKind.MODE, value="dry-run")
    b.settle()
    b.close()
    b = bench(live={"mode": "live"})  # it is the same
    assert b.snapshot().mode == "dry-run"


def test_a_promise_about_jobs_counts_those_of_others(bench, others):
    b = bench(capacity={"policy": "cuff", "forecaster": "last-value", "target": {"jobs": 0.5}, "step_s": 60})
    power(b)
    go_on(b, 60)
    capacity = b.reconciler.controller.capacity
    came = []
    observe = capacity._observe

    def note(asked, wanted, *rest):
        observe(asked, wanted, *rest)
        came.extend(capacity._came)

    capacity._observe = note
    others.add(1, "waiting", 2)
    others.add(2, "running", 2, ("n-1",))
    go_on(b, 40)
    assert set(came) == {(0, 2, 2), (0, 2, 4)}


@pytest.mark.slow
def test_in_live_mode_our_jobs_run_where_partitions_are_handed_over_and_power_is_switched_everywhere(bench, others):
    nodes = [{"name": "n", "count": 2, "partitions": ["main"], **WATTS}, {"name": "x", "partitions": ["old"], **WATTS}]
    b = bench(placed=["main"], nodes=nodes)
    jobs = [b.submit(300.0, gpus=2) for _ in range(3)]
    others.add(1, "running", 2, ("x",), partition="old")
    go_on(b, 100)
    assert sorted(b.status(job) for job in jobs) == [JobStatus.RUNNING, JobStatus.RUNNING, JobStatus.WAITING]
    assert "x" not in {name for event in b.live.store.events() for name in event.nodes}
    assert asleep(b) == [False, False, False]
    others.jobs.clear()
    go_on(b, 850)
    assert [b.status(job) for job in jobs] == [JobStatus.COMPLETED] * 3
    assert asleep(b) == [True, True, True]
    others.add(2, "waiting", 2, partition="old")
    go_on(b, 200)
    assert sum(asleep(b)) == 2
    wide = b.submit(10.0, gpus=6)
    b.settle()
    assert b.status(wide) == JobStatus.FAILED  # never fits the two nodes that are ours


def _slurm(folder, **changes):
    given = {"engine": "slurm", "nodes": NODES, "capacity": PLAN, "live": {"mode": "power", "slurm": {"power": True}}}
    return config_in(folder, **{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"engine": "simulated"}, "live.mode", "engine slurm"),
        ({"capacity": None}, "live.mode", "set `capacity`"),
        ({"live": {"mode": "power"}}, "live.mode", "set live.slurm.power"),
        ({"live": {"mode": "power", "slurm": {"power": True, "read_only": True}}}, "live.mode", "read_only"),
        ({"live": {"slurm": {"power": True, "place_in": ["none"]}}}, "live.slurm.place_in", "nodes.partitions"),
        ({"engine": "simulated", "live": {"slurm": {"place_in": ["main"]}}}, "live.slurm.place_in", "engine slurm"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(tmp_path, changes, field, words):
    path = _slurm(tmp_path, **changes)
    with pytest.raises(InputError) as refused:
        read_config(path)
    assert refused.value.field == field
    assert words in str(refused.value)
    told = run("serve", str(path), "--port", "0")
    assert told.code == 2
    assert field in told.err


def test_asked_for_as_an_option_it_is_refused_alike(tmp_path):
    path = config_in(tmp_path, engine="simulated")
    with pytest.raises(InputError, match="engine slurm"):
        open_live(path, mode="power")
    assert read_config(_slurm(tmp_path)).why_not_power_alone() is None


def test_a_stored_mode_without_a_plan_is_a_dry_run(bench, others, tmp_path, opened):
    b = bench()
    power(b)
    b.close()
    b = bench(capacity=None)
    b.settle()
    assert b.snapshot().mode == "dry-run"


def test_savings_are_those_of_the_plan_alone(tmp_path):
    config = read_config(_slurm(tmp_path, policies=[{"solver": "lookahead"}, {"solver": "easy"}]))
    ours, baseline = with_power_alone(config).policies
    assert (ours.solver, baseline.solver) == ("easy", "easy")
    assert (ours.capacity, baseline.capacity) == (config.capacity, None)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "placed"), [("power", ()), ("live", ("main",)), ("live", ("main", "old"))])
def test_savings_are_of_what_each_part_of_the_cluster_does(tmp_path, opened, mode, placed):
    """A job of ours and one of Slurm's ran an hour each, on a node of their own, and half an hour ago."""
    nodes = [
        {"name": "n", "partitions": ["main"], **WATTS},
        {"name": "x", "partitions": ["old"], **WATTS},
    ]
    slurm = {"power": True, "place_in": list(placed)}
    path = _slurm(tmp_path, nodes=nodes, live={"mode": mode, "slurm": slurm}, policies=[{"solver": "easy"}])
    live = opened(open_live(path))
    now_s = time.time()
    ran = {"submit_s": now_s - 5400, "start_s": now_s - 5400, "end_s": now_s - 1800}
    external = ExternalJob(
        id=7, user="ada", state="ended", limit_s=None, gpus=2, gpu_type="V100", nodes=(), partition="old", **ran
    )
    live.store.keep_setting(SETTING, [asdict(external)])
    live.store.keep_setting("mode", mode)
    live.store.add_tenant("a", 1.0, 0.0)
    file = JobFile(name="j", command=("true",), gpus=2, times_s={"V100": {2: 3600.0}}, partition="main")
    live.store.submit("a", file, now_s - 5400)
    saved = live.estimator.look()
    other = "old" not in placed
    assert saved["jobs"] == (2 if other else 1)
    # 95 W less while a node sleeps: both for half an hour; without the job of Slurm, one of them for an hour more
    assert saved["energy_kwh"] == pytest.approx(0.095 if other else 0.095 + 0.095, rel=0.01)
    assert (saved["capacity"], saved["baseline_capacity"]) == ("last-value", None)
