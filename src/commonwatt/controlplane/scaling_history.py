"""Measurements of jobs by kind: jobs of one kind scale alike."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from commonwatt.control.scaling import JobScaling, KindScaling
from commonwatt.model.job_file import Measurement

__all__ = ["ScalingHistory"]

_JOBS = 100
"""Jobs of a kind that are kept: the last ones."""


class ScalingHistory:
    """Measurements of the latest jobs of each kind.

    Parameters
    ----------
    written
        Rows of the table ``profiles``, by id, and whether their jobs are ``active``.
    """

    def __init__(self, written: Iterable[Mapping[str, Any]]) -> None:
        self._by_kind: dict[str, OrderedDict[int, list[Measurement]]] = {}
        self._by_job: dict[int, list[Measurement]] = {}
        self._cached: dict[str, KindScaling] = {}
        self._jobs: dict[str, dict[int, JobScaling]] = {}  # by kind, of jobs with no new measurement since
        for row in written:
            own = Measurement(**{name: value for name, value in row.items() if name not in {"id", "active"}})
            self.add(own)
            if row["active"]:
                self._by_job.setdefault(own.job, []).append(own)

    def add(self, own: Measurement) -> None:
        """Add a measurement."""
        if not own.kind:
            return
        jobs = self._by_kind.setdefault(own.kind, OrderedDict())
        jobs.setdefault(own.job, []).append(own)
        jobs.move_to_end(own.job)
        of_jobs = self._jobs.setdefault(own.kind, {})
        of_jobs.pop(own.job, None)
        while len(jobs) > _JOBS:
            of_jobs.pop(jobs.popitem(last=False)[0], None)
        self._cached.pop(own.kind, None)

    def of_job(self, job: int) -> list[Measurement]:
        """Return the measurements of a job that was active when this was made, the latest last."""
        return self._by_job.get(job, [])

    def scaling(self, kind: str, job: int) -> KindScaling:
        """Return the scaling of a kind, without *job*."""
        jobs = self._by_kind.get(kind, OrderedDict[int, list[Measurement]]())
        if job not in jobs and kind in self._cached:
            return self._cached[kind]
        of_jobs = self._jobs.setdefault(kind, {}) if jobs else {}
        for other, rows in jobs.items():
            if other not in of_jobs and other != job:
                of_jobs[other] = JobScaling.of(rows)
        scaling = KindScaling.of_jobs({other: of_jobs[other] for other in jobs if other != job})
        if job not in jobs and jobs:
            self._cached[kind] = scaling
        return scaling
