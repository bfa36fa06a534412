"""The scheduling state of jobs and nodes: what placement may use, and why the rest is left out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import replace
from enum import Flag, auto
from typing import NamedTuple

import numpy as np

from commonwatt.control.engine import NodeView
from commonwatt.model.arrays import Ints

__all__ = ["Allocation", "JobCondition", "NodeCondition", "Scheduling"]


class JobCondition(Flag):
    """What keeps a job out of placement; several may hold at once.

    Attributes
    ----------
    HELD
        Its owner or an operator holds it: it is not started until it is released.
    BACKOFF
        It was interrupted or refused again and again: it is not started for a while.
    UNSCHEDULABLE
        The configuration does not allow what it runs on: a dry run leaves it alone.
    PROFILING
        It is measured on a reserved node, and is not moved.
    DEFERRED
        It can wait, and it is held until a lower price of electricity.
    QUOTA
        Its tenant has as much as it may have: it is not started until something ends, or a period does.
    NOT_YET
        Its time to begin has not come, or it waits for other jobs.
    NO_NODE
        No node has the CPUs, memory or another resource that it needs, even if it were empty.
    NOT_PLACED
        Others place all jobs for now.
    TERMINATING
        A stop was requested, and it is still on its nodes. It may be placed again; it starts once it has left them.
    """

    HELD = auto()
    BACKOFF = auto()
    UNSCHEDULABLE = auto()
    PROFILING = auto()
    QUOTA = auto()
    TERMINATING = auto()
    DEFERRED = auto()
    NOT_YET = auto()
    NO_NODE = auto()
    NOT_PLACED = auto()


class NodeCondition(Flag):
    """What keeps jobs off a node; several may hold at once.

    Attributes
    ----------
    DRAINED
        Nothing new starts there; running jobs stay.
    RESERVED
        It is reserved for profiling: neither placement nor a capacity plan sees it.
    NOT_OURS
        Others place jobs there: placement does not see it, a capacity plan does.
    """

    DRAINED = auto()
    RESERVED = auto()
    NOT_OURS = auto()


class Allocation(NamedTuple):
    """GPUs a job has, over all its nodes."""

    nodes: tuple[int, ...]
    gpus: int


_WAITS_APART = (
    JobCondition.HELD,
    JobCondition.UNSCHEDULABLE,
    JobCondition.BACKOFF,
    JobCondition.DEFERRED,
    JobCondition.QUOTA,
    JobCondition.NOT_YET,
    JobCondition.NO_NODE,
    JobCondition.NOT_PLACED,
)


class Scheduling:
    """Conditions of jobs, by handle, and of nodes, by index; whoever schedules asks here."""

    def __init__(self) -> None:
        self._jobs: dict[JobCondition, set[int]] = {condition: set() for condition in JobCondition}
        self._nodes: dict[NodeCondition, set[int]] = {condition: set() for condition in NodeCondition}
        self._terminating: dict[int, Allocation] = {}

    # -- jobs

    def of_job(self, handle: int) -> JobCondition:
        """Return the conditions of a job."""
        conditions = JobCondition(0)
        for condition, handles in self._jobs.items():
            if handle in handles:
                conditions |= condition
        return conditions

    def jobs(self, condition: JobCondition) -> Set[int]:
        """Return the jobs in one *condition*."""
        return self._jobs[condition]

    def mark(self, handle: int, condition: JobCondition, *, on: bool = True) -> None:
        """Put a job into one *condition*, or (not *on*) take it out."""
        (self._jobs[condition].add if on else self._jobs[condition].discard)(handle)

    def mark_only(self, handles: Iterable[int], condition: JobCondition) -> None:
        """Let exactly these jobs be in one *condition*."""
        self._jobs[condition] = set(handles)

    def forget(self, handle: int) -> None:
        """Drop the conditions of a job that has ended; it may still be terminating."""
        for condition, handles in self._jobs.items():
            if condition is not JobCondition.TERMINATING:
                handles.discard(handle)

    def candidates(self, active: Set[int], running: Set[int]) -> list[int]:
        """Return the jobs placement decides about: of those that wait, all that may start."""
        return sorted(active - (self._waits_apart - running) - self._jobs[JobCondition.PROFILING])

    def left_alone(self, waiting: Set[int], running: Set[int]) -> tuple[Set[int], Set[int]]:
        """Return the *waiting* and the *running* jobs that placement does not decide about."""
        profiling = self._jobs[JobCondition.PROFILING]
        return (self._waits_apart | profiling) & waiting, profiling & running

    @property
    def _waits_apart(self) -> set[int]:
        """Jobs that may not start now if they wait."""
        return set[int]().union(*(self._jobs[condition] for condition in _WAITS_APART))

    def may_start(self, handle: int) -> bool:
        """Whether a waiting job may start now, in a place of its own."""
        return not self.of_job(handle)

    def demands(self, waiting: Set[int]) -> Set[int]:
        """Return those of the *waiting* jobs whose GPUs are wanted: all that start as soon as there is room."""
        kept = (JobCondition.HELD, JobCondition.UNSCHEDULABLE, JobCondition.QUOTA, JobCondition.DEFERRED,
                JobCondition.NOT_YET, JobCondition.NO_NODE, JobCondition.NOT_PLACED)  # fmt: skip
        return waiting - set[int]().union(*(self._jobs[condition] for condition in kept))

    # -- jobs that are still on their nodes

    @property
    def terminating(self) -> Mapping[int, Allocation]:
        """Terminating jobs, with what they still have."""
        return self._terminating

    def terminate(self, handle: int, allocation: Allocation) -> None:
        """Record a requested stop; the job keeps the *allocation* it had at the first request."""
        self._terminating.setdefault(handle, allocation)
        self._jobs[JobCondition.TERMINATING].add(handle)

    def terminated(self, handle: int) -> Allocation | None:
        """Take note that a job is off its nodes; returns what it had, ``None`` if it was not terminating."""
        self._jobs[JobCondition.TERMINATING].discard(handle)
        return self._terminating.pop(handle, None)

    # -- nodes

    def nodes(self, *conditions: NodeCondition) -> set[int]:
        """Return the nodes in any of these *conditions*."""
        return set[int]().union(*(self._nodes[condition] for condition in conditions))

    def set_nodes(self, condition: NodeCondition, nodes: Collection[int]) -> None:
        """Let exactly these nodes be in one *condition*."""
        self._nodes[condition] = set(nodes)

    @property
    def any_closed(self) -> bool:
        """Whether there is a node on which placement starts nothing."""
        return any(self._nodes.values())

    def open(self, view: NodeView, allocated: Ints, *, place: bool = True) -> NodeView:
        """Return *view* without nodes that are reserved, or, to *place* jobs, not ours.

        Of drained nodes, only the GPUs count that jobs have, *allocated*. Shape [N].
        """
        if not self.any_closed:
            return view
        usable, drained = view.usable_gpus.copy(), sorted(self._nodes[NodeCondition.DRAINED])
        usable[drained] = np.minimum(usable, allocated)[drained]
        shut = (NodeCondition.RESERVED, NodeCondition.NOT_OURS) if place else (NodeCondition.RESERVED,)
        usable[sorted(self.nodes(*shut))] = 0
        return replace(view, usable_gpus=usable)

    @property
    def closed_nodes(self) -> set[int]:
        """Nodes on which placement starts nothing."""
        return self.nodes(*NodeCondition)
