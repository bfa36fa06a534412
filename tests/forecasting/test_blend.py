"""The mean of several predictors."""

import numpy as np
import pytest

from commonwatt.forecasting._baselines import LastValue, MovingMaximum
from commonwatt.forecasting._blend import NetworkAndTrees, network_and_trees
from commonwatt.forecasting._predictors import make_predictor
from commonwatt.model.demand import DemandSeries, Predictor
from commonwatt.model.errors import InputError
from tests.forecasting.made import walk

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("fraction", [0.0, 0.25])
def test_it_is_the_mean_rounded_where_demand_is_whole(fraction):
    series = DemandSeries(0.0, 60.0, walk(300).gpus + fraction)
    parts = LastValue(), MovingMaximum(30)
    both = NetworkAndTrees(LastValue(), MovingMaximum(30))
    both._whole = series.whole
    for predictor in (*parts, both.network, both.trees):
        predictor.fit(series, np.random.default_rng(0))
    for predictor in (*parts, both):
        predictor.update(77.0)
    assert isinstance(both, Predictor)
    assert both.look_back == 120
    mean = (parts[0].predict().gpus + parts[1].predict().gpus) / 2
    assert (both.predict().gpus == (mean if fraction else np.round(mean))).all()
    origins = np.array([150, 200])
    many = (parts[0].predict_many(series, origins) + parts[1].predict_many(series, origins)) / 2
    assert (both.predict_many(series, origins) == (many if fraction else np.round(many))).all()


def test_horizons_must_be_one():
    with pytest.raises(InputError, match="one horizon"):
        NetworkAndTrees(LastValue(horizon=5), LastValue(horizon=3))


def test_the_network_and_the_trees_go_by_both_names():
    assert network_and_trees(60, 3).name == "gru+lightgbm"
    pytest.importorskip("torch")
    pytest.importorskip("lightgbm")
    made = make_predictor("gru+lightgbm", 60, 3)
    assert (made.name, made.horizon, made.look_back) == ("gru+lightgbm", 3, 60)
