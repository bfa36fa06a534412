"""Plans of completion times, by hand and against a plain plan."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.placement import POSTPONED, _completion
from commonwatt.placement._completion import Completion, ResizingCompletion, _of_menu, _Options, _Planner
from commonwatt.placement._objective import check
from commonwatt.placement._peers import Menu
from tests.placement.test_peers import A, B, job, problem, solved


def test_the_shortest_job_goes_first():
    jobs = [job("long", 100, None), job("short", 10, None), job("middle", 50, None)]
    assert solved(Completion(), problem(jobs)) == {"short": A}


def test_the_power_decides_between_a_short_job_and_an_old_one():
    # alone the order costs: power 1: 10,100 + 190 against 90 + 10,190; power 2: 102 against 104 million
    jobs = [job("old", 100, None, submit_s=0), job("new", 90, None, submit_s=10_000)]
    of = replace(problem(jobs), now_s=10_000.0)
    assert solved(Completion(1.0), of) == {"new": A}
    assert solved(Completion(2.0), of) == {"old": A}


@pytest.mark.parametrize(("restart_s", "gets"), [(30.0, {"runs": A}), (4.0, {"runs": A, "waits": B})])
def test_a_job_waits_for_a_faster_type_and_fills_the_time_if_that_takes_long(restart_s, gets):
    jobs = [
        job("runs", 100, None, current={"nodes": ["a"], "gpus": 1, "remaining_s": 10}),
        job("waits", 100, 1000),
    ]
    assert solved(Completion(), problem(jobs, b=1, restart_s=np.array([restart_s, restart_s]))) == gets


def test_a_running_job_moves_where_it_ends_earlier_with_its_restart():
    there = {"nodes": ["b"], "gpus": 1, "remaining_s": 400}
    assert solved(Completion(), problem([job("j", 300, 1000, current=there)])) == {"j": A}
    assert solved(Completion(), problem([job("j", 500, 1000, current=there)])) == {"j": B}


def test_what_may_not_be_stopped_stays():
    jobs = [
        job("runs", 9000, None, current={"nodes": ["a"], "gpus": 1, "remaining_s": 9000}),
        job("short", 10, None),
    ]
    assert solved(Completion(), problem(jobs)) == {"short": A}
    free = problem(jobs)
    columns = ("klass", "width", "per_node", "time_s", "node_cost", "asked")
    kept = {name: getattr(free, name)[1:] for name in columns}  # the running job has its present configuration only
    locked = replace(free, locked=True, start=np.array([0, 1, 2]), stay=np.array([0, -1]), **kept)
    assert solved(Completion(), locked) == {"runs": A}


def test_in_rounds_gpus_are_held_to_the_end_of_the_round():
    of = problem([job("first", 10, None), job("second", 20, None)])
    options, order, level = _of_menu(of, Menu.of(of)), np.array([0, 1]), np.zeros(2, dtype=np.int64)
    assert _Planner(of, options, 1.0).plan(order, level).start_s.tolist() == [0.0, 10.0]
    in_rounds = replace(of, round_s=360.0)
    assert _Planner(in_rounds, options, 1.0).plan(order, level).start_s.tolist() == [0.0, 360.0]


# -- any jobs


@st.composite
def problems(draw: st.DrawFn):
    jobs, used = [], {"a": 0, "b": 0}
    for i in range(draw(st.integers(1, 5))):
        gpus = draw(st.integers(1, 3))
        a_s, b_s = draw(st.sampled_from([(90, 130), (400, 250), (70, None), (None, 777)]))
        more = {}
        where = draw(st.sampled_from(["", "a", "b"]))
        if where and used[where] + gpus <= 4 and {"a": a_s, "b": b_s}[where]:
            used[where] += gpus
            more = {"current": {"nodes": [where], "gpus": gpus, "remaining_s": draw(st.sampled_from([5, 60]))}}
        jobs.append(job(f"j{i}", a_s, b_s, gpus, submit_s=0, **more))
    round_s = draw(st.sampled_from([None, 100.0]))
    return replace(problem(jobs, a=4, b=4), now_s=50.0, round_s=round_s)


def plain(of, menu, order):
    """Start of each job in the order: the class and time that end it first, among now and the ends before it."""
    held, found = [], {}
    for j in order:
        options = []
        for k in (A, B):
            for start in sorted({0.0, *(end for _, _, end, _ in held)}):
                row = of.stay[j] if start == 0 and menu.home[j] == k else menu.start[j, k]
                if row < 0:
                    continue
                time_s = of.time_s[row]
                end = start + (time_s if of.round_s is None else np.ceil(time_s / of.round_s) * of.round_s)
                moments = [start, *(begin for _, begin, _, _ in held if start < begin < end)]
                most = max(sum(g for kk, begin, until, g in held if kk == k and begin <= at < until) for at in moments)
                if most + menu.gpus[j] <= menu.room[k]:
                    options.append((start + time_s, k, start, end))
        _, k, start, end = min(options, key=lambda option: (option[0], option[1]))
        held.append((k, start, end, menu.gpus[j]))
        found[j] = (k, start)
    return found


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(problems())
def test_plans_equal_a_plain_one_and_the_best_is_near_the_best_of_all_orders(of):
    """The worst order costs up to eleven times the best one, the best of those to begin with 1.5 times."""
    menu = Menu.of(of)
    options, level = _of_menu(of, menu), np.zeros(len(of), dtype=np.int64)
    planner = _Planner(of, options, 1.5)
    costs = []
    for order in permutations(range(len(of))):
        plan = planner.plan(np.array(order), level)
        placed = {j: (int(options.klass[plan.option[j]]), float(plan.start_s[j])) for j in order}
        assert placed == plain(of, menu, order)
        costs.append(plan.cost)
    first = min(planner.plan(order, level).cost for order in planner.orders())
    assert first <= 2.0 * min(costs)
    found = Completion().solve(of, np.random.default_rng(0)).best
    check(of, found)
    again = Completion().solve(of, np.random.default_rng(0)).best
    assert found.choice.tolist() == again.choice.tolist()
    assert (found.choice != POSTPONED).any()


# -- plans that choose the number of GPUs


def shapes(solver, of):
    """Class and GPUs of each job that starts."""
    found = solver.solve(of, np.random.default_rng(0)).best
    check(of, found)
    rows = {of.job_names[j]: int(found.choice[j]) for j in np.flatnonzero(found.choice != POSTPONED)}
    return {name: (int(of.klass[row]), of.gpus_of(row)) for name, row in rows.items()}


def elastic(name, b_s, **more):
    return {"name": name, "tardiness_weight": 0, "times_s": {"B": b_s}, **more}


def test_sizes_are_chosen_by_the_number_of_jobs_by_hand():
    times = {1: 100, 2: 60, 4: 45}
    three = [elastic(f"j{i}", times, submit_s=0) for i in (1, 2, 3)]

    def of(jobs):
        return replace(problem(jobs, a=1, b=4), node_gpus=np.array([0, 4]))

    solver = ResizingCompletion(1.0)
    assert shapes(solver, of(three[:1])) == {"j1": (B, 4)}
    # two each: 60 + 60; four each, one after the other: 45 + 90; one each: 100 + 100
    assert shapes(solver, of(three[:2])) == {"j1": (B, 2), "j2": (B, 2)}
    # two each, then four: 60 + 60 + 105 = 225; 1, 1, 2: 260; two each, then two: 240; 45 + 90 + 135 = 270
    assert shapes(solver, of(three)) == {"j1": (B, 2), "j2": (B, 2)}


def test_a_running_job_grows_only_where_that_is_worth_its_restart():
    def of(restart_s):
        run = {"current": {"nodes": ["b"], "gpus": 1, "remaining_s": 100}}
        made = replace(problem([elastic("j", {1: 100, 4: 45}, **run)], a=1, b=4), node_gpus=np.array([0, 4]))
        anew = np.arange(len(made.klass)) != made.stay[0]
        return replace(made, time_s=made.time_s + np.where(anew, restart_s, 0), restart_s=np.array([restart_s]))

    assert shapes(ResizingCompletion(), of(50.0)) == {"j": (B, 4)}  # 95 s
    assert shapes(ResizingCompletion(), of(60.0)) == {"j": (B, 1)}


@pytest.mark.parametrize("solver", [Completion(), ResizingCompletion()])
def test_what_is_not_planned_as_there_is_too_much_is_not_stopped(solver, monkeypatch):
    monkeypatch.setattr(_completion, "DEPTH", 1)
    runs = [{"current": {"nodes": ["b"], "gpus": 1, "remaining_s": s}, "requested_gpus": 1} for s in (50, 90)]
    jobs = [elastic(f"j{i}", {1: 100, 2: 80}, submit_s=0, **run) for i, run in enumerate(runs)]
    of = replace(problem([*jobs, elastic("waits", {1: 300}, submit_s=0)], a=1, b=3), node_gpus=np.array([0, 3]))
    assert shapes(solver, of) == {"j0": (B, 1), "j1": (B, 1), "waits": (B, 1)}


def test_a_running_job_that_would_wait_is_planned_to_start_again():
    # j2 needs both GPUs, of which j1 has one for another 50 s; j1 would start again after it, which is dearer
    run = {"current": {"nodes": ["b"], "gpus": 1, "remaining_s": 50}}
    jobs = [elastic("j1", {1: 400}, submit_s=0, **run), elastic("j2", {2: 1000}, submit_s=0)]
    of = replace(problem(jobs, a=1, b=2), node_gpus=np.array([0, 2]))
    assert shapes(ResizingCompletion(), of) == {"j1": (B, 1)}


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(st.data())
def test_sizes_and_order_are_near_the_best_of_all(data):
    """Of all orders and sizes. Over all three jobs like these the mean is .4% above the best, the most 31%."""
    jobs = []
    for j in range(data.draw(st.integers(1, 3))):
        base, scaling = data.draw(st.sampled_from((60.0, 200.0, 700.0))), data.draw(st.sampled_from((0.4, 0.7, 1.0)))
        times = {t: {g: base * s / g**scaling for g in (1, 2, 4)} for t, s in (("A", 1.0), ("B", 1.6))}
        jobs.append({"name": f"j{j}", "tardiness_weight": 0, "times_s": times, "submit_s": 0})
    of = problem(jobs, a=4, b=4)
    size = of.width * of.per_node

    def cost(order, rows):
        held, total = [], 0.0
        for j in order:
            k, gpus, time_s = of.klass[rows[j]], size[rows[j]], of.time_s[rows[j]]
            for start in sorted({0.0, *(end for _, _, end, _ in held)}):
                end = start + time_s
                moments = [start, *(begin for _, begin, _, _ in held if start < begin < end)]
                if all(sum(g for kk, b, e, g in held if kk == k and b <= at < e) + gpus <= 4 for at in moments):
                    break
            held.append((k, start, end, gpus))
            total += end**1.5
        return total

    own = [np.flatnonzero(of.row_job == j).tolist() for j in range(len(of))]
    best = min(cost(order, rows) for order in permutations(range(len(of))) for rows in product(*own))
    options = _Options(of.start, of.klass, size, of.time_s, np.full(len(size), np.inf))
    each = 1.0 / (of.time_s * size)
    most = np.array(
        [each[(of.row_job == j) & (of.klass == k)].max() for j, k in zip(of.row_job, of.klass, strict=True)]
    )
    planner = _Planner(of, options, 1.5, each / most)
    found = planner.searched(np.random.default_rng(0), lambda: True, 300)
    assert best * (1 - 1e-9) <= found.cost <= 1.35 * best
