"""Forecasts and plans from Python: one call each, with errors that name parameters."""

import importlib
import subprocess
import sys

import numpy as np
import pytest

from commonwatt.data.series_files import SeriesFile
from commonwatt.forecasting import make_predictor
from commonwatt.model.capacity import WaitingTarget
from commonwatt.model.demand import LEVELS, DemandSeries
from commonwatt.model.errors import InputError
from commonwatt.planning.evaluation import evaluate_series
from commonwatt.planning.predictors import fit_series, load_predictor, make_savable, predict_series
from commonwatt.planning.replay import plan_series
from commonwatt.planning.series import LoadedSeries, load_series
from tests.forecasting.made import walk


def loaded(length=700):
    return LoadedSeries(SeriesFile(walk(length), dated=False, holes=0))


def test_a_predictor_is_evaluated_by_one_call():
    found = evaluate_series(loaded(), load_predictor("last-value"), 500, target=0.9, total_gpus=400)
    assert (found.model, found.test_values, found.fits, found.promise.target) == ("last-value", 200, 1, 0.9)
    assert [row.q for row in found.quantiles] == LEVELS.tolist()
    assert [way.name for way in found.equal_performance] == ["last-value", "perfect-foresight"]
    other = evaluate_series(loaded(), load_predictor("moving-max"), 500, margin=0.05)
    assert [way.name for way in other.equal_performance] == ["moving-max+5%", "last-value", "perfect-foresight"]


def test_a_plan_by_one_call_replays_the_last_seventh():
    replayed = plan_series(loaded(), load_predictor("last-value"), total_gpus=400)
    assert replayed.begin == 600
    assert replayed.result.replayed == len(replayed.actual) == 100
    assert replayed.result.plan[0].gpus_on <= 400


@pytest.mark.slow
def test_a_saved_predictor_forecasts_what_it_did_and_is_never_refitted(tmp_path):
    pytest.importorskip("lightgbm")
    pytest.importorskip("safetensors")
    file, parts = loaded().file, []
    predictor = make_savable("lightgbm", horizon=1)
    result = fit_series(file, predictor, tmp_path / "m.safetensors", until=600, progress=parts.append)
    assert (result.values, result.interrupted, parts) == (600, False, [1.0])
    found = predict_series(tmp_path / "m.safetensors", file, 599)
    assert list(found.steps[0].gpus) == predictor.predict().gpus[0].tolist()
    saved = load_predictor(str(tmp_path / "m.safetensors"))
    assert evaluate_series(loaded(), saved, 600).fits == 0
    with pytest.raises(InputError, match="as the model was fitted") as refused:
        evaluate_series(loaded(), saved, 500)
    assert refused.value.field == "test_from"
    with pytest.raises(InputError, match="no refits") as refused:
        evaluate_series(loaded(), saved, 600, refit_every=5)
    assert refused.value.field == "refit_every"


def test_errors_name_parameters_not_options(tmp_path):
    with pytest.raises(InputError) as refused:
        plan_series(loaded(), load_predictor("last-value"), 5)
    assert refused.value.field == "test_from"
    with pytest.raises(InputError) as refused:
        make_savable("lightgbm", epochs=3)
    assert refused.value.field == "epochs"
    (tmp_path / "d.csv").write_text("t_s,gpus\n0,1\n60,2\n")
    with pytest.raises(InputError) as refused:
        load_series(tmp_path / "d.csv", where={"gpus": "7"})
    assert refused.value.field == "where"


@pytest.mark.parametrize("package", ["capacity", "forecasting"])
def test_a_face_offers_few_names_and_imports_nothing_before_they_are_used(package):
    face = importlib.import_module(f"commonwatt.{package}")
    assert 5 <= len(face.__all__) <= 15
    assert all(hasattr(face, name) for name in face.__all__)
    code = f"import sys, commonwatt.{package}; assert not {{'numpy', 'numba', 'torch'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_series_of_its_own_needs_no_file():
    series = DemandSeries(0.0, 60.0, np.full(400, 7.0))
    replayed = plan_series(LoadedSeries(SeriesFile(series, dated=False, holes=0)), make_predictor("moving-max"), 300)
    assert {row.performance for row in replayed.result.replay} == {1.0}


@pytest.mark.long
def test_jobs_known_ahead_cut_what_a_promise_needs_above_foresight(tmp_path):
    rng = np.random.default_rng(4)
    rows = [f"{at},{rng.integers(600, 7_200)},{rng.choice([1, 8])}" for at in np.sort(rng.integers(0, 5 * 86_400, 900))]
    path = tmp_path / "jobs.csv"
    path.write_text("submit_s,duration_s,gpus\n" + "\n".join(rows) + "\n")
    jobs = load_series(path)
    test_from = 6_000

    def needed(share):
        found = evaluate_series(
            jobs.with_notice(share, 5, 1), load_predictor("last-value"), test_from, target=WaitingTarget(jobs=0.95)
        )
        own, foresight = found.equal_performance
        return own.gpu_hours / foresight.gpu_hours, found.promise.achieved

    none, half, all_known = (needed(share) for share in (0.0, 0.5, 1.0))
    plain = evaluate_series(jobs, load_predictor("last-value"), test_from, target=WaitingTarget(jobs=0.95))
    assert none[0] == plain.equal_performance[0].gpu_hours / plain.equal_performance[1].gpu_hours
    assert none[0] > half[0] > all_known[0] >= 1.0
    assert all_known[0] < 1.0 + 0.25 * (none[0] - 1.0)
    assert all_known[1] >= 0.95
    with pytest.raises(InputError, match="known_share"):
        loaded().with_notice(0.5, 5, 1)
