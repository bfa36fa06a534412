"""What the controller knows of the place where work runs, and of time.

An engine executes commands, reports what changed since it was last asked, and reads its meters. Jobs are known
by *handle*, the number the controller gave them; nodes by their index in the cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.jobs import JobTable

__all__ = [
    "Capabilities",
    "Change",
    "ClearingEngine",
    "Clock",
    "Command",
    "DrainingEngine",
    "Engine",
    "ForgetfulEngine",
    "Found",
    "Holder",
    "JobEnded",
    "JobInterrupted",
    "JobLeft",
    "JobSource",
    "LiveEngine",
    "NodeView",
    "Outcome",
    "PatientEngine",
    "Progress",
    "Reading",
    "RecoverableEngine",
    "SetPower",
    "Start",
    "Stop",
    "Stopped",
]


@dataclass(frozen=True)
class Capabilities:
    """What an engine can do; the controller never asks it for more."""

    preempt: bool
    gangs: bool
    energy: bool  # whether readings carry energy, or only who held what
    power_states: bool = False  # whether nodes can be put to sleep and woken


@dataclass(frozen=True)
class Start:
    """Run a job, from its last snapshot if it has one, on equally many GPUs of each of *nodes*."""

    handle: int
    name: str
    nodes: tuple[int, ...]
    gpus_per_node: int


@dataclass(frozen=True)
class Stop:
    """Take a running job off its nodes; it can be started again from its last snapshot."""

    handle: int


@dataclass(frozen=True)
class SetPower:
    """Put an unused node into the low-power state called *state*, or wake it if that is ``None``.

    A node that is so already stays so. One that is used or still waking cannot be put to sleep.
    """

    node: int
    state: str | None


Command = Start | Stop | SetPower


@dataclass(frozen=True)
class Stopped:
    """Answer to ``Stop``: how many seconds of work since the last snapshot are lost.

    With *later*, the job is still leaving its nodes, and a ``JobLeft`` will tell.
    """

    handle: int
    lost_s: float
    later: bool = False


class Outcome(StrEnum):
    """How a job ended."""

    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True)
class JobEnded:
    """A job will not run again; *cause* says why it ended so in words, *reason* in one, where that is known."""

    handle: int
    at_s: float
    outcome: Outcome
    cause: str = ""
    reason: str = ""


@dataclass(frozen=True)
class JobInterrupted:
    """A job lost its nodes without our asking; it can be started again from its last snapshot.

    If it had not *begun*, its command never ran there, and what went wrong is no doing of its own.
    """

    handle: int
    at_s: float
    lost_s: float
    cause: str
    begun: bool = True


@dataclass(frozen=True)
class JobLeft:
    """A job that was told to stop has left its nodes at last; it can be started again from its last snapshot."""

    handle: int
    at_s: float
    lost_s: float


Change = JobEnded | JobInterrupted | JobLeft


@dataclass(frozen=True)
class Progress:
    """Work done by jobs: epochs now, epochs a restart would begin from, seconds until work (re)starts.

    ``told_s`` is when the epochs done were told, NaN where they were not; absent: they are as of now.
    """

    done_epochs: Floats
    kept_epochs: Floats
    until_work_s: Floats
    told_s: Floats | None = None


@dataclass(frozen=True)
class NodeView:
    """Nodes as they are now: GPUs that may be used and seconds until a node not on could run a job."""

    usable_gpus: Ints  # [N] 0: down, or with others, or closed to jobs
    wait_s: Floats  # [N] for one asleep, if it were woken now; for one waking, what is left
    power_state: Ints  # [N] index into the states of its class; -1: on, waking or down
    in_use: Bools | None = None  # [N] whether others use it, so that it cannot be put to sleep; none if not given
    up: Bools | None = None  # [N] whether it is not down; those with usable GPUs if not given


@dataclass(frozen=True, slots=True)
class Holder:
    """A job on a metered node: its GPUs there, their power, and when it began (or begins) to do useful work."""

    handle: int
    gpus: int
    gpu_w: float
    work_from_s: float


@dataclass(frozen=True, slots=True)
class Reading:
    """Energy of one node over a time in which nobody came or went.

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

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can do."""
        ...

    def nodes(self) -> NodeView:
        """State of the nodes."""
        ...

    def progress(self, handles: Ints) -> Progress:
        """Progress of jobs that were started at least once or not at all (then 0)."""
        ...

    def poll(self) -> Sequence[Change]:
        """What changed since the last poll, in order."""
        ...

    def apply(self, commands: Sequence[Command]) -> Sequence[Stopped]:
        """Execute *commands* in order, answering each ``Stop``; raises ``EngineError`` on one that cannot be."""
        ...

    def readings(self, *, up_to_now: bool = False) -> Sequence[Reading]:
        """Readings closed since the last call; with *up_to_now*, also those still open, up to this moment."""
        ...

    def power_w(self) -> float | None:
        """Power of the whole cluster now; ``None`` if it has no meters."""
        ...


@dataclass(frozen=True)
class Found:
    """A job an engine knows from before: how often it was started, and where it runs, nowhere if it does not.

    *mark* is that of its ``Work``, by which one tells it from another job of the same number; empty if unknown.
    """

    handle: int
    attempts: int
    nodes: tuple[int, ...]
    gpus_per_node: int
    mark: str = ""


class RecoverableEngine(Engine, Protocol):
    """An engine that remembers, when the controller that started its jobs is gone, what was started."""

    def found(self) -> Sequence[Found]:
        """Return every job ever started.

        Those that run go on. The end of each other job's last run comes with the next ``poll``, whether or not anybody
        was told of it before: only the store of a controller knows that.
        """
        ...

    def attempts(self, handle: int) -> int:
        """How often a job was ordered to run, as ``found`` counts: also in vain, if that left a record."""
        ...


class LiveEngine(RecoverableEngine, Protocol):
    """An engine in real time."""

    def wait(self, seconds: float, waker: int = -1) -> None:
        """Return after so long, as soon as there is something to report, or when the descriptor *waker* is readable."""
        ...


@runtime_checkable
class PatientEngine(LiveEngine, Protocol):
    """An engine whose jobs may take their time to stop without anybody having to wait for them."""

    @property
    def stop_s(self) -> float:
        """How long a job that was told may take to be gone."""
        ...

    def tell(self, handles: Collection[int]) -> Collection[int]:
        """Tell jobs to stop, again if need be; returns those that will.

        Of these, ``poll`` says that they were interrupted, or how they ended. The others are to be stopped by command.
        """
        ...

    def room(self, nodes: Collection[int], gpus_per_node: int) -> bool:
        """Whether so many GPUs of each of *nodes* are free at this moment."""
        ...


@runtime_checkable
class ForgetfulEngine(Protocol):
    """An engine whose records would grow without bound if nobody told it what is not needed any more."""

    def remembered(self) -> Sequence[int]:
        """Return the jobs of which it has records and that do not run."""
        ...

    def forget(self, handles: Collection[int], *, aside: bool = False) -> None:
        """Delete the records of jobs that do not run, or only move them *aside*, so that their numbers are free."""
        ...


@runtime_checkable
class ClearingEngine(Protocol):
    """An engine that may find jobs of before where the configuration has no place any more."""

    def clear_out(self, *, dry: bool) -> Collection[int]:
        """Return what runs where there is no place; but in a *dry* run it is stopped, which ``poll`` tells."""


@runtime_checkable
class DrainingEngine(Protocol):
    """An engine with a scheduler of its own, which starts jobs of others, too."""

    def drain(self, nodes: Collection[int]) -> None:
        """Let no new jobs of anybody onto exactly these nodes, as far as that is our doing.

        Raises ``EngineError`` if it refuses.
        """
        ...


class JobSource(Protocol):
    """Where submissions come from: a job log, people."""

    def next_s(self) -> float | None:
        """When the next submission is known to come; ``None`` if none is known."""
        ...

    def poll(self, now_s: float) -> tuple[JobTable, Ints] | None:
        """Submissions up to *now_s* not yet handed out: a table and rows in it."""
        ...
