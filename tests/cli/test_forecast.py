"""``commonwatt forecast demand`` and ``evaluate`` as users type them."""

import numpy as np
import pytest

from commonwatt.data.series_files import read_series, write_series
from tests.cli.console import spawn
from tests.forecasting.made import walk

START_S = 1_704_067_200.0  # 2024-01-01
DEAD = "http://127.0.0.1:9"  # nobody listens on discard
TEST_FROM = "2024-01-01T05:00:00Z"


@pytest.fixture
def demand_file(tmp_path):
    path = tmp_path / "demand.csv"
    write_series(path, START_S, 60.0, {"gpus": walk().gpus, "more": walk(seed=1).gpus}, dated=True)
    return path


@pytest.fixture
def job_log(tmp_path):
    path = tmp_path / "jobs.csv"
    rng = np.random.default_rng(0)
    submit = np.sort(rng.integers(0, 40_000, 300))
    lines = [f"{s},{rng.integers(60, 9000)},{rng.choice([1, 2, 8])},t{i % 2}" for i, s in enumerate(submit)]
    path.write_text("submit_s,duration_s,gpus,tenant\n" + "\n".join(lines) + "\n")
    return path


@pytest.mark.slow
def test_the_document_of_evaluate(run, demand_file):
    arguments = ("forecast", "evaluate", demand_file, "--model", "last-value", "--test-from", TEST_FROM)
    done = run(*arguments, "--total-gpus", 200, "--gpu-w", 300, "--target", 0.9, "--json")
    assert done.code == 0, done.err
    found = done.document
    assert (found["model"], found["n"], found["m"], found["test_values"]) == ("last-value", 120, 5, 100)
    assert [row["q"] for row in found["quantiles"]][:3] == [0.1, 0.2, 0.3]
    assert set(found["quantiles"][0]) == {"q", "mae", "under_prediction_pct", "pinball", "coverage_error_pp"}
    promise = found["promise"]
    assert promise["target"] == 0.9
    assert 0.5 < promise["achieved"] <= 1
    assert promise["jobs_served"] is None
    assert found["energy_saving_pct"] == pytest.approx(100 * (1 - promise["mean_gpus_on"] / 200))
    names = {way["name"]: way for way in found["equal_performance"]}
    assert set(names) == {"last-value", "perfect-foresight"}
    assert names["last-value"]["performance"] >= 0.9
    assert names["perfect-foresight"]["gpu_hours"] == pytest.approx(walk().gpus[300:].sum() / 60)
    assert names["perfect-foresight"]["energy_kwh"] == pytest.approx(walk().gpus[300:].sum() / 60 * 0.3)
    assert found["version"]
    assert len(found["input_digest"]) == 64
    assert found["seed"] == 0
    again = run(*arguments, "--total-gpus", 200, "--gpu-w", 300, "--target", 0.9, "--json").document
    for clocked in ("fit_s", "predict_ms", "update_ms"):
        assert found.pop(clocked) >= 0
        again.pop(clocked)
    assert found == again


def test_without_a_total_the_saving_is_unknown(run, demand_file):
    found = run("forecast", "evaluate", demand_file, "--test-from", TEST_FROM, "--json").document
    assert found["energy_saving_pct"] is None
    assert all(way["energy_kwh"] is None for way in found["equal_performance"])


def test_the_threshold_method_and_other_columns(run, demand_file):
    found = run(
        "forecast", "evaluate", demand_file, "--model", "moving-max", "--margin", 5, "--column", "more",
        "--look-back", 10, "--horizon", 2, "--refit-every", 30, "--test-from", TEST_FROM, "--json",
    ).document  # fmt: skip
    assert (found["model"], found["n"], found["m"], found["fits"]) == ("moving-max+5%", 10, 2, 9)
    assert len({row["mae"] for row in found["quantiles"]}) == 1


def test_a_job_log_tells_who_is_served(run, job_log):
    found = run("forecast", "evaluate", job_log, "--test-from", 30_000, "--json").document
    assert 0.5 < found["promise"]["jobs_served"] <= 1
    wanted = run("forecast", "evaluate", job_log, "--column", "wanted_gpus", "--test-from", 30_000, "--json").document
    assert wanted["quantiles"] == found["quantiles"]  # this log tells no starts


def test_as_a_person_reads_it(run, demand_file):
    done = run("forecast", "evaluate", demand_file, "--test-from", TEST_FROM, "--total-gpus", 200, "--gpu-w", 250)
    assert done.code == 0, done.err
    for word in ("last-value", "promise     98%", "achieved", "saving", "perfect-foresight", "kWh", "CRPS"):
        assert word in done.out


def test_a_constant_and_an_all_zero_series(run, tmp_path):
    for level in (7.0, 0.0):
        path = tmp_path / f"{level}.csv"
        write_series(path, START_S, 60.0, {"gpus": np.full(400, level)}, dated=True)
        done = run("forecast", "evaluate", path, "--test-from", TEST_FROM, "--total-gpus", 10, "--json")
        assert done.code == 0, done.err
        assert done.document["promise"]["achieved"] == 1.0
        assert done.document["quantiles"][0]["mae"] == 0
        assert done.document["promise"]["gpus_served"] == (1.0 if level else None)


def test_a_target_of_100_percent_keeps_everything_on(run, demand_file):
    arguments = ("forecast", "evaluate", demand_file, "--test-from", TEST_FROM, "--target", 1, "--json")
    found = run(*arguments, "--total-gpus", 500).document
    assert found["promise"]["achieved"] == 1.0
    assert found["energy_saving_pct"] == 0.0


def test_unknown_values_count_nowhere(run, tmp_path):
    path = tmp_path / "holes.csv"
    gpus = walk().gpus
    gpus[320:350] = np.nan
    write_series(path, START_S, 60.0, {"gpus": gpus}, dated=True)
    found = run("forecast", "evaluate", path, "--test-from", TEST_FROM, "--json").document
    assert (found["test_values"], found["unknown"]) == (100, 30)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("time,gpus\n2024-01-01,1\n2024-01-01,2\n", "each time once"),
        ("time,gpus\n2024-01-01,1\n2023-01-01,2\n", "times that rise"),
        ("time,gpus\n2024-01-01,1\n2024-01-02,-3\n", "line 3: field 'gpus': got '-3'"),
        ("time,gpus\n0,1\n60,2\n120,3\n900000,3\n", "hole of 250 h"),
        ("time,gpus\n0,1\n60,2\n120,3\n", "more than 125 values before it"),
        ("time,gpus\n0,nan\n60,nan\n120,nan\n", "at least one known demand"),
        ("time,other\n0,1\n60,2\n", "field 'gpus': expected a column of this name"),
        ("", "some content"),
        (None, "an existing file"),
    ],
)
def test_bad_series(run, tmp_path, content, said):
    path = tmp_path / "bad.csv"
    if content is not None:
        path.write_text(content)
    done = run("forecast", "evaluate", path, "--test-from", "60", "--json")
    assert (done.code, done.out, len(done.lines)) == (2, "", 1), done.err
    assert said in done.err
    assert str(path) in done.err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--model", "crystal-ball"), "one of gru"),
        (("--test-from", "2030-01-01"), "a moment from 2024-01-01"),
        (("--test-from", "noon"), "a moment from 2024-01-01"),
        (("--target", "1.5"), "1.5"),
        (("--target", "0"), "0"),
        (("--target", "nan"), "not a finite share"),
        (("--total-gpus", "0"), "0"),
        (("--total-gpus", "inf"), "--total-gpus"),
        (("--total-gpus", "nan"), "--total-gpus"),
        (("--total-gpus", "0.5"), "--total-gpus"),
        (("--gpu-w", "nan"), "not a finite number"),
        (("--gpu-w", "inf"), "--gpu-w"),
        (("--max-gap", "nan"), "not a number"),
        (("--look-back", 10**13), "--look-back"),
        (("--horizon", 10**13), "--horizon"),
        (("--margin", "-5"), "-5"),
        (("--where", "gpus"), "a pair such as"),
        (("--where", "gpus=1000000"), "a value that occurs"),
        (("--model", "seasonal-naive"), "at least 1445 values"),
        (("--column", "cpus"), "a column of this name"),
        (("--time", "when"), "a column of this name"),
    ],
)
def test_bad_options(run, demand_file, more, said):
    done = run("forecast", "evaluate", demand_file, "--test-from", TEST_FROM, *more, "--json")
    assert (done.code, done.out, len(done.lines)) == (2, "", 1), done.err
    assert said in done.err


def test_demand_of_a_log(run, job_log, tmp_path):
    out = tmp_path / "demand.csv"
    done = run("forecast", "demand", job_log, "--out", out, "--step", 120, "--json")
    assert done.code == 0, done.err
    found = done.document
    assert (found["step_s"], found["counted_from"], found["out"]) == (120.0, "submissions", str(out))
    series = read_series(out).series
    assert len(series) == found["values"]
    assert series.gpus.mean() == pytest.approx(found["mean_gpus"])
    one = run("forecast", "demand", job_log, "--tenant", "t1", "--json").document
    other = run("forecast", "demand", job_log, "--tenant", "t0", "--json").document
    assert 0 < one["mean_gpus"] < found["mean_gpus"]
    assert 0 < other["mean_gpus"] < found["mean_gpus"]


def test_demand_that_is_generated(run, tmp_path):
    out = tmp_path / "demand.parquet"
    done = run("forecast", "demand", "generated", "--days", 3, "--seed", 4, "--out", out)
    assert done.code == 0, done.err
    assert "4,320 values" in done.out
    again = run("forecast", "demand", "generated", "--days", 3, "--seed", 4, "--json").document
    assert again["values"] == 4320
    assert again["mean_gpus"] == pytest.approx(np.nanmean(read_series(out).series.gpus))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "a LOG or --prometheus"),
        (("{log}", "--prometheus", "http://x"), "a LOG or --prometheus"),
        (("--prometheus", DEAD, "--begin", "2024-01-01", "--end", "2024-01-02"), "a query"),
        (("--prometheus", DEAD, "--query", "x", "--begin", "noon"), "field '--begin'"),
        (("--prometheus", DEAD, "--query", "x", "--begin", "2024-01-01"), "field '--end'"),
        (("--prometheus", DEAD, "--query", "x", "--begin", "2024-01-01", "--end", "2024-02-01"), "Prom"),
        (("{log}", "--tenant", "nobody"), "one of t0, t1"),
        (("{log}", "--begin", "noon"), "field '--begin'"),
        (("{log}", "--begin", "900000"), "a period"),
        (("{log}", "--format", "gavel"), "a job log"),
        (("{log}", "--out", "/nowhere/at/all.csv"), "written"),
        (("{log}", "--column", "gpus"), "a pair"),
        (("generated", "--step", "nan"), "--step"),
        (("generated", "--days", "nan"), "--days"),
        (("nothing",), "an existing file"),
    ],
)  # fmt: skip
def test_bad_demand(run, job_log, arguments, said):
    done = run("forecast", "demand", *(job_log if part == "{log}" else part for part in arguments), "--json")
    assert (done.code, done.out, len(done.lines)) == (2, "", 1), done.err
    assert said in done.err


@pytest.mark.slow
def test_help_is_quick_and_loads_nothing_heavy(modules_after):
    for arguments in (("forecast",), ("forecast", "evaluate"), ("forecast", "demand")):
        loaded = modules_after(*arguments, "--help")
        assert not loaded & {"numpy", "polars", "torch", "lightgbm", "pydantic"}


@pytest.mark.long
def test_the_installed_command(demand_file):
    done = spawn("forecast", "evaluate", demand_file, "--test-from", TEST_FROM, "--json")
    assert done.code == 0, done.err
    assert done.document["model"] == "last-value"


@pytest.fixture
def fitted(run, demand_file, tmp_path):
    """A tiny network fitted on the part before the test."""
    pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    path = tmp_path / "gru.safetensors"
    options = ("--members", 1, "--epochs", 1, "--look-back", 10, "--train-until", TEST_FROM)
    done = run("forecast", "fit", demand_file, "--out", path, *options)
    assert done.code == 0, done.err
    return path


@pytest.mark.long
@pytest.mark.slow
def test_a_model_file_is_evaluated_as_it_is(run, demand_file, fitted, tmp_path):
    arguments = ("forecast", "evaluate", demand_file, "--model", fitted, "--json")
    done = run(*arguments, "--test-from", TEST_FROM)
    assert done.code == 0, done.err
    assert (done.document["model"], done.document["n"], done.document["m"]) == ("gru", 10, 5)
    seen = run(*arguments, "--test-from", "2024-01-01T04:00:00Z")
    assert seen.code == 2
    assert "a test part from 2024-01-01T05:00:00Z on" in seen.err
    assert run(*arguments, "--test-from", TEST_FROM, "--horizon", 6).code == 2
    slower = tmp_path / "slower.csv"
    write_series(slower, START_S, 600.0, {"gpus": walk().gpus}, dated=True)
    other = run("forecast", "evaluate", slower, "--model", fitted, "--test-from", "2024-01-02T05:00:00Z", "--json")
    assert (other.code, other.out, len(other.lines)) == (2, "", 1)
    assert "values every 60 s" in other.err
    fitted.write_bytes(fitted.read_bytes()[:500])
    cut = run(*arguments, "--test-from", TEST_FROM)
    assert (cut.code, cut.out, len(cut.lines)) == (2, "", 1)
    missing = run("forecast", "evaluate", demand_file, "--model", "none.safetensors", "--test-from", TEST_FROM)
    assert (missing.code, len(missing.lines)) == (2, 1)


@pytest.mark.slow
def test_a_promise_about_jobs(run, job_log):
    found = run("forecast", "evaluate", job_log, "--test-from", 30_000, "--target", "jobs:0.9", "--gpu-w", 50, "--json")
    promise = found.document["promise"]
    assert (promise["of"], promise["target"], promise["label"]) == ("jobs", 0.9, "jobs:0.9")
    assert promise["achieved"] == promise["jobs_served"] == promise["waiting"]["jobs_served"]
    assert promise["waiting"]["delayed_jobs"] == round((1 - promise["achieved"]) * promise["waiting"]["jobs"])
    assert promise["waiting"]["p95_delay_s"] <= promise["waiting"]["p99_delay_s"] <= 300
    model = found.document["equal_performance"][0]
    assert model["performance"] >= 0.9
    assert promise["hindsight_ratio"] > 0
    plan = run("forecast", "plan", job_log, "--test-from", 30_000, "--target", "jobs:0.9", "--json").document
    assert plan["promise"]["achieved"] == promise["achieved"]  # evaluate scores the plan's own model and calibration
    worth = {row["name"]: row for row in plan["worth"]}
    assert worth["perfect-foresight"]["waiting"]["delayed_jobs"] == 0
    assert worth["last-value, equal waiting"]["waiting"]["jobs_served"] >= promise["achieved"]
    assert worth["ours"]["energy_kwh"] is None
    text = run("forecast", "plan", job_log, "--test-from", 30_000, "--target", "jobs:0.9", "--gpu-w", 50).out
    for word in ("90% of jobs", "always-on", "kWh", "mean wait", "threshold, equal waiting"):
        assert word in text


def test_a_promise_about_jobs_needs_jobs(run, demand_file):
    done = run("forecast", "evaluate", demand_file, "--test-from", TEST_FROM, "--target", "jobs:0.9")
    assert done.code == 2
    assert "--target" in done.err
    assert "a job log" in done.err


def test_steps_asked_for_are_scored(run, demand_file):
    asked = ("forecast", "evaluate", demand_file, "--test-from", TEST_FROM, "--horizon", 8, "--json")
    found = run(*asked, "--score-steps", "1,4").document
    assert [row["step"] for row in found["steps"]] == [1, 4, 8]
    crps = [row["crps"] for row in found["steps"]]
    assert crps == sorted(crps)
    assert found["steps"][-1]["crps"] == found["crps"]
    assert found["steps"][-1]["achieved"] == found["promise"]["achieved"]
    for wrong in ("9", "0", "one"):
        done = run(*asked[:-1], "--score-steps", wrong)
        assert (done.code, "--score-steps" in done.err) == (2, True)
        assert demand_file.name not in done.err


@pytest.fixture
def queue_file(tmp_path):
    path, series = tmp_path / "queue.csv", walk()
    waiting = np.arange(400.0) % 7
    waiting[200] = np.nan  # unknown
    columns = {"gpus": series.gpus, "pending_gpus": waiting, "blank": np.full(400, np.nan)}
    write_series(path, START_S, 60.0, columns, dated=True)
    return path


@pytest.mark.slow
def test_a_model_file_keeps_its_features(run, queue_file, demand_file, tmp_path):
    pytest.importorskip("lightgbm")
    model = tmp_path / "m.safetensors"
    fitted = ("forecast", "fit", queue_file, "--model", "lightgbm", "--horizon", 1, "--train-until", TEST_FROM)
    assert run(*fitted, "--features", "pending_gpus", "--out", model, "--json").code == 0
    assert run("forecast", "predict", model, queue_file, "--json").document["m"] == 1
    planned = run("forecast", "plan", queue_file, "--model", model, "--test-from", TEST_FROM, "--json")
    assert planned.code == 0, planned.err
    for verb, *rest in (("plan", "--model", model), ("evaluate", "--model", model, "--test-from", TEST_FROM)):
        refused = run("forecast", verb, demand_file, *rest)
        assert refused.code == 2
        assert "pending_gpus" in refused.err
    other = run("forecast", "plan", queue_file, "--model", model, "--features", "gpus")
    assert other.code == 2
    assert "pending_gpus, as in the model file" in other.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "features", "word"),
    [
        ("last-value", "pending_gpus", "last-value learns from demand alone"),
        ("gru+lightgbm", "pending_gpus", "learns from demand alone"),
        ("lightgbm", "pending_jobs", "pending_gpus"),
        ("lightgbm", "time", "field '--features': got 'time', expected columns beside the time"),
        ("lightgbm", "gpus", "field '--features': got 'gpus', expected columns beside the demand itself"),
        ("lightgbm", "blank", "'--features': got 'blank', expected a column with at least one known count"),
        ("lightgbm", "pending_gpus,pending_gpus", "each once"),
    ],
)
def test_features_that_cannot_be_had_are_refused(run, queue_file, model, features, word):
    done = run("forecast", "evaluate", queue_file, "--model", model, "--features", features, "--test-from", TEST_FROM)
    assert done.code == 2
    assert word in done.err
    assert done.err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("features", [(), ("--features", "pending_gpus")])
def test_the_least_number_of_values_is_what_is_said(run, tmp_path, features):
    pytest.importorskip("lightgbm")
    pytest.importorskip("safetensors")
    path, model = tmp_path / "short.csv", tmp_path / "m.safetensors"
    for count in (124, 125, 126):
        write_series(path, START_S, 60.0, {"gpus": walk().gpus[:count], "pending_gpus": np.arange(count)}, dated=True)
        done = run("forecast", "fit", path, "--model", "lightgbm", *features, "--out", model)
        assert done.code == (2 if count < 125 else 0), done.err
        assert ("expected at least 125 values" in done.err) == (count < 125)
    assert run("forecast", "predict", model, path, "--json").document["m"] == 5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "got 'the last seventh', expected more than 125 values before it, of which there are 120"),
        (("--test-from", "2024-01-01T01:07Z"), ("field '--test-from': got '2024-01-01T01:07Z', expected more than 125 "
                                               "values before it, of which there are 67")),
    ],
)  # fmt: skip
def test_too_little_before_the_test_is_said_in_the_users_terms(run, tmp_path, options, said):
    path = tmp_path / "short.csv"
    write_series(path, START_S, 60.0, {"gpus": walk().gpus[:140]}, dated=True)
    done = run("forecast", "plan", path, *options)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err


@pytest.mark.slow
def test_a_job_log_has_no_queue_to_learn_from(run, job_log):
    pytest.importorskip("lightgbm")
    done = run("forecast", "plan", job_log, "--model", "lightgbm", "--features", "pending_gpus")
    assert done.code == 2
    assert "no column of a job log" in done.err
