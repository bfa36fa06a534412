"""A predictor by its name, or a fitted one from its file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from commonwatt.cli.forecast._wrapped import Wrapped

if TYPE_CHECKING:
    import numpy as np

    from commonwatt.forecasting.forecast import FittedPredictor, Predictor
    from commonwatt.forecasting.series import DemandSeries

__all__ = ["Fitted", "named_or_fitted"]


def named_or_fitted(name: str, look_back: int | None, horizon: int | None) -> Predictor:
    """Return a new predictor called *name*, or the fitted one of the model file *name*; raises ``InputError``."""
    from commonwatt.forecasting.forecast import HORIZON, LOOK_BACK
    from commonwatt.forecasting.predictors import PREDICTORS, make_predictor
    from commonwatt.model.errors import InputError

    path = Path(name)
    if name in PREDICTORS or not (path.suffix or path.exists()):
        return make_predictor(name, look_back or LOOK_BACK, horizon or HORIZON)
    from commonwatt.data.forecast_model import read_model

    predictor, _ = read_model(path)
    for field, given, held in (
        ("--look-back", look_back, predictor.look_back),
        ("--horizon", horizon, predictor.horizon),
    ):
        if given not in (None, held):
            raise InputError(f"{held}, as in the model file", field=field, value=given)
    return Fitted(predictor, path)


class Fitted(Wrapped):
    """A model from a file: fitting it checks that it has not seen what it is to be judged by, and learns nothing."""

    def __init__(self, inner: FittedPredictor, path: Path) -> None:
        super().__init__(inner)
        self._path, self._step_s, self._end_s = path, inner.step_s, inner.fitted_until_s

    def fit(self, series: DemandSeries, rng: np.random.Generator) -> None:  # noqa: ARG002
        """Raise ``InputError`` if the model has another step, or was fitted on values after *series*."""
        from commonwatt.model.errors import InputError

        if abs(series.step_s - self._step_s) > 1e-6 * series.step_s:
            expected = f"values every {self._step_s:g} s, as the model was fitted on"
            raise InputError(expected, field="step_s", value=series.step_s)
        if self._end_s > series.end_s + series.step_s / 2:
            from commonwatt.data.series_files import iso_moment

            expected = f"a test part from {iso_moment(self._end_s)} on, as the model was fitted on what lies before"
            raise InputError(expected, file=self._path, field="--test-from")
