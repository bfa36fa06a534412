"""Schedules say what the timeline says; what runs goes on where it is; targets of tenants count."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.mapping import Goal, MappingProblem, build_schedule, continue_mapping, evaluate, solve_file
from commonwatt.mapping._auto import Auto
from commonwatt.mapping._encoding import Mapping, check
from commonwatt.mapping._scoring import makespan, population_costs, timeline
from commonwatt.model.errors import InputError
from commonwatt.model.map_file import MapFile, MapTable
from commonwatt.model.map_results import MapSchedule
from tests.mapping import literal


def file_of(problem, **more):
    def rows(table):
        cells = zip(table.tolist(), problem.possible.tolist(), strict=True)
        return tuple(tuple(v if can else None for v, can in zip(*row, strict=True)) for row in cells)

    table = MapTable(latency_cycles=rows(problem.latency), bandwidth_gbs=rows(problem.bandwidth))
    return MapFile(system_bandwidth_gbs=problem.system_bandwidth, table=table, **more)


def table(latency, bandwidth=0.0, system=10.0, **more):
    latency = np.array(latency, float)
    return file_of(MappingProblem(latency, np.broadcast_to(float(bandwidth), latency.shape).copy(), system), **more)


def clock():
    return 0.0


@pytest.mark.long
@given(literal.mapped(jobs=6))
def test_a_schedule_says_what_the_timeline_says(case):
    problem, mapping = case
    file = file_of(problem)
    result = evaluate(file, mapping)
    schedule = build_schedule(file, result, begin_cycles=100.0)
    assert MapSchedule.model_validate_json(schedule.model_dump_json()) == schedule
    played = timeline(problem, mapping)
    for j, job in enumerate(schedule.jobs):
        assert (job.start_cycles, job.end_cycles) == (100 + played.start[j], 100 + played.end[j])
        moved = sum((part.to_cycles - part.from_cycles) * part.gbs for part in job.bandwidth)
        assert moved == pytest.approx(problem.volume[j, job.accelerator], rel=1e-6)
        assert job.bandwidth[0].from_cycles == job.start_cycles
        assert job.bandwidth[-1].to_cycles == job.end_cycles
        for one, two in itertools.pairwise(job.bandwidth):
            assert one.to_cycles == two.from_cycles
    for a in range(problem.accelerators):
        queue = sorted((job for job in schedule.jobs if job.accelerator == a), key=lambda job: job.position)
        assert [job.position for job in queue] == list(range(len(queue)))
        assert all(one.end_cycles <= two.start_cycles for one, two in itertools.pairwise(queue))


@pytest.mark.slow
@given(literal.mapped(jobs=6), st.floats(0.0, 0.99))
def test_going_on_as_before_ends_when_it_would_have(case, part):
    """An all but empty batch comes at any time: the jobs left, mapped as they were, end at the same time."""
    problem, mapping = case
    whole = makespan(problem, mapping)
    tiny = MappingProblem(np.full((1, problem.accelerators), 1e-9), np.zeros((1, problem.accelerators)),
                          problem.system_bandwidth)  # fmt: skip
    made = continue_mapping(file_of(tiny), file_of(problem), mapping, part * whole)
    joined = MappingProblem.of(made.file)
    check(joined, made.start)
    assert part * whole + makespan(joined, made.start) == pytest.approx(whole, rel=1e-6)


def test_a_second_batch_by_hand():
    """At 6 of 10 cycles: job 0 runs on 0 with 4 left, 1 has ended on 1, 2 has run 1 of 10 there; 3 waits on 0."""
    before = table([[10, 10], [5, 5], [10, 10], [8, 8]], names=("a", "b", "c", "d"))
    mapping = Mapping(np.array([0, 1, 1, 0]), np.array([0.1, 0.2, 0.3, 0.4]))
    made = continue_mapping(table([[3, 3]], names=("a",)), before, mapping, 6.0)
    assert made.file.names == ("a'", "c", "d", "a")
    assert made.file.table.latency_cycles == (
        (pytest.approx(4.0), None), (None, pytest.approx(9.0)), (8.0, 8.0), (3.0, 3.0),
    )  # fmt: skip
    assert made.file.fixed.accelerator == (0, 1, None, None)
    assert made.file.fixed.priority[2:] == (None, None)
    found = solve_file(made.file, clock=clock, start=made.start, budget=500)
    assert found.makespan_cycles == pytest.approx(12.0)  # 4 + 8 on the one, 9 + 3 on the other
    assert found.optimal
    assert [job.start_cycles for job in found.jobs[:2]] == [0.0, 0.0]


def test_what_runs_at_half_speed_has_half_of_it_left():
    """Two jobs of 10 cycles that request all of the bandwidth each: at 10 cycles both have run 5."""
    before = table([[10, 10], [10, 10]], bandwidth=10.0)
    made = continue_mapping(table([[3, 3]]), before, Mapping(np.array([0, 1]), np.zeros(2)), 10.0)
    rows = made.file.table.latency_cycles
    assert (rows[0][0], rows[1][1]) == (pytest.approx(5.0), pytest.approx(5.0))


def test_dependencies_tenants_and_targets_are_carried_over():
    before = table(
        [[10, 10], [5, 5], [8, 8]], names=("a", "b", "c"), after={"b": ("a",), "c": ("b",)}, tenants=("x", "y", "x"),
        weights={"x": 2.0}, targets={"x": 30.0},
    )  # fmt: skip
    mapping = Mapping(np.array([0, 1, 0]), np.array([0.1, 0.2, 0.3]))
    new = table([[4, 4], [4, 4]], names=("d", "e"), after={"e": ("d",)}, tenants=("z", "z"), targets={"z": 9.0})
    made = continue_mapping(new, before, mapping, 11.0)
    assert made.file.names == ("b", "c", "d", "e")
    assert made.file.after == {"c": ("b",), "e": ("d",)}
    assert (made.file.tenants, made.file.weights) == (("y", "x", "z", "z"), {"x": 2.0})
    assert made.file.targets == {"x": 19.0, "z": 9.0}
    found = solve_file(made.file, clock=clock, start=made.start, budget=500)
    assert {t.tenant: (t.target_cycles, t.target_met) for t in found.tenants} == {
        "y": (None, None), "x": (19.0, True), "z": (9.0, True),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (table([[1, 1, 1]]), "2 sub-accelerators"),
        (table([[1, 1]], system=5.0), "10, as in the schedule"),
        (table([[1, 1]], order=("0",)), "no target order"),
    ],
)
def test_batches_that_do_not_go_together(new, message):
    with pytest.raises(InputError, match=message):
        continue_mapping(new, table([[1, 1]]), Mapping(np.zeros(1, int), np.zeros(1)), 0.5)


def test_targets_of_tenants_by_hand():
    """Two jobs on one: whose target is tight goes first; each percent of excess costs ten."""
    goal = {"tenants": ("x", "y"), "targets": {"y": 4.0}}
    problem = MappingProblem.of(table([[6.0], [4.0]], **goal))
    orders = Mapping(np.zeros((2, 2), int), np.array([[0.0, 1.0], [1.0, 0.0]]))
    assert population_costs(problem, orders) == pytest.approx([10 + 10 * 10 * (10 / 4 - 1), 10.0])
    found = solve_file(table([[6.0], [4.0]], **goal), clock=clock, budget=50)
    assert [t.target_met for t in found.tenants] == [None, True]
    assert found.optimal
    late = solve_file(table([[6.0], [4.0]], tenants=("x", "y"), targets={"x": 5.0}), clock=clock, budget=50)
    assert [t.target_met for t in late.tenants] == [False, None]
    assert late.optimal is None
    with pytest.raises(InputError, match="a tenant of 'tenants'"):
        MappingProblem.of(table([[6.0]], tenants=("x",), targets={"q": 1.0}))


@pytest.mark.slow
def test_a_second_decision_spends_its_budget_on_annealing_from_the_start():
    drawn = np.random.default_rng(0)
    problem = MappingProblem(drawn.integers(1, 100, (40, 4)).astype(float), drawn.random((40, 4)), 4.0)
    first = solve_file(file_of(problem), clock=clock, budget=3000)
    mapping = Mapping(np.array(first.accelerator), np.array(first.priority))
    made = continue_mapping(file_of(problem), file_of(problem), mapping, 0.5 * first.makespan_cycles)
    joined = MappingProblem.of(made.file)
    found = Auto(1000, seeds=(made.start,)).solve(joined, np.random.default_rng(0))
    assert found.evaluations <= 1000
    assert found.cost < makespan(joined, made.start)
    check(joined, found.best)
    running = np.flatnonzero(~np.isnan(joined.priority))
    assert len(running) > 0
    assert (timeline(joined, found.best).start[running] == 0).all()
    assert found.cost == makespan(joined, found.best)
    aimed = joined.with_goal(Goal(objective="completion"), joined.fixed, joined.priority)
    other = Auto(500, seeds=(made.start,)).solve(aimed, np.random.default_rng(0))
    assert other.evaluations == 500
    assert (timeline(joined, other.best).start[running] == 0).all()
