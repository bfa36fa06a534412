"""Capacity plans of a controller: the planner's decisions become commands to the engine, and are counted.

A waiting job that fits no free GPUs of nodes that are on has nodes woken for it. Drained and cordoned nodes keep their
state, and count only as far as their GPUs are allocated.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from commonwatt.capacity import CapacityPlanner, NodePowers
from commonwatt.control.engine import NodeView, SetPower
from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.demand import Arrivals
from commonwatt.placement import POSTPONED, PlacementProblem, Schedule

__all__ = ["Capacity", "CapacityTally", "KnownJobs", "only_held", "only_on"]


class KnownJobs(Protocol):
    """Jobs whose time is known before they come: begin times, reservations."""

    def coming(self, now_s: float, until_s: float) -> tuple[Floats, Ints]:
        """Return when jobs come that are known at *now_s* and come after it, up to *until_s*, and their GPUs. [K]."""
        ...


@dataclass
class CapacityTally:
    """Counts of what the plans did.

    Attributes
    ----------
    steps, served
        Plans made, and those at which the GPUs on sufficed for the demand of that instant.
    fallback
        Plans that kept everything on because no promise could be made.
    wakes
        Wake commands.
    started
        Jobs that were placed, by handle.
    delays_s
        Time each delayed job waited for nodes to wake, by handle.
    """

    steps: int = 0
    served: int = 0
    fallback: int = 0
    wakes: int = 0
    started: set[int] = field(default_factory=set)
    delays_s: dict[int, float] = field(default_factory=dict)


def only_on(view: NodeView) -> NodeView:
    """Return *view* for placement: sleeping nodes have no usable GPUs."""
    return replace(view, usable_gpus=np.where(view.power_state >= 0, 0, view.usable_gpus))


def only_held(view: NodeView, nodes: Collection[int], held: Ints) -> NodeView:
    """Return *view* with the usable GPUs of *nodes* limited to those allocated there, *held*. Shape [N]."""
    usable, some = view.usable_gpus.copy(), sorted(nodes)
    usable[some] = np.minimum(usable, held)[some]
    return replace(view, usable_gpus=usable)


class Capacity:
    """Carries out the plans of *planner*, step by step.

    Attributes
    ----------
    known
        Tells which jobs are known to come; ``None``: none are.
    """

    def __init__(self, planner: CapacityPlanner) -> None:
        self._planner = planner
        self.tally = CapacityTally()
        self.renew_s = math.inf  # when its maker should build it again, with the demand observed by then
        self.known: KnownJobs | None = None
        self._waits_since: dict[int, float] = {}
        self._counted: int | None = None  # jobs whose arrival was observed
        self._later: set[int] = set()  # jobs whose time has not come, by handle
        self._came: list[tuple[int, int]] = []  # GPUs, and demand met, of jobs since the last plan

    @property
    def next_s(self) -> float | None:
        """When the next plan is due; ``None`` before the first."""
        return self._planner.next_s

    def plan(
        self,
        now_s: float,
        view: NodeView,
        busy: Bools,
        held_gpus: int,
        wanted_gpus: int,
        asked_gpus: Ints | None = None,
        not_yet: Set[int] = frozenset(),
        active: Set[int] = frozenset(),
    ) -> list[SetPower]:
        """Return the commands at *now_s*, if a plan is due.

        Parameters
        ----------
        view
            The nodes.
        busy
            Nodes in use, by jobs or by others. Shape [N].
        held_gpus, wanted_gpus
            GPUs allocated to jobs, and those plus what waiting jobs ask for.
        asked_gpus
            What every job so far asked for, in order of submission: the new ones among them are this tick's arrivals.
        not_yet
            Jobs whose time has not come, by index into *asked_gpus*: they arrive when it has.
        active
            Jobs that have not ended: one cancelled before its time never arrives.
        """
        if asked_gpus is not None:
            self._observe(asked_gpus, wanted_gpus, not_yet, active)
        nodes = NodePowers(view.usable_gpus, view.power_state, view.wait_s, busy)
        plan = self._planner.plan(now_s, nodes, held_gpus, wanted_gpus, self._arrivals(), self._due(now_s))
        if plan is None:
            return []
        self._came.clear()
        self.tally.steps += 1
        self.tally.served += plan.served
        self.tally.fallback += not plan.kept
        self.tally.wakes += sum(state is None for _, state in plan.changes)
        return [SetPower(node, state) for node, state in plan.changes]

    def _observe(self, asked_gpus: Ints, wanted_gpus: int, not_yet: Set[int], active: Set[int]) -> None:
        """Note the jobs that came since the last tick; those there before the first one count as known."""
        first = len(asked_gpus) if self._counted is None else self._counted
        self._counted = len(asked_gpus)
        new = [
            *sorted((self._later - not_yet) & active),
            *(j for j in range(first, len(asked_gpus)) if j not in not_yet),
        ]
        self._later = set(not_yet)
        behind = int(asked_gpus[new].sum())
        for gpus in asked_gpus[new].tolist():
            behind -= gpus
            self._came.append((gpus, wanted_gpus - behind))

    def _due(self, now_s: float) -> Floats | None:
        """GPUs of jobs known to come by the end of each step ahead, [m]; ``None`` if none is known."""
        if self.known is None or (self.next_s is not None and now_s < self.next_s - 1e-6):
            return None
        ends_s = now_s + self._planner.steps_s
        times_s, gpus = self.known.coming(now_s, float(ends_s[-1]))
        if not len(times_s):
            return None
        return (times_s[None, :] <= ends_s[:, None] + 1e-6).astype(float) @ gpus

    def _arrivals(self) -> Arrivals:
        gpus, met = np.array(self._came, dtype=float).reshape(-1, 2).T
        return Arrivals(np.zeros(len(gpus), dtype=np.int64), gpus, met)

    def rescue(
        self, problem: PlacementProblem, schedule: Schedule, handles: Ints, view: NodeView, now_s: float
    ) -> list[SetPower]:
        """Return the sleeping nodes to wake for jobs that fit on no nodes that are on."""
        asleep = np.flatnonzero((view.power_state >= 0) & (view.usable_gpus > 0))
        waiting = np.flatnonzero((schedule.choice == POSTPONED) & (problem.stay < 0))
        if not len(asleep) or not len(waiting):
            return []
        free = _free(problem, schedule)
        left = dict.fromkeys(asleep[np.argsort(view.wait_s[asleep], kind="stable")].tolist())
        woken: list[int] = []
        for j in waiting:
            row = _row(problem, int(j))
            klass, width, each = int(problem.klass[row]), int(problem.width[row]), int(problem.per_node[row])
            roomy = np.flatnonzero((self._planner.cluster.klass == klass) & (free >= each))[:width]
            more = [n for n in left if self._planner.cluster.klass[n] == klass][: width - len(roomy)]
            if len(roomy) + len(more) < width:
                continue
            for n in more:
                del left[n]
                free[n] = view.usable_gpus[n]
            free[[*roomy, *more]] -= each
            if more:
                woken += more
                self._waits_since.setdefault(int(handles[j]), now_s)
        self.tally.wakes += len(woken)
        return [SetPower(n, None) for n in woken]

    def started(self, handle: int, nodes: Sequence[int], view: NodeView, now_s: float) -> None:
        """Count the delay of a job placed on *nodes* that waited, or has to wait, for nodes to wake."""
        self.tally.started.add(handle)
        wait_s = max(float(view.wait_s[n]) for n in nodes)
        since_s = self._waits_since.pop(handle, now_s)
        if wait_s > 0 or since_s < now_s:
            delayed_s = now_s + wait_s - since_s
            self.tally.delays_s[handle] = self.tally.delays_s.get(handle, 0.0) + delayed_s


def _free(problem: PlacementProblem, schedule: Schedule) -> Ints:
    """GPUs that *schedule* leaves free on the nodes of *problem*. Shape [N]."""
    free = problem.node_gpus.copy()
    for j in np.flatnonzero(schedule.choice != POSTPONED):
        np.subtract.at(free, schedule.nodes_of(problem, j), problem.per_node[schedule.choice[j]])
    return free


def _row(problem: PlacementProblem, j: int) -> int:
    """Return the configuration a waiting job asked for, else its smallest."""
    rows = np.arange(problem.start[j], problem.start[j + 1])
    asked = rows[problem.asked[rows]]
    if len(asked):
        return int(asked[0])
    return int(rows[np.argmin(problem.width[rows] * problem.per_node[rows])])
