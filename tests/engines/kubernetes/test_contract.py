"""The engine contract on a real Kubernetes."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from commonwatt.engines.clocks import RealClock
from commonwatt.engines.kubernetes.engine import KubernetesEngine
from commonwatt.engines.run_spec import JobWork
from commonwatt.model.nodes import Cluster, NodeSpec
from commonwatt.testing.engine_contract import EngineContract, Lab, contract_jobs

from ..test_local import JOBS, WORKER
from .site import until

pytestmark = pytest.mark.long

CLUSTER = Cluster.of([NodeSpec(name=f"gpu-{n}", gpu_type="V100", gpus=2, idle_w=100, gpu_w=50) for n in (0, 1)])
UNIT_S = {"test_a_stopped_job_goes_on_from_its_last_snapshot": 0.4}  # a stop comes in the epoch it is meant for


def work(name: str, unit_s: float) -> JobWork:
    spec = {**JOBS[name], "unit_s": unit_s}
    return JobWork((sys.executable, "-I", str(WORKER), json.dumps(spec)), Path("/"), spec["epochs"])


class PatientLab(Lab):
    """Time in which a pod starts, or the kubelet has yet to say that it is over, does not count."""

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
        folders = [run.rank_folder(rank) for run in self.engine._runs.values() for rank in run.ranks]
        return all(folder.processes() or folder.end() for folder in folders)


class TestKubernetesEngine(EngineContract):
    @pytest.fixture
    def lab(self, kube, settings, tmp_path, request):
        unit_s = UNIT_S.get(request.node.originalname, 0.2)
        engine = KubernetesEngine(
            CLUSTER, tmp_path, lambda name: work(name, unit_s), kube.api(), settings=settings
        )  # fmt: skip
        yield PatientLab(engine, RealClock(engine), CLUSTER, contract_jobs(unit_s), unit_s)
        engine.close()
