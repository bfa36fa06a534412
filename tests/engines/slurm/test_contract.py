"""The engine contract on a real Slurm, and a capacity plan over it, the local and the simulated engine."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest

from commonwatt.control.controller import Controller
from commonwatt.control.engine import SetPower
from commonwatt.control.job_registry import Rules
from commonwatt.control.policy import Policy
from commonwatt.engines.clocks import RealClock, VirtualClock, run
from commonwatt.engines.local.engine import LocalEngine
from commonwatt.engines.run_spec import JobWork
from commonwatt.engines.simulated.engine import SimulatedEngine, World
from commonwatt.engines.slurm.engine import SlurmEngine
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.demand import DemandSeries
from commonwatt.model.electricity import Electricity
from commonwatt.model.jobs import Job, JobArrays
from commonwatt.model.nodes import Cluster, NodeSpec, PowerState
from commonwatt.model.scenario import PolicySpec
from commonwatt.planning.capacity import Past, make_capacity
from commonwatt.simulation.run_setup import TableSource
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


STEP_S, STEPS = 8.0, 11
PLAN = CapacitySpec(policy="cuff", forecaster="last-value", target=0.5, step_s=STEP_S, hold_s=1.5 * STEP_S)
JOBS = {  # submitted at, GPUs, runs for: ends early in a step, so that it may end some seconds later
    "first": (0.0, 1, 9.0),
    "wakes a node": (42.0, 2, 5.0),
    "gang": (58.0, 4, 5.0),
}


class SwitchedLocal(LocalEngine):
    """This machine is never put to sleep: its nodes say they are, and jobs on those that wake begin later."""

    def __init__(self, folder: Path) -> None:
        self.boots_s, self._on_at_s = 0.0, np.zeros(len(CLUSTER))  # infinity: asleep
        super().__init__(CLUSTER, folder, lambda name: JobWork(("sleep", f"{JOBS[name][2] + self.boots_s:g}")))
        self.capabilities = dataclasses.replace(self.capabilities, power_states=True)

    def nodes(self):
        asleep = np.isinf(self._on_at_s)
        wait_s = np.where(asleep, OFF.wake_s, np.maximum(0.0, self._on_at_s - time.time()))
        return dataclasses.replace(super().nodes(), power_state=np.where(asleep, 0, -1), wait_s=wait_s)

    def _set_power(self, command):
        self._on_at_s[command.node] = time.time() + OFF.wake_s if command.state is None else np.inf

    def _start(self, command):
        assert not np.isinf(self._on_at_s[list(command.nodes)]).any()
        self.boots_s = float(self.nodes().wait_s[list(command.nodes)].max())
        super()._start(command)


def jobs_from(begin_s: float) -> JobArrays:
    return JobArrays.of(
        Job(name, "t", begin_s + at_s, np.inf, 1e-3, {"V100": {gpus: run_s}}, requested_gpus=gpus)
        for name, (at_s, gpus, run_s) in JOBS.items()
    )


def decisions(engine, clock, begin_s: float) -> list[tuple]:
    """Run the jobs by the plan; return what it decided in each of its steps.

    GPUs wanted, promised, and on; and which nodes it then put to sleep, or woke.
    """
    rng = np.random.default_rng(3)
    demand = DemandSeries(begin_s - 900 * STEP_S, STEP_S, rng.binomial(4, 0.01, 900).astype(float))
    controller = Controller(
        cluster=CLUSTER, engine=engine, policy=Policy.of(PolicySpec(solver="easy")), rules=Rules(),
        tariff=Electricity().tariff(), rng=np.random.default_rng(0),
        capacity=make_capacity(PLAN, CLUSTER, Past({(STEP_S, PLAN.history_days): demand}), 0),
    )  # fmt: skip
    capacity, apply = controller.capacity, engine.apply
    steps: dict[int, tuple] = {}
    powers: list[tuple[int, str, str]] = []

    def noted(commands):
        own = (command for command in commands if isinstance(command, SetPower))
        powers.extend((capacity.counters.steps, CLUSTER.names[each.node], each.state or "on") for each in own)
        return apply(commands)

    def look(now_s: float) -> None:
        assert now_s - begin_s < STEP_S * capacity.counters.steps  # no plan was missed
        (pool,) = capacity.pools_now
        steps.setdefault(capacity.counters.steps, (pool.wanted_gpus, pool.promised_gpus, pool.on_gpus))

    engine.apply = noted
    run(controller, clock, TableSource(jobs_from(begin_s)), look, until_s=begin_s + STEP_S * STEPS - 1.0)
    assert not controller.registry.active
    return [(*steps[k], [power for at, *power in powers if at == k]) for k in sorted(steps)]


@pytest.fixture
def planned():
    engine = SimulatedEngine(CLUSTER, jobs_from(0.0), World(unused_state=None))
    return decisions(engine, VirtualClock(engine), 0.0)


def test_a_plan_decides_alike_over_the_local_engine(planned, tmp_path):
    engine = SwitchedLocal(tmp_path)
    assert decisions(engine, RealClock(engine), time.time() + 0.5) == planned


def test_a_plan_decides_alike_over_slurm(planned, slurm, settings, tmp_path):
    engine = SlurmEngine(
        CLUSTER, tmp_path, lambda name: JobWork(("sleep", f"{JOBS[name][2]:g}"), Path("/")), slurm=slurm,
        settings=dataclasses.replace(settings, power=True),
    )  # fmt: skip
    assert decisions(engine, RealClock(engine), time.time() + 0.5) == planned
