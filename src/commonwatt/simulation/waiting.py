"""How long jobs wait, and how that compares with what they need."""

from __future__ import annotations

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.results import FinishTimeFairness
from commonwatt.simulation.finish_time import mean_active, time_in_own_part_s
from commonwatt.simulation.record import JobColumns, Segments
from commonwatt.simulation.reference import ReferenceRuns

__all__ = ["SHORTEST_S", "bounded_slowdown", "finish_time_fairness", "time_without_gpus_s"]

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
    """Return rho over all jobs on a cluster of *gpus* GPUs, as ``finish_time`` defines it.

    A time to finish below 10 s counts as 10 s, as in slowdowns.
    """
    _, tenant = np.unique(np.array(jobs.tenant), return_inverse=True)
    own = ReferenceRuns(reference.run_s[rows], reference.gpus[rows], reference.energy_j[rows])
    active = mean_active(tenant, jobs.submit_s, own.run_s)
    part = max(1, int(gpus / active))
    own_part_s = time_in_own_part_s(tenant, jobs.submit_s, own, part)
    rho = (jobs.ended_s - jobs.submit_s) / np.maximum(SHORTEST_S, own_part_s)
    return FinishTimeFairness(worst=float(rho.max()), mean=float(rho.mean()), active_tenants=active, gpus_of_each=part)
