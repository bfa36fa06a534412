"""No decision gives jobs more CPUs or memory than a node has, whichever solver takes it. Ours.

Solvers place by GPUs alone. A schedule that overbooks a node's CPUs or memory is taken apart: what runs stays where it
is, unless what it gives way to has all it needs there; and what is to start gets its turn by pressure, where the solver
put it or on other nodes that have all it needs.
The first that finds none gets a reservation, as in EASY backfill (D. Lifka, JSSPP 1995), but of CPUs and memory too:
what starts after it ends before, or leaves it enough. GPUs that come free this way go to jobs that had no room.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Index, Ints
from commonwatt.optimize import ranked
from commonwatt.placement._problem import POSTPONED, PlacementProblem, Schedule
from commonwatt.placement.guarantees._decision import waiting_beside_room

__all__ = ["EXACT", "left_by", "within_cpus_memory"]

EXACT = 1e-6  # CPUs, or GiB: what adding and subtracting may leave


def within_cpus_memory(problem: PlacementProblem, schedule: Schedule) -> Schedule:
    """Return *schedule*, or what can be carried out of it; ``short`` are the jobs that wait for CPUs or memory."""
    if problem.cpus_memory is None or problem.node_cpus_memory is None or not len(problem):
        return schedule
    needs: Floats = np.column_stack((problem.per_node, problem.cpus_memory)).astype(np.float64)
    whole: Floats = np.column_stack((problem.node_gpus, problem.node_cpus_memory)).astype(np.float64)
    if (left_by(problem, schedule, needs, whole) >= -EXACT).all():
        return schedule
    return _Fitting(problem, schedule, needs, whole).schedule()


def left_by(problem: PlacementProblem, schedule: Schedule, needs: Floats, whole: Floats) -> Floats:
    """Return what *schedule* leaves of *whole*, [N, any], where configurations take *needs*, [C, any], of each node."""
    node, _ = schedule.occupancy(problem)
    rows = schedule.choice[schedule.choice != POSTPONED]
    left = whole.copy()
    np.subtract.at(left, node, np.repeat(needs[rows], problem.width[rows], axis=0))
    return left


def _given_way(problem: PlacementProblem, wanted: Schedule, needs: Floats, whole: Floats) -> Schedule:
    """Return what *wanted* does to running jobs and starts where they were, if nodes have room for that, else nothing.

    A job that is stopped for none of these goes on.
    """
    unchanged, running = Schedule.unchanged(problem), problem.stay >= 0
    moved = running & (wanted.choice != problem.stay)
    if not moved.any():
        return unchanged
    homes = [problem.nodes_held(job) for job in np.flatnonzero(moved)]
    freed = np.zeros(len(problem.node_gpus), dtype=bool)
    freed[np.concatenate(homes)] = True
    schedule = replace(unchanged, choice=wanted.choice.copy(), nodes=wanted.nodes.copy())
    left = left_by(problem, schedule, needs, whole)

    def take_out(job: int) -> None:
        left[schedule.nodes_of(problem, job)] += needs[schedule.choice[job]]
        schedule.choice[job] = POSTPONED
        schedule.nodes[problem.slot_start[job] : problem.slot_start[job + 1]] = -1

    starts = np.flatnonzero(~running & (schedule.choice != POSTPONED))
    for job in starts[ranked(problem.pressure_s[starts])].tolist():
        nodes = schedule.nodes_of(problem, job)
        if not freed[nodes].any() or (left[nodes] < -EXACT).any():
            take_out(job)
    for job in np.flatnonzero(moved & (wanted.choice == POSTPONED)).tolist():
        row, nodes = problem.stay[job], problem.nodes_held(job)
        if (left[nodes] >= needs[row] - EXACT).all():
            schedule.choice[job] = row
            schedule.nodes[problem.slot_start[job] : problem.slot_start[job] + len(nodes)] = nodes
            left[nodes] -= needs[row]
    return schedule if (left >= -EXACT).all() else unchanged


@dataclass(frozen=True)
class _Kept:
    """Nodes kept for one job: what others may have of them at that time, beside what it needs."""

    nodes: Ints
    by_s: float
    spare: Floats  # [nodes, 1 + R]


class _Fitting:
    """One schedule under limits of CPUs and memory."""

    def __init__(self, problem: PlacementProblem, wanted: Schedule, needs: Floats, whole: Floats) -> None:
        self.problem, self.wanted, self.needs = problem, wanted, needs
        self.draft = _given_way(problem, wanted, needs, whole)
        self.left = left_by(problem, self.draft, needs, whole)  # GPUs, CPUs and memory, [N, 1 + R]
        self.latest_s: Floats = problem.time_s
        if problem.outcomes is not None:
            self.latest_s = self.latest_s * problem.outcomes.max(axis=1)[problem.row_job]
        self.ends_s: Floats = problem.now_s + self.latest_s  # [C]
        self.rows: Bools = np.ones(len(needs), dtype=bool) if wanted.may_have is None else wanted.may_have
        self.kept: _Kept | None = None
        self.open: Bools = np.ones(len(problem.node_gpus), dtype=bool)
        if wanted.reservation is not None:  # the solver's own, which nothing else may start on
            self.open[wanted.reservation.nodes] = False

    def schedule(self) -> Schedule:
        problem, wanted = self.problem, self.wanted
        short = np.zeros(len(problem), dtype=bool)
        waits = problem.stay < 0
        waits &= self.draft.choice == POSTPONED
        starts = np.flatnonzero(waits & (wanted.choice != POSTPONED))
        roomless = np.flatnonzero(waits & (wanted.choice == POSTPONED) & ~waiting_beside_room(problem, wanted))
        order = np.concatenate(
            (starts[ranked(-problem.pressure_s[starts])], roomless[ranked(-problem.pressure_s[roomless])])
        )
        hopeful = self._hopeful()
        for job in order.tolist():
            row, nodes = self._place(job) if hopeful[job] else (POSTPONED, order[:0])
            if row != POSTPONED:
                self._give(job, row, nodes)
                hopeful = self._hopeful()
            elif wanted.choice[job] != POSTPONED:
                short[job] = True
                self.kept = self.kept or self._reserved(job)
        schedule = replace(wanted, choice=self.draft.choice, nodes=self.draft.nodes)
        return replace(schedule, short=short if short.any() else None)

    def _hopeful(self) -> Bools:
        """Jobs with a configuration that may fit, by the most of everything that a node of its class has left, [J]."""
        problem, most = self.problem, np.full((len(self.problem.class_gpus), self.needs.shape[1]), -np.inf)
        np.maximum.at(most, problem.node_class[self.open], self.left[self.open])
        fits: Bools = np.asarray((self.needs <= most[problem.klass] + EXACT).all(axis=1))
        wished = self.wanted.choice[self.wanted.choice != POSTPONED]
        fits[wished] = True  # they may be where nothing else may start
        return np.asarray(np.bincount(problem.row_job[fits], minlength=len(problem)) > 0)

    def _own(self, job: int) -> Ints:
        """Configurations *job* may start in, those it would rather have first."""
        problem, wish = self.problem, int(self.wanted.choice[job])
        own = np.arange(problem.start[job], problem.start[job + 1])
        own = own[self.rows[own] | (own == wish)]
        late = self.ends_s[own] >= problem.due_s[job]
        order = ranked(own != wish, late, np.where(late, problem.time_s[own], problem.run_cost[own]))
        return np.asarray(own[order])

    def _place(self, job: int) -> tuple[int, Ints]:
        """Return where *job* starts now; POSTPONED if it cannot."""
        problem = self.problem
        for row in self._own(job).tolist():
            if row == self.wanted.choice[job]:
                nodes = self.wanted.nodes_of(problem, job)
                if self._has_room(row, nodes).all():
                    return row, nodes
            alike = np.flatnonzero((problem.node_class == problem.klass[row]) & self.open)
            fit = alike[self._has_room(row, alike)]
            if len(fit) >= problem.width[row]:
                waking = problem.node_wait_s[fit]
                return row, fit[ranked(waking, self.left[fit, 0])][: problem.width[row]]
        return POSTPONED, np.zeros(0, dtype=np.int64)

    def _has_room(self, row: Index, nodes: Ints) -> Bools:
        """Whether each of *nodes* has all that configuration *row* needs there, beside what is kept."""
        fits: Bools = (self.left[nodes] >= self.needs[row] - EXACT).all(axis=1)
        if self.kept is None or self.ends_s[row] <= self.kept.by_s:
            return fits
        there = np.isin(nodes, self.kept.nodes)
        at = np.searchsorted(self.kept.nodes, nodes[there])
        fits[there] &= (self.kept.spare[at] >= self.needs[row] - EXACT).all(axis=1)
        return fits

    def _give(self, job: int, row: int, nodes: Ints) -> None:
        first = self.problem.slot_start[job]
        self.draft.choice[job] = row
        self.draft.nodes[first : first + len(nodes)] = nodes
        self.left[nodes] -= self.needs[row]
        if self.kept is not None and self.ends_s[row] > self.kept.by_s:
            there = np.isin(nodes, self.kept.nodes)
            self.kept.spare[np.searchsorted(self.kept.nodes, nodes[there])] -= self.needs[row]

    def _reserved(self, job: int) -> _Kept | None:
        """Return the nodes on which *job* can start first if what has been placed runs to its end.

        ``None`` if it can start on none: what takes their CPUs is outside the problem.
        """
        problem, best = self.problem, None
        node, rows = self._placed()
        for row in self._own(job).tolist():
            ready_s = self._ready_s(row, node, rows)
            alike = np.flatnonzero((problem.node_class == problem.klass[row]) & self.open)
            chosen = np.sort(alike[ranked(ready_s[alike])][: problem.width[row]])
            by_s = float(ready_s[chosen].max(initial=-np.inf))
            if len(chosen) == problem.width[row] and by_s < (np.inf if best is None else best[0]):
                best = by_s, chosen, row
        if best is None:
            return None
        by_s, chosen, row = best
        spare = self.left[chosen] - self.needs[row]
        for k, n in enumerate(chosen):
            there = rows[node == n]
            spare[k] += self.needs[there[self.ends_s[there] <= by_s]].sum(axis=0)
        return _Kept(chosen, by_s, spare)

    def _placed(self) -> tuple[Ints, Ints]:
        """Nodes in use, once for every job on them, and the job's configuration; by node, what ends first first."""
        node, _ = self.draft.occupancy(self.problem)
        rows = self.draft.choice[self.draft.choice != POSTPONED]
        rows = np.repeat(rows, self.problem.width[rows])
        order = ranked(node, self.ends_s[rows])
        return node[order], rows[order]

    def _ready_s(self, row: int, node: Ints, rows: Ints) -> Floats:
        """When each node, on which *rows* run as ``_placed`` has them, has what *row* needs, [N]; infinity: never."""
        freed = self.needs[rows]
        total = np.cumsum(freed, axis=0)
        first = np.searchsorted(node, node)
        then = self.left[node] + total - (total - freed)[first]
        enough = (then >= self.needs[row] - EXACT).all(axis=1)
        now = (self.left >= self.needs[row] - EXACT).all(axis=1)
        ready_s = np.where(now, self.problem.now_s, np.inf)
        np.minimum.at(ready_s, node[enough], self.ends_s[rows[enough]])
        return ready_s
