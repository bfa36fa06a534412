"""The backend of ``timeslice serve``: tenants' models on one device, shared by the timeslicing scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from commonwatt.devices.base import Tensor, TensorSpec
from commonwatt.devices.language.base import LanguageModel
from commonwatt.devices.language.generation import Generation
from commonwatt.devices.session import DeviceSession, LoadedTenant
from commonwatt.model.errors import DeviceError, InputError
from commonwatt.model.timeslice_file import ServedModel
from commonwatt.serving.backend import (
    BackendError,
    ModelDescription,
    NotReadyError,
    TextRequest,
    UnavailableError,
    UnknownModelError,
)
from commonwatt.serving.generating import GenerationCall, TextAnswer, ordered
from commonwatt.serving.metrics import Measurements
from commonwatt.serving.operation import change, measurements, settings, status
from commonwatt.serving.submission import Submissions
from commonwatt.serving.triton_documents import ModelCounts, ModelSettings
from commonwatt.serving.worker import InferenceCall, RequestCounts, Worker

__all__ = ["SharingBackend"]


@dataclass
class _Served:
    """A model of a tenant, loaded or not."""

    spec: ServedModel
    state: Literal["absent", "loading", "ready", "unloading"] = "absent"
    reason: str = "not loaded at start"
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    in_progress: int = 0
    counts: ModelCounts = field(default_factory=ModelCounts)


class SharingBackend:
    """A ``Backend`` over an open session; call ``start`` before use and ``close`` at the end."""

    def __init__(self, session: DeviceSession) -> None:
        self.session = session
        self.counts = {name: RequestCounts() for name in session.tenants}
        self.worker = Worker(session.driver, self._gone)
        self.submissions = Submissions(session, self.counts, self.worker.wake)
        self._calls: set[InferenceCall | GenerationCall] = set()
        self._begun: set[asyncio.Task[None]] = set()
        self._served: dict[str, dict[str, _Served]] = {}  # by tenant and key
        self._versions: dict[tuple[str, str], list[_Served]] = {}  # by tenant and name
        for tenant in session.config.tenants:
            self._served[tenant.name] = {spec.key: _Served(spec) for spec in tenant.models}
            for name, served in self._served[tenant.name].items():
                if (tenant.name, name) in session.loaded:
                    session.batch_requests(tenant.name, name)
                    _now_ready(served, session.loaded[tenant.name, name])
            for served in sorted(self._served[tenant.name].values(), key=lambda one: one.spec.version):
                self._versions.setdefault((tenant.name, served.spec.name), []).append(served)

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
        return self.submissions.failure is None

    def models(self, tenant: str) -> tuple[ModelDescription, ...]:
        """Return the models of *tenant*, loaded or not."""
        return tuple(_described(served) for served in self._served[tenant].values())

    def versions(self, tenant: str, name: str) -> tuple[ModelDescription, ...]:
        """Return the versions of a model of *tenant*, loaded or not, the highest last; empty: it has no such model."""
        return tuple(_described(served) for served in self._versions.get((tenant, name), ()))

    def model_settings(self, tenant: str, name: str) -> ModelSettings:
        """Return how requests to a loaded model are divided and put together."""
        loaded = self.session.loaded.get((tenant, name))
        batching = None if loaded is None else loaded.batching
        if batching is None or not batching.plan.divisible:
            return ModelSettings()
        together = self._find(tenant, name).spec.dynamic_batching
        return ModelSettings(
            batching.plan.stated_rows,
            None if together is None else batching.plan.worthwhile_rows(),
            0 if together is None else together.max_queue_delay_microseconds,
        )

    def model_counts(self, tenant: str, name: str) -> ModelCounts:
        """Return what a model has done for its tenant."""
        served = self._find(tenant, name)
        return replace(served.counts, batches=self.session.batches_run(tenant, name))

    async def load(self, tenant: str, name: str) -> None:
        """Load a model unless it is loaded. Raises ``BackendError`` if its file cannot be loaded.

        What was begun goes on if the awaiting task is cancelled.
        """
        await self._to_its_end(self._load_it(tenant, name))

    async def unload(self, tenant: str, name: str) -> None:
        """Unload a model after its requests in progress are answered; that goes on if the task is cancelled."""
        await self._to_its_end(self._unload_it(tenant, name))

    async def _to_its_end(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody waits for it
            raise

    async def _load_it(self, tenant: str, name: str) -> None:
        served = self._find(tenant, name)
        if served.state == "ready":
            return
        if served.state != "absent":
            raise NotReadyError(f"model {name!r} is {served.state}")
        served.state, served.reason = "loading", "loading"
        try:
            loaded = await asyncio.to_thread(self._load, tenant, served.spec)
        except Exception as error:
            served.state, served.reason = "absent", "its file could not be loaded"
            if isinstance(error, InputError):
                raise BackendError(f"model {name!r} cannot be loaded: expected {error.expected}") from error
            raise
        _now_ready(served, loaded)

    async def _unload_it(self, tenant: str, name: str) -> None:
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
        if served.spec.language is not None:
            raise BackendError(f"model {name!r} generates text, and computes no tensors: use /v1/completions")
        call = InferenceCall(self.counts[tenant], served.counts)
        submission = self.submissions.submit(self.session.tenants[tenant], served.spec, inputs, call)
        self._calls.add(call)
        served.in_progress += 1
        try:
            return await call.answer
        except asyncio.CancelledError:
            if self.submissions.cancel(submission):
                self.counts[tenant].requests["cancelled"] += 1
            raise
        finally:
            self._calls.discard(call)
            served.in_progress -= 1

    async def generate(self, tenant: str, name: str, request: TextRequest) -> TextAnswer:
        """Queue a request for text. Raises ``BackendError`` for a model that generates none, or one too long for it."""
        served = self._find(tenant, name)
        if served.state != "ready":
            raise NotReadyError(f"model {name!r} is not ready: {served.reason}")
        loaded = self.session.loaded[tenant, name]
        if not isinstance(loaded.model, LanguageModel) or loaded.language is None:
            raise BackendError(f"model {name!r} computes tensors, and generates no text: use /v2/models/{name}/infer")
        model, plan = loaded.model, loaded.language
        served.in_progress += 1
        try:
            order = await asyncio.to_thread(ordered, request, model.coder, plan)
            call = GenerationCall(self.counts[tenant], served.counts)
            work = Generation(model, plan, order, call.pass_on, call.ended)
            submission = self.submissions.submit_text(self.session.tenants[tenant], loaded, work, call)
        except BaseException:
            served.in_progress -= 1
            raise
        self._calls.add(call)

        def over() -> None:
            self._calls.discard(call)
            served.in_progress -= 1
            if not call.done() and self.submissions.cancel(submission):
                self.counts[tenant].requests["cancelled"] += 1

        return TextAnswer(work, call, over)

    def settings(self) -> dict[str, Any]:
        """Return the settings an operator can change: policy, phi, quantum_s; each tenant's weight and clock_mhz."""
        return settings(self.session)

    def change(self, changed: dict[str, Any]) -> dict[str, Any]:
        """Change any of the settings, all or nothing; returns all of them. Raises ``InputError``."""
        return change(self.session, self.worker, changed)

    def status(self) -> dict[str, Any]:
        """Return time, energy, shares and queues of every tenant, for the operator."""
        return status(self.session, self.counts, self.submissions.failure)

    def measurements(self) -> Measurements:
        """Return the same for Prometheus."""
        return measurements(self.session, self.counts)

    def _find(self, tenant: str, name: str) -> _Served:
        if name not in self._served[tenant]:
            raise UnknownModelError(f"unknown model {name!r}")
        return self._served[tenant][name]

    def _load(self, tenant: str, spec: ServedModel) -> LoadedTenant:
        loaded = self.session.load(self.session.tenants[tenant], spec)
        self.session.batch_requests(tenant, spec.key)
        return loaded

    def _gone(self, error: DeviceError) -> None:
        with self.session.driver.lock:
            self.submissions.failure = error
        self._refuse_all(f"the device has failed: {error}")

    def _refuse_all(self, why: str) -> None:
        for call in list(self._calls):
            if not call.done():
                call.refuse(UnavailableError(why))


def _now_ready(served: _Served, loaded: LoadedTenant) -> None:
    served.state, served.reason = "ready", ""
    served.inputs, served.outputs = loaded.model.inputs, loaded.model.outputs


def _described(served: _Served) -> ModelDescription:
    path = served.spec.path or ""
    platform = "pytorch_pt2" if path.endswith(".pt2") else "onnxruntime_onnx"
    if served.spec.language is not None:
        platform = "language"
    return ModelDescription(
        served.spec.name,
        platform,
        served.state == "ready",
        served.inputs,
        served.outputs,
        served.reason,
        served.spec.version,
    )
