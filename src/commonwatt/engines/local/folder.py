"""What is kept on disk of one run of a job, and who may say that it is alive.

::

    STATE/jobs/HANDLE/progress      epochs done and kept, written by the job
    STATE/runs/HANDLE-ATTEMPT/
        run.json       what was asked for: written whole before anything starts
        lock           held by the runner as long as it lives
        runner.json    process ids of the runner and of the job
        end.json       how it ended: written once
        output.log     what the job printed
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from commonwatt.model.errors import EngineDownError, EngineError

__all__ = ["End", "RunFolder", "RunOrder", "write_record"]


@dataclass(frozen=True)
class RunOrder:
    """What a runner is told: all of it, so that it needs nobody afterwards."""

    handle: int
    attempt: int
    name: str
    nodes: tuple[int, ...]
    gpus_per_node: int
    slots: tuple[tuple[int, ...], ...]  # of each node
    started_s: float
    base_epochs: float
    command: tuple[str, ...]
    folder: str  # the job's working directory
    environment: dict[str, str]
    grace_s: float
    limit_s: float | None = None  # longest time it may run
    lock: str | None = None  # a file only one run of the job may hold: it waits for the run before to be gone
    look_s: float | None = None  # how often to look whether the run was given up
    node_names: tuple[str, ...] = ()  # by which the nodes are known again when the configuration has changed
    epochs: float | None = None  # of the job
    mark: str = ""  # of its ``Work``

    def placed(self, names: Sequence[str]) -> RunOrder:
        """Return the order with its nodes as they are counted in *names*; with none, if one of them is not there."""
        if not self.node_names:
            return self
        at = {name: n for n, name in enumerate(names)}
        there = all(name in at for name in self.node_names)
        return replace(
            self,
            nodes=tuple(at[name] for name in self.node_names) if there else (),
            slots=self.slots if there else (),
        )


@dataclass(frozen=True)
class End:
    """How a run ended. ``exit_code`` is negative for a signal, null if the job never ran."""

    exit_code: int | None
    stopped: bool
    at_s: float
    cause: str
    ran_s: float | None = None  # by a clock nobody sets
    over_limit: bool = False  # of time

    def timely(self, order: RunOrder, now_s: float) -> End:
        """Return the end within the time between the order and now, wherever the clock was when it was written."""
        at_s = self.at_s
        if self.ran_s is not None and not order.started_s <= at_s <= now_s:
            at_s = order.started_s + self.ran_s
        return replace(self, at_s=max(order.started_s, min(at_s, now_s)))


def write_record(path: Path, document: dict[str, Any]) -> None:
    """Write *document* whole or not at all, and have it on the disk before returning."""
    temporary = path.with_name(path.name + ".part")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


@dataclass(frozen=True)
class RunFolder:
    """The records of one run."""

    path: Path

    @classmethod
    def create(cls, runs: Path, order: RunOrder) -> RunFolder:
        """Write down *order* in a folder of its own; raises ``EngineDownError`` if that cannot be."""
        folder = cls(runs / f"{order.handle}-{order.attempt}")
        try:
            folder.path.mkdir(parents=True, exist_ok=True)  # of an order that could not be written before
            write_record(folder.path / "run.json", asdict(order))
        except OSError as error:
            msg = f"start {order.name}: its records cannot be written: {error}"
            raise EngineDownError(msg) from error
        return folder

    @classmethod
    def all_in(cls, runs: Path) -> list[RunFolder]:
        """Return every run that was ordered, by handle and attempt."""
        found = [cls(path) for path in runs.iterdir() if (path / "run.json").exists()] if runs.is_dir() else []
        return sorted(found, key=lambda folder: tuple(int(part) for part in folder.path.name.split("-")))

    def order(self) -> RunOrder:
        """Return what was asked for."""
        raw = self._read("run.json")
        if raw is None:
            msg = f"{self.path / 'run.json'} is gone or damaged"
            raise EngineError(msg)
        for name in ("nodes", "command", "node_names"):
            raw[name] = tuple(raw.get(name, ()))
        raw["slots"] = tuple(tuple(slots) for slots in raw["slots"])
        return RunOrder(**raw)

    def end(self) -> End | None:
        """Return how it ended; ``None`` if that is not written (yet)."""
        raw = self._read("end.json")
        return None if raw is None else End(**raw)

    def finish(self, end: End) -> None:
        """Write down how it ended, for a runner that cannot; raises ``EngineDownError`` if that cannot be."""
        try:
            write_record(self.path / "end.json", asdict(end))
        except OSError as error:
            msg = f"{self.path / 'end.json'} cannot be written: {error}"
            raise EngineDownError(msg) from error

    def processes(self) -> tuple[int, int] | None:
        """Return the process ids of the runner and of the job's group; ``None`` if the runner has not written them."""
        raw = self._read("runner.json")
        return None if raw is None else (int(raw["runner"]), int(raw["job"]))

    @contextmanager
    def without_runner(self) -> Iterator[bool]:
        """Say whether no runner is alive, and keep one from coming to life meanwhile."""
        with (self.path / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
