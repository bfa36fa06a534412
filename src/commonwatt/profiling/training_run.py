"""Runs of a user's training for its profile: one for each GPU count and clock, the profile written after each.

A run is started in a session of its own, watched by its progress reports, and stopped.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import yaml

from commonwatt import __version__
from commonwatt.control.profiling import EpochTimer
from commonwatt.data.files import write_atomic
from commonwatt.data.profiles import standard_name
from commonwatt.engines.reports import read_progress
from commonwatt.model.errors import ArgumentError, InputError, ProfileError
from commonwatt.model.training_profile import FailedPoint, TrainingPoint, TrainingProfile
from commonwatt.profiling.hardware import Hardware

__all__ = [
    "NotMeasuredError",
    "ProfilePlan",
    "RunLimits",
    "Timed",
    "default_counts",
    "profile_training",
    "run_training",
]

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


# -- the runs of a profile


def default_counts(most: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... and *most*.

    >>> default_counts(6)
    (1, 2, 4, 6)
    """
    return tuple(sorted({most, *(2**k for k in range(most.bit_length()) if 2**k <= most)}))


@dataclass(frozen=True)
class ProfilePlan:
    """What to measure."""

    command: tuple[str, ...]
    kind: str  # label of the training
    counts: tuple[int, ...] = ()  # of GPUs; empty: 1, 2, 4, ... up to all
    clocks_mhz: tuple[float | None, ...] = (None,)  # None: the GPUs' own
    gpu_type: str | None = None  # None: by the hardware's name
    limits: RunLimits = field(default_factory=RunLimits)

    def on(self, hardware: Hardware) -> list[tuple[int, float | None]]:
        """Return GPU counts and clocks in the order of their runs.

        Raises ``InputError`` on more GPUs than there are.
        """
        for gpus in self.counts:
            if not 1 <= gpus <= hardware.count:
                raise ArgumentError(f"a number of GPUs from 1 to {hardware.count}", field="gpus", value=gpus)
        counts = sorted(set(self.counts)) or default_counts(hardware.count)
        return [(gpus, clock) for clock in dict.fromkeys(self.clocks_mhz) for gpus in counts]


def profile_training(
    plan: ProfilePlan, hardware: Hardware, out: Path,
    on_point: Callable[[TrainingPoint | FailedPoint], None] = lambda _: None,
    on_epochs: Callable[[float], None] = lambda _: None,
) -> TrainingProfile:  # fmt: skip
    """Run the training of *plan* at each GPU count and clock, and write the profile to *out* after each.

    Parameters
    ----------
    on_point
        Called with each point, measured or failed.
    on_epochs
        Called with the number of epochs measured in the present run.

    Raises
    ------
    ProfileError
        If nothing could be measured; then nothing is written.
    InputError
        On a program, count or clock that cannot be.
    """
    points: list[TrainingPoint] = []
    failed: list[FailedPoint] = []
    profile: TrainingProfile | None = None
    with tempfile.TemporaryDirectory(prefix="commonwatt-profile-") as temporary:
        for number, (gpus, clock_mhz) in enumerate(plan.on(hardware)):
            hardware.set_clock(gpus, clock_mhz)
            try:
                timed = run_training(
                    plan.command, hardware, gpus, plan.limits, Path(temporary) / str(number), on_epochs
                )
            except NotMeasuredError as why:
                failed.append(FailedPoint(gpus=gpus, clock_mhz=clock_mhz, reason=str(why)))
                on_point(failed[-1])
            else:
                points.append(_point(timed, hardware, gpus, clock_mhz, plan.limits.epochs))
                on_point(points[-1])
            if points:
                profile = _profile(plan, hardware, points, failed)
                write_atomic(out, _text(profile, out))
    if profile is None:
        raise ProfileError(f"nothing could be measured: {failed[0].reason}")
    return profile


def _point(timed: Timed, hardware: Hardware, gpus: int, clock_mhz: float | None, asked: int) -> TrainingPoint:
    gpu_w = None
    if timed.energy_j is not None and timed.window_s > 0:
        gpu_w = max(0.0, timed.energy_j / timed.window_s / gpus - (hardware.idle_gpu_w or 0.0))
    return TrainingPoint(
        gpus=gpus, clock_mhz=clock_mhz, epoch_s=timed.epoch_s, epochs=timed.epochs, asked_epochs=asked, gpu_w=gpu_w,
        power_source=None if gpu_w is None else hardware.power_source,
    )  # fmt: skip


def _profile(
    plan: ProfilePlan, hardware: Hardware, points: Sequence[TrainingPoint], failed: Sequence[FailedPoint]
) -> TrainingProfile:
    return TrainingProfile(
        kind=plan.kind,
        gpu_type=plan.gpu_type or standard_name(hardware.gpu_type) or hardware.gpu_type,
        points=tuple(points),
        failed=tuple(failed),
        idle_gpu_w=hardware.idle_gpu_w,
        power_model=hardware.power_model,
        device=hardware.name,
        command=plan.command,
        host=platform.node(),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        source=f"measured here by commonwatt profile, version {__version__}",
    )


def _text(profile: TrainingProfile, out: Path) -> str:
    document = profile.model_dump(mode="json")
    if out.suffix == ".json":
        return json.dumps(document, indent=1) + "\n"
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
