"""``commonwatt forecast plan`` as users type it."""

import numpy as np
import pytest

from commonwatt.data.series_files import SeriesFile, write_series
from commonwatt.forecasting._baselines import LastValue
from commonwatt.model.demand import DemandSeries
from commonwatt.planning.replay import plan_series
from commonwatt.planning.series import LoadedSeries
from tests.cli.console import run

START_S = 1_704_067_200.0  # 2024-01-01


def demand(length: int = 3_000) -> np.ndarray:
    """Jumps around a level, now and then unknown."""
    rng = np.random.default_rng(0)
    moves, level = rng.choice([-16, -4, -1, 0, 0, 0, 0, 1, 4, 16], size=length), 200.0
    gpus = np.empty(length)
    for i, move in enumerate(moves):
        level += move + 0.02 * (200.0 - level)
        gpus[i] = round(max(0.0, level))
    gpus[rng.choice(np.arange(1, length), size=20, replace=False)] = np.nan
    return gpus


@pytest.fixture(scope="module")
def demand_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "demand.csv"
    write_series(path, START_S, 60.0, {"gpus": demand()}, dated=True)
    return path


@pytest.mark.slow
def test_the_document(demand_file, tmp_path):
    picture = tmp_path / "plan.png"
    arguments = ("forecast", "plan", demand_file, "--target", 0.9, "--total-gpus", 400, "--node-gpus", 8)
    done = run(*arguments, "--plot", picture, "--json")
    assert done.code == 0, done.err
    assert picture.stat().st_size > 10_000
    found = done.document
    assert found["model"] == "last-value"
    assert (found["target"], found["total_gpus"], found["total_gpus_given"]) == (0.9, 400, True)
    assert [row["name"] for row in found["replay"]] == ["calibrated", "knob", "last-value", "perfect-foresight"]
    calibrated, _, last, perfect = found["replay"]
    assert 0.87 <= calibrated["performance"] <= 0.94
    assert perfect["performance"] == 1
    assert last["performance"] < calibrated["performance"]
    for row in found["replay"]:
        assert row["energy_saving_pct"] == pytest.approx(100 * (1 - row["mean_gpus_on"] / 400))
    assert found["chosen"] in found["knob"]
    assert found["chosen"]["performance"] >= 0.9
    fewer = [point for point in found["knob"] if point["mean_gpus_on"] < found["chosen"]["mean_gpus_on"]]
    assert all(point["performance"] < 0.9 for point in fewer)
    assert found["promise_kept"] is True
    assert found["plan"][0]["at"] == "2024-01-03T02:00:00Z"
    assert len(found["plan"]) == 5
    for step in found["plan"]:
        assert step["nodes_on"] == np.ceil(step["gpus_on"] / 8)
        assert step["gpus_on"] >= step["median_gpus"] - 1
    assert run(*arguments, "--json").document == found


@pytest.mark.slow
def test_nothing_after_an_instant_changes_what_was_on_at_it():
    gpus, changed = demand(), demand()
    changed[2_900:] = 300.0
    files = [SeriesFile(DemandSeries(START_S, 60.0, own), dated=True, holes=0) for own in (gpus, changed)]
    plans = [plan_series(LoadedSeries(file), LastValue(), 2_600, target=0.95, total_gpus=400) for file in files]
    np.testing.assert_array_equal(*(found.on[: 2_905 - 2_600] for found in plans))  # 5 steps ahead
    assert (plans[0].on[2_905 - 2_600 :] != plans[1].on[2_905 - 2_600 :]).any()


def test_everything_on_for_a_target_of_all(demand_file):
    found = run("forecast", "plan", demand_file, "--target", 1, "--total-gpus", 400, "--json").document
    assert {step["gpus_on"] for step in found["plan"]} == {400}
    assert found["chosen"]["q"] == 1
    assert found["replay"][0]["energy_saving_pct"] == 0
    assert found["promise_kept"] is False
    assert "100%" in found["promise"]["sentence"]


def test_as_text_and_without_a_total(demand_file):
    done = run("forecast", "plan", demand_file)
    assert done.code == 0, done.err
    assert "the peak of demand and forecast" in done.out
    assert "fallback    at 0 of " in done.out
    assert "perfect-foresight" in done.out
    assert "98% of instants can be kept" in done.out


@pytest.mark.parametrize("target", [0.98, 1])
def test_without_a_total_nothing_is_capped(tmp_path, target):
    path, rising = tmp_path / "rise.csv", np.round(np.linspace(50.0, 150.0, 2_500))
    write_series(path, START_S, 60.0, {"gpus": rising}, dated=True)
    found = run("forecast", "plan", path, "--target", target, "--json").document
    calibrated, knob, _, perfect = found["replay"]
    assert perfect["performance"] == 1
    assert calibrated["performance"] >= (target - 0.015 if target < 1 else 1)
    assert knob["performance"] >= target
    assert found["total_gpus"] >= 150
    assert found["total_gpus_given"] is False
    assert all(-1 <= way["energy_saving_pct"] < 2 for way in found["replay"])  # nobody could have saved much
    if target < 1:
        assert found["promise_kept"] is True
        assert all(step["gpus_on"] >= step["median_gpus"] for step in found["plan"])
    else:
        assert calibrated["energy_saving_pct"] == 0


@pytest.mark.slow
def test_instants_that_fell_back_are_counted_among_those_replayed(tmp_path):
    path, gpus = tmp_path / "jumps.csv", demand()
    gpus[2_700:2_760] += np.arange(60) * 25  # never seen
    gpus[2_760:] += 1_475
    write_series(path, START_S, 60.0, {"gpus": gpus}, dated=True)
    asked = (path, "--target", 0.9, "--total-gpus", 4_000)
    planned = run("forecast", "plan", *asked, "--json").document
    assert 30 < planned["fallback"] < planned["replayed"] / 2
    assert f"at {planned['fallback']} of {planned['replayed']} instants" in run("forecast", "plan", *asked).out
    evaluated = run("forecast", "evaluate", *asked, "--test-from", planned["replayed_from"], "--json").document
    assert evaluated["test_values"] - evaluated["unknown"] == planned["replayed"]
    assert 30 < evaluated["promise"]["fallback"] < planned["replayed"] / 2
    text = run("forecast", "evaluate", *asked, "--test-from", planned["replayed_from"]).out
    assert f"at {evaluated['promise']['fallback']} of {planned['replayed']} instants" in text
    everything = run("forecast", "plan", path, "--target", 1, "--json").document
    assert everything["fallback"] == everything["replayed"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "count", "part"),
    [(2_572, 428, "428 of the 428 instants replayed"), (2_600, 9, "9 of the 428"), (2_990, 3, "3 of the 120 last")],
)
def test_where_more_is_wanted_than_there_is_no_promise_is_said_to_be_kept(tmp_path, first, count, part):
    """Of the 428 instants replayed 2% are 8.6, of the last 120 they are 2.4."""
    path, gpus = tmp_path / "beyond.csv", np.full(3_000, 300.0)
    gpus[first : first + count] = 700.0
    write_series(path, START_S, 60.0, {"gpus": gpus}, dated=True)
    asked = ("--test-from", "2024-01-02T18:52Z", "--total-gpus", 400)
    found = run("forecast", "plan", path, *asked, "--json").document
    assert (found["beyond_total"], found["promise_kept"]) == (count, False)
    assert f"more was wanted than all GPUs (400) at {part}" in found["promise"]["sentence"]
    text = run("forecast", "plan", path, *asked).out
    assert f"at {count} of 428 instants demand exceeded all GPUs" in text
    assert "98% of instants CANNOT be kept" in text
    assert run("forecast", "plan", path, *asked, "--target", 0.9, "--json").document["promise_kept"] is (count < 428)
    evaluated = run("forecast", "evaluate", path, *asked, "--json").document
    assert evaluated["promise"]["beyond_total"] == count
    assert f"at {count} of 428 instants demand exceeded all GPUs" in run("forecast", "evaluate", path, *asked).out


def test_a_series_that_begins_unknown_is_planned_from_what_is_known(tmp_path):
    path, gpus = tmp_path / "late.csv", demand()
    gpus[:2_400] = np.nan
    gpus[2_400] = 200.0
    write_series(path, START_S, 60.0, {"gpus": gpus}, dated=True)
    found = run("forecast", "plan", path, "--json").document
    assert found["calibrated_from"] == "2024-01-02T16:05:00Z"  # 2,405 minutes on
    done = run("forecast", "plan", path, "--test-from", "2024-01-02T16:05Z")
    assert done.code == 2
    assert "--test-from" in done.err
    assert "a known value more than 5 steps before it" in done.err


def test_seasonal_naive_is_fitted_on_more_than_a_day_where_there_is_as_much(demand_file):
    asked = ("forecast", "plan", demand_file, "--model", "seasonal-naive", "--test-from")
    done = run(*asked, "2024-01-02T16:00Z", "--json")
    assert done.code == 0, done.err
    assert (done.document["n"], done.document["fitted_before"]) == (1440, "2024-01-02T08:02:00Z")  # 1,922 minutes on
    done = run(*asked, "2024-01-02")
    assert done.code == 2
    assert "field '--test-from': got '2024-01-02', expected more than 1445 values before it, of" in done.err


@pytest.mark.slow
def test_without_a_total_nothing_is_beyond_it(demand_file):
    done = run("forecast", "plan", demand_file)
    assert "beyond" not in done.out
    assert run("forecast", "plan", demand_file, "--json").document["beyond_total"] is None


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (("--model", "oracle"), "model"),
        (("--target", 0), "target"),
        (("--target", 1.2), "target"),
        (("--test-from", "2023-01-01"), "test-from"),
        (("--test-from", "2024-01-01T02:00:00Z"), "test-from"),
        (("--target", "nan"), "target"),
        (("--total-gpus", 0), "total-gpus"),
        (("--total-gpus", 10**13), "total-gpus"),
        (("--node-gpus", 0), "node-gpus"),
        (("--plot", "plan.txt"), "--plot"),
        (("--column", "nothing"), "nothing"),
    ],
)
def test_refused_in_one_line(demand_file, more, word):
    done = run("forecast", "plan", demand_file, *more)
    assert done.code == 2
    assert word in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("level", [0.0, 70.0])
def test_a_constant_series_is_served_and_saves(tmp_path, level):
    path = tmp_path / "flat.csv"
    write_series(path, START_S, 60.0, {"gpus": np.full(1_200, level)}, dated=True)
    found = run("forecast", "plan", path, "--total-gpus", 100, "--json").document
    assert found["replay"][0]["performance"] == 1
    assert all(level <= step["gpus_on"] <= level + 2 for step in found["plan"])
