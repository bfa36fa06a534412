"""The mean of several predictors' quantiles: where they err differently it errs less than each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from commonwatt.forecasting.forecast import HORIZON, LEVELS, LOOK_BACK, Predictor, QuantileForecast
from commonwatt.forecasting.lightgbm_quantile import LightGbmQuantile
from commonwatt.forecasting.networks import NetworkPredictor, NetworkSettings
from commonwatt.forecasting.series import DemandSeries
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError

__all__ = ["TREES_TOO", "Blend", "NetworkAndTrees", "network_and_trees"]

TREES_TOO = f"+{LightGbmQuantile.name}"
"""What the name of a network and trees ends with."""


class Blend:
    """Averages the quantiles, level by level, of predictors fitted on the same series.

    Parameters
    ----------
    parts
        Predictors of one horizon.
    name
        Name it goes by.

    Raises
    ------
    InputError
        For no predictor, or several horizons.
    """

    def __init__(self, parts: Sequence[Predictor], name: str) -> None:
        horizons = {part.horizon for part in parts}
        if len(horizons) != 1:
            raise InputError("predictors of one horizon", field="parts", value=f"horizons {sorted(horizons)}")
        self._parts, self.name = tuple(parts), name
        self.horizon = horizons.pop()
        self._whole = True

    @property
    def look_back(self) -> int:
        """The longest of theirs."""
        return max(part.look_back for part in self._parts)

    def fit(self, series: DemandSeries, rng: np.random.Generator) -> None:
        """Fit each of them. Raises ``InputError`` as they do."""
        for part in self._parts:
            part.fit(series, rng)
        known = series.gpus[series.known]
        self._whole = bool((known == np.round(known)).all())

    def update(self, gpus: float) -> None:
        """Let each see one more value."""
        for part in self._parts:
            part.update(gpus)

    def predict(self) -> QuantileForecast:
        """Forecast from the values seen."""
        return QuantileForecast(LEVELS, self._mean([part.predict().gpus for part in self._parts]))

    def predict_many(self, series: DemandSeries, origins: Ints) -> Floats:
        """Forecast from each origin. Shape [K, m, Q]."""
        return self._mean([part.predict_many(series, origins) for part in self._parts])

    def _mean(self, forecasts: list[Floats]) -> Floats:
        mean: Floats = np.mean(forecasts, axis=0)
        return np.round(mean) if self._whole else mean


class NetworkAndTrees(Blend):
    """The mean of a network and of LightGBM: no network alone, and called so. It can be kept in a file.

    Raises ``InputError`` for several horizons.
    """

    def __init__(self, network: NetworkPredictor, trees: LightGbmQuantile) -> None:
        super().__init__((network, trees), f"{network.name}{TREES_TOO}")
        self.network, self.trees = network, trees

    def fit(
        self, series: DemandSeries, rng: np.random.Generator, *, go_on: Callable[[], bool] = lambda: True,
        progress: Callable[[float], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """Fit both. Once *go_on* says no, the network keeps what it has learnt. Raises ``InputError`` as they do."""
        self.network.fit(series, rng, go_on=go_on, progress=lambda part: progress(part / 2))
        self.trees.fit(series, rng, progress=lambda part: progress((1 + part) / 2))
        self._note_whole()

    def see(self, series: DemandSeries) -> None:
        """Take *series* as what was seen, and forget what was before; nothing is learnt."""
        self.network.see(series)
        self.trees.see(series)

    @property
    def step_s(self) -> float:
        """Seconds between the values it was fitted on."""
        return self.trees.step_s

    @property
    def fitted_until_s(self) -> float:
        """Instant after the last value seen."""
        return self.trees.fitted_until_s

    @property
    def members(self) -> int:
        """Networks trained."""
        return self.network.members

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return all there is to keep of both.

        Raises ``InputError`` if nothing was fitted.
        """
        (network, weights), (trees, splits) = self.network.state(), self.trees.state()
        arrays = {f"network.{name}": array for name, array in weights.items()}
        arrays |= {f"trees.{name}": array for name, array in splits.items()}
        return {"kind": self.name, "network": network, "trees": trees}, arrays

    @classmethod
    def restored(cls, about: dict[str, Any], arrays: dict[str, np.ndarray]) -> NetworkAndTrees:
        """Return the predictor that ``state`` was taken from.

        Raises ``InputError`` if arrays are missing or of other shapes, or the two were not fitted on the same values.
        """
        own = {
            part: {
                name.removeprefix(f"{part}."): array for name, array in arrays.items() if name.startswith(f"{part}.")
            }
            for part in ("network", "trees")
        }
        network = NetworkPredictor.restored(about["network"], own["network"])
        made = cls(network, LightGbmQuantile.restored(about["trees"], own["trees"]))
        if made.name != about["kind"]:
            raise InputError(f"{made.name}, after its parts", field="kind", value=about["kind"])
        for name in ("step_s", "fitted_until_s"):
            if getattr(network, name) != getattr(made.trees, name):
                expected = f"{getattr(made.trees, name):.15g}, as of the trees"
                raise InputError(expected, field=f"network.{name}", value=getattr(network, name))
        made._note_whole()
        return made

    def _note_whole(self) -> None:
        self._whole = self.trees.whole


def network_and_trees(
    look_back: int = LOOK_BACK, horizon: int = HORIZON, kind: str = "gru", settings: NetworkSettings | None = None
) -> NetworkAndTrees:
    """Return the mean of a network and of LightGBM, neither fitted."""
    network = NetworkPredictor(kind, look_back=look_back, horizon=horizon, settings=settings)
    return NetworkAndTrees(network, LightGbmQuantile(look_back, horizon))
