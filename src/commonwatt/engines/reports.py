"""What the jobs of an engine say of their progress, and what of it holds once they are off their nodes."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from commonwatt.control.engine import Change, JobEnded, JobInterrupted, Outcome, Progress
from commonwatt.engines.files import read_json, write_record
from commonwatt.engines.local.folder import End, RunOrder
from commonwatt.engines.local.progress import read_progress
from commonwatt.engines.work import Work
from commonwatt.model.arrays import Ints
from commonwatt.model.errors import EngineDownError, EngineError

__all__ = ["Reports"]

_OURS = frozenset({errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EROFS, errno.ESTALE})
"""Why nothing can be written for any job; all else is of one job, which can do what it likes with its folder."""
_MOST_BYTES = 4096


class Reports:
    """Progress of jobs, each of which has a folder ``JOBS/HANDLE`` with a file ``progress`` that it replaces.

    Parameters
    ----------
    jobs
        Folder of the jobs' folders.
    work_of
        What the job of a given name runs.
    """

    def __init__(self, jobs: Path, work_of: Callable[[str], Work]) -> None:
        self._jobs, self._work_of = jobs, work_of
        self._settled: dict[int, tuple[float, float]] = {}  # epochs done and kept of jobs that do not run
        self._epochs: dict[int, float] = {}

    def work(self, handle: int, name: str, gpus: int) -> tuple[Work, dict[str, str], dict[str, str]]:
        """What the job runs, where its things are, and what it is told of them; its epochs count from now on.

        ``own`` is the job's folder, which is made if need be and where it works if it names none, ``snapshots`` where
        it keeps them. Raises ``EngineError`` if it cannot be made.
        """
        work = self._work_of(name)
        self._epochs[handle] = work.epochs
        own = self._jobs / str(handle)
        try:
            own.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            msg = f"start {name}: the folder {own} cannot be made: {error.strerror}"
            raise (EngineDownError if error.errno in _OURS else EngineError)(msg) from error
        places = {"own": str(own), "snapshots": str(work.snapshots or own)}
        environment = {
            **work.environment,
            "COMMONWATT_JOB": name,
            "COMMONWATT_GPUS": str(gpus),
            "COMMONWATT_PROGRESS": str(own / "progress"),
            "COMMONWATT_SNAPSHOTS": places["snapshots"],
        }
        return replace(work, folder=work.folder or own), places, environment

    def know(self, order: RunOrder) -> None:
        """Take up a run that an engine before us ordered."""
        if order.handle not in self._epochs:
            self._epochs[order.handle] = self._work_of(order.name).epochs if order.epochs is None else order.epochs

    def forget(self, handle: int) -> None:
        """Forget a job that does not run; its folder stays."""
        self._settled.pop(handle, None)
        self._epochs.pop(handle, None)

    def of(self, handle: int, order: RunOrder | None) -> tuple[float, float]:
        """Epochs done and kept of a job, whose current run, if it runs, is *order*."""
        if order is None:
            return self._settled.get(handle, (0.0, 0.0))
        done, kept = self._told(handle)
        return max(done, order.base_epochs), max(kept, order.base_epochs)

    def progress(self, handles: Ints, order_of: Callable[[int], RunOrder | None]) -> Progress:
        """Epochs as the jobs report them; nothing is known of how soon they begin to work."""
        told = [self.of(int(handle), order_of(int(handle))) for handle in handles]
        done, kept = np.array(told, dtype=np.float64).reshape(-1, 2).T
        told_s = np.array([self._told_s(int(handle)) for handle in handles], dtype=np.float64)
        return Progress(done, kept, np.zeros(len(told)), told_s)

    def by_itself(self, order: RunOrder, end: End) -> bool:
        """Whether a run ended by itself: nobody told it to stop, or that came when all was done."""
        self.know(order)
        done = self.of(order.handle, order)[0] >= self._epochs[order.handle]
        return not end.stopped or (end.exit_code == 0 and done)

    def change(self, order: RunOrder, end: End, *, begun: bool = True) -> Change:
        """Turn the end of a run that nobody asked for into what the controller hears: its exit code decides."""
        if end.exit_code is None or not self.by_itself(order, end):
            lost_s = self.interrupted(order, end.at_s, end.ran_s)
            return JobInterrupted(order.handle, end.at_s, lost_s, end.cause, begun)
        if end.exit_code == 0:
            self.know(order)
            epochs = self._epochs[order.handle]
            self._settled[order.handle] = (epochs, epochs)
            return JobEnded(order.handle, end.at_s, Outcome.COMPLETED, end.cause)
        self._settled[order.handle] = self._told(order.handle)
        reason = "time-limit" if end.over_limit else ""
        return JobEnded(order.handle, end.at_s, Outcome.FAILED, end.cause, reason)

    def interrupted(self, order: RunOrder, at_s: float, ran_s: float | None = None) -> float:
        """Fall back to the job's last snapshot; returns the seconds of this run's work that a restart repeats.

        It ran for *ran_s*, where that is known, else from when it was ordered until *at_s*. Asked again for the same
        run, by a controller after this one, it says the same. Raises ``EngineDownError`` if nothing can be written.
        What a job has put in the way of its own file is its own loss.
        """
        done, kept = self.of(order.handle, order)
        self._settled[order.handle] = (kept, kept)
        worked_s = max(0.0, at_s - order.started_s) if ran_s is None else ran_s
        since = done - order.base_epochs
        lost_s = worked_s * (done - kept) / since if since > 0 else worked_s
        record = self._jobs.parent / "runs" / f"{order.handle}-{order.attempt}" / "lost.json"
        known_s = _lost_s(record)
        if done > kept:  # else the next run would seem to have done what this one lost
            if known_s is None:  # what is cut now is known to nobody else yet
                self._write(record, {"lost_s": lost_s}, 0o600)
            said = self._jobs / str(order.handle) / "progress"
            self._write(said, {"done_epochs": kept, "kept_epochs": kept}, 0o644)
        return lost_s if known_s is None else known_s

    @staticmethod
    def _write(path: Path, document: dict[str, float], mode: int) -> None:
        try:
            write_record(path, document, mode)
        except OSError as error:
            if error.errno in _OURS:
                msg = f"{path} cannot be written: {error}"
                raise EngineDownError(msg) from error

    def _told_s(self, handle: int) -> float:
        try:
            return (self._jobs / str(handle) / "progress").stat().st_mtime
        except OSError:
            return np.nan

    def _told(self, handle: int) -> tuple[float, float]:
        """What the job last said, within its epochs; nothing if it says nothing."""
        said = read_progress(self._jobs / str(handle) / "progress")
        most = self._epochs.get(handle, np.inf)
        return (0.0, 0.0) if said is None else (min(said[0], most), min(said[1], most))


def _lost_s(record: Path) -> float | None:
    """What a run has lost as it was first found; ``None`` if nobody wrote it down."""
    try:
        lost_s = float(read_json(record, _MOST_BYTES)["lost_s"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return lost_s if 0 <= lost_s < np.inf else None
