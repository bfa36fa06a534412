"""What an operator sees and can change while a server runs: time, energy, shares and queues; weights, clocks, phi."""

from __future__ import annotations

from typing import Any

import numpy as np

from commonwatt.devices.driver import plugin_trouble, sharing_policy
from commonwatt.devices.session import DeviceSession
from commonwatt.model.errors import DeviceError, InputError, PluginError
from commonwatt.model.fields import FileModel, quantity
from commonwatt.model.timeslice_file import PolicyChoice
from commonwatt.serving.metrics import Measurements, TenantMeasurements, TokenCounts
from commonwatt.serving.worker import RequestCounts, Worker
from commonwatt.timeslicing import FairScheduler, QuantumProblem, TenantQueue

__all__ = ["ServerSettings", "TenantSettings", "change", "measurements", "settings", "status"]


class TenantSettings(FileModel):
    """Settings of one tenant."""

    weight: float | None = quantity("weight relative to the other tenants (w)", "-", None, gt=0)
    clock_mhz: float | None = quantity("clock for the tenant's work; null: the device's own", "MHz", None, gt=0)


class ServerSettings(FileModel):
    """Settings of the server; a field that is absent keeps its value."""

    policy: PolicyChoice | None = quantity("sharing policy", "-", None)
    phi: float | None = quantity("time-fair factor", "-", None, ge=0, le=1)
    quantum_s: float | None = quantity("length of the quantum", "s", None, gt=0)
    tenants: dict[str, TenantSettings] = quantity("tenants by name", "-", dict)


def settings(session: DeviceSession) -> dict[str, Any]:
    """Return the current settings."""
    driver, config = session.driver, session.config
    return {
        "policy": config.policy,
        "phi": config.phi,
        "quantum_s": config.quantum_s,
        "tenants": {
            name: {"weight": tenant.weight, "clock_mhz": driver.clocks_mhz.get(name)}
            for name, tenant in driver.scheduler.tenants.items()
        },
    }


def change(session: DeviceSession, worker: Worker, changed: dict[str, Any]) -> dict[str, Any]:
    """Change settings, all or nothing, and return all of them. Raises ``InputError`` naming the field."""
    wanted = _checked(session, changed)
    config, driver = session.config, session.driver
    new = {
        field: value
        for field in ("policy", "phi", "quantum_s")
        if (value := getattr(wanted, field)) is not None
    }  # fmt: skip
    config = config.model_copy(update=new)
    try:
        policy = sharing_policy(config.policy, config.phi) if config.takes_turns else None
    except PluginError as error:
        raise InputError(f"a plugin that can be used: {error}", field="policy", value=config.policy) from None
    clocks = {name: t.clock_mhz for name, t in wanted.tenants.items() if "clock_mhz" in t.model_fields_set}
    worker.ask(lambda: _try_clocks(session, clocks))
    with driver.lock:
        scheduler = driver.scheduler
        if new and policy is not None and isinstance(scheduler, FairScheduler):
            scheduler.share_by(policy, round(config.quantum_s * 1e9))
        for name, tenant in wanted.tenants.items():
            if tenant.weight is not None:
                scheduler.update(scheduler.tenants[name], weight=tenant.weight)
        driver.clocks_mhz.update(clocks)
        session.config = config
        session.limit_steps()
    return settings(session)


def _checked(session: DeviceSession, changed: dict[str, Any]) -> ServerSettings:
    from commonwatt.data.files import validate

    wanted = validate(changed, ServerSettings)
    for name in wanted.tenants:
        if name not in session.tenants:
            expected = f"one of the tenants {', '.join(session.tenants)}"
            raise InputError(expected, field=f"tenants.{name}", value=name)
    now = session.config.policy
    orders = {"fifo", "vtc"}
    if wanted.policy not in {None, now} and orders & {wanted.policy, now}:
        raise InputError(
            f"{now}: switching to or from fifo or vtc needs a restart", field="policy", value=wanted.policy
        )
    return wanted


def _try_clocks(session: DeviceSession, clocks: dict[str, float | None]) -> None:
    """Set each clock once, so that an unsupported one is refused now rather than during a request."""
    for name, clock_mhz in clocks.items():
        try:
            session.device.set_clock(clock_mhz)
        except InputError as error:
            raise InputError(error.expected, field=f"tenants.{name}.clock_mhz", value=clock_mhz) from None
        finally:
            session.driver.forget_clock()


def measurements(session: DeviceSession, counts: dict[str, RequestCounts]) -> Measurements:
    """Take a snapshot."""
    driver = session.driver
    with driver.lock:
        driver.scheduler.book()
        tenants = list(driver.scheduler.tenants.values())
        whole_ns = sum(tenant.time_ns for tenant in tenants)
        whole_j = sum(tenant.energy_j for tenant in tenants)
        sure = _guaranteed_shares(session, tenants)
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
                queue_length=tenant.waiting + len(tenant.begun),
                requests=dict(counts[tenant.name].requests),
                latency=counts[tenant.name].latency.copy(),
                tokens=counts[tenant.name].tokens.copy() if session.generates(tenant.name) else None,
            )
            for tenant, share in zip(tenants, sure, strict=True)
        )
        return Measurements(
            rows, driver.ledger.idle_ns * 1e-9, driver.ledger.idle_j, session.config.phi, session.config.policy,
            _power_source(session),
        )  # fmt: skip


def _guaranteed_shares(session: DeviceSession, tenants: list[TenantQueue]) -> list[float]:
    """Return the fraction of the time that the policy guarantees to each tenant while it has work."""
    if not session.config.takes_turns:
        return [0.0] * len(tenants)
    whole = 10**9
    problem = QuantumProblem.make(whole, [t.weight for t in tenants], [t.power_w for t in tenants])
    scheduler = session.driver.scheduler
    assert isinstance(scheduler, FairScheduler)
    sure = scheduler.policy.guarantee(problem)
    return [float(share) for share in np.asarray(sure) / whole]


def status(session: DeviceSession, counts: dict[str, RequestCounts], failure: DeviceError | None) -> dict[str, Any]:
    """Return the same as a JSON document; unknown is null."""
    now = measurements(session, counts)
    driver = session.driver
    return {
        "device": session.device.name,
        "device_kind": session.device.kind,
        "device_failure": None if failure is None else str(failure),
        "enforcement": session.device.enforcement,
        "policy": now.policy,
        "policy_failure": plugin_trouble(driver.scheduler),
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
                "planned_time_s": live.entitled_ns * 1e-9 if session.config.takes_turns else None,
                "energy_share": tenant.energy_share,
                "entitlement": tenant.entitlement,
                "guaranteed_share": tenant.guaranteed_share,
                "queue_length": tenant.queue_length,
                "requests": dict(tenant.requests),
                "tokens": None if tenant.tokens is None else _tokens(session, tenant.tenant, tenant.tokens),
            }
            for tenant, live in zip(now.tenants, driver.scheduler.tenants.values(), strict=True)
        },
    }


def _tokens(session: DeviceSession, tenant: str, counts: TokenCounts) -> dict[str, Any]:
    pools = session.cache_pools(tenant)
    return {
        "prompt": counts.prompt,
        "answer": counts.answer,
        "cache_used": sum(pool.used for pool in pools),
        "cache": sum(pool.tokens for pool in pools),
        "counter": session.token_counter(tenant),
    }


def _power_source(session: DeviceSession) -> str:
    sources = {session.power_source(name) for name in session.tenants}
    return next(iter(sources)) if len(sources) == 1 else "modelled" if "modelled" in sources else "mixed"
