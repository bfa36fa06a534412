"""Rolling origin: what is forecast from where, and that nothing later is seen."""

import numpy as np
import pytest

from commonwatt.capacity._promise import Calibrator
from commonwatt.forecasting._baselines import LastValue
from commonwatt.forecasting._rolling import forecast_rolling
from commonwatt.model.demand import LEVELS, DemandSeries
from commonwatt.model.errors import InputError
from tests.forecasting.made import Oracle, walk


def rng():
    return np.random.default_rng(0)


def test_every_value_of_the_test_part_is_forecast_once_at_the_last_step():
    series = walk()
    rolled = forecast_rolling(Oracle(series), series, 300, rng())
    assert (rolled.origins + 5).tolist() == list(range(300, 400))
    assert rolled.actual[:, -1].tolist() == series.gpus[300:].tolist()
    assert rolled.actual[0].tolist() == series.gpus[296:301].tolist()


def test_who_knows_the_future_scores_full_marks():
    series = walk(unknown=30)
    filled = DemandSeries(0, 60, series.filled())
    rows, crps = forecast_rolling(Oracle(filled), series, 300, rng()).scores(LEVELS)
    assert all(row.mae == 0 and row.under_prediction_pct == 0 and row.pinball == 0 for row in rows)
    assert crps == 0


@pytest.mark.parametrize("offset", [2.0, 1.5])
def test_who_is_off_by_two_is_off_by_two(offset):
    series = walk()
    (row,), _ = forecast_rolling(Oracle(series, offset=offset), series, 300, rng()).scores(np.array([0.9]))
    assert row.mae == 2.0
    assert row.pinball == pytest.approx(0.2)


def test_it_is_fitted_on_what_lies_before():
    series = walk()
    oracle = Oracle(series)
    forecast_rolling(oracle, series, 300, rng())
    assert oracle.fitted == [300]


@pytest.mark.parametrize("every", [1, 7, 40, 1000])
def test_fitted_anew_it_has_seen_all_up_to_its_first_origin(every):
    series = walk()

    class Watched(Oracle):
        def predict_many(self, given, origins):
            if len(self.fitted) > 1:
                assert self.fitted[-1] == origins[0] + 1
                assert len(origins) <= every
            return super().predict_many(given, origins)

    oracle = Watched(series)
    rolled = forecast_rolling(oracle, series, 300, rng(), refit_every=every)
    assert rolled.fits == len(oracle.fitted) == 1 + len(range(299 + every, 395, every))
    assert rolled.gpus[:, -1, 0].tolist() == series.gpus[300:].tolist()


@pytest.mark.slow
def test_changing_the_future_changes_no_forecast_and_no_decision():
    series = walk(length=1200)
    changed = series.gpus.copy()
    changed[900:] = 500.0
    made = []
    for given in (series, DemandSeries(0, 60, changed)):
        predictor, calibrator = LastValue(10, 5), Calibrator(0.9, window=20)
        rolled = forecast_rolling(predictor, given, 300, rng(), fit_before=600)
        on = calibrator.follow(given.gpus, rolled.origins, rolled.levels, rolled.gpus).gpus[-600:, -1]
        made.append((rolled.last(600), on))
    (one, on), (other, other_on) = made
    before = one.origins < 900
    assert (one.gpus[before] == other.gpus[before]).all()
    assert (on[before] == other_on[before]).all()


def test_levels_between_are_interpolated_and_beyond_are_the_outermost():
    series = walk()
    rolled = forecast_rolling(LastValue(10, 5), series, 300, rng())
    assert rolled.at(0.985) == pytest.approx((rolled.at(0.98) + rolled.at(0.99)) / 2)
    assert (rolled.at(0.999) == rolled.gpus[:, -1, -1]).all()
    assert (rolled.at(0.05) == rolled.gpus[:, -1, 0]).all()


@pytest.mark.parametrize("first", [0, 14, 400, 500])
def test_a_test_part_that_leaves_nothing_to_fit_on_is_refused(first):
    with pytest.raises(InputError, match="test part"):
        forecast_rolling(LastValue(10, 5), walk(), first, rng())


def unknown_until(first, length=1200):
    gpus = walk(length).gpus.copy()
    gpus[:first] = np.nan
    return DemandSeries(0.0, 60.0, gpus)


def test_from_before_the_first_known_value_nothing_is_forecast():
    series = unknown_until(500)
    rolled = forecast_rolling(LastValue(10, 5), series, 300, rng(), fit_before=600)
    assert rolled.origins[0] == 500
    assert len(rolled.last(600).origins) == 600
    with pytest.raises(InputError, match="a known value 5 steps before the test part"):
        forecast_rolling(LastValue(10, 5), unknown_until(597), 601, rng())


def test_refits_need_a_step():
    with pytest.raises(InputError, match="refit_every"):
        forecast_rolling(LastValue(10, 5), walk(), 300, rng(), refit_every=0)
