"""Planned start times: by hand where few jobs want the same hours, and against the best of all plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from commonwatt.model.electricity import Electricity, StepIntegral
from commonwatt.placement import PlacementProblem
from commonwatt.placement.start_times import Power, StartPlan, StartRules, plan_starts
from commonwatt.placement.start_times._scarcity import Scarcity
from commonwatt.placement.start_times._timetable import Timetable
from tests.placement.test_peers import problem

HOUR = 3600.0
CURVE = Electricity(daily={"00:00": 0.1, "02:00": 0.3, "05:00": 0.08, "07:00": 0.4, "12:00": 0.2}, pue=1.0)


def power_of(of: PlacementProblem) -> Power:
    gpus = (of.width * of.per_node).astype(float)
    nodes = np.zeros(len(of.node_gpus))
    return Power(busy_w=200.0 * gpus, share_w=250.0 * gpus, idle_w=nodes + 200.0, rest_w=nodes + 200.0)


def planned(of: PlacementProblem, value: StepIntegral) -> StartPlan:
    return plan_starts(of, power_of(of), StartRules(value, least_saving=0.0), np.random.default_rng(0))


def made(jobs: list[tuple[dict[int, float], float]]) -> PlacementProblem:
    """Jobs of (hours by number of GPUs, due at this hour), all there, for a node of 4 GPUs."""
    return replace(problem([
        {
            "name": f"j{i}", "submit_s": 0.0, "tardiness_weight": 0, "due_s": HOUR * due_h,
            "times_s": {"B": {g: HOUR * h for g, h in times.items()}},
        }
        for i, (times, due_h) in enumerate(jobs)
    ], b=4), node_gpus=np.array([0, 4]))  # fmt: skip


def best_cost(of: PlacementProblem, value: StepIntegral, step_s: float = 900.0) -> float:
    """Return the least cost of all plans whose jobs start at multiples of *step_s*, as a linear program in integers."""
    steps = int(np.ceil(of.due_s.max() / step_s))
    share_w, gpus = power_of(of).share_w, of.width * of.per_node
    cost, owner, columns = [], [], []
    for row, job in enumerate(of.row_job.tolist()):
        time_s = float(of.time_s[row])
        for step in range(steps):
            start = np.array([step * step_s])
            if step * step_s + time_s <= of.due_s[job]:
                cost.append(float(share_w[row] * value.integral(start, start + time_s)[0]))
                owner.append(job)
                use = np.zeros(steps)
                use[step : int(np.ceil((step * step_s + time_s) / step_s - 1e-9))] = gpus[row]
                columns.append(use)
    each = np.equal.outer(np.arange(len(of)), owner).astype(float)
    found = milp(
        cost, integrality=np.ones(len(cost)), bounds=Bounds(0, 1),
        constraints=[LinearConstraint(np.array(columns).T, -np.inf, of.node_gpus.sum()), LinearConstraint(each, 1, 1)],
    )  # fmt: skip
    return float(found.fun) if found.success else np.inf


@st.composite
def crowds(draw: st.DrawFn) -> PlacementProblem:
    """Up to seven jobs of one or three sizes, due within a day, whose run times are quarters of hours."""
    jobs = []
    for _ in range(draw(st.integers(1, 7))):
        hours = draw(st.sampled_from([1.0, 2.0, 5.0]))
        sizes = draw(st.sampled_from([{1: 1.0}, {2: 1.0}, {4: 0.5}, {1: 1.0, 2: 0.75, 4: 0.5}]))
        jobs.append(({g: hours * part for g, part in sizes.items()}, draw(st.sampled_from([9.0, 15.0, 24.0]))))
    return made(jobs)


@pytest.mark.long
@given(of=crowds())
@settings(max_examples=60, deadline=None)
def test_a_plan_costs_little_more_than_the_best_of_all(of):
    """Of cases in which every job gets hours: one that would save nothing by waiting is left to the solver instead."""
    value = CURVE.tariff().planned_by("cost", 0.0)
    plan = planned(of, value)
    assume(np.isfinite(plan.cost).all())
    assert not plan.late.any()
    assert best_cost(of, value) * (1 - 1e-9) <= plan.cost.sum() <= 1.1 * best_cost(of, value)


def test_of_two_jobs_one_has_the_cheap_hours_and_the_longer_of_them():
    """The night from 5:00 to 7:00 has room for one job of 4 GPUs; an hour of the other would leave half of it empty."""
    of = made([({4: 1.0}, 20.0), ({4: 2.0}, 20.0)])
    plan = planned(of, CURVE.tariff().planned_by("cost", 0.0))
    assert plan.start_s[1] == 5 * HOUR
    assert np.isnan(plan.start_s[0])  # it starts at once, at 0.1
    assert plan.cost[0] == pytest.approx(4 * 0.25 * 0.1)


def test_a_scarce_hour_costs_what_the_next_best_would_save_by_it():
    """Three jobs of an hour on all GPUs want 5:00 to 7:00, at 0.08; the third has midnight to 2:00, at 0.1."""
    of = made([({4: 1.0}, 24.0)] * 3)
    value = CURVE.tariff().planned_by("cost", 0.0)
    profile = Timetable(of, power_of(of), 24 * HOUR)
    starts_s = profile.starts_s()[: -int(HOUR / profile.piece_s) + 1]
    first, end = profile.pieces(starts_s, HOUR)
    cost = 1e6 * value.integral(starts_s, starts_s + HOUR)
    prices = Scarcity.clearing(profile, [[(row, first, end, cost)] for row in range(3)])
    night, early, day = prices.of(0, *profile.pieces(np.array([5.0, 0.0, 8.0]) * HOUR, HOUR))
    assert night == pytest.approx(20.0, rel=0.02)  # per MW: 20 less than at midnight
    assert early == pytest.approx(0.0, abs=0.2)
    assert day == pytest.approx(0.0, abs=0.2)
