"""Small clusters and job lists to run a controller on."""

from __future__ import annotations

import numpy as np

from commonwatt.control.controller import Controller
from commonwatt.control.job_registry import Rules
from commonwatt.control.policy import Policy
from commonwatt.engines.clocks import VirtualClock, run
from commonwatt.engines.simulated.engine import SimulatedEngine, World
from commonwatt.model.electricity import Electricity
from commonwatt.model.jobs import Job, JobArrays
from commonwatt.model.nodes import Cluster, NodeSpec
from commonwatt.model.scenario import PolicySpec
from commonwatt.simulation.run_setup import TableSource


def cluster_of(nodes: int = 2, gpus: int = 2, **more) -> Cluster:
    return Cluster.of([NodeSpec(name="n", count=nodes, gpu_type="V100", gpus=gpus, idle_w=100, gpu_w=100, **more)])


def job(name: str, submit_s: float, time_s: float, gpus: int = 1, **more) -> Job:
    given = {"due_s": np.inf, "tardiness_weight": 1e-3, "epochs": 10, "tenant": "t", "requested_gpus": gpus, **more}
    return Job(name=name, submit_s=submit_s, times_s={"V100": {gpus: time_s}}, **given)


def random_jobs(count: int, seed: int, gpus: int = 2, gap_s: float = 300.0) -> JobArrays:
    rng = np.random.default_rng(seed)
    submit = np.cumsum(rng.exponential(gap_s, count))
    jobs = []
    for j in range(count):
        alone_s, scaling = float(rng.uniform(300, 4000)), float(rng.uniform(0.6, 0.95))
        times = {g: alone_s / g**scaling for g in range(1, gpus + 1)}
        jobs.append(
            Job(
                f"j{j}", str(rng.choice(["a", "b", "c"])), float(submit[j]),
                float(submit[j] + alone_s * rng.uniform(1.1, 3)), float(rng.integers(1, 6)) * 1e-3, {"V100": times},
                epochs=int(rng.integers(1, 30)), requested_gpus=1,
            )
        )  # fmt: skip
    return JobArrays.of(jobs)


def simulate(
    cluster: Cluster, table: JobArrays, solver: str = "random-greedy", *, rules: Rules | None = None,
    world: World | None = None, seed: int = 0, electricity: Electricity | None = None, **spec,
) -> Controller:  # fmt: skip
    engine = SimulatedEngine(cluster, table, world or World())
    controller = Controller(
        cluster=cluster, engine=engine, policy=Policy.of(PolicySpec(solver=solver, **spec)), rules=rules or Rules(),
        tariff=(electricity or Electricity()).tariff(), rng=np.random.default_rng(seed),
    )  # fmt: skip
    run(controller, VirtualClock(engine), TableSource(table))
    return controller


def trace(controller: Controller) -> list[tuple]:
    """What happened, as (time, kind, job, nodes)."""
    return [
        (round(e.time_s, 3), str(e.kind), controller.registry.names[e.handle], e.nodes) for e in controller.log.since(0)
    ]
