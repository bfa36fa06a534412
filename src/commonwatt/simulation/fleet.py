"""The numbers of a fleet's run: services, fractional jobs, tenants over all they run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from commonwatt.control.fleet.controller import FleetController
from commonwatt.control.fleet.manager import FleetManager
from commonwatt.control.fleet.shared_gpus import GpuMode
from commonwatt.control.ledger import Account
from commonwatt.model.fleet_results import (
    FleetResult,
    FleetTenantResult,
    FractionalResult,
    PowerCapResult,
    ServiceResult,
)
from commonwatt.model.units import HOUR_S, J_PER_KWH, MICRO, NANO
from commonwatt.simulation.record import JobColumns

__all__ = ["fleet_result", "jain"]


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
    found = []
    for i, service in enumerate(manager.fleet.services):
        counters, account = manager.counters.services[i], manager.gpus.service_accounts.get(i, Account())
        found.append(
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
    return tuple(found)


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
    found = []
    for name in names:
        account = _sum(accounts[name])
        found.append(
            FleetTenantResult(
                tenant=name,
                weight=fleet.tenant_weights.get(name, 1.0),
                energy_kwh=None if account.energy_uj is None else _kwh(account),
                gpu_hours=_hours(account.gpu_us),
                mean_wait_s=float(np.mean(waits[name])) if waits[name] else None,
                late_requests=late[name],
            )
        )
    return tuple(found)


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
