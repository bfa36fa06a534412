"""The generator of ANDREAS section V-B: J = 10 N training jobs on N nodes, half of them V100 and half T4.

From the paper: the families of models, batch sizes and epochs drawn at random, N and J, the two scenarios, "mixed"
arrivals. Where it prints no figures they are ours:

- Epochs: 60 to 160, as in Table V, every number as likely. Batch size: that of Table V, its half or its quarter.
- Mixed arrivals: phases of exponential length, on average 10 mean gaps long, with 1.6 and 0.4 times the mean rate in
  turn; exponential gaps within a phase.
- Due date: submission plus 1.1 to 4 times the run time on one V100, log-uniform: the tighter half of what Table V
  spans under our run times (1.1 to 8), so that at twice the capacity lateness cannot be avoided. Tardiness weight: 1
  to 5 times ``WEIGHT_EUR_S``.
- Offered load: the work of a job is the time the whole cluster needs for it if every GPU works at the count that uses
  GPUs best, ``1 / sum over types of (GPUs of the type / min over counts g of g * time on g)``. Arrivals are stretched
  so that the work of all jobs over the time of the last submission is ``load``.

With an odd N the odd node has V100. All jobs are one tenant's, and no job requests a number of GPUs: the paper's
schedulers choose it.

The models ANDREAS trains, with run times of our own: the paper prints none.

How a family scales over GPUs and compares between V100 and T4 is the scaling law of a class of model alike (``law``).
How long an epoch takes on one V100 is chosen so that Table V is possible as the paper tells it: every job of it alone
on one V100 is in time, by a margin for restarts; EfficientNet J6, running from 0 s, still runs at 2,400 s, when J10
joins it, and is done by 3,600 s; ConvNet J9 is done in 2,600 s. Larger batches shorten an epoch by the exponent at
which Gavel's throughputs of such a model still grow at their last doubling on a V100.

The nodes' power is ours too. V100: what Zeus measured for ResNet-50 at 250 W; T4: just below its limit of 70 W; host:
140 W (two ThunderX2, without GPUs). Within what Table V allows, host power and the LSTMs' epochs were chosen so that
the eight jobs cost about what the paper measured, 0.951 EUR (Table III): one V100 each, on three nodes that are on for
15,000 s, they cost 0.92 EUR. That our figures agree with Table III is therefore no evidence.

On ARMIDA (section V-C): the three nodes of Table II and the eight jobs of Table V. The due dates of Table V count from
submission: J1 is submitted at 6,000 s with 5,600 in the due-date column, so an absolute date would lie before it, while
the paper says that all jobs were completed within their due dates. Tardiness weights are the paper's times
``WEIGHT_EUR_S``; the nodes stay on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from commonwatt.data.profiles import LAW
from commonwatt.model.arrays import Floats
from commonwatt.model.electricity import Electricity
from commonwatt.model.jobs import Job, JobArrays
from commonwatt.model.nodes import NodeSpec
from commonwatt.model.scenario import AndreasWorkload, JobsWorkload, PolicySpec, Scenario, ScenarioJob, UnusedNodes

__all__ = [
    "FAMILIES",
    "HOST_W",
    "NODES",
    "TABLE_V",
    "WEIGHT_EUR_S",
    "Family",
    "Row",
    "armida_scenario",
    "cluster_work_s",
    "generate_andreas",
    "mixed_arrivals",
    "node",
]


WEIGHT_EUR_S = 1e-4
"""One unit of the paper's tardiness weights (1 to 5), in EUR/s. A full node of its largest kind (4 V100) costs
6.5e-5 EUR/s at 0.172 EUR/kWh and PUE 1.33, so that a second of lateness always costs more than a second of energy."""

HOST_W = 140.0
_GPU_W = {"V100": 220.0, "T4": 65.0}


@dataclass(frozen=True)
class Family:
    """A kind of model."""

    name: str
    like: str  # class of model whose law it follows
    epoch_s: float  # one epoch at ``batch_size`` on one V100
    batch_size: int  # of Table V
    batch_gain: float  # speed grows as batch size to this power

    def time_s(self, gpu_type: str, gpus: int, epochs: int, batch_size: int) -> float:
        """Run time of *epochs* epochs."""
        reference, speed = LAW.speed(self.like, "V100", 1), LAW.speed(self.like, gpu_type, gpus)
        if reference is None or speed is None:
            msg = f"no law for {self.like} on {gpu_type}"
            raise ValueError(msg)
        return epochs * self.epoch_s * (batch_size / self.batch_size) ** -self.batch_gain * reference / speed


FAMILIES = {
    family.name: family
    for family in (
        Family("EfficientNet", "resnet50", epoch_s=42.0, batch_size=4096, batch_gain=0.2),
        Family("ConvNet", "resnet18", epoch_s=12.0, batch_size=8192, batch_gain=0.2),
        Family("LSTM-big", "lm", epoch_s=84.0, batch_size=8192, batch_gain=0.3),
        Family("LSTM-small", "lm", epoch_s=44.0, batch_size=8192, batch_gain=0.3),
    )
}


def node(name: str, gpu_type: str, gpus: int, count: int = 1) -> NodeSpec:
    """Nodes like ARMIDA's."""
    return NodeSpec(name=name, count=count, gpu_type=gpu_type, gpus=gpus, idle_w=HOST_W, gpu_w=_GPU_W[gpu_type])


GPUS_OF_NODE: Mapping[int, Mapping[str, int]] = {1: {"V100": 2, "T4": 1}, 2: {"V100": 4, "T4": 2}}  # by scenario
_EPOCHS = (60, 160)
_BATCH_PARTS = (1, 2, 4)
_SLACK = (1.1, 4.0)
_PHASE_RATES = (1.6, 0.4)
_PHASE_GAPS = 10.0


def generate_andreas(spec: AndreasWorkload, rng: np.random.Generator) -> tuple[tuple[NodeSpec, ...], JobArrays]:
    """Draw the nodes and the jobs of one instance."""
    per_node = GPUS_OF_NODE[spec.scenario]
    nodes = (
        node("v100", "V100", per_node["V100"], count=(spec.nodes + 1) // 2),
        node("t4", "T4", per_node["T4"], count=spec.nodes // 2),
    )
    total = {spec_.gpu_type: spec_.gpus * spec_.count for spec_ in nodes}
    count = spec.jobs or 10 * spec.nodes
    families = list(FAMILIES.values())
    drawn = [_draw(families[int(rng.integers(len(families)))], per_node, rng) for _ in range(count)]
    work_s = np.array([cluster_work_s(times, total) for _, times, _ in drawn])
    arrive = mixed_arrivals(count, rng)
    submit_s = arrive / arrive[-1] * work_s.sum() / spec.load if count > 1 else np.zeros(1)
    slack = np.exp(rng.uniform(math.log(_SLACK[0]), math.log(_SLACK[1]), size=count))
    weight = rng.integers(1, 6, size=count) * WEIGHT_EUR_S
    digits = len(str(count))
    return nodes, JobArrays.of(
        Job(
            name=f"J{j + 1:0{digits}}",
            tenant="default",
            submit_s=float(submit_s[j]),
            due_s=float(submit_s[j] + slack[j] * times["V100"][1]),
            tardiness_weight=float(weight[j]),
            times_s=times,
            epochs=epochs,
            kind=kind,
        )
        for j, (kind, times, epochs) in enumerate(drawn)
    )


def _draw(
    family: Family, per_node: Mapping[str, int], rng: np.random.Generator
) -> tuple[str, dict[str, dict[int, float]], int]:
    epochs = int(rng.integers(_EPOCHS[0], _EPOCHS[1] + 1))
    batch = family.batch_size // int(rng.choice(_BATCH_PARTS))
    times = {
        gpu_type: {g: family.time_s(gpu_type, g, epochs, batch) for g in range(1, most + 1)}
        for gpu_type, most in per_node.items()
    }
    return family.name, times, epochs


def cluster_work_s(times: Mapping[str, Mapping[int, float]], total: Mapping[str, int]) -> float:
    """Time in which all the GPUs, each at its best count, would do one such job."""
    return 1.0 / sum(total[t] / min(g * seconds for g, seconds in row.items()) for t, row in times.items())


def mixed_arrivals(count: int, rng: np.random.Generator) -> Floats:
    """Submission times of *count* jobs in mean gaps, increasing, above 0."""
    wanted = np.cumsum(rng.exponential(size=count))
    phases = rng.exponential(_PHASE_GAPS, size=64)
    first = int(rng.integers(2))
    while phases.sum() * min(_PHASE_RATES) <= wanted[-1]:
        phases = np.concatenate((phases, rng.exponential(_PHASE_GAPS, size=len(phases))))
    rates = np.resize(np.roll(_PHASE_RATES, first), len(phases))
    ends = np.concatenate(([0.0], np.cumsum(phases)))
    passed = np.concatenate(([0.0], np.cumsum(phases * rates)))
    return np.interp(wanted, passed, ends)


class Row(NamedTuple):
    """A row of Table V."""

    job: str
    application: str
    epochs: int
    batch_size: int
    submit_s: float  # S_j
    due_after_s: float  # d_j, from submission
    weight: int  # omega_j


TABLE_V = (
    Row("J6", "EfficientNet", 80, 4096, 0, 3600, 4),
    Row("J9", "ConvNet", 160, 8192, 1200, 2600, 2),
    Row("J10", "ConvNet", 80, 8192, 2400, 7600, 3),
    Row("J7", "LSTM-big", 160, 8192, 3600, 17600, 3),
    Row("J8", "LSTM-small", 160, 8192, 4800, 7600, 3),
    Row("J1", "LSTM-big", 60, 8192, 6000, 5600, 5),
    Row("J2", "LSTM-small", 60, 8192, 7200, 12600, 2),
    Row("J3", "EfficientNet", 60, 4096, 8400, 11600, 1),
)

NODES: tuple[NodeSpec, ...] = (  # Table II; armida-04 only profiled
    node("armida-05", "V100", 1),
    node("armida-06", "V100", 2),
    node("armida-07", "T4", 1),
)


def armida_scenario(policies: tuple[PolicySpec, ...] = (PolicySpec(solver="random-greedy"),)) -> Scenario:
    """Return the experiment as a scenario: H = 300 s, rho = 100, 0.172 EUR/kWh, PUE 1.33."""
    return Scenario(
        name="armida",
        workload=JobsWorkload(source="jobs", jobs=tuple(_job(row) for row in TABLE_V)),
        nodes=NODES,
        electricity=Electricity(price_per_kwh=0.172, pue=1.33, currency="EUR"),
        interval_s=300.0,
        postponement_penalty=100.0,
        unused_nodes=UnusedNodes(state=None),
        policies=policies,
    )


def _job(row: Row) -> ScenarioJob:
    family = FAMILIES[row.application]
    most = {"V100": 2, "T4": 1}
    return ScenarioJob(
        name=row.job,
        submit_s=row.submit_s,
        due_s=row.submit_s + row.due_after_s,
        tardiness_weight=row.weight * WEIGHT_EUR_S,
        times_s={
            gpu_type: {g: family.time_s(gpu_type, g, row.epochs, row.batch_size) for g in range(1, gpus + 1)}
            for gpu_type, gpus in most.items()
        },
        epochs=row.epochs,
    )
