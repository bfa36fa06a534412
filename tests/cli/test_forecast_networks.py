"""``commonwatt forecast fit`` and ``predict`` as users type them, and model files as they may be damaged."""

import json
import os
import signal
import struct
import subprocess
import sys

import numpy as np
import pytest

from commonwatt.data.series_files import write_series
from commonwatt.forecasting import _network_training as network_training
from commonwatt.forecasting._blend import network_and_trees
from commonwatt.forecasting._lightgbm_quantile import LightGbmQuantile
from commonwatt.forecasting._network_training import TrainingSettings
from commonwatt.forecasting._networks import NetworkPredictor, NetworkSettings
from commonwatt.model.demand import LEVELS
from tests.cli.console import SCRIPT, run
from tests.forecasting.made import walk

pytest.importorskip("torch")
pytest.importorskip("safetensors")

from commonwatt.data.forecast_model import read_model, write_model

pytestmark = pytest.mark.slow

START_S = 1_704_067_200.0  # 2024-01-01
QUICK = ("--members", 1, "--epochs", 1)


def series_file(path, gpus, step_s=60.0):
    write_series(path, START_S, step_s, {"gpus": np.asarray(gpus, dtype=float)}, dated=True)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("networks")


@pytest.fixture(scope="module")
def demand(folder):
    return series_file(folder / "demand.csv", walk(500).gpus)


@pytest.fixture(scope="module")
def model(folder, demand):
    path = folder / "gru.safetensors"
    done = run("forecast", "fit", demand, "--train-until", "2024-01-01T05:00Z", "--out", path, *QUICK, "--json")
    assert done.code == 0, done.err
    found = done.document
    assert (found["model"], found["n"], found["m"], found["step_s"]) == ("gru", 120, 5, 60)
    assert (found["values"], found["last"]) == (300, "2024-01-01T04:59:00Z")
    assert (found["members"], found["interrupted"], found["file_bytes"]) == (1, False, path.stat().st_size)
    return path


@pytest.fixture(scope="module", params=["gru", "bilstm-point", "cnn", "lightgbm", "gru+lightgbm"])
def any_model(request, folder, demand, model):
    """One of each kind of predictor there are files of."""
    if request.param == "gru":
        return model
    path = folder / f"{request.param}.safetensors"
    quick = () if request.param == "lightgbm" else QUICK
    if "lightgbm" in request.param:
        pytest.importorskip("lightgbm")
        quick = (*quick, "--horizon", 1)
    done = run("forecast", "fit", demand, "--model", request.param, "--out", path, *quick)
    assert done.code == 0, done.err
    return path


@pytest.mark.slow
def test_a_forecast_from_the_file(model, demand):
    done = run("forecast", "predict", model, demand, "--json")
    assert done.code == 0, done.err
    found = done.document
    assert found["seen_until"] == "2024-01-01T08:19:00Z"
    assert found["last_gpus"] == walk(500).gpus[-1]
    assert [step["at"] for step in found["steps"]][::4] == ["2024-01-01T08:20:00Z", "2024-01-01T08:24:00Z"]
    predictor, header = read_model(model)
    assert header.seed == 0
    expected = predictor.predict_many(walk(500), np.array([499]))
    assert np.shape([step["gpus"] for step in found["steps"]]) == expected.shape[1:]
    assert all(np.diff(step["gpus"]).min() >= 0 for step in found["steps"])
    table = run("forecast", "predict", model, demand)
    assert "q 0.98" in table.out


@pytest.mark.slow
def test_seen_until_a_moment_later_values_change_nothing(model, demand, folder):
    gpus = walk(500).gpus
    gpus[400:] += 9
    other = series_file(folder / "other.csv", gpus)
    plot = folder / "fan.png"
    at = ("--at", "2024-01-01T06:39Z", "--json")
    first = run("forecast", "predict", model, demand, *at, "--plot", plot).document
    assert first["steps"] == run("forecast", "predict", model, other, *at).document["steps"]
    assert plot.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("at", [(), ("--at", "2024-01-01T06:39Z")])
def test_before_anything_is_known_nothing_is_forecast(model, folder, at):
    gpus = walk(500).gpus
    gpus[:400] = np.nan
    late = series_file(folder / "late.csv", gpus)
    done = run("forecast", "predict", model, late, *at)
    assert done.code == (2 if at else 0)
    if at:
        assert "field '--at': got '2024-01-01T06:39:00Z', expected a moment with a known value up to then" in done.err


@pytest.mark.slow
def test_a_part_held_out_judges_the_epochs_and_ends_training_early(demand, tmp_path, monkeypatch):
    judged = []
    judge = network_training._Run.judge

    def counted(self):
        judge(self)
        judged.append(self.least)

    monkeypatch.setattr(network_training._Run, "judge", counted)
    files = [tmp_path / name for name in ("best.safetensors", "last.safetensors")]
    for out, more in zip(files, (("--held-out", 0.2), ()), strict=True):
        del judged[:]
        done = run("forecast", "fit", demand, "--members", 1, "--epochs", 60, "--out", out, *more)
        assert done.code == 0, done.err
        if more:
            best = judged.index(judged[-1])
            assert len(judged) == best + 1 + TrainingSettings().patience < 61
    (best, header), (last, _) = map(read_model, files)
    assert header.settings.held_out == 0.2
    assert (best.predict().gpus != last.predict().gpus).any()


@pytest.mark.parametrize("share", [-0.1, 0.5, "nan"])
def test_shares_nobody_can_hold_out(share, demand, tmp_path):
    done = run("forecast", "fit", demand, "--out", tmp_path / "m.safetensors", "--held-out", share)
    assert (done.code, done.out) == (2, "")
    assert "--held-out" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gru", "bilstm", "cnn"])
@pytest.mark.parametrize("point", [False, True])
@pytest.mark.parametrize("raw", [False, True])
def test_written_and_read_again_it_is_the_same(kind, point, raw, folder):
    chosen = NetworkSettings(members=2, hidden=4, width=8, raw=raw, recipe=TrainingSettings(epochs=1))
    predictor = NetworkPredictor(kind, point=point, settings=chosen)
    predictor.fit(walk(400), np.random.default_rng(0))
    predictor.update(61.0)
    path = folder / f"{kind}{point}{raw}.safetensors"
    write_model(predictor, path, 0)
    again, _ = read_model(path)
    assert (again.name, again.settings, again.members) == (predictor.name, chosen, 2)
    assert (again.predict().gpus == predictor.predict().gpus).all()
    for each in (again, predictor):
        each.update(70.0)
    assert (again.predict().gpus == predictor.predict().gpus).all()
    write_model(again, folder / "again.safetensors", 0)
    predictor_bytes = folder / "first.safetensors"
    write_model(predictor, predictor_bytes, 0)
    assert (folder / "again.safetensors").read_bytes() == predictor_bytes.read_bytes()


def changed_header(path, out, **fields):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    head = json.loads(data[8 : 8 + length])
    about = json.loads(head["__metadata__"]["commonwatt"]) | fields
    head["__metadata__"]["commonwatt"] = json.dumps(about)
    text = json.dumps(head).encode()
    out.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    return out


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path, out: out.write_bytes(path.read_bytes()[:-100]), "whole"),
        (lambda path, out: out.write_bytes(path.read_bytes()[:40]), "whole"),
        (lambda path, out: out.write_bytes(b""), "whole"),
        (lambda path, out: out.write_text("no model\n" * 9), "a file of text"),
        (lambda path, out: changed_header(path, out, format=9, commonwatt="9.0"), "by commonwatt 9.0"),
        (lambda path, out: changed_header(path, out, kind="rnn"), "one of gru"),
        (lambda path, out: changed_header(path, out, horizon=0), "horizon"),
        (lambda path, out: changed_header(path, out, horizon=7), "arrays"),
        (lambda path, out: changed_header(path, out, horizon=100_000), "arrays"),
        (lambda path, out: changed_header(path, out, look_back=10**13), "look_back"),
        (lambda path, out: changed_header(path, out, start_s=1e300), "start_s"),
        (lambda path, out: changed_header(path, out, members=2), "arrays"),
        (lambda path, out: changed_header(path, out, kind="cnn"), "arrays"),
        (lambda path, out: changed_header(path, out, more=1), "more"),
        (lambda path, out: None, "exists"),
    ],
)
def test_damaged_model_files_are_refused_in_one_line(damage, says, model, demand, tmp_path):
    damage(model, tmp_path / "damaged.safetensors")
    done = run("forecast", "predict", tmp_path / "damaged.safetensors", demand, "--json")
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1
    assert "damaged.safetensors" in done.err
    assert says in done.err


def changed_array(path, out, name, change):
    from safetensors import safe_open
    from safetensors.numpy import save

    with safe_open(path, framework="numpy") as file:
        arrays = {key: np.array(file.get_tensor(key)) for key in file.keys()}  # noqa: SIM118
        about = file.metadata()
    out.write_bytes(save({**arrays, name: np.ascontiguousarray(change(arrays[name]))}, about))


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("context_spread", lambda a: a[:3], "83 numbers"),
        ("context_spread", lambda a: 0 * a, "above 0"),
        ("context_spread", lambda a: np.nan * a, "finite"),
        ("context_mean", lambda a: np.concatenate((a, a)), "83 numbers"),
        ("member0.head.weight", lambda a: np.nan * a, "finite"),
        ("member0.join.weight", lambda a: a > 0, "finite numbers"),
        ("history", lambda a: a[None], "in a row"),
        ("history", lambda a: a[:0], "one value or more"),
        ("history", lambda a: -1 - a, "0 or more"),
    ],
)
def test_arrays_that_no_training_leaves(name, change, says, model, demand, tmp_path):
    out = tmp_path / "damaged.safetensors"
    changed_array(model, out, name, change)
    done = run("forecast", "predict", out, demand, "--json")
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1), done.err
    assert str(out) in done.err
    assert says in done.err


def test_a_safetensors_file_of_something_else(demand, tmp_path):
    from safetensors.numpy import save_file

    save_file({"a": np.zeros(3)}, tmp_path / "other.safetensors")
    done = run("forecast", "predict", tmp_path / "other.safetensors", demand)
    assert done.code == 2
    assert "something else" in done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "step_s", "more", "says"),
    [
        (walk(119).gpus, 60.0, (), "at least 120 values"),
        (walk(300).gpus, 600.0, (), "every 60 s"),
        (walk(300).gpus, 60.0, ("--at", "2024-01-01T01:00Z"), "--at"),
        (walk(300).gpus, 60.0, ("--at", "2025-01-01"), "--at"),
        (walk(300).gpus, 60.0, ("--plot", "fan.gif"), "--plot"),
    ],
)
def test_series_that_do_not_suit_the_model(gpus, step_s, more, says, any_model, tmp_path):
    done = run("forecast", "predict", any_model, series_file(tmp_path / "s.csv", gpus, step_s), *more)
    assert (done.code, done.out) == (2, "")
    assert says in done.err


@pytest.mark.parametrize(
    ("gpus", "more", "says"),
    [
        (walk(124).gpus, (), "at least 125 values"),
        (np.full(300, np.nan), (), "known"),
        (walk(300).gpus, ("--train-until", "2024-01-01T01:00Z"), "at least 125 values"),
        (walk(300).gpus, ("--model", "last-value"), "gru+lightgbm; others need no fit"),
        (walk(300).gpus, ("--model", "oracle"), "--model"),
        (walk(300).gpus, ("--column", "watts"), "watts"),
    ],
)
def test_what_cannot_be_fitted(gpus, more, says, tmp_path):
    out = tmp_path / "m.safetensors"
    done = run("forecast", "fit", series_file(tmp_path / "s.csv", gpus), "--out", out, *QUICK, *more)
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert not out.exists()


def test_a_folder_that_is_not_there_is_refused_before_training(demand, tmp_path):
    done = run("forecast", "fit", demand, "--out", tmp_path / "no" / "m.safetensors")
    assert done.code == 2
    assert "--out" in done.err


@pytest.mark.parametrize("level", [0, 12])
def test_constant_series(level, tmp_path):
    demand, out = series_file(tmp_path / "s.csv", np.full(200, level)), tmp_path / "m.safetensors"
    assert run("forecast", "fit", demand, "--out", out, *QUICK).code == 0
    found = run("forecast", "predict", out, demand, "--json").document
    assert {gpus for step in found["steps"] for gpus in step["gpus"]} == {level}


@pytest.mark.slow
def test_lightgbm_in_a_file_forecasts_as_it_did(folder, demand):
    pytest.importorskip("lightgbm")
    out, other = folder / "trees.safetensors", folder / "broken.safetensors"
    done = run("forecast", "fit", demand, "--model", "lightgbm", "--horizon", 2, "--out", out, "--json")
    assert done.code == 0, done.err
    assert (done.document["model"], done.document["members"]) == ("lightgbm", 2 * len(LEVELS))
    found = run("forecast", "predict", out, demand, "--json").document
    made = LightGbmQuantile(horizon=2)
    made.fit(walk(500), np.random.default_rng(0))
    assert [list(step["gpus"]) for step in found["steps"]] == made.predict().gpus.tolist()
    read, header = read_model(out)
    assert (header.kind, read.fitted_until_s) == ("lightgbm", START_S + 500 * 60)
    for each in (read, made):
        each.update(70.0)
    assert (read.predict().gpus == made.predict().gpus).all()
    write_model(read, other, 0)
    assert (read_model(other)[0].predict().gpus == read.predict().gpus).all()
    for fields, says in (
        ({"trees": 0}, "trees"), ({"levels": [0.5]}, "models of trees"), ({"steps": []}, "steps"),
        ({"steps": [2, 1]}, "rising steps"), ({"steps": [0, 1]}, "rising steps"), ({"horizon": 7}, "rising steps"),
        ({"levels": [5.0] * len(LEVELS)}, "rising quantile levels"), ({"look_back": 10**13}, "look_back"),
    ):  # fmt: skip
        refused = run("forecast", "predict", changed_header(out, other, **fields), demand)
        assert (refused.code, len(refused.err.splitlines())) == (2, 1)
        assert says in refused.err


@pytest.mark.slow
def test_a_network_and_trees_in_one_file_forecast_as_they_did(folder, demand, tmp_path):
    pytest.importorskip("lightgbm")
    out, other = folder / "both.safetensors", tmp_path / "other.safetensors"
    done = run(
        "forecast", "fit", demand, "--model", "gru+lightgbm", "--out", out, "--horizon", 2, *QUICK, "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert (done.document["model"], done.document["members"], done.document["m"]) == ("gru+lightgbm", 1, 2)
    found = run("forecast", "predict", out, demand, "--json").document
    settings = NetworkSettings(members=1, recipe=TrainingSettings(epochs=1))
    made = network_and_trees(horizon=2, settings=settings)
    made.fit(walk(500), np.random.default_rng(0))
    assert [list(step["gpus"]) for step in found["steps"]] == made.predict().gpus.tolist()
    read, header = read_model(out)
    assert (header.kind, read.name, read.fitted_until_s) == ("gru+lightgbm", "gru+lightgbm", START_S + 500 * 60)
    for each in (read, made):
        each.update(70.0)
    assert (read.predict().gpus == made.predict().gpus).all()
    for each in (read, made):
        each.see(walk(300, seed=2))
    assert (read.predict().gpus == made.predict().gpus).all()
    write_model(read, other, 0)
    assert (read_model(other)[0].predict().gpus == read.predict().gpus).all()
    about = header.model_dump(mode="json")
    for fields, says in (
        ({"kind": "cnn+lightgbm"}, "kind"), ({"kind": "lightgbm"}, "trees"), ({"kind": "gru"}, "network"),
        ({"network": about["network"] | {"step_s": 30.0}}, "network.step_s"),
        ({"network": about["network"] | {"seen": 7}}, "network.fitted_until_s"),
        ({"network": about["network"] | {"horizon": 3}}, "arrays"),
        ({"trees": about["trees"] | {"steps": [2]}}, "trees"),
    ):  # fmt: skip
        refused = run("forecast", "predict", changed_header(out, other, **fields), demand)
        assert (refused.code, len(refused.err.splitlines())) == (2, 1), refused.err
        assert says in refused.err


@pytest.mark.parametrize("more", [("--members", 2), ("--epochs", 2), ("--held-out", 0.1), ("--raw-levels",)])
def test_options_of_networks_do_not_suit_lightgbm(more, demand, tmp_path):
    pytest.importorskip("lightgbm")
    done = run("forecast", "fit", demand, "--model", "lightgbm", "--out", tmp_path / "m.safetensors", *more)
    assert (done.code, done.out) == (2, "")
    assert more[0] in done.err


def test_without_pytorch_one_line_says_what_to_install(demand, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    done = run("forecast", "fit", demand, "--out", tmp_path / "m.safetensors")
    assert (done.code, done.out) == (2, "")
    assert done.err == "error: torch is not installed; run: pip install 'commonwatt[forecast]'\n"


@pytest.mark.long
def test_interrupted_by_ctrl_c_it_writes_the_best_so_far(tmp_path):
    demand, out = series_file(tmp_path / "s.csv", walk(20_000).gpus), tmp_path / "m.safetensors"
    command = [SCRIPT, "forecast", "fit", demand, "--out", out, "--epochs", "1000", "--json"]
    training = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ)
    assert "Ctrl-C" in training.stderr.readline().decode()
    training.send_signal(signal.SIGINT)
    printed, said = training.communicate(timeout=120)
    assert training.returncode == 0, said
    assert json.loads(printed)["interrupted"]
    assert b"interrupted" in said
    predictor, _ = read_model(out)
    assert predictor.predict().gpus.shape == (5, len(LEVELS))


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--margin", 5)])
def test_a_file_is_evaluated_and_never_fitted(model, demand, more):
    arguments = ("forecast", "evaluate", demand, "--model", model, "--test-from", "2024-01-01T07:00Z", *more)
    found = run(*arguments, "--json").document
    assert (found["fits"], found["fit_s"]) == (0, 0)
    assert "fitted before" in run(*arguments).out
    refused = run(*arguments, "--refit-every", 20, "--json")
    assert (refused.code, refused.out, len(refused.err.splitlines())) == (2, "", 1)
    assert "--refit-every" in refused.err


def test_a_plan_by_the_file(model, demand):
    """It has seen what lies before 05:00, so it may be judged by what comes later, not by what it was fitted on."""
    done = run(
        "forecast", "plan", demand, "--model", model, "--test-from", "2024-01-01T07:00Z", "--total-gpus", 400, "--json"
    )
    assert done.code == 0, done.err
    assert done.document["model"] == "gru"
    early = run("forecast", "plan", demand, "--model", model, "--test-from", "2024-01-01T04:00Z", "--total-gpus", 400)
    assert early.code == 2
    assert "fitted on" in early.err


def test_what_cannot_be_fitted_names_its_option(demand, tmp_path):
    out = tmp_path / "m.safetensors"
    done = run("forecast", "fit", demand, "--model", "lightgbm", "--members", 3, "--out", out)
    assert (done.code, done.err) == (2, "error: field '--members': got '3', expected none, as lightgbm is no network\n")
    done = run("forecast", "fit", demand, "--model", "lightgbm", "--train-until", "2024-01-01T01:00Z", "--out", out)
    assert done.code == 2
    assert "field '--train-until': got '2024-01-01T01:00Z', expected a moment after at least 125 values" in done.err
    assert not out.exists()
