"""Peers: CP-SAT finds the optimum of small problems, and SimPy's FIFO costs what ours does."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from commonwatt.bench import decisions
from commonwatt.bench.cp_sat import CpSatMapping, CpSatPlacement
from commonwatt.bench.suite import Bench, BenchCase, BenchOutcome, Entrant, Suite
from commonwatt.mapping import Mapping, MappingProblem, timeline
from commonwatt.model.demand import LEVELS, DemandSeries
from commonwatt.model.errors import SolverError
from commonwatt.model.place_file import PlaceFile
from commonwatt.placement import PlacementProblem, Schedule, objective
from commonwatt.simulation.runner import run_seeds
from commonwatt.simulation.workload import prepare

cp_sat = pytest.mark.skipif(not find_spec("ortools"), reason="ortools is not installed")


@cp_sat
@pytest.mark.slow
@pytest.mark.parametrize("case", [0, 1])
def test_cp_sat_finds_the_optimum(case):
    file = decisions.place_file(4, 8, case)
    found = decisions._cp_sat_placed(file, 0)
    assert found.value == pytest.approx(decisions._placed("exact", file, 0).value, rel=1e-6)
    assert found.apart_s > 0


@cp_sat
@pytest.mark.slow
def test_cp_sat_counts_the_run_of_the_first_ending_job_alone():
    """Two jobs on one node: the second is free, but for the time that it is late."""
    nodes = [{"name": "a", "gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 100}]
    jobs = [{"name": n, "tardiness_weight": 1.0, "due_s": d, "times_s": {"V100": [t]}} for n, t, d in
            (("a", 600.0, 700.0), ("b", 60.0, 50.0))]  # fmt: skip
    problem = PlacementProblem.of(PlaceFile.model_validate({"nodes": nodes, "jobs": jobs, "now_s": 0.0}))
    found = CpSatPlacement().solve(problem, np.random.default_rng(0))
    assert (found.best.choice >= 0).all()
    by_hand = Schedule.empty(problem)
    by_hand.choice[:], by_hand.nodes[:] = [0, 1], 0
    assert found.cost == objective(problem, by_hand).total == pytest.approx(10.0 + float(problem.node_cost[1]))


def test_cp_sat_refuses_what_it_does_not_state():
    nodes = [{"name": "a", "count": 2, "gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 100}]
    gang = {"name": "a", "tardiness_weight": 1.0, "due_s": 1e6, "times_s": {"V100": {4: 60.0}}}
    problem = PlacementProblem.of(PlaceFile.model_validate({"nodes": nodes, "jobs": [gang], "now_s": 0.0}))
    with pytest.raises(SolverError, match="one node each"):
        CpSatPlacement().solve(problem, np.random.default_rng(0))


@cp_sat
@pytest.mark.slow
def test_cp_sat_assigns_jobs_so_that_the_load_is_least():
    """Where bandwidth is plenty, order does not matter: the best of all assignments of seven jobs to two arrays."""
    rng = np.random.default_rng(3)
    problem = MappingProblem(rng.uniform(1, 10, (7, 2)), np.ones((7, 2)), 1000.0)
    found = CpSatMapping().solve(problem, np.random.default_rng(0))
    every = np.array(np.unravel_index(np.arange(2**7), (2,) * 7)).T
    least = min(timeline(problem, Mapping(where, np.zeros(7))).makespan for where in every)
    assert found.cost == pytest.approx(least, rel=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(("case", "jobs_per_day"), [(0, 150), (1, 350)])
def test_simpy_costs_what_ours_does(case, jobs_per_day):
    """Another program for first come, first served: light, and with queues in which most of the cost is tardiness."""
    pytest.importorskip("simpy")
    from commonwatt.bench.peers import fifo_cost

    scenario = decisions.week_scenario("fifo")
    workload = scenario.workload.model_copy(update={"jobs_per_day": jobs_per_day})
    prepared = prepare(scenario.model_copy(update={"workload": workload}), Path(), case)
    ours = run_seeds([prepared])[0][0].policies[0]
    assert fifo_cost(prepared) == pytest.approx(ours.total_cost, rel=1e-9)
    if jobs_per_day > 150:
        assert ours.tardiness_cost > ours.energy_cost > 0
        other = run_seeds(
            [prepare(decisions.week_scenario("edf").model_copy(update={"workload": workload}), Path(), case)]
        )
        assert other[0][0].policies[0].total_cost != pytest.approx(ours.total_cost, rel=1e-3)


@pytest.mark.long
def test_nhits_forecasts_the_same_again():
    pytest.importorskip("neuralforecast")
    from commonwatt.bench.peers import NhitsPredictor

    values = 20 + 5 * np.sin(np.arange(300) / 10)
    series = DemandSeries(0.0, 600.0, values)
    found = []
    for _ in range(2):
        predictor = NhitsPredictor(24, 5, steps=100)
        predictor.fit(series, np.random.default_rng(0))
        found.append(predictor.predict_many(series, np.array([200, 299])))
    assert found[0].shape == (2, 5, len(LEVELS))
    assert (found[0] == found[1]).all()
    assert (np.diff(found[0], axis=-1) >= 0).all()
    assert np.abs(found[0][0, :, 4] - values[201:206]).max() < 3  # the last value alone is off by up to 5
    assert predictor.predict().gpus == pytest.approx(found[0][1])
    predictor.update(float("nan"))


def test_a_peer_that_fails_is_told_beside_the_others():
    def breaks(problem, seed):
        raise KeyError("libamd_smi.so")

    peers = [Entrant("peer", "peer", breaks, ("numpy",)), Entrant("plain", "ours", lambda p, s: BenchOutcome(1.0))]
    suite = Suite("toy", 1, "t", "m", "a", "plain", lambda quick: [BenchCase("a", 1.0)], lambda quick: peers)
    found = {solver.name: solver for solver in Bench([suite]).run().suites[0].solvers}
    assert (found["peer"].state, found["peer"].reason) == ("failed", "KeyError: 'libamd_smi.so'")
    assert found["plain"].state == "done"


def test_time_in_other_processes_counts():
    def solve(apart_s):
        return lambda problem, seed: BenchOutcome(1.0, apart_s=apart_s)

    entrants = [Entrant("plain", "ours", solve(10.0)), Entrant("apart", "peer", solve(40.0), ("numpy",))]
    suite = Suite("toy", 1, "t", "m", "a", "plain", lambda quick: [BenchCase("a", 1.0)], lambda quick: entrants)
    found = {solver.name: solver for solver in Bench([suite]).run().suites[0].solvers}
    assert found["apart"].time_ratio == pytest.approx(4.0, rel=0.01)
