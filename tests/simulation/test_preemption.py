"""Jobs that take the place of others, as their QOS may, under every solver."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.control.events import EventKind
from commonwatt.control.preemption import room_made
from commonwatt.data.files import validate
from commonwatt.model.errors import InputError
from commonwatt.model.scenario import Scenario
from commonwatt.placement import POSTPONED, Schedule
from tests.placement.made import crowded_problem
from tests.simulation.made import node, prepared, run
from tests.simulation.test_qos import job

QOS = [{"name": "low"}, {"name": "high", "priority": 10, "preempts": ["low"]}]
SOLVERS = ["fair-share", "easy", "lookahead", "srtf", "edf"]


def ran(jobs: list[dict], qos: list[dict] = QOS, *, solver: str = "fair-share", gpus: int = 4, **more: object):
    """Run jobs on one node; returns when each had GPUs, and the run."""
    policy = {"solver": solver, **({"work_conserving": True} if solver == "lookahead" else {})}
    document = {
        "workload": {"source": "jobs", "jobs": jobs},
        "nodes": [node("n", gpus=gpus)],
        "qos": qos,
        "unused_nodes": {"state": None},
        "preemption": {"allowed": False, "restart_s": 0},
        "policies": [policy],
        **more,
    }
    done, record = run(prepared(document))
    s = record.segments
    had: dict[str, list[tuple[float, float]]] = {name: [] for name in record.jobs.name}
    for j, a, b in zip(s.job.tolist(), s.from_s.tolist(), s.to_s.tolist(), strict=True):
        had[record.jobs.name[j]].append((a, b))
    return {name: sorted(parts) for name, parts in had.items()}, done, record


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_job_takes_the_place_of_one_its_qos_may_preempt(solver):
    jobs = [job("a", gpus=4, qos="low"), job("b", 30, gpus=4, qos="high")]
    had, done, record = ran(jobs, solver=solver)
    assert had == {"a": [(0, 30), (130, 230)], "b": [(30, 130)]}  # all its work was lost
    assert record.jobs.starts.tolist() == [2, 1]
    assert done.controller.preemptions == 1
    (event,) = [event for event in done.controller.log.since(0) if event.kind is EventKind.PREEMPTED]
    assert event.lost_s == 30


def test_it_goes_on_from_its_last_snapshot():
    jobs = [job("a", gpus=4, qos="low", epochs=10), job("b", 35, gpus=4, qos="high")]
    had, _, _ = ran(jobs, preemption={"allowed": False, "restart_s": 20})
    assert had == {"a": [(0, 35), (135, 225)], "b": [(35, 135)]}  # 3 of 10 epochs are kept; 20 s until it works again


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("of", "qos"),
    [
        ("other", [*QOS, {"name": "other"}]),  # it may preempt another
        ("high", QOS),  # none of its own
        ("low", [{"name": "low", "preempt_mode": "off"}, QOS[1]]),
        ("", QOS),
    ],
)
def test_others_go_on(solver, of, qos):
    jobs = [job("a", gpus=4, qos=of), job("b", 30, gpus=4, qos="high")]
    had, done, _ = ran(jobs, qos, solver=solver)
    assert had == {"a": [(0, 100)], "b": [(100, 200)]}
    assert done.controller.preemptions == 0


@pytest.mark.parametrize("solver", SOLVERS)
def test_nobody_is_preempted_if_that_makes_no_room(solver):
    jobs = [job("a", gpus=2, qos="low"), job("fixed", gpus=2), job("b", 30, gpus=4, qos="high")]
    had, done, _ = ran(jobs, solver=solver)
    assert had["a"] == [(0, 100)]
    assert done.controller.preemptions == 0
    jobs[2] = job("b", 30, gpus=2, qos="high")
    had, done, _ = ran(jobs, solver=solver)
    assert (had["b"], had["fixed"]) == ([(30, 130)], [(0, 100)])


def test_nobody_is_preempted_beside_room():
    jobs = [job("a", gpus=2, qos="low"), job("b", 30, gpus=2, qos="high")]
    had, done, _ = ran(jobs)
    assert had == {"a": [(0, 100)], "b": [(30, 130)]}
    assert done.controller.preemptions == 0


def test_no_more_go_than_needed_and_lower_priority_before_youth():
    high = {"name": "high", "priority": 9, "preempts": ["low", "middle"]}
    qos = [{"name": "low"}, {"name": "middle", "priority": 5}, high]
    jobs = [job("low", 0, qos="low"), *(job(f"m{k}", k, qos="middle") for k in (1, 2, 3))]
    had, done, _ = ran([*jobs, job("b", 30, gpus=2, qos="high")], qos)
    assert {name for name, parts in had.items() if len(parts) > 1} == {"low", "m3"}
    had, done, _ = ran([*jobs, job("b", 30, gpus=1, qos="high")], qos)
    assert {name for name, parts in had.items() if len(parts) > 1} == {"low"}
    assert done.controller.preemptions == 1


def test_one_large_job_goes_rather_than_small_ones_beside_it():
    jobs = [job("s1", 0, qos="low"), job("large", 1, gpus=3, qos="low"), job("b", 30, gpus=3, qos="high")]
    had, _, _ = ran(jobs)
    assert {name for name, parts in had.items() if len(parts) > 1} == {"large"}


def test_a_job_that_only_just_starts_gives_way_first_and_has_not_started():
    jobs = [job("runs", gpus=4), job("old", 10, gpus=4, qos="low"), job("b", 20, gpus=4, qos="high")]
    had, _, record = ran(jobs, solver="easy")
    assert had == {"runs": [(0, 100)], "b": [(100, 200)], "old": [(200, 300)]}
    assert record.jobs.starts.tolist() == [1, 1, 1]


def test_it_runs_for_its_exempt_time_before():
    qos = [{"name": "low", "exempt_s": 50}, QOS[1]]
    jobs = [job("a", gpus=4, qos="low"), job("b", 30, gpus=4, qos="high")]
    had, _, _ = ran(jobs, qos)
    assert had == {"a": [(0, 50), (150, 250)], "b": [(50, 150)]}
    had, _, _ = ran(jobs, [{"name": "low", "exempt_s": 500}, QOS[1]])
    assert had == {"a": [(0, 100)], "b": [(100, 200)]}


@pytest.mark.parametrize("solver", SOLVERS)
def test_it_runs_on_for_its_grace_time(solver):
    qos = [{"name": "low", "grace_s": 20}, QOS[1]]
    jobs = [job("a", gpus=4, qos="low", epochs=2), job("b", 40, gpus=4, qos="high")]
    had, _, _ = ran(jobs, qos, solver=solver)
    assert had == {"a": [(0, 60), (160, 210)], "b": [(60, 160)]}  # in the meantime it took a snapshot
    jobs[1] = job("b", 90, gpus=4, qos="high")
    had, done, _ = ran(jobs, qos, solver=solver)
    assert had == {"a": [(0, 100)], "b": [(100, 200)]}  # it ended before
    assert done.controller.preemptions == 0


def test_limits_hold_for_a_job_that_preempts():
    qos = [{"name": "low"}, {**QOS[1], "max_jobs": 1}]
    jobs = [job(name, gpus=2, qos="low") for name in ("a1", "a2")]
    had, done, _ = ran([*jobs, job("b1", 30, gpus=2, qos="high"), job("b2", 30, gpus=2, qos="high")], qos)
    assert had["b1"] == [(30, 130)]
    assert had["b2"] == [(130, 230)]
    assert done.controller.preemptions <= 2


def test_a_requeued_job_runs_elsewhere_at_once():
    nodes = [node("v", "V100", 1), node("t", "T4", 1)]
    both = {"requested_gpus": 1, "times_s": {"V100": {1: 90.0}, "T4": {1: 100.0}}}
    a = {"name": "a", "submit_s": 0, "qos": "low", **both}
    jobs = [a, {"name": "b", "submit_s": 30, "qos": "high", "requested_gpus": 1, "times_s": {"V100": {1: 100.0}}}]
    had, _, _ = ran(jobs, nodes=nodes)
    assert had == {"a": [(0, 30), (30, 130)], "b": [(30, 130)]}


def test_cpus_count_as_well():
    nodes = [node("n", gpus=4, cpus=8)]
    jobs = [job("a", gpus=1, qos="low", cpus_per_gpu=8), job("b", 30, gpus=2, qos="high", cpus_per_gpu=4)]
    had, _, _ = ran(jobs, nodes=nodes)
    assert had == {"a": [(0, 30), (130, 230)], "b": [(30, 130)]}


@pytest.mark.parametrize(
    ("qos", "said"),
    [
        ([{"name": "a", "preempts": ["b"]}], "qos.preempts': got 'b'"),
        ([{"name": "a", "preempts": ["a"]}], "a circle through 'a'"),
        ([{"name": name, "preempts": [other]} for name, other in ("ab", "bc", "ca")], "a circle"),
        ([{"name": "a", "preempt_mode": "kill"}], "preempt_mode"),
        ([{"name": "a", "grace_s": -1}], "grace_s"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(qos, said):
    with pytest.raises(InputError) as caught:
        validate({"nodes": [node("n")], "qos": qos}, Scenario)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


# -- the room that is made, against every subset of victims


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10_000), st.randoms())
def test_room_is_made_wherever_there_is_any_and_by_no_more_than_needed(seed, random) -> None:
    problem = crowded_problem(nodes=3, jobs=6, seed=seed, gpus=4)
    schedule, order = Schedule.empty(problem), list(range(len(problem)))
    random.shuffle(order)
    for j in order[:-1]:
        for row in range(problem.start[j], problem.start[j + 1]):
            fit = problem.room(row, schedule.free_gpus(problem))
            if len(fit):
                schedule.choice[j] = row
                first = problem.slot_start[j]
                schedule.nodes[first : first + problem.width[row]] = fit[: problem.width[row]]
                break
    mine = order[-1]
    rows = list(range(problem.start[mine], problem.start[mine + 1]))[: random.randint(1, 3)]
    victims = [j for j in order[:-1] if schedule.choice[j] != POSTPONED and random.random() < 0.7]

    def fits(gone: tuple[int, ...]) -> bool:
        choice = schedule.choice.copy()
        choice[list(gone)] = POSTPONED
        free = problem.node_gpus.copy()
        for j in np.flatnonzero(choice != POSTPONED):
            for n in schedule.nodes_of(problem, j):
                free[n] -= problem.per_node[choice[j]]
        return any(
            ((problem.node_class == problem.klass[r]) & (free >= problem.per_node[r])).sum() >= problem.width[r]
            for r in rows
        )

    made = room_made(problem, schedule, rows, victims)
    subsets = [gone for size in range(len(victims) + 1) for gone in combinations(victims, size)]
    assert (made is not None) == any(fits(gone) for gone in subsets)
    if made is None:
        return
    assert fits(made.victims)
    assert set(made.victims) <= set(victims)
    assert not any(fits(tuple(v for v in made.victims if v != one)) for one in made.victims)
    free = schedule.free_gpus(problem)
    for v in made.victims:
        free[schedule.nodes_of(problem, v)] += problem.per_node[schedule.choice[v]]
    assert (free[made.nodes] >= problem.per_node[made.row]).all()
    assert len(set(made.nodes.tolist())) == problem.width[made.row]
    assert (problem.node_class[made.nodes] == problem.klass[made.row]).all()


# -- whatever the jobs


@st.composite
def preempting(draw: st.DrawFn) -> dict:
    qos = [
        {"name": "low", "grace_s": draw(st.sampled_from([0, 0, 25])), "exempt_s": draw(st.sampled_from([0, 0, 60]))},
        {"name": "middle", "priority": 5, "preempts": draw(st.sampled_from([[], ["low"]]))},
        {"name": "high", "priority": 9, "preempts": draw(st.sampled_from([["low"], ["middle"], ["low", "middle"]])),
         "max_jobs": draw(st.sampled_from([None, 2]))},
    ]  # fmt: skip
    jobs = []
    for k in range(draw(st.integers(2, 9))):
        gpus = draw(st.sampled_from([1, 2, 4]))
        kinds = draw(st.sampled_from([["V100"], ["V100"], ["V100", "T4"]]))
        times = {kind: {gpus: draw(st.integers(1, 8)) * 50.0} for kind in kinds}
        jobs.append({
            "name": f"j{k}", "submit_s": draw(st.integers(0, 40)) * 10.0, "times_s": times, "requested_gpus": gpus,
            "qos": draw(st.sampled_from(["", "low", "low", "middle", "high"])), "epochs": draw(st.sampled_from([1, 5])),
            "tenant": draw(st.sampled_from(["a", "b"])),
        })  # fmt: skip
    return {
        "workload": {"source": "jobs", "jobs": jobs},
        "nodes": [node("n", gpus=4), node("m", gpus=draw(st.sampled_from([2, 4]))), node("t", "T4", 4)],
        "qos": qos, "unused_nodes": {"state": None},
        "preemption": {"allowed": False, "restart_s": draw(st.sampled_from([0, 10]))},
        "policies": [{"solver": draw(st.sampled_from([*SOLVERS, "local-search"]))}],
    }  # fmt: skip


@pytest.mark.long
@settings(max_examples=80, deadline=None)
@given(preempting())
def test_only_those_that_may_be_are_preempted_and_that_makes_room(document: dict) -> None:
    problem = prepared(document)
    done, record = run(problem)
    assert (record.jobs.ended_s >= record.jobs.submit_s).all()  # all end
    told = {one["name"]: one for one in document["workload"]["jobs"]}
    qos = {one["name"]: one for one in document["qos"]}
    names, log = done.controller.registry.names, done.controller.log.since(0)
    began: dict[str, float] = {}
    starts = (EventKind.STARTED, EventKind.RESUMED)
    stopped = [event for event in log if event.kind is EventKind.PREEMPTED]
    for event in log:
        name = names[event.handle] if event.handle >= 0 else ""
        if event.kind in starts:
            began[name] = event.time_s
        if event.kind is not EventKind.PREEMPTED:
            continue
        victim = qos[told[name]["qos"]]  # it has a QOS
        assert event.time_s - began[name] >= victim.get("exempt_s", 0) - 1e-6
        takers = [
            other for other in log
            if other.kind in starts and other.time_s == event.time_s and set(other.nodes) & set(event.nodes)
            and victim["name"] in qos.get(told[names[other.handle]]["qos"], {}).get("preempts", [])
        ]  # fmt: skip
        assert takers, f"{name} was preempted at {event.time_s} for nobody"
        gpus = {taker.handle: max(told[names[taker.handle]]["times_s"]["V100"]) for taker in takers}
        others = [one for one in stopped if one.time_s == event.time_s and one is not event]
        # what those that were stopped had is less than what is started there, without any one of them
        assert sum(one.gpus for one in others if set(one.nodes) & set(event.nodes)) < sum(gpus.values())
    assert len(stopped) == done.controller.preemptions
    starts_of = dict(zip(record.jobs.name, record.jobs.starts.tolist(), strict=True))
    for name, count in starts_of.items():
        assert count == 1 + sum(names[event.handle] == name for event in stopped)


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(preempting(), st.randoms())
def test_the_order_in_which_qos_are_listed_does_not_matter(document: dict, random) -> None:
    shuffled = list(document["qos"])
    random.shuffle(shuffled)
    _, one = run(prepared(document))
    _, other = run(prepared({**document, "qos": shuffled}))
    np.testing.assert_array_equal(one.jobs.began_s, other.jobs.began_s)
    np.testing.assert_array_equal(one.jobs.ended_s, other.jobs.ended_s)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(preempting())
def test_beside_solvers_that_stop_jobs_themselves_every_job_ends(document: dict) -> None:
    document["preemption"]["allowed"] = True
    _, record = run(prepared(document))
    assert (record.jobs.ended_s >= record.jobs.submit_s).all()
