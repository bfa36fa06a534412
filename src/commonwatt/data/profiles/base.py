"""What a set of profiles answers."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Profiles"]


class Profiles(Protocol):
    """Speed and power of training, by kind of model, GPU type and GPU count.

    GPU types may be spelt in any case; an unknown one is an ``InputError`` listing the known ones.
    """

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of model there are figures for."""

    @property
    def source(self) -> str:
        """Where the figures come from, in one sentence without a full stop."""

    def speed(self, kind: str, gpu_type: str, gpus: int) -> float | None:
        """Samples per second relative to those of one P100 on the same kind; ``None`` if unknown."""

    def gpu_w(self, kind: str, gpu_type: str) -> float | None:
        """Power of one GPU's board while it trains, watts; ``None`` if unknown."""
