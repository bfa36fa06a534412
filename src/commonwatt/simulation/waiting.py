"""What jobs would take as their owners asked, how long they wait beside that, and what a part of the cluster would do.

Reference runs are the yardstick that is the same for every policy.

Finish-time fairness: rho = (end - submission) / (time to finish with 1/n of the cluster), as in Themis (Mahajan et al.,
NSDI 2020, section 3.1, where rho = T_shared / T_independent): above 1, sharing made the job later. Of the choices the
paper leaves open:

- n is the mean number of active tenants, over the time with any. A tenant is active while it has a job between
  submission and the end it would have in its reference configuration without waiting. So n is the same for all
  policies.
- A tenant's part is floor(GPUs / n) GPUs, at least one, of any type. Its jobs run there in order of submission, none
  before an earlier one, each in its reference configuration. A job of more GPUs than the part has gets the whole part,
  and takes longer in proportion.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commonwatt.data.profiles import DEFAULT_LOGGED, type_name
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.jobs import JobArrays
from commonwatt.model.nodes import Cluster
from commonwatt.model.results import FinishTimeFairness
from commonwatt.model.scenario import LogWorkload, Scenario, WeekWorkload
from commonwatt.simulation.record import JobColumns, Segments

__all__ = [
    "SHORTEST_S",
    "ReferenceRuns",
    "bounded_slowdown",
    "finish_time_fairness",
    "mean_active",
    "reference_runs",
    "time_in_own_part_s",
    "time_without_gpus_s",
]

SHORTEST_S = 10.0
"""Run times below this count as this in slowdowns: else a wait of seconds of a tiny job would outweigh all others."""


@dataclass(frozen=True)
class ReferenceRuns:
    """Every job in its reference configuration, alone, without waiting. Shapes [J], by row of the table.

    Attributes
    ----------
    run_s
        True run time, s.
    gpus
        GPUs.
    energy_j
        Energy of its GPUs over that time, and of its share of its nodes' idle power, J; without PUE.
    """

    run_s: Floats
    gpus: Ints
    energy_j: Floats


def reference_runs(
    scenario: Scenario | None, cluster: Cluster, table: JobArrays, slowdown: Floats | None = None
) -> ReferenceRuns:
    """Return the jobs of *table* in their reference configurations.

    It has the GPUs the job requested, or if it requested none, the fewest it can run on; on the GPU type it requested,
    or if it requested none, the type its log ran on. Where the cluster or the job has no such configuration, the count
    comes before the type, and then the fastest is taken. *slowdown* is true over expected run time, [J].
    """
    index = np.repeat(np.arange(len(table)), np.diff(table.start))
    gpus_per_node, idle_w, gpu_w = _nodes_of(cluster, table)
    usable = gpus_per_node > 0
    asked = table.requested_gpus[index]
    fewest = np.full(len(table), np.iinfo(np.int64).max)
    np.minimum.at(fewest, index[usable], table.config_gpus[usable])
    asked = np.where(asked > 0, asked, fewest[index])
    wished = _wished_types(scenario, table)[index]
    order = np.lexsort((table.config_time_s, table.config_type != wished, table.config_gpus != asked, ~usable, index))
    chosen = order[table.start[:-1]]
    own_w = table.config_gpu_w[chosen]
    each_w = np.where(np.isnan(own_w), gpu_w[chosen], own_w) + idle_w[chosen] / np.maximum(1, gpus_per_node[chosen])
    run_s = table.config_time_s[chosen] * (1.0 if slowdown is None or not len(slowdown) else slowdown)
    gpus = table.config_gpus[chosen]
    return ReferenceRuns(run_s, gpus, run_s * gpus * each_w)


def _nodes_of(cluster: Cluster, table: JobArrays) -> tuple[Ints, Floats, Floats]:
    """Return GPUs, idle power and GPU power of the nodes each configuration runs on, [C]; 0 GPUs: on none."""
    pairs, which = np.unique(np.stack((table.config_type, table.config_gpus)), axis=1, return_inverse=True)
    rows = []
    for gpu_type, gpus in pairs.T:
        shapes = cluster.shapes(table.gpu_types[gpu_type], int(gpus))
        kind = cluster.classes[shapes[0][0]] if shapes else None
        rows.append((kind.gpus, kind.idle_w, kind.gpu_w) if kind else (0, 0.0, 0.0))
    columns = np.array(rows, dtype=float).reshape(-1, 3)[which.reshape(-1)].T
    return columns[0].astype(np.int64), columns[1], columns[2]


def _wished_types(scenario: Scenario | None, table: JobArrays) -> Ints:
    if scenario is None or not isinstance(scenario.workload, LogWorkload | WeekWorkload):
        return table.requested_type
    specs = scenario.gpu_types
    logged = type_name(scenario.workload.logged_gpu_type or DEFAULT_LOGGED, specs)
    at = next((i for i, name in enumerate(table.gpu_types) if type_name(name, specs) == logged), -1)
    return np.where(table.requested_type >= 0, table.requested_type, at)


def time_without_gpus_s(jobs: JobColumns, segments: Segments) -> Floats:
    """Return the time from submission to end that each job had no GPUs, after preemptions as well as before its start.

    Shape [J]. Time a job had GPUs and did not work yet (its nodes woke, or it restarted) is not in it.
    """
    _, first = np.unique(np.stack((segments.job, segments.from_s)), axis=1, return_index=True)
    had_s = np.bincount(segments.job[first], (segments.to_s - segments.from_s)[first], minlength=len(jobs.name))
    return np.maximum(0.0, jobs.ended_s - jobs.submit_s - had_s)


def bounded_slowdown(jobs: JobColumns, reference: ReferenceRuns, rows: Ints) -> Floats:
    """Return ``max(1, (end - submission) / max(run time, 10 s))``, the run time being that of the reference.

    The bounded slowdown of Feitelson and Rudolph, Metrics and Benchmarking for Parallel Job Scheduling (JSSPP 1998),
    section 3.1. *rows* are the rows of the jobs in *reference*. Shape [J].
    """
    return np.maximum(1.0, (jobs.ended_s - jobs.submit_s) / np.maximum(SHORTEST_S, reference.run_s[rows]))


def finish_time_fairness(jobs: JobColumns, reference: ReferenceRuns, rows: Ints, gpus: int) -> FinishTimeFairness:
    """Return rho over all jobs on a cluster of *gpus* GPUs, as this module defines it.

    A time to finish below 10 s counts as 10 s, as in slowdowns.
    """
    _, tenant = np.unique(np.array(jobs.tenant), return_inverse=True)
    own = ReferenceRuns(reference.run_s[rows], reference.gpus[rows], reference.energy_j[rows])
    active = mean_active(tenant, jobs.submit_s, own.run_s)
    part = max(1, int(gpus / active))
    own_part_s = time_in_own_part_s(tenant, jobs.submit_s, own, part)
    rho = (jobs.ended_s - jobs.submit_s) / np.maximum(SHORTEST_S, own_part_s)
    return FinishTimeFairness(worst=float(rho.max()), mean=float(rho.mean()), active_tenants=active, gpus_of_each=part)


def mean_active(tenant: Ints, submit_s: Floats, run_s: Floats) -> float:
    """Return the mean number of active tenants over the time with any. Shapes [J]."""
    each_s = sum(_covered_s(submit_s[tenant == t], run_s[tenant == t]) for t in np.unique(tenant))
    return each_s / _covered_s(submit_s, run_s)


def _covered_s(from_s: Floats, length_s: Floats) -> float:
    """Return the length of the union of intervals."""
    order = np.argsort(from_s, kind="stable")
    start_s, end_s = from_s[order], np.maximum.accumulate((from_s + length_s)[order])
    gaps_s = np.maximum(0.0, start_s[1:] - end_s[:-1])
    return float(end_s[-1] - start_s[0] - gaps_s.sum())


def time_in_own_part_s(tenant: Ints, submit_s: Floats, reference: ReferenceRuns, gpus: int) -> Floats:
    """Return the time from submission to end of each job on *gpus* GPUs that only its tenant uses, [J]."""
    time_s = np.zeros(len(submit_s))
    for t in np.unique(tenant):
        own = np.flatnonzero(tenant == t)
        own = own[np.argsort(submit_s[own], kind="stable")]
        width = np.minimum(reference.gpus[own], gpus)
        run_s = reference.run_s[own] * reference.gpus[own] / width
        ends_s = _in_order(submit_s[own].tolist(), run_s.tolist(), width.tolist(), gpus)
        time_s[own] = np.array(ends_s) - submit_s[own]
    return time_s


def _in_order(submit_s: Sequence[float], run_s: Sequence[float], width: Sequence[int], gpus: int) -> list[float]:
    running: list[tuple[float, int]] = []
    ends: list[float] = []
    free, now_s = gpus, -np.inf
    for submitted_s, length_s, needs in zip(submit_s, run_s, width, strict=True):
        now_s = max(now_s, submitted_s)
        while running and (running[0][0] <= now_s or free < needs):
            end_s, back = heapq.heappop(running)
            now_s, free = max(now_s, end_s), free + back
        free -= needs
        ends.append(now_s + length_s)
        heapq.heappush(running, (now_s + length_s, needs))
    return ends
