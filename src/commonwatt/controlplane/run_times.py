"""Run times of jobs that declare none, learned from the jobs in the store that have ended: nothing else is kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from commonwatt.control.run_time_history import EndedRun, ExpectedRunTime, RunTimeHistory
from commonwatt.model.scenario import Scenario
from commonwatt.runtimes import JobFeatures
from commonwatt.store.records import EndedRow, JobRow

__all__ = ["LearnedRunTimes", "features_of", "live_knowledge"]


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

    def refresh(self) -> None:
        """Learn from the jobs that have ended since the last call."""
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
        return self._history.expected(job, age_s)
