"""Which processes belong to a job: all it started are stopped, no others, and none gets what is secret."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from commonwatt.control.engine import JobEnded, JobInterrupted, Outcome, Start, Stop
from commonwatt.engines.local import run as runs
from commonwatt.engines.local import runner
from commonwatt.engines.local.folder import RunFolder
from commonwatt.engines.local.processes import Process
from commonwatt.engines.local.run import LocalRun, passed_on
from commonwatt.engines.run_spec import RunSpec
from commonwatt.engines.state_folder import write_record
from commonwatt.model.errors import EngineError
from tests.engines.test_local import alive, until
from tests.engines.test_local_nuisance import engine_for, folder, python

__all__ = ["folder"]


# -- folders that go


def test_a_run_whose_state_folder_is_moved_ends_there(folder):
    engine = engine_for(folder / "one", "sh", "-c", f"while [ ! -e {folder}/go ]; do sleep 0.02; done; exit 3")
    engine.apply([Start(1, "1", (0,), 1)])
    until((folder / "one" / "runs" / "1-1" / "runner.json").exists)
    (folder / "one").rename(folder / "two")
    second = engine_for(folder / "two", "true")
    assert [found.nodes for found in second.recorded_runs()] == [(0,)]
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


def left_by_a_crash(folder: Path, pid: int, **more) -> LocalRun:
    own = {"COMMONWATT_PROGRESS": str(folder / "jobs" / "1" / "progress")}
    order = RunSpec(1, 1, "1", (0,), 1, ((0,),), 1.0, 0.0, ("true",), "/", own, 0.5)
    run = RunFolder.create(folder / "runs", order)
    write_record(run.path / "runner.json", {"runner": pid, "job": pid, **more})
    return LocalRun(run, order)


@pytest.mark.slow
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
            run.terminate(signal.SIGKILL)
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


class Hung:
    """A driver in which what is to be killed hangs; counts how often somebody tries."""

    def __init__(self, monkeypatch):
        self.tries = 0
        for name in ("end_marked", "none_marked"):
            monkeypatch.setattr(runs, name, self)

    def __call__(self, _):
        self.tries += 1
        return False


def test_what_a_dead_runner_left_and_does_not_die_keeps_nobody_busy(folder, monkeypatch):
    """The descriptor of its runner stays readable: a wait for that would be none."""
    monkeypatch.setattr(runs, "_AGAIN_S", 600.0)
    monkeypatch.setattr(runs, "PATIENCE_S", 0.0)
    engine = engine_for(folder, "sleep", "600")
    engine.apply([Start(1, "1", (0,), 1)])
    until((folder / "runs" / "1-1" / "runner.json").exists)
    engine.wait(0.0)
    run = engine._runs[1]
    with monkeypatch.context() as patch:
        hung = Hung(patch)
        run.terminate(signal.SIGKILL)
        assert until(lambda: run.ended() is None and run.orphaned_s)
        tries, woken = hung.tries, []

        class Poll:
            def __init__(self):
                self.register = (real := poll()).register
                self.poll = lambda ms: woken.extend(real.poll(ms))

        poll = select.poll
        patch.setattr(runs.select, "poll", Poll)
        for _ in range(3):
            engine.wait(0.02)
            assert engine.poll() == []
        assert (woken, hung.tries) == ([], tries)
        assert engine.request_stop([1]) == [1]
        with pytest.raises(EngineError, match="its processes do not end, even killed"):
            engine.apply([Stop(1)])
        assert run.watched == -1
    run.again_s = 0.0
    (seen,) = engine.poll()
    assert (type(seen), seen.handle) == (JobInterrupted, 1)


def test_a_waker_is_heard_and_other_jobs_end_while_something_hangs(folder, monkeypatch):
    monkeypatch.setattr(runs, "_AGAIN_S", 600.0)
    hung = Hung(monkeypatch)
    run = left_by_a_crash(folder / "one", 2**22 - 1)
    assert run.ended() is None
    order = RunSpec(2, 1, "2", (0,), 1, ((0,),), 1.0, 0.0, ("true",), "/", {}, 0.5)
    other = LocalRun(RunFolder.create(folder / "two" / "runs", order), order)
    other.launch()
    runs.await_any([run, other], 60.0)
    assert other.ended().exit_code == 0
    other.close()
    waker = os.eventfd(1)
    runs.await_any([run], 60.0, waker)
    os.close(waker)
    assert hung.tries == 1


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


@pytest.mark.slow
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


@pytest.mark.slow
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
    engine.prune([1], aside=True)
    assert (folder / "new" / "aside").stat().st_mode & 0o777 == 0o700
