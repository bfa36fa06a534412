"""What a training script uses to tell how far it is; on the standard library alone.

::

    from commonwatt import progress

    job = progress.begin(epochs=90)
    for epoch in job.left():  # begins where the last snapshot ended
        train(epoch)
        job.epoch(epoch + 1, snapshot=save(epoch))

An engine names the file to write in ``COMMONWATT_PROGRESS``; without it nothing is written and everything else works.
Whatever goes wrong with telling is logged, each kind of trouble once (logger ``commonwatt.progress``), and never raised
into the training.
Of several processes of one job only rank 0 tells.

- ``lightning``, ``transformers``, ``keras``: the same as a callback of that library.
- ``snapshots``: whether a file or folder has been written anew.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Iterator, Mapping
from types import FrameType

from commonwatt.progress.snapshots import state_of

__all__ = ["Job", "begin", "epochs"]

_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "LOCAL_RANK")
_EVERY_S = 1.0


class Job:
    """A training, as commonwatt sees it; made by ``begin``.

    Attributes
    ----------
    total
        Epochs of the whole training; ``None`` if not given.
    kept
        Whole epochs that the last snapshot holds: a restart begins there.
    done
        Epochs done, with the part of the one at work.
    snapshots
        Folder for snapshots (``COMMONWATT_SNAPSHOTS``); ``None`` if no engine runs this.
    gpus
        GPUs given to the job in all (``COMMONWATT_GPUS``); ``None`` if no engine runs this.
    """

    def __init__(self, total: float | None, kept: float | None, environment: Mapping[str, str]) -> None:
        self._file = environment.get("COMMONWATT_PROGRESS") or None
        self._warned: set[str] = set()
        self._stop: _Stop | None = None
        self._told_s = -math.inf
        self.total = total
        self.snapshots = environment.get("COMMONWATT_SNAPSHOTS") or None
        self.gpus = _whole(environment.get("COMMONWATT_GPUS"))
        self.kept = kept if kept is not None else self._read_kept()
        self.done = self.kept
        self._whole = self.kept  # epochs before the one at work
        if next((environment[name] for name in _RANKS if environment.get(name)), "0") != "0":
            self._file = None
        if kept is not None:
            self._tell()

    def epoch(self, done: float, snapshot: str | os.PathLike[str] | bool | None = None) -> None:
        """Tell that *done* epochs are done, counted from the beginning of the training.

        Parameters
        ----------
        done
            Epochs done in all, earlier runs included.
        snapshot
            ``True``, or the path of a file or folder that is there: a snapshot of just this state was written, from
            which a restart would go on. Without it a restart is expected to repeat the epoch.
        """
        if not self._is_sound(done):
            return
        self._whole = self.done = float(done)
        there = (
            bool(snapshot) if isinstance(snapshot, bool) else snapshot is not None and state_of(snapshot) is not None
        )
        if not there and snapshot:
            self._warn("snapshot", f"no snapshot at {snapshot}: epoch {done:g} does not count as kept")
        self.kept = self.done if there else min(self.kept, self.done)
        self._tell()

    def step(self, done: int, of: int) -> None:
        """Tell that *done* of the *of* steps of the epoch at work are done; written once a second at most."""
        if of > 0 and 0 <= done <= of:
            self.at(self._whole + done / of)

    def at(self, done: float) -> None:
        """Tell that *done* epochs are done, with the part of the one at work; written once a second at most."""
        if self._is_sound(done):
            self.done = float(done)
            if time.monotonic() - self._told_s >= _EVERY_S:
                self._tell()

    def left(self) -> Iterator[int]:
        """Yield the indices of the epochs that are left, from the first that no snapshot holds."""
        epoch = math.floor(self.kept)
        while self.total is None or epoch < self.total:
            yield epoch
            epoch += 1

    @property
    def told_to_stop(self) -> bool:
        """Whether the engine wants the job off its GPUs (SIGTERM): write a snapshot and exit within the grace time.

        From the first time this is looked at, SIGTERM does not end the process any more. A handler that was there
        before is called as well.
        """
        if self._stop is None:
            self._stop = _Stop()
            try:
                self._stop.listen()
            except ValueError:
                self._warn("signal", "signals can be heard in the main thread only: told_to_stop stays false")
        return self._stop.told

    def _is_sound(self, done: float) -> bool:
        if isinstance(done, (int, float)) and 0 <= done < math.inf:
            return True
        self._warn("epochs", f"{done!r} is no number of epochs")
        return False

    def _read_kept(self) -> float:
        try:
            with open(self._file or "", encoding="utf-8") as file:  # noqa: PTH123
                said = json.load(file)
            kept = float(said["kept_epochs"] if isinstance(said, dict) else said)
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return 0
        return math.floor(kept) if 0 <= kept < math.inf else 0

    def _tell(self) -> None:
        self._told_s = time.monotonic()
        if self._file is None:
            return
        part = f"{self._file}.part"
        try:
            with open(part, "w", encoding="utf-8") as file:  # noqa: PTH123
                json.dump({"done_epochs": self.done, "kept_epochs": self.kept}, file)
            os.replace(part, self._file)  # noqa: PTH105
        except OSError as error:
            self._warn("disk", f"progress cannot be told: {error}")

    def _warn(self, kind: str, what: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            import logging  # costs a training that has nothing to say a few milliseconds

            logging.getLogger("commonwatt.progress").warning("%s", what)


class _Stop:
    """Hears SIGTERM."""

    def __init__(self) -> None:
        self.told = False
        self._before: object = None

    def listen(self) -> None:
        self._before = signal.signal(signal.SIGTERM, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.told = True
        if callable(self._before):
            self._before(number, frame)


def begin(
    epochs: float | None = None, *, kept: float | None = None, environment: Mapping[str, str] | None = None
) -> Job:
    """Begin, or go on with, the job that this process is.

    Parameters
    ----------
    epochs
        Epochs of the whole training.
    kept
        Epochs that the snapshot holds which the script has just read; if not given, what was told last.
    environment
        Where the engine's variables are; ``os.environ`` if not given.
    """
    return Job(epochs, kept, os.environ if environment is None else environment)


def epochs(total: int, *, snapshot: str | os.PathLike[str] | None = None) -> Iterator[int]:
    """Yield the epochs that are left of *total*, and tell after each that it is done.

    Parameters
    ----------
    total
        Epochs of the whole training.
    snapshot
        File, or folder, that the body of the loop writes: an epoch counts as kept if it is another after the epoch
        than before.
    """
    job = begin(total)
    for epoch in job.left():
        before = state_of(snapshot)
        yield epoch
        after = state_of(snapshot)
        job.epoch(epoch + 1, snapshot=after is not None and after != before)


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None
