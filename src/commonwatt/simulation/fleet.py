"""The numbers of a fleet's run: services, fractional jobs, tenants over all they run; and shares of tenants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from commonwatt.control.fleet.controller import FleetController
from commonwatt.control.fleet.manager import FleetManager
from commonwatt.control.fleet.shared_gpus import GpuMode
from commonwatt.control.ledger import Account
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.fleet_results import (
    FleetResult,
    FleetTenantResult,
    FractionalResult,
    PowerCapResult,
    ServiceResult,
)
from commonwatt.model.nodes import Cluster
from commonwatt.model.policies import FairnessResult, TenantShareResult
from commonwatt.model.units import HOUR_S, J_PER_KWH, MICRO, NANO
from commonwatt.placement import water_fill
from commonwatt.simulation.record import JobColumns, Segments

__all__ = ["fleet_result", "jain", "shares_of"]


def jain(values: Sequence[float]) -> float | None:
    """Return Jain's index of fairness, ``(sum x)^2 / (n sum x^2)``; ``None`` for fewer than two values, or all 0."""
    x = np.array(values, dtype=float)
    return float(x.sum() ** 2 / (len(x) * (x @ x))) if len(x) > 1 and x.any() else None


def fleet_result(controller: FleetController, jobs: JobColumns) -> FleetResult:
    """Return the numbers of what ran beside training *jobs*."""
    manager = controller.manager
    counters, gpus, fleet = manager.counters, manager.gpus, manager.fleet
    total_us = sum(gpus.gpu_us.values())
    tenants = _tenants(controller, jobs)
    idle_kwh = _kwh(controller.ledger.meter) - sum(tenant.energy_kwh or 0.0 for tenant in tenants)
    services = _services(manager)
    return FleetResult(
        services=services,
        fractional=_fractional(manager) if fleet.jobs else None,
        tenants=tenants,
        requests=sum(service.requests for service in services),
        late_requests=sum(service.late_requests for service in services),
        whole_gpu_hours=_hours(gpus.gpu_us[GpuMode.WHOLE]),
        mig_gpu_hours=_hours(gpus.gpu_us[GpuMode.MIG]),
        time_gpu_hours=_hours(gpus.gpu_us[GpuMode.TIME]),
        reserved_share=gpus.reserved_us / total_us if total_us else None,
        layouts=counters.layouts,
        drained=counters.drained,
        made_room=counters.made_room,
        unplaced_s=counters.unplaced_s,
        mean_phi=counters.phi_s / counters.time_shared_s if counters.time_shared_s else None,
        interference_slowdown=fleet.slowdown,
        idle_kwh=idle_kwh,
        energy_evenness=jain([(tenant.energy_kwh or 0.0) / tenant.weight for tenant in tenants]),
        time_evenness=jain([tenant.gpu_hours / tenant.weight for tenant in tenants]),
        power_cap=_power_cap(controller),
    )


def _power_cap(controller: FleetController) -> PowerCapResult | None:
    if controller.tariff.cap_w is None:
        return None
    counts = controller.manager.counters.cap
    return PowerCapResult(
        most_w=max((sample.power_w or 0.0 for sample in controller.samples), default=0.0),
        over_s=counts.alone_s,
        over_beside_jobs_s=counts.beside_jobs_s,
        most_over_w=counts.most_over_w,
        stopped_jobs=counts.stopped_jobs,
        stopped_fractional=counts.stopped_fractions,
    )


def _services(manager: FleetManager) -> tuple[ServiceResult, ...]:
    services = []
    for i, service in enumerate(manager.fleet.services):
        counters, account = manager.counters.services[i], manager.gpus.service_accounts.get(i, Account())
        services.append(
            ServiceResult(
                service=service.name,
                tenant=service.tenant,
                requests=counters.requests,
                late_requests=counters.late,
                late_share=counters.late / counters.requests if counters.requests else None,
                met_share=counters.met_s / counters.busy_s if counters.busy_s else None,
                mean_replicas=counters.replica_s / service.load.end_s,
                gpu_hours=_hours(account.gpu_us),
                moves=counters.moves,
                energy_kwh=_kwh(account),
                energy_cost=_cost(account),
            )
        )
    return tuple(services)


def _fractional(manager: FleetManager) -> FractionalResult:
    jobs, counters = manager.fleet.jobs, manager.counters
    waits = np.array([began_s - jobs[j].submit_s for j, began_s in counters.began_s.items()])
    stretch = [(ended_s - jobs[j].submit_s) / jobs[j].duration_s for j, ended_s in counters.ended_s.items()]
    account = _sum(manager.gpus.job_accounts.values())
    return FractionalResult(
        jobs=len(jobs),
        ended=len(counters.ended_s),
        mean_wait_s=float(waits.mean()) if len(waits) else None,
        p95_wait_s=float(np.percentile(waits, 95)) if len(waits) else None,
        mean_stretch=float(np.mean(stretch)) if stretch else None,
        stops=counters.stops,
        gpu_hours=_hours(account.gpu_us),
        energy_kwh=_kwh(account),
        energy_cost=_cost(account),
    )


def _tenants(controller: FleetController, jobs: JobColumns) -> tuple[FleetTenantResult, ...]:
    manager = controller.manager
    fleet, counters = manager.fleet, manager.counters
    names = dict.fromkeys(
        [*jobs.tenant, *(service.tenant for service in fleet.services), *(job.tenant for job in fleet.jobs)]
    )
    accounts: dict[str, list[Account]] = {name: [] for name in names}
    waits: dict[str, list[float]] = {name: [] for name in names}
    late = dict.fromkeys(names, 0.0)
    for j, name in enumerate(jobs.tenant):
        accounts[name].append(controller.ledger.jobs.get(j, Account()))
        waits[name].append(float(jobs.began_s[j] - jobs.submit_s[j]))
    for i, service in enumerate(fleet.services):
        accounts[service.tenant].append(manager.gpus.service_accounts.get(i, Account()))
        late[service.tenant] += counters.services[i].late
    for j, job in enumerate(fleet.jobs):
        accounts[job.tenant].append(manager.gpus.job_accounts.get(j, Account()))
        if j in counters.began_s:
            waits[job.tenant].append(counters.began_s[j] - job.submit_s)
    tenants = []
    for name in names:
        account = _sum(accounts[name])
        tenants.append(
            FleetTenantResult(
                tenant=name,
                weight=fleet.tenant_weights.get(name, 1.0),
                energy_kwh=None if account.energy_uj is None else _kwh(account),
                gpu_hours=_hours(account.gpu_us),
                mean_wait_s=float(np.mean(waits[name])) if waits[name] else None,
                late_requests=late[name],
            )
        )
    return tuple(tenants)


def _sum(accounts: Iterable[Account]) -> Account:
    total = Account()
    for account in accounts:
        total.add(account)
    return total


def _kwh(account: Account) -> float:
    return (account.energy_uj or 0) / MICRO / J_PER_KWH


def _cost(account: Account) -> float:
    return (account.cost_n or 0) / NANO


def _hours(gpu_us: int) -> float:
    return gpu_us / MICRO / HOUR_S


# -- shares of tenants, under any policy


def shares_of(
    jobs: JobColumns, segments: Segments, asked_gpus: Ints, weights: dict[str, float], cluster: Cluster
) -> FairnessResult:
    """Return received against entitled GPU time.

    At each moment a tenant's demand is what its jobs that were submitted and have not ended ask for, and its
    entitlement the weighted max-min share of all GPUs under these demands, without memory. What it received beyond
    that does not make up for what it missed at other times. A GPU counts by its ``share_weight``; a job asks for GPUs
    of the type that it had last, or of the least weight if it had none.

    Parameters
    ----------
    asked_gpus
        GPUs each job asks for. Shape [J].
    weights
        Of tenants; 1 for those that are not named.
    """
    names = tuple(dict.fromkeys(jobs.tenant))
    at = {name: k for k, name in enumerate(names)}
    tenant = np.array([at[name] for name in jobs.tenant], dtype=np.int64)
    weight = np.array([weights.get(name, 1.0) for name in names])
    edges = np.unique(np.concatenate((jobs.submit_s, jobs.ended_s, segments.from_s, segments.to_s)))
    each = np.ones(len(cluster)) if cluster.share_weights is None else cluster.share_weights[cluster.klass]
    of_job = np.full(len(tenant), each.min())
    of_job[segments.job] = each[segments.node]
    demand = _over_time(edges, jobs.submit_s, jobs.ended_s, tenant, asked_gpus * of_job, len(names))
    allocated = _over_time(
        edges, segments.from_s, segments.to_s, tenant[segments.job], segments.gpus * each[segments.node], len(names)
    )  # fmt: skip
    nothing, gpus = np.zeros(len(names)), float((cluster.gpus * each).sum())
    entitled = np.array([water_fill(gpus, weight, row, nothing) for row in demand]).reshape(-1, len(names))
    width_s = np.diff(edges)[:, None]
    total = (entitled * width_s).sum(axis=0)
    kept = (np.minimum(allocated, entitled) * width_s).sum(axis=0)
    received = (allocated * width_s).sum(axis=0)
    share = np.where(total > 0, kept / np.where(total > 0, total, 1.0), 1.0)
    return FairnessResult(
        worst_share=float(share.min()),
        mean_share=float(share.mean()),
        evenness=jain(share.tolist()),
        tenants=tuple(
            TenantShareResult(
                tenant=name, weight=float(weight[k]), entitled_gpu_hours=float(total[k]) / HOUR_S,
                received_gpu_hours=float(received[k]) / HOUR_S, kept_share=float(share[k]),
            )
            for k, name in enumerate(names)
        ),
    )  # fmt: skip


def _over_time(edges: Floats, from_s: Floats, to_s: Floats, tenant: Ints, gpus: Floats, tenants: int) -> Floats:
    """Return GPUs by tenant in each interval between *edges*. Shape [E - 1, T]."""
    change = np.zeros((len(edges), tenants))
    np.add.at(change, (np.searchsorted(edges, from_s), tenant), gpus)
    np.subtract.at(change, (np.searchsorted(edges, to_s), tenant), gpus)
    return np.asarray(np.cumsum(change, axis=0)[:-1])
