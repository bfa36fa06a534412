"""Nixtla's long format, there and back, and as their own library reads it."""

import datetime as dt
import math

import numpy as np
import polars as pl
import pytest

from commonwatt.data import nixtla
from commonwatt.forecasting._baselines import LastValue
from commonwatt.forecasting._rolling import forecast_rolling
from commonwatt.model.demand import LEVELS, DemandSeries
from commonwatt.model.errors import InputError
from tests.forecasting.made import walk

START = dt.datetime(2024, 1, 1)


def dates(year):
    return [dt.datetime(year, 1, 1), dt.datetime(year, 1, 1, 0, 1)]


def kinds():
    return ["polars", "pandas"]


@pytest.fixture(params=["polars", "pandas"])
def kind(request):
    if request.param == "pandas":
        pytest.importorskip("pandas")
    return request.param


def same(one, other):
    return (one.start_s, one.step_s) == (other.start_s, other.step_s) and np.array_equal(
        one.gpus, other.gpus, equal_nan=True
    )


def test_there_and_back(kind):
    given = {"b": walk(50, unknown=5), "a": DemandSeries(1.7e9, 600.0, np.arange(4.0))}
    frame = nixtla.to_long(given, kind)
    assert list(frame.columns) == ["unique_id", "ds", "y"]
    found = nixtla.from_long(frame)
    assert list(found) == ["a", "b"]
    assert all(same(found[name], given[name]) for name in given)


def test_missing_instants_and_any_order_of_rows():
    frame = pl.DataFrame(
        {"unique_id": ["a"] * 4, "ds": [START + dt.timedelta(minutes=m) for m in (5, 0, 1, 2)], "y": [4, 1, 2, None]}
    )
    found = nixtla.from_long(frame)["a"]
    assert np.array_equal(found.gpus, [1, 2, np.nan, np.nan, np.nan, 4], equal_nan=True)


def test_integers_and_dates_and_an_index():
    whole = pl.DataFrame({"unique_id": ["a", "a"], "ds": [3, 4], "y": [1.0, 2.0]})
    assert nixtla.from_long(whole, 60.0)["a"].start_s == 180.0
    days = pl.DataFrame({"unique_id": ["a", "a"], "ds": [dt.date(1970, 1, 2), dt.date(1970, 1, 3)], "y": [1.0, 2.0]})
    assert (nixtla.from_long(days)["a"].start_s, nixtla.from_long(days)["a"].step_s) == (86400.0, 86400.0)
    pytest.importorskip("pandas")
    indexed = nixtla.to_long({"a": walk(20)}, "pandas").set_index("unique_id")
    assert same(nixtla.from_long(indexed)["a"], walk(20))


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (pl.DataFrame({"unique_id": ["a"], "ds": [1]}), "unique_id, ds and y"),
        (pl.DataFrame({"unique_id": ["a", "a"], "ds": [1, 1], "y": [1, 2]}), "each once"),
        (pl.DataFrame({"unique_id": ["a"], "ds": [1], "y": [1]}), "two instants"),
        (pl.DataFrame({"unique_id": ["a"] * 4, "ds": [0, 4, 8, 10], "y": [1, 2, 3, 4]}), "4 s apart"),
        (pl.DataFrame({"unique_id": ["a", "a"], "ds": [1, 2], "y": [1, -2]}), "0 or more"),
        (pl.DataFrame({"unique_id": ["a", "a"], "ds": [1, 2], "y": [1.0, 1e19]}), "at most 1,000,000,000"),
        (pl.DataFrame({"unique_id": ["a", "a"], "ds": ["x", "y"], "y": [1, 2]}), "datetimes or integers"),
        (
            pl.DataFrame({"unique_id": ["a", "a"], "ds": pl.Series([object()] * 2, dtype=pl.Object), "y": [1, 2]}),
            "datetimes or integers",
        ),
        (pl.DataFrame({"unique_id": ["a", None] * 2, "ds": [1, 1, 2, 2], "y": [1] * 4}), "a name in every row"),
        (pl.DataFrame({"unique_id": [1.0, math.nan] * 2, "ds": [1, 1, 2, 2], "y": [1] * 4}), "a name in every row"),
        (pl.DataFrame({"unique_id": pl.Series([object()] * 2, dtype=pl.Object), "ds": [1, 2], "y": [1, 2]}), "texts"),
        (pl.DataFrame({"unique_id": ["a", "a"], "ds": [1, 2], "y": ["many", "1"]}), "numbers, null where unknown"),
        (pl.DataFrame({"unique_id": ["a", "a"], "ds": [1, None], "y": [1, 2]}), "an instant in every row"),
        (pl.DataFrame({"unique_id": [], "ds": [], "y": []}), "at least one row"),
        (pl.DataFrame({"unique_id": ["a"] * 3, "ds": [0, 1, 86_403], "y": [1, 2, 3]}), "no hole longer"),
        (
            pl.DataFrame({"unique_id": ["a"] * 4, "ds": [*dates(2024), *dates(2074)], "y": [1, 2, 3, 4]}),
            "no hole longer",
        ),
    ],
)
def test_refused(frame, said):
    with pytest.raises(InputError, match=said):
        nixtla.from_long(frame)


def test_periods_of_pandas_are_no_datetimes():
    pandas = pytest.importorskip("pandas")
    periods = pandas.period_range("2024-01", periods=3, freq="h")
    with pytest.raises(InputError, match="field 'ds': got 'Object', expected datetimes or integers"):
        nixtla.from_long(pandas.DataFrame({"unique_id": ["a"] * 3, "ds": periods, "y": [1, 2, 3]}))


@pytest.mark.parametrize("name", [None, float("nan")])
def test_a_series_of_pandas_without_a_name(name):
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InputError, match="unique_id"):
        nixtla.from_long(pandas.DataFrame({"unique_id": ["a", name] * 2, "ds": [1, 1, 2, 2], "y": [1] * 4}))


def test_no_series_make_no_frame(kind):
    with pytest.raises(InputError, match="at least one series"):
        nixtla.to_long({}, kind)


def test_a_hole_as_long_as_is_said():
    frame = pl.DataFrame({"unique_id": ["a"] * 3, "ds": [0, 1, 100_000], "y": [1, 2, 3]})
    assert len(nixtla.from_long(frame, longest_gap_s=np.inf)["a"]) == 100_001
    assert len(nixtla.from_long(frame.with_columns(ds=pl.Series([0, 1, 86_402])))["a"]) == 86_403


def test_a_column_of_several_kinds():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InputError, match="'y'"):
        nixtla.from_long(pandas.DataFrame({"unique_id": ["a", "a"], "ds": [1, 2], "y": [1, "x"]}))


def test_what_is_no_frame():
    pytest.importorskip("pandas")
    with pytest.raises(InputError, match="a polars or pandas frame"):
        nixtla.from_long([1, 2])


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("gru-q-0.95", ("gru", 0.95)),
        ("a-q-b-q-0.5", ("a-q-b", 0.5)),
        ("gru", None),
        ("gru-q-x", None),
        ("-q-0.5", None),
    ],
)
def test_names_of_columns(column, expected):
    assert nixtla.level_of(column) == expected
    if expected:
        assert nixtla.quantile_column(*expected) == column


def test_a_forecast(kind):
    series = walk()
    predictor = LastValue(10, 5)
    predictor.fit(series, np.random.default_rng(0))
    frame = nixtla.to_forecast("last-value", "philly", series, predictor.predict(), kind)
    assert list(frame.columns)[:3] == ["unique_id", "ds", "last-value"]
    assert list(frame.columns)[-1] == "last-value-q-0.99"
    assert len(frame) == 5
    assert np.datetime64(frame["ds"].to_numpy()[0], "s").astype(int) == series.end_s
    assert frame["last-value-q-0.99"].to_numpy() == pytest.approx(predictor.predict().gpus[:, -1])


def test_rolling_forecasts_as_their_library_scores_them(kind):
    series = walk(length=200)
    rolled = forecast_rolling(LastValue(10, 5), series, 150, np.random.default_rng(0))
    frame = nixtla.to_cross_validation("a", series, {"naive": rolled}, kind)
    assert list(frame.columns)[:5] == ["unique_id", "ds", "cutoff", "y", "naive"]
    assert len(frame) == 5 * len(rolled.origins)
    steps = (frame["ds"].to_numpy() - frame["cutoff"].to_numpy()) / np.timedelta64(60, "s")
    assert steps.tolist() == [1, 2, 3, 4, 5] * len(rolled.origins)
    losses = pytest.importorskip("utilsforecast.losses")
    theirs = losses.quantile_loss(
        frame.drop("cutoff") if kind == "polars" else frame.drop(columns="cutoff"), {"naive": "naive-q-0.9"}, q=0.9
    )
    q = LEVELS.tolist().index(0.9)
    missed = rolled.actual - rolled.gpus[:, :, q]
    assert float(theirs["naive"].to_numpy()[0]) == pytest.approx(np.maximum(0.9 * missed, -0.1 * missed).mean())


def test_models_that_do_not_go_together():
    series = walk()
    one, other = (forecast_rolling(LastValue(10, m), series, 300, np.random.default_rng(0)) for m in (5, 4))
    with pytest.raises(InputError, match="the same origins"):
        nixtla.to_cross_validation("a", series, {"x": one, "y": other})
    with pytest.raises(InputError, match="none"):
        nixtla.to_cross_validation("a", series, {})
