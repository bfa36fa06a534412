"""Preemption by QOS, as Slurm's ``preempt/qos`` has it: a rule of the cluster that holds whichever solver decides.

A waiting job whose QOS may preempt others takes the place of jobs of these, if it cannot start beside all that run and
start, and if that really makes room for it. First go those that a decision only just starts, which costs nothing; then
running ones, of the QOS with the lowest priority first, of these those with the fewest nodes, of these the youngest.
(Slurm orders by priority and nodes alone, or with ``preempt_youngest_first`` by start.) None goes without which there
would be room too. A preempted job waits again, and goes on from its last checkpoint.

Sources: ``preempt.c`` and ``preempt_qos.c`` of Slurm 22.05, and its manual (preempt.html).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from commonwatt.control.job_registry import JobRegistry
from commonwatt.control.quotas import AccountingTracker, Quota, Use
from commonwatt.control.scheduling import Scheduling
from commonwatt.model.accounting import Association, Qos
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.jobs import JobArrays
from commonwatt.optimize import ranked
from commonwatt.placement import POSTPONED, PlacementProblem, Schedule

__all__ = ["PreemptionTracker", "RoomMade", "room_made"]

_SOON_S = 1e-6
_EXACT = 1e-6  # CPUs, or GiB: what adding and subtracting may leave


@dataclass(frozen=True)
class RoomMade:
    """A job that starts in the place of others.

    Attributes
    ----------
    row, nodes
        Its configuration, and its nodes.
    victims
        The jobs whose place it takes, by their places in the problem; none is left out without which it fits too.
    """

    row: int
    nodes: Ints
    victims: tuple[int, ...]


def room_made(
    problem: PlacementProblem, schedule: Schedule, rows: Iterable[int], victims: Sequence[int],
    closed: Ints | None = None,
) -> RoomMade | None:  # fmt: skip
    """Return how a job starts in one of *rows*, the first that fits, beside *schedule* without some of *victims*.

    Those that come first are the first to go; on the nodes *closed* it does not start. ``None``: there is no room even
    without them all.
    """
    wanted, room = list(rows), _Room(problem, schedule)
    if closed is not None:
        room.left[closed] = -np.inf

    def without(order: Sequence[int]) -> tuple[int, ...] | None:
        """Return the first of *order* without which there is room; ``None``: there is none without all."""
        left = room.left.copy()
        for k, victim in enumerate(order):
            room.leave(left, victim)
            if room.place(left, wanted) is not None:
                return tuple(order[: k + 1])
        return None

    if (place := room.place(room.left, wanted)) is not None:
        return RoomMade(*place, ())
    if room.place(room.after(victims), wanted) is None or (gone := without(victims)) is None:
        return None
    gone = without((gone[-1], *gone[:-1])) or gone  # the last one was needed: with it, fewer of the others may be
    for victim in reversed(gone):
        fewer = tuple(other for other in gone if other != victim)
        if room.place(room.after(fewer), wanted) is not None:
            gone = fewer
    place = room.place(room.after(gone), wanted)
    return None if place is None else RoomMade(*place, gone)


class _Room:
    """What a schedule leaves of the nodes: GPUs, CPUs and memory."""

    def __init__(self, problem: PlacementProblem, schedule: Schedule) -> None:
        self.problem, self.schedule = problem, schedule
        self.needs: Floats = problem.per_node[:, None].astype(np.float64)  # [C, 1 + R]
        self.left: Floats = problem.node_gpus[:, None].astype(np.float64)  # [N, 1 + R]
        if problem.cpus_memory is not None and problem.node_cpus_memory is not None:
            self.needs = np.hstack((self.needs, problem.cpus_memory))
            self.left = np.hstack((self.left, problem.node_cpus_memory))
        nodes, _ = schedule.occupancy(problem)
        taken = schedule.choice[schedule.choice != POSTPONED]
        np.subtract.at(self.left, nodes, np.repeat(self.needs[taken], problem.width[taken], axis=0))

    def leave(self, left: Floats, job: int) -> None:
        """Add to *left* what *job* has."""
        left[self.schedule.nodes_of(self.problem, job)] += self.needs[self.schedule.choice[job]]

    def after(self, gone: Iterable[int]) -> Floats:
        """Return what is left without the jobs *gone*."""
        left = self.left.copy()
        for job in gone:
            self.leave(left, job)
        return left

    def place(self, left: Floats, rows: Iterable[int]) -> tuple[int, Ints] | None:
        """Return the first of *rows* for which there is room, and the nodes with least to spare."""
        problem = self.problem
        for row in rows:
            alike = np.flatnonzero(problem.node_class == problem.klass[row])
            fit = alike[(left[alike] >= self.needs[row] - _EXACT).all(axis=1)]
            if len(fit) >= problem.width[row]:
                order = ranked(problem.node_wait_s[fit], left[fit, 0])
                return row, np.sort(fit[order][: problem.width[row]])
        return None


class PreemptionTracker(AccountingTracker):
    """Keeps limits, and lets jobs preempt others as their QOS may.

    Attributes
    ----------
    preempts
        Whether any QOS may preempt one that can be preempted.
    next_s
        When a job may be preempted that a waiting one wants the place of, and could not be before; ``None``: none.
    """

    def __init__(
        self, registry: JobRegistry, table: JobArrays, qos: Sequence[Qos], associations: Sequence[Association] = ()
    ) -> None:
        super().__init__(registry, table, qos, associations)
        self._qos = {one.name: one for one in qos}
        self._named = dict(zip(table.names, table.qos, strict=True)) if table.qos else {}
        self.preempts = any(_may(one, other) for one in qos for other in qos)
        self.next_s: float | None = None
        self._until_s: dict[int, float] = {}  # until when jobs run on that are to be preempted, by handle
        self._again = False
        if self.preempts and not self.limits:
            self.limits = {None: Quota()}  # so that this is asked at every decision

    def within(
        self, problem: PlacementProblem, schedule: Schedule, handles: Sequence[int], gpus: Mapping[int, int]
    ) -> Schedule:
        """Return *schedule* without what exceeds the limits, and with what jobs take the place of others."""
        kept = super().within(problem, schedule, handles, gpus)
        if not self.preempts:
            return kept
        waiting = np.flatnonzero((kept.choice == POSTPONED) & (problem.stay < 0)).tolist()
        preemptors = [j for j in waiting if (own := self.of(handles[j])) is not None and own.preempts]
        if problem.background is not None:  # what runs is not in the problem: decide about all jobs
            ours = {own.name: own for j in preemptors if (own := self.of(handles[j])) is not None}
            running = {other.name: other for handle in gpus if (other := self.of(handle)) is not None}
            self._again |= any(_may(own, other) for own in ours.values() for other in running.values())
            return kept
        run = _Pass(self, problem, kept, handles, self.use(gpus, handles))
        if preemptors and kept.capped is None:
            run.take(preemptors)
        self.next_s, self._until_s = run.next_s, run.until_s
        self._again |= run.schedule is not kept
        return run.schedule

    def mark(self, scheduling: Scheduling, gpus: Mapping[int, int]) -> bool:
        """Mark the waiting jobs that may not start now; returns whether another decision may start others."""
        again, self._again = self._again, False
        return super().mark(scheduling, gpus) or again

    def of(self, handle: int) -> Qos | None:
        """Return the QOS of a job, if it has one that is declared."""
        return self._qos.get(self._named.get(self.registry.names[handle], ""))

    def grace_ends_s(self, handle: int) -> float | None:
        """Until when a job runs on that is to be preempted; ``None``: it is not."""
        return self._until_s.get(handle)


def _may(one: Qos, other: Qos) -> bool:
    """Whether a job of *one* QOS may preempt one of the *other*."""
    return other.name in one.preempts and other.preempt_mode != "off"


class _Pass:
    """What one decision about all jobs preempts."""

    def __init__(
        self, tracker: PreemptionTracker, problem: PlacementProblem, schedule: Schedule, handles: Sequence[int],
        use: dict[Hashable, Use],
    ) -> None:  # fmt: skip
        self.tracker, self.problem, self.handles, self.schedule, self.use = tracker, problem, handles, schedule, use
        self.until_s: dict[int, float] = {}  # of jobs that are to be preempted and run on for a while, by handle
        self.next_s: float | None = None
        self.taken: set[int] = set()  # jobs whose place somebody takes, or that have just taken one
        self.roomless: set[tuple[str, bytes]] = set()  # QOS and configurations for which there was no room
        self.closed: Ints | None = None
        if schedule.reservation is not None and schedule.reservation.oldest:
            self.closed = schedule.reservation.nodes
        for j in np.flatnonzero(schedule.choice != POSTPONED).tolist():
            self._count(j, 1)

    def take(self, preemptors: Iterable[int]) -> None:
        """Let *preemptors*, which wait, take the place of others: of the highest priority first, then the earliest."""
        of = {j: self._of(j) for j in preemptors}
        for j in sorted(of, key=lambda j: (-of[j].priority, self.problem.submit_s[j], j)):
            rows = self._rows(j)
            kind = of[j].name, self._shapes(rows)
            if not len(rows) or kind in self.roomless:
                continue
            reserved = self.schedule.reservation
            closed = None if reserved is not None and reserved.job == j else self.closed
            made = room_made(self.problem, self.schedule, rows, self._victims(of[j], rows), closed)
            if made is None:
                self.roomless.add(kind)
            elif made.victims and self._all_may_go(made.victims):
                self._replace(j, made)

    def _of(self, j: int) -> Qos:
        own = self.tracker.of(self.handles[j])
        assert own is not None
        return own

    def _rows(self, j: int) -> list[int]:
        """Return the configurations that the owner of a job asked for and its limits leave, the fastest first."""
        problem, handle = self.problem, self.handles[j]
        own = np.arange(problem.start[j], problem.start[j + 1])
        own = own[problem.asked[own]] if problem.asked[own].any() else own
        rows = own[ranked(problem.time_s[own])].tolist()
        left = self.tracker.leaves
        return [row for row in rows if left(self.use, handle, int(problem.klass[row]), problem.gpus_of(row))]

    def _shapes(self, rows: Sequence[int]) -> bytes:
        problem = self.problem
        columns = [problem.klass[rows], problem.width[rows], problem.per_node[rows]]
        needs = np.zeros(0) if problem.cpus_memory is None else problem.cpus_memory[rows]
        return np.concatenate([*columns, needs.ravel()]).tobytes()

    def _victims(self, own: Qos, rows: Sequence[int]) -> list[int]:
        """Return the jobs that one of this QOS may preempt now for one of *rows*, the first to go first."""
        problem, registry, now_s = self.problem, self.tracker.registry, self.problem.now_s
        there = np.isin(problem.node_class, problem.klass[rows])
        kept = problem.guarantees
        candidates = []
        for v in np.flatnonzero(self.schedule.choice != POSTPONED).tolist():
            handle, runs = self.handles[v], problem.stay[v] >= 0
            other = self.tracker.of(handle)
            if v in self.taken or other is None or not _may(own, other):
                continue
            if (runs and kept is not None and (kept.pinned[v] or kept.promised[v])) or not there[
                self.schedule.nodes_of(problem, v)
            ].any():
                continue
            placed_s = float(registry.job("placed_s")[handle]) if runs else -np.inf
            if runs and (from_s := placed_s + other.exempt_s) > now_s + _SOON_S:
                self._wake(from_s)
                continue
            width = int(problem.width[self.schedule.choice[v]])
            asked_before = self.tracker.grace_ends_s(handle) is not None
            candidates.append(((runs, not asked_before, other.priority, width, -placed_s, v), v))
        return [v for _, v in sorted(candidates)]

    def _all_may_go(self, victims: Sequence[int]) -> bool:
        """Whether nobody of *victims* runs on for a while; else until when is noted, and nobody else may have them."""
        ends_s = {}
        for v in victims:
            if self.problem.stay[v] >= 0 and (grace_s := self._of(v).grace_s):
                before_s = self.tracker.grace_ends_s(self.handles[v])
                ends_s[v] = self.problem.now_s + grace_s if before_s is None else before_s
        if max(ends_s.values(), default=0.0) <= self.problem.now_s + _SOON_S:
            return True
        self.until_s |= {self.handles[v]: at_s for v, at_s in ends_s.items()}
        self.taken.update(victims)
        self._wake(max(ends_s.values()))
        return False

    def _wake(self, at_s: float) -> None:
        self.next_s = at_s if self.next_s is None else min(self.next_s, at_s)

    def _replace(self, j: int, made: RoomMade) -> None:
        """Start a job in the place of others."""
        problem, slots = self.problem, self.problem.slot_start
        choice, nodes = self.schedule.choice.copy(), self.schedule.nodes.copy()
        for v in made.victims:
            if problem.stay[v] < 0:  # it had not begun to count
                self._count(v, -1)
            choice[v] = POSTPONED
            nodes[slots[v] : slots[v + 1]] = -1
        choice[j] = made.row
        nodes[slots[j] : slots[j] + len(made.nodes)] = made.nodes
        reserved = self.schedule.reservation
        kept = None if reserved is not None and reserved.job == j else reserved
        self.schedule = replace(self.schedule, choice=choice, nodes=nodes, reservation=kept)
        self.taken |= {j, *made.victims}
        self.roomless.clear()
        self._count(j, 1)

    def _count(self, j: int, sign: int) -> None:
        """Count what a job has, or not any more."""
        row = int(self.schedule.choice[j])
        for key in self.tracker.keys(self.handles[j], int(self.problem.klass[row])):
            before = self.use.get(key, Use())
            gpus = self.problem.gpus_of(row)
            self.use[key] = Use(before.jobs + sign, before.gpus + sign * gpus)
