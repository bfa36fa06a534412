"""``commonwatt profile``: a real training, its file, and what simulate makes of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from commonwatt.data.files import load_yaml
from commonwatt.model.training_profile import TrainingProfile
from tests.cli.console import SCRIPT, run

TRAINING = """
import os, sys, time
import numpy as np
from commonwatt import progress

open("pid", "w").write(str(os.getpid()))
if os.environ["COMMONWATT_GPUS"] == "2" and "wait" in sys.argv:
    time.sleep(600)
weights = np.ones((64, 64))
for epoch in progress.epochs(1000):
    weights = np.tanh(weights @ weights.T / 64)
    time.sleep(0.02)
"""
FAST = ("--device", "cpu", "--epochs", 2, "--seconds", 0)
two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(TRAINING)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@two_cores
def test_a_profile_is_measured_written_and_simulated(folder):
    done = run("profile", *FAST, "--gpus", "1,2", "--gpu-type", "H100", "--json", "--", sys.executable, "train.py")
    assert done.code == 0, done.err
    assert "2 of 2: 2 GPUs: an epoch takes" in done.err
    answer = done.document
    profile = load_yaml(folder / "train.profile.yaml", TrainingProfile)
    assert answer["profile"] == profile.model_dump(mode="json")
    assert (profile.kind, profile.gpu_type, [point.gpus for point in profile.points]) == ("train", "H100", [1, 2])
    (folder / "answer.json").write_text(done.out)
    for file in ("train.profile.yaml", "answer.json"):
        scenario = {
            "workload": {"source": "jobs", "jobs": [{"name": "j", "submit_s": 0, "epochs": 100, "profile": file}]},
            "nodes": [{"name": "n", "gpu_type": "H100", "gpus": 2, "idle_w": 100, "gpu_w": 600}],
            "policies": [{"solver": "lookahead"}],
        }
        (folder / "s.yaml").write_text(yaml.safe_dump(scenario))
        ran = run("simulate", folder / "s.yaml", "--jobs", 1, "--json", "--out", folder / "out", "--overwrite")
        assert ran.code == 0, ran.err
        (policy,) = ran.document["policies"]
        times_s = [100 * point.epoch_s for point in profile.points]
        assert any(policy["makespan_s"] == pytest.approx(time_s, rel=1e-6) for time_s in times_s)
    again = run("simulate", folder / "out" / "scenario.yaml", "--jobs", 1, "--json")
    assert again.code == 0, again.err
    assert again.document["policies"][0]["energy_kwh"] == policy["energy_kwh"]
    assert again.document["input_digest"] == ran.document["input_digest"]


@pytest.mark.long
def test_a_training_that_ends_early_is_told(folder):
    """Of 3 epochs the first does not count: 2 are left of the 7 that were to be measured, or 1 if the look is late."""
    (folder / "train.py").write_text(TRAINING.replace("epochs(1000)", "epochs(3)").replace("0.02", "1.0"))
    command = ("--device", "cpu", "--gpus", 1, "--epochs", 7, "--seconds", 0, "--overwrite")
    done = run("profile", *command, "--json", "--", sys.executable, "train.py")
    assert done.code == 0, done.err
    asked, measured = done.document["asked_epochs"], done.document["measured_epochs"]
    assert asked == 7
    assert measured in (1, 2)
    assert f"only {measured} of 7 epochs measured: the training ended early" in done.err
    (point,) = load_yaml(folder / "train.profile.yaml", TrainingProfile).points
    assert (point.epochs, point.asked_epochs, point.is_short) == (measured, 7, True)
    shown = run("profile", *command, "--", sys.executable, "train.py")
    assert re.search("[12] of 7", shown.out)


@pytest.mark.slow
def test_a_training_that_goes_on_is_measured_as_asked(folder):
    done = run("profile", *FAST, "--gpus", 1, "--json", "--", sys.executable, "train.py")
    assert done.document["asked_epochs"] == 2 <= done.document["measured_epochs"]
    assert "only" not in done.err


@pytest.mark.slow
def test_what_is_there_stays_unless_asked(folder):
    (folder / "p.yaml").write_text("mine")
    command = ("profile", *FAST, "--gpus", 1, "--out", "p.yaml", "--", sys.executable, "train.py")
    done = run(*command)
    assert (done.code, (folder / "p.yaml").read_text()) == (2, "mine")
    assert "expected a new file, or --overwrite" in done.err
    assert run("profile", "--overwrite", *command[1:]).code == 0
    assert load_yaml(folder / "p.yaml", TrainingProfile).points


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--device", "cpu"), 2, "field 'PROGRAM': expected the command of the training after `--`"),
        ((*FAST, "--gpus", "1,x", "--", "true"), 2, "field '--gpus': got '1,x', expected numbers with commas"),
        ((*FAST, "--gpus", 5000, "--", "true"), 2, "field '--gpus': got '5000', expected a number of GPUs from 1"),
        ((*FAST, "--clock", 900, "--gpus", 1, "--", "true"), 2, "expected no clock on a CPU"),
        ((*FAST, "--gpus", 1, "--", "no-such-program"), 2, "expected a program that can be started"),
        ((*FAST, "--gpus", 1, "--", "true"), 1, "nothing could be measured: it reported no progress before it ended"),
    ],
)
def test_what_cannot_be(folder, arguments, code, says):
    done = run("profile", *arguments)
    assert (done.code, done.out) == (code, "")
    assert says in done.err
    assert done.err.splitlines()[-1].startswith("error: ")
    assert not list(folder.glob("*.profile.yaml"))


@pytest.mark.slow
@two_cores
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_keeps_what_was_measured_and_leaves_no_training(folder, number, code):
    command = [SCRIPT, "profile", *map(str, FAST), "--gpus", "1,2", "--", sys.executable, "train.py", "wait"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line.startswith("1 of 2: "):
                break
        before = (folder / "pid").read_text()
        until_s = time.monotonic() + 60
        while (folder / "pid").read_text() in ("", before) and time.monotonic() < until_s:
            time.sleep(0.02)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "1 of 2 runs were measured: kept in train.profile.yaml" in err
    assert [p.gpus for p in load_yaml(folder / "train.profile.yaml", TrainingProfile).points] == [1]
    assert not Path(f"/proc/{(folder / 'pid').read_text()}").exists()


def test_the_schema_and_a_file_of_another_kind(folder):
    assert "epoch_s" in run("schema", "profile").out
    (folder / "p.yaml").write_text("{kind: k, gpu_type: T4, points: [{gpus: 1, epoch_s: 5}]}")
    done = run("simulate", "p.yaml")
    assert done.code == 2
    assert "expected a scenario; this is a profile of a training: use `commonwatt submit --profile" in done.err
