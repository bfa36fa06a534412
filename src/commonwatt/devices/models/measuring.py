"""How long every step of a loaded model takes: the median over a few inferences on example inputs."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter

from commonwatt.devices.base import Execution

__all__ = ["measure_steps"]


def measure_steps(
    begin: Callable[[], Execution], steps: int, *, budget_s: float = 1.0, runs: int = 15
) -> tuple[float, ...]:
    """Return the median time of each of *steps*, of at most *runs* inferences after one to warm up.

    No inference is begun once *budget_s* is used up, but one is always measured.
    """
    started = perf_counter()
    _run(begin(), steps)
    times = [_run(begin(), steps)]
    while len(times) < runs and perf_counter() - started < budget_s:
        times.append(_run(begin(), steps))
    return tuple(statistics.median(step) for step in zip(*times, strict=True))


def _run(execution: Execution, steps: int) -> list[float]:
    times = []
    for _ in range(steps):
        before = perf_counter()
        execution.step()
        times.append(perf_counter() - before)
    execution.outputs()
    return times
