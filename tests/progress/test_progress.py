"""What a training script tells, and that telling never harms it."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt import progress
from commonwatt.engines.reports import read_progress

HERE = Path(__file__).parents[2]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "progress"


@pytest.fixture
def job(file):
    return progress.begin(epochs=10, environment={"COMMONWATT_PROGRESS": str(file)})


@pytest.fixture
def warned(caplog):
    caplog.set_level(logging.WARNING, "commonwatt.progress")
    return caplog


def test_what_is_told_is_what_the_engine_reads(job, file):
    assert read_progress(file) is None
    job.epoch(1)
    assert read_progress(file) == (1, 0)
    job.epoch(2, snapshot=True)
    assert read_progress(file) == (2, 2)
    job.epoch(3, snapshot=False)
    assert read_progress(file) == (3, 2)


def test_a_snapshot_counts_if_it_is_there(job, file, tmp_path, warned):
    job.epoch(1, snapshot=tmp_path / "model.pt")
    assert read_progress(file) == (1, 0)
    assert warned.messages == [f"no checkpoint at {tmp_path / 'model.pt'}: epoch 1 does not count as kept"]
    (tmp_path / "model.pt").touch()
    job.epoch(2, snapshot=tmp_path / "model.pt")
    assert read_progress(file) == (2, 2)
    job.epoch(3, snapshot=str(tmp_path))
    assert read_progress(file) == (3, 3)


def test_parts_of_an_epoch_are_told_once_a_second(job, file, monkeypatch):
    now_s = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now_s)
    job.epoch(1, snapshot=True)
    for i in range(1, 8):  # after 0.25, 0.5, ... seconds
        now_s += 0.25
        job.step(i, of=8)
        assert read_progress(file) == (1 if i < 4 else 1.5, 1)
    now_s += 0.25
    job.step(8, of=8)
    assert read_progress(file) == (2, 1)


def test_a_restart_goes_on_from_what_was_kept(file):
    environment = {"COMMONWATT_PROGRESS": str(file)}
    first = progress.begin(epochs=5, environment=environment)
    assert list(first.left()) == [0, 1, 2, 3, 4]
    first.epoch(2, snapshot=True)
    first.epoch(3)
    second = progress.begin(epochs=5, environment=environment)
    assert (second.kept, second.done, list(second.left())) == (2, 2, [2, 3, 4])
    assert read_progress(file) == (3, 2)  # nothing said yet


def test_the_scripts_own_snapshot_counts_more_than_what_was_told(file):
    environment = {"COMMONWATT_PROGRESS": str(file)}
    progress.begin(epochs=5, environment=environment).epoch(4, snapshot=True)
    job = progress.begin(epochs=5, kept=1, environment=environment)
    assert (list(job.left()), read_progress(file)) == ([1, 2, 3, 4], (1, 1))


def test_going_back_to_an_older_state_keeps_no_more_than_is_done(job, file):
    job.epoch(5, snapshot=True)
    job.epoch(3)
    assert read_progress(file) == (3, 3)


@pytest.mark.parametrize(
    "written",
    [
        "",
        "{",
        "[]",
        "null",
        '"x"',
        "{}",
        '{"kept_epochs": null}',
        "-1",
        "NaN",
        "1e999",
        '{"kept_epochs": -2}',
        "1" * 400,
    ],
)
def test_nonsense_in_the_file_is_as_good_as_nothing(file, written):
    file.write_text(written)
    assert progress.begin(epochs=2, environment={"COMMONWATT_PROGRESS": str(file)}).kept == 0


def test_a_number_in_the_file_counts_by_its_whole_epochs(file):
    file.write_text("3.7")
    assert progress.begin(epochs=9, environment={"COMMONWATT_PROGRESS": str(file)}).kept == 3


def test_without_an_engine_nothing_is_written_and_all_else_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = progress.begin(epochs=2, environment={})
    assert (job.snapshots, job.gpus) == (None, None)
    for epoch in job.left():
        job.step(1, of=2)
        assert job.done == epoch + 0.5
        job.epoch(epoch + 1, snapshot=True)
    assert (job.done, job.kept, list(tmp_path.iterdir())) == (2, 2, [])


@pytest.mark.parametrize("name", ["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "LOCAL_RANK"])
def test_only_rank_0_tells_and_all_ranks_read(file, name):
    environment = {"COMMONWATT_PROGRESS": str(file)}
    progress.begin(environment={**environment, name: "0"}).epoch(2, snapshot=True)
    other = progress.begin(environment={**environment, name: "1"})
    assert other.kept == 2
    other.epoch(7, snapshot=True)
    assert read_progress(file) == (2, 2)


def test_torchrun_under_srun_counts_ranks_by_torchrun(file):
    """Each node has a process 0 of its own, but only one is rank 0 of the training."""
    environment = {"COMMONWATT_PROGRESS": str(file), "SLURM_PROCID": "0"}
    progress.begin(environment={**environment, "RANK": "1", "LOCAL_RANK": "1"}).epoch(1)
    assert not file.exists()
    progress.begin(environment={**environment, "RANK": "0", "LOCAL_RANK": "0"}).epoch(1)
    assert file.exists()


@pytest.mark.parametrize("path", ["/dev/full/progress", "/no/such/folder/progress", "/proc/progress"])
def test_what_cannot_be_written_is_logged_once(path, warned):
    job = progress.begin(epochs=3, environment={"COMMONWATT_PROGRESS": path})
    for epoch in job.left():
        job.epoch(epoch + 1)
    assert len(warned.messages) == 1
    assert warned.messages[0].startswith("cannot write the progress file: ")


def test_a_full_disk_leaves_what_was_told_before(job, file, warned):
    job.epoch(1, snapshot=True)
    (file.parent / "progress.part").symlink_to("/dev/full")
    job.epoch(2, snapshot=True)
    assert read_progress(file) == (1, 1)
    assert len(warned.messages) == 1
    (file.parent / "progress.part").unlink()
    job.epoch(3, snapshot=True)
    assert (read_progress(file), len(warned.messages)) == ((3, 3), 1)


@pytest.mark.parametrize("done", [-1, float("nan"), float("inf"), "3", None])
def test_nonsense_is_not_told(job, file, done, warned):
    job.epoch(1)
    job.epoch(done, snapshot=True)
    job.step(5, of=3)
    job.step(-1, of=3)
    job.step(0, of=0)
    assert (read_progress(file), len(warned.messages)) == ((1, 0), 1)


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), min_size=1, max_size=20))
def test_kept_is_never_above_done_and_only_what_a_snapshot_held(tmp_path_factory, reports):
    file = tmp_path_factory.mktemp("told") / "progress"
    job = progress.begin(epochs=100, environment={"COMMONWATT_PROGRESS": str(file)})
    for done, snapshot in reports:
        job.epoch(done, snapshot=snapshot)
        told = read_progress(file)
        assert told is not None
        assert told[0] == done
        assert told[1] == done if snapshot else 0 <= told[1] <= done
    assert job.kept in {0.0, *(done for done, _ in reports)}


def test_the_short_form_counts_snapshots_that_were_written(file, tmp_path, monkeypatch):
    monkeypatch.setenv("COMMONWATT_PROGRESS", str(file))
    snapshot, told = tmp_path / "model", []
    snapshot.write_text("of an earlier run")
    for epoch in progress.epochs(4, snapshot=snapshot):
        told.append(read_progress(file))
        if epoch % 2:
            part = tmp_path / "part"
            part.write_text(str(epoch))
            part.replace(snapshot)
    assert told == [None, (1, 0), (2, 2), (3, 2)]
    assert list(progress.epochs(5, snapshot=snapshot)) == [4]


SCRIPT = """
import os, signal, sys, time
from commonwatt import progress
job = progress.begin(epochs=3)
if sys.argv[1] != "default":
    if sys.argv[1] == "chained":
        signal.signal(signal.SIGTERM, lambda number, frame: os.write(1, b"before\\n"))
    assert not job.stop_requested
print("ready", flush=True)
while sys.argv[1] == "default" or not job.stop_requested:
    time.sleep(0.01)
job.epoch(1, snapshot=True)
print("stopping", flush=True)
sys.exit(7)
"""


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [("asked", 7, ["stopping"]), ("chained", 7, ["before", "stopping"]), ("default", -signal.SIGTERM, [])],
)
def test_the_flag_of_stopping(how, code, said, file):
    environment = {**os.environ, "COMMONWATT_PROGRESS": str(file)}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, how], env=environment, stdout=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout.readline() == "ready\n"
        job.send_signal(signal.SIGTERM)
        assert job.stdout.read().split() == said
        assert job.wait() == code
    assert read_progress(file) == ((1, 1) if code == 7 else None)


def test_outside_the_main_thread_the_flag_stays_down(job, warned):
    flags = []
    thread = threading.Thread(target=lambda: flags.extend([job.stop_requested, job.stop_requested]))
    thread.start()
    thread.join()
    assert flags == [False, False]
    assert warned.messages == ["signals arrive in the main thread only: stop_requested stays false"]


def test_it_needs_the_standard_library_alone():
    code = """
import sys
before = set(sys.modules)
from commonwatt import progress
progress.begin()
print(*(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert {name for name in loaded if name not in sys.stdlib_module_names} == {"commonwatt"}
    assert not loaded & {"asyncio", "email", "importlib.metadata", "logging", "subprocess", "typing"}


def train(epochs: int, *options: str) -> list[str]:
    return [sys.executable, str(HERE / "examples" / "train.py"), "--epochs", str(epochs), *options]


@pytest.mark.slow
def test_the_example_ends_with_the_same_line_however_often_it_is_interrupted(tmp_path):
    environment = {
        **os.environ, "COMMONWATT_PROGRESS": str(tmp_path / "progress"), "COMMONWATT_SNAPSHOTS": str(tmp_path / "b"),
        "COMMONWATT_GPUS": "2",
    }  # fmt: skip
    for number, code in ((signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)):
        endless = train(10**6, "--epoch-s", "0.1")
        with subprocess.Popen(endless, env=environment, stdout=subprocess.PIPE, text=True) as job:
            job.stdout.readline()
            kept_before = read_progress(tmp_path / "progress")[1]
            job.send_signal(number)
            job.stdout.read()
            assert job.wait() == code
        kept = read_progress(tmp_path / "progress")[1]
        assert kept >= kept_before >= 1
    epochs = int(kept) + 2
    done = subprocess.run(train(epochs), env=environment, capture_output=True, text=True, check=True)
    straight = train(epochs, "--epoch-s", "0", "--snapshots", str(tmp_path / "a"))
    whole = subprocess.run(straight, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == whole.stdout.splitlines()[-1]
    assert "epoch 1 of" in whole.stdout
    assert "epoch 1 of" not in done.stdout
    assert read_progress(tmp_path / "progress") == (epochs, epochs)
