"""The backend of ``timeslice serve``: tenants' models on one device, shared by the timeslicing scheduler."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

from commonwatt.devices.base import Tensor, TensorSpec
from commonwatt.devices.driver import Request
from commonwatt.devices.session import Loaded, Session
from commonwatt.model.errors import DeviceError, InputError
from commonwatt.model.timeslice_config import ServedModel, SharingTenant
from commonwatt.serving.backend import (
    BackendError,
    ModelDescription,
    NotReadyError,
    TooManyRequestsError,
    UnavailableError,
    UnknownModelError,
)
from commonwatt.serving.calls import Call, Counts
from commonwatt.serving.metrics import Measurements
from commonwatt.serving.settings import change, settings
from commonwatt.serving.status import measurements, status
from commonwatt.serving.worker import Worker
from commonwatt.timeslicing.tasks import Task

__all__ = ["SharingBackend"]


@dataclass
class _Served:
    """A model of a tenant, whether it is loaded or not."""

    spec: ServedModel
    state: Literal["absent", "loading", "ready", "unloading"] = "absent"
    reason: str = "it was not loaded"
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    under_way: int = 0


class SharingBackend:
    """A ``Backend`` over an open session; ``start`` before use, ``close`` in the end."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.counts = {name: Counts() for name in session.tenants}
        self.worker = Worker(session.driver, self._gone)
        self._calls: set[Call] = set()
        self._failure: DeviceError | None = None
        self._served: dict[str, dict[str, _Served]] = {}
        for tenant in session.config.tenants:
            self._served[tenant.name] = {spec.name: _Served(spec) for spec in tenant.models}
            for name, served in self._served[tenant.name].items():
                if (tenant.name, name) in session.loaded:
                    _now_ready(served, session.loaded[tenant.name, name])

    def start(self) -> None:
        """Begin to take requests."""
        self.worker.start()

    def close(self) -> None:
        """Stop computing; whoever still waits is refused."""
        self.worker.end()
        self._refuse_all("the server has stopped")
        self.session.close()

    def ready(self) -> bool:
        """Whether requests are taken: not once the device has failed."""
        return self._failure is None

    def models(self, tenant: str) -> tuple[ModelDescription, ...]:
        """Return the models of *tenant*, loaded or not."""
        return tuple(_described(served) for served in self._served[tenant].values())

    def model(self, tenant: str, name: str) -> ModelDescription:
        """Return one of them; raises ``UnknownModelError``."""
        return _described(self._find(tenant, name))

    async def load(self, tenant: str, name: str) -> None:
        """Load it; nothing happens if it is loaded. Raises ``BackendError`` if its file is not right."""
        served = self._find(tenant, name)
        if served.state == "ready":
            return
        if served.state != "absent":
            raise NotReadyError(f"model {name!r} is {served.state}")
        served.state, served.reason = "loading", "it is being loaded"
        try:
            loaded = await asyncio.to_thread(self.session.load, self.session.tenants[tenant], served.spec)
        except Exception as error:
            served.state, served.reason = "absent", "its file could not be loaded"
            if isinstance(error, InputError):
                raise BackendError(f"model {name!r} cannot be loaded: expected {error.expected}") from error
            raise
        _now_ready(served, loaded)

    async def unload(self, tenant: str, name: str) -> None:
        """Unload it once the requests under way are answered."""
        served = self._find(tenant, name)
        if served.state == "absent":
            return
        if served.state != "ready":
            raise NotReadyError(f"model {name!r} is {served.state}")
        served.state, served.reason = "unloading", "it is being unloaded"
        while served.under_way:
            await asyncio.sleep(0.005)
        await asyncio.to_thread(self.session.unload, tenant, name)
        served.state, served.reason = "absent", "it was unloaded"

    async def infer(self, tenant: str, name: str, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Run one inference; cancelling the awaiting task gives the request up."""
        served = self._find(tenant, name)
        if served.state != "ready":
            raise NotReadyError(f"model {name!r} is not loaded: {served.reason}")
        loaded = self.session.loaded[tenant, name]
        call = Call(self.counts[tenant])
        task = self._submit(self.session.tenants[tenant], loaded, inputs, call)
        self._calls.add(call)
        served.under_way += 1
        try:
            return await call.answer
        except asyncio.CancelledError:
            with self.session.driver.lock:
                if self.session.driver.scheduler.cancel(task):
                    self.counts[tenant].requests["cancelled"] += 1
            raise
        finally:
            self._calls.discard(call)
            served.under_way -= 1

    def settings(self) -> dict[str, Any]:
        """Return what may be changed while it runs: policy, phi, quantum_s; weight and clock_mhz of each tenant."""
        return settings(self.session)

    def change(self, changed: dict[str, Any]) -> dict[str, Any]:
        """Change settings (the same shape, any part of it); all or nothing. Raises ``InputError``."""
        return change(self.session, self.worker, changed)

    def status(self) -> dict[str, Any]:
        """Return time, energy, shares and queues of every tenant, for the operator."""
        return status(self.session, self.counts, self._failure)

    def measurements(self) -> Measurements:
        """Return the same as a snapshot for Prometheus."""
        return measurements(self.session, self.counts)

    def _find(self, tenant: str, name: str) -> _Served:
        if name not in self._served[tenant]:
            raise UnknownModelError(f"unknown model {name!r}")
        return self._served[tenant][name]

    def _submit(self, spec: SharingTenant, loaded: Loaded, inputs: dict[str, Tensor], call: Call) -> Task:
        driver = self.session.driver
        request = Request(loaded.model, loaded.powers, inputs, call.ended)
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
                f"{spec.queue_limit * spec.queues} requests of this tenant are waiting already",
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


def _now_ready(served: _Served, loaded: Loaded) -> None:
    served.state, served.reason = "ready", ""
    served.inputs, served.outputs = loaded.model.inputs, loaded.model.outputs


def _described(served: _Served) -> ModelDescription:
    path = served.spec.path or ""
    platform = "pytorch_pt2" if path.endswith(".pt2") else "onnxruntime_onnx"
    return ModelDescription(
        served.spec.name, platform, served.state == "ready", served.inputs, served.outputs, served.reason
    )
