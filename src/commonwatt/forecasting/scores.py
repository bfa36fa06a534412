"""How good forecasts were. They are rounded up to whole GPUs first: no part of a GPU can be on.

Instants whose demand is not known count nowhere. Where nothing is left to score, the score is NaN: unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Ints

__all__ = [
    "LevelScores",
    "crps",
    "energy_saving",
    "gpus_served",
    "jobs_served",
    "level_scores",
    "mean_known",
    "pinball",
    "shift_for",
    "slots_served",
    "whole_gpus",
]


def whole_gpus(forecast: Floats) -> Floats:
    """Round up to whole GPUs; what is a whole number but for the last digits stays."""
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
    known = ~np.isnan(actual)
    on, real = whole_gpus(forecast[known]), actual[known]
    under = mean_known(on < real)
    return LevelScores(
        level=level,
        mae=mean_known(np.abs(on - real)),
        under_prediction_pct=100 * under,
        pinball=mean_known(pinball(level, on, real)),
        coverage_error_pp=100 * (1 - under - level),
    )


def mean_known(values: Floats | Bools) -> float:
    """Return the mean of what is not NaN; NaN if nothing is."""
    values = np.asarray(values, dtype=float)
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else float("nan")


def pinball(level: float, forecast: Floats, actual: Floats) -> Floats:
    """Pinball loss ``max(q (y - y*), (1 - q) (y* - y))`` of each (CUFF, eq. 2), not rounded. GPUs."""
    return np.maximum(level * (actual - forecast), (1 - level) * (forecast - actual))


def crps(levels: Floats, forecast: Floats, actual: Floats) -> float:
    """Mean continuous ranked probability score, GPUs; forecasts are rounded up here.

    The distribution is taken as linear between levels and as ending at the outermost ones:
    ``2 * integral of the pinball loss over all levels``, integrated exactly (Gneiting and Ranjan, 2011, eq. 11).

    Shapes: *levels* [Q] rising, *forecast* [K, Q], *actual* [K].
    """
    known = ~np.isnan(actual)
    points, real = whole_gpus(forecast[known]), actual[known][:, None]
    at = np.concatenate(([0.0], levels, [1.0]))
    quantile = np.concatenate((points[:, :1], points, points[:, -1:]), axis=1)
    low, high, begin, end = quantile[:, :-1], quantile[:, 1:], at[:-1], at[1:]
    rise = np.where(high > low, high - low, 1.0)
    part = np.where(high > low, np.clip((real - low) / rise, 0.0, 1.0), (real > low).astype(float))
    turn = begin + part * (end - begin)
    before = _simpson(begin, turn, low, low + part * (high - low), real, above=False)
    after = _simpson(turn, end, low + part * (high - low), high, real, above=True)
    return mean_known((before + after).sum(axis=1))


def _simpson(begin: Floats, end: Floats, low: Floats, high: Floats, real: Floats, *, above: bool) -> Floats:
    """Integrate ``2 (1{above} - u) (Q(u) - y)``, with Q linear: a parabola, for which Simpson's rule is exact."""
    side = 1.0 if above else 0.0
    middle, centre = (begin + end) / 2, (low + high) / 2
    ends = 2 * (side - begin) * (low - real) + 2 * (side - end) * (high - real)
    return (end - begin) / 6 * (ends + 8 * (side - middle) * (centre - real))


def slots_served(on: Floats, actual: Floats) -> float:
    """Share of instants with enough GPUs on: one reading of the paper's performance. Shapes [K]."""
    known = ~np.isnan(actual)
    return mean_known(on[known] >= actual[known])


def gpus_served(on: Floats, actual: Floats) -> float:
    """Share of the GPUs wanted that were on, over all instants. NaN where none were wanted. Shapes [K]."""
    known = ~np.isnan(actual)
    wanted = actual[known].sum()
    return float(np.minimum(on[known], actual[known]).sum() / wanted) if wanted > 0 else float("nan")


def jobs_served(on: Floats, actual: Floats, starts: Ints, sizes: Ints) -> float:
    """Share of jobs that found their GPUs on at the instant they begin: the paper's other reading of performance.

    Jobs that begin at the same instant are served in their order: one is served if the demand without those behind
    it is on.

    Parameters
    ----------
    starts, sizes
        Index into *on* at which each job begins, not falling, and its GPUs. Shape [J].
    """
    inside = (starts >= 0) & (starts < len(on))
    at, size = starts[inside], sizes[inside].astype(float)
    if not len(at):
        return float("nan")
    total = np.cumsum(size)
    last = np.searchsorted(at, at, side="right") - 1
    behind = total[last] - total
    needed = actual[at] - behind
    return mean_known((on[at] >= needed)[~np.isnan(needed)])


def energy_saving(on: Floats, total_gpus: float) -> float:
    """Part of the energy saved against all GPUs on: the mean part that is off (CUFF, section 3.3). Shape [K]."""
    return 1 - mean_known(np.minimum(on, total_gpus)) / total_gpus


def shift_for(share: float, on: Floats, actual: Floats) -> float:
    """Return the fewest whole GPUs (below 0: more than needed) that make *on* enough in *share* of the instants.

    It looks at what came true: it compares forecasts at equal performance, it plans nothing. NaN if nothing is known.
    """
    known = ~np.isnan(actual)
    short = np.sort(np.ceil(actual[known] - on[known]))
    if not len(short):
        return float("nan")
    return float(short[max(0, int(np.ceil(np.round(share * len(short), 9))) - 1)])
