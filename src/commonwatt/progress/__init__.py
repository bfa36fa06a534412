"""Progress reports from a training script; on the standard library alone.

::

    from commonwatt import progress

    job = progress.begin(epochs=90)
    for epoch in job.left():  # starts at the last checkpoint
        train(epoch)
        job.epoch(epoch + 1, snapshot=save(epoch))

An engine names the file to write in ``COMMONWATT_PROGRESS``; without that variable nothing is written and everything
else works. Reporting never raises into the training: each kind of failure is logged once (logger
``commonwatt.progress``). Of several processes of one job only rank 0 reports.

``lightning``, ``transformers`` and ``keras`` offer the same as callbacks of those libraries.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Iterator, Mapping
from types import FrameType

__all__ = ["Job", "TrainingJob", "begin", "epochs"]

_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "LOCAL_RANK")
_EVERY_S = 1.0


class TrainingJob:
    """The training that this process runs, as commonwatt sees it; made by ``begin``.

    Attributes
    ----------
    total
        Epochs of the whole training; ``None`` if not given.
    kept
        Whole epochs in the last checkpoint: a restart continues from there.
    done
        Epochs done, including the fraction of the current one.
    snapshots
        Folder for checkpoints (``COMMONWATT_SNAPSHOTS``); ``None`` outside an engine.
    gpus
        GPUs allocated to the job (``COMMONWATT_GPUS``); ``None`` outside an engine.
    """

    def __init__(self, total: float | None, kept: float | None, environment: Mapping[str, str]) -> None:
        self._file = environment.get("COMMONWATT_PROGRESS") or None
        self._warned: set[str] = set()
        self._stop: _Stop | None = None
        self._reported_s = -math.inf
        self.total = total
        self.snapshots = environment.get("COMMONWATT_SNAPSHOTS") or None
        self.gpus = _whole(environment.get("COMMONWATT_GPUS"))
        self.kept = kept if kept is not None else self._read_kept()
        self.done = self.kept
        self._whole = self.kept  # epochs before the current one
        if next((environment[name] for name in _RANKS if environment.get(name)), "0") != "0":
            self._file = None
        if kept is not None:
            self._report()

    def epoch(self, done: float, snapshot: str | os.PathLike[str] | bool | None = None) -> None:
        """Report *done* epochs, counted from the start of the training.

        Parameters
        ----------
        done
            Epochs done in all, including earlier runs.
        snapshot
            ``True``, or the path of an existing file or folder: a checkpoint of this state was written, and a restart
            continues from it. Without one, a restart is expected to repeat the epoch.
        """
        if not self._is_sound(done):
            return
        self._whole = self.done = float(done)
        there = (
            bool(snapshot) if isinstance(snapshot, bool) else snapshot is not None and state_of(snapshot) is not None
        )
        if not there and snapshot:
            self._warn("snapshot", f"no checkpoint at {snapshot}: epoch {done:g} does not count as kept")
        self.kept = self.done if there else min(self.kept, self.done)
        self._report()

    def step(self, done: int, of: int) -> None:
        """Report *done* of the *of* steps of the current epoch; written at most once a second."""
        if of > 0 and 0 <= done <= of:
            self.at(self._whole + done / of)

    def at(self, done: float) -> None:
        """Report *done* epochs, including the fraction of the current one; written at most once a second."""
        if self._is_sound(done):
            self.done = float(done)
            if time.monotonic() - self._reported_s >= _EVERY_S:
                self._report()

    def left(self) -> Iterator[int]:
        """Yield the indices of the remaining epochs, from the first that is in no checkpoint."""
        epoch = math.floor(self.kept)
        while self.total is None or epoch < self.total:
            yield epoch
            epoch += 1

    @property
    def stop_requested(self) -> bool:
        """Whether the engine has asked the job to stop (SIGTERM): write a checkpoint and exit within the grace time.

        Once this has been read, SIGTERM no longer ends the process. A handler installed before is still called.
        """
        if self._stop is None:
            self._stop = _Stop()
            try:
                self._stop.listen()
            except ValueError:
                self._warn("signal", "signals arrive in the main thread only: stop_requested stays false")
        return self._stop.requested

    told_to_stop = stop_requested  # former name, kept for version 0.2

    def _is_sound(self, done: float) -> bool:
        if isinstance(done, (int, float)) and 0 <= done < math.inf:
            return True
        self._warn("epochs", f"{done!r} is not a number of epochs")
        return False

    def _read_kept(self) -> float:
        try:
            with open(self._file or "", encoding="utf-8") as file:  # noqa: PTH123
                report = json.load(file)
            kept = float(report["kept_epochs"] if isinstance(report, dict) else report)
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return 0
        return math.floor(kept) if 0 <= kept < math.inf else 0

    def _report(self) -> None:
        self._reported_s = time.monotonic()
        if self._file is None:
            return
        part = f"{self._file}.part"
        try:
            with open(part, "w", encoding="utf-8") as file:  # noqa: PTH123
                json.dump({"done_epochs": self.done, "kept_epochs": self.kept}, file)
            os.replace(part, self._file)  # noqa: PTH105
        except OSError as error:
            self._warn("disk", f"cannot write the progress file: {error}")

    def _warn(self, kind: str, what: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            import logging  # costs a few milliseconds, which a training without warnings saves

            logging.getLogger("commonwatt.progress").warning("%s", what)


Job = TrainingJob
"""Former name, kept for version 0.2."""


class _Stop:
    """A handler of SIGTERM."""

    def __init__(self) -> None:
        self.requested = False
        self._before: object = None

    def listen(self) -> None:
        self._before = signal.signal(signal.SIGTERM, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        if callable(self._before):
            self._before(number, frame)


def begin(
    epochs: float | None = None, *, kept: float | None = None, environment: Mapping[str, str] | None = None
) -> TrainingJob:
    """Start or continue the job that this process runs.

    Parameters
    ----------
    epochs
        Epochs of the whole training.
    kept
        Epochs in the checkpoint that the script has just loaded; by default, those last reported.
    environment
        The engine's variables; ``os.environ`` by default.
    """
    return TrainingJob(epochs, kept, os.environ if environment is None else environment)


def epochs(total: int, *, snapshot: str | os.PathLike[str] | None = None) -> Iterator[int]:
    """Yield the remaining epochs of *total*, and report each when it is done.

    Parameters
    ----------
    total
        Epochs of the whole training.
    snapshot
        File or folder that the body of the loop writes: an epoch counts as kept if it changed during the epoch.
    """
    job = begin(total)
    for epoch in job.left():
        before = state_of(snapshot)
        yield epoch
        after = state_of(snapshot)
        job.epoch(epoch + 1, snapshot=after is not None and after != before)


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None


def state_of(path: str | os.PathLike[str] | None) -> object:
    """Return a value that changes when a file, or a file in a folder, is rewritten; ``None`` if there is none."""
    if path is None:
        return None
    try:
        status = os.stat(path)  # noqa: PTH116
        inner = [(entry.name, state_of(entry.path)) for entry in os.scandir(path)]
    except NotADirectoryError:
        return status.st_ino, status.st_mtime_ns, status.st_size
    except OSError:
        return None
    return sorted(inner, key=lambda pair: pair[0])
