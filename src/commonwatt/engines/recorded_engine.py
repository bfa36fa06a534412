"""What the engines share whose runs are on disk: ``local``, ``slurm``, ``kubernetes``.

The last two have more in common (``SchedulerEngine``): their jobs run under a scheduler of another system.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from commonwatt.control.engine import (
    Change,
    Command,
    Holder,
    JobEnded,
    JobInterrupted,
    JobProgress,
    LiveEngine,
    MeterMark,
    Reading,
    RecordedRun,
    SetPower,
    Start,
    Stop,
    Stopped,
)
from commonwatt.engines.local.folder import End, RunFolder
from commonwatt.engines.meters import DeclaredPower, Meters, Since, catch_up, holders_of
from commonwatt.engines.model_servers import FIRST_SERVER
from commonwatt.engines.reports import Reports
from commonwatt.engines.run_history import RunHistory
from commonwatt.engines.run_spec import JobWork, RunSpec
from commonwatt.engines.state_folder import read_json, write_record
from commonwatt.model.arrays import Ints
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.model.nodes import Cluster
from commonwatt.model.units import plural

__all__ = [
    "RecordedEngine",
    "RunAllocations",
    "RunT",
    "SchedulerEngine",
    "SchedulerRun",
    "check_free",
    "command_each",
]

_LEFT, _MOST_BYTES = "left.json", 1 << 20


class _Run(Protocol):
    folder: RunFolder
    spec: RunSpec


RunT = TypeVar("RunT", bound=_Run)


class RecordedEngine(LiveEngine, Generic[RunT]):
    """An engine whose runs, and their ends, are on disk.

    Parameters
    ----------
    cluster
        The declared nodes.
    state
        Folder of its own; one engine at a time.
    work_of
        Returns the work of the job of a given name.
    node_energy_j
        Reading of a node's meter, joules; energy is unknown if there is none.
    declared_power
        Use the declared power where there is no meter.
    now_s, steady_s
        The time, and a monotonic clock.
    """

    def __init__(
        self, cluster: Cluster, state: Path, work_of: Callable[[str], JobWork], *,
        node_energy_j: Callable[[int], float] | None, declared_power: bool, now_s: Callable[[], float],
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._cluster, self._state, self._now_s = cluster, state.absolute(), now_s
        self._reports = Reports(self._state / "jobs", work_of)
        self._history = RunHistory(self._state, self._reports, now_s)
        self._declared = DeclaredPower(cluster) if declared_power and node_energy_j is None else None
        self._meters = Meters(len(cluster), node_energy_j, self._declared, now_s=now_s, steady_s=steady_s)
        self._runs: dict[int, RunT] = {}  # running, or ended but not yet reported
        self._changes: list[Change] = []

    # -- what each engine does in its own way

    @abstractmethod
    def _start(self, command: Start) -> None:
        """Start a job; raises ``EngineError`` if that is impossible."""

    @abstractmethod
    def _set_power(self, command: SetPower) -> None:
        """Put a node to sleep, or wake it; raises ``EngineError`` if that is impossible."""

    @abstractmethod
    def _end_of(self, run: RunT) -> End | None:
        """Return how a run ended, ``None`` if it has not."""

    @abstractmethod
    def _await_end(self, run: RunT) -> End | None:
        """Wait for the end of a run that was asked to stop; ``None`` if nobody waits for it any longer."""

    @abstractmethod
    def _vacate(self, handle: int) -> None:
        """Take a run that has ended off its nodes."""

    def _specs_on(self, n: int) -> Iterable[RunSpec]:  # noqa: ARG002
        """Return the specs of the runs on node *n*; those of other nodes do no harm."""
        return [run.spec for run in self._runs.values()]

    def _service_spans(self) -> list[tuple[float, float, RunSpec]]:
        """Return when the model servers of an earlier engine held their GPUs, with their specs."""
        return []

    def _power_state(self, n: int) -> tuple[bool, bool]:  # noqa: ARG002
        """Whether node *n* is waking, and whether it is asleep."""
        return False, False

    # -- commands

    def apply(self, commands: Sequence[Command]) -> Sequence[Stopped]:
        """Execute *commands*, asking all jobs to stop at once; raises ``EngineError`` on one that is impossible."""
        self.request_stop([command.handle for command in commands if isinstance(command, Stop)])
        stopped = []
        for command in commands:
            match command:
                case Stop():
                    stopped.append(self._stop(command.handle))
                case Start():
                    self._start(command)
                case SetPower():
                    self._set_power(command)
        return stopped

    def _has_ended(self, command: Start) -> bool:
        """Whether the job to start has ended by itself, which the next poll reports.

        Raises ``EngineError`` if it runs.
        """
        current = self._runs.get(command.handle)
        if current is None:
            return any(isinstance(c, JobEnded) and c.handle == command.handle for c in self._changes)
        if self._end_of(current) is None:
            msg = f"start {command.name}: it is running already"
            raise EngineError(msg)
        return True

    def _stop(self, handle: int) -> Stopped:
        run = self._runs.get(handle)
        if run is None:
            msg = f"stop job {handle}: it is not running"
            raise EngineError(msg)
        end = self._await_end(run)
        if end is None:
            return Stopped(handle, 0.0, later=True)
        self._vacate(handle)
        if self._reports.by_itself(run.spec, end):
            self._changes.append(self._reports.change(run.spec, end))
            return Stopped(handle, 0.0)
        return Stopped(handle, self._reports.interrupted(run.spec, end.at_s, end.ran_s))

    def report(self, change: Change) -> None:
        """Have the next poll report a change that somebody else has seen."""
        self._changes.append(change)

    # -- progress and energy

    def progress(self, handles: Ints) -> JobProgress:
        """Epochs as the jobs report them; when they begin to work is unknown."""
        return self._reports.progress(handles, self._spec_of)

    def _spec_of(self, handle: int) -> RunSpec | None:
        return self._runs[handle].spec if handle in self._runs else None

    def readings(self, *, up_to_now: bool = False) -> Sequence[Reading]:
        """Readings closed since the last call; with *up_to_now*, those of all nodes up to this moment."""
        if up_to_now:
            self._meter(range(len(self._cluster)))
        return self._meters.take()

    def power_w(self) -> float | None:
        """Return the declared power, where that is used; else ``None``: meters read energy."""
        if self._declared is None:
            return None
        nodes = range(len(self._cluster))
        return sum(self._declared(n, self._holders(n), asleep=self._power_state(n)[1]) for n in nodes)

    def marks(self) -> dict[int, MeterMark]:
        """Return how each node's meter was read last: for the next engine."""
        return {n: self._meters.mark(n, asleep=self._power_state(n)[1]) for n in range(len(self._cluster))}

    def _meter(self, nodes: Iterable[int]) -> None:
        """Close the readings of *nodes* at this moment."""
        for n in nodes:
            waking, asleep = self._power_state(n)
            self._meters.close(n, self._holders(n), waking=waking, asleep=asleep)

    def _holders(self, n: int) -> list[Holder]:
        return holders_of(self._cluster, n, self._specs_on(n))

    # -- what survives a controller

    def attempts(self, handle: int) -> int:
        """How often a job was started."""
        return self._history.next_attempt(handle) - 1

    def prunable(self) -> Sequence[int]:
        """Return the jobs that do not run and have records."""
        return self._history.not_running(self._runs)

    def prune(self, handles: Collection[int], *, aside: bool = False) -> None:
        """Delete the records of jobs that do not run, or move all their files *aside*."""
        gone = self._history.prune(set(handles) - self._runs.keys(), aside=aside)
        self._changes = [change for change in self._changes if change.handle not in gone]


def check_free(command: Start, node: str, free: int) -> None:
    """Raise ``EngineError`` if so many *free* GPUs of a node are too few for *command*."""
    if free < command.gpus_per_node:
        has = plural(max(0, free), "GPU")
        msg = f"start {command.name}: node {node} has {has} free, not {command.gpus_per_node}"
        raise EngineError(msg)


@dataclass(slots=True, eq=False)
class SchedulerRun:
    """A run whose end was not reported yet.

    Attributes
    ----------
    there
        On its nodes, as far as is known.
    asked_s
        When it was first asked to stop.
    waiting_s
        Since when it waits to start there: in Slurm's queue, or for its pods to start.
    detached
        The controller takes it for gone, and it is not.
    charged
        It was charged up to when it was over; how it ended is not known yet.
    denied_s
        When it could not be stopped, as that was not allowed; ``None``: it could, or was not to be.
    released
        Nodes that it has left before the others, and when.
    """

    folder: RunFolder
    spec: RunSpec
    there: bool = False
    asked_s: float | None = None
    waiting_s: float = field(default_factory=time.monotonic)
    detached: bool = False
    charged: bool = False
    denied_s: float | None = None
    released: dict[int, float] = field(default_factory=dict)
    now_s: Callable[[], float] = time.time

    @property
    def pending(self) -> bool:
        """Whether its nodes are kept for it, and nothing of it is there yet: nobody pays for them."""
        return False

    @property
    def ends_unseen(self) -> bool:
        """Whether it may be over without a record of that, as others than our runner end it."""
        return False

    def note_left(self, left: Mapping[int, float]) -> None:
        """Write down that it has *left* nodes before the others: an engine that comes later has to know."""
        self.released |= left
        names = dict(zip(self.spec.nodes, self.spec.node_names, strict=False))
        with suppress(OSError):
            write_record(self.folder.path / _LEFT, {names[n]: at_s for n, at_s in self.released.items() if n in names})

    def recall_left(self) -> None:
        """Take note of what an earlier engine wrote down."""
        with suppress(OSError, ValueError, TypeError, AttributeError):
            left_s = read_json(self.folder.path / _LEFT, _MOST_BYTES)
            nodes = dict(zip(self.spec.node_names, self.spec.nodes, strict=False))
            self.released = {nodes[name]: float(at_s) for name, at_s in left_s.items() if name in nodes}

    def ended_s(self) -> float:
        """When it ended, by its record; infinite if it has none."""
        end = self.folder.end()
        return math.inf if end is None else end.timely(self.spec, self.now_s()).at_s


SchedulerRunT = TypeVar("SchedulerRunT", bound=SchedulerRun)
SeenT = TypeVar("SeenT")
NodeT = TypeVar("NodeT")


class RunAllocations(ABC, Generic[SchedulerRunT, SeenT]):
    """The declared nodes, and our runs on them; *seen* is what the other system shows of itself."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.kept: Callable[[int], int] = lambda _: 0
        """GPUs of a node that are kept for model servers which are not there yet."""
        self._on: list[list[SchedulerRunT]] = [[] for _ in cluster.names]

    @abstractmethod
    def usable(self, n: int, seen: SeenT) -> int:
        """GPUs of node *n* that our runs may have, those they have included."""

    def enter(self, run: SchedulerRunT) -> None:
        """A run is on its nodes from now on."""
        run.there = True
        for n in set(run.spec.nodes) - run.released.keys():
            self._on[n].append(run)

    def leave(self, run: SchedulerRunT) -> None:
        """A run is off its nodes."""
        run.there = False
        self.release(run, set(run.spec.nodes) - run.released.keys())

    def release(self, run: SchedulerRunT, nodes: Collection[int]) -> None:
        """A run is off some of its nodes, and still on others."""
        for n in nodes:
            self._on[n].remove(run)

    def specs(self, n: int) -> list[RunSpec]:
        """Return the specs of the runs on node *n*, without those that are over, or have yet to come."""
        return [run.spec for run in self._on[n] if not (run.charged or run.pending)]

    def own(self, n: int) -> int:
        """Return how many GPUs of node *n* our runs have."""
        return sum(run.spec.gpus_per_node for run in self._on[n])

    def detached(self, n: int) -> int:
        """Return how many GPUs of node *n* runs have that the controller takes for gone."""
        return sum(run.spec.gpus_per_node for run in self._on[n] if run.detached)

    def free(self, n: int, seen: SeenT) -> int:
        """Return how many GPUs of node *n* are free for our runs."""
        return self.usable(n, seen) - self.own(n) - self.kept(n)

    def check(self, command: Start, seen: SeenT) -> None:
        """Raise ``EngineError`` if a node has too few free GPUs for *command*."""
        for n in command.nodes:
            check_free(command, self._cluster.names[n], self.free(n, seen))


class SchedulerEngine(RecordedEngine[SchedulerRunT]):
    """An engine over another system that says what runs and what is over."""

    _allocations: RunAllocations[SchedulerRunT, Any]

    @abstractmethod
    def _run_of(self, folder: RunFolder, spec: RunSpec) -> SchedulerRunT:
        """Return the run with these records."""

    def recorded_runs(self) -> Sequence[RecordedRun]:
        """Return every job ever started here."""
        running = {handle: run.spec for handle, run in self._runs.items() if self._end_of(run) is None}
        return self._history.recorded_runs(running)

    def evict_unplaced(self, *, dry: bool) -> Collection[int]:
        """Stop runs on nodes the configuration does not have (any more); in a *dry* run they keep running."""
        unplaced = [handle for handle, run in self._runs.items() if not run.spec.nodes and run.folder.end() is None]
        if not dry:
            self.request_stop(unplaced)
            for handle in unplaced:
                stopped, cause = self._stop(handle), "its place is not in the configuration any more"
                self._changes.append(JobInterrupted(handle, self._now_s(), stopped.lost_s, cause))
        return unplaced

    def prune(self, handles: Collection[int], *, aside: bool = False) -> None:
        """Delete the records of jobs that do not run, or move all their files *aside*."""
        for handle in set(handles) & self._runs.keys():
            if self._end_of(self._runs[handle]) is not None:
                self._vacate(handle)
        super().prune(handles, aside=aside)

    def _specs_on(self, n: int) -> Iterable[RunSpec]:
        return self._allocations.specs(n)

    def _enter(self, run: SchedulerRunT) -> None:
        self._runs[run.spec.handle] = run
        self._allocations.enter(run)

    def _vacate(self, handle: int) -> None:
        run = self._runs.pop(handle)
        if run.there:
            self._meter(run.spec.nodes)
            self._allocations.leave(run)

    def _charge_until_over(self, over: Iterable[tuple[float, SchedulerRunT]]) -> None:
        """Close the readings of runs when they were *over*; they keep their GPUs until it is known how they ended."""
        for at_s, run in sorted(over, key=lambda one: one[0]):
            for n in run.spec.nodes:
                waking, asleep = self._power_state(n)
                self._meters.close(n, self._holders(n), waking=waking, asleep=asleep, at_s=at_s)
            run.charged = True

    def _release(self, run: SchedulerRunT, left: Mapping[int, float]) -> None:
        """Take a run off nodes that it has *left*, by when it has."""
        for n, at_s in left.items():
            waking, asleep = self._power_state(n)
            self._meters.close(n, self._holders(n), waking=waking, asleep=asleep, at_s=at_s)
        if left:
            self._allocations.release(run, left.keys())
            run.note_left(left)

    def _charge_between(self, run: SchedulerRunT, since_s: float | None, until_s: float | None = None) -> None:
        """Charge a run that was pending for what it has had since, which its nodes' kept readings do not say.

        From now on if since when is not known, and until now if it is not over.
        """
        self._meter(run.spec.nodes)
        if since_s is None or run.spec.handle >= FIRST_SERVER:  # model servers are holders from when they are ordered
            return
        for n in run.spec.nodes:
            (holder,) = holders_of(self._cluster, n, [run.spec])
            self._meters.amend(n, holder, since_s, math.inf if until_s is None else until_s)

    def _take_over(self, since: Since, asleep: Collection[int] = ()) -> None:
        """Take over the runs of an earlier engine: those that ended unnoticed are reported.

        A run whose end is on record is charged until then, and counts as off its nodes. *asleep* are the nodes that
        were asleep meanwhile.
        """
        spans: list[tuple[float, float, RunSpec]] = self._service_spans()
        unseen: set[int] = set()
        last: dict[int, tuple[SchedulerRunT, float]] = {}
        for folder, ordered in RunFolder.all_in(self._state / "runs"):
            run = self._run_of(folder, ordered.placed(self._cluster.names))
            ended_s = run.ended_s()
            run.recall_left()
            there = tuple(n for n in run.spec.nodes if n not in run.released)
            spans.append((run.spec.started_s, ended_s, replace(run.spec, nodes=there)))
            for n, at_s in run.released.items():
                spans.append((run.spec.started_s, min(at_s, ended_s), replace(run.spec, nodes=(n,))))
            last[run.spec.handle] = run, ended_s
            unseen |= set(there) if ended_s == math.inf and run.ends_unseen else set()
        catch_up(self._meters, self._cluster, since, spans, asleep, unseen)
        for handle, (run, ended_s) in last.items():
            self._history.add(run.spec)
            self._reports.add(run.spec)
            self._runs[handle] = run
            if ended_s == math.inf:
                self._allocations.enter(run)


def command_each(nodes: Iterable[NodeT], command: Callable[[NodeT], None]) -> None:
    """Give a *command* for each of *nodes*.

    Raises ``EngineError`` if one is refused, after the others are done, and ``EngineDownError`` at once.
    """
    refused: EngineError | None = None
    for node in nodes:
        try:
            command(node)
        except EngineDownError:
            raise
        except EngineError as error:
            refused = refused or error
    if refused is not None:
        raise refused
