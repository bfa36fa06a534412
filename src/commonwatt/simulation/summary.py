"""The record and the numbers of a finished run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from commonwatt.control.capacity import Capacity
from commonwatt.control.controller import Controller
from commonwatt.control.events import Event, EventKind
from commonwatt.control.fleet.controller import FleetController
from commonwatt.control.ledger import Account, Ledger
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.capacity import target_label, target_number, target_of
from commonwatt.model.jobs import JobArrays
from commonwatt.model.policies import FairnessResult
from commonwatt.model.results import (
    CapacityBudgetResult,
    CapacityPoolResult,
    CapacityResult,
    LedgerRow,
    PolicyResult,
    TenantResult,
)
from commonwatt.model.units import HOUR_S, J_PER_KWH, MICRO, NANO, plural
from commonwatt.simulation.fleet import fleet_result, shares_of
from commonwatt.simulation.record import EventColumns, JobColumns, Record, SampleColumns, Segments
from commonwatt.simulation.reference import ReferenceRuns
from commonwatt.simulation.run_setup import PolicyRun
from commonwatt.simulation.waiting import bounded_slowdown, finish_time_fairness, time_without_gpus_s
from commonwatt.simulation.window import Window

__all__ = [
    "account_columns",
    "percentiles_s",
    "policy_result",
    "record_of",
    "service_fields",
    "why_late",
    "window_fields",
]


_BEGINS = {EventKind.STARTED, EventKind.RESUMED, EventKind.RESIZED, EventKind.MIGRATED}
_ENDS = {EventKind.COMPLETED, EventKind.FAILED, EventKind.PREEMPTED, EventKind.INTERRUPTED}


def record_of(run: PolicyRun, policy: str, table: JobArrays, lower_bound: float) -> Record:
    """Return the record of a finished run."""
    controller = run.controller
    events = controller.log.since(0)
    fastest_s = np.minimum.reduceat(table.config_time_s, table.start[:-1])
    row_of = {name: j for j, name in enumerate(table.names)}
    rows = np.array([row_of[name] for name in controller.registry.names], dtype=np.int64)
    jobs = _jobs(controller, fastest_s[rows], events)
    samples, segments = _samples(controller), _segments(events)
    return Record(
        policy=policy,
        cluster=controller.cluster,
        result=policy_result(
            policy,
            jobs,
            samples,
            controller.ledger,
            controller.cluster.total_gpus,
            lower_bound,
            **_service(run, jobs, segments, rows),
            preemptions=controller.preemptions,
            migrations=controller.migrations,
            decisions=len(samples.time_s),
            scheduler_s=run.scheduler_s,
            capacity=_capacity(run, samples),
            fairness=_fairness(run, jobs, segments),
            fleet=fleet_result(controller, jobs) if isinstance(controller, FleetController) else None,
        ),
        jobs=jobs,
        segments=segments,
        samples=samples,
        events=_events(controller, events),
        slowdown=bounded_slowdown(jobs, run.window.reference, rows),
    )


def _in_units(value: int | None, unit: float) -> float:
    return float("nan") if value is None else value / unit


def _jobs(controller: Controller, fastest_s: Floats, events: list[Event]) -> JobColumns:
    registry = controller.registry
    columns = {name: np.array(registry.job(name), dtype=float) for name in ("submit_s", "due_s", "began_s", "ended_s")}
    return JobColumns(
        name=tuple(registry.names),
        tenant=tuple(registry.tenants[t] for t in registry.job("tenant")),
        tardiness_weight=np.array(registry.job("weight"), dtype=float),
        starts=np.array(registry.job("starts"), dtype=np.int64),
        **account_columns(controller.ledger, len(registry)),
        fastest_s=fastest_s,
        why_late=why_late(columns, fastest_s, events),
        **columns,
    )


def account_columns(ledger: Ledger, count: int) -> dict[str, Floats]:
    """Return the columns of ``JobColumns`` that the accounts of the jobs 0 to *count* - 1 give."""
    accounts = [ledger.jobs.get(handle, Account()) for handle in range(count)]
    return {
        "energy_j": np.array([_in_units(account.energy_uj, MICRO) for account in accounts]),
        "energy_cost": np.array([_in_units(account.cost_n, NANO) for account in accounts]),
        "gpu_s": np.array([account.gpu_us / MICRO for account in accounts]),
    }


def why_late(columns: Mapping[str, Floats], fastest_s: Floats, events: Sequence[Event]) -> tuple[str, ...]:
    """Return one sentence for each late job, else ""."""
    late = columns["ended_s"] > columns["due_s"]
    stops = np.zeros(len(late), dtype=np.int64)
    first_wait: dict[int, str] = {}
    for event in events:
        if event.kind in (EventKind.PREEMPTED, EventKind.INTERRUPTED):
            stops[event.handle] += 1
        elif event.kind is EventKind.WAITS and late[event.handle]:
            first_wait.setdefault(event.handle, event.sentence)
    reasons = []
    for j in range(len(late)):
        if not late[j]:
            reasons.append("")
            continue
        waited_s = columns["began_s"][j] - columns["submit_s"][j]
        over_s = columns["ended_s"][j] - columns["due_s"][j]
        ran_s = columns["ended_s"][j] - columns["began_s"][j]
        parts = []
        if columns["submit_s"][j] + fastest_s[j] > columns["due_s"][j]:
            parts.append("its due date cannot be met even alone on the cluster")
        if waited_s > 0:
            parts.append(f"it waited {waited_s / HOUR_S:.1f} h to start")
        if stops[j]:
            parts.append(f"it was stopped {plural(int(stops[j]), 'time')}")
        if ran_s > 1.01 * fastest_s[j]:
            parts.append(f"it took {ran_s / HOUR_S:.1f} h instead of {fastest_s[j] / HOUR_S:.1f} h on the fastest GPUs")
        because = f" ({first_wait[j]})" if j in first_wait else ""
        reasons.append(
            f"{over_s / HOUR_S:.1f} h late: {'; '.join(parts) or 'its run took longer than expected'}{because}"
        )
    return tuple(reasons)


def _segments(events: list[Event]) -> Segments:
    open_: dict[int, Event] = {}
    rows: list[tuple[int, int, int, float, float]] = []

    def close(handle: int, at_s: float) -> None:
        began = open_.pop(handle, None)
        if began is not None:
            each = began.gpus // len(began.nodes)
            rows.extend((handle, node, each, began.time_s, at_s) for node in began.nodes)

    for event in events:
        if event.kind in _BEGINS or event.kind in _ENDS:
            close(event.handle, event.time_s)
        if event.kind in _BEGINS:
            open_[event.handle] = event
    columns = np.array(rows, dtype=float).reshape(-1, 5)
    ints = columns[:, :3].astype(np.int64)
    return Segments(ints[:, 0], ints[:, 1], ints[:, 2], columns[:, 3], columns[:, 4])


def _samples(controller: Controller) -> SampleColumns:
    samples = controller.samples
    return SampleColumns(
        time_s=np.array([s.time_s for s in samples]),
        busy_gpus=np.array([s.busy_gpus for s in samples], dtype=np.int64),
        power_w=np.array([np.nan if s.power_w is None else s.power_w for s in samples]),
        running=np.array([s.running for s in samples], dtype=np.int64),
        waiting=np.array([s.waiting for s in samples], dtype=np.int64),
        on_gpus=np.array([s.on_gpus for s in samples], dtype=np.int64),
        wanted_gpus=np.array([s.wanted_gpus for s in samples], dtype=np.int64),
    )


def _events(controller: Controller, events: list[Event]) -> EventColumns:
    names = controller.cluster.names
    return EventColumns(
        time_s=np.array([e.time_s for e in events]),
        kind=tuple(str(e.kind) for e in events),
        job=np.array([e.handle for e in events], dtype=np.int64),
        nodes=tuple(",".join(names[n] for n in e.nodes) for e in events),
        gpus=np.array([e.gpus for e in events], dtype=np.int64),
        reason=tuple(str(e.reason) for e in events),
        sentence=tuple(e.sentence for e in events),
        lost_s=np.array([np.nan if e.lost_s is None else e.lost_s for e in events]),
    )


def _service(run: PolicyRun, jobs: JobColumns, segments: Segments, rows: Ints) -> dict[str, Any]:
    """Return the fields on waiting, fairness and the common window; *rows* are those of the jobs in the table."""
    window, gpus = run.window, run.controller.cluster.total_gpus
    return service_fields(jobs, segments, window.reference, rows, gpus) | window_fields(window, jobs, gpus)


def service_fields(
    jobs: JobColumns, segments: Segments, reference: ReferenceRuns, rows: Ints, gpus: int
) -> dict[str, Any]:
    """Return the fields of ``PolicyResult`` on waiting and fairness."""
    wait_s, total_s = jobs.began_s - jobs.submit_s, time_without_gpus_s(jobs, segments)
    slowdown = bounded_slowdown(jobs, reference, rows)
    return {
        "mean_wait_s": float(wait_s.mean()),
        **percentiles_s(wait_s),
        "mean_total_wait_s": float(total_s.mean()),
        "p99_total_wait_s": float(np.percentile(total_s, 99)),
        "longest_total_wait_s": float(total_s.max()),
        "slowdown_p50": float(np.percentile(slowdown, 50)),
        "slowdown_p99": float(np.percentile(slowdown, 99)),
        "finish_time_fairness": finish_time_fairness(jobs, reference, rows, gpus),
        "most_starts": int(jobs.starts.max()),
    }


def percentiles_s(wait_s: Floats) -> dict[str, float]:
    """Return the percentiles of *wait_s* that results have, and the longest."""
    shares = {f"p{q}_wait_s": float(np.percentile(wait_s, q)) for q in (50, 95, 99)}
    return shares | {"longest_wait_s": float(wait_s.max())}


def window_fields(window: Window, jobs: JobColumns, gpus: int) -> dict[str, Any]:
    """Return the fields of ``PolicyResult`` on the common window and the tail."""
    used_s, tail_uj = window.inside.gpu_us / MICRO, window.after.energy_uj
    return {
        "window_energy_kwh": window.energy_kwh,
        "window_cost": window.cost,
        "window_gpu_utilization": used_s / (gpus * window.length_s) if window.length_s > 0 else None,
        "unfinished_energy_kwh": window.unfinished_kwh,
        "tail_s": max(0.0, float(jobs.ended_s.max()) - window.to_s),
        "tail_energy_kwh": None if tail_uj is None else tail_uj / MICRO / J_PER_KWH,
    }


def policy_result(
    policy: str, jobs: JobColumns, samples: SampleColumns, ledger: Ledger, gpus: int, lower_bound: float,
    **fields: Any,  # noqa: ANN401
) -> PolicyResult:  # fmt: skip
    """Return the result of a run on a cluster of *gpus* GPUs; *fields* are those that cannot be told from the rest."""
    meter = ledger.meter
    jct_s = jobs.ended_s - jobs.submit_s
    end_s, first_s = float(jobs.ended_s.max()), float(jobs.submit_s.min())
    tardiness = float(jobs.tardiness_cost.sum())
    cost = None if meter.cost_n is None else meter.cost_n / NANO
    allocated_gpu_s = float(np.sum(samples.busy_gpus[:-1] * np.diff(samples.time_s)))
    return PolicyResult(
        policy=policy,
        energy_kwh=None if meter.energy_uj is None else meter.energy_uj / MICRO / J_PER_KWH,
        energy_cost=cost,
        carbon_kg=None if meter.carbon_ug is None else meter.carbon_ug / NANO,
        tardiness_cost=tardiness,
        total_cost=None if cost is None else cost + tardiness,
        lower_bound_cost=lower_bound,
        jobs=len(jobs.name),
        late_jobs=int((jobs.late_s > 0).sum()),
        mean_jct_s=float(jct_s.mean()),
        p95_jct_s=float(np.percentile(jct_s, 95)),
        makespan_s=end_s - first_s,
        gpu_utilization=allocated_gpu_s / (gpus * (end_s - first_s)),
        tenants=_tenants(jobs),
        ledger=_ledger(ledger),
        **fields,
    )


def _fairness(run: PolicyRun, jobs: JobColumns, segments: Segments) -> FairnessResult | None:
    if run.weights is None:
        return None
    asked = np.asarray(run.controller.registry.job("asked_gpus"), dtype=np.int64)
    return shares_of(jobs, segments, asked, run.weights, run.controller.cluster)


def _capacity(run: PolicyRun, samples: SampleColumns) -> CapacityResult | None:
    planned, spec = run.controller.capacity, run.capacity
    if planned is None or spec is None:
        return None
    counters, ledger = planned.counters, run.controller.ledger
    widths_s = np.diff(samples.time_s)
    span_s = max(float(widths_s.sum()), 1e-9)
    drawn_uj, slept_uj = ledger.meter.energy_uj, ledger.slept_uj
    all_on_uj = None if drawn_uj is None or slept_uj is None else drawn_uj + slept_uj
    delays_s = list(counters.delays_s.values())
    waits_s = np.array([counters.delays_s.get(handle, 0.0) for handle in sorted(counters.started)])
    first = next(iter(planned.targets), None)
    promised = first if all(target == first for target in planned.targets) else None
    return CapacityResult(
        policy=spec.policy,
        forecaster=spec.forecaster if spec.forecasts else None,
        target=None if promised is None else target_number(promised),
        promise_of=None if promised is None else target_of(promised),
        plans=counters.steps,
        slots_served=counters.served / max(1, counters.steps),
        fallback_plans=counters.fallback,
        mean_gpus_on=float(samples.on_gpus[:-1] @ widths_s) / span_s,
        mean_gpus_used=float(samples.busy_gpus[:-1] @ widths_s) / span_s,
        energy_all_on_kwh=None if all_on_uj is None else all_on_uj / MICRO / J_PER_KWH,
        saving_pct=None if not all_on_uj or slept_uj is None else 100 * slept_uj / all_on_uj,
        jobs_delayed=len(delays_s),
        mean_delay_s=float(np.mean(delays_s)) if delays_s else None,
        wakes=counters.wakes,
        jobs_served=1.0 - len(delays_s) / len(waits_s) if len(waits_s) else None,
        p95_delay_s=float(np.quantile(waits_s, 0.95, method="inverted_cdf")) if len(waits_s) else None,
        p99_delay_s=float(np.quantile(waits_s, 0.99, method="inverted_cdf")) if len(waits_s) else None,
        pools=_pools(planned) if len(planned.pools) > 1 else (),
        budget=None if planned.power_now is None else _budget(planned, spec.power_kw),
    )


def _pools(planned: Capacity) -> tuple[CapacityPoolResult, ...]:
    """Return what the plans did in each pool."""
    counters, rows = planned.counters, []
    plans = max(1, counters.steps)
    targets = planned.targets or (None,) * len(planned.pools)
    for p, (name, target, counts) in enumerate(zip(planned.pools.names, targets, counters.pools, strict=True)):
        own = [handle for handle in counters.started if planned.pool_of(handle) == p]
        delays_s = [counters.delays_s[handle] for handle in own if handle in counters.delays_s]
        rows.append(
            CapacityPoolResult(
                name=name,
                gpus=planned.pool_gpus[p],
                promise=None if target is None else target_label(target),
                mean_wanted_gpus=counts.wanted_gpus / plans,
                mean_promised_gpus=counts.promised_gpus / plans,
                mean_gpus_on=counts.on_gpus / plans,
                slots_served=counts.served / plans,
                fallback_plans=counts.fallback,
                jobs=len(own),
                jobs_delayed=len(delays_s),
                mean_delay_s=float(np.mean(delays_s)) if delays_s else None,
            )
        )
    return tuple(rows)


def _budget(planned: Capacity, power_kw: float | None) -> CapacityBudgetResult:
    """Return what the power budget did."""
    counters = planned.counters
    waits_s, bound = list(counters.power_delays_s.values()), counters.bound
    sentence = "the power budget allowed all nodes that were needed"
    if bound or waits_s:
        jobs = f"{plural(len(waits_s), 'job')} waited for power" if waits_s else "no job waited for it"
        sentence = f"the power budget kept nodes off in {bound:,} of {plural(counters.steps, 'plan')}; {jobs}"
    return CapacityBudgetResult(
        power_kw=power_kw,
        binding=bound,
        jobs_delayed=len(waits_s),
        mean_delay_s=float(np.mean(waits_s)) if waits_s else None,
        sentence=sentence,
    )


def _tenants(jobs: JobColumns) -> tuple[TenantResult, ...]:
    tenant = np.array(jobs.tenant)
    results = []
    for name in dict.fromkeys(jobs.tenant):
        own = tenant == name
        energy_j, cost = float(jobs.energy_j[own].sum()), float(jobs.energy_cost[own].sum())
        results.append(
            TenantResult(
                tenant=name,
                jobs=int(own.sum()),
                late_jobs=int((jobs.late_s[own] > 0).sum()),
                energy_kwh=None if np.isnan(energy_j) else energy_j / J_PER_KWH,
                energy_cost=None if np.isnan(cost) else cost,
                tardiness_cost=float(jobs.tardiness_cost[own].sum()),
                gpu_hours=float(jobs.gpu_s[own].sum()) / HOUR_S,
                mean_jct_s=float((jobs.ended_s - jobs.submit_s)[own].mean()),
                mean_wait_s=float((jobs.began_s - jobs.submit_s)[own].mean()),
                **percentiles_s((jobs.began_s - jobs.submit_s)[own]),
            )
        )
    return tuple(results)


def _ledger(ledger: Ledger) -> tuple[LedgerRow, ...]:
    all_jobs = Account()
    for account in ledger.jobs.values():
        all_jobs.add(account)
    rows = {"jobs": all_jobs, "idle": ledger.idle, **ledger.overhead, "total": ledger.meter}
    return tuple(
        LedgerRow(row=name, energy_uj=a.energy_uj, cost_n=a.cost_n, carbon_ug=a.carbon_ug, gpu_us=a.gpu_us)
        for name, a in rows.items()
    )
