"""CPUs and memory of nodes: never overbooked, nobody starves for them, and nothing changes where they do not bind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.control.controller import Controller
from commonwatt.control.engine import JobProgress, NodeRoom, NodeView
from commonwatt.control.events import EventKind
from commonwatt.control.job_registry import JobRegistry, Rules
from commonwatt.model.electricity import Electricity, ElectricityPoint
from commonwatt.model.explanation import PlacementExplanation, Reason
from commonwatt.model.jobs import JobArrays
from commonwatt.model.place_file import PlaceFile
from commonwatt.model.scenario import Scenario
from commonwatt.placement import POSTPONED, Explainer, PlacementProblem, Schedule
from commonwatt.placement.guarantees import within_cpus_memory
from commonwatt.simulation.runner import run_seeds
from commonwatt.simulation.workload import prepare
from tests.control.worlds import cluster_of, job, simulate, trace

SOLVERS = ("lookahead", "local-search", "random-greedy", "easy", "fair-share", "srtf", "fifo", "edf", "priority")
STARTS = (EventKind.STARTED, EventKind.RESUMED, EventKind.MIGRATED, EventKind.RESIZED)
ENDS = (EventKind.COMPLETED, EventKind.PREEMPTED)
STAY = Rules(preempt=False)


def starts(done: Controller) -> dict[str, tuple[float, tuple[str, ...]]]:
    """First start of each job, and its nodes."""
    found: dict[str, tuple[float, tuple[str, ...]]] = {}
    for event in done.log.since(0):
        if event.kind in STARTS:
            name = done.registry.names[event.handle]
            found.setdefault(name, (event.time_s, tuple(done.cluster.names[n] for n in event.nodes)))
    return found


def most_used(done: Controller, table: JobArrays) -> tuple[float, float]:
    """Most CPUs and memory jobs had of one node at once, from the log of events alone."""
    runs: dict[int, tuple[tuple[int, ...], int]] = {}
    most = np.zeros(2)
    events = list(done.log.since(0))
    for event, after in zip(events, [*events[1:], None], strict=True):
        if event.kind in STARTS:
            runs[event.handle] = event.nodes, event.gpus // len(event.nodes)
        elif event.kind in ENDS:
            runs.pop(event.handle, None)
        if after is not None and after.time_s == event.time_s:
            continue  # what is decided at one moment happens at once
        used = np.zeros((len(done.cluster), 2))
        for handle, (nodes, gpus) in runs.items():
            used[list(nodes)] += gpus * np.array([table.cpus_per_gpu[handle], table.memory_gib_per_gpu[handle]])
        most = np.maximum(most, used.max(axis=0))
    return float(most[0]), float(most[1])


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_job_waits_for_cpus_although_gpus_are_free(solver):
    table = JobArrays.of([job("a", 0, 100, cpus_per_gpu=6), job("b", 0, 100, cpus_per_gpu=6)])
    done = simulate(cluster_of(nodes=1, gpus=4, cpus=8), table, solver, rules=STAY)
    assert starts(done) == {"a": (0, ("n",)), "b": (100, ("n",))}
    (waits,) = [event.why for event in done.log.since(0) if event.reason is Reason.CPUS_OR_MEMORY]
    assert "waits: nodes with 1 GPU free have too few CPUs or too little memory for it" in waits.sentence


@pytest.mark.parametrize("solver", SOLVERS)
def test_it_goes_to_another_node_that_has_them(solver):
    table = JobArrays.of([job("a", 0, 100, memory_gib_per_gpu=30), job("b", 0, 100, memory_gib_per_gpu=30)])
    done = simulate(cluster_of(nodes=2, gpus=4, memory_gib=40), table, solver, rules=STAY)
    found = starts(done)
    assert found["a"][0] == found["b"][0] == 0
    assert {found["a"][1], found["b"][1]} == {("n-1",), ("n-2",)}


def test_a_gang_needs_them_on_each_of_its_nodes():
    """Three GPUs on each of two nodes are free at once, but six CPUs on one of them only."""
    table = JobArrays.of([job("small", 0, 500, cpus_per_gpu=5), job("gang", 1, 100, gpus=6, cpus_per_gpu=2)])
    assert starts(simulate(cluster_of(nodes=2, gpus=4), table, "easy", rules=STAY))["gang"] == (1, ("n-1", "n-2"))
    limited = simulate(cluster_of(nodes=2, gpus=4, cpus=8), table, "easy", rules=STAY)
    assert starts(limited)["gang"] == (500, ("n-1", "n-2"))


def test_a_job_that_asks_for_more_than_a_node_has_takes_all_of_it():
    table = JobArrays.of([job("greedy", 0, 100, cpus_per_gpu=999), job("b", 0, 50, cpus_per_gpu=1)])
    done = simulate(cluster_of(nodes=1, gpus=4, cpus=8), table, "easy", rules=STAY)
    assert starts(done) == {"greedy": (0, ("n",)), "b": (100, ("n",))}


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
def test_nobody_starves_for_cpus(solver):
    """A job that needs all CPUs, beside a stream of others that never leaves them free at once: it is reserved them.

    Small jobs that end before it starts go first, a longer one does not.
    """
    stream = [job(f"s{k}", 40.0 * k, 100, cpus_per_gpu=2) for k in range(40)]
    big = job("big", 50, 100, cpus_per_gpu=8)
    done = simulate(
        cluster_of(nodes=1, gpus=8, cpus=8), JobArrays.of([*stream[:2], big, *stream[2:]]), solver, rules=STAY
    )
    assert starts(done)["big"][0] == 140  # when s1, which runs as it comes, has ended


def test_what_ends_before_the_reservation_starts_beside_it():
    jobs = [
        job("long", 0, 1000, cpus_per_gpu=6), job("big", 10, 100, cpus_per_gpu=8),
        job("short", 20, 500, cpus_per_gpu=2), job("late", 20, 5000, cpus_per_gpu=2),
    ]  # fmt: skip
    done = simulate(cluster_of(nodes=1, gpus=8, cpus=8), JobArrays.of(jobs), "easy", rules=STAY)
    assert {name: at for name, (at, _) in starts(done).items()} == {"long": 0, "big": 1000, "short": 20, "late": 1100}


@pytest.mark.long
@given(seed=st.integers(0, 10_000), solver=st.sampled_from(SOLVERS), preempt=st.booleans())
@settings(max_examples=25, deadline=None)
def test_no_node_is_overbooked_and_every_job_ends(seed, solver, preempt):
    rng = np.random.default_rng(seed)
    jobs = [
        job(
            f"j{k}", float(at), float(rng.uniform(50, 2000)), gpus=int(rng.choice([1, 2, 4, 8])),
            due_s=float(at + rng.uniform(0, 5000)), cpus_per_gpu=float(rng.choice([1, 2, 4])),
            memory_gib_per_gpu=float(rng.choice([0.5, 3.0, 7.7])),
        )
        for k, at in enumerate(np.cumsum(rng.exponential(60, 25)))
    ]  # fmt: skip
    table = JobArrays.of(jobs)
    done = simulate(
        cluster_of(nodes=3, gpus=4, cpus=16, memory_gib=31), table, solver, rules=Rules(preempt=preempt, restart_s=5.0),
        iterations=20,
    )  # fmt: skip
    cpus, memory_gib = most_used(done, table)
    assert cpus <= 16 + 1e-6
    assert memory_gib <= 31 + 1e-6
    assert sum(event.kind is EventKind.COMPLETED for event in done.log.since(0)) == len(jobs)


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
def test_limits_that_never_bind_change_nothing(solver):
    rng = np.random.default_rng(5)
    plain = [
        (f"j{k}", float(at), float(rng.uniform(50, 2000))) for k, at in enumerate(np.cumsum(rng.exponential(60, 25)))
    ]
    with_cpus = JobArrays.of([job(*row, gpus=1 + k % 3, cpus_per_gpu=2.0) for k, row in enumerate(plain)])
    without = JobArrays.of([job(*row, gpus=1 + k % 3) for k, row in enumerate(plain)])
    limited = simulate(cluster_of(nodes=3, gpus=4, cpus=8), with_cpus, solver)
    assert trace(limited) == trace(simulate(cluster_of(nodes=3, gpus=4), without, solver))
    assert trace(limited) == trace(simulate(cluster_of(nodes=3, gpus=4, cpus=1), without, solver))  # nobody asks


def document(**more: object) -> dict[str, object]:
    times = {"V100": {1: 100.0}}
    return {
        "workload": {"source": "jobs", "jobs": [{"name": "a", "submit_s": 0, "times_s": times, "cpus_per_gpu": 6}]},
        "nodes": [{"name": "n", "gpu_type": "V100", "gpus": 4, "idle_w": 100, "gpu_w": 100, "cpus": 8}],
        "policies": [{"solver": "easy"}],
    } | more


def test_a_scenario_declares_them(tmp_path):
    found = document()
    found["workload"]["jobs"].append({**found["workload"]["jobs"][0], "name": "b"})
    (result,), _ = run_seeds([prepare(Scenario.model_validate(found), tmp_path, 0)])
    assert result.policies[0].longest_wait_s == 100


@pytest.mark.long
@pytest.mark.slow
@given(
    seed=st.integers(0, 10_000), solver=st.sampled_from(SOLVERS), preempt=st.booleans(),
    caps=st.lists(st.sampled_from([500.0, 700.0, 1100.0]), min_size=1, max_size=4),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_under_a_power_cap_no_node_is_overbooked_either(seed, solver, preempt, caps):
    """A node of four GPUs draws 500 W; three of them are on at 300 W."""
    rng = np.random.default_rng(seed)
    jobs = []
    for k, at in enumerate(np.cumsum(rng.exponential(60, 20))):
        alone_s = float(rng.uniform(50, 2000))
        needs = {"cpus_per_gpu": float(rng.choice([1, 2, 4])), "memory_gib_per_gpu": float(rng.choice([0.5, 3.0, 7.7]))}
        one = job(f"j{k}", float(at), alone_s, due_s=float(at + rng.uniform(0, 5000)), **needs)
        jobs.append(replace(one, times_s={"V100": {1: alone_s, 2: 0.6 * alone_s}}))
    points = [ElectricityPoint(from_s=900.0 * k, price_per_kwh=0.1, power_cap_w=cap) for k, cap in enumerate(caps)]
    table = JobArrays.of(jobs)
    done = simulate(
        cluster_of(nodes=3, gpus=4, cpus=8, memory_gib=16), table, solver, rules=Rules(preempt=preempt, restart_s=5.0),
        iterations=20, electricity=Electricity(series=points),
    )  # fmt: skip
    cpus, memory_gib = most_used(done, table)
    assert cpus <= 8 + 1e-6
    assert memory_gib <= 16 + 1e-6
    assert sum(event.kind is EventKind.COMPLETED for event in done.log.since(0)) == len(jobs)
    for sample in done.samples:
        assert preempt is False or sample.power_w <= float(done.tariff.cap_w.at(sample.time_s)) + 1e-6


def test_under_a_power_cap_a_job_goes_to_the_node_with_cpus():
    """Two nodes are on at 200 W, and each GPU takes 100 W: with 500 W three jobs run, two at most on 14 CPUs."""
    table = JobArrays.of([job(f"j{k}", 0, 100, cpus_per_gpu=6, memory_gib_per_gpu=1) for k in range(4)])
    cluster, cap = cluster_of(nodes=2, gpus=4, cpus=14), Electricity(power_cap_w=500.0)
    done = simulate(cluster, table, "fifo", rules=STAY, electricity=cap)
    assert [at for at, _ in starts(done).values()] == [0, 0, 0, 100]
    assert most_used(done, table)[0] == 12


def test_who_waits_for_cpus_under_a_power_cap_is_told_so():
    jobs = [job("a", 0, 100, cpus_per_gpu=6), job("b", 0, 100, cpus_per_gpu=6)]
    cap = Electricity(power_cap_w=1000.0)
    done = simulate(cluster_of(nodes=1, gpus=4, cpus=8), JobArrays.of(jobs), "fifo", rules=STAY, electricity=cap)
    (waits,) = [event for event in done.log.since(0) if event.kind is EventKind.WAITS]
    assert waits.reason is Reason.CPUS_OR_MEMORY
    assert starts(done)["b"][0] == 100


@pytest.mark.parametrize(("cpus", "gives_way"), [(2.0, True), (20.0, False)])
def test_who_waits_for_cpus_keeps_nobody_from_taking_the_place_of_a_running_job(cpus, gives_way):
    """While `c` lacks CPUs on the first node, `urgent` takes the place of `b` on the second one, if it fits there."""

    def asks(name, gpus, **more):
        return {"name": name, "tardiness_weight": 1.0, "times_s": {"V100": {gpus: 100.0}}, **more}

    def on(node, gpus):
        return {"nodes": [node], "gpus": gpus, "remaining_s": 500.0}

    jobs = [
        asks("a", 1, current=on("n-1", 1)), asks("b", 2, current=on("n-2", 2)), asks("c", 1),
        asks("urgent", 2, due_s=1.0),
    ]  # fmt: skip
    node = {"name": "n", "count": 2, "gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 100}
    problem = PlacementProblem.of(PlaceFile.model_validate({"nodes": [node], "jobs": jobs}))
    needs = np.array([6.0, 2.0, 6.0, cpus])[problem.row_job]
    problem = replace(
        problem, node_cpus_memory=np.full((2, 2), [8.0, 64.0]), cpus_memory=np.column_stack((needs, 0 * needs))
    )
    wanted = Schedule.unchanged(problem)
    wanted.choice[1], wanted.nodes[problem.slot_start[1]] = POSTPONED, -1
    for j, place in ((2, 0), (3, 1)):
        wanted.choice[j], wanted.nodes[problem.slot_start[j]] = problem.start[j], place
    found = within_cpus_memory(problem, wanted)
    running = {problem.job_names[j]: found.nodes_of(problem, j).tolist() for j in np.flatnonzero(found.choice != -1)}
    assert running == ({"a": [0], "urgent": [1]} if gives_way else {"a": [0], "b": [1]})
    assert found.short is not None
    assert found.short.tolist() == [False, False, True, not gives_way]
    why = Explainer(problem, found).explain(2)
    assert (why.lacks, why.needs, why.left, why.nodes) == (("cpu",), (6.0,), (2.0,), ("n-1",))
    assert PlacementExplanation.of(why.facts()) == why
    assert "n-1 has 2 CPUs left, and it needs 6 CPUs there" in why.sentence


@pytest.mark.parametrize("cpus", [2.0, 6.0])
def test_a_job_that_a_solver_held_back_says_so_only_if_nodes_have_all_it_needs(cpus):
    """GPUs are free on both nodes, and 2 CPUs on each."""
    jobs = [{"name": name, "tardiness_weight": 1.0, "times_s": {"V100": {1: 100.0}}} for name in "abc"]
    node = {"name": "n", "count": 2, "gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 100}
    problem = PlacementProblem.of(PlaceFile.model_validate({"nodes": [node], "jobs": jobs}))
    needs = np.array([6.0, 6.0, cpus])[problem.row_job]
    problem = replace(
        problem, node_cpus_memory=np.full((2, 2), [8.0, 64.0]), cpus_memory=np.column_stack((needs, 0 * needs))
    )
    schedule = Schedule.unchanged(problem)
    for j in (0, 1):
        schedule.choice[j], schedule.nodes[problem.slot_start[j]] = problem.start[j], j
    why = Explainer(problem, schedule).explain(2)
    if cpus == 2:
        assert (why.reason, why.lacks) == (Reason.NOT_YET, ())
    else:
        assert (why.reason, why.lacks, why.left) == (Reason.CPUS_OR_MEMORY, ("cpu",), (2.0,))


def test_what_an_engine_says_of_its_nodes_counts_beside_what_runs():
    """What runs fits where it is, and conditions of a node keep only what is to start off it."""
    registry = JobRegistry(cluster_of(nodes=2, gpus=4))
    a, b, c = registry.add(JobArrays.of([job(name, 0, 100) for name in "abc"]), np.arange(3))
    asked = []

    def room(handles, per_node):
        asked.append((handles.tolist(), per_node.tolist()))
        needs = np.array([[4.0, 1.0]] * len(handles))
        return NodeRoom(("cpu", "taint x:NoSchedule"), np.array([[7.0, 0.0], [1.0, np.inf]]), needs, 1)

    registry.room = room
    for handle, node in ((a, 0), (b, 1)):
        registry.place(handle, int(registry.job("first")[handle]), (node,), 0.0)
    nodes = NodeView(np.array([4, 4]), np.zeros(2), np.full(2, -1))
    tariff = Electricity().tariff()
    progress = JobProgress(np.zeros(2), np.zeros(2), np.zeros(2))
    problem, _ = registry.problem(
        np.array([a, c]), 0.0, Rules(preempt=False), tariff, progress, nodes, np.ones(1), np.zeros(1)
    )
    assert asked == [([a, c, b], [1, 1, 1])]
    assert problem.resources == ("cpu", "taint x:NoSchedule")
    assert problem.node_cpus_memory.tolist() == [[7.0, 0.0], [0.0, np.inf]]  # b, which is not decided about, is beside
    assert problem.cpus_memory.tolist() == [[4.0, 0.0], [4.0, 1.0]]
