"""The suites: placement, weeks of jobs, markets, MIG, mapping, slices and forecasts of demand.

Every problem is drawn by a generator with a seed of its own. A change to one raises the version of its suite.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

from commonwatt.bench.suite import BenchCase, BenchOutcome, Entrant, Kind, Suite
from commonwatt.model.errors import InputError
from commonwatt.model.plugins import Plugin, plugged
from commonwatt.model.policies import SolverName

__all__ = ["SUITES"]


def _zero() -> float:
    return 0.0


# -- placement

_ITERATIONS = 1000
_SIZES = (("small", 4, 8, 3), ("medium", 20, 60, 3), ("large", 60, 240, 2))  # nodes, jobs, problems


def place_file(nodes: int, jobs: int, seed: int) -> Any:  # noqa: ANN401
    """Return a ``PlaceFile``: half V100 nodes of 2 GPUs, half T4 nodes of 1, and more work than room."""
    from commonwatt.model.place_file import PlaceFile

    rng = np.random.default_rng([1, nodes, jobs, seed])
    made = []
    for j in range(jobs):
        alone_s, scaling = rng.uniform(600, 6000), rng.uniform(0.6, 0.95)
        times = {"V100": [alone_s, alone_s / 2**scaling], "T4": [2.5 * alone_s]}
        made.append({
            "name": f"j{j}", "submit_s": 3600.0 - float(rng.uniform(0, 3600)),
            "due_s": 3600.0 + float(rng.uniform(500, 8000)),
            "tardiness_weight": float(rng.integers(1, 6)) * 1e-4, "times_s": times, "requested_gpus": 1,
            "tenant": f"t{rng.integers(4)}",
        })  # fmt: skip
    cluster = [
        {"name": "v", "count": nodes // 2, "gpu_type": "V100", "gpus": 2, "idle_w": 150, "gpu_w": 250},
        {"name": "t", "count": nodes // 2, "gpu_type": "T4", "gpus": 1, "idle_w": 120, "gpu_w": 70},
    ]
    return PlaceFile.model_validate({"now_s": 3600.0, "nodes": cluster, "jobs": made})


def _placement_cases(quick: bool) -> list[BenchCase]:
    cases = []
    for name, nodes, jobs, count in _SIZES[: 2 if quick else None]:
        for k in range(1 if quick else count):
            file = place_file(nodes, jobs, k)
            bound = partial(_optimum, file) if name == "small" else None
            cases.append(BenchCase(f"{name}-{k}", file, bound))
    return cases


def _optimum(file: Any) -> float:  # noqa: ANN401
    return _placed("exact", file, 0).value


def _placed(solver: Any, file: Any, seed: int) -> BenchOutcome:  # noqa: ANN401
    from commonwatt.placement import solve_file

    placement = solve_file(file, clock=_zero, solver=solver, iterations=_ITERATIONS, seed=seed)
    return BenchOutcome(placement.objective, placement.iterations)


def _cp_sat_placed(file: Any, seed: int) -> BenchOutcome:  # noqa: ANN401
    from commonwatt.bench.cp_sat import CpSatPlacement

    solver = CpSatPlacement(seed)
    return BenchOutcome(_placed(solver, file, seed).value, apart_s=solver.apart.spent_s)


def _placement_entrants(quick: bool) -> list[Entrant]:  # noqa: ARG001
    ours, baselines = ("local-search", "lookahead"), ("random-greedy", "fifo", "edf", "priority", "srtf", "easy")
    return [
        *(Entrant(name, "ours", partial(_placed, name)) for name in ours),
        *(Entrant(name, "baseline", partial(_placed, name)) for name in (*baselines, "fair-share")),
        Entrant("cp-sat", "peer", _cp_sat_placed, ("ortools",), few=True),
    ]


def _placement_names() -> tuple[str, ...]:
    return ("best", *get_args(SolverName))


def _plug_placement(plugin: Plugin, quick: bool) -> Callable[[Any, int], BenchOutcome]:  # noqa: ARG001
    return partial(_placed, plugged(plugin))


# -- weeks of jobs


def week_scenario(policy: str) -> Any:  # noqa: ANN401
    """Return a scenario: jobs like those of Philly on three GPU types, with speeds that need no third-party data."""
    from commonwatt.model.scenario import Scenario

    return Scenario.model_validate({
        "name": "bench", "workload": {"source": "week", "days": 2, "jobs_per_day": 150, "profiles": "law"},
        "nodes": [
            {"name": "p", "count": 4, "gpu_type": "P100", "gpus": 8, "idle_w": 400, "gpu_w": 160},
            {"name": "v", "count": 2, "gpu_type": "V100", "gpus": 8, "idle_w": 400, "gpu_w": 200},
            {"name": "t", "count": 2, "gpu_type": "T4", "gpus": 4, "idle_w": 200, "gpu_w": 65},
        ],
        "electricity": {"price_per_kwh": 0.172, "pue": 1.33, "currency": "EUR"},
        "policies": [{"solver": policy}],
    })  # fmt: skip


def _week_cases(quick: bool) -> list[BenchCase]:
    return [BenchCase(f"week-{k}", k, partial(_week_bound, k)) for k in range(1 if quick else 3)]


def _week_bound(case: int) -> float:
    from commonwatt.simulation.workload import prepare

    return prepare(week_scenario("fifo"), Path(), case).lower_bound()


def _simulated(policy: str, case: int, seed: int) -> BenchOutcome:  # noqa: ARG001
    from commonwatt.simulation.runner import run_seeds
    from commonwatt.simulation.workload import prepare

    results, _ = run_seeds([prepare(week_scenario(policy), Path(), case)])
    return BenchOutcome(results[0].policies[0].total_cost or math.nan)


def _by_simpy(case: int, seed: int) -> BenchOutcome:  # noqa: ARG001
    from commonwatt.bench.peers import fifo_cost
    from commonwatt.simulation.workload import prepare

    return BenchOutcome(fifo_cost(prepare(week_scenario("fifo"), Path(), case)))


def _week_entrants(quick: bool) -> list[Entrant]:  # noqa: ARG001
    kinds: dict[str, Kind] = {"lookahead": "ours"}
    names = ("lookahead", "fifo", "edf", "srtf", "easy", "fair-share", "las")
    return [
        *(
            Entrant(name, kinds.get(name, "baseline"), partial(_simulated, name), few=name in ("las", "srtf"))
            for name in names
        ),
        Entrant("simpy-fifo", "peer", _by_simpy, ("simpy",)),
    ]


def _plug_week(plugin: Plugin, quick: bool) -> Callable[[Any, int], BenchOutcome]:  # noqa: ARG001
    return partial(_simulated, plugin.name)


# -- markets

_MARKETS = (("small", 5, 4), ("medium", 30, 10), ("large", 100, 20))  # tenants, core clusters


def market(name: str, seed: int) -> Any:  # noqa: ANN401
    """Return a ``Market`` of tenants who follow Amdahl's law."""
    from commonwatt.partitioning import Market

    tenants, clusters = next((n, c) for label, n, c in _MARKETS if label == name)
    rng = np.random.default_rng([2, tenants, clusters, seed])
    return Market.make(
        rng.integers(4, 65, clusters).astype(float), rng.uniform(0.5, 5, tenants),
        np.exp(rng.normal(0, 1, (tenants, clusters))), rng.uniform(0.5, 0.999, (tenants, clusters)),
    )  # fmt: skip


def _market_cases(quick: bool) -> list[BenchCase]:
    sizes = [name for name, _, _ in _MARKETS[: 2 if quick else None]]
    return [BenchCase(f"{name}-{k}", market(name, k)) for name in sizes for k in range(1 if quick else 3)]


def _divided(divide: Callable[[Any], Any], given: Any, seed: int) -> BenchOutcome:  # noqa: ANN401, ARG001
    """Return the weighted geometric mean of speedups of *divide*'s shares."""
    shares = np.asarray(divide(given), dtype=float)
    if shares.shape != given.rate.shape or (shares < 0).any() or (shares.sum(axis=0) > given.pe_count * 1.000001).any():
        raise InputError("shares of 0 or more that the core clusters have", field="shares")
    return BenchOutcome(float(np.exp(given.budgets @ np.log(np.maximum(given.total(shares), 1e-12)))))


def _fisher(given: Any) -> Any:  # noqa: ANN401
    from commonwatt.partitioning import solve

    return solve(given).shares


def _entitled(given: Any) -> Any:  # noqa: ANN401
    return given.entitlement()


def _equal_speedup(given: Any) -> Any:  # noqa: ANN401
    from commonwatt.partitioning import weighted_equal_speedup

    return weighted_equal_speedup(given)


def _bids(given: Any) -> Any:  # noqa: ANN401
    from commonwatt.partitioning import run_bidding

    state = run_bidding(given, 100, 1e-5)
    return state.bids / state.prices


def _conic(given: Any) -> Any:  # noqa: ANN401
    """Return the shares with the largest Nash welfare by cvxpy: Amdahl's law is concave, k/a - k F/a / (a x + F)."""
    import cvxpy

    shares = cvxpy.Variable(given.rate.shape, nonneg=True)
    ones = given.speedups(np.ones_like(given.rate))
    many = given.speedups(np.full_like(given.rate, 2.0))
    # of speedups k at one PE and k 2 / (2 (1 - F) + F) at two: F
    serial = np.clip(2.0 * ones / many - 1.0, 1e-9, 1.0)  # 1 - F
    speedups = cvxpy.multiply(
        ones / serial, 1.0 - cvxpy.multiply(1.0 - serial, cvxpy.inv_pos(cvxpy.multiply(serial, shares) + 1.0 - serial))
    )
    utilities = cvxpy.sum(speedups, axis=1)
    goal = cvxpy.Maximize(given.budgets @ cvxpy.log(utilities))
    with warnings.catch_warnings():  # what is inaccurate shows in the score
        warnings.simplefilter("ignore")
        cvxpy.Problem(goal, [cvxpy.sum(shares, axis=0) <= given.pe_count]).solve(solver=cvxpy.CLARABEL)
    solution = np.maximum(shares.value, 0.0)
    return solution * np.minimum(1.0, given.pe_count / np.maximum(solution.sum(axis=0), 1e-300))


def _market_entrants(quick: bool) -> list[Entrant]:  # noqa: ARG001
    baselines = {"entitlement": _entitled, "weighted-equal-speedup": _equal_speedup, "bidding": _bids}
    return [
        Entrant("fisher", "ours", partial(_divided, _fisher)),
        *(Entrant(name, "baseline", partial(_divided, divide)) for name, divide in baselines.items()),
        Entrant("cvxpy-nash", "peer", partial(_divided, _conic), ("cvxpy-base", "clarabel")),
    ]


def _plug_market(plugin: Plugin, quick: bool) -> Callable[[Any, int], BenchOutcome]:  # noqa: ARG001
    return partial(_divided, plugged(plugin))


# -- MIG


def mig_problem(gpus: int, tenants: int, seed: int) -> Any:  # noqa: ANN401
    """Return a ``MigProblem``: tenants of different weight, memory and scaling on H100s."""
    from commonwatt.model.partition_file import MigFile
    from commonwatt.partitioning.mig import MigProblem

    rng = np.random.default_rng([3, gpus, tenants, seed])
    people = [
        {
            "name": f"t{i}", "weight": float(rng.uniform(0.5, 4)), "memory_gb": 15.0 if i % 3 == 0 else 5.0,
            "parallel_fraction": float(rng.uniform(0.9, 0.999)),
        }
        for i in range(tenants)
    ]  # fmt: skip
    kinds = [{"name": f"g{g}", "type": "H100-80GB"} for g in range(gpus)]
    return MigProblem.of(MigFile.model_validate({"gpus": kinds, "tenants": people}))


def _mig_cases(quick: bool) -> list[BenchCase]:
    sizes = ((1, 5), (2, 8), (4, 12))[: 1 if quick else None]
    cases = []
    for gpus, tenants in sizes:
        for k in range(1 if quick else 2):
            made = mig_problem(gpus, tenants, k)
            cases.append(BenchCase(f"{gpus}x{tenants}-{k}", made, partial(_mig_bound, made)))
    return cases


def _mean_of(problem: Any, value: float) -> float:  # noqa: ANN401
    return math.exp(value / float(np.sum(problem.weights)))


def _mig_bound(problem: Any) -> float:  # noqa: ANN401
    from commonwatt.partitioning.mig import solve_market

    return _mean_of(problem, solve_market(problem).bound)


def _mig(mode: str, problem: Any, seed: int) -> BenchOutcome:  # noqa: ANN401, ARG001
    from commonwatt.partitioning.mig import solve_integer, solve_market

    solution = solve_market(problem) if mode == "market" else solve_integer(problem)
    return BenchOutcome(_mean_of(problem, solution.value))


def _undivided(problem: Any, seed: int) -> BenchOutcome:  # noqa: ANN401, ARG001
    """GPUs without MIG, shared in time by weight; a tenant is on one at a time."""
    whole = max(range(len(problem.classes)), key=lambda k: problem.classes[k][1].compute)
    share = np.minimum(1.0, problem.weights * len(problem.gpus))
    return BenchOutcome(_mean_of(problem, float(problem.weights @ np.log(problem.rates[:, whole] * share))))


def _mig_entrants(quick: bool) -> list[Entrant]:  # noqa: ARG001
    return [
        Entrant("market", "ours", partial(_mig, "market")),
        Entrant("whole-instances", "ours", partial(_mig, "integer")),
        Entrant("undivided", "baseline", _undivided),
    ]


# -- mapping

_BATCHES = (("mix", "S2", 16.0), ("vision", "S5", 1.0), ("lang", "S4", 256.0), ("recom", "S2", 16.0))


def mapping_problem(batch: str, setting: str, gbs: float, seed: int) -> Any:  # noqa: ANN401
    """Return a ``MappingProblem``: 60 layers by the physically honest cost model."""
    from commonwatt.data.layer_batches import sample_batch
    from commonwatt.mapping import MappingProblem
    from commonwatt.mapping.costs import MODELS, PLATFORMS, job_table

    layers = sample_batch(batch, 60, 4000 + seed)  # type: ignore[arg-type]
    table = job_table(layers, PLATFORMS[setting], MODELS["roofline"])
    return MappingProblem(np.ascontiguousarray(table.latency), np.ascontiguousarray(table.bandwidth), gbs)


def _mapping_cases(quick: bool) -> list[BenchCase]:
    from commonwatt.mapping import lower_bound

    cases = []
    for batch, setting, gbs in _BATCHES[: 2 if quick else None]:
        made = mapping_problem(batch, setting, gbs, 0)
        cases.append(BenchCase(f"{batch}-{setting}-{gbs:g}", made, partial(lower_bound, made)))
    return cases


def _mapped(algorithm: Any, problem: Any, seed: int) -> BenchOutcome:  # noqa: ANN401
    from commonwatt.mapping import Mapping, timeline
    from commonwatt.model.map_file import MappingFile

    search = algorithm.solve(problem, np.random.default_rng(seed))
    genes = MappingFile(accelerator=search.best.accelerator.tolist(), priority=search.best.priority.tolist())
    makespan = timeline(problem, Mapping.of(genes, problem)).makespan
    return BenchOutcome(float(makespan), int(search.evaluations))


def _by_name(name: str, budget: int, problem: Any, seed: int) -> BenchOutcome:  # noqa: ANN401
    from commonwatt.mapping import ALGORITHMS

    return _mapped(ALGORITHMS[name](budget), problem, seed)


def _cp_sat_mapped(problem: Any, seed: int) -> BenchOutcome:  # noqa: ANN401
    from commonwatt.bench.cp_sat import CpSatMapping

    solver = CpSatMapping(seed)
    return BenchOutcome(_mapped(solver, problem, seed).value, apart_s=solver.apart.spent_s)


def _budget(quick: bool) -> int:
    return 300 if quick else 2000


def _mapping_entrants(quick: bool) -> list[Entrant]:
    budget = _budget(quick)
    rules = ("heft", "fcfs-olb", "sjf-met", "fcfs-rr", "standard-ga")
    peers = ("de", "one-plus-one", "cma", "portfolio")
    return [
        *(Entrant(name, "ours", partial(_by_name, name, budget)) for name in ("auto", "gsharp")),
        *(Entrant(name, "baseline", partial(_by_name, name, budget)) for name in rules),
        *(Entrant(name, "peer", partial(_by_name, name, budget), ("nevergrad",)) for name in peers),
        Entrant("cp-sat", "peer", _cp_sat_mapped, ("ortools",), few=True),
    ]


def _mapping_names() -> tuple[str, ...]:
    from commonwatt.mapping import ALGORITHMS

    return tuple(ALGORITHMS)


def _plug_mapping(plugin: Plugin, quick: bool) -> Callable[[Any, int], BenchOutcome]:
    return partial(_mapped, plugged(plugin, _budget(quick)))


# -- slices

_PHI = 0.7


def slice_file(tenants: int, seed: int) -> Any:  # noqa: ANN401
    """Return a ``PlanFile``: backlogged tenants whose powers differ by up to ten times."""
    from commonwatt.model.timeslice_file import PlanFile

    rng = np.random.default_rng([5, tenants, seed])
    people = [
        {"name": f"t{i}", "power_w": float(np.exp(rng.uniform(math.log(2), math.log(20)))),
         "weight": float(rng.choice([1.0, 1.0, 2.0]))}
        for i in range(tenants)
    ]  # fmt: skip
    return PlanFile.model_validate({"quantum": 10_000, "unit_s": 0.001, "phi": _PHI, "tenants": people})


def _slice_cases(quick: bool) -> list[BenchCase]:
    sizes = (2, 5, 20)[: 2 if quick else None]
    made = [(n, k, slice_file(n, k)) for n in sizes for k in range(1 if quick else 4)]
    return [BenchCase(f"{n}-tenants-{k}", file, partial(_slice_bound, file)) for n, k, file in made]


def _slice_bound(file: Any) -> float:  # noqa: ANN401
    """Return the greatest F_S of any division: F_T times F_E of two tenants is at most the ratio of their powers."""
    powers = [tenant.power_w for tenant in file.tenants]
    return math.sqrt(min(powers) / max(powers))


def _sliced(policy: Any, file: Any, seed: int) -> BenchOutcome:  # noqa: ANN401, ARG001
    from commonwatt.timeslicing import solve_file

    return BenchOutcome(solve_file(file, policy=policy).system_fairness or math.nan)


def _slice_entrants(quick: bool) -> list[Entrant]:  # noqa: ARG001
    kinds: dict[str, Kind] = {"etf": "ours", "tf": "baseline", "ef": "baseline", "etf-energy": "ours"}
    return [Entrant(name, kind, partial(_sliced, name)) for name, kind in kinds.items()]


def _plug_slices(plugin: Plugin, quick: bool) -> Callable[[Any, int], BenchOutcome]:  # noqa: ARG001
    return partial(_sliced, plugged(plugin, _PHI))


# -- demand

_LEVELS = (0.5, 0.9, 0.98)
_LOOK_BACK, _HORIZON = 48, 5


def _demand_cases(quick: bool) -> list[BenchCase]:
    from commonwatt.data.generators.week import DemandSpec, generate_demand

    specs = [
        ("steady", DemandSpec(days=10.0, step_s=600.0, drift=1.0, outage_h=0.0, gaps=0)),
        ("growing", DemandSpec(days=10.0, step_s=600.0, drift=1.6, outage_h=0.0, gaps=3)),
        ("outage", DemandSpec(days=10.0, step_s=600.0)),
    ]
    return [
        BenchCase(name, generate_demand(spec, np.random.default_rng([6, k])))
        for k, (name, spec) in enumerate(specs[: 1 if quick else None])
    ]


def _forecast(make: Callable[[], Any], series: Any, seed: int) -> BenchOutcome:  # noqa: ANN401
    """Return the mean pinball loss on the last fifth, fitted on the rest."""
    from commonwatt.forecasting import forecast_rolling

    rolled = forecast_rolling(make(), series, len(series) * 4 // 5, np.random.default_rng(seed))
    rows, _ = rolled.scores(np.array(_LEVELS))
    return BenchOutcome(float(np.mean([row.pinball for row in rows])))


def _predictor(name: str) -> Any:  # noqa: ANN401
    from commonwatt.forecasting import make_predictor

    return make_predictor(name, _LOOK_BACK, _HORIZON)


def _nhits(series: Any, seed: int) -> BenchOutcome:  # noqa: ANN401
    from commonwatt.bench.peers import NhitsPredictor

    return _forecast(partial(NhitsPredictor, _LOOK_BACK, _HORIZON), series, seed)


def _demand_entrants(quick: bool) -> list[Entrant]:  # noqa: ARG001
    plain = ("last-value", "seasonal-naive", "moving-max")
    return [
        *(Entrant(name, "baseline", partial(_forecast, partial(_predictor, name))) for name in plain),
        Entrant("lightgbm", "baseline", partial(_forecast, partial(_predictor, "lightgbm")), ("lightgbm",), few=True),
        Entrant("gru", "ours", partial(_forecast, partial(_predictor, "gru")), ("torch",), few=True),
        Entrant("auto-ets", "peer", partial(_forecast, partial(_predictor, "auto-ets")), ("statsforecast",), few=True),
        Entrant("nhits", "peer", _nhits, ("neuralforecast",), few=True),
    ]


def _demand_names() -> tuple[str, ...]:
    from commonwatt.forecasting import PREDICTORS

    return tuple(PREDICTORS)


def _plug_demand(plugin: Plugin, quick: bool) -> Callable[[Any, int], BenchOutcome]:  # noqa: ARG001
    return partial(_forecast, partial(plugged, plugin, look_back=_LOOK_BACK, horizon=_HORIZON))


SUITES = (
    Suite(
        "placement", 1, "One placement decision: 8 to 240 jobs on 4 to 60 nodes of two types, more work than room",
        "objective (1), currency", "the exact optimum for 8 jobs, else the value of fifo", "fifo",
        _placement_cases, _placement_entrants, "solvers", _placement_names, _plug_placement,
    ),
    Suite(
        "week", 2, "Two days of 150 jobs a day like Philly's, on 56 GPUs of three types, simulated",
        "energy and tardiness cost, currency", "the lower bound on the cost of any schedule", "fifo",
        _week_cases, _week_entrants, "solvers", _placement_names, _plug_week,
    ),
    Suite(
        "market", 1, "Core clusters divided among 5 to 100 tenants under Amdahl's law",
        "weighted geometric mean of speedups", "the value of entitlement", "entitlement",
        _market_cases, _market_entrants, "partitioners", plug=_plug_market, larger_is_better=True,
    ),
    Suite(
        "mig", 1, "1 to 4 H100 cut by MIG for 5 to 12 tenants",
        "weighted geometric mean of speedups", "the bound on layouts shared in time", "whole-instances",
        _mig_cases, _mig_entrants, larger_is_better=True,
    ),
    Suite(
        "mapping", 1, "60 layers of four classes of networks on unequal sub-accelerators; 2,000 evaluations, quick 300",
        "makespan, cycles", "the lower bound on the makespan", "heft",
        _mapping_cases, _mapping_entrants, "mappers", _mapping_names, _plug_mapping,
    ),
    Suite(
        "slices", 1, "A quantum divided among 2 to 20 backlogged tenants of different power, phi 0.7",
        "system fairness F_S", "the greatest F_S of any division", "tf",
        _slice_cases, _slice_entrants, "schedulers", plug=_plug_slices, larger_is_better=True,
    ),
    Suite(
        "demand", 1, "Ten days of generated demand for GPUs every ten minutes, the last two forecast 50 minutes ahead",
        "mean pinball loss at 0.5, 0.9 and 0.98, GPUs", "the value of last-value", "last-value",
        _demand_cases, _demand_entrants, "forecasters", _demand_names, _plug_demand,
    ),
)  # fmt: skip
"""All suites."""
