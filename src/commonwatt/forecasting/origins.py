"""From which instants of a series is learnt, and which series suit what was learnt."""

from __future__ import annotations

import numpy as np

from commonwatt.forecasting.series import DemandSeries
from commonwatt.model.arrays import Ints
from commonwatt.model.errors import InputError

__all__ = ["check_step", "learnable_origins"]

_MOST_EXAMPLES = 60_000


def check_step(series: DemandSeries, step_s: float) -> None:
    """Raise ``InputError`` if *series* has another step than *step_s*, that of the training."""
    if not np.isclose(series.step_s, step_s):
        raise InputError(f"values every {step_s:g} s, as in training", field="step_s", value=series.step_s)


def learnable_origins(series: DemandSeries, look_back: int, horizon: int, rng: np.random.Generator) -> Ints:
    """Return rising origins to learn from: those known with all their targets, 60,000 drawn from more.

    Where gaps leave none, as regular ones do, all origins, with unknown values as ``filled`` has them.
    """
    origins = np.arange(look_back - 1, len(series) - horizon)
    known = np.lib.stride_tricks.sliding_window_view(series.known, horizon + 1)[look_back - 1 :].all(axis=1)
    if known.any():
        origins = origins[known]
    if len(origins) > _MOST_EXAMPLES:
        origins = np.sort(rng.choice(origins, _MOST_EXAMPLES, replace=False))
    return origins
