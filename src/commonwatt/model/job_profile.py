"""What is known of how fast a job trains: measured, predicted or declared, by GPU type and count."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from commonwatt.model.errors import InputError

__all__ = [
    "LONGEST_EPOCH_S", "MOST_GPU_W", "SHORTEST_EPOCH_S", "Configuration", "Figure", "Measurement", "Source",
    "Unprofilable", "bounded_s",
]  # fmt: skip

SHORTEST_EPOCH_S, LONGEST_EPOCH_S, MOST_GPU_W = 1e-15, 1e15, 1e9
"""What anybody may declare or report an epoch, or the power of a GPU, to be: within these, no figure made of others
overflows, and none vanishes."""


def bounded_s(epoch_s: float) -> float:
    """Return the seconds of an epoch brought between the shortest and the longest; what is no number is the longest."""
    return LONGEST_EPOCH_S if math.isnan(epoch_s) else min(max(epoch_s, SHORTEST_EPOCH_S), LONGEST_EPOCH_S)


@dataclass(frozen=True, order=True)
class Configuration:
    """GPUs a job may get: so many of one type."""

    gpu_type: str
    gpus: int


class Source(StrEnum):
    """Where a figure comes from, the best first."""

    MEASURED = "measured"
    PREDICTED = "predicted"  # from measurements of this job alone
    SIMILAR = "similar"  # from the scaling of jobs of the same kind
    DECLARED = "declared"  # by its owner; in proportion, where measurements show how far off that is
    TIME_LIMIT = "time limit"


class Unprofilable(StrEnum):
    """Why a job is not measured."""

    NO_NODE = "no profiling node has a GPU type it may run on"
    NO_PROGRESS = "it tells no progress"
    CRASHED = "it ends with an error while it is measured"


@dataclass(frozen=True)
class Measurement:
    """Time and power of a job in one configuration.

    Attributes
    ----------
    kind
        Label of jobs that scale alike; "" for a job of no kind.
    job
        Which job it was.
    epoch_s
        Seconds of an epoch.
    gpu_w
        Power each GPU added, watts; ``None`` if there was no meter.
    epochs
        Epochs it was measured for.
    measured_s
        When that was: of two in one configuration the later one counts.
    """

    kind: str
    job: int
    gpu_type: str
    gpus: int
    epoch_s: float
    gpu_w: float | None = None
    epochs: float = 1.0
    measured_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.epoch_s < math.inf:
            raise InputError("a number of seconds above 0", field="epoch_s", value=self.epoch_s)
        if self.gpus < 1:
            raise InputError("a GPU count of 1 or more", field="gpus", value=self.gpus)
        if self.gpu_w is not None and not 0 <= self.gpu_w < math.inf:
            raise InputError("a power of 0 W or more", field="gpu_w", value=self.gpu_w)

    @property
    def configuration(self) -> Configuration:
        """Where it was measured."""
        return Configuration(self.gpu_type, self.gpus)


@dataclass(frozen=True)
class Figure:
    """What a job is taken to need in one configuration.

    ``epoch_s`` are seconds of an epoch; ``gpu_w`` is the power each GPU adds, watts, ``None`` for the node's figure.
    """

    configuration: Configuration
    epoch_s: float
    gpu_w: float | None
    source: Source
