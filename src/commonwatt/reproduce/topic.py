"""A topic (a figure or table of a paper), its request and its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from commonwatt.model.results import ReproducePoint, ReproduceRow

__all__ = ["Bar", "Extent", "Topic", "TopicAnswer", "TopicRequest"]

Extent = Literal["quick", "default", "full"]


class Bar(Protocol):
    """Shows the progress of runs; see ``commonwatt.cli.output.Progress``."""

    def at(self, policy: str, time_s: float) -> None:
        """Report that a run has reached *time_s*."""
        ...

    def follow(self, times_s: Callable[[], Iterable[float]]) -> None:
        """Set the function that returns how far runs in other processes have come."""
        ...

    def done(self) -> None:
        """Report the end of a run."""
        ...


class _Silent:
    def at(self, policy: str, time_s: float) -> None:
        pass

    def follow(self, times_s: Callable[[], Iterable[float]]) -> None:
        pass

    def done(self) -> None:
        pass


def _silent(runs: int, length_s: float) -> AbstractContextManager[Bar]:  # noqa: ARG001
    return nullcontext(_Silent())


@dataclass(frozen=True)
class TopicRequest:
    """Extent, seeds and parallelism of a topic's run."""

    extent: Extent = "default"
    seed: int = 0
    seeds: int | None = None  # number of seeds, from ``seed`` on; ``None``: that of the extent
    jobs: int = 1  # runs at a time
    progress: Callable[[int, float], AbstractContextManager[Bar]] = _silent  # of the number of runs and their length, s


@dataclass(frozen=True)
class TopicAnswer:
    """Result of a topic. ``draw`` saves its plot to a file."""

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
    """A figure or table of a paper that can be reproduced."""

    name: str
    title: str
    paper: str  # where the paper has it
    compares: str
    run: Callable[[TopicRequest], TopicAnswer]
    draws: str = ""  # subject of --plot; empty: no plot
    data: tuple[str, ...] = ()  # third-party data it stands in for if missing, by path beside the traces
    long: bool = False  # takes longer than most
