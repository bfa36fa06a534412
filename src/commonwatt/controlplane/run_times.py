"""Run times of jobs that declare none, learned from the jobs in the store that have ended, with the evidence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from commonwatt.control.run_time_estimates import OUTCOMES
from commonwatt.model.scenario import Scenario
from commonwatt.runtimes import JobFeatures, RuntimePredictor, Shrinkage, job_group
from commonwatt.store.records import EndedRow, JobRow

__all__ = ["EndedRun", "ExpectedRunTime", "LearnedRunTimes", "RunTimeHistory", "features_of", "live_knowledge"]

_FEWEST = 3
"""Jobs like it that must have ended before a job is predicted: until then its time limit counts."""


_SHRINKAGE = Shrinkage(strength=1.0)
"""A site begins with no ended jobs: the first few count more than in long logs."""
_LIKELY = np.array([0.1, 0.9])


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A job that has ended, and how long it ran with the GPUs it asked for (s)."""

    job: JobFeatures
    run_time_s: float


@dataclass(frozen=True, slots=True)
class ExpectedRunTime:
    """Expected run time (s), and how many earlier jobs it comes from, and what they share with this one.

    They are those of its tenant with this ``name``, or else those of its ``kind``, of its tenant or else of all, or
    else those of its ``tenant``. ``outcomes_s`` are equally likely run times, whose mean it is; it is between
    ``likely_s`` in 8 of 10 cases. ``outlived``: it has run longer than any of them, which no longer tell when it ends.
    """

    time_s: float
    jobs: int
    alike: Literal["name", "kind", "tenant"]
    outcomes_s: tuple[float, ...] = ()
    likely_s: tuple[float, ...] = ()
    outlived: bool = False


class RunTimeHistory:
    """Learns from ended jobs, in order of their ends, and predicts by ``commonwatt.runtimes``."""

    def __init__(self) -> None:
        self._predictor = RuntimePredictor(_SHRINKAGE, kinds=True)
        self._ended: Counter[tuple[str, ...]] = Counter()  # jobs by what they have in common
        self._longest_s: dict[tuple[str, ...], float] = {}

    def learn(self, ended: EndedRun) -> None:
        """Learn from a job that has ended."""
        self._predictor.learn(self._predictor.groups([ended.job]), np.array([ended.run_time_s]))
        for key, _ in _alike(ended.job):
            self._ended[key] += 1
            self._longest_s[key] = max(ended.run_time_s, self._longest_s.get(key, 0.0))

    def expected(self, job: JobFeatures, age_s: float = 0.0) -> ExpectedRunTime | None:
        """Return the expected run time of a job that has run *age_s*, none beyond its limit; ``None``: unknown.

        A job beyond its limit is given a tenth more than it has run.
        """
        similar = next((known for known in _alike(job) if self._ended[known[0]] >= _FEWEST), None)
        if similar is None:
            return None
        key, alike = similar
        believed = self._predictor.predict(self._predictor.groups([job]))
        outcomes_s = believed.outcomes(np.array([age_s]), OUTCOMES)[0]
        likely_s = believed.quantiles(np.array([age_s]), _LIKELY)[0]
        if math.isfinite(job.limit_s):
            outcomes_s, likely_s = (np.minimum(s, max(job.limit_s, 1.1 * age_s)) for s in (outcomes_s, likely_s))
        return ExpectedRunTime(
            float(outcomes_s.mean()), self._ended[key], alike, tuple(outcomes_s.tolist()), tuple(likely_s.tolist()),
            outlived=age_s > self._longest_s[key],
        )  # fmt: skip


def _alike(job: JobFeatures) -> Iterator[tuple[tuple[str, ...], Literal["name", "kind", "tenant"]]]:
    """Yield keys of the jobs that are like this one, and what they share with it, the most alike first."""
    yield ("name", job.tenant, job_group(job.name), job.kind), "name"
    if job.kind:
        yield ("kind", job.kind, job.tenant), "kind"
        yield ("kind", job.kind), "kind"
    yield ("tenant", job.tenant), "tenant"


def live_knowledge(config: Scenario) -> Literal["predicted", "user-limit"] | None:
    """Return what a live controller knows of run times nobody declares; ``None``: what the file asks for cannot be.

    A file that does not say is ``predicted``.
    """
    asked = config.policies[0].knowledge
    if asked is None:
        asked = config.knowledge if "knowledge" in config.model_fields_set else "predicted"
    return asked if asked in ("predicted", "user-limit") else None


def features_of(row: JobRow, gpus: int) -> JobFeatures:
    """Return what is known of a job, were it to run with so many GPUs."""
    limit_s = math.inf if row.file.time_limit_s is None else row.file.time_limit_s
    return JobFeatures(row.tenant, row.name, row.file.kind, gpus, limit_s)


class LearnedRunTimes:
    """Predicts from ended jobs.

    Parameters
    ----------
    ended
        Returns jobs that ended at a time or later, by their ends (``ControllerStore.ended_runs``).
    """

    def __init__(self, ended: Callable[[float], list[EndedRow]]) -> None:
        self._ended, self._history = ended, RunTimeHistory()
        self._until_s, self._last = -math.inf, set[int]()  # jobs that ended just then
        self._stale = True

    def refresh(self) -> None:
        """Learn from the jobs that have ended since the last call, as soon as a job is asked about.

        Many sites' jobs all declare their times, or a measurement tells them: then nobody asks.
        """
        self._stale = True

    def _learn(self) -> None:
        self._stale = False
        for row in self._ended(self._until_s):
            if row.ended_s == self._until_s and row.id in self._last:
                continue
            if row.ended_s > self._until_s:
                self._until_s, self._last = row.ended_s, set()
            self._last.add(row.id)
            limit_s = math.inf if row.time_limit_s is None else row.time_limit_s
            job = JobFeatures(row.tenant, row.name, row.kind, row.gpus, limit_s)
            self._history.learn(EndedRun(job, row.run_time_s))

    def expected(self, job: JobFeatures, age_s: float = 0.0) -> ExpectedRunTime | None:
        """Return the expected run time of a job of this age; ``None``: its time limit is the best there is."""
        if self._stale:
            self._learn()
        return self._history.expected(job, age_s)
