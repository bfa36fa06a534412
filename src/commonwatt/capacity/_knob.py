"""The knob: performance against energy saving, learned from history, and the fewest GPUs that keep a target.

CUFF, section 3.3. A history is forecasts and actual demand; each setting of the knob is a quantile level, or the
highest level and some extra GPUs, and is scored by the GPUs it would have kept on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.capacity.scores import gpus_served, kept_on, slots_served
from commonwatt.model.arrays import Floats
from commonwatt.model.demand import quantile_at
from commonwatt.model.errors import InputError

__all__ = ["Knob", "KnobHistory", "KnobPoint", "fit_knob"]

STEPS_ABOVE = 20
"""Settings above the highest quantile level, spread evenly over the misses it leaves."""


@dataclass(frozen=True)
class KnobHistory:
    """Forecasts and actual demand.

    Parameters
    ----------
    levels
        Rising quantile levels. Shape [Q].
    quantiles
        Demand forecast, GPUs. Shape [N, Q].
    actual
        Demand, GPUs; NaN where unknown. Shape [N].
    whole_gpus
        All GPUs.

    Raises
    ------
    InputError
        If no actual demand is known, or there are no GPUs.
    """

    levels: Floats
    quantiles: Floats
    actual: Floats
    whole_gpus: int

    def __post_init__(self) -> None:
        if self.whole_gpus < 1:
            raise InputError("one GPU or more", field="whole_gpus", value=self.whole_gpus)
        if len(self.actual) != len(self.quantiles) or np.isnan(self.actual).all():
            raise InputError("a known value for one forecast or more", field="actual", value="none")


@dataclass(frozen=True)
class KnobPoint:
    """One setting of the knob and its scores over the history.

    Parameters
    ----------
    level
        Quantile level; 1 for everything on.
    extra_gpus
        GPUs added to it.
    mean_gpus
        Mean number of GPUs kept on.
    slots_served
        Share of instants with enough GPUs on: "performance".
    gpus_served
        Share of the GPUs wanted that were on.
    saving
        Share of GPU time not kept on, of all GPUs: "energy saving" where energy goes with GPUs that are on.
    """

    level: float
    extra_gpus: int
    mean_gpus: float
    slots_served: float
    gpus_served: float
    saving: float

    def keep_on(self, levels: Floats, quantiles: Floats, most: float | Floats) -> Floats:
        """Return the GPUs to keep on for forecasts of shape [..., Q]; at most *most*, one number or one for each."""
        if self.level >= 1:
            return np.full(quantiles.shape[:-1], most, dtype=float)
        return np.minimum(kept_on(quantile_at(levels, quantiles, self.level)) + self.extra_gpus, most)


@dataclass(frozen=True)
class Knob:
    """Settings by rising number of GPUs; the last one keeps everything on."""

    points: tuple[KnobPoint, ...]

    def choose(self, target: float) -> KnobPoint:
        """Return the setting with the fewest GPUs that served a share *target* of instants over the history.

        Everything on, if none did, and for a target of 1.

        Raises
        ------
        InputError
            For a target that is not above 0 and at most 1.
        """
        if not 0 < target <= 1:
            raise InputError("a share above 0, at most 1", field="target", value=target)
        if target == 1:
            return self.points[-1]
        return next((point for point in self.points if point.slots_served >= target), self.points[-1])


def fit_knob(history: KnobHistory) -> Knob:
    """Score every setting over *history*."""
    finite = ~np.isnan(history.actual)
    actual, quantiles = history.actual[finite], history.quantiles[finite]
    settings = [(float(level), 0, quantiles[:, i]) for i, level in enumerate(history.levels)]
    top_level, top = float(history.levels[-1]), np.ceil(quantiles[:, -1] - 1e-9)
    missing = np.unique(np.ceil(actual - top)[actual > top])
    if len(missing):
        picked = np.unique(missing[np.linspace(0, len(missing) - 1, STEPS_ABOVE).round().astype(int)])
        settings += [(top_level, int(extra), top + extra) for extra in picked]
    settings.append((1.0, 0, np.full(len(actual), float(history.whole_gpus))))
    points = [_score(level, extra, gpus, actual, history.whole_gpus) for level, extra, gpus in settings]
    return Knob(tuple(sorted(points, key=lambda p: (p.mean_gpus, p.slots_served, p.level))))


def _score(level: float, extra: int, gpus: Floats, actual: Floats, whole: int) -> KnobPoint:
    on = kept_on(gpus, whole)
    mean, served = float(on.mean()), gpus_served(on, actual)
    served = 1.0 if np.isnan(served) else served
    return KnobPoint(level, extra, mean, slots_served(on, actual), served, 1.0 - mean / whole)
