"""One run of a user's training: started in a session of its own, watched by its progress reports, and stopped."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from commonwatt.control.profiling import EpochTimer
from commonwatt.engines.reports import read_progress
from commonwatt.model.errors import InputError
from commonwatt.profiling.hardware import Hardware

__all__ = ["NotMeasuredError", "RunLimits", "Timed", "run_training"]

_LOOK_S = 0.02
_PR_SET_PDEATHSIG = 1
_THREE_LINES = (
    "from commonwatt import progress; for epoch in progress.epochs(EPOCHS): ... (see the how-to on profiling)"
)


@dataclass(frozen=True)
class RunLimits:
    """How much of a training is run."""

    epochs: int = 3  # measured; the one before, with loading and compiling, is not counted
    least_s: float = 2.0  # between the first report and the last: meters are read in tenths of a second
    limit_s: float = 600.0
    grace_s: float = 10.0  # from SIGTERM to SIGKILL


@dataclass(frozen=True)
class Timed:
    """What was measured of a run."""

    epoch_s: float
    epochs: int
    energy_j: float | None  # over window_s
    window_s: float


class NotMeasuredError(Exception):
    """A run that measured nothing; the message says why."""


def run_training(
    command: Sequence[str], hardware: Hardware, gpus: int, limits: RunLimits, folder: Path,
    on_epochs: Callable[[float], None] = lambda _: None,
) -> Timed:  # fmt: skip
    """Run *command* on the first *gpus* of *hardware* until enough epochs were measured, then stop it.

    It runs in the current folder, with the variables an engine sets (``COMMONWATT_PROGRESS``, ``COMMONWATT_SNAPSHOTS``,
    ``COMMONWATT_GPUS``), which point into *folder*. Its process and all of its group are gone when this returns or
    raises. Raises ``NotMeasuredError`` if nothing could be measured, ``InputError`` if the program cannot be started.
    """
    folder.mkdir(parents=True, exist_ok=True)
    progress, output = folder / "progress", folder / "output.log"
    (folder / "snapshots").mkdir(exist_ok=True)
    ours = {
        "COMMONWATT_PROGRESS": str(progress), "COMMONWATT_SNAPSHOTS": str(folder / "snapshots"),
        "COMMONWATT_GPUS": str(gpus),
    }  # fmt: skip
    confine = hardware.confine(gpus)

    def prepare() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if confine is not None:
            confine()

    with output.open("wb") as log:
        try:
            process = subprocess.Popen(  # noqa: S603
                list(command), env=os.environ | hardware.environment(gpus) | ours, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=prepare,  # noqa: PLW1509
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise InputError("a program that can be started", field="PROGRAM", value=f"{command[0]}: {why}") from None
    try:
        watch = _Watch(process.pid, progress, hardware, gpus, limits, on_epochs)
        code = watch.run()
    finally:
        _stop(process, limits.grace_s)
    return watch.result(code, output)


class _Watch:
    """Reads the progress of a run until enough was measured, it has ended, or its time is over."""

    def __init__(
        self, pid: int, progress: Path, hardware: Hardware, gpus: int, limits: RunLimits,
        on_epochs: Callable[[float], None],
    ) -> None:  # fmt: skip
        self._pid, self._progress, self._limits, self._on_epochs = pid, progress, limits, on_epochs
        self._hardware, self._gpus = hardware, gpus
        self._timer = EpochTimer(time.time(), 0.0, last=max(5, limits.epochs))
        self._first: tuple[float, float | None] | None = None  # moment and energy
        self._last: tuple[float, float | None] | None = None
        self._seen: tuple[float, float] | None = None
        self._over = False

    def run(self) -> int | None:
        """Return the exit code, ``None`` if it has not ended."""
        until_s = time.monotonic() + self._limits.limit_s
        while not self._enough():
            code = _ended(self._pid)
            self._look()  # after the question whether it has ended: its last report is not missed
            if code is not None:
                return code
            if time.monotonic() >= until_s:
                self._over = True
                return None
            time.sleep(_LOOK_S)
        return None

    def _enough(self) -> bool:
        if self._timer.epochs < self._limits.epochs or self._first is None or self._last is None:
            return False
        return self._last[0] - self._first[0] >= self._limits.least_s

    def _look(self) -> None:
        try:
            at_s = self._progress.stat().st_mtime_ns * 1e-9  # when it was written, not when we see it
        except OSError:
            return
        report = read_progress(self._progress)
        if report is None or (at_s, report[0]) == self._seen:
            return
        done = report[0]
        self._seen = at_s, done
        self._timer.observe(at_s, done)
        self._last = time.perf_counter(), self._hardware.energy_j(self._gpus, self._pid)
        self._first = self._first or self._last
        self._on_epochs(self._timer.epochs)

    def result(self, code: int | None, output: Path) -> Timed:
        """Return what was measured; raises ``NotMeasuredError`` if that is nothing."""
        epoch_s = None if code else self._timer.epoch_s
        if epoch_s is None or self._first is None or self._last is None:
            raise NotMeasuredError(self._why(code, output))
        (began_s, before_j), (ended_s, after_j) = self._first, self._last
        energy_j = None if before_j is None or after_j is None else max(0.0, after_j - before_j)
        return Timed(epoch_s, self._timer.epochs, energy_j, ended_s - began_s)

    def _why(self, code: int | None, output: Path) -> str:
        if code:
            ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            return f"it ended with an error ({ended}){_tail(output)}"
        if self._seen is None:
            when = f"in {self._limits.limit_s:g} s" if self._over else "before it ended"
            return f"it reported no progress {when}: {_THREE_LINES}"
        if self._over:
            return f"no epoch after the first was over in {self._limits.limit_s:g} s (--limit)"
        return "it ended after one epoch, which does not count, as it has loading and compiling in it"


def _tail(output: Path) -> str:
    lines = [line.strip() for line in output.read_text(encoding="utf-8", errors="replace").splitlines()]
    last = next((line for line in reversed(lines) if line), "")
    return f": {last[:300]}" if last else ""


def _ended(pid: int) -> int | None:
    """Return the exit code of a child, negative for a signal, ``None`` if it runs; it stays a zombie.

    As long as it is one, its number is that of no other group.
    """
    status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if status is None:
        return None
    return int(status.si_status) if status.si_code == os.CLD_EXITED else -int(status.si_status)


def _stop(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """End the process group of *process*: SIGTERM, then SIGKILL to what is left after *grace_s*."""
    try:
        if _ended(process.pid) is None:
            os.killpg(process.pid, signal.SIGTERM)
            until_s = time.monotonic() + grace_s
            while _ended(process.pid) is None and time.monotonic() < until_s:
                time.sleep(_LOOK_S)
    finally:
        with suppress(OSError):  # also what its processes have left behind
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
