"""Jobs of several nodes are near each other in the network, as far as that costs nothing. Ours.

Solvers take any nodes of a class. Nodes are equal to a decision if they have the same class, the same GPUs, CPUs and
memory left, are ready at the same time, and what runs there, if anything, ends at the same times at the same cost.
Which of them a job gets changes neither its end nor any cost. So what a decision starts on equal nodes is exchanged
between them, the widest jobs first:

- a job takes the narrowest domain that has all its nodes, of several the one with the fewest to give; if none has, it
  takes the one with the most, and the rest in the same way (best fit, as tree topologies of schedulers have it);
- jobs of one node that start on empty nodes go where the fewest such nodes are left, so that whole domains stay free.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.optimize import ranked
from commonwatt.placement._problem import POSTPONED, PlacementProblem, Schedule
from commonwatt.placement.guarantees._cpus_memory import left_by

__all__ = ["in_few_domains"]


def in_few_domains(problem: PlacementProblem, schedule: Schedule) -> Schedule:
    """Return *schedule* with what it starts on other nodes, equal to those it chose, in the fewest domains.

    Without ``node_domain``, and where jobs share GPUs, nothing is changed. What runs stays where it is.
    """
    if problem.node_domain is None or schedule.packed().any():
        return schedule
    starts = _starts(problem, schedule)
    if not starts.any():
        return schedule
    return _Exchange(problem, schedule, starts, problem.node_domain).schedule()


def _starts(problem: PlacementProblem, schedule: Schedule) -> Bools:
    """Jobs that begin on nodes that may be others, [J]: not those that only move, as some may come back to theirs."""
    starts: Bools = (schedule.choice != POSTPONED) & (schedule.choice != problem.stay)
    for job in np.flatnonzero(starts & (problem.stay >= 0)).tolist():
        starts[job] = not problem.alike(int(schedule.choice[job]), int(problem.stay[job]))
    return starts


class _Exchange:
    """Exchanges what starts on equal nodes."""

    def __init__(self, problem: PlacementProblem, schedule: Schedule, starts: Bools, domain: Ints) -> None:
        self.problem, self.choice, self.nodes, self.domain = problem, schedule.choice, schedule.nodes.copy(), domain
        self.wanted = schedule
        rest = Schedule(np.where(starts, POSTPONED, schedule.choice), schedule.nodes)
        self.free = rest.free_gpus(problem)
        self.group = self._groups(rest)
        self.settled = np.zeros(len(self.free), dtype=bool)
        if schedule.reservation is not None:  # what starts there ends in time, or leaves that node enough
            self.settled[schedule.reservation.nodes] = True
        self.slots: dict[int, list[int]] = {}  # of jobs that start on each node: indices of ``nodes``
        self.width = np.where(starts, problem.width[schedule.choice], 0)
        for job in np.flatnonzero(starts).tolist():
            first = int(problem.slot_start[job])
            for slot in range(first, first + int(self.width[job])):
                self.slots.setdefault(int(self.nodes[slot]), []).append(slot)

    def _groups(self, rest: Schedule) -> Ints:
        """Number the groups of equal nodes beside what is not exchanged, *rest*, [N]."""
        problem = self.problem
        columns: list[Any] = [problem.node_class, problem.node_gpus, self.free, problem.node_wait_s, *self._ends(rest)]
        if problem.guarantees is not None and problem.guarantees.closed is not None:
            columns.append(problem.guarantees.closed)
        if problem.background is not None:
            columns.append(problem.background.on_s)
        if problem.cpus_memory is not None and problem.node_cpus_memory is not None:
            left = left_by(problem, rest, problem.cpus_memory.astype(float), problem.node_cpus_memory.astype(float))
            columns += list(np.round(left, 6).T)
        return np.unique(np.column_stack(columns).astype(float), axis=0, return_inverse=True)[1].reshape(-1)

    def _ends(self, rest: Schedule) -> tuple[Floats, Floats, Floats]:
        """When the first and the last job of *rest* end on each node, and what the first costs there, [N] each."""
        problem = self.problem
        first_s, last_s, cost = np.full((3, len(self.free)), -1.0)
        node, _ = rest.occupancy(problem)
        rows = rest.choice[rest.choice != POSTPONED]
        row = np.repeat(rows, problem.width[rows])
        order = ranked(node, problem.time_s[row], problem.row_job[row])
        node, row = node[order], row[order]
        there, first = np.unique(node, return_index=True)
        first_s[there], cost[there] = problem.time_s[row[first]], problem.node_cost[row[first]]
        np.maximum.at(last_s, node, problem.time_s[row])
        return first_s, last_s, cost

    def schedule(self) -> Schedule:
        gpus = self.width * self.problem.per_node[self.choice]
        wide = np.flatnonzero(self.width > 1)
        for job in wide[ranked(-self.width[wide], -gpus[wide])].tolist():
            first = int(self.problem.slot_start[job])
            own = self.nodes[first : first + int(self.width[job])].copy()
            if self.settled[own].any():  # reserved nodes, or those of a wider job that has its place
                continue
            self._move(own, self._near(own))
            self.settled[self.nodes[first : first + int(self.width[job])]] = True
        self._fill()
        return replace(self.wanted, nodes=self.nodes)

    def _near(self, own: Ints) -> Ints:
        """Return nodes equal to *own* in the fewest domains, as many of each group."""
        groups, need = np.unique(self.group[own], return_counts=True)
        there = np.flatnonzero(np.isin(self.group, groups) & ~self.settled)
        kept = np.isin(there, own)
        there = there[ranked(~kept)]  # of equal ones in a domain, those it has
        return np.sort(self._chosen(there, np.searchsorted(groups, self.group[there]), need, 0))

    def _chosen(self, there: Ints, group: Ints, need: Ints, level: int) -> Ints:
        """Return *need* ([groups]) of the nodes *there*, whose groups are *group*, by the domains from *level* down."""
        levels = self.domain.shape[1]
        for narrow in range(levels - 1, level - 1, -1):
            inside, has = self._inside(there, group, narrow, len(need))
            whole = np.flatnonzero((has >= need).all(axis=1))
            if len(whole):
                best = inside == whole[int(np.argmin(has[whole].sum(axis=1)))]
                there, group, level = there[best], group[best], narrow + 1
                break
        if level == levels:
            return np.concatenate([there[group == g][:count] for g, count in enumerate(need.tolist())])
        inside, has = self._inside(there, group, level, len(need))
        chosen, need = [], need.copy()
        while need.any():  # no domain of this level has all
            gives = np.minimum(has, need)
            best_one = int(ranked(-gives.sum(axis=1), has.sum(axis=1))[0])
            part = inside == best_one
            chosen.append(self._chosen(there[part], group[part], gives[best_one], level + 1))
            need -= gives[best_one]
            has[best_one] = 0
        return np.concatenate(chosen)

    def _inside(self, there: Ints, group: Ints, level: int, groups: int) -> tuple[Ints, Ints]:
        """Domain of *level* that each of the nodes *there* is in, and nodes of each group it has, [domains, groups]."""
        _, inside = np.unique(self.domain[there, level], return_inverse=True)
        inside = inside.reshape(-1)
        has = np.zeros((int(inside.max()) + 1, groups), dtype=np.int64)
        np.add.at(has, (inside, group), 1)
        return inside, has

    def _move(self, own: Ints, to: Ints) -> None:
        """Exchange what starts on the nodes *own* that are not among *to* with what starts on the others of *to*."""
        leave, enter = np.setdiff1d(own, to), np.setdiff1d(to, own)
        leave, enter = leave[ranked(self.group[leave])], enter[ranked(self.group[enter])]
        for a, b in zip(leave.tolist(), enter.tolist(), strict=True):
            here, there = self.slots.pop(a, []), self.slots.pop(b, [])
            self.nodes[here], self.nodes[there] = b, a
            self.slots |= {n: slots for n, slots in ((b, here), (a, there)) if slots}

    def _fill(self) -> None:
        """Move what starts on empty nodes to those of the domains with the fewest of them left."""
        problem = self.problem
        empty = (self.free == problem.class_gpus[problem.node_class]) & ~self.settled
        used = np.zeros(len(empty), dtype=bool)
        used[list(self.slots)] = True
        for group in np.unique(self.group[used & empty]).tolist():
            equal = np.flatnonzero(empty & (self.group == group))
            inside = [np.unique(level, return_inverse=True)[1].reshape(-1) for level in self.domain[equal].T]
            left = [np.bincount(level)[level] for level in inside]  # of each level, wide to narrow
            order = ranked(*(key for level in zip(left, inside, strict=True) for key in level))
            own = equal[used[equal]]
            self._move(own, equal[order][: len(own)])
