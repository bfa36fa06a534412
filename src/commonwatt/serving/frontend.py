"""Shared by REST and gRPC: authentication, lookup of models, running requests, and draining."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from commonwatt import __version__
from commonwatt.serving.backend import (
    Backend,
    BackendError,
    ModelDescription,
    NotReadyError,
    UnavailableError,
    UnknownModelError,
)
from commonwatt.serving.keys import Keys
from commonwatt.serving.rejections import BoundedLog, GoneError, Refusal, UnauthenticatedError
from commonwatt.serving.tensors import shown_name
from commonwatt.serving.triton_documents import model_config, model_stats

__all__ = ["EXTENSIONS", "NAME", "VERSION", "Front"]

NAME = "commonwatt"
VERSION = "1"  # of a model with one
EXTENSIONS = ("binary_tensor_data", "model_configuration", "model_repository", "statistics")

T = TypeVar("T")


class Front:
    """A backend, the keys that open it, and the requests in progress."""

    def __init__(self, backend: Backend, keys: Keys) -> None:
        self.backend, self.keys = backend, keys
        self._refusals = BoundedLog(logging.getLogger("commonwatt.serving"))
        self._failures = BoundedLog(logging.getLogger("commonwatt.serving"))
        self._stopping = self._expired = False
        self._accepted = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._in_progress: set[asyncio.Task[Any]] = set()

    def ready(self) -> bool:
        """Return whether requests are accepted."""
        return not self._stopping and self.backend.ready()

    def stopping(self) -> bool:
        """Return whether the server is stopping."""
        return self._stopping

    def server(self) -> dict[str, Any]:
        """Return the metadata of the server."""
        return {"name": NAME, "version": __version__, "extensions": list(EXTENSIONS)}

    def tenant(self, key: str | None) -> str:
        """Return the tenant of *key*; raises ``UnauthenticatedError``."""
        tenant = self.keys.tenant_of(key)
        if tenant is None:
            got = "an unknown key" if key else "no key"
            raise UnauthenticatedError(f"got {got}, expected Authorization: Bearer KEY or X-API-Key: KEY")
        return tenant

    def model(self, tenant: str, name: str, version: str = "") -> ModelDescription:
        """Return a model of *tenant*; without *version*, the highest that is ready, or the highest.

        Another tenant's model raises ``UnknownModelError`` as a missing one does.
        """
        versions = self.versions(tenant, name)
        if not version:
            return next((model for model in reversed(versions) if model.ready), versions[-1])
        for model in versions:
            if str(model.version) == version:
                return model
        choices = ", ".join(str(model.version) for model in versions)
        raise UnknownModelError(f"model {shown_name(name)} has no version {shown_name(version)}, only {choices}")

    def versions(self, tenant: str, name: str) -> tuple[ModelDescription, ...]:
        """Return the versions of a model of *tenant*, the highest last; raises ``UnknownModelError`` without any."""
        versions = self.backend.versions(tenant, name)
        if not versions:
            raise UnknownModelError(f"unknown model {shown_name(name)}")
        return versions

    def metadata(self, tenant: str, name: str, version: str = "") -> tuple[ModelDescription, list[str]]:
        """Return a model, and the names of its versions; raises ``UnknownModelError``."""
        return self.model(tenant, name, version), [str(model.version) for model in self.versions(tenant, name)]

    async def load(self, tenant: str, name: str) -> None:
        """Load all versions of a model; raises the error of the first that cannot be, after all were tried."""
        await self._each(self.versions(tenant, name), lambda model: self.backend.load(tenant, model.key))

    async def unload(self, tenant: str, name: str) -> None:
        """Unload all versions of a model after their requests in progress are answered."""
        await self._each(self.versions(tenant, name), lambda model: self.backend.unload(tenant, model.key))

    async def _each(
        self, models: tuple[ModelDescription, ...], work: Callable[[ModelDescription], Coroutine[Any, Any, None]]
    ) -> None:
        errors = []
        for model in models:
            try:
                await work(model)
            except BackendError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def ready_model(self, tenant: str, name: str, version: str = "") -> ModelDescription:
        """Return a model that accepts requests; raises ``NotReadyError`` for one that is not loaded."""
        model = self.model(tenant, name, version)
        if not model.ready:
            why = f": {model.reason}" if model.reason else ""
            raise NotReadyError(f"model {shown_name(model.key)} is not ready{why}")
        return model

    def model_config(self, tenant: str, name: str, version: str = "") -> dict[str, Any]:
        """Return the configuration of a loaded model as Triton's tools read it."""
        model = self.ready_model(tenant, name, version)
        settings = self.backend.model_settings(tenant, model.key)
        served = tuple(other.version for other in self.versions(tenant, name))
        return model_config(model.name, model.platform, model.inputs, model.outputs, settings, served)

    def model_stats(self, tenant: str, name: str = "", version: str = "") -> dict[str, Any]:
        """Return the statistics of models as Triton's tools read them.

        Without a version of all versions, without a name of all models of *tenant*.
        """
        models = self.versions(tenant, name) if name and not version else self.backend.models(tenant)
        if version:
            models = (self.model(tenant, name, version),)
        rows = [model_stats(one.name, str(one.version), self.backend.model_counts(tenant, one.key)) for one in models]
        return {"model_stats": rows}

    @contextmanager
    def accepted(self) -> Iterator[None]:
        """Accept a request; a stopping server waits for the end of the block."""
        if self._stopping:
            raise UnavailableError("the server is stopping")
        self._accepted += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._accepted -= 1
            if not self._accepted:
                self._idle.set()

    async def run(self, work: Coroutine[Any, Any, T], gone: Coroutine[Any, Any, None] | None = None) -> T:
        """Run *work*, unless the server must stop (``UnavailableError``) or *gone* ends first (``GoneError``)."""
        task = asyncio.create_task(work)
        self._in_progress.add(task)
        task.add_done_callback(self._forget)
        if self._expired:
            task.cancel()
        watch = None if gone is None else asyncio.create_task(gone)
        try:
            await asyncio.wait({task} if watch is None else {task, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise GoneError
            if task.cancelled() and self._expired:
                raise UnavailableError("the server stopped before this request was answered")
            return task.result()
        finally:
            task.cancel()
            if watch is not None:
                watch.cancel()

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._in_progress.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, even if nobody waits for it

    async def drain(self, longest_s: float, at_once: asyncio.Event) -> None:
        """Accept no more requests; wait for those accepted, then refuse the rest."""
        self._stopping = True
        waits = [asyncio.create_task(self._idle.wait()), asyncio.create_task(at_once.wait())]
        await asyncio.wait(waits, timeout=longest_s, return_when=asyncio.FIRST_COMPLETED)
        self._expired = True
        for task in list(self._in_progress):
            task.cancel()
        waits[1].cancel()
        await asyncio.wait(waits, timeout=1.0)  # until they are answered
        waits[0].cancel()

    def log(self, refusal: Refusal, error: Exception, what: str) -> None:
        """Log that *what* was refused, at a bounded rate."""
        if refusal.unexpected:
            self._failures.warning(f"{what}: unexpected {type(error).__name__}", error)
        else:
            self._refusals.warning(f"{what}: refused with {refusal.status}: {refusal.text!a}")
