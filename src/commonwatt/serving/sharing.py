"""The backend of ``timeslice serve``, and the settings that an operator can change while it runs.

Tenants' models are on one device, shared by the timeslicing scheduler.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from commonwatt.devices.base import Tensor, TensorSpec
from commonwatt.devices.driver import DeviceRequest
from commonwatt.devices.session import DeviceSession, LoadedTenant
from commonwatt.model.errors import DeviceError, InputError
from commonwatt.model.fields import FileModel, quantity
from commonwatt.model.timeslice_file import PolicyName, ServedModel, SharingTenant
from commonwatt.serving.backend import (
    BackendError,
    ModelDescription,
    NotReadyError,
    TooManyRequestsError,
    UnavailableError,
    UnknownModelError,
)
from commonwatt.serving.metrics import Measurements, TenantMeasurements
from commonwatt.serving.worker import InferenceCall, RequestCounts, Worker
from commonwatt.timeslicing import FairScheduler, QuantumProblem, Task, TenantQueue, make

__all__ = ["ServerSettings", "SharingBackend", "TenantSettings", "change", "settings"]


class TenantSettings(FileModel):
    """Settings of one tenant."""

    weight: float | None = quantity("weight relative to the other tenants (w)", "-", None, gt=0)
    clock_mhz: float | None = quantity("clock for the tenant's work; null: the device's own", "MHz", None, gt=0)


class ServerSettings(FileModel):
    """Settings of the server; a field that is absent keeps its value."""

    policy: PolicyName | None = quantity("sharing policy", "-", None)
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
    clocks = {name: t.clock_mhz for name, t in wanted.tenants.items() if "clock_mhz" in t.model_fields_set}
    worker.ask(lambda: _try_clocks(session, clocks))
    with driver.lock:
        scheduler = driver.scheduler
        if new and isinstance(scheduler, FairScheduler):
            scheduler.share_by(make(config.policy, config.phi), round(config.quantum_s * 1e9))
        for name, tenant in wanted.tenants.items():
            if tenant.weight is not None:
                scheduler.update(scheduler.tenants[name], weight=tenant.weight)
        driver.clocks_mhz.update(clocks)
        session.config = config
    return settings(session)


def _checked(session: DeviceSession, changed: dict[str, Any]) -> ServerSettings:
    from commonwatt.data.files import validate

    wanted = validate(changed, ServerSettings)
    for name in wanted.tenants:
        if name not in session.tenants:
            expected = f"one of the tenants {', '.join(session.tenants)}"
            raise InputError(expected, field=f"tenants.{name}", value=name)
    now = session.config.policy
    if wanted.policy is not None and (wanted.policy == "fifo") != (now == "fifo"):
        raise InputError(f"{now}: switching to or from fifo needs a restart", field="policy", value=wanted.policy)
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


@dataclass
class _Served:
    """A model of a tenant, loaded or not."""

    spec: ServedModel
    state: Literal["absent", "loading", "ready", "unloading"] = "absent"
    reason: str = "not loaded at start"
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    in_progress: int = 0


class SharingBackend:
    """A ``Backend`` over an open session; call ``start`` before use and ``close`` at the end."""

    def __init__(self, session: DeviceSession) -> None:
        self.session = session
        self.counts = {name: RequestCounts() for name in session.tenants}
        self.worker = Worker(session.driver, self._gone)
        self._calls: set[InferenceCall] = set()
        self._failure: DeviceError | None = None
        self._served: dict[str, dict[str, _Served]] = {}
        for tenant in session.config.tenants:
            self._served[tenant.name] = {spec.name: _Served(spec) for spec in tenant.models}
            for name, served in self._served[tenant.name].items():
                if (tenant.name, name) in session.loaded:
                    _now_ready(served, session.loaded[tenant.name, name])

    def start(self) -> None:
        """Start to accept requests."""
        self.worker.start()

    def close(self) -> None:
        """Stop computing, and refuse the requests in progress."""
        self.worker.end()
        self._refuse_all("the server has stopped")
        self.session.close()

    def ready(self) -> bool:
        """Return whether requests are accepted: not after the device has failed."""
        return self._failure is None

    def models(self, tenant: str) -> tuple[ModelDescription, ...]:
        """Return the models of *tenant*, loaded or not."""
        return tuple(_described(served) for served in self._served[tenant].values())

    def model(self, tenant: str, name: str) -> ModelDescription:
        """Return a model of *tenant*; raises ``UnknownModelError``."""
        return _described(self._find(tenant, name))

    async def load(self, tenant: str, name: str) -> None:
        """Load a model unless it is loaded. Raises ``BackendError`` if its file cannot be loaded."""
        served = self._find(tenant, name)
        if served.state == "ready":
            return
        if served.state != "absent":
            raise NotReadyError(f"model {name!r} is {served.state}")
        served.state, served.reason = "loading", "loading"
        try:
            loaded = await asyncio.to_thread(self.session.load, self.session.tenants[tenant], served.spec)
        except Exception as error:
            served.state, served.reason = "absent", "its file could not be loaded"
            if isinstance(error, InputError):
                raise BackendError(f"model {name!r} cannot be loaded: expected {error.expected}") from error
            raise
        _now_ready(served, loaded)

    async def unload(self, tenant: str, name: str) -> None:
        """Unload a model after its requests in progress are answered."""
        served = self._find(tenant, name)
        if served.state == "absent":
            return
        if served.state != "ready":
            raise NotReadyError(f"model {name!r} is {served.state}")
        served.state, served.reason = "unloading", "unloading"
        while served.in_progress:
            await asyncio.sleep(0.005)
        await asyncio.to_thread(self.session.unload, tenant, name)
        served.state, served.reason = "absent", "unloaded on request"

    async def infer(self, tenant: str, name: str, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Run one inference; cancelling the awaiting task cancels the request."""
        served = self._find(tenant, name)
        if served.state != "ready":
            raise NotReadyError(f"model {name!r} is not ready: {served.reason}")
        loaded = self.session.loaded[tenant, name]
        call = InferenceCall(self.counts[tenant])
        task = self._submit(self.session.tenants[tenant], loaded, inputs, call)
        self._calls.add(call)
        served.in_progress += 1
        try:
            return await call.answer
        except asyncio.CancelledError:
            with self.session.driver.lock:
                if self.session.driver.scheduler.cancel(task):
                    self.counts[tenant].requests["cancelled"] += 1
            raise
        finally:
            self._calls.discard(call)
            served.in_progress -= 1

    def settings(self) -> dict[str, Any]:
        """Return the settings an operator can change: policy, phi, quantum_s; each tenant's weight and clock_mhz."""
        return settings(self.session)

    def change(self, changed: dict[str, Any]) -> dict[str, Any]:
        """Change any of the settings, all or nothing; returns all of them. Raises ``InputError``."""
        return change(self.session, self.worker, changed)

    def status(self) -> dict[str, Any]:
        """Return time, energy, shares and queues of every tenant, for the operator."""
        return _status(self.session, self.counts, self._failure)

    def measurements(self) -> Measurements:
        """Return the same for Prometheus."""
        return _measurements(self.session, self.counts)

    def _find(self, tenant: str, name: str) -> _Served:
        if name not in self._served[tenant]:
            raise UnknownModelError(f"unknown model {name!r}")
        return self._served[tenant][name]

    def _submit(
        self, spec: SharingTenant, loaded: LoadedTenant, inputs: dict[str, Tensor], call: InferenceCall
    ) -> Task:
        driver = self.session.driver
        request = DeviceRequest(loaded.model, loaded.powers, inputs, call.ended)
        with driver.lock:
            if self._failure is not None:
                raise UnavailableError(f"the device has failed: {self._failure}")
            tenant = driver.scheduler.tenants[spec.name]
            queue = min(range(spec.queues), key=lambda place: len(tenant.queues[place]))
            task = Task(tenant, queue, request, self.session.clock.now_ns())
            accepted = driver.scheduler.submit(task)
        if not accepted:
            self.counts[spec.name].requests["refused"] += 1
            weights = sum(other.weight for other in driver.scheduler.tenants.values())
            raise TooManyRequestsError(
                f"the queues of this tenant are full ({spec.queue_limit * spec.queues} requests)",
                loaded.powers.time_s * weights / tenant.weight,
            )
        self.worker.wake()
        return task

    def _gone(self, error: DeviceError) -> None:
        with self.session.driver.lock:
            self._failure = error
        self._refuse_all(f"the device has failed: {error}")

    def _refuse_all(self, why: str) -> None:
        for call in list(self._calls):
            if not call.answer.done():
                call.refuse(UnavailableError(why))


def _now_ready(served: _Served, loaded: LoadedTenant) -> None:
    served.state, served.reason = "ready", ""
    served.inputs, served.outputs = loaded.model.inputs, loaded.model.outputs


def _described(served: _Served) -> ModelDescription:
    path = served.spec.path or ""
    platform = "pytorch_pt2" if path.endswith(".pt2") else "onnxruntime_onnx"
    return ModelDescription(
        served.spec.name, platform, served.state == "ready", served.inputs, served.outputs, served.reason
    )


def _measurements(session: DeviceSession, counts: dict[str, RequestCounts]) -> Measurements:
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


def _guaranteed_shares(session: DeviceSession, tenants: list[TenantQueue]) -> list[float]:
    """Return the fraction of the time that the policy guarantees to each tenant while it has work."""
    if session.config.policy == "fifo":
        return [0.0] * len(tenants)
    whole = 10**9
    problem = QuantumProblem.make(whole, [t.weight for t in tenants], [t.power_w for t in tenants])
    sure = make(session.config.policy, session.config.phi).guarantee(problem)
    return [float(share) for share in np.asarray(sure) / whole]


def _status(session: DeviceSession, counts: dict[str, RequestCounts], failure: DeviceError | None) -> dict[str, Any]:
    """Return the same as a JSON document; unknown is null."""
    now = _measurements(session, counts)
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


def _power_source(session: DeviceSession) -> str:
    sources = {session.power_source(name) for name in session.tenants}
    return next(iter(sources)) if len(sources) == 1 else "modelled" if "modelled" in sources else "mixed"
