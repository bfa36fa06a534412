"""The parallel fraction F of a program (thesis section 4.1.2), by three methods, each with how sure it is.

- Karp and Flatt (eq. 4.1) from the speedup on P processing elements.
- Counters (eq. 4.2, 4.3): cycles with exactly X threads at work, X = 1 .. P.
- Least squares over runs at several P.

A program whose F changes with P has no F: the misfit says how far the speedups predicted from it are off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError

__all__ = [
    "Estimate",
    "bootstrap",
    "from_counters",
    "from_counters_of_runs",
    "from_karp_flatt",
    "karp_flatt",
    "least_squares",
]


@dataclass(frozen=True)
class Estimate:
    """An estimate of F.

    Attributes
    ----------
    method
        ``karp-flatt``, ``counters`` or ``least-squares``.
    fraction
        F, within [0, 1].
    standard_error
        Of F; ``None`` where one run cannot tell.
    misfit
        Root mean square relative error of predicted speedups; ``None`` where there is nothing to compare with.
    clipped
        Whether the formula gave a value outside [0, 1]: slower with more threads, or faster than ideal.
    """

    method: str
    fraction: float
    standard_error: float | None
    misfit: float | None
    clipped: bool


def amdahl(fraction: float, threads: Floats) -> Floats:
    """Return Amdahl's speedup. Shape [M]."""
    return threads / (threads * (1.0 - fraction) + fraction)


def karp_flatt(speedups: Floats, threads: Floats) -> Floats:
    """Return F of each run by eq. 4.1, not clipped. Shape [M]. Raises ``InputError``."""
    speedups, threads = np.asarray(speedups, dtype=float), np.asarray(threads, dtype=float)
    _check(speedups, threads)
    return (1.0 - 1.0 / speedups) / (1.0 - 1.0 / threads)


def from_karp_flatt(speedups: Floats, threads: Floats) -> Estimate:
    """Return the mean of eq. 4.1 over runs, and its standard error over them."""
    each = karp_flatt(speedups, threads)
    error = float(each.std(ddof=1) / np.sqrt(len(each))) if len(each) > 1 else None
    return _estimate("karp-flatt", float(each.mean()), error, speedups, threads)


def least_squares(speedups: Floats, threads: Floats) -> Estimate:
    """Return the F with the least squared relative errors in run time, and its standard error.

    The run time relative to one thread is ``1 - F (1 - 1/P)``, linear in F.
    """
    speedups, threads = np.asarray(speedups, dtype=float), np.asarray(threads, dtype=float)
    _check(speedups, threads)
    slopes = speedups * (1.0 - 1.0 / threads)
    fraction = float(slopes @ (speedups - 1.0) / (slopes @ slopes))
    rest = speedups - 1.0 - fraction * slopes
    error = float(np.sqrt(rest @ rest / (len(rest) - 1) / (slopes @ slopes))) if len(rest) > 1 else None
    return _estimate("least-squares", fraction, error, speedups, threads)


def from_counters(cycles: Sequence[float], speedup: float | None = None) -> Estimate:
    """Return F from cycles with exactly 1, 2, .. P threads at work (eq. 4.2 and 4.3).

    The total of active cycles is their sum. With a measured *speedup* on P the misfit is known. The standard error is
    that of sampling the cycles one by one, a lower bound, as neighbouring cycles are alike.

    Raises ``InputError`` for fewer than two counters, negative ones or none above 0.
    """
    counts = np.asarray(cycles, dtype=float)
    p = len(counts)
    if p < 2 or not (counts >= 0).all() or not np.isfinite(counts).all() or not counts.sum() > 0:
        raise InputError(
            "cycles with 1, 2, .. threads at work, 0 or more, not all 0", field="counters", value=list(cycles)
        )
    parts = counts / counts.sum()
    slow = 1.0 / np.arange(1, p + 1)
    mean = float(parts @ slow)
    spread = float(np.sqrt(max(0.0, parts @ slow**2 - mean**2) / counts.sum()))
    scale = p / (p - 1)
    misfit = None
    fraction = scale * (1.0 - mean)
    if speedup is not None:
        misfit = abs(float(amdahl(fraction, np.array([float(p)]))[0]) / speedup - 1.0)
    return Estimate("counters", float(np.clip(fraction, 0.0, 1.0)), scale * spread, misfit, clipped=False)


def from_counters_of_runs(runs: Sequence[Sequence[float]], speedup: float | None = None) -> Estimate:
    """Return the mean of ``from_counters`` over *runs*, with its standard error over them where there are several."""
    if not runs:
        raise InputError("counters of at least one run", field="counters", value=[])
    each = [from_counters(cycles, speedup) for cycles in runs]
    if len(each) == 1:
        return each[0]
    fractions = np.array([one.fraction for one in each])
    mean, error = float(fractions.mean()), float(fractions.std(ddof=1) / np.sqrt(len(each)))
    misfit = None
    if speedup is not None:
        misfit = abs(float(amdahl(mean, np.array([float(len(runs[0]))]))[0]) / speedup - 1.0)
    return Estimate("counters", mean, error, misfit, clipped=False)


def bootstrap(
    times: Sequence[Sequence[float]], threads: Sequence[int], rng: np.random.Generator, draws: int = 400
) -> float:
    """Return the standard deviation of the least-squares F when repeated runs are drawn again.

    *times* are the repeats at each of *threads*, the first being one thread.
    """
    runs = [np.asarray(repeats, dtype=float) for repeats in times]
    if len(runs) < 2 or threads[0] != 1:
        raise InputError("repeats at one thread first, then at more", field="threads", value=list(threads))
    counts = np.array(threads[1:], dtype=float)
    found = np.empty(draws)
    for draw in range(draws):
        medians = [float(np.median(rng.choice(repeats, len(repeats)))) for repeats in runs]
        found[draw] = least_squares(medians[0] / np.array(medians[1:]), counts).fraction
    return float(found.std(ddof=1))


def _check(speedups: Floats, threads: Floats) -> None:
    if len(speedups) == 0 or len(speedups) != len(threads):
        raise InputError("a speedup for each number of threads", field="speedups", value=len(speedups))
    for value in speedups:
        if not (value > 0 and np.isfinite(value)):
            raise InputError("a number above 0", field="speedup", value=value)
    for value in threads:
        if not (value > 1 and np.isfinite(value)):
            raise InputError("more than one thread", field="threads", value=value)


def _estimate(method: str, value: float, error: float | None, speedups: Floats, threads: Floats) -> Estimate:
    fraction = float(np.clip(value, 0.0, 1.0))
    relative = amdahl(fraction, np.asarray(threads, dtype=float)) / np.asarray(speedups, dtype=float) - 1.0
    clipped = not -1e-12 <= value <= 1 + 1e-12
    return Estimate(method, fraction, error, float(np.sqrt(np.mean(relative**2))), clipped)
