"""How many nodes stay on over a week of 2,496 GPUs: Philly's log where it is at hand, else one in its likeness.

The same scheduler (EASY backfill) under plans of capacity: always on, last value, the threshold method, CUFF at several
targets, perfect foresight. Energy and cost are those of the week, at its end jobs still run; lateness counts as far as
it has come by then. "All on" is the energy of the same schedule had no node slept.

With --equal: for each forecaster the promise of instants at the last target, and the promise to jobs that takes the
same energy within .2%, whose share is searched. With --equal jobs: the promise to jobs at the last target, and that of
instants.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from joblib import Parallel, delayed

from commonwatt.control.policy import warm_up
from commonwatt.model.arrays import Floats
from commonwatt.model.capacity import WaitingTarget, share_at
from commonwatt.model.scenario import PolicySpec, Scenario
from commonwatt.model.units import DAY_S, HOUR_S, J_PER_KWH, MICRO, NANO
from commonwatt.simulation.run_setup import run_policy
from commonwatt.simulation.runner import Prepared
from commonwatt.simulation.workload import prepare

STATES = [
    {"name": "low-clocks", "power_w": 200},
    {"name": "sleep", "power_w": 120, "enter_s": 15, "wake_s": 60, "wake_j": 6000},
    {"name": "off", "power_w": 10, "enter_s": 60, "wake_s": 180, "wake_j": 40000},
]

EQUAL = 0.002
"""Energies that differ by no more than this part count as equal."""
MOST_RUNS = 4
"""Shares tried."""

GPUS_PER_NODE = 8
WORST_HOURS = 8
"""Hours of the week, those in which most jobs were delayed, whose delayed jobs are counted apart."""


def policies(forecasters: list[str], targets: list[float], solver: str) -> list[dict]:
    plans = {"always-on": {"policy": "always-on"}, "last value": {"policy": "last-value"}}
    for forecaster in forecasters:
        name = Path(forecaster).stem
        plans[f"threshold, {name}"] = {"policy": "threshold", "forecaster": forecaster}
        for target in targets:
            plans[f"cuff {target:g}, {name}"] = {"policy": "cuff", "forecaster": forecaster, "target": target}
    plans["foresight"] = {"policy": "foresight"}
    return [{"name": name, "solver": solver, "capacity": plan} for name, plan in plans.items()]


def week(prepared: Prepared, spec: PolicySpec, until_s: float) -> dict:
    """Run one policy to the end of the week."""
    warm_up(spec)
    began = time.perf_counter()
    controller = run_policy(
        prepared.scenario, spec, prepared.cluster, prepared.table, 0, past=prepared.past, until_s=until_s
    ).controller
    ledger, plan, book = controller.ledger, controller.capacity, controller.registry
    ended_s = np.where(np.isnan(book.job("ended_s")), until_s, book.job("ended_s"))
    late_s = np.maximum(0.0, ended_s - book.job("due_s"))
    widths_s = np.diff([sample.time_s for sample in controller.samples])
    on = np.array([sample.on_gpus for sample in controller.samples[:-1]])
    used = np.array([sample.busy_gpus for sample in controller.samples[:-1]])
    energy_cost, tardiness_cost = ledger.meter.cost_n / NANO, float(late_s @ book.job("weight"))
    delays_s: Floats = np.array(list(plan.counters.delays_s.values()))
    who = list(plan.counters.delays_s)
    asked, hours = book.job("asked_gpus")[who], (book.job("submit_s")[who] // HOUR_S).astype(int)
    return {
        "plan": spec.label,
        "energy_kwh": ledger.meter.energy_uj / MICRO / J_PER_KWH,
        "all_on_kwh": (ledger.meter.energy_uj + ledger.slept_uj) / MICRO / J_PER_KWH,
        "energy_cost": energy_cost,
        "tardiness_cost": tardiness_cost,
        "total_cost": energy_cost + tardiness_cost,
        "ended": int((~np.isnan(book.job("ended_s"))).sum()),
        "mean_gpus_on": float(on @ widths_s / widths_s.sum()),
        "mean_gpus_used": float(used @ widths_s / widths_s.sum()),
        "mean_gpus_promised": plan.counters.pools[0].promised_gpus / plan.counters.steps,
        "plans": plan.counters.steps,
        "slots_served": plan.counters.served / plan.counters.steps,
        "fallback_plans": plan.counters.fallback,
        "wakes": plan.counters.wakes,
        "jobs_delayed": len(delays_s),
        "whole_jobs_delayed": int((asked >= GPUS_PER_NODE).sum()),
        "worst_hours_delayed": int(np.sort(np.unique(hours, return_counts=True)[1])[-WORST_HOURS:].sum()),
        "mean_delay_s": float(delays_s.mean()) if len(delays_s) else None,
        "p99_delay_s": float(np.quantile(delays_s, 0.99)) if len(delays_s) else None,
        "delayed_gpu_h": float(asked @ delays_s) / HOUR_S,
        "took_s": time.perf_counter() - began,
    }  # fmt: skip


def equal(prepared: Prepared, spec: PolicySpec, until_s: float) -> Iterator[dict]:
    """Run *spec*, then promises of the other kind until one takes the same energy, or ``MOST_RUNS``."""
    first = week(prepared, spec, until_s)
    to_jobs = isinstance(spec.capacity.target, WaitingTarget)
    yield first | {"promise": promise(share_at(spec.capacity.target), to_jobs=to_jobs), "more_energy": 0.0}
    more: dict[float, float] = {}  # energy beyond that of the first, as a part of it, by share
    while len(more) < MOST_RUNS and all(abs(part) > EQUAL for part in more.values()):
        share = next_share(more, 0.995 if to_jobs else 0.7)
        plan = spec.capacity.model_copy(update={"target": share if to_jobs else WaitingTarget(jobs=share)})
        row = week(prepared, spec.model_copy(update={"capacity": plan}), until_s)
        more[share] = row["energy_kwh"] / first["energy_kwh"] - 1.0
        yield row | {"promise": promise(share, to_jobs=not to_jobs), "more_energy": more[share]}


def promise(share: float, *, to_jobs: bool) -> str:
    return f"{100 * share:.5g}% of {'jobs' if to_jobs else 'instants'}"


def next_share(more: Mapping[float, float], first: float) -> float:
    """Return the share to try next: energy is about linear in the logarithm of what may be missed."""
    if not more:
        return first
    missed = {1.0 - share: part for share, part in more.items()}
    if len(missed) == 1:
        ((miss, part),) = missed.items()
        miss *= 2.0 if part > 0 else 0.5
    else:
        (one, low), (two, high) = sorted(missed.items(), key=lambda pair: abs(pair[1]))[:2]
        miss = one * math.exp(-low * math.log(two / one) / (high - low))
    return 1.0 - float(f"{min(0.95, max(1e-4, miss)):.3g}")


def pairs(rows: Sequence[dict]) -> list[dict]:
    """Return of each forecaster the promise given, and the one searched that is nearest to its energy."""
    by_plan = {row["plan"]: [own for own in rows if own["plan"] == row["plan"]] for row in rows}
    return [
        row
        for first, *others in by_plan.values()
        for row in (first, min(others, key=lambda own: (own["more_energy"] > EQUAL, abs(own["more_energy"]))))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--begin", default="2017-10-23")
    parser.add_argument("--nodes", type=int, default=312, help="nodes of 8 GPUs")
    parser.add_argument("--forecaster", nargs="+", default=["last-value", "lightgbm"], help="predictors or model files")
    parser.add_argument("--target", nargs="+", type=float, default=[0.95, 0.98])
    parser.add_argument(
        "--equal", nargs="?", const="instants", choices=["instants", "jobs"], help="search the other one"
    )
    parser.add_argument("--solver", default="easy")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    options = parser.parse_args()
    node = {"name": "p100", "count": options.nodes, "gpu_type": "P100", "gpus": GPUS_PER_NODE}
    plans = policies(options.forecaster, options.target, options.solver)
    if options.equal:
        last = [f"cuff {options.target[-1]:g}, {Path(forecaster).stem}" for forecaster in options.forecaster]
        target = options.target[-1] if options.equal == "instants" else {"jobs": options.target[-1]}
        chosen = [plan for plan in plans if plan["name"] in last]
        plans = [
            plan | {"name": plan["capacity"]["forecaster"], "capacity": plan["capacity"] | {"target": target}}
            for plan in chosen
        ]
    scenario = Scenario.model_validate(
        {
            "name": "capacity-week",
            "workload": {"source": "philly", "stand_in": True, "begin": options.begin, "days": options.days},
            "nodes": [node | {"idle_w": 400, "gpu_w": 160, "states": STATES}],
            "policies": plans,
        }
    )
    prepared = prepare(scenario, Path(), 0)
    out = sys.stderr if options.json else sys.stdout
    print(f"{prepared.sentence}; {prepared.cluster.total_gpus} GPUs", file=out, flush=True)
    print(f"{'plan':<24} {'MWh':>7} {'all on':>7} {'cost':>8} {'GPUs on':>8} {'used':>7} {'served':>8} {'delayed':>8} {'mean s':>7}", file=out)  # fmt: skip # noqa: E501
    until_s, specs = options.days * DAY_S, prepared.scenario.policies
    if options.equal:
        runs = chain.from_iterable(equal(prepared, spec, until_s) for spec in specs)
    else:
        runs = Parallel(options.jobs, return_as="generator")(delayed(week)(prepared, spec, until_s) for spec in specs)
    rows = []
    for row in runs:
        rows.append(row)
        print(
            f"{row.get('promise', '') + ' ' + row['plan']:<24} "
            f"{row['energy_kwh'] / 1000:7.2f} {row['all_on_kwh'] / 1000:7.2f} "
            f"{row['total_cost']:8.0f} {row['mean_gpus_on']:8.1f} {row['mean_gpus_used']:7.1f} "
            f"{100 * row['slots_served']:7.2f}% {row['jobs_delayed']:8} {row['mean_delay_s'] or 0:7.0f}",
            file=out,
            flush=True,
        )
    if options.json:
        more = {"pairs": pairs(rows)} if options.equal else {}
        print(json.dumps({"workload": prepared.sentence, "rows": rows, **more}, indent=2))


if __name__ == "__main__":
    main()
