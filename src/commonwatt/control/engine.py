"""The interface between the controller and the place where work runs, and time.

An engine executes commands, reports what changed since the last poll, and reads its meters. Jobs are named by *handle*,
the number the controller gave them; nodes by their index in the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.model.jobs import JobArrays

__all__ = [
    "Capabilities",
    "Change",
    "Clock",
    "Command",
    "Engine",
    "Holder",
    "JobEnded",
    "JobInterrupted",
    "JobLeft",
    "JobProgress",
    "JobSource",
    "LiveEngine",
    "MeterMark",
    "NodeRoom",
    "NodeView",
    "Outcome",
    "Reading",
    "RecordedRun",
    "SetPower",
    "Start",
    "Stop",
    "Stopped",
]


@dataclass(frozen=True)
class Capabilities:
    """What an engine can do; nobody asks it for more.

    Attributes
    ----------
    preempt
        Running jobs can be stopped and started again.
    gangs
        A job can run on several nodes.
    energy
        Readings carry energy; without, they only say who had which GPUs.
    power_states
        Nodes can be put to sleep and woken.
    deferred_stop
        Jobs can be asked to stop without anybody waiting for it (``request_stop``, ``has_room``).
    stop_s
        How long a job that was asked to stop may take to leave its nodes.
    drain
        It has a scheduler of its own, which can be kept off nodes (``drain``).
    prune
        Its records of past runs can be deleted (``prunable``, ``prune``).
    measures_shared
        It measures who uses a shared GPU (``busy`` of ``SharingEngine``).
    """

    preempt: bool
    gangs: bool
    energy: bool
    power_states: bool = False
    deferred_stop: bool = False
    stop_s: float = 0.0
    drain: bool = False
    prune: bool = False
    measures_shared: bool = False


@dataclass(frozen=True)
class Start:
    """Run a job, from its last checkpoint if it has one, on equally many GPUs of each of *nodes*.

    *power_limit* is that of its GPUs, as a part of their highest. *beside* is another job, by handle, with which it has
    the same GPUs: those it has, or will have if it does not run yet. Only simulated clusters do that.
    """

    handle: int
    name: str
    nodes: tuple[int, ...]
    gpus_per_node: int
    power_limit: float = 1.0
    beside: int | None = None


@dataclass(frozen=True)
class Stop:
    """Take a running job off its nodes; it can be started again from its last checkpoint."""

    handle: int


@dataclass(frozen=True)
class SetPower:
    """Put an unused node into the low-power state called *state*, or wake it if that is ``None``.

    A node that is in that state already stays there. A node that is in use or waking cannot be put to sleep.
    """

    node: int
    state: str | None


Command = Start | Stop | SetPower


@dataclass(frozen=True)
class Stopped:
    """Answer to ``Stop``: how many seconds of work since the last checkpoint are lost.

    Seconds in which another job had the same GPUs count half, here and wherever work is lost.

    With *later*, the job is terminating: a ``JobLeft`` reports when it is off its nodes, and what it lost. If it had
    not *begun*, its command never ran there.
    """

    handle: int
    lost_s: float
    later: bool = False
    begun: bool = True

    @property
    def final_lost_s(self) -> float | None:
        """Seconds of work that are lost; ``None`` while the job is terminating, when that is not known yet."""
        return None if self.later else self.lost_s


class Outcome(StrEnum):
    """How a job ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"  # in the engine, by somebody else


@dataclass(frozen=True)
class JobEnded:
    """A job will not run again; *cause* says why in words, *reason* is typed, each where it is known.

    If it *waited*, nothing of it ran: others have ended it.
    """

    handle: int
    at_s: float
    outcome: Outcome
    cause: str = ""
    reason: str = ""
    waited: bool = False


@dataclass(frozen=True)
class JobInterrupted:
    """A job lost its nodes though no stop was requested; it can be started again from its last checkpoint.

    If it had not *begun*, its command never ran there, and the job is not at fault. If it is not *blamed*, neither: who
    had admitted it to the engine has made it wait again. What it used is *paid* by its tenant, and is no loss of the
    site's, if its command failed by itself and is tried again, or its owner took it away.
    """

    handle: int
    at_s: float
    lost_s: float
    cause: str
    begun: bool = True
    blamed: bool = True
    paid: bool = False


@dataclass(frozen=True)
class JobLeft:
    """A terminating job is off its nodes, and can start again from its last checkpoint. *begun* as of ``Stopped``."""

    handle: int
    at_s: float
    lost_s: float
    begun: bool = True


Change = JobEnded | JobInterrupted | JobLeft


@dataclass(frozen=True)
class JobProgress:
    """Work done by jobs: epochs now, epochs a restart would begin from, seconds until work (re)starts.

    ``reported_s`` is when each job reported its epochs, NaN where it did not; absent: they are as of now.
    """

    done_epochs: Floats
    kept_epochs: Floats
    until_work_s: Floats
    reported_s: Floats | None = None


@dataclass(frozen=True)
class NodeView:
    """Nodes as they are now. Shapes [N].

    Attributes
    ----------
    usable_gpus
        GPUs our jobs may have, those they have included; 0 where the node is down, drained, or used by others.
    wait_s
        Seconds until a node that is not on could run a job: one asleep, if it were woken now.
    power_state
        Index into the states of its class; -1: on, waking or down.
    in_use
        Whether anybody uses it, so that it cannot be put to sleep; ``None``: our own jobs only.
    up
        Whether it is not down; ``None``: those with usable GPUs are up.
    """

    usable_gpus: Ints
    wait_s: Floats
    power_state: Ints
    in_use: Bools | None = None
    up: Bools | None = None


@dataclass(frozen=True)
class NodeRoom:
    """What nodes have beside GPUs, such as CPUs, and what configurations of jobs take of it.

    Attributes
    ----------
    resources
        Names, [R]: as Kubernetes calls them. The last *conditions* of them are conditions of a node: a job that it
        does not admit needs 1, of which the node has none.
    left
        What our jobs may have of each node, what they have included; infinity: not limited. Memory and storage in GiB.
        Shape [N, R].
    needs
        What each of the configurations takes of each of its nodes, that were asked for. Shape [C, R].
    most
        What of each node anybody may have, infinity where that is not known, or is a condition; ``None``: not known.
        Shape [N, R].
    """

    resources: tuple[str, ...]
    left: Floats
    needs: Floats
    conditions: int = 0
    most: Floats | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """A job on a metered node: its GPUs there, their power, and when it began (or will begin) to work.

    *beside* is another job with the same GPUs, by handle. Each of the two has half of their time, and its own part of
    their power.
    """

    handle: int
    gpus: int
    gpu_w: float
    work_from_s: float
    beside: int | None = None

    @property
    def counted_gpus(self) -> int:
        """Its GPUs, where they are not counted with the job beside it."""
        return 0 if self.beside is not None and self.beside < self.handle else self.gpus

    def gpu_us(self, length_us: int) -> int:
        """Return its part of the time of its GPUs over *length_us* microseconds; the parts of two add up to all."""
        whole_us = self.gpus * length_us
        return whole_us if self.beside is None else (whole_us + (self.handle < self.beside)) // 2


@dataclass(frozen=True, slots=True)
class Reading:
    """Energy of one node over a time in which no job came or left.

    ``energy_uj`` is in microjoules, ``None`` if it was not measured. ``waking`` marks time spent changing power state,
    ``asleep`` time spent in a low-power state.
    """

    node: int
    from_s: float
    to_s: float
    energy_uj: int | None
    holders: tuple[Holder, ...]
    waking: bool = False
    asleep: bool = False


class MeterMark(NamedTuple):
    """When a node was read last, what its meter said then, joules, and whether it was asleep."""

    read_s: float
    read_j: float | None = None
    asleep: bool = False


@dataclass(frozen=True)
class RecordedRun:
    """A job an engine has records of: how often it was started, and where it runs; no nodes if it does not.

    *mark* is that of its ``JobWork``, which tells it from another job of the same number; empty if unknown.
    """

    handle: int
    attempts: int
    nodes: tuple[int, ...]
    gpus_per_node: int
    mark: str = ""


class Clock(Protocol):
    """Time, virtual or real."""

    def now_s(self) -> float:
        """Current time."""
        ...

    def wait_until(self, time_s: float) -> None:
        """Return at *time_s*, or earlier, as soon as the engine has something to report."""
        ...


class Engine(Protocol):
    """Where work runs."""

    capabilities: Capabilities

    def nodes(self) -> NodeView:
        """State of the nodes."""
        ...

    def progress(self, handles: Ints) -> JobProgress:
        """Progress of jobs; 0 for a job that was never started."""
        ...

    def poll(self) -> Sequence[Change]:
        """What changed since the last poll, in order."""
        ...

    def apply(self, commands: Sequence[Command]) -> Sequence[Stopped]:
        """Execute *commands* in order and answer each ``Stop``; raises ``EngineError`` on one that is impossible."""
        ...

    def readings(self, *, up_to_now: bool = False) -> Sequence[Reading]:
        """Readings closed since the last call; with *up_to_now*, also those still open, up to this moment."""
        ...

    def power_w(self) -> float | None:
        """Power of the whole cluster now; ``None`` if it has no meters."""
        ...


class LiveEngine(Engine, Protocol):
    """An engine in real time, which remembers what was started when the controller that started it is gone.

    Engines inherit from it: what an engine need not do does nothing here. ``capabilities`` says what it does do.
    """

    def recorded_runs(self) -> Sequence[RecordedRun]:
        """Return every job ever started.

        Running jobs go on. The end of each other job's last run comes with the next ``poll``, whether or not it was
        reported before: only the store of a controller knows that.
        """
        ...

    def measured_w(self) -> Floats | None:
        """Return what each node draws as it is measured, W, shape [N]; ``None``: only energy is, or nothing."""
        return None

    def attempts(self, handle: int) -> int:
        """How often a job was ordered to run, also in vain, if that left a record."""
        ...

    def start_all(self, starts: Sequence[Start], guard: Callable[[], None]) -> Sequence[EngineError | None]:
        """Start jobs, *guard* called before each or before a few; returns what refused each, ``None``: nothing did.

        After an ``EngineDownError`` no more need be tried: the answer is then shorter than *starts*. Raises what
        *guard* raises.
        """
        errors: list[EngineError | None] = []
        for start in starts:
            guard()
            try:
                self.apply([start])
            except EngineDownError as error:
                return [*errors, error]
            except EngineError as error:
                errors.append(error)
            else:
                errors.append(None)
        return errors

    def wait(self, seconds: float, waker: int = -1) -> None:
        """Return after so long, as soon as there is something to report, or when the descriptor *waker* is readable."""
        ...

    def close(self) -> None:
        """Release what this process has open; running jobs go on."""
        return

    def marks(self) -> Mapping[int, MeterMark]:
        """Return how each node's meter was read last: for the engine after this one."""
        return {}

    def request_stop(self, handles: Collection[int]) -> Collection[int]:  # noqa: ARG002
        """Ask jobs to stop, again if need be; returns those that will.

        ``poll`` then reports that they were interrupted, or how they ended. The others have to be stopped by command.
        """
        return ()

    def has_room(self, nodes: Collection[int], gpus_per_node: int, job: int | None = None) -> bool:  # noqa: ARG002
        """Whether so many GPUs of each of *nodes* are free at this moment, and what else *job* takes there."""
        return True

    def room(self, jobs: Sequence[tuple[int, str, int]]) -> NodeRoom | None:  # noqa: ARG002
        """Return what nodes have beside GPUs, and what *jobs* take: handle, name, and GPUs on each node.

        ``None``: the engine does not know, and GPUs alone count, with what is declared. Raises ``EngineError``.
        """
        return None

    def evict_unplaced(self, *, dry: bool) -> Collection[int]:  # noqa: ARG002
        """Stop runs of an earlier engine in places the configuration does not have (any more); returns their jobs.

        ``poll`` reports them as interrupted. In a *dry* run they go on.
        """
        return ()

    def drain(self, nodes: Collection[int]) -> None:  # noqa: ARG002
        """Let nobody start new jobs on exactly these nodes; drains that others have set stay.

        Raises ``EngineError`` if that is refused.
        """
        return

    def prunable(self) -> Sequence[int]:
        """Return the jobs that do not run and have records."""
        return ()

    def prune(self, handles: Collection[int], *, aside: bool = False) -> None:  # noqa: ARG002
        """Delete the records of jobs that do not run, or move them *aside*; their numbers are then free."""
        return


class JobSource(Protocol):
    """Where submissions come from: a job log, people."""

    def next_s(self) -> float | None:
        """When the next submission comes; ``None`` if none is known."""
        ...

    def poll(self, now_s: float) -> tuple[JobArrays, Ints] | None:
        """Submissions up to *now_s* that were not returned before: a table and rows in it."""
        ...
