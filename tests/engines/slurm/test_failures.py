"""Nothing is lost and nothing runs twice, whatever of Slurm, or of us, dies. Real daemons, really killed."""

from __future__ import annotations

import dataclasses
import getpass
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commonwatt.control.engine import JobEnded, JobInterrupted, Outcome, RecordedRun, Start, Stop
from commonwatt.engines.run_spec import JobWork
from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.engine import SlurmEngine
from commonwatt.engines.slurm.settings import SlurmSettings
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.testing.engine_contract import contract_cluster

from .conftest import SETTINGS
from .site import until
from .test_slurm import ends

pytestmark = pytest.mark.long

WITNESS = """
import os, sys, time
from pathlib import Path
log = Path(os.environ["COMMONWATT_SNAPSHOTS"]) / "log"
def say(word):
    with log.open("a") as file:
        file.write(f"{word} {os.getpid()}\\n")
say("begin")
end = Path(os.environ["COMMONWATT_SNAPSHOTS"]) / "go"
while not end.exists():
    time.sleep(0.05)
say("end")
"""
"""A job that runs until it is let go, and tells when it began and when it ended."""


def witness() -> JobWork:
    return JobWork((sys.executable, "-I", "-c", WITNESS), Path("/"))


def said(folder: Path, handle: int = 1) -> list[str]:
    log = folder / "jobs" / str(handle) / "log"
    return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []


def process(folder: Path, handle: int = 1) -> int:
    """The job's process that began last."""
    lines = (folder / "jobs" / str(handle) / "log").read_text().splitlines()
    return int([line for line in lines if line.startswith("begin")][-1].split()[1])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def let_go(folder: Path, handle: int = 1) -> None:
    (folder / "jobs" / str(handle) / "go").touch()


def engine_on(folder: Path, slurm: Slurm, **changed) -> SlurmEngine:
    settings = SlurmSettings(**{**SETTINGS, **changed})
    return SlurmEngine(contract_cluster(), folder, lambda name: witness(), slurm=slurm, settings=settings)


def begun(folder: Path, handle: int = 1, times: int = 1) -> None:
    until(lambda: said(folder, handle).count("begin") == times)


def write_down(site) -> None:
    """Have Slurm save its state, which it does after a change, in its own time."""
    now_s = time.time()
    for job in site.ask("squeue", "--noheader", "--format=%A").split():
        site.ask("scontrol", "update", f"JobId={job}", "AdminComment=seen")
    until(lambda: (site.folder / "state" / "job_state").stat().st_mtime > now_s)


def test_without_its_controller_slurm_is_said_to_be_down_and_nothing_is_lost(site, slurm, tmp_path):
    """One job ends meanwhile, one goes on; a start that cannot be does not happen later, either."""
    engine = engine_on(tmp_path, slurm)
    engine.apply([Start(1, "ends", (0,), 1)])
    engine.apply([Start(2, "goes on", (1,), 1)])
    begun(tmp_path, 1)
    begun(tmp_path, 2)
    assert engine.poll() == []
    write_down(site)  # what Slurm has not written down yet it would not know any more
    site.end("slurmctld", signal.SIGKILL)
    let_go(tmp_path, 1)
    with pytest.raises(EngineDownError, match="slurmctld does not answer"):
        engine.poll()
    with pytest.raises(EngineDownError, match="slurmctld does not answer"):
        engine.apply([Start(3, "never", (0,), 1)])
    until(lambda: said(tmp_path, 1) == ["begin", "end"])
    site.begin("slurmctld")
    (seen,) = ends(engine)
    assert (type(seen), seen.handle, seen.outcome) == (JobEnded, 1, Outcome.COMPLETED)
    until(lambda: engine.nodes().usable_gpus.tolist() == [2, 2])  # once both nodes have registered again
    with pytest.raises(EngineError, match="running already"):
        engine.apply([Start(2, "goes on", (0,), 1)])
    let_go(tmp_path, 2)
    (seen,) = ends(engine)
    assert (seen.handle, seen.outcome) == (2, Outcome.COMPLETED)
    assert [said(tmp_path, handle) for handle in (1, 2, 3)] == [["begin", "end"], ["begin", "end"], []]


def test_what_a_killed_controller_forgot_having_started_does_not_run_twice(site, slurm, tmp_path):
    """Killed right after a start, Slurm's controller may know the job as waiting, or not at all."""
    engine = engine_on(tmp_path, slurm)
    engine.apply([Start(1, "j", (0,), 1)])
    begun(tmp_path)
    first = process(tmp_path)
    site.end("slurmctld", signal.SIGKILL)
    site.begin("slurmctld")
    until(lambda: site.states()["n-1"] in {"idle", "mixed"})
    soon_s = time.monotonic() + 4.0
    changes = []
    while not (changes and isinstance(changes[-1], JobEnded)):
        if time.monotonic() > soon_s:
            let_go(tmp_path)
        engine.wait(0.5)
        if seen := engine.poll():
            changes += seen
            if isinstance(seen[-1], JobInterrupted):
                until(lambda: engine.nodes().usable_gpus[1] == 2)  # Slurm has heard of all its nodes again
                engine.apply([Start(1, "j", (1,), 2)])
                begun(tmp_path, times=1 + len(changes))
                assert not alive(first)
    assert changes[-1].outcome is Outcome.COMPLETED
    assert said(tmp_path) == ["begin"] * len(changes) + ["end"]


def test_a_submission_whose_answer_is_lost_happens_once_or_not_at_all(slurm, tmp_path, monkeypatch):
    engine = engine_on(tmp_path, slurm)
    submit = slurm.submit

    def unheard(*arguments):
        submit(*arguments)
        raise EngineDownError("sbatch: no answer")

    monkeypatch.setattr(slurm, "submit", unheard)
    with pytest.raises(EngineDownError, match="no answer"):
        engine.apply([Start(1, "j", (0,), 2)])
    monkeypatch.setattr(slurm, "submit", submit)
    engine.apply([Start(1, "j", (1,), 1)])
    until(
        lambda: engine.poll() == [] and sum(not job.over for job in slurm.jobs([getpass.getuser()])) == 1
    )  # the first is swept out
    begun(tmp_path)
    let_go(tmp_path)
    (seen,) = ends(engine)
    assert seen.outcome is Outcome.COMPLETED
    assert said(tmp_path) == ["begin", "end"]
    assert engine.nodes().usable_gpus.tolist() == [2, 2]


CONTROLLER = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from tests.engines.slurm.test_failures import engine_on
from commonwatt.control.engine import Start
from commonwatt.engines.slurm.commands import Slurm
engine = engine_on(Path({folder!r}), Slurm(Path({conf!r})))
engine.apply([Start(1, "one", (0,), 1), Start(2, "two", (1,), 2)])
sys.stdout.write("ready\\n")
sys.stdout.flush()
time.sleep(600)
"""


def test_jobs_outlive_the_controller_and_another_one_takes_them_up(site, slurm, tmp_path):
    """kill -9 of the process that submitted them; one ends before anybody looks, one is stopped and moved."""
    source = CONTROLLER.format(tests=str(Path(__file__).parents[3]), folder=str(tmp_path), conf=str(site.conf))
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "ready\n"
        first.kill()
    begun(tmp_path, 1)
    begun(tmp_path, 2)
    let_go(tmp_path, 2)
    second = engine_on(tmp_path, slurm)
    one, two = second.recorded_runs()
    assert one == RecordedRun(1, 1, (0,), 1)
    assert two in (RecordedRun(2, 1, (1,), 2), RecordedRun(2, 1, (), 0))  # it may or may not have ended by now
    (seen,) = ends(second)
    assert (seen.handle, seen.outcome) == (2, Outcome.COMPLETED)
    (stopped,) = second.apply([Stop(1)])
    assert stopped.handle == 1
    second.apply([Start(1, "one", (1,), 2)])
    begun(tmp_path, 1, times=2)
    let_go(tmp_path, 1)
    (seen,) = ends(second)
    assert (seen.handle, seen.outcome) == (1, Outcome.COMPLETED)
    assert said(tmp_path, 1) == ["begin", "begin", "end"]
    assert said(tmp_path, 2) == ["begin", "end"]


def test_what_slurm_has_forgotten_is_known_from_its_record(site, slurm, tmp_path):
    """Its controller begins with no memory: the job that ended has a record; the one it orphans is interrupted."""
    engine = engine_on(tmp_path, slurm)
    engine.apply([Start(1, "ends", (0,), 1)])
    engine.apply([Start(2, "orphan", (1,), 1)])
    begun(tmp_path, 1)
    begun(tmp_path, 2)
    site.end("slurmctld")
    let_go(tmp_path, 1)
    until(lambda: said(tmp_path, 1) == ["begin", "end"])
    shutil.rmtree(site.folder / "state")
    (site.folder / "state").mkdir()
    site.shaken()
    site.begin("slurmctld")
    seen = {change.handle: change for change in ends(engine, 2)}
    assert (type(seen[1]), seen[1].outcome) == (JobEnded, Outcome.COMPLETED)
    assert isinstance(seen[2], JobInterrupted)
    until(lambda: not alive(process(tmp_path, 2)))
    engine.apply([Start(2, "orphan", (0,), 2)])
    begun(tmp_path, 2, times=2)
    let_go(tmp_path, 2)
    (seen,) = ends(engine)
    assert (seen.handle, seen.outcome) == (2, Outcome.COMPLETED)
    assert said(tmp_path, 2) == ["begin", "begin", "end"]


def test_a_job_whose_node_slurm_lost_goes_on_elsewhere_and_never_in_two_places(site, slurm, tmp_path):
    """Its daemon is killed, its processes are not: they give way to the next run as soon as the job is given up."""
    engine = engine_on(tmp_path, slurm)
    engine.apply([Start(1, "j", (0,), 1)])
    begun(tmp_path)
    first = process(tmp_path)
    site.end("n-1", signal.SIGKILL)
    site.ask("scontrol", "update", "NodeName=n-1", "State=DOWN", "Reason=lost")  # as Slurm would after SlurmdTimeout
    assert alive(first)
    (seen,) = ends(engine)
    assert isinstance(seen, JobInterrupted)
    assert seen.cause == "a node of it failed (NODE_FAIL)"
    assert engine.nodes().usable_gpus.tolist() == [0, 2]
    engine.apply([Start(1, "j", (1,), 2)])
    begun(tmp_path, times=2)
    assert not alive(first)
    let_go(tmp_path)
    (seen,) = ends(engine)
    assert seen.outcome is Outcome.COMPLETED
    assert said(tmp_path) == ["begin", "begin", "end"]
    site.begin("n-1")
    until(lambda: engine.nodes().usable_gpus.tolist() == [2, 2])


def test_a_job_slurm_does_not_start_is_taken_back(site, slurm, tmp_path):
    engine = engine_on(tmp_path, slurm, start_s=0.5)
    site.ask("scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        engine.apply([Start(1, "j", (0,), 1)])
        (seen,) = ends(engine)
    finally:
        site.ask("scontrol", "update", "PartitionName=main", "State=UP")
    assert isinstance(seen, JobInterrupted)
    assert seen.cause == "Slurm did not start it within 0.5 s: PartitionDown"
    assert said(tmp_path) == []


def test_a_job_that_does_not_listen_is_killed_and_its_gpus_are_free(site, slurm, tmp_path):
    script = "trap '' TERM; echo $$ > \"$COMMONWATT_SNAPSHOTS/log\"; while :; do sleep 0.1; done"
    deaf = JobWork(("sh", "-c", script), Path("/"))
    settings = dataclasses.replace(SlurmSettings(**SETTINGS), grace_s=0.5)
    engine = SlurmEngine(contract_cluster(), tmp_path, lambda name: deaf, slurm=slurm, settings=settings)
    engine.apply([Start(1, "deaf", (0, 1), 2)])
    log = tmp_path / "jobs" / "1" / "log"
    until(lambda: log.exists() and log.read_text())
    engine.apply([Stop(1)])
    assert not alive(int(log.read_text()))
    assert all(not any(node.used_gpus.values()) for node in slurm.nodes())


def test_a_job_may_use_all_its_nodes(slurm, settings, tmp_path):
    """A gang is one run on its first node; steps that it starts with srun run on all."""
    step = ("srun", "--export=ALL", "--ntasks-per-node=1", "sh", "-c", "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES")
    engine = SlurmEngine(
        contract_cluster(), tmp_path, lambda name: JobWork(step, Path("/")), slurm=slurm, settings=settings
    )
    engine.apply([Start(1, "gang", (0, 1), 2)])
    (seen,) = ends(engine)
    log = (tmp_path / "runs" / "1-1" / "output.log").read_text()
    assert (seen.outcome, sorted(log.splitlines())) == (Outcome.COMPLETED, ["n-1 0,1", "n-2 0,1"]), log
