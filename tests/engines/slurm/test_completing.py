"""Jobs that have ended, and that Slurm is still at taking off their nodes, as a long epilog makes it."""

from __future__ import annotations

import dataclasses
import time

import pytest

from commonwatt.control.engine import JobEnded, JobLeft, Outcome, RecordedRun, SetPower, Start, Stop, Stopped
from commonwatt.engines.slurm.engine import SlurmEngine
from commonwatt.model.errors import EngineError
from commonwatt.model.nodes import Cluster, NodeSpec, PowerState
from commonwatt.testing.engine_contract import contract_cluster

from .site import until
from .test_slurm import ends, sleeper

OFF = PowerState(name="off", wake_s=2.0)
CLUSTER = Cluster.of([NodeSpec(name="n", count=2, gpu_type="V100", gpus=2, idle_w=100, gpu_w=50, states=(OFF,))])


def states(site) -> list[str]:
    return site.ask("squeue", "--noheader", "--format=%T").split()


@pytest.mark.long
def test_a_job_that_ended_long_ago_runs_as_long_as_slurm_has_it(site, slurm, settings, tmp_path):
    """Also for a controller that comes later: it is neither lost, nor are its GPUs given to others."""
    site.hold()
    first = SlurmEngine(contract_cluster(), tmp_path, lambda name: sleeper(0), slurm=slurm, settings=settings)
    first.apply([Start(1, "j", (0,), 2)])
    until((tmp_path / "runs" / "1-1" / "end.json").exists)
    until(lambda: states(site) == ["COMPLETING"])
    time.sleep(settings.lag_s + 0.1)
    engine = SlurmEngine(contract_cluster(), tmp_path, lambda name: sleeper(0), slurm=slurm, settings=settings)
    assert engine.recorded_runs() == [RecordedRun(1, 1, (0,), 2)]
    assert engine.poll() == []
    assert engine.nodes().usable_gpus.tolist() == [2, 2]  # for what runs there
    engine.prune([1])
    assert engine.recorded_runs() == [RecordedRun(1, 1, (0,), 2)]
    assert engine.request_stop([1]) == [1]
    assert engine.apply([Stop(1)]) == [Stopped(1, 0.0, later=True)]
    view = engine.nodes()
    assert view.usable_gpus.tolist() == [0, 2]  # whoever had it stopped takes it for gone
    assert view.in_use.tolist() == [True, False]
    with pytest.raises(EngineError, match="0 GPUs free"):
        engine.apply([Start(2, "k", (0,), 1)])
    site.hold(jobs=False)
    (seen,) = ends(engine)
    assert (type(seen), seen.handle, seen.outcome) == (JobEnded, 1, Outcome.COMPLETED)
    until(lambda: engine.nodes().usable_gpus.tolist() == [2, 2])
    assert not engine.nodes().in_use.any()


@pytest.mark.long
def test_a_job_that_does_not_leave_is_not_waited_for(site, slurm, settings, tmp_path):
    """A poll says when it has left, and what it lost."""
    settings = dataclasses.replace(settings, patience_s=0.2)
    engine = SlurmEngine(contract_cluster(), tmp_path, lambda name: sleeper(), slurm=slurm, settings=settings)
    engine.apply([Start(1, "j", (0,), 1)])
    until((tmp_path / "runs" / "1-1" / "runner.json").exists)
    site.hold()
    assert engine.apply([Stop(1)]) == [Stopped(1, 0.0, later=True)]
    assert engine.poll() == []
    assert engine.nodes().usable_gpus.tolist() == [1, 2]
    assert not engine.has_room((0,), 2)
    site.hold(jobs=False)
    (seen,) = ends(engine)
    assert (type(seen), seen.handle, seen.lost_s > 0) == (JobLeft, 1, True)
    engine.apply([Start(1, "j", (0,), 2)])
    engine.apply([Stop(1)])


def test_a_node_that_only_jobs_of_others_are_leaving_is_not_ours_to_use_yet(site, slurm, settings, tmp_path):
    """Slurm says that none of it is used, and begins nothing there."""
    engine = SlurmEngine(contract_cluster(), tmp_path, lambda name: sleeper(), slurm=slurm, settings=settings)
    site.hold()
    site.ask("sbatch", "--gres=gpu:1", "--nodelist=n-1", "--output=/dev/null", "--wrap=true")
    until(lambda: states(site) == ["COMPLETING"])
    until(lambda: engine.nodes().usable_gpus.tolist() == [0, 2])
    site.hold(jobs=False)
    until(lambda: engine.nodes().usable_gpus.tolist() == [2, 2])


def test_a_node_on_which_others_have_a_core_is_in_use(site, slurm, settings, tmp_path):
    """A plan that asks for its sleep nevertheless is refused."""
    settings = dataclasses.replace(settings, power=True)
    engine = SlurmEngine(CLUSTER, tmp_path, lambda name: sleeper(), slurm=slurm, settings=settings)
    site.ask("sbatch", "--nodelist=n-2", "--output=/dev/null", "--wrap=sleep 600")
    until(lambda: states(site) == ["RUNNING"])
    until(lambda: engine.nodes().in_use.tolist() == [False, True])
    with pytest.raises(EngineError, match="put node n-2 to off: it is used"):
        engine.apply([SetPower(1, "off")])
