"""The engine contract on a real Slurm."""

from __future__ import annotations

import dataclasses

import pytest

from commonwatt.engines.clocks import RealClock
from commonwatt.engines.slurm.engine import SlurmEngine
from commonwatt.model.nodes import Cluster, NodeSpec, PowerState
from commonwatt.testing.engine_contract import EngineContract, contract_jobs

from ..patient_lab import PatientLab, unit_of, work

pytestmark = pytest.mark.long

OFF = PowerState(name="off", wake_s=2.0)
CLUSTER = Cluster.of([NodeSpec(name="n", count=2, gpu_type="V100", gpus=2, idle_w=100, gpu_w=50, states=(OFF,))])
J3 = {"epochs": 10, "times": {"1": 30, "2": 8}}  # faster by more than a round of Slurm's scheduler


class TestSlurmEngine(EngineContract):
    @pytest.fixture
    def lab(self, slurm, settings, tmp_path, request):
        unit_s = unit_of(request)
        settings = dataclasses.replace(settings, power=True)
        engine = SlurmEngine(CLUSTER, tmp_path, lambda name: work(name, unit_s, j3=J3), slurm=slurm, settings=settings)
        return PatientLab(engine, RealClock(engine), CLUSTER, contract_jobs(unit_s), unit_s)
