"""What a job may leave where the controller reads: nothing of it holds up the controller, or harms other jobs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from commonwatt.control.engine import Outcome, Start, Stop
from commonwatt.engines.local import run as runs
from commonwatt.engines.local import runner
from commonwatt.engines.local.engine import LocalEngine
from commonwatt.engines.local.folder import End, RunFolder
from commonwatt.engines.local.processes import end_marked
from commonwatt.engines.local.run import await_any
from commonwatt.engines.reports import Reports, read_progress
from commonwatt.engines.run_spec import JobWork, RunSpec
from commonwatt.engines.state_folder import read_json, write_record
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.model.nodes import Cluster, NodeSpec
from tests.engines.test_local import until

CLUSTER = Cluster.of([NodeSpec(name="a", gpu_type="V100", gpus=2, idle_w=100, gpu_w=50)])
DEEP = "[" * 50_000


@pytest.fixture
def folder(tmp_path):
    yield tmp_path
    for state in (tmp_path, tmp_path / "one", tmp_path / "new"):
        end_marked(f"COMMONWATT_PROGRESS={state}/jobs/1/progress")


def engine_for(folder: Path, *command: str, **more) -> LocalEngine:
    options = {name: more.pop(name) for name in ("environment", "time_limit_s", "epochs") if name in more}
    return LocalEngine(CLUSTER, folder, lambda _: JobWork(command, Path("/"), **options), **{"grace_s": 1.0, **more})


def python(source: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-c", source)


def soon(do, limit_s: float = 10.0):
    """What *do* returns; fails if that takes for ever."""
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(do()), daemon=True)
    thread.start()
    thread.join(limit_s)
    assert not thread.is_alive(), "it waits for somebody"
    return answers[0]


def pipe(path: Path) -> None:
    os.mkfifo(path)


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(20 << 30)


def listening(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


def to_a_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


ODD = {
    "pipe": pipe,
    "huge": huge,
    "socket": listening,
    "folder": Path.mkdir,
    "link to a pipe": to_a_pipe,
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "deep": lambda path: path.write_text(DEEP),
    "deep in names": lambda path: path.write_text('{"a":' * 9_000),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "a list": lambda path: path.write_text("[]"),
    "empty": lambda path: path.write_text(""),
}
odd = pytest.mark.parametrize("make", ODD.values(), ids=ODD)


@odd
def test_progress_nobody_can_read_is_as_good_as_nothing(tmp_path, make):
    make(tmp_path / "progress")
    assert soon(lambda: read_progress(tmp_path / "progress")) is None


@pytest.mark.parametrize(
    "text",
    [
        "true", "NaN", "Infinity", "-Infinity", "-3", "1e999", "9" * 400, "9" * 5000, '"3"',
        '{"done_epochs": 1e999, "kept_epochs": 0}', '{"done_epochs": NaN, "kept_epochs": 0}',
        '{"done_epochs": true, "kept_epochs": false}',
    ],
)  # fmt: skip
def test_numbers_that_make_no_sense_are_as_good_as_nothing(tmp_path, text):
    (tmp_path / "progress").write_text(text)
    assert read_progress(tmp_path / "progress") is None


@pytest.mark.slow
@odd
def test_a_job_that_spoils_its_progress_ends_as_any_other(folder, make):
    engine = engine_for(folder, "sleep", "600")
    engine.apply([Start(1, "1", (0,), 1)])
    until((folder / "runs" / "1-1" / "runner.json").exists)
    make(folder / "jobs" / "1" / "progress")
    assert soon(lambda: engine.progress(np.array([1]))).done_epochs.tolist() == [0]
    soon(lambda: engine.apply([Stop(1)]))
    assert soon(engine.poll) == []


@odd
@pytest.mark.parametrize("name", ["runner.json", "end.json"])
def test_records_of_a_run_nobody_can_read_are_as_good_as_none(folder, make, name):
    order = RunSpec(1, 1, "1", (0,), 1, ((0,),), 1.0, 0.0, ("true",), "/", {}, 1.0)
    run = RunFolder.create(folder / "runs", order)
    make(run.path / name)
    assert soon(run.end) is None
    assert soon(run.processes) is None


@pytest.mark.parametrize(
    "document",
    [{}, {"exit_code": "0"}, {"exit_code": 0, "at_s": "x"}, {"exit_code": 0, "at_s": True},
     {"exit_code": 0, "at_s": float("nan")}, {"exit_code": 0, "at_s": 10**400}, {"exit_code": 0.5, "at_s": 1.0}],
)  # fmt: skip
def test_an_end_that_makes_no_sense_is_none(folder, document):
    (folder / "end.json").write_text(json.dumps(document))
    assert RunFolder(folder).end() is None


def test_an_end_of_another_version_is_read(folder):
    (folder / "end.json").write_text(json.dumps({"exit_code": 3, "stopped": False, "at_s": 7, "cause": "c", "new": 1}))
    assert RunFolder(folder).end() == End(3, stopped=False, at_s=7, cause="c")


@pytest.mark.slow
@odd
def test_an_order_nobody_can_read_is_put_aside_and_the_others_go_on(folder, make):
    first = engine_for(folder, "sleep", "600")
    first.apply([Start(1, "1", (0,), 1)])
    until((folder / "runs" / "1-1" / "runner.json").exists)
    (folder / "runs" / "2-1").mkdir()
    make(folder / "runs" / "2-1" / "run.json")
    (folder / "runs" / "mine").mkdir()
    (folder / "runs" / "mine" / "run.json").write_text("{}")  # no run of ours
    second = soon(lambda: engine_for(folder, "sleep", "600"))
    aside = [path.name.partition("-")[2] for path in folder.glob("aside/*")]
    assert aside == ([] if make is ODD["link to itself"] else ["damaged-2-1"])  # which is as if nothing were there
    assert [found.handle for found in second.recorded_runs()] == [1]
    second.apply([Stop(1)])


def test_an_order_nobody_can_read_of_a_run_that_lives_is_an_error(folder):
    engine_for(folder, "sleep", "600").apply([Start(1, "1", (0,), 1)])
    until((folder / "runs" / "1-1" / "runner.json").exists)
    (folder / "runs" / "1-1" / "run.json").write_text("spoilt")
    with pytest.raises(EngineError, match=r"1-1/run.json is gone or damaged"):
        engine_for(folder, "sleep", "600")


def test_a_lock_that_has_become_a_pipe_holds_nobody_up(folder):
    os.mkfifo(folder / "lock")

    def free() -> bool:
        with RunFolder(folder).without_runner() as dead:
            return dead

    assert soon(free)


def test_what_lies_in_the_way_of_a_record_does_not_hold_it_up(folder):
    os.mkfifo(folder / "progress.part")
    os.mkfifo(folder / "progress")
    soon(lambda: write_record(folder / "progress", {"done_epochs": 1, "kept_epochs": 1}))
    assert read_json(folder / "progress", 100) == {"done_epochs": 1, "kept_epochs": 1}
    assert sorted(path.name for path in folder.iterdir()) == ["progress", "progress.part"]


def test_a_job_whose_folder_became_a_file_is_refused_alone(folder):
    engine = engine_for(folder, "true")
    (folder / "jobs" / "1").write_text("")
    with pytest.raises(EngineError, match=r"start 1: the folder .*/jobs/1 cannot be made") as caught:
        engine.apply([Start(1, "1", (0,), 1)])
    assert not isinstance(caught.value, EngineDownError)
    engine.apply([Start(2, "2", (0,), 1)])
    assert until(engine.poll)[0].outcome is Outcome.COMPLETED


@pytest.mark.parametrize(("number", "down"), [(13, False), (28, True)], ids=["EACCES", "ENOSPC"])
def test_a_job_that_locks_its_own_folder_is_told_from_a_full_disk(folder, monkeypatch, number, down):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    reports = Reports(folder / "jobs", lambda _: JobWork(("true",), Path("/"), 9.0))
    (folder / "jobs" / "1").mkdir(parents=True)
    (folder / "jobs" / "1" / "progress").write_text("1.5")
    order = RunSpec(1, 1, "1", (0,), 1, ((0,),), 0.0, 0.0, ("true",), "/", {}, 1.0, epochs=9.0)
    monkeypatch.setattr("commonwatt.engines.reports.write_record", refuse)
    if down:
        with pytest.raises(EngineDownError, match="cannot be written"):
            reports.interrupted(order, 30.0)
    else:
        assert reports.interrupted(order, 30.0) == pytest.approx(10.0)


# -- long waits


def test_a_time_limit_of_months_is_kept(folder):
    engine = engine_for(folder, "sleep", "600", time_limit_s=90 * 86_400.0, grace_s=30 * 86_400.0)
    engine.apply([Start(1, "1", (0,), 1)])
    until((folder / "runs" / "1-1" / "runner.json").exists)
    ((_, order),) = RunFolder.all_in(folder / "runs")
    assert order.limit_s == 90 * 86_400.0
    engine.apply([Stop(1)])
    assert RunFolder(folder / "runs" / "1-1").end().stopped


def test_no_wait_is_longer_than_the_system_can_count(folder, monkeypatch):
    asked: list[float] = []

    class Poll:
        def register(self, *_):
            pass

        def poll(self, milliseconds):
            asked.append(milliseconds)
            return [(0, 1)]

    monkeypatch.setattr(runs.select, "poll", Poll)
    await_any([], 90 * 86_400.0, 0)
    job = subprocess.Popen(["sleep", "600"])
    told = runner._Signals.__new__(runner._Signals)
    told.stop_s, told.job, told.woken = None, None, os.eventfd(1, os.EFD_NONBLOCK)
    monkeypatch.setattr(Poll, "poll", lambda _, milliseconds: (asked.append(milliseconds), job.kill(), job.wait()))
    output = runner._Output(-1, None, 0)
    assert not runner._wait(job, told, {"limit_s": 90 * 86_400.0, "grace_s": 1.0}, folder / "end.json", output, None)
    assert len(asked) == 2
    assert max(asked) < 2**31


def test_a_node_that_is_full_of_what_cannot_be_killed_is_not_down(folder, monkeypatch):
    engine = engine_for(folder, "sleep", "600")
    engine.apply([Start(1, "1", (0,), 2)])
    with monkeypatch.context() as patched:
        patched.setattr(runs.LocalRun, "stuck", lambda run: True)
        view = engine.nodes()
    assert (view.usable_gpus.tolist(), view.up.tolist()) == ([0], [True])
    engine.apply([Stop(1)])


def test_all_output_that_was_dropped_is_counted(folder):
    path, printed = folder / "output.log", 0
    path.touch()
    with path.open("r+b") as file, path.open("ab") as job:
        output = runner._Output(file.fileno(), 1_000_000, 0)
        for size in (1_500_000, 300_000, 2_000_000, 10):
            job.write(b"x" * size)
            job.flush()
            printed += size
            output.finish()
    note, _, kept = path.read_bytes().partition(b"\n")
    assert note.decode() == f"[commonwatt: {printed - len(kept)} bytes of output before this line were dropped]"


def test_output_that_came_during_a_cut_is_counted(folder, monkeypatch):
    path = folder / "output.log"
    path.write_bytes(b"x" * 2_000_000)
    pread = os.pread

    def late(number, size, at):
        if not (part := pread(number, size, at)):
            with path.open("ab") as job:
                job.write(b"y" * 1000)
        return part

    monkeypatch.setattr(runner.os, "pread", late)
    with path.open("r+b") as file:
        runner._Output(file.fileno(), 1_000_000, 0).finish()
    note, _, kept = path.read_bytes().partition(b"\n")
    assert note.decode() == f"[commonwatt: {2_001_000 - len(kept)} bytes of output before this line were dropped]"
