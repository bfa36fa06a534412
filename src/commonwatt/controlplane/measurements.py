"""Measurements of jobs: by kind, as jobs of one kind scale alike, and those still to be made on profiling nodes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from commonwatt.control.scaling import JobScaling, KindScaling
from commonwatt.model.job_file import Measurement

__all__ = ["ProbeQueue", "ScalingHistory", "Sort"]

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


Sort = tuple[str, int]
"""GPU type and GPUs of a node."""

_LOOKS = 500
"""Jobs examined for a free node in one step; the others follow in the next, so that a step stays short."""


class ProbeQueue:
    """Jobs with configurations left to be measured, for each sort of profiling node, in order of arrival.

    The configurations of a job do not change, and those that were tried only grow: a job with none left for a sort of
    node is dropped. The exception is a job that could not be measured, and then reported its speed at work: its other
    configurations can be measured after all. So a job is put in when it comes, and again after every measurement.

    Parameters
    ----------
    sorts
        Of the profiling nodes.
    left
        Whether anything of a job is left to be measured on a node of a sort.
    active
        Whether a job is active.
    """

    def __init__(self, sorts: Iterable[Sort], left: Callable[[int, Sort], bool], active: Callable[[int], bool]) -> None:
        self._queues: dict[Sort, OrderedDict[int, None]] = {sort: OrderedDict() for sort in sorts}
        self._left, self._active = left, active

    def put(self, handle: int) -> None:
        """Put in a job that may have something left; one that is in the queue keeps its place."""
        for sort, queue in self._queues.items():
            if handle not in queue and self._left(handle, sort):
                queue[handle] = None

    def waiting(self, sort: Sort) -> int:
        """Return the length of the queue for a sort of node."""
        return len(self._queues[sort])

    def first(self, sort: Sort, may_begin: Callable[[int], bool]) -> int | None:
        """Return the first job that may begin on a node of a sort and has something left; ``None`` if there is none."""
        queue, first_handle, looks = self._queues[sort], None, 0
        over, passed = [], []
        for handle in queue:
            if not self._active(handle):
                over.append(handle)
                continue
            if looks == _LOOKS:
                break
            looks += 1
            if not may_begin(handle):
                passed.append(handle)
            elif self._left(handle, sort):
                first_handle = handle
                break
            else:
                over.append(handle)
        for handle in over:
            del queue[handle]
        if first_handle is None and looks == _LOOKS:  # others come first the next time
            for handle in passed:
                queue.move_to_end(handle)
        return first_handle
