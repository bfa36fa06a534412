"""What a job may leave where the controller reads: nothing of it holds up the controller, or harms other jobs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from commonwatt.control.engine import JobEnded, JobInterrupted, Outcome, Start, Stop
from commonwatt.engines.files import read_json, write_record
from commonwatt.engines.local import run as runs
from commonwatt.engines.local import runner
from commonwatt.engines.local.engine import LocalEngine
from commonwatt.engines.local.folder import End, RunFolder, RunOrder
from commonwatt.engines.local.processes import Process, end_marked
from commonwatt.engines.local.progress import read_progress
from commonwatt.engines.local.run import Run, await_any, passed_on
from commonwatt.engines.reports import Reports
from commonwatt.engines.work import Work
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.model.nodes import Cluster, NodeSpec
from tests.engines.test_local import alive, until

CLUSTER = Cluster.of([NodeSpec(name="a", gpu_type="V100", gpus=2, idle_w=100, gpu_w=50)])
DEEP = "[" * 50_000


@pytest.fixture
def folder(tmp_path):
    yield tmp_path
    for state in (tmp_path, tmp_path / "one", tmp_path / "new"):
        end_marked(f"COMMONWATT_PROGRESS={state}/jobs/1/progress")


def engine_for(folder: Path, *command: str, **more) -> LocalEngine:
    options = {name: more.pop(name) for name in ("environment", "time_limit_s", "epochs") if name in more}
    return LocalEngine(CLUSTER, folder, lambda _: Work(command, Path("/"), **options), **{"grace_s": 1.0, **more})


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
    order = RunOrder(1, 1, "1", (0,), 1, ((0,),), 1.0, 0.0, ("true",), "/", {}, 1.0)
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
    assert [found.handle for found in second.found()] == [1]
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

    reports = Reports(folder / "jobs", lambda _: Work(("true",), Path("/"), 9.0))
    (folder / "jobs" / "1").mkdir(parents=True)
    (folder / "jobs" / "1" / "progress").write_text("1.5")
    order = RunOrder(1, 1, "1", (0,), 1, ((0,),), 0.0, 0.0, ("true",), "/", {}, 1.0, epochs=9.0)
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
    told = runner._Told.__new__(runner._Told)
    told.at_s, told.job, told.woken = None, None, os.eventfd(1, os.EFD_NONBLOCK)
    monkeypatch.setattr(Poll, "poll", lambda _, milliseconds: (asked.append(milliseconds), job.kill(), job.wait()))
    assert not runner._wait(job, told, {"limit_s": 90 * 86_400.0, "grace_s": 1.0}, folder / "end.json")
    assert len(asked) == 2
    assert max(asked) < 2**31


# -- folders that go


def test_a_run_whose_state_folder_is_moved_ends_there(folder):
    engine = engine_for(folder / "one", "sh", "-c", f"while [ ! -e {folder}/go ]; do sleep 0.02; done; exit 3")
    engine.apply([Start(1, "1", (0,), 1)])
    until((folder / "one" / "runs" / "1-1" / "runner.json").exists)
    (folder / "one").rename(folder / "two")
    second = engine_for(folder / "two", "true")
    assert [found.nodes for found in second.found()] == [(0,)]
    (folder / "go").touch()
    (seen,) = until(second.poll)
    assert (seen.outcome, seen.cause) == (Outcome.FAILED, "exit code 3")


def test_a_runner_whose_folder_is_deleted_ends_with_its_job(folder):
    engine = engine_for(folder / "one", "sh", "-c", f"while [ ! -e {folder}/go ]; do sleep 0.02; done")
    engine.apply([Start(1, "1", (0,), 1)])
    record = folder / "one" / "runs" / "1-1" / "runner.json"
    until(record.exists)
    runner_id = json.loads(record.read_text())["runner"]
    shutil.rmtree(folder / "one")
    (folder / "go").touch()
    until(lambda: not alive(runner_id))


# -- processes of others


def innocent(**environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"], start_new_session=True, env={**os.environ, **environment})


def left_by_a_crash(folder: Path, pid: int, **more) -> Run:
    own = {"COMMONWATT_PROGRESS": str(folder / "jobs" / "1" / "progress")}
    order = RunOrder(1, 1, "1", (0,), 1, ((0,),), 1.0, 0.0, ("true",), "/", own, 0.5)
    run = RunFolder.create(folder / "runs", order)
    write_record(run.path / "runner.json", {"runner": pid, "job": pid, **more})
    return Run(run, order)


@pytest.mark.parametrize("record", ["old", "other boot", "other time"])
def test_a_process_that_was_given_a_number_again_is_left_alone(folder, record):
    with innocent() as other:
        try:
            began, boot = runner._began(other.pid), runner._boot()
            assert Process(other.pid, boot, began).there()
            more = {
                "old": {},
                "other boot": {"boot": "b", "runner_began": began, "job_began": began},
                "other time": {"boot": boot, "runner_began": began - 1, "job_began": began - 1},
            }[record]
            run = left_by_a_crash(folder, other.pid, **more)
            run.tell(signal.SIGKILL)
            assert run.watched == -1
            assert run.ended().cause == "its runner died"
            with pytest.raises(subprocess.TimeoutExpired):
                other.wait(0.2)
        finally:
            other.kill()


def test_a_runner_whose_record_an_older_version_wrote_is_known_by_its_arguments(folder):
    engine = engine_for(folder, "sleep", "600")
    engine.apply([Start(1, "1", (0,), 1)])
    record = folder / "runs" / "1-1" / "runner.json"
    until(record.exists)
    known = json.loads(record.read_text())
    record.write_text(json.dumps({name: known[name] for name in ("runner", "job")}))
    second = engine_for(folder, "sleep", "600")
    second.apply([Stop(1)])
    assert RunFolder(record.parent).end().stopped


def test_what_a_job_left_whose_runner_was_killed_is_killed_before_its_gpus_are_free(folder):
    source = (
        "import os, subprocess, time\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "subprocess.Popen(['sleep', '601'])\n"
        "time.sleep(600)"
    )
    engine = engine_for(folder, *python(source))
    engine.apply([Start(1, "1", (0,), 1)])
    until((folder / "runs" / "1-1" / "runner.json").exists)
    known = json.loads((folder / "runs" / "1-1" / "runner.json").read_text())
    family = until(lambda: (pids := of_the_job(folder), len(pids) == 3)[1] and pids)
    os.kill(known["runner"], signal.SIGKILL)
    (seen,) = until(engine.poll)
    assert isinstance(seen, JobInterrupted)
    assert not any(map(alive, family))


def of_the_job(folder: Path) -> list[int]:
    """Processes that have the job's environment."""
    mark = f"COMMONWATT_PROGRESS={folder}/jobs/1/progress".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def test_nobody_is_told_of_free_gpus_while_something_of_the_job_lives(folder, monkeypatch):
    """As on a driver that hangs: what was killed does not die."""
    monkeypatch.setattr(runs, "end_marked", lambda _: False)
    run = left_by_a_crash(folder, 2**22 - 1)
    assert run.ended() is None
    monkeypatch.undo()
    assert run.ended().cause == "its runner died"


# -- what left the job's group

ESCAPING = """
import os, signal, subprocess, sys, time
from pathlib import Path
own = Path(os.environ["COMMONWATT_SNAPSHOTS"])
code = "import os, signal, sys, time; signal.signal(signal.SIGTERM, {how}); time.sleep(600)"
for how in sys.argv[2:]:
    own_session = "import os, sys; os.fork() and os._exit(0); os.setsid(); exec(sys.argv[1])"
    subprocess.run([sys.executable, "-I", "-c", own_session, code.replace("{how}", how)])
(own / "ready").write_text("")
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize("how", ["signal.SIG_DFL", "signal.SIG_IGN"])
def test_a_stop_reaches_what_went_into_a_session_of_its_own(folder, how):
    engine = engine_for(folder, *python(ESCAPING), "600", how, grace_s=0.5)
    engine.apply([Start(1, "1", (0,), 1)])
    until((folder / "jobs" / "1" / "ready").exists)
    family = of_the_job(folder)
    assert len(family) == 2
    engine.apply([Stop(1)])
    assert not any(map(alive, family))


def test_what_a_job_leaves_behind_when_it_ends_is_killed(folder):
    engine = engine_for(folder, *python(ESCAPING), "0", "signal.SIG_IGN")
    engine.apply([Start(1, "1", (0,), 1)])
    (seen,) = until(engine.poll)
    assert (seen.outcome, seen.cause) == (Outcome.COMPLETED, "exit code 0")
    assert of_the_job(folder) == []


def test_all_a_job_started_has_the_grace_time_not_only_its_first_process(folder):
    """A shell dies of SIGTERM at once; the training in it still writes its snapshot."""
    training = (
        "import os, signal, sys, time; from pathlib import Path\n"
        "own = Path(os.environ['COMMONWATT_SNAPSHOTS'])\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), (own / 'snapshot').touch(), sys.exit(0)))\n"
        "(own / 'ready').touch()\n"
        "time.sleep(600)"
    )
    engine = engine_for(folder, "sh", "-c", '"$@"; true', "sh", *python(training), grace_s=30.0)
    engine.apply([Start(1, "1", (0,), 1)])
    until((folder / "jobs" / "1" / "ready").exists)
    engine.apply([Stop(1)])
    assert (folder / "jobs" / "1" / "snapshot").exists()


def test_orphans_that_end_by_themselves_do_not_pile_up(folder):
    source = (
        "import os, subprocess, sys, time; from pathlib import Path\n"
        "for _ in range(5):\n"
        "    subprocess.run(['sh', '-c', 'sleep 0.05 & true'])\n"
        "time.sleep(0.5)\n"
        "ours = [p.read_bytes().rpartition(b')')[2].split() for p in Path('/proc').glob('[0-9]*/stat')]\n"
        "print(sum(f[0] == b'Z' and int(f[1]) == os.getppid() for f in ours))"
    )
    engine = engine_for(folder, *python(source))
    engine.apply([Start(1, "1", (0,), 1)])
    assert isinstance(until(engine.poll)[0], JobEnded)
    assert (folder / "runs" / "1-1" / "output.log").read_text().strip() == "0"


# -- environments


def test_a_job_gets_no_secrets_of_the_controller(folder, monkeypatch):
    monkeypatch.setenv("DB_PASSWORD", "geheim")
    monkeypatch.setenv("COMMONWATT_TOKEN", "geheim")
    monkeypatch.setenv("LC_NUMERIC", "C")
    engine = engine_for(folder, "env", environment={"MINE": "yes"})
    engine.apply([Start(1, "1", (0,), 1)])
    until(engine.poll)
    seen = dict(line.split("=", 1) for line in (folder / "runs" / "1-1" / "output.log").read_text().splitlines())
    assert "geheim" not in seen.values()
    assert (seen["PATH"], seen["LC_NUMERIC"], seen["MINE"]) == (os.environ["PATH"], "C", "yes")
    assert {"COMMONWATT_JOB", "COMMONWATT_PROGRESS", "CUDA_VISIBLE_DEVICES"} <= seen.keys()


def test_what_is_passed_on():
    kept = {"PATH": "p", "CUDA_HOME": "c", "XDG_CACHE_HOME": "x", "VIRTUAL_ENV": "v", "PYTHONPATH": "p"}
    assert passed_on({**kept, "AWS_SECRET_ACCESS_KEY": "s", "PGPASSWORD": "s", "PATHS": "s"}) == kept


def test_orders_are_for_us_alone(folder):
    (folder / "runs").mkdir(mode=0o755)
    engine_for(folder, "true")
    assert (folder / "runs").stat().st_mode & 0o777 == 0o700
    engine = engine_for(folder / "new", "true")
    engine.apply([Start(1, "1", (0,), 1)])
    until(engine.poll)
    assert (folder / "new" / "runs").stat().st_mode & 0o777 == 0o700
    assert (folder / "new" / "runs" / "1-1" / "run.json").stat().st_mode & 0o777 == 0o600
    engine.forget([1], aside=True)
    assert (folder / "new" / "aside").stat().st_mode & 0o777 == 0o700
