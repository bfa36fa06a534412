"""What a job really runs, whatever engine runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Work", "mark_of"]


@dataclass(frozen=True)
class Work:
    """What a job really runs.

    Attributes
    ----------
    command
        Program and arguments; no shell reads them.
    folder
        Its working directory; the engine's own folder for the job if not given.
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
    mark
        By which it is told from another job of the same number, in a store that is older than an engine's records.
    """

    command: tuple[str, ...]
    folder: Path | None = None
    epochs: float = 1.0
    environment: Mapping[str, str] = field(default_factory=dict)
    snapshots: Path | None = None
    image: str | None = None
    time_limit_s: float | None = None
    mark: str = ""


def mark_of(submit_s: float) -> str:
    """Return the mark of a job submitted at *submit_s*, seconds since 1970."""
    return f"{submit_s:.3f}"
