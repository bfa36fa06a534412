"""What jobs that have ended tell about the run time of a job that declares none, as a number with its evidence."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np

from commonwatt.control.beliefs import OUTCOMES
from commonwatt.runtimes import JobFeatures, RuntimePredictor, job_group

__all__ = ["EndedRun", "ExpectedRunTime", "RunTimeHistory"]

_FEWEST = 3
"""Jobs of a tenant that must have ended before its next is predicted: until then its time limit counts."""


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A job that has ended, and how long it ran with the GPUs it asked for (s)."""

    job: JobFeatures
    run_time_s: float


@dataclass(frozen=True, slots=True)
class ExpectedRunTime:
    """Expected run time (s), and how many earlier jobs it comes from: of this ``name``, or else of its ``tenant``.

    ``outcomes_s`` are equally likely run times, whose mean it is.
    """

    time_s: float
    jobs: int
    alike: Literal["name", "tenant"]
    outcomes_s: tuple[float, ...] = ()


class RunTimeHistory:
    """Learns from ended jobs, in order of their ends, and predicts by ``commonwatt.runtimes``."""

    def __init__(self) -> None:
        self._predictor = RuntimePredictor()
        self._names: Counter[tuple[str, str, str]] = Counter()
        self._tenants: Counter[str] = Counter()

    def learn(self, ended: EndedRun) -> None:
        """Learn from a job that has ended, whatever the outcome."""
        self._predictor.learn(self._predictor.groups([ended.job]), np.array([ended.run_time_s]))
        self._names[_series(ended.job)] += 1
        self._tenants[ended.job.tenant] += 1

    def expected(self, job: JobFeatures, age_s: float = 0.0) -> ExpectedRunTime | None:
        """Return the expected run time of a job that has run *age_s*, none beyond its limit; ``None``: unknown.

        A job beyond its limit is given a tenth more than it has run.
        """
        own, of_tenant = self._names[_series(job)], self._tenants[job.tenant]
        if max(own, of_tenant) < _FEWEST:
            return None
        believed = self._predictor.predict(self._predictor.groups([job]))
        outcomes_s = believed.outcomes(np.array([age_s]), OUTCOMES)[0]
        if math.isfinite(job.limit_s):
            outcomes_s = np.minimum(outcomes_s, max(job.limit_s, 1.1 * age_s))
        return ExpectedRunTime(
            float(outcomes_s.mean()), own or of_tenant, "name" if own else "tenant", tuple(outcomes_s.tolist())
        )


def _series(job: JobFeatures) -> tuple[str, str, str]:
    return job.tenant, job_group(job.name), job.kind
