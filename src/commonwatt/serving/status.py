"""What tenants got since a server started: for the operator, and for Prometheus."""

from __future__ import annotations

from typing import Any

import numpy as np

from commonwatt.devices.session import Session
from commonwatt.model.errors import DeviceError
from commonwatt.serving.calls import Counts
from commonwatt.serving.metrics import Measurements, TenantMeasurements
from commonwatt.timeslicing.policies import make
from commonwatt.timeslicing.problem import Problem
from commonwatt.timeslicing.tasks import Tenant

__all__ = ["measurements", "status"]


def measurements(session: Session, counts: dict[str, Counts]) -> Measurements:
    """Take a snapshot."""
    driver = session.driver
    with driver.lock:
        driver.scheduler.book()
        tenants = list(driver.scheduler.tenants.values())
        whole_ns = sum(tenant.time_ns for tenant in tenants)
        whole_j = sum(tenant.energy_j for tenant in tenants)
        sure = guaranteed_shares(session, tenants)
        weights = sum(tenant.weight for tenant in tenants)
        rows = tuple(
            TenantMeasurements(
                tenant=tenant.name,
                time_s=tenant.time_ns * 1e-9,
                energy_j=tenant.energy_j,
                time_share=tenant.time_ns / whole_ns if whole_ns else 0.0,
                energy_share=tenant.energy_j / whole_j if whole_j else 0.0,
                entitlement=tenant.weight / weights,
                guaranteed_share=share,
                queue_length=tenant.waiting + (tenant.running is not None),
                requests=dict(counts[tenant.name].requests),
                latency=counts[tenant.name].latency.copy(),
            )
            for tenant, share in zip(tenants, sure, strict=True)
        )
        return Measurements(
            rows, driver.ledger.idle_ns * 1e-9, driver.ledger.idle_j, session.config.phi, session.config.policy,
            _power_source(session),
        )  # fmt: skip


def guaranteed_shares(session: Session, tenants: list[Tenant]) -> list[float]:
    """Return the part of the time each tenant has for certain while it has work, whoever else has."""
    if session.config.policy == "fifo":
        return [0.0] * len(tenants)
    whole = 10**9
    problem = Problem.make(whole, [t.weight for t in tenants], [t.power_w for t in tenants])
    sure = make(session.config.policy, session.config.phi).guarantee(problem)
    return [float(share) for share in np.asarray(sure) / whole]


def status(session: Session, counts: dict[str, Counts], failure: DeviceError | None) -> dict[str, Any]:
    """Return the same as a JSON document. Unknown is null."""
    now = measurements(session, counts)
    driver = session.driver
    return {
        "device": session.device.name,
        "device_kind": session.device.kind,
        "device_failure": None if failure is None else str(failure),
        "enforcement": session.device.enforcement,
        "policy": now.policy,
        "phi": now.phi,
        "quantum_s": session.config.quantum_s,
        "power_source": now.power_source,
        "meter_j": driver.ledger.meter_j,
        "scheduling_share": 1 - driver.device_ns / driver.busy_ns if driver.busy_ns else None,
        "idle": {"time_s": now.idle_time_s, "energy_j": now.idle_energy_j},
        "tenants": {
            tenant.tenant: {
                "weight": live.weight,
                "power_w": live.power_w,
                "power_source": session.power_source(tenant.tenant),
                "time_s": tenant.time_s,
                "energy_j": tenant.energy_j,
                "time_share": tenant.time_share,
                "planned_time_s": None if now.policy == "fifo" else live.entitled_ns * 1e-9,
                "energy_share": tenant.energy_share,
                "entitlement": tenant.entitlement,
                "guaranteed_share": tenant.guaranteed_share,
                "queue_length": tenant.queue_length,
                "requests": dict(tenant.requests),
            }
            for tenant, live in zip(now.tenants, driver.scheduler.tenants.values(), strict=True)
        },
    }


def _power_source(session: Session) -> str:
    sources = {session.power_source(name) for name in session.tenants}
    return next(iter(sources)) if len(sources) == 1 else "modelled" if "modelled" in sources else "mixed"
