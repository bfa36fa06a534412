"""LightGBM, statsforecast and Chronos behind our interface."""

import sys
import tracemalloc

import numpy as np
import pytest

from commonwatt.forecasting._lightgbm_quantile import LightGbmQuantile
from commonwatt.forecasting._network_inputs import LAGS, WINDOWS, contexts, features, features_at, sequences
from commonwatt.forecasting._peers import AutoEts, ChronosPredictor
from commonwatt.forecasting._predictors import PREDICTORS, make_predictor
from commonwatt.forecasting._rolling import forecast_rolling
from commonwatt.model.demand import LEVELS, LOOK_BACK, DemandSeries, Predictor
from commonwatt.model.errors import InputError, MissingExtraError
from tests.forecasting.made import walk

pytestmark = pytest.mark.slow


def boosted(**more):
    pytest.importorskip("lightgbm")
    return LightGbmQuantile(
        **{"look_back": 10, "horizon": 3, "trees": 5, "levels": (0.1, 0.5, 0.9), "threads": 1} | more
    )


def smoothed(**more):
    pytest.importorskip("statsforecast")
    return AutoEts(**{"look_back": 30, "horizon": 3, "length": 200, "windows": 5} | more)


@pytest.mark.parametrize("enough", [True, False])
def test_trees_split_on_as_many_values_as_they_are_said_to_need(enough):
    least = PREDICTORS["lightgbm"].least
    series = walk(least if enough else 1_400, seed=2)
    predictor = boosted(look_back=LOOK_BACK, levels=(0.5, 0.98), steps=(3,))
    predictor.fit(series, np.random.default_rng(0))
    origins = np.arange(200, len(series))
    rows = features_at(series, series.filled(), origins)
    moved = predictor._models.predict(rows)
    assert (np.ptp(moved, axis=1) > 0).any() == enough


class Pipeline:
    """The part of Chronos' interface that is used: the last value and one GPU more by level, out of order."""

    def predict_quantiles(self, context, prediction_length, quantile_levels):
        last = context[:, -1:, None]
        levels = np.array(quantile_levels, dtype=np.float32)
        quantiles = last.numpy() + np.where(levels == np.float32(0.9), -1.0, levels)[None, None, :]
        return np.repeat(quantiles, prediction_length, axis=1), last


def stubbed(**more):
    pytest.importorskip("torch")
    return ChronosPredictor(**{"look_back": 10, "horizon": 3, "pipeline": Pipeline()} | more)


@pytest.fixture(params=[boosted, smoothed, stubbed])
def predictor(request):
    return request.param()


@pytest.mark.slow
def test_one_at_a_time_is_many_at_once_and_quantiles_do_not_cross(predictor):
    series = walk(unknown=20)
    assert isinstance(predictor, Predictor)
    predictor.fit(series.between(0, 300), np.random.default_rng(0))
    many = predictor.predict_many(series, np.arange(299, 360))
    assert (np.diff(many, axis=2) >= 0).all()
    assert many.shape == (61, 3, len(LEVELS))
    assert predictor.predict().gpus == pytest.approx(many[0], abs=1e-6)
    for row, origin in enumerate(range(300, 330), 1):
        predictor.update(series.gpus[origin])
        assert predictor.predict().gpus == pytest.approx(many[row], abs=1e-6)


@pytest.mark.slow
def test_a_seed_gives_the_same_and_the_future_is_not_seen(predictor):
    series = walk()
    changed = series.gpus.copy()
    changed[350:] = 0.0
    predictor.fit(series.between(0, 300), np.random.default_rng(3))
    first = predictor.predict_many(series, np.arange(300, 350))
    predictor.fit(series.between(0, 300), np.random.default_rng(3))
    assert (predictor.predict_many(DemandSeries(0, 60, changed), np.arange(300, 350)) == first).all()


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.0, 9.0])
def test_constant_series(predictor, level):
    predictor.fit(DemandSeries(0, 60, np.full(200, level)), np.random.default_rng(0))
    expected = level + (LEVELS if predictor.name == "chronos" else 0)
    assert np.abs(predictor.predict().gpus - expected).max() <= 1.0


@pytest.mark.slow
def test_short_series_are_refused(predictor):
    with pytest.raises(InputError, match="at least"):
        predictor.fit(walk(length=predictor.look_back + 2), np.random.default_rng(0))


def test_regular_gaps_leave_something_to_learn_from(predictor):
    """No origin is known with all its targets."""
    gpus = walk().gpus
    gpus[:: predictor.horizon + 1] = np.nan
    predictor.fit(DemandSeries(0, 60, gpus), np.random.default_rng(0))
    assert np.abs(predictor.predict().at(0.5) - gpus[-1]).max() < 20


def test_lightgbm_refuses_values_at_another_step():
    predictor = boosted()
    predictor.fit(walk(), np.random.default_rng(0))
    with pytest.raises(InputError, match="every 60 s"):
        predictor.predict_many(walk(step_s=600.0), np.array([200]))


def test_lightgbm_learns_what_the_last_value_cannot():
    """A saw tooth: after a rise by one comes a fall by one."""
    series = DemandSeries(0, 60, 50 + np.arange(3000.0) % 2 * 10)
    predictor = boosted(trees=60, parameters={"learning_rate": 0.1, "min_data_in_leaf": 20, "feature_fraction": 1.0})
    rows, _ = forecast_rolling(predictor, series, 2500, np.random.default_rng(0)).scores(np.array([0.5, 0.9]))
    assert rows[0].mae < 1


def test_steps_and_levels_between_are_interpolated():
    predictor = boosted(horizon=5, steps=(1, 5))
    series = DemandSeries(0, 60, walk().gpus + 0.25)  # whole numbers would be rounded
    predictor.fit(series, np.random.default_rng(0))
    moved = predictor.predict_many(series, np.array([380]))[0]
    assert moved[2] == pytest.approx((moved[0] + moved[4]) / 2)
    assert moved[:, 4] == pytest.approx(moved[:, LEVELS.tolist().index(0.5)])


def test_features_by_hand():
    values = walk(length=60).gpus
    found = features(values, 60.0 * np.arange(60))
    t = 50
    for column, lag in enumerate(LAGS):
        assert found[t, column] == values[t] - values[max(0, t - lag)]
    for number, length in enumerate(WINDOWS):
        seen = values[max(0, t - length + 1) : t + 1]
        high, low, mean, _ = found[t, len(LAGS) + 4 * number :][:4]
        assert (high, low) == (seen.max() - values[t], seen.min() - values[t])
        assert mean == pytest.approx(seen.mean() - values[t])


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.0, 0.37])
def test_features_of_some_instants_are_those_of_all(factor):
    series = DemandSeries(5e8, 60.0, walk(length=120_000).gpus * factor)
    every = features(series.gpus, series.start_s + 60.0 * np.arange(120_000))
    origins = np.array([0, 1, 119, 49_999, 50_000, 50_001, 51_439, 119_999])
    np.testing.assert_allclose(features_at(series, series.gpus, origins), every[origins], rtol=1e-9, atol=1e-7)
    assert features_at(series, series.gpus, origins[:0]).shape == (0, every.shape[1])


def peak_bytes(make, *given):
    """The most *make* holds at once, and the size of what it returns."""
    tracemalloc.start()
    try:
        held = make(*given).nbytes
        return tracemalloc.get_traced_memory()[1], held
    finally:
        tracemalloc.stop()


@pytest.mark.long
def test_what_is_looked_at_of_a_long_series_takes_little_more_memory_than_the_answer():
    values, origins = walk(length=200_000).gpus, np.arange(10_000, 200_000, 4)
    series = DemandSeries(0.0, 60.0, values)
    for make in (
        lambda at: features_at(series, values, at),
        lambda at: contexts(values, at, 5, 1.0),
        lambda at: sequences(values, at, 120, 1.0),
    ):
        make(origins[:9])  # what is compiled is not counted
        peak, held = peak_bytes(make, origins)
        assert peak - held < 60e6


def test_chronos_must_answer_in_shape():
    class Wrong(Pipeline):
        def predict_quantiles(self, context, prediction_length, quantile_levels):
            quantiles, mean = super().predict_quantiles(context, prediction_length, quantile_levels)
            return quantiles[:, :, :3], mean

    predictor = stubbed(pipeline=Wrong())
    predictor.fit(walk(), np.random.default_rng(0))
    with pytest.raises(InputError, match="quantiles of shape"):
        predictor.predict()


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "chronos", None)
    with pytest.raises(MissingExtraError, match=r"commonwatt\[chronos\]"):
        make_predictor("chronos")


@pytest.mark.parametrize(
    ("horizon", "steps"), [(5, (1, 2, 3, 4, 5)), (60, (1, 2, 5, 15, 30, 60)), (45, (1, 2, 5, 15, 30, 45))]
)
def test_an_hour_is_fitted_at_few_steps(horizon, steps):
    assert LightGbmQuantile(horizon=horizon)._steps == steps
