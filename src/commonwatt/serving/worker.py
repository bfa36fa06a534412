"""The thread that drives a device while a server runs: it waits where there is no work, and ends when it is told to."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from commonwatt.devices.driver import Driver
from commonwatt.model.errors import DeviceError

__all__ = ["Worker"]

T = TypeVar("T")

IDLE_S = 0.5
"""Longest time between two looks at the meter while there is no work."""


class Worker:
    """Drives *driver* on a thread of its own; *gone* is called there if the device fails for good."""

    def __init__(self, driver: Driver, gone: Callable[[DeviceError], None]) -> None:
        self._driver = driver
        self._gone = gone
        self._wake = threading.Event()
        self._ending = False
        self._errands: deque[Callable[[], None]] = deque()
        self._thread = threading.Thread(target=self._run, name="commonwatt-device", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._driver.restart()
        self._thread.start()

    def wake(self) -> None:
        """Say that there is work."""
        self._wake.set()

    def ask(self, errand: Callable[[], T], timeout_s: float = 30.0) -> T:
        """Run *errand* between two steps, and return what it returns or raise what it raises."""
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(errand())
            except Exception as error:  # told to whoever asked
                answer.set_exception(error)

        if not self._thread.is_alive():
            run()
        else:
            self._errands.append(run)
            self.wake()
        return answer.result(timeout_s)

    def end(self) -> None:
        """Finish the step under way and end."""
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
        except Exception as error:  # a defect; nobody must wait for a thread that has ended
            logging.getLogger("commonwatt.serving").exception("a defect in the thread that drives the device")
            self._gone(DeviceError(f"{type(error).__name__}: {error}"))
        finally:
            while self._errands:
                self._errands.popleft()()
