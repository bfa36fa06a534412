"""How speed grows with threads: Amdahl's law, the Universal Scalability Law, or a measured table; chosen by fit.

All have ``speedup(n)``. Laws are compared by leave-one-out cross-validation: each thread count is predicted from the
others. A law with more parameters must predict clearly better. Two counts above one cannot tell laws apart: then
Amdahl's law is kept where it is within 5%, else the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError
from commonwatt.partitioning._parallel_fraction import least_squares

__all__ = ["Amdahl", "Fitted", "ScalingLaw", "TabulatedLaw", "UniversalScalability", "choose", "fit_all"]

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
            found = np.linalg.lstsq(part, target, rcond=None)[0]
            error = float(np.sum((target - part @ found) ** 2))
            if (found >= 0).all() and error < least - 1e-15:
                full = np.zeros(2)
                full[list(active)] = found
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


def choose(fits: Sequence[Fitted]) -> tuple[Fitted, str]:
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
