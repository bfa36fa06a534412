"""LightGBM more than five steps ahead: a mean with the last value, and no level or day of week among its features."""

import json

import numpy as np
import pytest
from benchmarks.forecast_horizons import RESULT, SERIES, chosen, loss, seventh

from commonwatt.data import third_party
from commonwatt.data.series_files import read_series
from commonwatt.forecasting import make_predictor, restore_predictor
from commonwatt.forecasting._lightgbm_quantile import LightGbmQuantile
from commonwatt.forecasting._network_inputs import LEVEL_AND_WEEKDAY
from commonwatt.forecasting._trees import StepSettings, settings_of
from commonwatt.model.demand import LEVELS, DemandSeries
from commonwatt.model.errors import InputError
from tests.forecasting.made import walk

pytestmark = pytest.mark.slow
pytest.importorskip("lightgbm")


def far(share=0.5, **more):
    """A predictor of twelve and twenty steps, the last value's part in it given."""
    options = {"look_back": 10, "horizon": 20, "trees": 5, "steps": (12, 20), "levels": (0.1, 0.5, 0.9)} | more
    return LightGbmQuantile(**options, settings=lambda step: StepSettings(share=share, level_and_weekday=step < 15))


def test_settings_of_steps():
    assert settings_of(1) == settings_of(5) == StepSettings()
    assert [settings_of(step).share for step in (5, 10, 15, 25, 60)] == [0.0, 0.125, 0.25, 0.5, 0.5]
    assert not settings_of(6).level_and_weekday


def test_the_search_found_nothing_much_better():
    for horizon, rows in json.loads(RESULT.read_text())["horizons"].items():
        own = chosen(int(horizon), rows)["own"]
        assert own["against_last_value"] < 1.01 * rows[0]["against_last_value"]


@pytest.mark.parametrize("step_s", [60.0, 7_200.0])  # a week is longer than the series, and much shorter
def test_all_of_the_last_value_is_the_last_value(step_s):
    series = DemandSeries(0, step_s, walk(length=600).gpus + 0.25)  # whole numbers would be rounded
    predictor, plain = far(1.0, steps=(12, 20)), make_predictor("last-value", horizon=20)
    for each in (predictor, plain):
        each.fit(series.between(0, 500), np.random.default_rng(0))
    columns = [LEVELS.tolist().index(level) for level in (0.1, 0.5, 0.9)]
    ours, theirs = (each.predict_many(series, np.arange(450, 580))[:, [11, 19]] for each in (predictor, plain))
    assert ours[:, :, columns] == pytest.approx(theirs[:, :, columns])


def test_half_of_it_is_the_mean():
    series = DemandSeries(0, 60, walk(length=600).gpus + 0.25)
    none, half, all_of_it = (far(share) for share in (0.0, 0.5, 1.0))
    for each in (none, half, all_of_it):
        each.fit(series.between(0, 500), np.random.default_rng(0))
    trees, mean, last = (each.predict_many(series, np.arange(500, 580)) for each in (none, half, all_of_it))
    inner = (trees > 0) & (last > 0)  # none below 0
    assert inner.all()
    assert mean == pytest.approx((trees + last) / 2)


def test_one_at_a_time_is_many_at_once_also_after_a_file():
    """Over three weeks, each step two hours: the last value's changes are those of 84 steps, then of later ones."""
    series = walk(length=400, step_s=7_200.0)
    predictor = far()
    predictor.fit(series.between(0, 100), np.random.default_rng(0))
    many = predictor.predict_many(series, np.arange(99, 399))
    for row, origin in enumerate(range(100, 380)):
        assert predictor.predict().gpus == pytest.approx(many[row])
        predictor.update(series.gpus[origin])
        if row == 120:
            predictor = restore_predictor(*predictor.state())


def test_a_week_of_minutes_is_kept():
    series = walk(length=11_000)
    predictor = far()
    predictor.see(series)
    predictor.take(series, predictor.learn([series.between(0, 2_000)], np.random.default_rng(0)))
    again = restore_predictor(*predictor.state())
    expected = predictor.predict_many(series, np.array([10_999]))[0]
    assert predictor.predict().gpus == pytest.approx(expected)
    assert again.predict().gpus == pytest.approx(expected)


def test_files_of_earlier_versions_forecast_as_before():
    series = walk(length=600)
    alone = far(0.0)
    alone.fit(series, np.random.default_rng(0))
    about, arrays = alone.state()
    assert restore_predictor(about | {"shares": []}, arrays).predict().gpus == pytest.approx(alone.predict().gpus)


def test_a_file_with_a_tiny_step_takes_little_memory():
    predictor = far()
    predictor.fit(walk(length=600), np.random.default_rng(0))
    about, arrays = predictor.state()
    assert restore_predictor(about | {"step_s": 1e-9}, arrays).predict().gpus.shape == (20, len(LEVELS))


@pytest.mark.parametrize(("shares", "expected"), [([0.5], "2 shares, one for each step"), ([0.5, 1.5], "from 0 to 1")])
def test_wrong_shares_in_a_file(shares, expected):
    predictor = far()
    predictor.fit(walk(length=600), np.random.default_rng(0))
    about, arrays = predictor.state()
    with pytest.raises(InputError, match=expected):
        restore_predictor(about | {"shares": shares}, arrays)


def test_far_ahead_no_tree_asks_for_the_level_or_the_day():
    """Any value may follow any other: from a high one demand falls, which the level tells."""
    series = DemandSeries(0, 3_600.0, np.random.default_rng(0).integers(50, 100, 3_000).astype(float))
    predictor = LightGbmQuantile(10, 20, 40, steps=(1, 20), levels=(0.5, 0.9), parameters={"min_data_in_leaf": 20})
    predictor.fit(series, np.random.default_rng(0))
    near, beyond = predictor._models.feature[:2], predictor._models.feature[2:]
    assert np.isin(near, LEVEL_AND_WEEKDAY).any()
    assert not np.isin(beyond, LEVEL_AND_WEEKDAY).any()
    assert beyond.any()


@pytest.mark.long
@pytest.mark.data
@pytest.mark.parametrize("name", SERIES)
def test_an_hour_ahead_on_the_last_seventh(name):
    """Better than the settings chosen for five minutes where these lose to the last value, and never far behind it."""
    file, column = SERIES[name]
    path = third_party.find(file)
    if path is None:
        pytest.skip(f"no {file}: set {third_party.VARIABLE}")
    series = read_series(path, column).series
    before, seen, origins = seventh(series, 6, 60)
    losses = []
    for predictor in (
        LightGbmQuantile(horizon=60, steps=(60,), levels=(0.9, 0.95, 0.98, 0.99)),
        LightGbmQuantile(horizon=60, steps=(60,), levels=(0.9, 0.95, 0.98, 0.99), settings=lambda _: StepSettings()),
        make_predictor("last-value", horizon=60),
    ):
        predictor.fit(before, np.random.default_rng(0))
        losses.append(loss(series, origins, 60, predictor.predict_many(seen, origins)))
    own, for_five, last = losses
    assert own < max(for_five, last)
    assert own < 1.02 * last
