"""Jobs that do not go when they are told: killed all at once, and waited for together, or not at all."""

from __future__ import annotations

import time

import pytest

from commonwatt.control.engine import JobLeft, Stop, Stopped
from commonwatt.engines.local.folder import End, RunFolder
from commonwatt.engines.run_spec import RunSpec
from commonwatt.engines.slurm import engine, run
from commonwatt.engines.slurm import node_control as power
from commonwatt.engines.slurm import snapshot as sight
from commonwatt.engines.slurm.engine import SlurmEngine
from commonwatt.model.errors import EngineDownError
from commonwatt.testing.engine_contract import contract_cluster

from .test_attach import Pretended
from .test_slurm import sleeper

JOBS = [1, 2, 3, 4]
STATES = {f"j{job}": "RUNNING" for job in JOBS}
ALL = [[101, 102, 103, 104]]
LATER = [Stopped(job, 0.0, later=True) for job in JOBS]


class Clock:
    """Time passes only where somebody waits."""

    time = staticmethod(time.time)

    def __init__(self):
        self.at_s = 1000.0

    def monotonic(self):
        return self.at_s

    def sleep(self, seconds):
        self.at_s += seconds


class Deaf(Pretended):
    """A Slurm whose jobs are told, and do not go."""

    def __init__(self, *arguments, **states):
        super().__init__(*arguments, **states)
        self.told, self.killed, self.down = [], [], False

    def terminate(self, jobs):
        self.told.append(list(jobs))

    def cancel(self, jobs):
        if self.down:
            raise EngineDownError("no answer")
        self.killed.append(list(jobs))


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (engine, power, run, sight):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def deaf(tmp_path, settings, clock):
    """Four jobs that run, and the engine that has taken them up."""
    for job in JOBS:
        order = RunSpec(job, 1, "j", (0,), 1, ((),), time.time() - 100.0, 0.0, ("x",), "/", {}, 1.0, epochs=1.0)
        RunFolder.create(tmp_path / "runs", order)
    slurm = Deaf(tmp_path, **STATES)
    return slurm, SlurmEngine(contract_cluster(), tmp_path, lambda name: sleeper(), slurm=slurm, settings=settings)


def stop_each(over) -> list[Stopped]:
    """As one does who cannot know whether some of them are refused."""
    return [stopped for job in JOBS for stopped in over.apply([Stop(job)])]


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING"])
def test_what_is_overdue_is_killed_at_once_and_nobody_waits_for_it(deaf, clock, settings, state):
    slurm, over = deaf
    assert list(over.request_stop(JOBS)) == JOBS
    slurm.states.update(dict.fromkeys(STATES, state))
    clock.at_s += settings.kill_s - 0.1
    assert over.poll() == []
    assert slurm.killed == []
    clock.at_s += 0.2
    assert over.poll() == []
    assert slurm.killed == ALL
    clock.at_s = 1000.0 + over.capabilities.stop_s + 0.1
    assert over.poll() == []
    asked, began_s = slurm.asked, clock.at_s
    assert stop_each(over) == LATER
    assert (slurm.asked, clock.at_s) == (asked, began_s)
    assert (slurm.killed, slurm.told) == (ALL, ALL)
    assert over.nodes().usable_gpus.tolist() == [0, 2]
    for job in JOBS:
        RunFolder(over._state / "runs" / f"{job}-1").finish(End(-9, stopped=False, at_s=time.time(), cause="killed"))
    slurm.states.update(dict.fromkeys(STATES, "CANCELLED"))
    clock.at_s += 1.0
    assert [(type(change), change.handle) for change in over.poll()] == [(JobLeft, job) for job in JOBS]


def test_jobs_that_were_told_together_are_waited_for_together(deaf, clock, settings):
    """A controller that begins stops one after the other what has no place any more."""
    slurm, over = deaf
    over.request_stop(JOBS)
    assert stop_each(over) == LATER
    assert slurm.killed == ALL
    assert clock.at_s < 1000.0 + over.capabilities.stop_s + 1.0  # each alone would add a second


def test_a_kill_that_slurm_did_not_hear_is_tried_again(deaf, clock, settings):
    slurm, over = deaf
    over.request_stop(JOBS)
    clock.at_s += settings.kill_s + 0.1
    slurm.down = True
    with pytest.raises(EngineDownError):
        over.poll()
    slurm.down = False
    clock.at_s += settings.look_s + 0.1
    assert over.poll() == []
    assert slurm.killed == ALL
