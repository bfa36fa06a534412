"""Rolling origin: forecast from every instant of a test part with the values known then, and compare.

A forecast of the m-th value after instant t uses values up to t and no others: the predictor is fitted on the values
before the test part and, on request, refitted every so often on all values before an origin.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from commonwatt.forecasting.scores import LevelScores, crps, level_scores
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.demand import LEVELS, DemandSeries, Predictor, quantile_at
from commonwatt.model.errors import InputError
from commonwatt.model.units import plural

__all__ = ["RollingForecasts", "forecast_rolling"]


@dataclass(frozen=True)
class RollingForecasts:
    """Forecasts from consecutive origins, and actual demand.

    Parameters
    ----------
    origins
        Index of the last value each forecast uses. Shape [K].
    levels
        Shape [Q].
    gpus
        Forecasts, not rounded, GPUs. Shape [K, m, Q].
    actual
        Demand, NaN where unknown. Shape [K, m], GPUs.
    fits
        How often the predictor was fitted.
    """

    origins: Ints
    levels: Floats
    gpus: Floats
    actual: Floats
    fits: int

    def at(self, level: float, step: int = -1) -> Floats:
        """Return the forecasts of one *step* (the last) at *level*, as ``quantile_at``. Shape [K], GPUs."""
        return quantile_at(self.levels, self.gpus[:, step], level)

    def last(self, count: int) -> RollingForecasts:
        """Return the last *count* forecasts."""
        kept = slice(-count, None)
        return RollingForecasts(self.origins[kept], self.levels, self.gpus[kept], self.actual[kept], self.fits)

    def scores(self, levels: Floats, step: int = -1) -> tuple[tuple[LevelScores, ...], float]:
        """Score the forecasts of one *step* of the horizon (the last): by level, and the CRPS."""
        actual = self.actual[:, step]
        rows = tuple(level_scores(float(q), self.at(float(q), step), actual) for q in levels)
        return rows, crps(self.levels, self.gpus[:, step], actual)


def forecast_rolling(
    predictor: Predictor, series: DemandSeries, first: int, rng: np.random.Generator, refit_every: int | None = None,
    fit_before: int | None = None,
) -> RollingForecasts:  # fmt: skip
    """Forecast every value from index *first* on from the origin ``horizon`` steps before it.

    Parameters
    ----------
    first
        Index of the first value forecast. Values whose origin lies before the first known value are left out.
    refit_every
        Steps after which the predictor is refitted; never if ``None``.
    fit_before
        The predictor is first fitted on the values before this index; before *first* if ``None``.

    Raises
    ------
    InputError
        If the series is too short, or nothing is known *horizon* steps before *fit_before*.
    """
    m, n = predictor.horizon, predictor.look_back
    until = first if fit_before is None else fit_before
    if not n + m <= min(first, until) <= len(series) - 1:
        expected = f"a test part that begins after at least {n + m} values and before the end of {len(series)}"
        raise InputError(expected, field="test_from", value=first)
    if refit_every is not None and refit_every < 1:
        raise InputError("at least one step", field="refit_every", value=refit_every)
    if series.first_index > until - m:
        raise InputError(f"a known value {plural(m, 'step')} before the test part", field="test_from", value=until)
    predictor.fit(series.between(0, until), rng)
    origins = np.arange(max(first - m, predictor.look_back - 1, series.first_index), len(series) - m)
    parts, fits = [], 1
    for begin, end in _stretches(origins, until, refit_every):
        if begin > origins[0] and refit_every is not None and begin >= until:
            predictor.fit(series.between(0, begin + 1), rng)
            fits += 1
        parts.append(predictor.predict_many(series, np.arange(begin, end)))
    steps = origins[:, None] + np.arange(1, m + 1)
    return RollingForecasts(origins, LEVELS, np.concatenate(parts), series.gpus[steps], fits)


def _stretches(origins: Ints, until: int, every: int | None) -> list[tuple[int, int]]:
    """Return the pieces ``[begin, end)`` of the origins that one fit each forecasts."""
    begin, end = int(origins[0]), int(origins[-1]) + 1
    if every is None:
        return [(begin, end)]
    cuts = [cut for cut in range(until - 1 + every, end, every) if cut > begin]
    edges = [begin, *cuts, end]
    return list(pairwise(edges))
