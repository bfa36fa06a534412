"""What each decision of a fleet is worth: one day, with all of them, without one after another, with only one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from commonwatt.data import third_party
from commonwatt.data.files import validate
from commonwatt.data.tx2 import TX2_ROWS
from commonwatt.model.errors import InputError
from commonwatt.model.results import PolicyResult, ReproducePoint, ReproduceRow, SimulationResult
from commonwatt.model.scenario import Scenario
from commonwatt.report.fleet import WORTH, worth_bars
from commonwatt.reproduce.papers.etf_plots import draw
from commonwatt.reproduce.topic import Extent, TopicAnswer, TopicRequest
from commonwatt.simulation.runner import run_seeds
from commonwatt.simulation.workload import prepare

__all__ = ["alibaba_fleet", "edge_fleet", "generated_fleet", "worth", "worth_on_alibaba", "worth_on_edge"]

_DAYS: dict[Extent, float] = {"quick": 0.1, "default": 1.0, "full": 1.0}
_SEEDS: dict[Extent, int] = {"quick": 1, "default": 1, "full": 5}
_CUFF = {"policy": "cuff", "target": 0.98, "step_s": 300}
_ON = {"policy": "always-on", "step_s": 300}
_LAST = {"policy": "last-value", "step_s": 300}
POLICIES: tuple[Mapping[str, Any], ...] = (
    {"name": "all", "solver": "lookahead", "capacity": _CUFF},
    {"name": "always on", "solver": "lookahead", "capacity": _ON},
    {"name": "whole GPUs", "solver": "lookahead", "capacity": _CUFF, "sharing": {"modes": []}},
    {"name": "no MIG", "solver": "lookahead", "capacity": _CUFF, "sharing": {"modes": ["time"]}},
    {"name": "fifo", "solver": "fifo", "capacity": _CUFF},
    {"name": "equal slices", "solver": "lookahead", "capacity": _CUFF, "sharing": {"slices": "equal"}},
    {"name": "naive mapping", "solver": "lookahead", "capacity": _CUFF, "sharing": {"mapping": "fcfs-rr"}},
    {"name": "none", "solver": "fifo", "capacity": _ON, "sharing": {"modes": [], "mapping": "fcfs-rr"}},
)
"""All five decisions; each left out in turn (of partitioning twice: nothing is shared, or in time only); none."""
SINGLE: tuple[Mapping[str, Any], ...] = (
    {"name": "only capacity", "solver": "fifo", "capacity": _CUFF, "sharing": {"modes": [], "mapping": "fcfs-rr"}},
    {"name": "only placement", "solver": "lookahead", "capacity": _ON, "sharing": {"modes": [], "mapping": "fcfs-rr"}},
    {"name": "only sharing", "solver": "fifo", "capacity": _ON, "sharing": {"mapping": "fcfs-rr"}},
    {"name": "only mapping", "solver": "fifo", "capacity": _ON, "sharing": {"modes": []}},
)
"""One decision alone; sharing is partitioning and timeslicing, which need each other."""
_OFF = [{"name": "off", "power_w": 10, "enter_s": 30, "wake_s": 120, "wake_j": 20000}]


def generated_fleet(days: float = 1.0) -> dict[str, Any]:
    """Return the scenario of ``examples/fleet.yaml`` for so many *days*."""

    def law(mean_rps: float, swing: float, peak_h: float, burst_cv: float) -> dict[str, Any]:
        return {"source": "law", "mean_rps": mean_rps, "swing": swing, "peak_h": peak_h, "burst_cv": burst_cv,
                "days": days}  # fmt: skip

    def a100(request_s: float, power_w: float, fraction: float, memory_gb: float) -> dict[str, Any]:
        return {"request_s": request_s, "power_w": power_w, "parallel_fraction": fraction, "memory_gb": memory_gb}

    return {
        "name": "fleet",
        "workload": {"source": "week", "jobs_per_day": 50, "days": days, "tenants": 3},
        "nodes": [
            {"name": "a100", "count": 4, "gpu_type": "A100-80GB", "gpus": 4, "idle_w": 420, "gpu_w": 300,
             "share": ["mig", "time"], "states": _OFF},
            {"name": "p100", "count": 4, "gpu_type": "P100", "gpus": 4, "idle_w": 260, "gpu_w": 160,
             "share": ["time"], "states": _OFF},
            {"name": "s2", "count": 2, "gpu_type": "S2", "gpus": 4, "idle_w": 20, "gpu_w": 12, "share": ["time"],
             "platform": "S2", "states": []},
        ],
        "gpu_types": {"A100-80GB": {"speed": 1.0, "relative_to": "A100"}},
        "tenants": [{"name": "shop", "weight": 2}, {"name": "lab", "weight": 1}],
        "electricity": {"price_per_kwh": 0.172, "pue": 1.33, "currency": "EUR"},
        "services": [
            {"name": "search", "tenant": "shop", "latency_s": 0.15, "load": law(120, 0.6, 14, 0.15),
             "profiles": {"A100-80GB": a100(0.008, 250, 0.97, 9)}},
            {"name": "chat", "tenant": "shop", "latency_s": 1.0, "load": law(14, 0.7, 20, 0.2),
             "profiles": {"A100-80GB": a100(0.06, 290, 0.99, 34)}},
            {"name": "vision", "tenant": "lab", "latency_s": 0.25, "load": law(45, 0.6, 11, 0.1),
             "profiles": {"P100": {"request_s": 0.012, "power_w": 130}}},
            {"name": "camera", "tenant": "lab", "latency_s": 0.3, "load": law(150, 0.3, 13, 0.1),
             "profiles": {"S2": {"networks": ["resnet50"], "batch": 2}, "A100-80GB": a100(0.004, 220, 0.95, 4)}},
        ],
        "fractional": {"source": "law", "jobs_per_day": 300, "days": days, "median_s": 2400, "spread": 1.0,
                       "gpu_milli": [100, 200, 250, 500], "tenants": ["lab", "students"]},
        "policies": [dict(policy) for policy in POLICIES],
    }  # fmt: skip


def alibaba_fleet(days: float) -> dict[str, Any]:
    """Return a scenario of the public pods of Alibaba's cluster of 2023, whole and fractional, on 16 nodes.

    The sample holds about 35 GPUs at a time, of a cluster of 1,523 nodes: 16 nodes of 4 are of its size. Raises
    ``InputError`` where the log is not available.
    """
    if third_party.find("alibaba_jobs.csv.gz") is None:
        expected = f"alibaba_jobs.csv.gz in the folder {third_party.VARIABLE} names"
        raise InputError(expected, field="fleet-alibaba", value="none")
    made = generated_fleet(days)
    node = {"name": "n", "count": 16, "gpu_type": "V100", "gpus": 4, "idle_w": 300, "gpu_w": 250, "share": ["time"],
            "states": _OFF}  # fmt: skip
    return {
        "name": "fleet-alibaba",
        "workload": {"source": "alibaba", "fractions": "share", "begin": "10800000", "days": days, "malleable": False,
                     "logged_gpu_type": "V100"},
        "nodes": [node],
        "electricity": made["electricity"],
        "policies": [p for p in made["policies"] if p["name"] not in ("no MIG", "naive mapping")],
    }  # fmt: skip


def edge_fleet() -> dict[str, Any]:
    """Return a day of four boxes of the ETF paper, Jetson TX2 at the highest clock, with its two networks as services.

    Idle and suspended power, loads and jobs are assumed. A new plan has no past to forecast from, so that capacity
    follows the last value.
    """
    rows = {network: TX2_ROWS[network][-1] for network in ("resnet18", "resnet50")}
    load = {"source": "law", "swing": 0.6, "burst_cv": 0.1}
    suspended = [{"name": "suspended", "power_w": 0.5, "enter_s": 5, "wake_s": 10, "wake_j": 20}]
    services = [
        {"name": name, "tenant": tenant, "latency_s": latency_s, "replicas": {"max": 3},
         "load": {**load, "mean_rps": rps, "peak_h": peak_h},
         "profiles": {"TX2": {"request_s": rows[network][1] / 1e6, "power_w": rows[network][2] / 1e3}}}
        for name, tenant, network, latency_s, rps, peak_h in (
            ("door", "A", "resnet18", 0.25, 16, 9), ("shelf", "B", "resnet50", 0.6, 6, 17)
        )
    ]  # fmt: skip
    jobs = [
        {"name": f"update-{hour:02d}", "submit_s": 3600 * hour, "due_s": 3600 * hour + 7200, "tardiness_weight": 1e-6,
         "requested_gpus": 1, "times_s": {"TX2": [900]}}
        for hour in range(25)
    ]  # fmt: skip
    policies = [
        {**policy, "capacity": _LAST if policy["capacity"] is _CUFF else policy["capacity"]}
        for policy in (*POLICIES, *SINGLE)
        if policy["name"] not in ("no MIG", "naive mapping", "only mapping")
    ]
    return {
        "name": "fleet-edge",
        "workload": {"source": "jobs", "jobs": jobs},
        "nodes": [{"name": "tx2", "count": 4, "gpu_type": "TX2", "gpus": 1, "idle_w": 1.9, "gpu_w": 4.3,
                   "share": ["time"], "states": suspended}],
        "gpu_types": {"TX2": {"speed": 0.05, "relative_to": "V100"}},
        "electricity": {"price_per_kwh": 0.172, "currency": "EUR"},
        "services": services,
        "fractional": {"source": "law", "jobs_per_day": 20, "median_s": 600, "spread": 0.8, "gpu_milli": [200, 300],
                       "tenants": ["C"], "best_effort": 1.0},
        "policies": policies,
    }  # fmt: skip


def worth_on_edge(request: TopicRequest) -> TopicAnswer:
    """Run the boxes of the ETF paper."""
    return _answer(request, edge_fleet(), _EDGE)


def worth(request: TopicRequest) -> TopicAnswer:
    """Run the generated fleet."""
    document = generated_fleet(_DAYS[request.extent])
    return _answer(request, document | {"policies": [*document["policies"], *SINGLE]}, _GENERATED)


def worth_on_alibaba(request: TopicRequest) -> TopicAnswer:
    """Run the pods of Alibaba."""
    document, single = alibaba_fleet(_DAYS[request.extent]), [p for p in SINGLE if p["name"] != "only mapping"]
    return _answer(request, document | {"policies": [*document["policies"], *single]}, _ALIBABA)


_COMMON = (
    "Requests are judged by the stated law (M/M/1 on the part of the GPU that a replica has), not one by one. The "
    "window is from the first submission of a training job to the last, with the work unfinished then at what it takes "
    "as requested."
)
_GENERATED = (
    _COMMON,
    "Loads, jobs and speeds are generated; powers and request times are those of examples/fleet.yaml, not measured.",
)
_ALIBABA = (
    _COMMON,
    (
        "The log has no services, so that nothing is cut by MIG and slices matter to jobs only. The class of service "
        "is the tenant; GPU types are not in the log: all pods run on one type. Idle and GPU power are assumed."
    ),
)

_EDGE = (
    _COMMON,
    (
        "Time and power of a request are those published with ETF. Loads, jobs, idle and suspended power are assumed. "
        "Requests come one at a time, at the highest clock: the clocks of tenants, which the paper studies, are fixed."
    ),
)


def _answer(request: TopicRequest, document: Mapping[str, Any], notes: tuple[str, ...]) -> TopicAnswer:
    scenario = validate(dict(document), Scenario)
    seeds = tuple(range(request.seed, request.seed + (request.seeds or _SEEDS[request.extent])))
    prepared = [prepare(scenario, Path(), seed) for seed in seeds]
    with request.progress(len(seeds) * len(scenario.policies), float(prepared[0].table.submit_s.max())) as bar:
        results, _ = run_seeds(prepared, jobs=request.jobs, listener=bar)
    return TopicAnswer(
        seeds=seeds,
        digests=tuple(result.input_digest for result in results),
        rows=tuple(_rows(results)),
        notes=notes,
        points=tuple(_points(results)),
        x_name="-",
        draw=partial(_draw, results),
    )


def _values(results: Sequence[SimulationResult], k: int, which: int) -> list[float]:
    values = [WORTH[which][2](result.policies[k]) for result in results]
    return [value for value in values if value is not None]


def _rows(results: Sequence[SimulationResult]) -> list[ReproduceRow]:
    """Return what leaving decisions out costs, as a change against all of them, and all against the best single one."""
    rows = []
    for k, policy in enumerate(results[0].policies):
        if k == 0:
            continue
        for which, (name, unit) in ((0, ("energy in the window", "%")), (3, ("late requests", "percentage points"))):
            ours, other = _values(results, 0, which), _values(results, k, which)
            if not ours or not other:
                continue
            change = float(np.mean(other)) - float(np.mean(ours))
            value = 100 * change / float(np.mean(ours)) if which == 0 else change
            rows.append(
                ReproduceRow(quantity=f"{policy.policy} instead of all: {name}", paper=None, ours=value, unit=unit,
                             comparable=False)
            )  # fmt: skip
    return [*rows, *_best_single(results)]


def _best_single(results: Sequence[SimulationResult]) -> list[ReproduceRow]:
    """Return the energy of all decisions against the one that takes least energy alone; nothing without any."""
    names = [policy.policy for policy in results[0].policies]
    single = {p["name"]: k for p in SINGLE for k, name in enumerate(names) if name == p["name"]}
    means = {name: float(np.mean(values)) for name, k in single.items() if (values := _values(results, k, 0))}
    ours = _values(results, 0, 0)
    if not means or not ours:
        return []
    best = min(means, key=lambda name: means[name])
    change = 100 * (float(np.mean(ours)) / means[best] - 1)
    quantity = f"all instead of {best}, the best single decision: energy in the window"
    return [ReproduceRow(quantity=quantity, paper=None, ours=change, unit="%", comparable=False)]


def _points(results: Sequence[SimulationResult]) -> list[ReproducePoint]:
    points = []
    for which, (quantity, unit, _) in enumerate(WORTH):
        for k, policy in enumerate(results[0].policies):
            values = _values(results, k, which)
            mean = float(np.mean(values)) if values else None
            sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
            points.append(ReproducePoint(series=policy.policy, quantity=quantity, x=0.0, mean=mean, sd=sd, unit=unit))
    return points


def _draw(results: Sequence[SimulationResult], path: Path) -> None:
    policies: Sequence[PolicyResult] = results[0].policies
    names = [policy.policy for policy in policies]
    panels = []
    for which, (quantity, unit, _) in enumerate(WORTH[:6]):
        means = [float(np.mean(v)) if (v := _values(results, k, which)) else None for k in range(len(policies))]
        panels.append((f"{quantity}, {unit}", partial(worth_bars, names=names, values=means)))
    draw(panels, path)
