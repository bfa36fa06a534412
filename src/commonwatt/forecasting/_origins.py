"""Which instants of a series a predictor learns or forecasts from, and the checks it makes."""

from __future__ import annotations

import numpy as np

from commonwatt.model.arrays import Ints
from commonwatt.model.demand import DemandSeries
from commonwatt.model.errors import InputError

__all__ = ["MOST_EXAMPLES", "check_length", "check_step", "checked_origins", "learnable_origins"]

MOST_EXAMPLES = 60_000
"""Origins to learn from at most."""


def check_length(series: DemandSeries, least: int) -> None:
    """Raise ``InputError`` if *series* has fewer than *least* values."""
    if len(series) < least:
        raise InputError(f"at least {least} values", field="series", value=len(series))


def checked_origins(series: DemandSeries, origins: Ints, look_back: int) -> Ints:
    """Return *origins* as integers.

    Raises ``InputError`` if one lies outside the series, or has too few values, or none that is known, up to it.
    """
    at = np.asarray(origins, dtype=np.int64)
    if len(at) and not (look_back - 1 <= at.min() and at.max() < len(series)):
        expected = f"indices from {look_back - 1} to {len(series) - 1}"
        raise InputError(expected, field="origins", value=f"{at.min()} to {at.max()}")
    if len(at) and at.min() < series.first_known:
        raise InputError("origins with a known value up to them", field="origins", value=int(at.min()))
    if (np.diff(at) < 0).any():
        raise InputError("indices that do not fall", field="origins", value="falling ones")
    return at


def check_step(series: DemandSeries, step_s: float) -> None:
    """Raise ``InputError`` if *series* has another step than *step_s*, that of the training."""
    if not np.isclose(series.step_s, step_s):
        raise InputError(f"values every {step_s:g} s, as in training", field="step_s", value=series.step_s)


def learnable_origins(
    series: DemandSeries, look_back: int, horizon: int, rng: np.random.Generator, most: int = MOST_EXAMPLES
) -> Ints:
    """Return rising origins to learn from: those whose value and targets are known, at most *most* drawn at random.

    Where gaps leave none (regular gaps do), all origins, with unknown values as in ``filled``.
    """
    origins = np.arange(look_back - 1, len(series) - horizon)
    known = np.lib.stride_tricks.sliding_window_view(series.known, horizon + 1)[look_back - 1 :].all(axis=1)
    if known.any():
        origins = origins[known]
    if len(origins) > most:
        origins = np.sort(rng.choice(origins, most, replace=False))
    return origins
