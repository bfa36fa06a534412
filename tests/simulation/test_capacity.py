"""Capacity plans in ``simulate``: from the scenario file to the result and the page."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from commonwatt.capacity._demand_forecasters import CalibratedForecaster
from commonwatt.capacity._promise import Calibrator
from commonwatt.control.controller import Sample
from commonwatt.data.forecast_model import read_model, write_model
from commonwatt.forecasting import joint_pools
from commonwatt.forecasting._baselines import LastValue
from commonwatt.forecasting._lightgbm_quantile import LightGbmQuantile
from commonwatt.forecasting._predictors import PREDICTORS, make_predictor
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.demand import DemandSeries
from commonwatt.model.errors import InputError
from commonwatt.model.nodes import Cluster, NodeSpec, PowerState
from commonwatt.model.scenario import Scenario
from commonwatt.planning.capacity import FitCache, Past, _fitted, demand_of_run, make_capacity
from commonwatt.simulation.workload import prepare
from tests.cli.console import run, scenario, write
from tests.forecasting.made import walk
from tests.report.pages import Page

STATES = [{"name": "sleep", "power_w": 60, "enter_s": 10, "wake_s": 50, "wake_j": 1000}]
PLANS = {
    "always-on": {"policy": "always-on"},
    "last-value": {"policy": "last-value"},
    "threshold": {"policy": "threshold", "forecaster": "last-value", "history_days": 1},
    "cuff": {"policy": "cuff", "forecaster": "last-value", "history_days": 1, "target": 0.9},
    "waiting": {"policy": "cuff", "forecaster": "last-value", "history_days": 1, "target": {"jobs": 0.9}},
    "foresight": {"policy": "foresight"},
}


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A little more than a day of short jobs."""
    path, rng = tmp_path_factory.mktemp("log") / "jobs.csv", np.random.default_rng(3)
    submit = np.sort(rng.integers(0, 96_000, 300))
    rows = [f"{at},{rng.integers(300, 2400)},{rng.choice([1, 1, 2, 4, 8])}" for at in submit]
    path.write_text("submit_s,duration_s,gpus\n" + "\n".join(rows) + "\n")
    return path


def planned(log, **more) -> dict:
    given = {
        "workload": {
            "source": "csv",
            "path": str(log),
            "begin": "86400",
            "days": 0.1,
            "profiles": "law",
            "logged_gpu_type": "V100",
        },
        "nodes": [
            {"name": "v", "count": 8, "gpu_type": "V100", "gpus": 8, "idle_w": 400, "gpu_w": 250, "states": STATES}
        ],
        "policies": [{"solver": "easy", "name": name, "capacity": plan} for name, plan in PLANS.items()],
    }
    return scenario(**(given | more))


@pytest.fixture(scope="module")
def outcome(tmp_path_factory, log):
    folder = tmp_path_factory.mktemp("capacity")
    done = run(
        "simulate", write(folder / "s.yaml", planned(log)), "--out", folder / "out", "--json", "--jobs", 1, "--plot",
        folder / "overview.png",
    )  # fmt: skip
    assert done.code == 0, done.err
    return done.document, (folder / "out" / "report.html").read_text()


def by_name(document: dict) -> dict:
    return {policy["policy"]: policy for policy in document["policies"]}


@pytest.mark.slow
def test_every_plan_runs_every_job_and_saves(outcome):
    policies = by_name(outcome[0])
    always = policies["always-on"]
    assert always["capacity"]["saving_pct"] == 0
    assert always["capacity"]["jobs_delayed"] == 0
    assert always["capacity"]["mean_delay_s"] is None
    for name in ("last-value", "threshold", "cuff", "foresight"):
        policy, plan = policies[name], policies[name]["capacity"]
        assert policy["jobs"] == always["jobs"]
        assert policy["energy_kwh"] < 0.9 * always["energy_kwh"]
        assert plan["energy_all_on_kwh"] == pytest.approx(always["energy_kwh"], rel=0.05)
        saved = 1 - policy["energy_kwh"] / plan["energy_all_on_kwh"]
        assert plan["saving_pct"] == pytest.approx(100 * saved)
        assert plan["mean_gpus_used"] <= plan["mean_gpus_on"] <= 64
        assert 0 < plan["slots_served"] <= 1
        rows = {row["row"]: row["energy_uj"] for row in policy["ledger"]}
        total = rows.pop("total")
        assert sum(rows.values()) == total
        assert rows["asleep"] > 0
    assert policies["foresight"]["capacity"]["jobs_delayed"] <= policies["last-value"]["capacity"]["jobs_delayed"]
    assert policies["cuff"]["capacity"]["target"] == 0.9
    assert policies["cuff"]["capacity"]["forecaster"] == "last-value"
    waiting = policies["waiting"]["capacity"]
    assert (waiting["promise_of"], waiting["target"], policies["cuff"]["capacity"]["promise_of"]) == (
        "jobs",
        0.9,
        "instants",
    )
    assert 0.75 <= waiting["jobs_served"] <= 1
    assert waiting["p95_delay_s"] <= waiting["p99_delay_s"]
    assert policies["last-value"]["capacity"]["target"] is None


@pytest.mark.slow
def test_the_page_shows_gpus_on_against_used(outcome):
    page = outcome[1]
    assert 'id="fig-on"' in page
    assert Page(page).data["figures"]["on"]["data"]
    assert "Nodes on" in page


def test_a_page_without_plans_has_no_such_section(tmp_path):
    done = run("simulate", write(tmp_path / "s.yaml", scenario()), "--out", tmp_path / "out", "--json", "--jobs", 1)
    assert "fig-on" not in (tmp_path / "out" / "report.html").read_text()
    assert all(policy["capacity"] is None for policy in json.loads(done.out)["policies"])


@pytest.mark.parametrize(
    ("plan", "word"),
    [
        ({"policy": "cuff", "target": 1.5}, "target"),
        ({"policy": "cuff", "target": 0}, "target"),
        ({"policy": "cuff", "target": {"jobs": 0}}, "target"),
        ({"policy": "cuff", "target": {"jobs": 0.9, "delayed_gpu_h": 1}}, "target"),
        ({"policy": "cuff", "target": {"delay_s": {"p99": 600}}, "history_days": 1}, "capacity.target"),
        ({"policy": "sometimes"}, "policy"),
        ({"policy": "cuff", "forecaster": "oracle"}, "forecaster"),
        ({"policy": "cuff", "forecaster": "m" * 300}, "forecaster"),
        ({"policy": "cuff", "history_days": 0.05}, "forecaster"),
        ({"policy": "last-value", "states": ["nap"]}, "states"),
        ({"policy": "last-value", "step_s": 10}, "horizon"),
        ({"policy": "last-value", "floor_gpus": 65}, "floor_gpus"),
        ({"policy": "last-value", "step_s": 0}, "step_s"),
    ],
)
def test_bad_plans_are_refused_in_one_line(plan, word, tmp_path, log):
    file = write(tmp_path / "s.yaml", planned(log, capacity=plan, policies=[{"solver": "easy"}]))
    done = run("simulate", file, "--json", "--jobs", 1)
    assert done.code == 2
    assert word in done.err
    assert done.err.strip().count("\n") == 0
    assert "Traceback" not in done.err


def test_a_forecaster_whose_package_is_missing_is_told_before_anything_runs(tmp_path, log, monkeypatch):
    """Before too short a history is, which another log could mend."""
    monkeypatch.setitem(sys.modules, "chronos", None)
    plan = {"policy": "cuff", "forecaster": "chronos", "history_days": 0.01}
    file = write(tmp_path / "s.yaml", planned(log, capacity=plan, policies=[{"solver": "easy"}]))
    done = run("simulate", file, "--json", "--jobs", 1)
    assert (done.code, done.out) == (2, "")
    assert done.err == "error: chronos is not installed; run: pip install 'commonwatt[chronos]'\n"


def test_jobs_written_out_have_no_past_to_fit_to(tmp_path):
    file = write(tmp_path / "s.yaml", scenario(capacity={"policy": "cuff"}))
    done = run("simulate", file, "--json", "--jobs", 1)
    assert done.code == 2
    assert "demand before the period" in done.err


@pytest.mark.slow
def test_a_target_of_all_keeps_everything_on(tmp_path, log):
    plan = {"policy": "cuff", "target": 1, "history_days": 1}
    file = write(tmp_path / "s.yaml", planned(log, policies=[{"solver": "easy", "capacity": plan}]))
    (policy,) = run("simulate", file, "--json", "--jobs", 1).document["policies"]
    assert policy["capacity"]["mean_gpus_on"] == pytest.approx(64)
    assert policy["capacity"]["fallback_plans"] == policy["capacity"]["plans"]


def test_demand_of_a_run_is_the_most_wanted_in_each_step():
    wanted = [(0.0, 3), (30.0, 5), (50.0, 2), (185.0, 4), (190.0, 0)]
    samples = [Sample(time_s, 0, None, 0, 0, 0, gpus) for time_s, gpus in wanted]
    np.testing.assert_array_equal(demand_of_run(samples, 60.0).gpus, [5, 2, 2, 4])


def model_file(path, seed, start_s=0.0):
    pytest.importorskip("safetensors")
    trees = LightGbmQuantile(trees=2, steps=(5,))
    trees.fit(replace(walk(900, seed=seed), start_s=start_s), np.random.default_rng(0))
    write_model(trees, path, 0)


@pytest.mark.long
def test_a_plan_forecasts_by_a_model_file_whose_content_counts(tmp_path, log):
    pytest.importorskip("lightgbm")
    plan = {"policy": "cuff", "forecaster": "demand.safetensors", "history_days": 1}
    file = write(tmp_path / "s.yaml", planned(log, policies=[{"solver": "easy", "name": "plan", "capacity": plan}]))
    missing = run("simulate", file, "--json", "--jobs", 1)
    assert (missing.code, "forecaster" in missing.err) == (2, True)
    digests = []
    for seed in (1, 2):
        model_file(tmp_path / "demand.safetensors", seed)
        done = run("simulate", file, "--json", "--jobs", 1)
        assert done.code == 0, done.err
        found = done.document
        assert found["policies"][0]["capacity"]["forecaster"] == "demand.safetensors"
        assert found["policies"][0]["capacity"]["slots_served"] > 0
        digests.append(found["input_digest"])
    assert digests[0] != digests[1]
    (tmp_path / "demand.safetensors").write_bytes(b"no model")
    broken = run("simulate", file, "--json", "--jobs", 1)
    assert (broken.code, broken.err.strip().count("\n"), "demand.safetensors" in broken.err) == (2, 0, True)


def quick_trees(monkeypatch) -> list[float]:
    """Make LightGBM by its name a matter of moments; return what it is fitted on, by its end."""
    pytest.importorskip("lightgbm")
    entry = replace(PREDICTORS["lightgbm"], options=(("trees", 2), ("steps", (5,))))
    monkeypatch.setitem(PREDICTORS, "lightgbm", entry)
    fitted, fit = [], LightGbmQuantile.fit
    monkeypatch.setattr(
        LightGbmQuantile, "fit", lambda own, series, rng: (fitted.append(series.end_s), fit(own, series, rng))
    )
    return fitted


@pytest.mark.slow
def test_what_was_fitted_is_kept_for_a_day_and_sees_what_came_since(monkeypatch):
    ends, fits, whole = quick_trees(monkeypatch), FitCache(), walk(4000)
    spec = CapacitySpec(forecaster="lightgbm")
    for until, fitted in ((1000, 1), (1000, 1), (2439, 1), (2440, 2), (2000, 3)):  # a day is 1440 of its minutes
        seen = whole.between(0, until)
        predictor = fits.of(spec, seen, 0)
        assert len(ends) == fitted
        expected = predictor.predict_many(seen, np.array([until - 1]))[0]
        assert (predictor.predict().gpus == expected).all()
    fits.of(spec, replace(whole.between(0, 2000), step_s=30.0), 0)
    assert len(ends) == 4
    assert isinstance(fits.of(CapacitySpec(forecaster="last-value"), whole, 0), LastValue)


@pytest.mark.slow
def test_one_model_is_fitted_to_all_pools_of_a_plan(monkeypatch):
    quick_trees(monkeypatch)
    learned, learn = [], LightGbmQuantile.learn
    monkeypatch.setattr(
        LightGbmQuantile, "learn", lambda own, several, rng, *more: (
            learned.append([len(series) for series in several]), learn(own, several, rng, *more))[1],
    )  # fmt: skip
    kinds = {"idle_w": 100, "gpu_w": 100, "gpus": 8, "states": (PowerState(**STATES[0]),)}
    cluster = Cluster.of([NodeSpec(name=name, count=9, gpu_type=name, **kinds) for name in ("V100", "A100")])
    spec = CapacitySpec(forecaster="lightgbm", pools="gpu_type")
    walks = {"V100": walk(4000, seed=1), "A100": walk(4000, seed=2)}

    def past(until, **other):
        key, parts = (spec.step_s, spec.history_days), {}
        for name, series in walks.items():
            parts["gpu_type", name] = Past({key: series.between(0, other.get(name, until))})
        return Past(pools=parts)

    def quantiles(capacity, pool):
        return capacity._planner._forecasters[pool]._predictor.predict().gpus

    fits = FitCache()
    for until, times in ((1200, 1), (1200, 1), (2000, 1), (3600, 2)):  # a day of what it learns from is 1440 minutes
        made = make_capacity(spec, cluster, past(until), 0, fits=fits)
        assert (len(learned), len(learned[-1])) == (times, 2)
        demands = {name: series.between(0, until) for name, series in walks.items()}
        if until in (1200, 3600):
            pools = joint_pools(demands, make_predictor("lightgbm"), {"V100": 72, "A100": 72})
            for p, (series, predictor) in enumerate(pools.values()):
                predictor.fit(series.between(0, until - until // 3), np.random.default_rng([0, 4]))
                assert (predictor.predict_many(series, np.array([until - 1]))[0] == quantiles(made, p)).all()
            learned[-2:] = learned[-2:-1]
    # without demand of one pool over the same time each is fitted by itself
    learned.clear()
    make_capacity(spec, cluster, past(1200, A100=1100), 0)
    assert [len(several) for several in learned] == [1, 1]
    # the libraries' own errors are told of each pool, and stop no controller
    monkeypatch.setattr(LightGbmQuantile, "learn", lambda *_: 1 / 0)
    told = []
    make_capacity(spec, cluster, past(1200), 0, otherwise=lambda name, error: told.append((name, type(error))))
    assert told == [("V100", ZeroDivisionError), ("A100", ZeroDivisionError)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "begin"),
    [("last-value", 200), ("moving-max", 200), ("lightgbm", 200), ("lightgbm", 400), ("lightgbm", 50)],
)  # what is read from a file may have seen less than it looks back on
def test_a_plan_is_calibrated_by_the_forecasts_it_would_have_made_one_by_one(name, begin, monkeypatch):
    quick_trees(monkeypatch)
    slow, quick, series = make_predictor(name), make_predictor(name), walk(400)
    for predictor in (slow, quick):
        predictor.fit(series.between(0, max(begin, 200)), np.random.default_rng(0))
        if begin < 200:
            predictor.see(series.between(0, begin))
    one_by_one, at_once = (Calibrator(0.9, whole_gpus=300) for _ in range(2))
    for gpus in series.gpus[begin:].tolist():
        slow.update(gpus)
        one_by_one.observe(gpus)
        one_by_one.keep_on(slow.predict())
    asked, predict = [], quick.predict
    monkeypatch.setattr(quick, "predict", lambda: (asked.append(1), predict())[1])
    CalibratedForecaster(quick, at_once).warm(series, begin)
    assert len(asked) == max(0, 119 - begin)
    assert at_once.state == one_by_one.state
    assert at_once.shift_gpus == pytest.approx(one_by_one.shift_gpus, abs=1e-9)
    assert (quick.predict().gpus == slow.predict().gpus).all()


EPOCH_S = 1_700_000_000  # the log is dated if its times count from 1970


@pytest.mark.slow
@pytest.mark.parametrize("dated", [False, True])
@pytest.mark.parametrize(("begin", "refused"), [(54_000, False), (53_970, False), (53_940, True), (None, True)])
def test_a_model_that_has_seen_the_period_is_refused(tmp_path, dated, begin, refused):
    """Fitted on 900 minutes, or from the log's first job on if the period begins there."""
    pytest.importorskip("lightgbm")
    zero = EPOCH_S if dated else 0
    model_file(tmp_path / "m.safetensors", 1, float(zero))
    (tmp_path / "jobs.csv").write_text(
        "submit_s,duration_s,gpus\n" + "".join(f"{zero + i},60,1\n" for i in range(0, 60_000, 600))
    )
    plan = {"policy": "cuff", "forecaster": "m.safetensors", "history_days": 1}
    given = planned("jobs.csv", policies=[{"solver": "easy", "capacity": plan}])
    given["workload"]["begin"] = None if begin is None else str(zero + begin)
    made = Scenario.model_validate(given)
    if not refused:
        prepare(made, tmp_path, 0)
        return
    with pytest.raises(InputError, match=r"m\.safetensors.* fitted until .*which begins at") as told:
        prepare(made, tmp_path, 0)
    assert ("2023-11-1" in str(told.value)) == dated


def test_times_without_dates_tell_nothing_of_a_model_with_dates(tmp_path, log):
    pytest.importorskip("lightgbm")
    model_file(tmp_path / "m.safetensors", 1, float(EPOCH_S))
    plan = {"policy": "cuff", "forecaster": "m.safetensors", "history_days": 1}
    prepare(Scenario.model_validate(planned(log, policies=[{"solver": "easy", "capacity": plan}])), tmp_path, 0)


@pytest.mark.parametrize("step_s", [60.0, 600.0])
def test_a_model_file_sees_what_was_before_the_period_in_place_of_what_it_was_fitted_on(step_s, tmp_path):
    pytest.importorskip("lightgbm")
    model_file(tmp_path / "m.safetensors", 1)
    spec = CapacitySpec(policy="threshold", forecaster="m.safetensors", step_s=step_s, history_days=1)
    before = DemandSeries(0.0, step_s, walk(800, seed=5).gpus)
    past = Past({(step_s, 1): before}, tmp_path)
    if step_s != 60:
        with pytest.raises(InputError, match="of the step"):
            _fitted(spec, past, 0, FitCache())
        return
    predictor, observed = _fitted(spec, past, 0, FitCache())
    seen = before.between(0, observed)
    fresh, _ = read_model(tmp_path / "m.safetensors")
    assert (predictor.predict().gpus == fresh.predict_many(seen, np.array([len(seen) - 1]))[0]).all()
