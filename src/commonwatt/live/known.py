"""What the control plane remembers of an active job beyond what the controller knows."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Known"]


@dataclass
class Known:
    """What is known of an active job beyond what the controller knows."""

    id: int
    name: str
    attempts: int = 0  # as the engine counts them
    settled: int = 0  # last attempt whose end was taken account of
    failures: int = 0  # interruptions since it last got on
    kept_epochs: float = 0.0
    cause: str = ""  # of its failure
    refusals: int = 0  # starts since it last began that came to nothing
    nodes: tuple[int, ...] = ()  # where it ran last
    gpus_per_node: int = 0
