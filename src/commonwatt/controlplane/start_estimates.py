"""Estimates when waiting jobs will start and end.

A simple projection, not a promise: waiting jobs take turns in the order of their pressure (due date minus shortest run
time), each in the configuration in which it would end first, GPUs counted over all nodes of a class. In a class, no job
starts before one whose turn came earlier.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LONGEST", "Waiting", "expected_times"]

LONGEST = 2_000
"""Waiting jobs that get an estimate; those behind them get none."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiting job, and its configurations: class, GPUs over all nodes, seconds."""

    handle: int
    pressure: float
    ways: Sequence[tuple[int, int, float]]


def expected_times(
    now_s: float, free_gpus: Sequence[int], ends: Sequence[tuple[float, int, int]], waiting: Sequence[Waiting]
) -> dict[int, tuple[float, float]]:
    """Return when jobs start and end, by handle.

    Parameters
    ----------
    free_gpus
        Free GPUs of each class. Shape [K].
    ends
        When running jobs end: time, class, GPUs.
    waiting
        The jobs that wait.
    """
    releases: list[list[tuple[float, int]]] = [[] for _ in free_gpus]  # latest first
    for time_s, klass, gpus in ends:
        releases[klass].append((max(now_s, time_s), gpus))
    for own in releases:
        own.sort(key=_latest_first)
    free, estimates = list(free_gpus), {}
    begins = [now_s] * len(free)  # before which no job starts in a class: jobs there take turns
    for job in sorted(waiting, key=lambda w: (w.pressure, w.handle))[:LONGEST]:
        best: tuple[float, float, int, int] | None = None
        for klass, gpus, seconds in job.ways:
            begin_s = _earliest(begins[klass], free[klass], releases[klass], gpus)
            if begin_s is not None and (best is None or begin_s + seconds < best[0]):
                best = (begin_s + seconds, begin_s, klass, gpus)
        if best is None:
            continue
        end_s, begin_s, klass, gpus = best
        while releases[klass] and free[klass] < gpus:
            free[klass] += releases[klass].pop()[1]
        free[klass] -= gpus
        begins[klass] = max(begins[klass], begin_s)
        insort(releases[klass], (end_s, gpus), key=_latest_first)
        estimates[job.handle] = (begin_s, end_s)
    return estimates


def _latest_first(release: tuple[float, int]) -> float:
    return -release[0]


def _earliest(from_s: float, free: int, releases: list[tuple[float, int]], gpus: int) -> float | None:
    """When *gpus* are free; ``None`` if never."""
    if free >= gpus:
        return from_s
    for release_s, released in reversed(releases):
        free += released
        if free >= gpus:
            return max(from_s, release_s)
    return None
