"""How speed grows with threads: Amdahl's law, the Universal Scalability Law, or a measured table; chosen by fit.

All have ``speedup(n)``. Laws are compared by leave-one-out cross-validation: each thread count is predicted from the
others. A law with more parameters must predict clearly better. Two counts above one cannot tell laws apart: then
Amdahl's law is kept where it is within 5%, else the table.

The parallel fraction F of a program (thesis section 4.1.2) comes by three methods, each with how sure it is:

- Karp and Flatt (eq. 4.1) from the speedup on P processing elements.
- Counters (eq. 4.2, 4.3): cycles with exactly X threads at work, X = 1 .. P.
- Least squares over runs at several P.

A program whose F changes with P has no F: the misfit says how far the speedups predicted from it are off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError

__all__ = [
    "Amdahl",
    "Estimate",
    "Fitted",
    "ScalingLaw",
    "TabulatedLaw",
    "UniversalScalability",
    "bootstrap",
    "choose_law",
    "fit_all",
    "from_counters",
    "from_counters_of_runs",
    "from_karp_flatt",
    "karp_flatt",
    "least_squares",
]

CLEARLY = 0.9
"""Another law is preferred to a simpler one if its error is below this part of the simpler one's, and ..."""
MATTERS = 0.005
"""... lower by this much, so that no parameter is added to fit rounding or noise."""
GOOD = 0.05


class ScalingLaw(Protocol):
    """Speed on n threads relative to one."""

    @property
    def name(self) -> str:
        """``amdahl``, ``usl`` or ``table``."""

    @property
    def parameters(self) -> Mapping[str, float]:
        """What was fitted, by name."""

    def speedup(self, n: float) -> float:
        """Return the speed on *n* threads relative to one."""


@dataclass(frozen=True)
class Amdahl:
    """A part F of the work scales, the rest does not at all."""

    fraction: float
    name: str = "amdahl"

    @classmethod
    def fit(cls, threads: Floats, speedups: Floats) -> Amdahl:
        """Fit by least squares of relative run times."""
        return cls(least_squares(speedups, threads).fraction)

    @property
    def parameters(self) -> Mapping[str, float]:
        """F."""
        return {"parallel_fraction": self.fraction}

    def speedup(self, n: float) -> float:
        """Return ``n / (n (1 - F) + F)``."""
        return n / (n * (1.0 - self.fraction) + self.fraction)


@dataclass(frozen=True)
class UniversalScalability:
    """Contention sigma and coherence kappa: speed can fall again as threads are added (Gunther)."""

    contention: float
    coherence: float
    name: str = "usl"

    @classmethod
    def fit(cls, threads: Floats, speedups: Floats) -> UniversalScalability:
        """Fit by least squares of relative run times, both parameters 0 or more."""
        weight = speedups / threads
        columns = np.stack([weight * (threads - 1.0), weight * threads * (threads - 1.0)], axis=1)
        target = 1.0 - weight
        best, least = (0.0, 0.0), float(target @ target)
        for active in ((0,), (1,), (0, 1)):
            part = columns[:, active]
            coefficients = np.linalg.lstsq(part, target, rcond=None)[0]
            error = float(np.sum((target - part @ coefficients) ** 2))
            if (coefficients >= 0).all() and error < least - 1e-15:
                full = np.zeros(2)
                full[list(active)] = coefficients
                best, least = (float(full[0]), float(full[1])), error
        return cls(*best)

    @property
    def parameters(self) -> Mapping[str, float]:
        """Sigma and kappa."""
        return {"contention": self.contention, "coherence": self.coherence}

    def speedup(self, n: float) -> float:
        """Return ``n / (1 + sigma (n - 1) + kappa n (n - 1))``."""
        return n / (1.0 + self.contention * (n - 1.0) + self.coherence * n * (n - 1.0))


@dataclass(frozen=True)
class TabulatedLaw:
    """Measured speedups, interpolated over the logarithm of the threads; nothing is claimed outside their range."""

    threads: tuple[float, ...]
    speedups: tuple[float, ...]
    name: str = "table"

    @classmethod
    def fit(cls, threads: Floats, speedups: Floats) -> TabulatedLaw:
        """Keep what was measured, and that one thread has speedup 1."""
        order = np.argsort(threads)
        at = (1.0, *np.asarray(threads, dtype=float)[order].tolist())
        return cls(at, (1.0, *np.asarray(speedups, dtype=float)[order].tolist()))

    @property
    def parameters(self) -> Mapping[str, float]:
        """The range it knows."""
        return {"least_threads": self.threads[0], "most_threads": self.threads[-1]}

    def speedup(self, n: float) -> float:
        """Return the speedup between its neighbours; raises ``InputError`` outside the range measured."""
        if not self.threads[0] <= n <= self.threads[-1]:
            raise InputError(f"from {self.threads[0]:g} to {self.threads[-1]:g}, as measured", field="threads", value=n)
        return float(np.interp(np.log(n), np.log(self.threads), self.speedups))


@dataclass(frozen=True)
class Fitted:
    """A law fitted, and how good it is.

    Attributes
    ----------
    misfit
        Root mean square relative error of the speedups it was fitted to.
    left_out
        The same for each thread count predicted from the others; ``None`` with fewer than three above one.
    """

    law: ScalingLaw
    misfit: float
    left_out: float | None


_LAWS: tuple[type[Amdahl] | type[UniversalScalability] | type[TabulatedLaw], ...] = (
    Amdahl,
    UniversalScalability,
    TabulatedLaw,
)


def fit_all(threads: Sequence[float], speedups: Sequence[float]) -> tuple[Fitted, ...]:
    """Fit every law to speedups at thread counts above one; simplest law first. Raises ``InputError``."""
    n, s = np.asarray(threads, dtype=float), np.asarray(speedups, dtype=float)
    if len(set(n.tolist())) != len(n):
        raise InputError("each number of threads once", field="threads", value=n.tolist())
    least_squares(s, n)  # checks them
    return tuple(_fitted(kind, n, s) for kind in _LAWS)


def _fitted(kind: type[Amdahl] | type[UniversalScalability] | type[TabulatedLaw], n: Floats, s: Floats) -> Fitted:
    law = kind.fit(n, s)
    if len(n) < 3:
        return Fitted(law, _misfit(law, n, s), None)
    errors = []
    for left in range(len(n)):
        rest = np.arange(len(n)) != left
        errors.append(_predicted(kind.fit(n[rest], s[rest]), float(n[left])) / s[left] - 1.0)
    return Fitted(law, _misfit(law, n, s), float(np.sqrt(np.mean(np.square(errors)))))


def _predicted(law: ScalingLaw, n: float) -> float:
    """A table does not go beyond its last count: there it stays as it is."""
    return law.speedup(min(n, law.threads[-1]) if isinstance(law, TabulatedLaw) else n)


def _misfit(law: ScalingLaw, n: Floats, s: Floats) -> float:
    relative = np.array([law.speedup(float(x)) for x in n]) / s - 1.0
    return float(np.sqrt(np.mean(relative**2)))


def choose_law(fits: Sequence[Fitted]) -> tuple[Fitted, str]:
    """Return the law to use, and why in one sentence."""
    by_name = {fit.law.name: fit for fit in fits}
    simplest = by_name["amdahl"]
    if simplest.left_out is None:
        if simplest.misfit <= GOOD:
            return (
                simplest,
                f"Amdahl's law is off by {simplest.misfit:.1%}; there are too few counts to tell laws apart.",
            )
        return by_name["table"], (
            f"One parallel fraction is off by {simplest.misfit:.1%}, and there are too few counts to fit another law."
        )
    best = simplest
    for fit in fits:
        if fit.left_out is None or best.left_out is None:
            continue
        if fit.left_out < min(CLEARLY * best.left_out, best.left_out - MATTERS):
            best = fit
    others = ", ".join(f"{fit.law.name} {fit.left_out:.1%}" for fit in fits if fit is not best)
    return best, f"Predicting each count from the others, {best.law.name} is off by {best.left_out:.1%} ({others})."


# -- the parallel fraction of a program


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
    fractions = np.empty(draws)
    for draw in range(draws):
        medians = [float(np.median(rng.choice(repeats, len(repeats)))) for repeats in runs]
        fractions[draw] = least_squares(medians[0] / np.array(medians[1:]), counts).fraction
    return float(fractions.std(ddof=1))


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
