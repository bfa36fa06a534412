"""A predictor by its name, or a fitted one from its file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from commonwatt.forecasting.forecast import Predictor, QuantileForecast
    from commonwatt.forecasting.networks import NetworkPredictor
    from commonwatt.forecasting.series import DemandSeries
    from commonwatt.model.arrays import Floats, Ints

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


class Fitted:
    """A network from a file: fitting it checks that it has not seen what it is to be judged by, and learns nothing."""

    def __init__(self, inner: NetworkPredictor, path: Path) -> None:
        self._inner, self._path = inner, path
        self._end_s = inner.fitted_until_s

    @property
    def name(self) -> str:
        """As the other's."""
        return self._inner.name

    @property
    def look_back(self) -> int:
        """As the other's."""
        return self._inner.look_back

    @property
    def horizon(self) -> int:
        """As the other's."""
        return self._inner.horizon

    def fit(self, series: DemandSeries, rng: np.random.Generator) -> None:  # noqa: ARG002
        """Raise ``InputError`` if the model has another step, or was fitted on values after *series*."""
        from commonwatt.model.errors import InputError

        if abs(series.step_s - self._inner.step_s) > 1e-6 * series.step_s:
            expected = f"values every {self._inner.step_s:g} s, as the model was fitted on"
            raise InputError(expected, field="step_s", value=series.step_s)
        if self._end_s > series.end_s + series.step_s / 2:
            from commonwatt.data.series_files import iso_moment

            expected = f"a test part from {iso_moment(self._end_s)} on, as the model was fitted on what lies before"
            raise InputError(expected, file=self._path, field="--test-from")

    def update(self, gpus: float) -> None:
        """Let the other see one more value."""
        self._inner.update(gpus)

    def predict(self) -> QuantileForecast:
        """Forecast."""
        return self._inner.predict()

    def predict_many(self, series: DemandSeries, origins: Ints) -> Floats:
        """Forecast from each origin."""
        return self._inner.predict_many(series, origins)
