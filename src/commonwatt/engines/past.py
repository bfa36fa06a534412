"""Which runs of which jobs an engine ever ordered, as far as its records on disk still tell."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from commonwatt.control.engine import Found
from commonwatt.engines.local.folder import RunOrder
from commonwatt.engines.reports import Reports
from commonwatt.model.errors import EngineDownError

__all__ = ["Past"]


class Past:
    """The jobs an engine ever started.

    Parameters
    ----------
    state
        The engine's folder, with a folder ``runs/HANDLE-ATTEMPT`` for each run.
    reports
        Forgets what it knows of a job that is forgotten.
    """

    def __init__(self, state: Path, reports: Reports, now_s: Callable[[], float] = time.time) -> None:
        self._state, self._reports, self._now_s = state, reports, now_s
        self._attempts: dict[int, int] = {}
        self._marks: dict[int, str] = {}

    def note(self, order: RunOrder) -> None:
        """Take in a run."""
        self._attempts[order.handle], self._marks[order.handle] = order.attempt, order.mark

    def next_attempt(self, handle: int) -> int:
        """Return the number of the next run of a job, from 1."""
        return self._attempts.get(handle, 0) + 1

    def found(self, running: Mapping[int, RunOrder]) -> list[Found]:
        """Every job, those that are *running* with their places."""
        return [
            Found(handle, attempts, order.nodes if order else (), order.gpus_per_node if order else 0, mark)
            for handle, attempts in sorted(self._attempts.items())
            for order, mark in ((running.get(handle), self._marks[handle]),)
        ]

    def others(self, running: Collection[int]) -> list[int]:
        """Return the jobs that are not among those *running*."""
        return sorted(self._attempts.keys() - set(running))

    def forget(self, handles: Collection[int], *, aside: bool) -> set[int]:
        """Delete the records of jobs, or move them *aside* with all these jobs have left; returns those it knew.

        Raises ``EngineDownError`` if they cannot be moved: they are still known then.
        """
        gone = self._attempts.keys() & set(handles)
        for handle in gone:
            runs = [self._state / "runs" / f"{handle}-{k}" for k in range(1, self._attempts[handle] + 1)]
            if aside:
                # the last run last: as long as it is there, whoever comes after us knows the job, and moves the rest
                self._move(self._state / "jobs" / str(handle), *runs)
            else:
                for path in runs:
                    shutil.rmtree(path, ignore_errors=True)
            del self._attempts[handle], self._marks[handle]
            self._reports.forget(handle)
        return gone

    def _move(self, *paths: Path) -> None:
        there = self._state / "aside" / f"{self._now_s():.3f}"
        try:
            there.parent.mkdir(mode=0o700, exist_ok=True)  # runs hold the environments of jobs
            there.mkdir(exist_ok=True)
            for path in paths:
                if path.exists():
                    path.rename(there / f"{path.parent.name}-{path.name}")
        except OSError as error:
            msg = f"what an earlier job left in {self._state} cannot be put aside: {error}"
            raise EngineDownError(msg) from error
