"""Profiles of users' own trainings: read from files, as times of a job, and as speeds by GPU count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from commonwatt.data.files import load_yaml
from commonwatt.model.errors import InputError
from commonwatt.model.training_profile import TrainingProfile

__all__ = ["ProfiledTimes", "SpeedCurve", "read_profiles", "times_of"]


@dataclass(frozen=True)
class SpeedCurve:
    """Epochs per second of a training by GPU count.

    Between measured counts the logarithm of the speed is linear in that of the count; beyond the largest it goes on as
    between the last two, at most in proportion to the count. Below the smallest, and beside a single one, it is
    unknown.
    """

    profile: TrainingProfile

    def speed(self, gpus: int) -> float | None:
        """Return epochs per second on *gpus* GPUs; ``None`` if unknown."""
        points = self.profile.by_count()
        if gpus in points:
            return 1.0 / points[gpus].epoch_s
        counts = np.log(list(points))
        speeds = -np.log([point.epoch_s for point in points.values()])
        if len(points) < 2 or np.log(gpus) < counts[0]:
            return None
        slope = float(np.clip((speeds[-1] - speeds[-2]) / (counts[-1] - counts[-2]), 0.0, 1.0))
        beyond = max(0.0, np.log(gpus) - counts[-1])
        return float(np.exp(np.interp(np.log(gpus), counts, speeds) + slope * beyond))


@dataclass(frozen=True)
class ProfiledTimes:
    """Times and power of a job by what was measured."""

    kind: str
    times_s: Mapping[str, Mapping[int, float]]
    gpu_w: Mapping[str, float]


def read_profiles(paths: Iterable[str | Path], folder: Path = Path()) -> tuple[TrainingProfile, ...]:
    """Read the profiles at *paths*, relative to *folder*; raises ``InputError`` on what is none."""
    return tuple(load_yaml(folder / path, TrainingProfile) for path in paths)


def times_of(profiles: Iterable[TrainingProfile], epochs: int) -> ProfiledTimes:
    """Return the times of a job of *epochs* epochs of the training of *profiles*, each of which is of another GPU type.

    Raises ``InputError`` on two profiles of one type, and on trainings of different kinds.
    """
    times: dict[str, Mapping[int, float]] = {}
    power: dict[str, float] = {}
    kinds: dict[str, None] = {}
    for profile in profiles:
        if profile.gpu_type in times:
            raise InputError("one profile of each GPU type", field="profile", value=f"two of {profile.gpu_type}")
        kinds[profile.kind] = None
        times[profile.gpu_type] = profile.times_s(epochs)
        watts = profile.mean_gpu_w()
        if watts is not None:
            power[profile.gpu_type] = watts
    if len(kinds) != 1:
        raise InputError("profiles of one training", field="profile", value=", ".join(kinds) or "none")
    return ProfiledTimes(next(iter(kinds)), times, power)
