"""Clocks, and the loop that drives a controller by one until there is nothing left to do."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

from commonwatt.control.controller import Controller
from commonwatt.control.engine import Clock, JobSource
from commonwatt.engines.simulated.engine import SimulatedEngine
from commonwatt.model.errors import SolverError
from commonwatt.model.units import plural

__all__ = ["CanWait", "RealClock", "VirtualClock", "run"]


class VirtualClock:
    """The clock of a simulated engine."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine

    def now_s(self) -> float:
        """Current virtual time."""
        return self._engine.now_s

    def wait_until(self, time_s: float) -> None:
        """Jump to *time_s*, or to the first change before it."""
        self._engine.advance(time_s)


class CanWait(Protocol):
    """An engine that knows when it has something to report."""

    def wait(self, seconds: float) -> None:
        """Return after so long, or as soon as there is something to report."""
        ...


class RealClock:
    """The clock of an engine in real time: seconds since 1970-01-01 UTC."""

    def __init__(self, engine: CanWait) -> None:
        self._engine = engine

    def now_s(self) -> float:
        """Current time."""
        return time.time()

    def wait_until(self, time_s: float) -> None:
        """Return at *time_s*, or as soon as a job has ended."""
        self._engine.wait(max(0.0, time_s - time.time()))


# -- the loop


PATIENCE = 10_000


def run(
    controller: Controller, clock: Clock, source: JobSource, on_tick: Callable[[float], None] = lambda _: None,
    until_s: float = math.inf,
) -> float:  # fmt: skip
    """Tick at every submission, change and rescheduling point; returns the wall-clock seconds spent in ticks.

    Stops at *until_s*, whatever still runs or waits, and not before: until then nodes are on, or asleep by a plan.

    Raises ``SolverError`` if jobs wait, none runs, none will be submitted, and no tick starts any.
    """
    spent_s = 0.0
    stuck = 0
    ends = until_s < math.inf
    while True:
        upcoming_s = source.next_s()
        tick_s = controller.next_tick_s(more_to_come=ends or upcoming_s is not None)
        times = [t for t in (upcoming_s, tick_s) if t is not None]
        if not times or min(times) > until_s:
            while ends and clock.now_s() < until_s:
                clock.wait_until(until_s)
                controller.engine.poll()
            controller.close()
            return spent_s
        clock.wait_until(min(times))
        now_s = clock.now_s()
        arrived = source.poll(now_s)
        if arrived is not None:
            controller.submit(*arrived)
        began = perf_counter()
        controller.tick(now_s)
        spent_s += perf_counter() - began
        on_tick(now_s)
        idle = controller.registry.active and not controller.registry.nodes and source.next_s() is None
        stuck = stuck + 1 if idle and not controller.deferred else 0
        if stuck > PATIENCE:
            names = [controller.registry.names[h] for h in sorted(controller.registry.active)]
            msg = f"no tick starts {plural(len(names), 'job')} that can run; the first is {names[0]}"
            raise SolverError(msg)
