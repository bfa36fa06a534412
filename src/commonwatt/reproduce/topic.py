"""A topic (a figure or table of a paper), its request and its answer; and a run of it, with what that depends on."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any, Literal, Protocol

from commonwatt.data import third_party

if TYPE_CHECKING:
    from commonwatt.model.results import ReproducePoint, ReproduceRow

__all__ = [
    "Bar",
    "Extent",
    "Topic",
    "TopicAnswer",
    "TopicRequest",
    "TopicRun",
    "data_digest",
    "digest_of",
    "loaded",
    "see",
]

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


@dataclass(frozen=True)
class TopicRun:
    """A topic with one seed, and where its result lies."""

    topic: str
    seed: int
    extent: Extent
    folder: Path
    key: str

    @property
    def path(self) -> Path:
        """File of the result."""
        return self.folder / "runs" / f"{self.topic}.{self.seed}.json"

    @property
    def figure(self) -> Path:
        """File of the figure, which only the first seed draws."""
        return self.folder / "figures" / f"{self.topic}.svg"

    def kept(self, digest: Callable[[str], str | None] | None = None) -> dict[str, Any] | None:
        """Return what an earlier call left, unless it is stale, failed or damaged.

        *digest* is that of a file of this package, as it is now.
        """
        now = digest or digest_of
        try:
            record: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
            if record["key"] != self.key or record["state"] not in ("done", "skipped"):
                return None
            if any(now(name) != was for name, was in record["code"].items()):
                return None
            if record["state"] == "done":
                from commonwatt.model.results import ReproduceResult

                ReproduceResult.model_validate(record["result"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return record


_ROOT = Path(__file__).parents[1]
_HARNESS = (
    "cli/",
    "reproduce/collection.py",
    "reproduce/papers/legend.yaml",
    "reproduce/verdicts.py",
    "report/claims_page.py",
    "model/suite_results.py",
)
"""What starts runs, judges them and tells of them: nothing that it changes is in what a run leaves."""
_BEGAN = time()
_opened: set[str] = set()


def digest_of(name: str) -> str | None:
    """Return the SHA-256 of a file of this package, by its path there; ``None``: it is gone."""
    try:
        return hashlib.sha256((_ROOT / name).read_bytes()).hexdigest()
    except OSError:
        return None


def loaded() -> dict[str, str]:
    """Return the files of this package that this process has loaded or read, with their SHA-256."""
    modules = [getattr(module, "__file__", None) for name, module in list(sys.modules.items())
               if name.partition(".")[0] == __package__.partition(".")[0]]  # fmt: skip
    names = {_inside(file) for file in modules if file is not None} | _opened
    files = (name for name in sorted(names) if (_ROOT / name).is_file() and not name.startswith(_HARNESS))
    return {name: _since(name) for name in files}


def _since(name: str) -> str:
    """Return the digest of a file; empty if it was changed after this process began, which may have loaded another."""
    try:
        changed = (_ROOT / name).stat().st_mtime > _BEGAN
    except OSError:  # gone since
        changed = True
    return "" if changed else digest_of(name) or ""


def _inside(file: str) -> str:
    """Return the path of *file* within this package; empty: it is not there, or compiled from what is."""
    path = Path(file)
    inside = path.is_relative_to(_ROOT) and "__pycache__" not in path.parts
    return path.relative_to(_ROOT).as_posix() if inside else ""


def see(event: str, arguments: tuple[Any, ...]) -> None:
    """Note files of this package that are opened, as an audit hook: profiles, tables, stubs."""
    if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(f"{_ROOT}{os.sep}"):
        _opened.add(_inside(arguments[0]))


def data_digest() -> str:
    """Return the SHA-256 of the third-party data that is at hand: traces, and the folders beside them."""
    traces = third_party.folder()
    if traces is None:
        return "none"
    folders = [traces, *(traces.parent / name for name in ("mapping", "market"))]
    files = [path for folder in folders if folder.is_dir() for path in sorted(folder.rglob("*")) if path.is_file()]
    return _digest_of(traces.parent, files)


def _digest_of(root: Path, files: Sequence[Path]) -> str:
    sha = hashlib.sha256()
    for path in files:
        sha.update(path.relative_to(root).as_posix().encode())
        sha.update(hashlib.sha256(path.read_bytes()).digest())
    return sha.hexdigest()
