"""What a topic is, what it is asked for, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from commonwatt.model.results import ReproducePoint, ReproduceRow

__all__ = ["Answer", "Bar", "Extent", "Request", "Topic"]

Extent = Literal["quick", "default", "full"]


class Bar(Protocol):
    """Hears how far runs are; see ``commonwatt.cli.output.Progress``."""

    def at(self, policy: str, time_s: float) -> None:
        """Hear that a run has come to *time_s*."""
        ...

    def done(self) -> None:
        """Hear that a run has ended."""
        ...


class _Silent:
    def at(self, policy: str, time_s: float) -> None:
        pass

    def done(self) -> None:
        pass


def _silent(runs: int, length_s: float) -> AbstractContextManager[Bar]:  # noqa: ARG001
    return nullcontext(_Silent())


@dataclass(frozen=True)
class Request:
    """How a topic is to be run."""

    extent: Extent = "default"
    seed: int = 0
    seeds: int | None = None  # how many, from ``seed`` on; ``None``: what suits the extent
    jobs: int = 1  # runs at a time
    progress: Callable[[int, float], AbstractContextManager[Bar]] = _silent  # given the runs and the length of one, s


@dataclass(frozen=True)
class Answer:
    """What came out. ``draw`` saves the picture to a file."""

    seeds: tuple[int, ...]
    digests: tuple[str, ...]  # SHA-256 of every input
    rows: tuple[ReproduceRow, ...]
    notes: tuple[str, ...]
    points: tuple[ReproducePoint, ...] = ()
    x_name: str | None = None
    story: tuple[str, ...] = ()
    draw: Callable[[Path], None] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Topic:
    """A figure or table of a paper that can be run again."""

    name: str
    title: str
    paper: str  # where the paper has it
    compares: str
    run: Callable[[Request], Answer]
    draws: str = ""  # what --plot draws; empty: nothing
