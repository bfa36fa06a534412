"""The thread that drives the device of a server, and the requests that the event loop hands to it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from commonwatt.devices.base import Tensor
from commonwatt.devices.batches import DeviceRequest
from commonwatt.devices.driver import Driver
from commonwatt.model.errors import DeviceError
from commonwatt.model.histogram import Histogram
from commonwatt.serving.backend import BackendError, UnavailableError
from commonwatt.serving.metrics import OUTCOMES, TokenCounts
from commonwatt.serving.triton_documents import ModelCounts
from commonwatt.timeslicing import Task

__all__ = ["InferenceCall", "RequestCounts", "Worker"]


@dataclass
class RequestCounts:
    """Outcomes and durations of a tenant's requests."""

    requests: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    latency: Histogram = field(default_factory=Histogram)
    tokens: TokenCounts = field(default_factory=TokenCounts)


class InferenceCall:
    """One request: a future of the event loop, set once from any thread."""

    def __init__(self, counts: RequestCounts, of_model: ModelCounts) -> None:
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[dict[str, Tensor]] = self._loop.create_future()
        self.answer.add_done_callback(_seen)
        self._counts, self._of_model = counts, of_model

    def ended(self, task: Task) -> None:
        """Set the result of *task*; called on the device's thread, without a lock."""
        request: DeviceRequest = task.work
        if request.outputs is not None and not task.cancelled:
            self._counts.requests["ok"] += 1
            self._counts.latency.observe((request.ended_ns - task.submitted_ns) * 1e-9)
            self._count_model(task, request)
            self._answer(request.outputs)
        elif task.cancelled:
            self._counts.requests["cancelled"] += 1
        elif isinstance(request.error, DeviceError):
            self._count_failure(request.ended_ns - task.submitted_ns)
            self._answer(UnavailableError(str(request.error)))
        else:
            self._count_failure(request.ended_ns - task.submitted_ns)
            self._answer(BackendError(f"the model failed: {request.error}"))

    def _count_model(self, task: Task, request: DeviceRequest) -> None:
        counts, began_ns = self._of_model, request.began_ns or task.submitted_ns
        counts.success.add(request.ended_ns - task.submitted_ns)
        counts.queue.add(began_ns - task.submitted_ns)
        counts.compute.add(request.ended_ns - began_ns)
        counts.rows += request.rows or 1
        counts.last_ms = round(time.time() * 1e3)

    def _count_failure(self, ns: int) -> None:
        self._counts.requests["failed"] += 1
        self._of_model.fail.add(ns)

    def done(self) -> bool:
        """Return whether it has been answered."""
        return self.answer.done()

    def refuse(self, error: BackendError) -> None:
        """Answer with *error* instead of computing, as a failure."""
        self._counts.requests["failed"] += 1
        self._answer(error)

    def decline(self, error: BackendError) -> None:
        """Answer with *error*, which has been counted, instead of computing."""
        self._answer(error)

    def _answer(self, result: dict[str, Tensor] | BackendError) -> None:
        try:
            self._loop.call_soon_threadsafe(self._set, result)
        except RuntimeError:  # the loop is closed: nobody waits
            return

    def _set(self, result: dict[str, Tensor] | BackendError) -> None:
        if self.answer.done():
            return
        if isinstance(result, BackendError):
            self.answer.set_exception(result)
        else:
            self.answer.set_result(result)


def _seen(answer: asyncio.Future[dict[str, Tensor]]) -> None:
    """Retrieve the error, as nobody may be waiting for it."""
    if not answer.cancelled():
        answer.exception()


T = TypeVar("T")

IDLE_S = 0.5
"""Longest time between two readings of the meter while there is no work."""


class Worker:
    """Runs *driver* on its own thread; *gone* is called there if the device fails."""

    def __init__(self, driver: Driver, gone: Callable[[DeviceError], None]) -> None:
        self._driver = driver
        self._gone = gone
        self._wake = threading.Event()
        self._ending = False
        self._errands: deque[Callable[[], None]] = deque()
        self._thread = threading.Thread(target=self._run, name="commonwatt-device", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._driver.restart()
        self._thread.start()

    def wake(self) -> None:
        """Wake the thread, as there is work."""
        self._wake.set()

    def ask(self, errand: Callable[[], T], timeout_s: float = 30.0) -> T:
        """Run *errand* between two steps; returns its result or raises its error."""
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(errand())
            except Exception as error:  # raised where the errand was asked for
                answer.set_exception(error)

        if not self._thread.is_alive():
            run()
        else:
            self._errands.append(run)
            self.wake()
        return answer.result(timeout_s)

    def end(self) -> None:
        """Finish the current step and end."""
        self._ending = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ending:
                while self._errands:
                    self._errands.popleft()()
                if not self._driver.step():
                    self._wake.wait(IDLE_S)
                    self._wake.clear()
                    self._driver.settle_if_due()
                if self._driver.gone is not None:
                    self._gone(self._driver.gone)
                    return
        except DeviceError as error:
            self._gone(error)
        except Exception as error:  # a defect: refuse the requests that wait for this thread
            logging.getLogger("commonwatt.serving").exception("a defect in the thread that drives the device")
            self._gone(DeviceError(f"{type(error).__name__}: {error}"))
        finally:
            while self._errands:
                self._errands.popleft()()
