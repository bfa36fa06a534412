"""LightGBM with columns beside demand, and fitted to the windows of several pools together."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.data.forecast_model import read_model, write_model
from commonwatt.forecasting import joint_pools, make_predictor
from commonwatt.forecasting._lightgbm_quantile import LightGbmQuantile
from commonwatt.forecasting.scores import pinball
from commonwatt.model.demand import LEVELS, DemandSeries
from commonwatt.model.errors import InputError
from tests.forecasting.made import walk

pytest.importorskip("lightgbm")

pytestmark = pytest.mark.slow
LENGTH, TRAINED = 700, 500


def small(**more):
    settings = {"min_data_in_leaf": 10, "learning_rate": 0.2, "feature_fraction": 1.0}
    return LightGbmQuantile(20, 2, trees=15, parameters=settings, levels=(0.5, 0.9), **more)


def queued(seed=0):
    """Demand that rises by what waited at the instant before."""
    rng = np.random.default_rng(seed)
    waiting = rng.choice([0.0, 0.0, 3.0, 12.0], LENGTH)
    gpus = 50.0 + rng.integers(0, 3, LENGTH)
    gpus[1:] += waiting[:-1]
    return DemandSeries(0.0, 60.0, gpus, {"pending_gpus": waiting, "pending_jobs": np.ceil(waiting / 4)})


@pytest.fixture(scope="module")
def fitted():
    predictor = small(features=("pending_gpus", "pending_jobs"))
    predictor.fit(queued().between(0, TRAINED), np.random.default_rng(0))
    return predictor


def test_the_queue_tells_what_demand_does_not(fitted):
    series, alone = queued(), small()
    alone.fit(series.between(0, TRAINED), np.random.default_rng(0))
    origins = np.arange(TRAINED, LENGTH - 2)
    losses = [
        pinball(0.5, one.predict_many(series, origins)[:, 0, 4], series.gpus[origins + 1]).mean()
        for one in (fitted, alone)
    ]
    assert losses[0] < 0.5 * losses[1]


@pytest.mark.slow
@given(
    st.integers(20, LENGTH - 2), st.integers(0, LENGTH), st.sampled_from(["pending_gpus", "pending_jobs"]),
    st.floats(0, 1e6) | st.just(float("nan")),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_features_after_the_origin_change_nothing(fitted, origin, after, name, value):
    series = queued()
    changed = {key: values.copy() for key, values in series.features.items()}
    changed[name][origin + 1 + after :] = value
    other = replace(series, features=changed)
    at = np.array([origin])
    assert (fitted.predict_many(series, at) == fitted.predict_many(other, at)).all()
    assert (fitted.predict_many(series.between(0, origin + 1), at) == fitted.predict_many(series, at)).all()


def test_features_at_the_origin_change_a_forecast(fitted):
    series, at = queued(), np.array([600])
    busy, idle = (
        replace(series, features={name: np.full(LENGTH, level) for name in series.features}) for level in (12.0, 0.0)
    )
    assert (fitted.predict_many(busy, at) > fitted.predict_many(idle, at)).any()


def test_a_file_keeps_features_and_what_was_observed(fitted, tmp_path):
    series, path = queued(), tmp_path / "m.safetensors"
    fitted.see(series.between(0, 600))
    write_model(fitted, path, seed=0)
    again, header = read_model(path)
    assert again.features == header.features == ("pending_gpus", "pending_jobs")
    assert (again.predict().gpus == fitted.predict_many(series, np.array([599]))[0]).all()
    again.update(series.gpus[600], {name: values[600] for name, values in series.features.items()})
    assert (again.predict().gpus == fitted.predict_many(series, np.array([600]))[0]).all()
    again.update(series.gpus[601])
    repeated = {name: np.append(values[:601], values[600]) for name, values in series.features.items()}
    last = replace(series.between(0, 602), features=repeated)
    assert (again.predict().gpus == fitted.predict_many(last, np.array([601]))[0]).all()


def test_a_series_without_the_column_is_refused(fitted):
    series = queued()
    lacking = replace(series, features={"pending_gpus": series.features["pending_gpus"]})
    for refused in (lambda: fitted.predict_many(lacking, np.array([300])), lambda: fitted.see(lacking)):
        with pytest.raises(InputError, match="pending_jobs"):
            refused()


@pytest.mark.parametrize("names", [("",), ("a", "a")])
def test_features_have_names_of_their_own(names):
    with pytest.raises(InputError, match="names of columns"):
        make_predictor("lightgbm", features=names)


def test_unknown_features_repeat_the_last_known():
    nan = float("nan")
    series = DemandSeries(0.0, 60.0, np.ones(5), {"waiting": np.array([nan, 2.0, nan, 4.0, nan])})
    assert series.feature("waiting").tolist() == [0.0, 2.0, 2.0, 4.0, 4.0]
    assert series.between(3, 5).feature("waiting").tolist() == [4.0, 4.0]
    with pytest.raises(InputError, match=r"waiting\.1"):
        DemandSeries(0.0, 60.0, np.ones(2), {"waiting": np.array([0.0, -1.0])})
    with pytest.raises(InputError, match="waiting"):
        DemandSeries(0.0, 60.0, np.ones(2), {"waiting": np.ones(3)})


POOLS = {name: walk(LENGTH, seed) for seed, name in enumerate(("a", "b", "c"))}


def forecasts(pools, at, seed=0):
    found = {}
    for name, (series, predictor) in joint_pools(pools, small()).items():
        predictor.fit(series.between(0, TRAINED), np.random.default_rng(seed))
        found[name] = predictor.predict_many(series, at)
    return found


AT = np.arange(TRAINED, LENGTH)


@pytest.fixture(scope="module")
def joint():
    return forecasts(POOLS, AT)


@pytest.mark.slow
@given(st.permutations(list(POOLS)))
@settings(max_examples=4, deadline=None)
def test_permuting_the_pools_permutes_the_forecasts(joint, order):
    for renamed in (dict.fromkeys(order), dict(zip(order, POOLS, strict=True))):
        names = {name: own or name for name, own in renamed.items()}  # in another order; under other names
        found = forecasts({name: POOLS[own] for name, own in names.items()}, AT)
        assert {name: (found[name] == joint[own]).all() for name, own in names.items()} == dict.fromkeys(names, True)


@pytest.mark.slow
@given(st.sampled_from(list(POOLS)), st.integers(0, LENGTH - TRAINED - 1), st.floats(0, 500))
@settings(max_examples=4, deadline=None)
def test_demand_of_another_pool_after_the_origin_changes_nothing(joint, name, known, gpus):
    changed = POOLS[name].gpus.copy()
    changed[TRAINED + known + 1 :] = np.floor(gpus)
    found = forecasts({**POOLS, name: replace(POOLS[name], gpus=changed)}, AT[: known + 1])
    for own, before in joint.items():
        assert (found[own] == before[: known + 1]).all()


def test_a_pool_learns_from_the_others():
    """A pool that stood still while it learned rises as the others did before."""
    ramp = np.tile(np.repeat([10.0, 10.0, 40.0, 40.0], 5), LENGTH // 20)
    still = ramp.copy()
    still[:TRAINED] = 10.0
    pools = {
        "a": DemandSeries(0.0, 60.0, ramp),
        "b": DemandSeries(0.0, 60.0, ramp + 1),
        "c": DemandSeries(0.0, 60.0, still),
    }
    at = np.arange(TRAINED + 40, LENGTH - 2)
    alone = small()
    alone.fit(pools["c"].between(0, TRAINED), np.random.default_rng(0))
    errors = [
        np.abs(found[:, 1, 4] - still[at + 2]).mean()
        for found in (forecasts(pools, at)["c"], alone.predict_many(pools["c"], at))
    ]
    assert errors[0] < 0.5 * errors[1]


def test_one_pool_and_other_predictors_are_fitted_as_before():
    assert joint_pools({"a": POOLS["a"]}, small()) is None
    assert joint_pools(POOLS, make_predictor("last-value")) is None
    assert LEVELS[4] == 0.5
