"""The knob: performance against energy saving, learned from history, and the fewest GPUs that keep a target.

CUFF, section 3.3. A history is forecasts and what came true; each setting of the knob is a quantile level, or the
highest level and some GPUs more, and is scored by what it would have kept on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from commonwatt.forecasting.calibration import quantile_at
from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError

__all__ = ["History", "Knob", "KnobPoint", "chosen_gpus", "learn_knob", "learn_knobs"]

STEPS_ABOVE = 20
"""Settings above the highest quantile level, spread evenly over the misses it leaves."""


@dataclass(frozen=True)
class History:
    """Forecasts and what came true.

    Parameters
    ----------
    levels
        Rising quantile levels. Shape [Q].
    quantiles
        Demand forecast, GPUs. Shape [N, Q].
    actual
        What it came to, GPUs; NaN where not known. Shape [N].
    whole_gpus
        All GPUs there are.

    Raises
    ------
    InputError
        If nothing that came true is known, or there are no GPUs.
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
    """One setting of the knob and what it would have done over the history.

    Parameters
    ----------
    level
        Quantile level; 1 for everything on.
    extra_gpus
        GPUs added to it.
    mean_gpus
        Mean number of GPUs kept on.
    slots_served
        Share of instants at which they sufficed: "performance".
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


def learn_knob(history: History) -> Knob:
    """Score every setting over *history*."""
    known = ~np.isnan(history.actual)
    actual, quantiles = history.actual[known], history.quantiles[known]
    settings = [(float(level), 0, quantiles[:, i]) for i, level in enumerate(history.levels)]
    top_level, top = float(history.levels[-1]), np.ceil(quantiles[:, -1] - 1e-9)
    missing = np.unique(np.ceil(actual - top)[actual > top])
    if len(missing):
        picked = np.unique(missing[np.linspace(0, len(missing) - 1, STEPS_ABOVE).round().astype(int)])
        settings += [(top_level, int(extra), top + extra) for extra in picked]
    settings.append((1.0, 0, np.full(len(actual), float(history.whole_gpus))))
    points = [_score(level, extra, gpus, actual, history.whole_gpus) for level, extra, gpus in settings]
    return Knob(tuple(sorted(points, key=lambda p: (p.mean_gpus, p.slots_served, p.level))))


def learn_knobs(histories: Mapping[str, History]) -> dict[str, Knob]:
    """Learn a knob for each cluster, workload or tenant."""
    return {name: learn_knob(history) for name, history in histories.items()}


def _score(level: float, extra: int, gpus: Floats, actual: Floats, whole: int) -> KnobPoint:
    kept = np.minimum(np.ceil(np.maximum(gpus, 0.0) - 1e-9), whole)
    wanted = float(actual.sum())
    served = 1.0 if wanted == 0 else float(np.minimum(kept, actual).sum()) / wanted
    mean = float(kept.mean())
    return KnobPoint(level, extra, mean, float((kept >= actual).mean()), served, 1.0 - mean / whole)


def chosen_gpus(knob_point: KnobPoint, levels: Floats, quantiles: Floats, whole_gpus: float | Floats) -> Floats:
    """Return the GPUs a setting keeps on for forecasts of shape [..., Q]; at most *whole_gpus*, of all or of each."""
    if knob_point.level >= 1:
        return np.full(quantiles.shape[:-1], whole_gpus, dtype=float)
    base = np.ceil(quantile_at(levels, quantiles, knob_point.level) - 1e-9) + knob_point.extra_gpus
    return np.minimum(base, whole_gpus)
