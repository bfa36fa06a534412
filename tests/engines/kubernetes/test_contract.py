"""The engine contract on a real Kubernetes."""

from __future__ import annotations

import pytest

from commonwatt.engines.clocks import RealClock
from commonwatt.engines.kubernetes.engine import KubernetesEngine
from commonwatt.model.nodes import Cluster, NodeSpec
from commonwatt.testing.engine_contract import EngineContract, contract_jobs

from ..patient_lab import PatientLab, unit_of, work

pytestmark = pytest.mark.long

CLUSTER = Cluster.of([NodeSpec(name=f"gpu-{n}", gpu_type="V100", gpus=2, idle_w=100, gpu_w=50) for n in (0, 1)])


class PodLab(PatientLab):
    def folders_of(self, run):
        return [run.rank_folder(rank) for rank in run.ranks]


class TestKubernetesEngine(EngineContract):
    @pytest.fixture
    def lab(self, kube, settings, tmp_path, request):
        unit_s = unit_of(request)
        engine = KubernetesEngine(CLUSTER, tmp_path, lambda name: work(name, unit_s), kube.api(), settings=settings)
        yield PodLab(engine, RealClock(engine), CLUSTER, contract_jobs(unit_s), unit_s)
        engine.close()
