"""The numbers of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from commonwatt import __version__
from commonwatt.devices.run import RunRecord, run
from commonwatt.devices.session import Session, open_session
from commonwatt.model.timeslice_config import BackloggedLoad, SharingTenant, TimesliceConfig
from commonwatt.model.timeslice_results import RunIdle, RunSample, RunTenantResult, TimesliceRunResult
from commonwatt.timeslicing.fairness import Fairness, fairness

__all__ = ["measure", "summarise"]


def measure(
    config: TimesliceConfig, folder: Path, seed: int, heard: Callable[[float], None] = lambda _: None
) -> TimesliceRunResult:
    """Open what *config* asks for, run it, and close it again; files are relative to *folder*."""
    session = open_session(config, folder)
    try:
        record = run(session, np.random.default_rng(seed), heard)
        return summarise(session, record, seed)
    finally:
        session.close()


def summarise(session: Session, record: RunRecord, seed: int) -> TimesliceRunResult:
    """Return the result document of a run."""
    config, driver = session.config, session.driver
    ledger = driver.ledger
    simulated = session.device.kind == "simulated"
    fair = _fairness(session)
    return TimesliceRunResult(
        version=__version__,
        seed=seed,
        input_digest=hashlib.sha256(config.without_keys().model_dump_json().encode()).hexdigest(),
        device=session.device.name,
        device_kind=session.device.kind,
        enforcement=session.device.enforcement,
        policy=config.policy,
        phi=config.phi,
        quantum_s=config.quantum_s,
        duration_s=record.duration_ns * 1e-9,
        tenants=_tenants(session, record),
        idle=RunIdle(time_s=ledger.idle_ns * 1e-9, energy_j=ledger.idle_j),
        meter_j=ledger.meter_j,
        time_fairness=fair.time,
        energy_fairness=fair.energy,
        system_fairness=fair.system,
        steps=driver.decisions,
        scheduling_share=None if simulated or not driver.busy_ns else 1 - driver.device_ns / driver.busy_ns,
        timeline=tuple(
            RunSample(
                at_s=sample.time_ns * 1e-9,
                time_s=tuple(ns * 1e-9 for ns in sample.used_ns),
                energy_j=sample.used_j,
            )
            for sample in record.samples
        ),
    )


def _tenants(session: Session, record: RunRecord) -> tuple[RunTenantResult, ...]:
    tenants = session.driver.scheduler.tenants
    entitled = {name: t.entitled_ns for name, t in tenants.items()}
    promised_j = {name: t.entitled_ns * t.power_w for name, t in tenants.items()}
    used = {name: float(t.time_ns) for name, t in tenants.items()}
    energy = {name: t.energy_j for name, t in tenants.items()}
    results = []
    for name, tenant in tenants.items():
        latencies = np.array(record.latencies_ns[name]) * 1e-9
        results.append(
            RunTenantResult(
                name=name,
                weight=tenant.weight,
                power_w=tenant.power_w,
                power_source=session.power_source(name),
                time_s=tenant.time_ns * 1e-9,
                energy_j=tenant.energy_j,
                time_share=_share(used, name),
                planned_time_share=_share(entitled, name),
                energy_share=_share(energy, name),
                planned_energy_share=_share(promised_j, name),
                requests=len(latencies),
                refused=record.refused[name],
                throughput_per_s=len(latencies) / (record.duration_ns * 1e-9),
                latency_mean_s=float(latencies.mean()) if len(latencies) else None,
                latency_p50_s=float(np.median(latencies)) if len(latencies) else None,
                latency_p99_s=float(np.quantile(latencies, 0.99)) if len(latencies) else None,
            )
        )
    return tuple(results)


def _share(amounts: dict[str, float], name: str) -> float | None:
    whole = sum(amounts.values())
    return amounts[name] / whole if whole > 0 else None


def _fairness(session: Session) -> Fairness:
    """Among tenants who wanted all they could get from first to last."""
    names = [name for name, tenant in session.tenants.items() if _always_backlogged(tenant, session.config)]
    if len(names) < 2:
        return Fairness(None, None)
    tenants = [session.driver.scheduler.tenants[name] for name in names]
    return fairness(
        np.array([float(t.time_ns) for t in tenants]),
        np.array([t.energy_j for t in tenants]),
        np.array([t.weight for t in tenants]),
    )


def _always_backlogged(tenant: SharingTenant, config: TimesliceConfig) -> bool:
    lasts = tenant.until_s is None or tenant.until_s >= config.duration_s
    return isinstance(tenant.load, BackloggedLoad) and tenant.from_s == 0 and lasts
