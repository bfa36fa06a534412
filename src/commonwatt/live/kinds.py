"""Measurements of jobs by kind: what is known of jobs that scale alike."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from commonwatt.control.scaling import KindScaling
from commonwatt.model.job_profile import Measurement

__all__ = ["Kinds"]

_JOBS = 100
"""Jobs of a kind that are remembered: the last ones."""


class Kinds:
    """Measurements, the latest jobs of each kind.

    Parameters
    ----------
    written
        Rows of the table ``profiles``, by id, and whether their jobs are ``active``.
    """

    def __init__(self, written: Iterable[Mapping[str, Any]]) -> None:
        self._by_kind: dict[str, OrderedDict[int, list[Measurement]]] = {}
        self._by_job: dict[int, list[Measurement]] = {}
        self._known: dict[str, KindScaling] = {}
        for row in written:
            own = Measurement(**{name: value for name, value in row.items() if name not in {"id", "active"}})
            self.add(own)
            if row["active"]:
                self._by_job.setdefault(own.job, []).append(own)

    def add(self, own: Measurement) -> None:
        """Take in a measurement."""
        if not own.kind:
            return
        jobs = self._by_kind.setdefault(own.kind, OrderedDict())
        jobs.setdefault(own.job, []).append(own)
        jobs.move_to_end(own.job)
        while len(jobs) > _JOBS:
            jobs.popitem(last=False)
        self._known.pop(own.kind, None)

    def of_job(self, job: int) -> list[Measurement]:
        """Return the measurements of a job that was active at the beginning, the latest last."""
        return self._by_job.get(job, [])

    def scaling(self, kind: str, job: int) -> KindScaling:
        """Return how jobs of a kind scale, other than *job*."""
        jobs = self._by_kind.get(kind, OrderedDict[int, list[Measurement]]())
        if job in jobs:
            return KindScaling(m for other, rows in jobs.items() for m in rows if other != job)
        if kind not in self._known:
            self._known[kind] = KindScaling(m for rows in jobs.values() for m in rows)
        return self._known[kind]
