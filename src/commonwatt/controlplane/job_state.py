"""State of an active job that the control plane keeps beside the controller's."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TrackedJob"]


@dataclass
class TrackedJob:
    """State of an active job that the controller does not have: its runs by the engine's count, and its failures."""

    id: int
    name: str
    attempts: int = 0  # as the engine counts them
    settled: int = 0  # last attempt whose end was processed
    failures: int = 0  # interruptions since it last made progress
    kept_epochs: float = 0.0
    cause: str = ""  # of its failure
    refusals: int = 0  # starts that failed since it last began
    nodes: tuple[int, ...] = ()  # where it ran last
    gpus_per_node: int = 0
