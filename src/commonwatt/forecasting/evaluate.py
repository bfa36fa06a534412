"""Rolling origin: forecast from every instant of a test part with what was known then, and compare.

A forecast for the m-th value after instant t sees values up to t and nothing else: the predictor is fitted on what
lies before the test part, or, if asked, fitted anew every so often on all that lies before.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from commonwatt.forecasting.calibration import Followed
from commonwatt.forecasting.forecast import LEVELS, Predictor
from commonwatt.forecasting.scores import LevelScores, crps, level_scores
from commonwatt.forecasting.series import DemandSeries
from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.errors import InputError

__all__ = ["Calibrator", "Evaluation", "Rolled", "at_level", "evaluate", "roll", "score"]


class Calibrator(Protocol):
    """Turns forecasts into GPUs to keep on so that a target is met, and learns from what came true."""

    def followed(self, gpus: Floats, origins: Ints, levels: Floats, quantiles: Floats) -> Followed:
        """Return what is kept on after each origin for quantiles [N, m, Q] at *levels*.

        Each value of the series *gpus* is heard before the forecast made after it, none earlier.
        """
        ...


@dataclass(frozen=True)
class Rolled:
    """Forecasts from origins one after another, and what came true.

    Parameters
    ----------
    origins
        Index of the last value seen by each. Shape [K].
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


@dataclass(frozen=True)
class Evaluation:
    """Scores of a predictor at one step ahead.

    Parameters
    ----------
    rolled
        The forecasts.
    levels
        Scores by level, at the last step of the horizon.
    crps
        Continuous ranked probability score there, GPUs.
    on
        GPUs kept on for the last step of each forecast by the calibrator; ``None`` without one. Shape [K].
    promised
        Whether a promise was made for it; else everything was kept on. Shape [K].
    """

    rolled: Rolled
    levels: tuple[LevelScores, ...]
    crps: float
    on: Floats | None
    promised: Bools | None


def evaluate(
    predictor: Predictor, series: DemandSeries, test_from: int, levels: Floats, rng: np.random.Generator,
    refit_every: int | None = None, calibrator: Calibrator | None = None, warm_up: int = 0,
) -> Evaluation:  # fmt: skip
    """Fit before *test_from*, forecast every value from there on ``horizon`` steps ahead, and score it.

    Parameters
    ----------
    test_from
        Index of the first value that is scored. Nothing from there on is seen in fitting or, before its time, by the
        calibrator.
    levels
        Levels to score, within (0, 1). Shape [any].
    refit_every
        Steps after which the predictor is fitted anew; never if ``None``.
    calibrator
        Decides how many GPUs are kept on.
    warm_up
        Values before *test_from* the calibrator is first run over.

    Raises
    ------
    InputError
        For a test part that leaves too little to fit on.
    """
    rolled = roll(predictor, series, test_from - warm_up if calibrator else test_from, rng, refit_every, test_from)
    count = len(series) - test_from
    on = promised = None
    if calibrator is not None:
        found = calibrator.followed(series.gpus, rolled.origins, rolled.levels, rolled.gpus)
        on, promised = found.gpus[-count:, -1].astype(float), found.promised[-count:]
    tested = _last(rolled, count)
    scores, whole = score(tested, levels)
    return Evaluation(tested, scores, whole, on, promised)


def roll(
    predictor: Predictor, series: DemandSeries, first: int, rng: np.random.Generator, refit_every: int | None = None,
    fit_before: int | None = None,
) -> Rolled:  # fmt: skip
    """Forecast so that every value from index *first* on is one that lies ``horizon`` steps ahead of an origin.

    Before anything is known there is no origin: then values from *first* on are left out, though none of the test part.
    The predictor is fitted on the values before *fit_before* (before *first* if ``None``), and, with *refit_every*,
    anew after so many steps.

    Raises
    ------
    InputError
        If the series is too short for that, or nothing is known *horizon* steps before the part after *fit_before*.
    """
    m, n = predictor.horizon, predictor.look_back
    until = first if fit_before is None else fit_before
    if not n + m <= min(first, until) <= len(series) - 1:
        expected = f"a test part that begins after at least {n + m} values and before the end of {len(series)}"
        raise InputError(expected, field="test_from", value=first)
    if refit_every is not None and refit_every < 1:
        raise InputError("at least one step", field="refit_every", value=refit_every)
    if series.first_known > until - m:
        raise InputError(f"a known value {m} steps before the test part", field="test_from", value=until)
    predictor.fit(series.between(0, until), rng)
    origins = np.arange(max(first - m, predictor.look_back - 1, series.first_known), len(series) - m)
    parts, fits = [], 1
    for begin, end in _stretches(origins, until, refit_every):
        if begin > origins[0] and refit_every is not None and begin >= until:
            predictor.fit(series.between(0, begin + 1), rng)
            fits += 1
        parts.append(predictor.predict_many(series, np.arange(begin, end)))
    steps = origins[:, None] + np.arange(1, m + 1)
    return Rolled(origins, LEVELS, np.concatenate(parts), series.gpus[steps], fits)


def _stretches(origins: Ints, until: int, every: int | None) -> list[tuple[int, int]]:
    """Pieces ``[begin, end)`` of the origins, each forecast by one fit."""
    begin, end = int(origins[0]), int(origins[-1]) + 1
    if every is None:
        return [(begin, end)]
    cuts = [cut for cut in range(until - 1 + every, end, every) if cut > begin]
    edges = [begin, *cuts, end]
    return list(pairwise(edges))


def _last(rolled: Rolled, count: int) -> Rolled:
    kept = slice(-count, None)
    return Rolled(rolled.origins[kept], rolled.levels, rolled.gpus[kept], rolled.actual[kept], rolled.fits)


def score(rolled: Rolled, levels: Floats, step: int = -1) -> tuple[tuple[LevelScores, ...], float]:
    """Score the forecasts at one *step* of the horizon (the last): by level, and the CRPS."""
    actual = rolled.actual[:, step]
    rows = tuple(level_scores(float(q), at_level(rolled, float(q), step), actual) for q in levels)
    return rows, crps(rolled.levels, rolled.gpus[:, step], actual)


def at_level(rolled: Rolled, level: float, step: int = -1) -> Floats:
    """Return forecasts at *level*, between known levels interpolated, beyond them the outermost. Shape [K], GPUs."""
    held, levels = rolled.gpus[:, step], rolled.levels
    high = int(np.clip(np.searchsorted(levels, level), 1, len(levels) - 1))
    part = float(np.clip((level - levels[high - 1]) / (levels[high] - levels[high - 1]), 0.0, 1.0))
    return held[:, high - 1] + part * (held[:, high] - held[:, high - 1])
