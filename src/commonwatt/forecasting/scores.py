"""How good forecasts were. They are rounded up to whole GPUs first: no part of a GPU can be on.

Instants with unknown demand count nowhere. Where nothing is left to score, the score is NaN: unknown. How well the GPUs
kept on served demand is in ``commonwatt.capacity.scores``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Bools, Floats

__all__ = ["LevelScores", "crps", "finite_mean", "level_scores", "pinball", "whole_gpus"]


def whole_gpus(forecast: Floats) -> Floats:
    """Round up to whole GPUs; a whole number with rounding errors in its last digits stays."""
    return np.ceil(np.round(forecast, 9))


@dataclass(frozen=True)
class LevelScores:
    """Scores of the forecasts at one level.

    Parameters
    ----------
    mae
        Mean absolute error, GPUs.
    under_prediction_pct
        Instants with more demand than forecast, percent (CUFF, section 4.1).
    pinball
        Mean pinball loss at ``level`` (CUFF, eq. 2), GPUs.
    coverage_error_pp
        Instants with at most the demand forecast, less the level, percentage points.
    """

    level: float
    mae: float
    under_prediction_pct: float
    pinball: float
    coverage_error_pp: float


def level_scores(level: float, forecast: Floats, actual: Floats) -> LevelScores:
    """Score forecasts of one level, rounded up here. Shapes [K], GPUs; NaN in *actual*: unknown."""
    finite = ~np.isnan(actual)
    on, real = whole_gpus(forecast[finite]), actual[finite]
    under = finite_mean(on < real)
    return LevelScores(
        level=level,
        mae=finite_mean(np.abs(on - real)),
        under_prediction_pct=100 * under,
        pinball=finite_mean(pinball(level, on, real)),
        coverage_error_pp=100 * (1 - under - level),
    )


def finite_mean(values: Floats | Bools) -> float:
    """Return the mean of the values that are not NaN; NaN if all are."""
    values = np.asarray(values, dtype=float)
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else float("nan")


def pinball(level: float, forecast: Floats, actual: Floats) -> Floats:
    """Pinball loss ``max(q (y - y*), (1 - q) (y* - y))`` of each (CUFF, eq. 2), not rounded. GPUs."""
    return np.maximum(level * (actual - forecast), (1 - level) * (forecast - actual))


def crps(levels: Floats, forecast: Floats, actual: Floats) -> float:
    """Mean continuous ranked probability score, GPUs; forecasts are rounded up here.

    The distribution is linear between levels and ends at the outermost ones:
    ``2 * integral of the pinball loss over all levels``, integrated exactly (Gneiting and Ranjan, 2011, eq. 11).

    Shapes: *levels* [Q] rising, *forecast* [K, Q], *actual* [K].
    """
    finite = ~np.isnan(actual)
    points, real = whole_gpus(forecast[finite]), actual[finite][:, None]
    at = np.concatenate(([0.0], levels, [1.0]))
    quantile = np.concatenate((points[:, :1], points, points[:, -1:]), axis=1)
    low, high, begin, end = quantile[:, :-1], quantile[:, 1:], at[:-1], at[1:]
    rise = np.where(high > low, high - low, 1.0)
    part = np.where(high > low, np.clip((real - low) / rise, 0.0, 1.0), (real > low).astype(float))
    turn = begin + part * (end - begin)
    before = _simpson(begin, turn, low, low + part * (high - low), real, above=False)
    after = _simpson(turn, end, low + part * (high - low), high, real, above=True)
    return finite_mean((before + after).sum(axis=1))


def _simpson(begin: Floats, end: Floats, low: Floats, high: Floats, real: Floats, *, above: bool) -> Floats:
    """Integrate ``2 (1{above} - u) (Q(u) - y)``, with Q linear: a parabola, for which Simpson's rule is exact."""
    side = 1.0 if above else 0.0
    middle, centre = (begin + end) / 2, (low + high) / 2
    ends = 2 * (side - begin) * (low - real) + 2 * (side - end) * (high - real)
    return (end - begin) / 6 * (ends + 8 * (side - middle) * (centre - real))
