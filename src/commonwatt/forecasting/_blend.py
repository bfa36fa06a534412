"""The mean of a network's quantiles and LightGBM's: their errors differ, so the mean errs less than each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from commonwatt.forecasting._lightgbm_quantile import LightGbmQuantile
from commonwatt.forecasting._networks import NetworkPredictor, NetworkSettings
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.demand import HORIZON, LEVELS, LOOK_BACK, DemandSeries, QuantileForecast
from commonwatt.model.errors import InputError
from commonwatt.model.forecast_file import TREES_TOO

__all__ = ["NetworkAndTrees", "network_and_trees"]


class NetworkAndTrees:
    """Averages the quantiles of a network and of LightGBM, level by level. It can be saved to a file.

    Parameters
    ----------
    network, trees
        Predictors of one horizon.

    Raises
    ------
    InputError
        For two horizons.
    """

    def __init__(self, network: NetworkPredictor, trees: LightGbmQuantile) -> None:
        if network.horizon != trees.horizon:
            horizons = f"horizons {network.horizon} and {trees.horizon}"
            raise InputError("predictors of one horizon", field="parts", value=horizons)
        self.network, self.trees, self.horizon = network, trees, network.horizon
        self.name = f"{network.name}{TREES_TOO}"
        self._whole = True

    @property
    def look_back(self) -> int:
        """The longer of the two."""
        return max(self.network.look_back, self.trees.look_back)

    def fit(
        self, series: DemandSeries, rng: np.random.Generator, *, go_on: Callable[[], bool] = lambda: True,
        progress: Callable[[float], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """Fit both. Once *go_on* returns false, the network keeps its weights. Raises ``InputError`` as they do."""
        self.network.fit(series, rng, go_on=go_on, progress=lambda part: progress(part / 2))
        self.trees.fit(series, rng, progress=lambda part: progress((1 + part) / 2))
        self._whole = self.trees.whole

    def see(self, series: DemandSeries) -> None:
        """Take *series* as observed in place of everything before; nothing is refitted."""
        self.network.see(series)
        self.trees.see(series)

    def update(self, gpus: float) -> None:
        """Let both observe one more value."""
        self.network.update(gpus)
        self.trees.update(gpus)

    def predict(self) -> QuantileForecast:
        """Forecast from the values observed."""
        return QuantileForecast(LEVELS, self._mean(self.network.predict().gpus, self.trees.predict().gpus))

    def predict_many(self, series: DemandSeries, origins: Ints) -> Floats:
        """Forecast from each origin. Shape [K, m, Q]."""
        return self._mean(self.network.predict_many(series, origins), self.trees.predict_many(series, origins))

    def _mean(self, network: Floats, trees: Floats) -> Floats:
        mean: Floats = np.mean([network, trees], axis=0)
        return np.round(mean) if self._whole else mean

    @property
    def step_s(self) -> float:
        """Seconds between the values it was fitted on."""
        return self.trees.step_s

    @property
    def fitted_until_s(self) -> float:
        """Instant after the last value observed."""
        return self.trees.fitted_until_s

    @property
    def members(self) -> int:
        """Networks trained."""
        return self.network.members

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return what a file must hold of both.

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
        made._whole = made.trees.whole
        return made


def network_and_trees(
    look_back: int = LOOK_BACK, horizon: int = HORIZON, kind: str = "gru", settings: NetworkSettings | None = None
) -> NetworkAndTrees:
    """Return the mean of a network and of LightGBM, neither fitted."""
    network = NetworkPredictor(kind, look_back=look_back, horizon=horizon, settings=settings)
    return NetworkAndTrees(network, LightGbmQuantile(look_back, horizon))
