"""What holds of every decision, whichever solver takes it.

A solver sees a smaller problem: pinned jobs are taken out of it with their GPUs, and so is what is reserved. Its
schedule is then put together with the rest, so no solver has to know of any guarantee.

A reservation is for one job at a time, on nodes that do not change. Running jobs on them are pinned until they end;
others start there only if they end before the promised time or leave the reserved GPUs alone, as in EASY backfill
(D. Lifka, JSSPP 1995). Where run times are certain, the job starts when it was promised to. Where they are not, nothing
starts on the reserved GPUs, and the job starts when those that ran there have ended, whatever was believed of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Index, Ints
from commonwatt.model.errors import SolverError
from commonwatt.optimize import KeepGoing, always, ranked
from commonwatt.placement._entitlement import TenantFairness, fair_schedule, shares_of
from commonwatt.placement._needless_moves import drop_needless_moves, filled
from commonwatt.placement._objective import check
from commonwatt.placement._peers import Peer
from commonwatt.placement._problem import (
    POSTPONED,
    Background,
    PlacementProblem,
    PlacementSolver,
    Schedule,
)
from commonwatt.placement.guarantees._kept import Guarantees, Reservation

if TYPE_CHECKING:
    from commonwatt.placement._backfill import Backfill

__all__ = ["schedule_with_guarantees", "validated_schedule", "waiting_beside_room"]

_EXACT_S = 1e-3  # times on a clock of seconds since 1970 are exact to a fraction of this


def schedule_with_guarantees(
    problem: PlacementProblem, solver: PlacementSolver, rng: np.random.Generator, keep_going: KeepGoing = always,
    fairness: TenantFairness | None = None,
) -> Schedule:  # fmt: skip
    """Return the schedule to carry out: that of *solver*, settled, with the guarantees of *problem* kept.

    With *fairness*, jobs within their tenant's entitlement come before all others.
    """

    def solve(part: PlacementProblem) -> Schedule:
        return solve_all(part) if fairness is None else fair_schedule(part, fairness, solve_all)

    def solve_all(part: PlacementProblem) -> Schedule:
        search = solver.solve(part, rng, keep_going)
        if isinstance(solver, Peer):
            return search.best
        by_objective = getattr(solver, "by_objective", False)
        return drop_needless_moves(
            part, search.best, planned=solver.plans, fill=solver.leaves_room, by_objective=by_objective
        )

    schedule = _within_guarantees(problem, solver, solve)
    return schedule if fairness is None else replace(schedule, shares=shares_of(problem, fairness))


def validated_schedule(problem: PlacementProblem, answer: object) -> Schedule:
    """Copy the schedule *answer* of a third-party solver into integer arrays.

    Raises ``SolverError`` if it is none, is one of another problem, or cannot be carried out.
    """
    if not isinstance(answer, Schedule):
        msg = f"expected a Schedule, got {type(answer).__name__}"
        raise SolverError(msg)
    choice, nodes = np.asarray(answer.choice), np.asarray(answer.nodes)
    shapes = (len(problem),), (int(problem.slot_start[-1]),)
    if (choice.shape, nodes.shape) != shapes or choice.dtype.kind not in "iu" or nodes.dtype.kind not in "iu":
        msg = f"expected whole numbers for {shapes[0][0]} jobs and {shapes[1][0]} places, as this problem has"
        raise SolverError(msg)
    if (choice < POSTPONED).any() or (nodes >= len(problem.node_gpus)).any():
        msg = "expected configurations and nodes of this problem"
        raise SolverError(msg)
    schedule = Schedule(choice.astype(np.int64), nodes.astype(np.int64))
    check(problem, schedule)
    if problem.locked and (schedule.choice != problem.stay)[problem.stay >= 0].any():
        msg = "a running job was stopped or moved, which is not allowed"
        raise SolverError(msg)
    return schedule


def _within_guarantees(
    problem: PlacementProblem, solver: PlacementSolver, solve: Callable[[PlacementProblem], Schedule]
) -> Schedule:
    from commonwatt.placement._backfill import Backfill  # compiled: whoever only explains need not load it
    from commonwatt.placement._priority_order import PriorityOrder

    if problem.guarantees is None:
        return solve(problem)
    backfill = solver if isinstance(solver, Backfill) else None
    in_order = isinstance(solver, PriorityOrder) and solver.order != "srtf"
    stays = backfill or in_order or (isinstance(solver, Peer) and not solver.stops)
    stops = not problem.locked and not stays
    schedule = _Keeping(problem, problem.guarantees, solve, backfill, stops=stops).schedule()
    overdue = problem.guarantees.overdue
    if overdue.any() and backfill is None:
        room = _open_gpus(problem, schedule, schedule.reservation)
        kept = filled(problem, schedule, among=overdue & (problem.stay < 0), free=room)
        schedule = replace(kept, reservation=schedule.reservation)
    return schedule if backfill is None else replace(schedule, may_have=backfill.may_have(problem))


def _latest_s(problem: PlacementProblem) -> Floats:
    """Longest time each configuration is believed to take, [C]."""
    if problem.outcomes is None:
        return problem.time_s
    return problem.time_s * problem.outcomes.max(axis=1)[problem.row_job]


def waiting_beside_room(problem: PlacementProblem, schedule: Schedule) -> Bools:
    """Waiting jobs for which *schedule* leaves room that is reserved for nobody, [J]."""
    waits = (schedule.choice == POSTPONED) & (problem.stay < 0)
    fits = _fits(problem, _open_gpus(problem, schedule, schedule.reservation))
    return waits & (np.bincount(problem.row_job[fits], minlength=len(problem)) > 0)


class _Keeping:
    """One decision with guarantees."""

    def __init__(
        self, problem: PlacementProblem, kept: Guarantees, solve: Callable[[PlacementProblem], Schedule],
        backfill: Backfill | None, *, stops: bool,
    ) -> None:  # fmt: skip
        self.stops = stops  # whether the solver may stop running jobs
        self.problem, self.kept, self.solve, self.backfills = problem, kept, solve, backfill is not None
        self.allowed = np.ones(len(problem.time_s), dtype=bool) if backfill is None else backfill.may_have(problem)

    def schedule(self) -> Schedule:
        if (reservation := self._reservation()) is None:
            return self._solved(None, POSTPONED)
        reserved, row = reservation
        fits = reserved.by_s <= self.problem.now_s
        if fits or self.stops:  # the solver may start it in its own way
            schedule = self._solved(None, POSTPONED)
            if schedule.choice[reserved.job] != POSTPONED:
                return schedule
        if fits:
            return self._solved(reserved, row)
        schedule = self._solved(reserved, POSTPONED)
        if schedule.choice[reserved.job] != POSTPONED:
            return schedule
        return replace(self._backfilled(schedule, reserved), reservation=reserved)

    # -- the reservation

    def _reservation(self) -> tuple[Reservation, int] | None:
        """Return what is reserved, and the configuration it is for; by now, if the job can start."""
        problem, before = self.problem, self.kept.reservation
        everywhere = np.ones(len(problem.node_gpus), dtype=bool)
        if self.kept.closed is not None:
            everywhere &= ~self.kept.closed
        for job in self.kept.oldest:
            earliest = self._earliest(int(job), everywhere)
            if earliest is None:
                continue
            if earliest[0].by_s <= problem.now_s:
                return earliest
            if before is not None and before.job == job:
                there = np.zeros(len(everywhere), dtype=bool)
                there[before.nodes] = everywhere[before.nodes]
                again = self._earliest(int(job), there, len(before.nodes), before.per_node)
                if again is not None:  # else a node is down: what was promised cannot be kept
                    earliest = replace(again[0], by_s=min(before.by_s, again[0].by_s)), again[1]
            # nothing starts there once the promised time has passed, nor where it rests on what is only believed
            soon_s = float(np.nextafter(problem.now_s, np.inf))
            by_s = soon_s if problem.outcomes is not None else max(earliest[0].by_s, soon_s)
            return replace(earliest[0], by_s=by_s), earliest[1]
        return None

    def _earliest(
        self, job: int, where: Bools, width: int | None = None, per_node: int | None = None
    ) -> tuple[Reservation, int] | None:
        """Earliest start of *job* on the nodes *where* if running jobs stay; ``None`` if it never fits."""
        problem = self.problem
        rows = np.arange(problem.start[job], problem.start[job + 1])
        rows = rows[self.allowed[rows]]
        if width is not None:
            rows = rows[(problem.width[rows] == width) & (problem.per_node[rows] == per_node)]
        ready = {int(g): self._ready_s(int(g), where) for g in np.unique(problem.per_node[rows])}
        begin_s = np.full(len(rows), np.inf)
        nodes: list[Ints] = []
        for i, row in enumerate(rows):
            at_s = ready[int(problem.per_node[row])]
            alike = np.flatnonzero((problem.node_class == problem.klass[row]) & np.isfinite(at_s))
            chosen = alike[ranked(at_s[alike], self.free[alike])][: problem.width[row]]
            nodes.append(chosen)
            if len(chosen) == problem.width[row]:
                begin_s[i] = at_s[chosen].max()
        if not np.isfinite(begin_s).any():
            return None
        late = begin_s + problem.time_s[rows] >= problem.due_s[job]
        best = int(ranked(begin_s, late, np.where(late, problem.time_s[rows], problem.run_cost[rows]))[0])
        by_s = float(begin_s[best])
        return Reservation(job, nodes[best], int(problem.per_node[rows[best]]), by_s, by_s), int(rows[best])

    @cached_property
    def free(self) -> Ints:
        """GPUs of each node that no running job has, [N]."""
        return Schedule.unchanged(self.problem).free_gpus(self.problem)

    def _ready_s(self, gpus: int, where: Bools) -> Floats:
        """When each node has *gpus* free if running jobs stay, [N]; infinity: never, or not *where* it may be."""
        problem, free = self.problem, self.free
        node, taken, end_s = _running(problem, Schedule.unchanged(problem))
        order = ranked(node, end_s)
        node, taken, end_s = node[order], taken[order], end_s[order]
        total = np.cumsum(taken)
        first = np.searchsorted(node, node)
        enough = free[node] + total - (total - taken)[first] >= gpus
        ready_s = np.where(free >= gpus, problem.now_s, np.inf)
        np.minimum.at(ready_s, node[enough], end_s[enough])
        return np.where(where, ready_s, np.inf)

    # -- the rest

    def _solved(self, reserved: Reservation | None, row: int) -> Schedule:
        """Solve the problem around pinned jobs and what is *reserved*, which its job gets now in *row*, if any.

        Promised jobs may be moved. If the solver stops one, it decides again without them.
        """
        pinned, running = self.kept.pinned, self.problem.stay >= 0
        schedule = self._around(pinned, reserved, row)
        if (self.kept.promised & running & (schedule.choice == POSTPONED)).any():
            schedule = self._around(pinned | self.kept.promised, reserved, row)
        return schedule

    def _around(self, pinned: Bools, reserved: Reservation | None, row: int) -> Schedule:
        """Solve the problem around the jobs *pinned* ([J]) and what is *reserved*."""
        problem, running = self.problem, self.problem.stay >= 0
        gone = pinned & running & self.stops
        fixed = Schedule.unchanged(problem)
        room = _open_gpus(problem, fixed, None if row != POSTPONED else reserved)
        if reserved is not None:
            gone = gone | _on(problem, reserved.nodes)
            if row != POSTPONED:
                _give(problem, fixed, reserved.job, row, reserved.nodes)
                room[reserved.nodes] -= reserved.per_node
            gone[reserved.job] = row != POSTPONED or self.backfills
        if not gone.any() and reserved is None:
            return self.solve(replace(problem, guarantees=None))
        if gone.all():
            return fixed
        node, taken, _ = _running(problem, fixed, running & ~gone)
        node_gpus = room.copy()
        np.add.at(node_gpus, node, taken)
        part = problem.without(gone, node_gpus, self._background(fixed, gone))
        return _together(problem, fixed, gone, self.solve(part))

    def _background(self, fixed: Schedule, gone: Bools) -> Background:
        """What is taken out of the problem, beside what was not in it."""
        problem = self.problem
        nodes = len(problem.node_gpus)
        before = problem.background or Background(np.zeros(nodes), np.zeros(nodes, dtype=np.int64), 0.0)
        node, taken, end_s = _running(problem, fixed, gone & (fixed.choice != POSTPONED))
        on_s, gpus = before.on_s.copy(), before.gpus.copy()
        np.maximum.at(on_s, node, end_s - problem.now_s)
        np.add.at(gpus, node, taken)
        pressing = gone & (problem.pressure_s > -np.median(problem.fastest_s))
        return Background(on_s, gpus, before.pressing_weight + float(problem.weight[pressing].sum()))

    def _backfilled(self, schedule: Schedule, reserved: Reservation) -> Schedule:
        """Start jobs that the solver had no room for on reserved GPUs, where they surely end in time."""
        problem = self.problem
        free = schedule.free_gpus(problem)
        wait_s = float(problem.node_wait_s[reserved.nodes].max())
        short = problem.now_s + wait_s + _latest_s(problem) <= reserved.by_s + _EXACT_S
        roomless = ~waiting_beside_room(problem, replace(schedule, reservation=reserved)) & (problem.stay < 0)
        roomless[reserved.job] = False
        rows = self.allowed & short & roomless[problem.row_job]
        return filled(problem, schedule, among=roomless, free=free, rows=rows)


def _open_gpus(problem: PlacementProblem, schedule: Schedule, reserved: Reservation | None) -> Ints:
    """GPUs of each node that *schedule* leaves to anybody for any time, [N]."""
    free = schedule.free_gpus(problem)
    if reserved is None:
        return free
    node, taken, end_s = _running(problem, schedule)
    over = end_s > reserved.by_s + _EXACT_S
    later = problem.node_gpus.copy()
    np.subtract.at(later, node[over], taken[over])
    there = reserved.nodes
    free[there] = np.clip(later[there] - reserved.per_node, 0, free[there])
    return free


def _running(problem: PlacementProblem, schedule: Schedule, jobs: Bools | None = None) -> tuple[Ints, Ints, Floats]:
    """Nodes that *schedule* uses, once for every job on them; the GPUs it has there; and when it ends at the latest."""
    if jobs is not None:
        schedule = Schedule(np.where(jobs, schedule.choice, POSTPONED), schedule.nodes)
    node, taken = schedule.occupancy(problem)
    rows = schedule.choice[schedule.choice != POSTPONED]
    return node, taken, np.repeat(problem.now_s + _latest_s(problem)[rows], problem.width[rows])


def _on(problem: PlacementProblem, nodes: Ints) -> Bools:
    """Running jobs that have GPUs of any of *nodes*, [J]."""
    job = np.repeat(np.arange(len(problem)), np.diff(problem.stay_start))
    on = np.zeros(len(problem), dtype=bool)
    on[job[np.isin(problem.stay_nodes, nodes)]] = True
    return on


def _fits(problem: PlacementProblem, free: Ints) -> Bools:
    """Configurations for which there is room among *free* GPUs ([N]), [C]."""
    most = int(max(problem.per_node.max(initial=0), free.max(initial=0)))
    at_least = np.zeros((len(problem.class_gpus), most + 1), dtype=np.int64)
    np.add.at(at_least, (problem.node_class, np.maximum(free, 0)), 1)
    at_least = at_least[:, ::-1].cumsum(axis=1)[:, ::-1]
    return np.asarray(at_least[problem.klass, problem.per_node] >= problem.width)


def _give(problem: PlacementProblem, schedule: Schedule, job: Index, row: int, nodes: Ints) -> None:
    schedule.choice[job] = row
    schedule.nodes[problem.slot_start[job] : problem.slot_start[job] + len(nodes)] = nodes


def _together(problem: PlacementProblem, fixed: Schedule, gone: Bools, part: Schedule) -> Schedule:
    """Return *part*, a schedule of the problem without the jobs *gone*, with those as they are *fixed*."""
    choice, nodes = fixed.choice.copy(), fixed.nodes.copy()
    rows = np.flatnonzero(~gone[problem.row_job])
    choice[~gone] = np.where(part.choice == POSTPONED, POSTPONED, rows[part.choice] if len(rows) else POSTPONED)
    nodes[np.repeat(~gone, np.diff(problem.slot_start))] = part.nodes
    return Schedule(choice, nodes)
