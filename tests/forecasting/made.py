"""Series and predictors for tests."""

import numpy as np

from commonwatt.model.demand import LEVELS, DemandSeries


def walk(length=400, seed=0, step_s=60.0, unknown=0):
    """A random walk of whole GPUs with jumps of powers of two."""
    rng = np.random.default_rng(seed)
    moves = rng.choice([-8, -1, 0, 0, 0, 1, 2, 8], size=length)
    gpus = np.maximum(np.cumsum(moves) + 60.0, 0.0)
    gpus[rng.choice(np.arange(1, length), size=unknown, replace=False)] = np.nan
    return DemandSeries(0.0, step_s, gpus)


class Oracle:
    """Knows the series: forecasts what comes, plus an offset."""

    name = "oracle"

    def __init__(self, series, horizon=5, look_back=10, offset=0.0):
        self.look_back, self.horizon, self._series, self._offset = look_back, horizon, series, offset
        self.fitted = []

    def fit(self, series, rng):
        self.fitted.append(len(series))

    def update(self, gpus):
        raise AssertionError

    def predict(self):
        raise AssertionError

    def predict_many(self, series, origins):
        steps = np.asarray(origins)[:, None] + np.arange(1, self.horizon + 1)
        return np.repeat(self._series.gpus[steps][:, :, None] + self._offset, len(LEVELS), axis=2)
