"""Runs a workload on a shared device for a given time and summarises it (``commonwatt timeslice run``)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path

import numpy as np

from commonwatt import __version__
from commonwatt.devices.base import Tensor, example_inputs
from commonwatt.devices.batches import DeviceRequest
from commonwatt.devices.driver import plugin_trouble
from commonwatt.devices.session import DeviceSession, open_session
from commonwatt.model.errors import InputError, PluginError
from commonwatt.model.timeslice_file import BackloggedLoad, PeriodicLoad, SharingTenant, TimesliceConfig
from commonwatt.model.timeslice_results import RunIdle, RunSample, RunTenantResult, TimesliceRunResult
from commonwatt.timeslicing import Fairness, Task, fairness

__all__ = ["LoadGenerator", "RunRecord", "ShareSample", "measure", "run", "summarise"]

Submit = Callable[[str, int], None]


class LoadGenerator:
    """Requests of all tenants in order of arrival; a backlogged tenant sends another when one ends.

    Parameters
    ----------
    submit
        Called with tenant and queue whenever a request arrives.
    end_ns
        No request arrives from then on.
    """

    def __init__(
        self, tenants: tuple[SharingTenant, ...], submit: Submit, end_ns: int, rng: np.random.Generator
    ) -> None:
        self._tenants = {tenant.name: tenant for tenant in tenants}
        self._submit = submit
        self._events: list[tuple[int, int, SharingTenant]] = []
        self._until = {
            tenant.name: end_ns if tenant.until_s is None else min(end_ns, round(tenant.until_s * 1e9))
            for tenant in tenants
        }
        self._gaps: dict[str, Iterator[int]] = {}
        self._turn = dict.fromkeys(self._tenants, 0)
        seeds = rng.spawn(len(tenants))
        for number, (tenant, own) in enumerate(zip(tenants, seeds, strict=True)):
            self._gaps[tenant.name] = _gaps(tenant, own)
            heappush(self._events, (round(tenant.from_s * 1e9), number, tenant))

    def next_ns(self) -> int | None:
        """Return when the next request arrives; ``None`` if none does until another ends."""
        return self._events[0][0] if self._events else None

    def arrive(self, now_ns: int) -> None:
        """Submit the requests that have arrived by *now_ns*."""
        while self._events and self._events[0][0] <= now_ns:
            at_ns, number, tenant = heappop(self._events)
            if at_ns >= self._until[tenant.name]:
                continue
            load = tenant.load
            if isinstance(load, BackloggedLoad):
                for queue in range(tenant.queues):
                    for _ in range(load.depth):
                        self._submit(tenant.name, queue)
                continue
            self._submit(tenant.name, self._turn[tenant.name])
            self._turn[tenant.name] = (self._turn[tenant.name] + 1) % tenant.queues
            heappush(self._events, (at_ns + next(self._gaps[tenant.name]), number, tenant))

    def ended(self, name: str, queue: int, now_ns: int) -> None:
        """Record the end of a request; a backlogged tenant sends the next."""
        if isinstance(self._tenants[name].load, BackloggedLoad) and now_ns < self._until[name]:
            self._submit(name, queue)


def _gaps(tenant: SharingTenant, rng: np.random.Generator) -> Iterator[int]:
    load = tenant.load
    while True:
        if isinstance(load, PeriodicLoad):
            yield max(1, round(load.interval_s * 1e9))
        elif not isinstance(load, BackloggedLoad):
            yield max(1, round(rng.exponential(1 / load.rate_per_s) * 1e9))
        else:
            return


SAMPLES = 200
"""Points of a run that are recorded for plots."""


@dataclass(frozen=True)
class ShareSample:
    """Time and energy used so far, by tenant in the order of the configuration."""

    time_ns: int
    used_ns: tuple[int, ...]
    used_j: tuple[float, ...]


@dataclass
class RunRecord:
    """Requests and shares over a run."""

    duration_ns: int = 0
    latencies_ns: dict[str, list[int]] = field(default_factory=dict)  # of requests that ended, by tenant
    refused: dict[str, int] = field(default_factory=dict)  # queue full
    failed: dict[str, int] = field(default_factory=dict)
    samples: list[ShareSample] = field(default_factory=list)


class _Run:
    def __init__(self, session: DeviceSession, end_ns: int, rng: np.random.Generator) -> None:
        self.session = session
        self.driver = session.driver
        self.record = RunRecord(
            latencies_ns={name: [] for name in session.tenants},
            refused=dict.fromkeys(session.tenants, 0),
            failed=dict.fromkeys(session.tenants, 0),
        )
        self._inputs: dict[tuple[str, str], dict[str, Tensor]] = {
            key: example_inputs(loaded.model.inputs, rng) for key, loaded in session.loaded.items()
        }
        self._turn = dict.fromkeys(session.tenants, 0)
        for tenant in session.config.tenants:
            if not any((tenant.name, spec.key) in session.loaded for spec in tenant.models):
                raise InputError("a model with load_at_start: true", field=f"tenants.{tenant.name}.models")
        self._start_ns = session.clock.now_ns()
        tenants = tuple(session.config.tenants)
        self.load = LoadGenerator(tenants, self._submit, end_ns, rng)

    def _submit(self, name: str, queue: int) -> None:
        models = [spec for spec in self.session.tenants[name].models if (name, spec.key) in self.session.loaded]
        spec = models[self._turn[name] % len(models)]
        self._turn[name] += 1
        loaded = self.session.loaded[name, spec.key]
        request = DeviceRequest(loaded.model, loaded.powers, self._inputs[name, spec.key], self._ended)
        tenant = self.driver.scheduler.tenants[name]
        task = Task(tenant, queue, request, self.session.clock.now_ns())
        if not self.driver.scheduler.submit(task):
            self.record.refused[name] += 1

    def _ended(self, task: Task) -> None:
        name = task.tenant.name
        request: DeviceRequest = task.work
        if request.error is not None:
            raise request.error
        self.record.latencies_ns[name].append(request.ended_ns - task.submitted_ns)
        self.load.ended(name, task.queue, request.ended_ns - self._start_ns)

    def sample(self, now_ns: int) -> None:
        tenants = self.driver.scheduler.tenants.values()
        self.record.samples.append(
            ShareSample(now_ns, tuple(t.time_ns for t in tenants), tuple(t.energy_j for t in tenants))
        )


def run(
    session: DeviceSession, rng: np.random.Generator, on_progress: Callable[[float], None] = lambda _: None
) -> RunRecord:
    """Run the load of all tenants for the configured time; *on_progress* is called with the seconds done.

    A request in progress at the end stays unfinished; the steps it ran are accounted for. Raises what a request raises:
    unlike a server, a run makes its own inputs.
    """
    clock, driver = session.clock, session.driver
    start_ns = clock.now_ns()
    length_ns = round(session.config.duration_s * 1e9)
    state = _Run(session, length_ns, rng)
    driver.restart()
    next_sample_ns = 0
    while (now_ns := clock.now_ns() - start_ns) < length_ns:
        state.load.arrive(now_ns)
        if now_ns >= next_sample_ns:
            state.sample(now_ns)
            on_progress(now_ns * 1e-9)
            next_sample_ns += length_ns // SAMPLES + 1
        if not driver.step():
            arrival_ns = state.load.next_ns()
            clock.wait_until(start_ns + min(length_ns, length_ns if arrival_ns is None else arrival_ns))
    driver.settle()
    driver.scheduler.book()
    state.record.duration_ns = clock.now_ns() - start_ns
    state.sample(state.record.duration_ns)
    return state.record


def measure(
    config: TimesliceConfig, folder: Path, seed: int, on_progress: Callable[[float], None] = lambda _: None
) -> TimesliceRunResult:
    """Open a session for *config*, run it and close it; paths are relative to *folder*."""
    for tenant in config.tenants:
        for model in tenant.models:
            if model.language is not None:
                field = f"tenants.{tenant.name}.models.{model.name}.language"
                raise InputError("no language model: serve it, and send it requests", field=field, value=model.name)
    session = open_session(config, folder)
    try:
        record = run(session, np.random.default_rng(seed), on_progress)
        if (trouble := plugin_trouble(session.driver.scheduler)) is not None:  # another policy divided: no result of it
            raise PluginError(trouble)
        return summarise(session, record, seed)
    finally:
        session.close()


def summarise(session: DeviceSession, record: RunRecord, seed: int) -> TimesliceRunResult:
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


def _tenants(session: DeviceSession, record: RunRecord) -> tuple[RunTenantResult, ...]:
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


def _fairness(session: DeviceSession) -> Fairness:
    """Fairness among the tenants that were backlogged from start to end."""
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
