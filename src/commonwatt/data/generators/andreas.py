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

With an odd N the odd node has V100. All jobs are one tenant's, and nobody asks for a number of GPUs: the paper's
schedulers choose it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from commonwatt.data.generators.families import FAMILIES, WEIGHT_EUR_S, Family, node
from commonwatt.model.arrays import Floats
from commonwatt.model.jobs import Job, JobTable
from commonwatt.model.nodes import NodeSpec
from commonwatt.model.scenario import AndreasWorkload

__all__ = ["cluster_work_s", "generate_andreas", "mixed_arrivals"]


GPUS_OF_NODE: Mapping[int, Mapping[str, int]] = {1: {"V100": 2, "T4": 1}, 2: {"V100": 4, "T4": 2}}  # by scenario
_EPOCHS = (60, 160)
_BATCH_PARTS = (1, 2, 4)
_SLACK = (1.1, 4.0)
_PHASE_RATES = (1.6, 0.4)
_PHASE_GAPS = 10.0


def generate_andreas(spec: AndreasWorkload, rng: np.random.Generator) -> tuple[tuple[NodeSpec, ...], JobTable]:
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
    return nodes, JobTable.of(
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
