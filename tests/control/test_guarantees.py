"""The limits of a policy hold for every solver, whatever arrives."""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.control.controller import Controller
from commonwatt.control.events import EventKind
from commonwatt.control.job_registry import JobRegistry, Rules
from commonwatt.control.limits import LimitTracker
from commonwatt.control.policy import Policy
from commonwatt.control.run_time_estimates import RunTimeEstimates, relative_times
from commonwatt.engines.clocks import VirtualClock, run
from commonwatt.engines.simulated.engine import SimulatedEngine, World
from commonwatt.model.electricity import Electricity
from commonwatt.model.jobs import Job, JobArrays
from commonwatt.model.nodes import Cluster, NodeSpec
from commonwatt.model.scenario import PolicyLimits, PolicySpec
from commonwatt.simulation.run_setup import TableSource
from tests.control.worlds import cluster_of, job

SOLVERS = (
    "lookahead",
    "local-search",
    "random-greedy",
    "exact",
    "fifo",
    "edf",
    "priority",
    "srtf",
    "easy",
    "fair-share",
)
VARIANTS = {"resizing": {"solver": "completion", "resize": True}, "auction": {"solver": "themis", "auction": True}}
OTHERS = ("las", "qssf", "drf", "sia", "pollux", "powerflow", "completion", *VARIANTS)
"""Published schedulers and plans of completion times: beside ours, which have limits of their own by default."""
QUICK = tuple(solver for solver in SOLVERS if solver != "exact")
EVERY = (*QUICK, *(pytest.param(solver, marks=(pytest.mark.slow, pytest.mark.long)) for solver in OTHERS))
BACKFILL = ("easy", "fair-share")
H_S = 300.0
STOPS = {EventKind.PREEMPTED, EventKind.MIGRATED, EventKind.RESIZED}
STARTS = {EventKind.STARTED, EventKind.RESUMED, EventKind.MIGRATED, EventKind.RESIZED}


def controlled(
    table: JobArrays, solver: str, limits: PolicyLimits | None, *, cluster: Cluster | None = None, preempt: bool = True,
    knowledge: str = "oracle", restart_s: float = 0.0, on_tick=lambda _controller, _now_s: None,
) -> Controller:  # fmt: skip
    cluster = cluster or cluster_of(2, 8)
    engine = SimulatedEngine(cluster, table, World(restart_s=restart_s))
    spec = PolicySpec(**VARIANTS.get(solver, {"solver": solver}), limits=limits, iterations=5)
    estimates = None if knowledge == "oracle" else RunTimeEstimates(knowledge)
    controller = Controller(
        cluster=cluster, engine=engine, policy=Policy.of(spec), tariff=Electricity().tariff(), estimates=estimates,
        rules=Rules(interval_s=H_S, preempt=preempt, restart_s=restart_s), rng=np.random.default_rng(0),
    )  # fmt: skip
    seen = table if estimates is None else relative_times(table)
    run(controller, VirtualClock(engine), TableSource(seen), lambda now_s: on_tick(controller, now_s))
    return controller


def waits_s(controller: Controller) -> dict[str, float]:
    began_s, submit_s = controller.registry.job("began_s"), controller.registry.job("submit_s")
    return dict(zip(controller.registry.names, (began_s - submit_s).tolist(), strict=True))


def hourly(hours: int, **gang) -> JobArrays:
    """A 4-GPU job every hour, two of which overlap, and a 16-GPU job."""
    jobs = [job(f"j{i}", 3600.0 * i, 2.3 * 3600, 4) for i in range(hours)]
    return JobArrays.of(sorted([*jobs, job("gang", 9000.0, 3600.0, 16, **gang)], key=lambda j: j.submit_s))


@st.composite
def floods(draw: st.DrawFn) -> JobArrays:
    """Jobs of all sizes, and one stream of small ones that keeps a part of two nodes of 8 GPUs busy."""
    jobs, at_s = [], 0.0
    for i in range(draw(st.integers(1, 8))):
        at_s += draw(st.sampled_from([0.0, 40.0, 700.0]))
        jobs.append(job(
            f"a{i}", at_s, draw(st.sampled_from([60.0, 900.0, 4000.0])), draw(st.sampled_from([1, 3, 8, 16])),
            due_s=at_s + draw(st.sampled_from([100.0, 5000.0, np.inf])), epochs=draw(st.sampled_from([1, 9])),
        ))  # fmt: skip
    gap_s, time_s = draw(st.sampled_from([(200.0, 350.0), (500.0, 1100.0)]))
    size, weight = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1e-4, 1e-1]))
    jobs += [
        job(f"b{i}", gap_s * i, time_s, size, tardiness_weight=weight, due_s=gap_s * i + time_s) for i in range(25)
    ]
    return JobArrays.of(sorted(jobs, key=lambda j: j.submit_s))


# -- starts, moves, minimum run


def longest_and_most(controller: Controller) -> tuple[dict[str, int], list[float]]:
    """Starts of each job, and for how long it had run whenever it was stopped or moved."""
    starts: dict[str, int] = defaultdict(int)
    since_s, ran_s = {}, []
    for event in controller.log.since(0):
        if event.kind in STOPS:
            ran_s.append(event.time_s - since_s[event.handle])
        if event.kind in STARTS:
            starts[controller.registry.names[event.handle]] += 1
            since_s[event.handle] = event.time_s
    return starts, ran_s


@pytest.mark.long
@pytest.mark.parametrize("solver", EVERY)
@given(table=floods(), most=st.integers(1, 3), min_run_s=st.sampled_from([0.0, 450.0]))
@settings(max_examples=12, deadline=None)
def test_no_job_is_started_more_often_or_stopped_earlier_than_its_limit(solver, table, most, min_run_s):
    limits = PolicyLimits(max_starts=most, min_run_s=min_run_s)
    starts, ran_s = longest_and_most(controlled(table, solver, limits))
    assert max(starts.values()) <= most
    assert min(ran_s, default=np.inf) >= min_run_s - 1e-6


@pytest.mark.slow
def test_limits_bind_where_a_job_is_stopped_again_and_again():
    """Shortest remaining time first stops the long job for each of the short ones."""
    jobs = [job("long", 0.0, 20_000.0, 8, epochs=1000), *(job(f"s{i}", 500.0 + 1000 * i, 300.0, 8) for i in range(15))]
    cluster, table = cluster_of(1, 8), JobArrays.of(jobs)
    free, _ = longest_and_most(controlled(table, "srtf", None, cluster=cluster))
    assert free["long"] > 10
    few, _ = longest_and_most(controlled(table, "srtf", PolicyLimits(max_starts=4), cluster=cluster))
    assert few["long"] == 4
    _, ran_s = longest_and_most(controlled(table, "srtf", PolicyLimits(min_run_s=2500.0), cluster=cluster))
    assert len(ran_s) > 2
    assert min(ran_s) >= 2500.0


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (PolicyLimits(max_starts=1), "that are not stopped, as they were started as often as they may be (max_starts)"),
        (PolicyLimits(min_run_s=2500.0), "that are not stopped, as they have not run for long enough (min_run_s)"),
        (PolicyLimits(min_run_s=1.0), ""),
    ],
)
def test_who_waits_for_jobs_that_are_not_stopped_is_told_which_limit_that_is(limits, says):
    jobs = [job("long", 0.0, 20_000.0, 8, epochs=1000), job("short", 500.0, 300.0, 8)]
    controller = controlled(JobArrays.of(jobs), "srtf", limits, cluster=cluster_of(1, 8))
    told = [
        e.why.sentence for e in controller.log.since(0) if e.why is not None and e.why.waits and e.why.job == "short"
    ]
    assert any(says in sentence for sentence in told) if says else told == []


# -- the reservation


@pytest.mark.slow
@pytest.mark.parametrize("preempt", [False, True])
@pytest.mark.parametrize("solver", EVERY)
def test_a_gang_among_small_jobs_starts_as_soon_as_what_ran_has_ended(solver, preempt):
    limits = PolicyLimits(reserve_after_s=1800.0)
    controller = controlled(hourly(40), solver, limits, preempt=preempt)
    assert waits_s(controller)["gang"] <= 1800.0 + H_S + 2.3 * 3600


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["lookahead", "random-greedy", "fifo", "srtf"])
def test_without_a_reservation_it_waits_for_the_last_of_them(solver):
    assert waits_s(controlled(hourly(40), solver, PolicyLimits(), preempt=False))["gang"] > 35 * 3600


@pytest.mark.slow
@pytest.mark.parametrize(("solver", "keeps"), [("lookahead", True), ("random-greedy", True), ("srtf", False)])
def test_who_says_nothing_of_limits_has_a_reservation_after_a_day_but_for_published_rules(solver, keeps):
    wait_s = waits_s(controlled(hourly(40), solver, None, preempt=False))["gang"]
    assert (wait_s <= 24 * 3600 + H_S + 2.3 * 3600) == keeps


@pytest.mark.slow
@pytest.mark.parametrize("solver", EVERY)
@given(table=floods(), after_s=st.sampled_from([0.0, 1000.0]), preempt=st.booleans(), limit=st.sampled_from([None, 2]))
@settings(max_examples=15, deadline=None)
def test_nobody_starves(solver, table, after_s, preempt, limit):
    """Each older job can hold one reservation, for the longest run time at most."""
    limits = PolicyLimits(reserve_after_s=after_s, max_starts=limit)
    controller = controlled(table, solver, limits, preempt=preempt)
    longest_s = float(table.config_time_s.max()) + H_S
    for rank, (name, wait_s) in enumerate(waits_s(controller).items()):
        assert wait_s <= after_s + H_S + (rank + 1) * longest_s, name


@pytest.mark.long
@pytest.mark.parametrize("knowledge", ["predicted", "none"])
@pytest.mark.parametrize("solver", QUICK)
@given(table=floods(), preempt=st.booleans())
@settings(max_examples=6, deadline=None)
def test_nobody_starves_whatever_is_believed_of_run_times(solver, knowledge, table, preempt):
    limits = PolicyLimits(reserve_after_s=1000.0)
    controller = controlled(table, solver, limits, preempt=preempt, knowledge=knowledge)
    longest_s = float(table.config_time_s.max()) + H_S
    for rank, (name, wait_s) in enumerate(waits_s(controller).items()):
        assert wait_s <= 1000.0 + H_S + (rank + 1) * longest_s, name


@pytest.mark.slow
@pytest.mark.parametrize("solver", [*EVERY, "exact"])
def test_a_certain_promise_is_kept_to_the_second(solver):
    """What is logged for the gang is when it starts, at the latest."""
    controller = controlled(hourly(8), solver, PolicyLimits(reserve_after_s=1800.0), preempt=False)
    for event in controller.log.since(0):
        if event.why is not None and event.why.reason == "reserved":
            began_s = controller.registry.job("began_s")[event.handle]
            assert began_s <= event.time_s + event.why.starts_within_s + 1e-3
            assert "reserved for it, the oldest that cannot start" in event.why.sentence


def test_who_waits_for_the_oldest_is_told_so():
    jobs = [job("a", 0.0, 5000.0, 8), job("gang", 10.0, 100.0, 16), job("long", 30.0, 9000.0, 8)]
    told: dict[str, str] = {}

    def watch(controller, now_s):
        for event in controller.log.since(0) if now_s < 4000.0 else ():
            if event.why is not None and event.why.waits:
                told[controller.registry.names[event.handle]] = event.why.sentence

    controlled(JobArrays.of(jobs), "lookahead", PolicyLimits(reserve_after_s=0.0), preempt=False, on_tick=watch)
    assert "are reserved for it, the oldest that cannot start; it starts within" in told["gang"]
    assert "8 GPUs are free: those are reserved for the oldest job that cannot start" in told["long"]


def test_short_jobs_run_on_reserved_gpus_until_they_are_needed():
    jobs = [
        job("a", 0.0, 5000.0, 8),
        job("gang", 10.0, 100.0, 16),
        job("short", 20.0, 900.0, 8),
        job("long", 30.0, 9000.0, 8),
    ]
    controller = controlled(JobArrays.of(jobs), "fifo", PolicyLimits(reserve_after_s=0.0), preempt=False)
    began_s = dict(zip(controller.registry.names, controller.registry.job("began_s").tolist(), strict=True))
    assert began_s["short"] == pytest.approx(20.0)
    assert began_s["gang"] == pytest.approx(5000.0)
    assert began_s["long"] == pytest.approx(5100.0)


# -- deliberate waiting


def two_types() -> Cluster:
    return Cluster.of([
        NodeSpec(name="v", count=2, gpu_type="V100", gpus=2, idle_w=150, gpu_w=250),
        NodeSpec(name="t", count=2, gpu_type="T4", gpus=2, idle_w=50, gpu_w=40),
    ])  # fmt: skip


@st.composite
def thrifty_jobs(draw: st.DrawFn) -> JobArrays:
    """Jobs that take less energy on T4, of which there are few, and without due dates."""
    jobs, at_s = [], 0.0
    for i in range(draw(st.integers(1, 20))):
        at_s += draw(st.sampled_from([0.0, 30.0, 800.0]))
        time_s, gpus = draw(st.sampled_from([200.0, 3000.0])), draw(st.sampled_from([1, 2]))
        times = {"V100": {gpus: time_s}, "T4": {gpus: 2.0 * time_s}}
        jobs.append(Job(f"j{i}", "t", at_s, np.inf, 0.0, times, epochs=5, requested_gpus=gpus))
    return JobArrays.of(jobs)


class Idling:
    """For how long each job has waited beside GPUs it could use, found the slow way."""

    def __init__(self) -> None:
        self.waited_s: dict[int, float] = defaultdict(float)
        self.last_s, self.beside = 0.0, set[int]()

    def __call__(self, controller: Controller, now_s: float) -> None:
        for handle in self.beside:
            self.waited_s[handle] += now_s - self.last_s
        registry, self.last_s, self.beside = controller.registry, now_s, set()
        free = controller.cluster.gpus - registry.allocated_gpus
        for handle in registry.active - registry.nodes.keys():
            first = int(registry.job("first")[handle])
            for row in range(first, first + int(registry.job("count")[handle])):
                klass, width, per_node = (int(registry.row(name)[row]) for name in ("klass", "width", "per_node"))
                if ((controller.cluster.klass == klass) & (free >= per_node)).sum() >= width:
                    self.beside.add(handle)


@pytest.mark.slow
@pytest.mark.parametrize("solver", [s for s in EVERY if s not in BACKFILL])  # which keep room for a reservation
@given(table=thrifty_jobs(), most_s=st.sampled_from([0.0, 100.0, 1000.0]), preempt=st.booleans())
@settings(max_examples=12, deadline=None)
def test_nobody_waits_beside_free_gpus_for_longer_than_the_limit(solver, table, most_s, preempt):
    idling = Idling()
    limits = PolicyLimits(max_deliberate_wait_s=most_s)
    controlled(table, solver, limits, cluster=two_types(), preempt=preempt, on_tick=idling)
    assert max(idling.waited_s.values(), default=0.0) <= (most_s + H_S if most_s else 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["lookahead", "local-search"])
def test_without_the_limit_jobs_without_due_dates_wait_for_a_thrifty_type(solver):
    times = {"V100": {2: 5000.0}, "T4": {2: 10000.0}}
    jobs = [Job(f"j{i}", "t", 0.0, np.inf, 0.0, times, epochs=5, requested_gpus=2) for i in range(6)]
    table, longest = JobArrays.of(jobs), []
    for most_s in (None, 600.0):
        idling = Idling()
        limits = PolicyLimits(max_deliberate_wait_s=most_s)
        controlled(table, solver, limits, cluster=two_types(), preempt=False, on_tick=idling)
        longest.append(max(idling.waited_s.values(), default=0.0))
    assert longest[0] >= 10000.0
    assert 0.0 < longest[1] <= 600.0 + H_S


# -- another controller


def test_what_is_remembered_outlives_the_controller():
    """The second tracker knows what the first one knew, by names, though jobs and nodes have other numbers."""
    before: list[LimitTracker] = []

    def watch(controller, now_s):
        if 3000.0 < now_s < 4000.0 and not before:
            before.append(json.loads(json.dumps(controller.limits.by_name())))

    jobs = [
        job("first", 0.0, 2000.0, 8),  # the oldest when it starts
        job("a", 0.0, 9000.0, 8),
        job("gang", 10.0, 100.0, 16),
        job("short", 3000.0, 700.0, 8),
    ]
    limits = PolicyLimits(reserve_after_s=0.0, max_deliberate_wait_s=600.0, min_run_s=900.0)
    controlled(JobArrays.of(jobs), "fifo", limits, on_tick=watch)
    (left,) = before
    assert left["reserved"]["job"] == "gang"
    assert left["reserved"]["by_s"] == pytest.approx(9000.0)
    assert left["placed_s"] == {"a": 0.0, "short": 3000.0}

    cluster = Cluster.of(
        [
            NodeSpec(name="x", gpu_type="V100", gpus=8, idle_w=1, gpu_w=1),
            NodeSpec(name="n", count=2, gpu_type="V100", gpus=8, idle_w=1, gpu_w=1),
        ]
    )
    table = JobArrays.of([job("new", 0.0, 50.0, 1), *jobs[1:]])
    registry = JobRegistry(cluster)
    handles = dict(zip(table.names, registry.add(table, np.arange(4)), strict=True))
    for name, node in (("a", 1), ("short", 2)):
        row = registry.row_of(handles[name], (node,), 8)
        registry.place(handles[name], row, (node,), 0.0)
    tracker = LimitTracker(limits, registry)
    tracker.resume({**left, "promised": ["a", "gone"], "waited_s": {"gang": 5.0, "gone": 7.0}}, handles)
    again = tracker.by_name()
    assert again["reserved"] == left["reserved"]
    assert again["promised"] == ["a"]
    assert again["waited_s"] == {"gang": 5.0}
    assert again["placed_s"] == left["placed_s"]
    assert tracker.lasting(np.array([handles["a"], handles["short"]]), np.array([True, True]), 3800.0).all()

    without = LimitTracker(limits, JobRegistry(cluster_of(1, 8)))  # the nodes are gone, and so are the jobs
    without.resume(left, {})
    assert without.by_name()["reserved"] is None
