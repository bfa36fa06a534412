"""Profiles a training: a run for each GPU count and clock, the profile written after each."""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import yaml

from commonwatt import __version__
from commonwatt.data.files import write_atomic
from commonwatt.data.profiles import standard_name
from commonwatt.model.errors import InputError, ProfileError
from commonwatt.model.training_profile import FailedPoint, TrainingPoint, TrainingProfile
from commonwatt.profiling.hardware import Hardware
from commonwatt.profiling.training_run import NotMeasuredError, RunLimits, Timed, run_training

__all__ = ["ProfilePlan", "default_counts", "profile_training"]


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
                raise InputError(f"a number of GPUs from 1 to {hardware.count}", field="--gpus", value=gpus)
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
