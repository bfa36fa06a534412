"""The cluster as a whole, at one moment."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Sample"]


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster right after a tick."""

    time_s: float
    busy_gpus: int
    power_w: float | None
    running: int
    waiting: int
    on_gpus: int  # of nodes that are on or waking
    wanted_gpus: int  # held, or asked for by waiting jobs that are not held back
