"""Baselines against what they say they are, computed plainly; one at a time against many at once."""

import numpy as np
import pytest

from commonwatt.forecasting._baselines import LastValue, MovingMaximum, SeasonalNaive, Threshold
from commonwatt.forecasting._predictors import make_predictor
from commonwatt.model.demand import LEVELS, DemandSeries, Predictor
from commonwatt.model.errors import InputError
from tests.forecasting.made import walk

MAKERS = {
    "last value": lambda: LastValue(10, 3, window_s=3000),
    "season": lambda: SeasonalNaive(10, 3, season_s=1800, window_s=3000),
    "short season": lambda: SeasonalNaive(10, 5, season_s=120, window_s=3000),
    "maximum": lambda: MovingMaximum(10, 3),
    "threshold": lambda: Threshold(LastValue(10, 3, window_s=3000), 0.05),
}


@pytest.fixture(params=MAKERS, ids=list(MAKERS))
def predictor(request):
    return MAKERS[request.param]()


@pytest.mark.parametrize("unknown", [0, 40])
def test_one_at_a_time_is_many_at_once(predictor, unknown):
    series = walk(unknown=unknown)
    predictor.fit(series.between(0, 300), np.random.default_rng(0))
    origins = np.arange(299, 399)
    many = predictor.predict_many(series, origins)
    assert predictor.predict().gpus == pytest.approx(many[0])
    for row, origin in enumerate(origins[1:], 1):
        predictor.update(series.gpus[origin])
        assert predictor.predict().gpus == pytest.approx(many[row])


def test_forecasts_see_nothing_later(predictor):
    series = walk()
    later = series.gpus.copy()
    later[350:] = 7.0
    predictor.fit(series.between(0, 300), np.random.default_rng(0))
    first = predictor.predict_many(series, np.arange(300, 350))
    assert (first == predictor.predict_many(DemandSeries(0, 60, later), np.arange(300, 350))).all()


def test_every_one_is_a_predictor_whose_quantiles_do_not_cross(predictor):
    assert isinstance(predictor, Predictor)
    series = walk(seed=3)
    predictor.fit(series, np.random.default_rng(0))
    many = predictor.predict_many(series, np.arange(200, 390))
    assert (np.diff(many, axis=2) >= 0).all()
    assert (many >= 0).all()


@pytest.mark.parametrize("level", [0.0, 12.0])
def test_a_constant_series_is_forecast_as_it_is(predictor, level):
    series = DemandSeries(0, 60, np.full(200, level))
    predictor.fit(series, np.random.default_rng(0))
    raised = 1.05 if isinstance(predictor, Threshold) else 1.0
    assert predictor.predict().gpus == pytest.approx(np.full((predictor.horizon, len(LEVELS)), raised * level))


def test_a_series_that_is_too_short_is_refused(predictor):
    with pytest.raises(InputError, match="at least"):
        predictor.fit(walk(length=predictor.look_back + predictor.horizon - 1), np.random.default_rng(0))


def test_last_value_is_the_last_value_and_quantiles_of_changes():
    series = walk()
    predictor = LastValue(10, 5, window_s=100 * 60)
    for origin in (20, 399):
        found = predictor.predict_many(series, np.array([origin]))[0]
        for h in range(1, 6):
            moved = [series.gpus[t] - series.gpus[t - h] for t in range(max(h, origin - 99), origin + 1)]
            expected = np.maximum(series.gpus[origin] + np.quantile(moved, LEVELS), 0)
            assert found[h - 1] == pytest.approx(expected)


def test_seasonal_naive_repeats_a_series_that_repeats():
    gpus = np.tile(np.arange(30.0), 20)
    predictor = SeasonalNaive(10, 5, season_s=30 * 60)
    predictor.fit(DemandSeries(0, 60, gpus[:595]), np.random.default_rng(0))
    assert predictor.predict().gpus[:, 0].tolist() == gpus[595:600].tolist()
    assert predictor.look_back == 30


def test_the_window_of_last_value_follows_the_step():
    daily = DemandSeries(0, 86400.0, np.arange(40.0))  # 7 changes of 1 in a week
    predictor = LastValue(3, 1)
    predictor.fit(daily, np.random.default_rng(0))
    assert predictor.predict().gpus[0].tolist() == [40.0] * len(LEVELS)


@pytest.mark.parametrize("margin", [-0.1, float("inf"), float("nan")])
def test_a_margin_is_zero_or_more(margin):
    with pytest.raises(InputError):
        Threshold(LastValue(), margin)


@pytest.mark.parametrize("origins", [[3], [400], [50, 40]])
def test_origins_that_cannot_be(origins):
    with pytest.raises(InputError):
        MovingMaximum(10, 3).predict_many(walk(), np.array(origins))


@pytest.mark.parametrize("name", ["last-value", "seasonal-naive", "moving-max"])
def test_from_where_nothing_is_known_yet_nothing_is_forecast(name):
    """What stands for values before the first known one is that one, which is not known then."""
    gpus = walk(2_000).gpus.copy()
    gpus[:1_600] = np.nan
    series, predictor = DemandSeries(0.0, 60.0, gpus), make_predictor(name)
    predictor.fit(series, np.random.default_rng(0))
    with pytest.raises(InputError, match="a known value up to them"):
        predictor.predict_many(series, np.array([1_599]))
    assert predictor.predict_many(series, np.array([1_600])).shape == (1, 5, len(LEVELS))


@pytest.mark.parametrize("name", ["last-value", "seasonal-naive", "moving-max"])
def test_they_are_found_by_name(name):
    assert make_predictor(name, 20, 4).name == name
