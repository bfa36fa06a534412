"""Progress that jobs report, and what is left of it once they are off their nodes.

A job reports progress in a small file, which it replaces after each epoch, or more often. The file has a number, the
epochs done, of which whole ones count as kept in a checkpoint; or ``{"done_epochs": 3.4, "kept_epochs": 3}``. A file
that cannot be read, or makes no sense, is ignored.
"""

from __future__ import annotations

import errno
import math
import os
import pwd
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from commonwatt.control.engine import Change, JobEnded, JobInterrupted, JobProgress, Outcome
from commonwatt.engines.local.folder import End
from commonwatt.engines.run_spec import JobWork, RunSpec
from commonwatt.engines.state_folder import read_json, write_record
from commonwatt.model.arrays import Ints
from commonwatt.model.errors import EngineDownError, EngineError

__all__ = ["Reports", "read_progress"]

_MOST_PROGRESS_BYTES = 65_536


def read_progress(path: Path) -> tuple[float, float] | None:
    """Return the epochs done, and the epochs a restart would begin from; ``None`` without a valid report."""
    try:
        report = read_json(path, _MOST_PROGRESS_BYTES)
        if isinstance(report, dict):
            done, kept = report["done_epochs"], report["kept_epochs"]
        else:
            done, kept = report, math.floor(report)
        if isinstance(done, bool) or isinstance(kept, bool):  # which count as 0 and 1
            return None
        done, kept = float(done), float(kept)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    return (done, kept) if 0 <= kept <= done < math.inf else None


_OURS = frozenset({errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EROFS, errno.ESTALE})
"""Errors that concern all jobs; others concern one job, which can do what it likes with its folder."""
_MOST_BYTES = 4096


class Reports:
    """Progress of jobs, each of which has a folder ``JOBS/HANDLE`` with a file ``progress`` that it replaces.

    Parameters
    ----------
    jobs
        Folder of the jobs' folders.
    work_of
        Returns the work of the job of a given name.
    """

    def __init__(self, jobs: Path, work_of: Callable[[str], JobWork]) -> None:
        self._jobs, self._work_of = jobs, work_of
        self._settled: dict[int, tuple[float, float]] = {}  # epochs done and kept of jobs that do not run
        self._epochs: dict[int, float] = {}

    def work(self, handle: int, name: str, gpus: int) -> tuple[JobWork, dict[str, str], dict[str, str]]:
        """Return the work of a job, its places, and its environment.

        ``own`` is the job's folder, which is made if need be, and its working directory if it names none; ``snapshots``
        is where it keeps them. Raises ``EngineError`` if the folder cannot be made.
        """
        work = self._work_of(name)
        self._epochs[handle] = work.epochs
        own = self._jobs / str(handle)
        try:
            self._jobs.mkdir(parents=True, exist_ok=True)
            own.mkdir(mode=0o700, exist_ok=True)
            if work.user is not None:
                _give(own, work.user)
        except KeyError:
            msg = f"start {name}: there is no user {work.user} on this machine"
            raise EngineError(msg) from None
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

    def add(self, spec: RunSpec) -> None:
        """Add a run that an earlier engine started."""
        if spec.handle not in self._epochs:
            self._epochs[spec.handle] = self._work_of(spec.name).epochs if spec.epochs is None else spec.epochs

    def forget(self, handle: int) -> None:
        """Forget a job that does not run; its folder stays."""
        self._settled.pop(handle, None)
        self._epochs.pop(handle, None)

    def of(self, handle: int, spec: RunSpec | None) -> tuple[float, float]:
        """Epochs done and kept of a job; *spec* is that of its current run, if it runs."""
        if spec is None:
            return self._settled.get(handle, (0.0, 0.0))
        done, kept = self._reported(handle)
        return max(done, spec.base_epochs), max(kept, spec.base_epochs)

    def progress(self, handles: Ints, spec_of: Callable[[int], RunSpec | None]) -> JobProgress:
        """Epochs as the jobs report them; when they begin to work is unknown."""
        reported = [self.of(int(handle), spec_of(int(handle))) for handle in handles]
        done, kept = np.array(reported, dtype=np.float64).reshape(-1, 2).T
        reported_s = np.array([self._reported_s(int(handle)) for handle in handles], dtype=np.float64)
        return JobProgress(done, kept, np.zeros(len(reported)), reported_s)

    def by_itself(self, spec: RunSpec, end: End) -> bool:
        """Whether a run ended by itself: nothing stopped it before its work was done."""
        self.add(spec)
        done = self.of(spec.handle, spec)[0] >= self._epochs[spec.handle]
        return not end.stopped or (end.exit_code == 0 and done)

    def change(self, spec: RunSpec, end: End, *, begun: bool = True) -> Change:
        """Return the change to report for a run that ended without being asked to: its exit code decides."""
        if end.exit_code is None or not self.by_itself(spec, end):
            lost_s = self.interrupted(spec, end.at_s, end.ran_s)
            return JobInterrupted(spec.handle, end.at_s, lost_s, end.cause, begun)
        if end.exit_code == 0:
            self.add(spec)
            epochs = self._epochs[spec.handle]
            self._settled[spec.handle] = (epochs, epochs)
            return JobEnded(spec.handle, end.at_s, Outcome.COMPLETED, end.cause, end.reason)
        self._settled[spec.handle] = self._reported(spec.handle)
        return JobEnded(spec.handle, end.at_s, Outcome.FAILED, end.cause, end.reason)

    def interrupted(self, spec: RunSpec, at_s: float, ran_s: float | None = None) -> float:
        """Fall back to the job's last checkpoint; returns the seconds of this run's work that a restart repeats.

        It ran for *ran_s*, where that is known, else from its start until *at_s*. A later call for the same run, by
        another controller, returns the same. Raises ``EngineDownError`` if nothing can be written; an obstacle that the
        job itself put in place is ignored.
        """
        done, kept = self.of(spec.handle, spec)
        self._settled[spec.handle] = (kept, kept)
        worked_s = max(0.0, at_s - spec.started_s) if ran_s is None else ran_s
        since = done - spec.base_epochs
        lost_s = worked_s * (done - kept) / since if since > 0 else worked_s
        record = self._jobs.parent / "runs" / f"{spec.handle}-{spec.attempt}" / "lost.json"
        recorded_s = _lost_s(record)
        if done > kept:  # else the next run would seem to have done what this one lost
            if recorded_s is None:
                self._write(record, {"lost_s": lost_s}, 0o600)
            report = self._jobs / str(spec.handle) / "progress"
            self._write(report, {"done_epochs": kept, "kept_epochs": kept}, 0o644)
        return lost_s if recorded_s is None else recorded_s

    @staticmethod
    def _write(path: Path, document: dict[str, float], mode: int) -> None:
        try:
            write_record(path, document, mode)
        except OSError as error:
            if error.errno in _OURS:
                msg = f"{path} cannot be written: {error}"
                raise EngineDownError(msg) from error

    def _reported_s(self, handle: int) -> float:
        try:
            return (self._jobs / str(handle) / "progress").stat().st_mtime
        except OSError:
            return np.nan

    def _reported(self, handle: int) -> tuple[float, float]:
        """The last report of a job, within its epochs; 0 without one."""
        report = read_progress(self._jobs / str(handle) / "progress")
        most = self._epochs.get(handle, np.inf)
        return (0.0, 0.0) if report is None else (min(report[0], most), min(report[1], most))


def _give(own: Path, user: str) -> None:
    """Give the folder of a job to *user*, who has to be able to reach it; raises ``KeyError`` for an unknown one."""
    account = pwd.getpwnam(user)
    for folder in (own.parent, own.parent.parent):
        if (mode := stat.S_IMODE(folder.stat().st_mode)) & 0o011 != 0o011:
            folder.chmod(mode | 0o011)  # to pass through, not to list
    if own.stat().st_uid != account.pw_uid:
        os.chown(own, account.pw_uid, account.pw_gid, follow_symlinks=False)


def _lost_s(record: Path) -> float | None:
    """Return what a run has lost, as it was first determined; ``None`` if that was not written down."""
    try:
        lost_s = float(read_json(record, _MOST_BYTES)["lost_s"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return lost_s if 0 <= lost_s < np.inf else None
