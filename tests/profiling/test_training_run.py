"""Runs of real training scripts: what is measured, and that nothing is left of them."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from commonwatt.model.errors import InputError, ProfileError
from commonwatt.model.training_profile import FailedPoint, TrainingProfile
from commonwatt.profiling.hardware import CpuThreads, NvidiaGpus, cpu_seconds
from commonwatt.profiling.training_run import (
    NotMeasuredError,
    ProfilePlan,
    RunLimits,
    default_counts,
    profile_training,
    run_training,
)

QUICK = RunLimits(epochs=2, least_s=0.0, limit_s=60.0, grace_s=5.0)
TRAINING = """
import os, sys, time
import numpy as np
from commonwatt import progress

with open(sys.argv[1], "a") as told:
    told.write(f"{os.getpid()} {os.environ['COMMONWATT_GPUS']} {os.environ['OMP_NUM_THREADS']} "
               f"{len(os.sched_getaffinity(0))}\\n")
weights = np.ones((64, 64))
for epoch in progress.epochs(1000):
    weights = np.tanh(weights @ weights.T / 64)
    time.sleep(0.05)
"""


@pytest.fixture
def script(tmp_path):
    def write(text: str, *arguments: object) -> tuple[str, ...]:
        path = tmp_path / "train.py"
        path.write_text(text)
        return (sys.executable, str(path), *map(str, arguments))

    return write


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def run(command, tmp_path, limits=QUICK, hardware=None):
    return run_training(command, hardware or CpuThreads(), 1, limits, tmp_path / "run")


@pytest.mark.slow
def test_a_training_is_measured_and_stopped(script, tmp_path):
    timed = run(script(TRAINING, tmp_path / "told"), tmp_path)
    pid, gpus, threads, cores = (tmp_path / "told").read_text().split()
    assert (gpus, threads, cores) == ("1", "1", "1")
    assert timed.epochs >= 2
    assert timed.epoch_s >= 0.045  # it sleeps for 0.05 s; times of files are coarser
    assert timed.window_s > 0
    assert timed.energy_j is not None
    assert 0 <= timed.energy_j <= 5.0 * (timed.window_s + 1)  # one core at most
    assert not alive(int(pid))


@pytest.mark.slow
def test_it_is_measured_for_the_least_time(script, tmp_path):
    timed = run(script(TRAINING, tmp_path / "told"), tmp_path, RunLimits(epochs=1, least_s=0.6))
    assert timed.window_s >= 0.6
    assert timed.epochs > 1


@pytest.mark.slow
def test_a_training_that_ends_by_itself_counts(script, tmp_path):
    text = TRAINING.replace("epochs(1000)", "epochs(3)")
    assert run(script(text, tmp_path / "told"), tmp_path, RunLimits(epochs=50)).epochs == 2


@pytest.mark.slow
def test_everything_it_started_is_ended(script, tmp_path):
    text = """
import signal, subprocess, sys, time
from commonwatt import progress

signal.signal(signal.SIGTERM, signal.SIG_IGN)
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", deaf])
open(sys.argv[1], "w").write(str(child.pid))
for epoch in progress.epochs(1000):
    time.sleep(0.02)
"""
    run(script(text, tmp_path / "child"), tmp_path, RunLimits(epochs=1, least_s=0, grace_s=0.2))
    child = int((tmp_path / "child").read_text())
    until_s = time.monotonic() + 30
    while alive(child) and time.monotonic() < until_s:
        time.sleep(0.02)
    assert not alive(child)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import time; time.sleep(60)", "it reported no progress in 0.5 s: from commonwatt import progress"),
        ("print('done')", "it reported no progress before it ended"),
        ("print('x')\nraise SystemExit('out of memory')", "it ended with an error (exit code 1): out of memory"),
        ("import os; os.kill(os.getpid(), 9)", "it ended with an error (killed by SIGKILL)"),
        (
            "from commonwatt import progress\nfor _ in progress.epochs(1): pass",
            "it ended after one epoch, which does not",
        ),
        ("from commonwatt import progress\nfor _ in progress.epochs(9): pass\nraise SystemExit(3)", "(exit code 3)"),
        (
            "import time\nfrom commonwatt import progress\nfor e in progress.epochs(9): time.sleep(60 * e)",
            "no epoch after the first was over in 0.5 s (--limit)",
        ),
    ],
)
def test_what_cannot_be_measured(script, tmp_path, text, says):
    limits = RunLimits(epochs=20, least_s=0, limit_s=0.5 if "time" in text else 60.0, grace_s=0.5)
    with pytest.raises(NotMeasuredError) as caught:
        run(script(text), tmp_path, limits)
    assert says in str(caught.value)


def test_a_program_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"no-such-program: .*expected a program that can be started"):
        run(("no-such-program",), tmp_path)


def test_cpu_seconds_are_of_one_session():
    assert cpu_seconds(os.getsid(0)) > 0
    assert cpu_seconds(2**22 + 1) == 0


# -- sessions


@pytest.mark.slow
def test_a_profile_is_written_after_each_run(script, tmp_path):
    text = TRAINING + "    if os.environ['COMMONWATT_GPUS'] == '2': raise SystemExit('too many')\n"
    hardware = CpuThreads(core_w=10)
    if hardware.count < 2:
        pytest.skip("one core")
    out, seen = tmp_path / "p.yaml", []

    def on_point(point):
        seen.append((point.gpus, out.exists()))

    plan = ProfilePlan(script(text, tmp_path / "told"), "toy", (2, 1), limits=QUICK)
    profile = profile_training(plan, hardware, out, on_point)
    assert seen == [(1, False), (2, True)]
    assert [point.gpus for point in profile.points] == [1]
    assert profile.failed == (FailedPoint(gpus=2, reason="it ended with an error (exit code 1): too many"),)
    assert (profile.kind, profile.gpu_type, profile.command) == ("toy", "CPU", plan.command)
    assert profile.points[0].power_source == "modelled"
    assert profile.power_model == "10 W for each second of CPU time of the training's processes"
    from commonwatt.data.files import load_yaml

    assert load_yaml(out, TrainingProfile) == profile
    as_json = tmp_path / "p.json"
    again = profile_training(ProfilePlan(plan.command, "toy", (1,), limits=QUICK), hardware, as_json)
    assert load_yaml(as_json, TrainingProfile) == again
    assert not list(tmp_path.glob(".*.tmp"))


def test_nothing_is_written_where_nothing_was_measured(script, tmp_path):
    plan = ProfilePlan(script("pass"), "toy", (1,), limits=QUICK)
    with pytest.raises(ProfileError, match="nothing could be measured: it reported no progress before it ended"):
        profile_training(plan, CpuThreads(), tmp_path / "p.yaml")
    assert not (tmp_path / "p.yaml").exists()


def test_counts_and_clocks():
    assert [default_counts(n) for n in (1, 2, 3, 8, 12)] == [(1,), (1, 2), (1, 2, 3), (1, 2, 4, 8), (1, 2, 4, 8, 12)]
    hardware = CpuThreads()
    with pytest.raises(InputError, match=r"argument 'gpus': got '\d+', expected a number of GPUs from 1 to"):
        ProfilePlan(("x",), "x", (hardware.count + 1,)).on(hardware)
    with pytest.raises(InputError, match="expected no clock on a CPU"):
        hardware.set_clock(1, 1000.0)
    assert ProfilePlan(("x",), "x", (1, 1), (None, 900.0, 900.0)).on(hardware) == [(1, None), (1, 900.0)]


class FakeGpu:
    """Meter and clock of one of three GPUs; each draws 100 W more than the one before."""

    watts_since = time.perf_counter()

    def __init__(self, index: int) -> None:
        if index >= 3:
            raise InputError("a whole number below 3")
        self.name, self.index, self.clocks, self.closed = "NVIDIA A100-SXM4-40GB", index, [], False

    def energy_j(self):
        return 100.0 * (self.index + 1) * (time.perf_counter() - self.watts_since)

    def set_clock(self, clock_mhz):
        self.clocks.append(clock_mhz)

    def close(self):
        self.closed = True


@pytest.mark.slow
def test_nvidia_gpus(monkeypatch, script, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    made = []

    def gpu(index):
        made.append(FakeGpu(index))
        return made[-1]

    hardware = NvidiaGpus(gpu=gpu, wait=lambda s: time.sleep(s / 20))
    assert (hardware.count, hardware.power_source) == (3, "measured")
    assert hardware.idle_gpu_w == pytest.approx(200, rel=0.05)  # mean of 100, 200 and 300 W
    assert hardware.environment(2) == {"CUDA_VISIBLE_DEVICES": "0,1"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,7")
    assert hardware.environment(2) == {"CUDA_VISIBLE_DEVICES": "4,6"}
    text = TRAINING.replace("os.environ['OMP_NUM_THREADS']", "os.environ['CUDA_VISIBLE_DEVICES']")
    plan = ProfilePlan(script(text, tmp_path / "told"), "toy", (3,), (1400.0,), limits=QUICK)
    profile = profile_training(plan, hardware, tmp_path / "p.yaml")
    assert (tmp_path / "told").read_text().split()[2] == "4,6,7"
    assert profile.gpu_type == "A100"
    assert profile.points[0].gpu_w == pytest.approx(0, abs=15)  # no more than idle
    assert profile.points[0].clock_mhz == 1400.0
    assert [gpu.clocks for gpu in made] == [[1400.0]] * 3
    hardware.close()
    assert all(gpu.closed for gpu in made)


def test_gpus_without_a_meter_have_unknown_power(monkeypatch):
    monkeypatch.setattr(FakeGpu, "energy_j", lambda self: None)
    hardware = NvidiaGpus(gpu=FakeGpu, wait=lambda s: None)
    assert (hardware.power_source, hardware.idle_gpu_w) == (None, None)
    assert hardware.energy_j(2, 0) is None
