"""The engine contract on a real Slurm."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path

import pytest

from commonwatt.engines.clocks import RealClock
from commonwatt.engines.run_spec import JobWork
from commonwatt.engines.slurm.engine import SlurmEngine
from commonwatt.model.nodes import Cluster, NodeSpec, PowerState
from commonwatt.testing.engine_contract import EngineContract, Lab, contract_jobs

from ..test_local import JOBS, WORKER
from .site import until

pytestmark = pytest.mark.long

OFF = PowerState(name="off", wake_s=2.0)
CLUSTER = Cluster.of([NodeSpec(name="n", count=2, gpu_type="V100", gpus=2, idle_w=100, gpu_w=50, states=(OFF,))])
UNIT_S = {"test_a_stopped_job_goes_on_from_its_last_snapshot": 0.4}  # a stop comes in the epoch it is meant for
FASTER = {"j3": {"epochs": 10, "times": {"1": 30, "2": 8}}}  # by more than a round of Slurm's scheduler


def work(name: str, unit_s: float) -> JobWork:
    spec = {**(JOBS | FASTER)[name], "unit_s": unit_s}
    return JobWork((sys.executable, "-I", str(WORKER), json.dumps(spec)), Path("/"), spec["epochs"])


class PatientLab(Lab):
    """Time in which Slurm launches a job, or has yet to say that one is over, does not count."""

    def pass_time(self, units):
        until(self._all_begun)
        until_s, seen = time.time() + units * self.unit_s, []
        while time.time() < until_s or any(run.folder.end() for run in self.engine._runs.values()):
            if not self.engine._runs:
                until_s = min(until_s, time.time() + self.unit_s)
            self.clock.wait_until(max(until_s, time.time() + self.unit_s / 10))
            seen += self.engine.poll()
        return seen

    def done(self, handle):
        """Said right after the job said so, early in an epoch, if it runs: the next one is not kept soon."""
        run = self.engine._runs.get(handle)
        if run is not None and run.folder.processes():
            said, before = super().done, super().done(handle)
            until(lambda: run.folder.end() or (said(handle) != before and said(handle) % 1 == 0.25), pause_s=0.01)
        return super().done(handle)

    def _all_begun(self):
        self.engine.wait(0.01)
        return all(run.folder.processes() or run.folder.end() for run in self.engine._runs.values())


class TestSlurmEngine(EngineContract):
    @pytest.fixture
    def lab(self, slurm, settings, tmp_path, request):
        unit_s = UNIT_S.get(request.node.originalname, 0.2)
        settings = dataclasses.replace(settings, power=True)
        engine = SlurmEngine(CLUSTER, tmp_path, lambda name: work(name, unit_s), slurm=slurm, settings=settings)
        return PatientLab(engine, RealClock(engine), CLUSTER, contract_jobs(unit_s), unit_s)
