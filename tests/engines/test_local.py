"""The local engine: the contract, and what only real processes can do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from commonwatt.control.engine import JobEnded, JobInterrupted, Outcome, RecordedRun, Start, Stop
from commonwatt.engines.clocks import RealClock
from commonwatt.engines.local import runner
from commonwatt.engines.local.engine import LocalEngine, near_each_other
from commonwatt.engines.local.folder import End, RunFolder
from commonwatt.engines.local.run import LocalRun
from commonwatt.engines.reports import read_progress
from commonwatt.engines.run_spec import Images, JobWork, RunSpec
from commonwatt.engines.state_folder import set_fence
from commonwatt.model.errors import EngineError
from commonwatt.testing.engine_contract import EngineContract, Lab, contract_cluster, contract_jobs

UNIT_S = 0.35
WORKER = Path(__file__).with_name("worker.py")
JOBS = {
    "j1": {"epochs": 10, "times": {"1": 10, "2": 6}},
    "j2": {"epochs": 10, "times": {"1": 20, "2": 12}},
    "outlives": {"epochs": 10, "times": {"1": 120, "2": 12}},
    "j3": {"epochs": 10, "times": {"1": 30, "2": 18}},
    "gang": {"epochs": 4, "times": {"4": 8}},
    "deaf": {"epochs": 10, "times": {"1": 1000}, "deaf": True},
    "broken": {"epochs": 1, "times": {"1": 1}, "exit": 3},
    "mute": None,
    "missing": None,
}


def work(name: str) -> JobWork:
    if name == "missing":
        return JobWork(("/no/such/program",), Path("/"))
    if name == "mute":
        return JobWork((sys.executable, "-c", "import time; time.sleep(0.2)"), Path("/"))
    spec = JOBS[name]
    return JobWork(
        (sys.executable, "-I", str(WORKER), json.dumps({**spec, "unit_s": UNIT_S})), Path("/"), spec["epochs"]
    )


def engine_on(folder: Path, **options) -> LocalEngine:
    return LocalEngine(contract_cluster(), folder, work, **{"grace_s": 2.0, **options})


def processes(folder: Path) -> list[tuple[int, int]]:
    """Runner and job of every run."""
    records = [json.loads(path.read_text()) for path in folder.glob("runs/*/runner.json")]
    return [(record["runner"], record["job"]) for record in records]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def until(true, limit_s=120.0):
    end_s = time.monotonic() + limit_s
    while not (value := true()):
        assert time.monotonic() < end_s
        time.sleep(0.01)
    return value


@pytest.fixture
def folder(tmp_path):
    yield tmp_path
    for runner_id, job in processes(tmp_path):
        for kill, process in ((os.kill, runner_id), (os.killpg, job)):
            with suppress(ProcessLookupError):
                kill(process, signal.SIGKILL)


def started(folder: Path, handle: int = 0) -> list[list[str]]:
    """What the job wrote each time it was started: process id, epoch it began from, GPUs."""
    log = folder / "jobs" / str(handle) / "epoch.log"
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


@pytest.mark.long
class TestLocalEngine(EngineContract):
    @pytest.fixture
    def lab(self, folder):
        engine = engine_on(folder)
        return Lab(engine, RealClock(engine), contract_cluster(), contract_jobs(UNIT_S), UNIT_S)


@pytest.mark.slow
def test_a_job_is_given_its_gpus_and_its_output_is_kept(folder):
    engine = engine_on(folder, slots=[[3, 5], [0, 1]])
    engine.apply([Start(1, "j1", (0,), 1), Start(2, "j1", (0,), 1)])
    until(lambda: started(folder, 1) and started(folder, 2))
    assert {started(folder, 1)[0][2], started(folder, 2)[0][2]} == {"3", "5"}
    until(engine.poll)
    assert "done\n" in [log.read_text() for log in folder.glob("runs/*/output.log")]


@pytest.mark.parametrize(
    ("free", "count", "given"),
    [
        ([1, 2, 3], 1, (1,)),  # the pair that is broken up already
        ([1, 2, 3], 2, (2, 3)),
        ([0, 2, 4, 5, 6, 7], 2, (4, 5)),
        ([0, 2, 4, 5, 6, 7], 3, (4, 5, 6)),
        ([0, 1, 2, 5, 6, 7], 3, (0, 1, 2)),
        ([0, 2, 5, 7], 3, (0, 2, 5)),
        ([0, 1, 2, 3, 4, 5, 6, 7], 8, (0, 1, 2, 3, 4, 5, 6, 7)),
    ],
)
def test_a_job_gets_gpus_of_one_pair_or_four_where_one_has_enough(free, count, given):
    assert near_each_other(range(8), free, count) == given


def test_blocks_are_those_of_the_order_in_which_the_site_names_its_gpus():
    assert near_each_other([0, 2, 1, 3], [0, 1, 3], 2) == (1, 3)
    assert near_each_other([6, 7, 8], [6, 8], 2) == (6, 8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change", "outcome"), [("broken", JobEnded, Outcome.FAILED), ("mute", JobEnded, Outcome.COMPLETED)]
)
def test_the_exit_code_decides_and_silence_is_no_failure(folder, name, change, outcome):
    engine = engine_on(folder)
    engine.apply([Start(0, name, (0,), 1)])
    (seen,) = until(engine.poll)
    assert isinstance(seen, change)
    assert seen.outcome is outcome
    assert engine.poll() == []
    assert engine.progress(np.array([0])).done_epochs[0] == 1


def test_a_program_that_is_not_there_has_failed_with_its_cause(folder):
    engine = engine_on(folder)
    engine.apply([Start(0, "missing", (0,), 1)])
    (seen,) = until(engine.poll)
    assert isinstance(seen, JobEnded)
    assert (seen.outcome, seen.reason) == (Outcome.FAILED, "command-not-found")
    assert seen.cause == "its command was not found: /no/such/program"
    engine.apply([Start(1, "j1", (0,), 2)])  # its GPUs are free again


@pytest.mark.slow
def test_a_job_that_does_not_listen_is_killed_after_the_grace_time(folder):
    engine = engine_on(folder, grace_s=0.3)
    engine.apply([Start(0, "deaf", (0,), 1)])
    until(lambda: started(folder))
    (stopped,) = engine.apply([Stop(0)])
    assert stopped.lost_s > 0
    (((runner, job)),) = processes(folder)
    assert not alive(job)
    until(lambda: not alive(runner))


@pytest.mark.slow
@pytest.mark.parametrize("deaf", [False, True])
def test_a_run_longer_than_its_time_limit_has_failed_and_says_so(folder, deaf):
    command = "trap '' TERM; sleep 600 & wait; sleep 600" if deaf else "trap 'exit 0' TERM; sleep 600 & wait"
    limited = JobWork(("sh", "-c", command), Path("/"), time_limit_s=0.3)
    engine = LocalEngine(contract_cluster(), folder, lambda name: limited, grace_s=0.3)
    engine.apply([Start(0, "j", (0,), 1)])
    (seen,) = until(engine.poll)
    assert isinstance(seen, JobEnded)
    assert (seen.outcome, seen.cause) == (Outcome.FAILED, "its time limit of 0.3 s was over")
    ((_, job),) = processes(folder)
    assert not alive(job)


def test_an_image_is_run_by_the_command_of_the_site(folder):
    inside = JobWork((sys.executable, "-c", "pass"), Path("/"), image="some:image")
    images = Images(("env", "RUN_IN={image}", "sh", "-c", 'echo "$RUN_IN: $#"', "sh", "{command}"))
    engine = LocalEngine(contract_cluster(), folder, lambda name: inside, images=images)
    engine.apply([Start(0, "j", (0,), 1)])
    (seen,) = until(engine.poll)
    assert (seen.outcome, seen.cause) == (Outcome.COMPLETED, "exit code 0")
    assert (folder / "runs" / "0-1" / "output.log").read_text() == "some:image: 3\n"
    with pytest.raises(EngineError, match="no command that runs images"):
        engine_for(folder / "other", inside).apply([Start(0, "j", (0,), 1)])


def engine_for(folder: Path, what: JobWork) -> LocalEngine:
    return LocalEngine(contract_cluster(), folder, lambda name: what)


@pytest.mark.slow
def test_two_runs_of_a_job_take_turns_and_one_given_up_makes_room(folder):
    """What an engine whose runs are on other machines needs: the second begins once the first is surely gone."""
    held, log = folder / "lock", folder / "log"
    runs = []
    for attempt in (1, 2):
        command = ("sh", "-c", f"trap '' TERM; echo begin {attempt} >> {log}; sleep 600 & wait; sleep 600")
        order = RunSpec(
            0, attempt, "j", (0,), 1, ((0,),), 0.0, 0.0, command, "/", {}, 600.0, lock=str(held), look_s=0.05
        )
        runs.append(LocalRun(RunFolder.create(folder / "runs", order), order))
    runs[0].launch()
    until(log.exists)
    runs[1].launch()
    until(lambda: runs[1].folder.path.joinpath("lock").exists())
    assert log.read_text() == "begin 1\n"
    runs[0].folder.finish(End(None, stopped=False, at_s=1.0, cause="given up"))
    until(lambda: "begin 2" in log.read_text())
    assert runs[0].folder.end().cause == "given up"
    runs[1].folder.finish(End(None, stopped=False, at_s=1.0, cause="given up"))
    for run in runs:
        run.close()


def test_a_runner_that_is_killed_takes_its_job_along_and_that_is_told(folder):
    engine = engine_on(folder)
    engine.apply([Start(0, "j3", (0,), 1)])
    until(lambda: started(folder) and processes(folder))
    ((runner, job),) = processes(folder)
    os.kill(runner, signal.SIGKILL)
    (seen,) = until(engine.poll)
    assert isinstance(seen, JobInterrupted)
    assert seen.cause == "its runner died"
    until(lambda: not alive(job))


@pytest.mark.slow
def test_a_stop_that_comes_too_late_is_an_end(folder):
    """The controller may start it again elsewhere before it hears of the end: that does nothing."""
    engine = engine_on(folder)
    engine.apply([Start(0, "mute", (0,), 1)])
    until(lambda: list(folder.glob("runs/*/end.json")))
    (stopped,) = engine.apply([Stop(0)])
    assert stopped.lost_s == 0
    engine.apply([Start(0, "mute", (1,), 1)])
    (seen,) = engine.poll()
    assert isinstance(seen, JobEnded)
    assert len(list(folder.glob("runs/*"))) == 1


CONTROLLER = """
import json, sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from tests.engines.test_local import engine_on
from commonwatt.control.engine import Start
engine = engine_on(Path({folder!r}))
engine.apply([Start(0, "outlives", (0,), 1), Start(1, "j1", (1,), 2)])
sys.stdout.write("ready\\n")
sys.stdout.flush()
time.sleep(600)
"""


CALM = """
import os, signal, sys, time
def stop(*_):
    with open(os.environ["COMMONWATT_PROGRESS"], "w") as file:
        file.write(sys.argv[1])
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
open(os.environ["COMMONWATT_SNAPSHOTS"] + "/ready", "w").close()
time.sleep(600)
"""


@pytest.mark.parametrize(("done", "ended"), [("3", True), ("2.5", False)])
def test_a_stop_that_comes_when_all_was_done_is_an_end(folder, done, ended):
    engine = LocalEngine(
        contract_cluster(), folder, lambda _: JobWork((sys.executable, "-c", CALM, done), Path("/"), epochs=3)
    )
    engine.apply([Start(0, "calm", (0,), 1)])
    until((folder / "jobs" / "0" / "ready").exists)
    (stopped,) = engine.apply([Stop(0)])
    if ended:
        (change,) = engine.poll()
        assert isinstance(change, JobEnded)
        assert (change.outcome, stopped.lost_s) == (Outcome.COMPLETED, 0)
    else:
        assert engine.poll() == []
        assert engine.progress(np.array([0])).kept_epochs == [2]


@pytest.mark.long
def test_jobs_outlive_the_controller_and_another_one_takes_them_up(folder):
    """kill -9 of the process that started them: both run on, once; one ends before anybody looks."""
    source = CONTROLLER.format(tests=str(Path(__file__).parents[2]), folder=str(folder))
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "ready\n"
        first.kill()
    until((folder / "runs" / "1-1" / "end.json").exists)
    second = engine_on(folder)
    assert second.recorded_runs() == [RecordedRun(0, 1, (0,), 1), RecordedRun(1, 1, (), 0)]
    assert [type(change) for change in second.poll()] == [JobEnded]
    with pytest.raises(EngineError, match="running already"):
        second.apply([Start(0, "outlives", (1,), 1)])
    until(lambda: second.progress(np.array([0])).kept_epochs[0] >= 1)
    second.apply([Stop(0)])
    kept = second.progress(np.array([0])).kept_epochs[0]
    second.apply([Start(0, "outlives", (1,), 2)])
    (seen,) = until(second.poll)
    assert (seen.handle, seen.outcome) == (0, Outcome.COMPLETED)
    starts = started(folder, 0)
    assert [int(start[1]) for start in starts] == [0, int(kept)]
    assert len(started(folder, 1)) == 1


def test_an_order_nobody_carried_out_is_given_up_for_good(folder, monkeypatch):
    """The controller died between writing the order and starting the runner, which comes late."""
    engine = engine_on(folder)
    monkeypatch.setattr(LocalRun, "launch", lambda run: None)
    engine.apply([Start(0, "j1", (0,), 1)])
    second = engine_on(folder)
    (seen,) = second.poll()
    assert isinstance(seen, JobInterrupted)
    assert seen.cause == "it never began"
    late = [sys.executable, "-I", runner.__file__]
    assert subprocess.run([*late, str(folder / "runs" / "0-1")], check=False).returncode == 1
    assert started(folder) == []


@pytest.mark.slow
def test_waiting_ends_when_a_job_does(folder):
    engine = engine_on(folder)
    engine.apply([Start(0, "mute", (0,), 1)])
    RealClock(engine).wait_until(time.time() + 60)
    assert len(engine.poll()) == 1


@pytest.mark.slow
def test_a_meter_is_read_between_comings_and_goings(folder):
    meter = iter(range(1000))
    engine = engine_on(folder, node_energy_j=lambda node: float(next(meter)))
    engine.apply([Start(0, "mute", (0,), 1)])
    until(engine.poll)
    readings = engine.readings(up_to_now=True)
    assert engine.capabilities.energy
    assert sum(reading.energy_uj for reading in readings) > 0
    assert sum(reading.energy_uj for reading in readings if reading.node == 0) % 1_000_000 == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("3.4", (3.4, 3.0)), ("0", (0, 0)), ('{"done_epochs": 3.5, "kept_epochs": 2}', (3.5, 2.0)), ("", None),
        ("nan", None), ("-1", None), ("[1]", None), ('{"done_epochs": 1}', None),
        ('{"done_epochs": 1, "kept_epochs": 2}', None),
        ("1e999", None),        ('{"done_epochs": "x", "kept_epochs": 0}', None), ("null", None),
    ],
)  # fmt: skip
def test_progress_is_what_makes_sense(tmp_path, text, told):
    (tmp_path / "progress").write_text(text)
    assert read_progress(tmp_path / "progress") == told


class TestFence:
    """A controller that was frozen before it gave a command, and thaws when another one has taken over."""

    def test_what_it_starts_then_does_not_begin(self, folder):
        set_fence(folder, anew=False)
        frozen = engine_on(folder)
        set_fence(folder, anew=True)
        frozen.apply([Start(0, "j1", (0,), 1)])
        (change,) = until(frozen.poll)
        assert isinstance(change, JobInterrupted)
        assert (change.cause, change.begun) == ("another controller had taken over before it began", False)
        assert started(folder) == []

    def test_it_does_not_replace_the_run_of_the_other_one(self, folder):
        set_fence(folder, anew=False)
        frozen = engine_on(folder)
        set_fence(folder, anew=True)
        other = engine_on(folder)
        other.apply([Start(0, "j1", (0,), 1)])
        with pytest.raises(EngineError, match="run 1 was ordered by another controller"):
            frozen.apply([Start(0, "j1", (1,), 2)])
        until(lambda: started(folder))
        assert [run.nodes for run in other.recorded_runs()] == [(0,)]
        other.apply([Stop(0)])
        assert len(started(folder)) == 1

    def test_the_other_one_replaces_what_it_had_prepared(self, folder):
        set_fence(folder, anew=False)
        frozen = engine_on(folder)
        set_fence(folder, anew=True)
        other = engine_on(folder)
        frozen.apply([Start(0, "j1", (1,), 2)])
        until(frozen.poll)
        other.apply([Start(0, "j1", (0,), 1)])
        until(lambda: started(folder))
        assert RunFolder(folder / "runs" / "0-1").spec().node_names == ("n-1",)
        other.apply([Stop(0)])
