"""What a job really runs, whatever engine runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Work"]


@dataclass(frozen=True)
class Work:
    """What a job really runs.

    Attributes
    ----------
    command
        Program and arguments; no shell reads them.
    folder
        Its working directory.
    epochs
        Epochs it has done when it ends well.
    environment
        Variables it gets besides those of the engine.
    snapshots
        Where it keeps its snapshots; the engine's own folder for the job if not given.
    image
        Container image it runs in, by the site's runtime; none if not given.
    time_limit_s
        Longest time one run of it may take; seconds, unlimited if not given.
    """

    command: tuple[str, ...]
    folder: Path
    epochs: float = 1.0
    environment: Mapping[str, str] = field(default_factory=dict)
    snapshots: Path | None = None
    image: str | None = None
    time_limit_s: float | None = None
