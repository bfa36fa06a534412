"""What ``commonwatt profile`` measured of one training: time of an epoch and power, by GPU count and clock."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from commonwatt.model.errors import FieldError
from commonwatt.model.fields import AnswerModel, FileModel, FileVersion, quantity
from commonwatt.model.job_file import LONGEST_EPOCH_S, MOST_GPU_W, MOST_GPUS, SHORTEST_EPOCH_S

__all__ = ["FailedPoint", "ProfileResult", "TrainingPoint", "TrainingProfile"]


class TrainingPoint(FileModel):
    """A GPU count and a clock, and what was measured there."""

    gpus: int = quantity("GPUs the training ran on", "GPUs", ge=1, le=MOST_GPUS)
    clock_mhz: float | None = quantity("clock the GPUs were locked to; null: their own", "MHz", None, gt=0)
    epoch_s: float = quantity("duration of an epoch: the median of those measured", "s",
                              ge=SHORTEST_EPOCH_S, le=LONGEST_EPOCH_S)  # fmt: skip
    epochs: int = quantity("epochs measured, without the first", "-", 1, ge=1)
    asked_epochs: int | None = quantity(
        "epochs that were to be measured; more than `epochs`: the training ended early, or the time limit of a run "
        "passed; null: not known", "-", None, ge=1,
    )  # fmt: skip
    gpu_w: float | None = quantity(
        "power added by each GPU to its idle power, mean over these epochs; null: unknown", "W", None,
        ge=0, le=MOST_GPU_W,
    )  # fmt: skip
    power_source: Literal["measured", "modelled"] | None = quantity("source of the power; null: unknown", "-", None)

    @property
    def is_short(self) -> bool:
        """Whether fewer epochs were measured than were to be."""
        return self.asked_epochs is not None and self.epochs < self.asked_epochs


class FailedPoint(FileModel):
    """A GPU count and a clock at which nothing could be measured."""

    gpus: int = quantity("GPUs it was to run on", "GPUs", ge=1)
    clock_mhz: float | None = quantity("clock the GPUs were to be locked to; null: their own", "MHz", None, gt=0)
    reason: str = quantity("why nothing was measured", "-")


class TrainingProfile(FileModel):
    """Measurements of one training on one GPU type."""

    version: FileVersion = quantity("version of this format", "-", 1)
    kind: str = quantity("label of the training; jobs of one kind are assumed to scale alike", "-",
                         min_length=1, max_length=100)  # fmt: skip
    gpu_type: str = quantity("type of the GPUs, as the cluster names it", "-", min_length=1, max_length=100)
    points: tuple[TrainingPoint, ...] = quantity("what was measured", "-", min_length=1)
    failed: tuple[FailedPoint, ...] = quantity("where nothing could be measured", "-", ())
    idle_gpu_w: float | None = quantity("power of an idle GPU; null: unknown", "W", None, ge=0)
    power_model: str | None = quantity("the model that modelled power comes from; null: none was used", "-", None)
    device: str = quantity("hardware it was measured on", "-", "")
    command: tuple[str, ...] = quantity("program and arguments that ran", "-", ())
    host: str = quantity("machine it was measured on", "-", "")
    measured_at: str = quantity("when the last point was measured (ISO 8601)", "-", "")
    source: str = quantity("source of the figures", "-", "")

    @model_validator(mode="after")
    def _check(self) -> TrainingProfile:
        seen: set[tuple[int, float | None]] = set()
        for place, point in enumerate(self.points):
            if (point.gpus, point.clock_mhz) in seen:
                raise FieldError("each count and clock once", field=f"points.{place}.gpus", value=f"{point.gpus} twice")
            seen.add((point.gpus, point.clock_mhz))
        return self

    def by_count(self) -> dict[int, TrainingPoint]:
        """Return a point for each GPU count, increasing: at the GPUs' own clock, else at the highest measured."""
        points: dict[int, TrainingPoint] = {}
        for point in self.points:
            other = points.get(point.gpus)
            if other is None or (other.clock_mhz is not None and (point.clock_mhz or 1e9) > other.clock_mhz):
                points[point.gpus] = point
        return dict(sorted(points.items()))

    def times_s(self, epochs: int) -> dict[int, float]:
        """Return the run time of a job of *epochs* epochs by GPU count, s."""
        return {gpus: epochs * point.epoch_s for gpus, point in self.by_count().items()}

    def mean_gpu_w(self) -> float | None:
        """Return the power added by each GPU, mean over the counts, W; ``None`` if unknown."""
        watts = [point.gpu_w for point in self.by_count().values() if point.gpu_w is not None]
        return sum(watts) / len(watts) if watts else None


class ProfileResult(AnswerModel):
    """Answer of ``commonwatt profile``."""

    asked_epochs: int = quantity("epochs to measure in each run")
    measured_epochs: int = quantity("epochs measured, in the run that measured fewest")
    profile: TrainingProfile = quantity("what was measured")
    written: str = quantity("path of the profile")
    wall_s: float = quantity("time it took", "s")
