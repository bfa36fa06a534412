"""Requests under way: from the loop that serves to the thread that computes, and back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from commonwatt.devices.base import Tensor
from commonwatt.devices.driver import Request
from commonwatt.model.errors import DeviceError
from commonwatt.model.histogram import Histogram
from commonwatt.serving.backend import BackendError, UnavailableError
from commonwatt.serving.metrics import OUTCOMES
from commonwatt.timeslicing.tasks import Task

__all__ = ["Call", "Counts"]


@dataclass
class Counts:
    """How requests of a tenant ended."""

    requests: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    latency: Histogram = field(default_factory=Histogram)


class Call:
    """One request: an answer to wait for on the loop, settled from any thread, once."""

    def __init__(self, counts: Counts) -> None:
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[dict[str, Tensor]] = self._loop.create_future()
        self.answer.add_done_callback(_seen)
        self._counts = counts

    def ended(self, task: Task) -> None:
        """Hear from the device's thread that *task* has ended; under no lock."""
        request: Request = task.work
        if request.outputs is not None and not task.cancelled:
            self._counts.requests["ok"] += 1
            self._counts.latency.observe((request.ended_ns - task.submitted_ns) * 1e-9)
            self._tell(request.outputs)
        elif task.cancelled:
            self._counts.requests["cancelled"] += 1
        elif isinstance(request.error, DeviceError):
            self._counts.requests["failed"] += 1
            self._tell(UnavailableError(str(request.error)))
        else:
            self._counts.requests["failed"] += 1
            self._tell(BackendError(f"the model failed: {request.error}"))

    def refuse(self, error: BackendError) -> None:
        """Answer with *error* what will not be computed."""
        self._counts.requests["failed"] += 1
        self._tell(error)

    def _tell(self, result: dict[str, Tensor] | BackendError) -> None:
        try:
            self._loop.call_soon_threadsafe(self._set, result)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return

    def _set(self, result: dict[str, Tensor] | BackendError) -> None:
        if self.answer.done():
            return
        if isinstance(result, BackendError):
            self.answer.set_exception(result)
        else:
            self.answer.set_result(result)


def _seen(answer: asyncio.Future[dict[str, Tensor]]) -> None:
    """Look at an error that nobody may be waiting for any more."""
    if not answer.cancelled():
        answer.exception()
