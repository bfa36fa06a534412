"""What an engine makes of the runs of one before it: of most there is nothing left but a record."""

from __future__ import annotations

import getpass
import time

import pytest

from commonwatt.control.engine import JobEnded, JobInterrupted, MeterMark, Outcome, RecordedRun, Start
from commonwatt.engines.local.folder import End, RunFolder
from commonwatt.engines.run_spec import RunSpec
from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.engine import SlurmEngine
from commonwatt.engines.slurm.parsing import SlurmJob, SlurmNode
from commonwatt.engines.slurm.run import comment_of
from commonwatt.engines.state_folder import make_identity
from commonwatt.model.errors import EngineDownError
from commonwatt.testing.engine_contract import contract_cluster

from .site import until
from .test_completing import CLUSTER
from .test_slurm import ends, sleeper

DAY_S = 86_400.0
STOPPED = End(-15, stopped=True, at_s=0.0, cause="killed by SIGTERM", ran_s=5.0)
DONE = End(0, stopped=False, at_s=0.0, cause="exit code 0", ran_s=5.0)


class Pretended(Slurm):
    """Nodes that are there, and the jobs of ours that it is told of, by the state of each run."""

    def __init__(self, folder, **states):
        super().__init__()
        self.identity, self.states, self.asked = make_identity(folder, "commonwatt"), states, 0
        self.down, self.off = False, set()

    def ping(self):
        self.asked += 1
        if self.down:
            raise EngineDownError("no answer")

    def nodes(self, *, plain=False):
        states = {name: {"idle", "powered_down"} if name in self.off else {"idle"} for name in ("n-1", "n-2")}
        return [SlurmNode(name, frozenset(said), {"V100": 2}, {}, 8, 0) for name, said in states.items()]

    def has(self, job):
        return job in {one.id for one in self.jobs()}

    def jobs(self, users=None, *, plain=False):
        return [
            SlurmJob(
                100 + int(handle[1:]),
                getpass.getuser(),
                state,
                1,
                "None",
                comment_of(self.identity, int(handle[1:]), 1),
            )
            for handle, state in self.states.items()
        ]


@pytest.fixture
def left(tmp_path):
    """Write down a run that an engine before left, which began *ago_s* ago."""

    def write(handle, end=None, ago_s=DAY_S):
        began_s = time.time() - ago_s
        order = RunSpec(handle, 1, "j", (0,), 1, ((),), began_s, 0.0, ("x",), "/", {}, 1.0, epochs=1.0)
        folder = RunFolder.create(tmp_path / "runs", order)
        if end is not None:
            folder.finish(End(end.exit_code, end.stopped, began_s + 5.0, end.cause, end.ran_s))

    return write


@pytest.fixture
def engine_over(tmp_path, settings):
    def begin(slurm=None, **more):
        slurm = slurm or Pretended(tmp_path)
        more = {"settings": settings, "declared_power": True, **more}
        cluster = more.pop("cluster", contract_cluster())
        return SlurmEngine(cluster, tmp_path, lambda name: sleeper(), slurm=slurm, **more)

    return begin


def holders(engine) -> list[set[int]]:
    """Who is in each of the readings up to now."""
    return [{holder.handle for holder in reading.holders} for reading in engine.readings(up_to_now=True)]


def test_nothing_is_charged_to_jobs_that_ended_before_the_engine_began(left, engine_over):
    """There are as many readings as nodes, not as jobs, too."""
    for handle in range(1, 9):
        left(handle, DONE)
    engine = engine_over(since={0: MeterMark(time.time() - 1.0)})
    assert holders(engine) == [set(), set(), set()]  # caught up, and both nodes
    assert [found.nodes for found in engine.recorded_runs()] == [()] * 8
    assert {change.outcome for change in engine.poll()} == {Outcome.COMPLETED}
    assert holders(engine) == [set(), set()]
    assert engine.power_w() == 200.0
    assert engine.poll() == []


def test_a_job_that_ended_and_that_slurm_has_still_is_charged_until_it_has_not(left, engine_over, tmp_path):
    left(1, DONE)
    left(2, DONE)
    slurm = Pretended(tmp_path, j1="COMPLETING", j2="COMPLETED")
    engine = engine_over(slurm)
    assert engine.recorded_runs() == [RecordedRun(1, 1, (0,), 1), RecordedRun(2, 1, (), 0)]
    holders(engine)
    (change,) = engine.poll()
    assert change.handle == 2
    assert holders(engine) == [{1}, set()]
    slurm.states["j1"] = "COMPLETED"
    (change,) = engine.poll()
    assert change.handle == 1
    assert holders(engine) == [{1}, set(), set()]


@pytest.mark.parametrize(
    ("end", "state", "runs"),
    [
        (STOPPED, "CANCELLED", False),
        (STOPPED, "COMPLETING", True),
        (STOPPED, "PENDING", True),  # slurmctld forgot that it started it
        (STOPPED, None, False),
        (None, "CANCELLED", True),  # its record may be on its way: nobody was told of its end
        (None, None, True),
        (None, "RUNNING", True),
    ],
)
@pytest.mark.parametrize("set_back_s", [0.0, 3600.0])
def test_a_job_is_found_running_if_its_end_is_yet_to_be_told(left, engine_over, tmp_path, end, state, runs, set_back_s):
    """However short a time ago it ended: else whoever was told of its end takes it for another."""
    left(1, end, ago_s=5.0)
    slurm = Pretended(tmp_path, **({} if state is None else {"j1": state}))
    engine = engine_over(slurm, now_s=lambda: time.time() - set_back_s)
    assert engine.recorded_runs() == [RecordedRun(1, 1, (0,) if runs else (), 1 if runs else 0)]
    kind = JobEnded if state == "CANCELLED" else JobInterrupted  # by somebody else, as far as is known
    assert [type(change) for change in engine.poll()] == ([] if runs else [kind])


@pytest.mark.parametrize(
    ("slept", "sleeps", "meanwhile"),
    [(True, True, True), (True, False, False), (False, True, False), (True, None, True)],
)
def test_a_node_that_slept_before_and_after_slept_while_there_was_no_engine(
    engine_over, left, tmp_path, slept, sleeps, meanwhile
):
    """Of one that was seen asleep only once nobody knows how long; if Slurm does not answer, the last word counts."""
    slurm, since_s = Pretended(tmp_path), time.time() - 1000.0
    left(1, DONE, ago_s=500.0)
    slurm.down, slurm.off = sleeps is None, {"n-1"} if sleeps else set()
    engine = engine_over(slurm, cluster=CLUSTER, since={0: MeterMark(since_s, None, slept), 1: MeterMark(since_s)})
    before, there, after, other = engine.readings()
    assert [reading.asleep for reading in (before, there, after, other)] == [meanwhile, False, meanwhile, False]
    assert before.energy_uj == pytest.approx((0.0 if meanwhile else 100.0) * 1e6 * (before.to_s - before.from_s))
    assert there.energy_uj == pytest.approx(150e6 * 5.0)


def test_what_sleeps_is_written_down_for_the_engine_that_comes_next(engine_over, tmp_path):
    slurm = Pretended(tmp_path)
    slurm.off = {"n-2"}
    engine = engine_over(slurm, cluster=CLUSTER)
    engine.poll()
    assert [mark.asleep for mark in engine.marks().values()] == [False, True]


@pytest.mark.long
def test_with_a_real_slurm_a_job_that_has_ended_is_charged_nothing(site, slurm, settings, engine_over, tmp_path):
    first = engine_over(slurm)
    first.apply([Start(1, "one", (0,), 1), Start(2, "two", (1,), 2)])
    until((tmp_path / "runs" / "2-1" / "runner.json").exists)
    site.ask("scancel", *site.ask("squeue", "--noheader", "--format=%A").split())
    assert [type(change) for change in ends(first, 2)] == [JobEnded] * 2
    for _ in range(2):  # well within the time in which a record may be late
        engine = engine_over(slurm, since=first.marks())
        assert engine.recorded_runs() == [RecordedRun(1, 1, (), 0), RecordedRun(2, 1, (), 0)]
        assert {change.handle for change in engine.poll()} == {1, 2}
        assert not any(holders(engine))
