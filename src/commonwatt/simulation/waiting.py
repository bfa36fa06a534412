"""How long jobs wait, how that compares with what they need, and with what a part of the cluster would give them.

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

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.results import FinishTimeFairness
from commonwatt.simulation.record import JobColumns, Segments
from commonwatt.simulation.reference import ReferenceRuns

__all__ = [
    "SHORTEST_S",
    "bounded_slowdown",
    "finish_time_fairness",
    "mean_active",
    "time_in_own_part_s",
    "time_without_gpus_s",
]

SHORTEST_S = 10.0
"""Run times below this count as this in slowdowns: else a wait of seconds of a tiny job would outweigh all others."""


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
