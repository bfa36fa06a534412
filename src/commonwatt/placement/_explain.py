"""Why a job runs where it does, or waits: a typed reason, its numbers, and one sentence.

Reasons follow from the finished schedule, so they hold whichever solver made it. Where run times are uncertain, what
is expected is said with its chance.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Index, Ints
from commonwatt.model.explanation import PlacementExplanation, Reason
from commonwatt.placement._problem import POSTPONED, PlacementProblem, Schedule
from commonwatt.placement.guarantees import waiting_beside_room
from commonwatt.placement.guarantees._cpus_memory import EXACT, left_by

__all__ = ["Explainer"]


_Shape = tuple[int, int, int]
"""Class, nodes, and GPUs of each."""


class Explainer:
    """Explains one schedule of one problem, job by job."""

    def __init__(self, problem: PlacementProblem, schedule: Schedule) -> None:
        self.problem, self.schedule = problem, schedule

    @cached_property
    def free(self) -> Ints:
        """GPUs of each node the schedule leaves free, [N]."""
        return self.schedule.free_gpus(self.problem)

    @cached_property
    def _packed(self) -> Bools:
        """Jobs that have the same GPUs as another, [J]."""
        return self.schedule.packed()

    @cached_property
    def _row_gpus(self) -> Ints:
        """Total GPUs of each configuration, [C]."""
        return self.problem.width * self.problem.per_node

    @cached_property
    def _with_room(self) -> tuple[dict[_Shape, bool], dict[_Shape, bool]]:
        """Whether there is room for a shape in what is free, and on empty nodes: as far as it was asked."""
        return {}, {}

    def _has_room(self, row: Index, *, empty: bool) -> bool:
        """Whether there is room for configuration *row*: alike for all that ask for the same, which many jobs do."""
        p = self.problem
        shape = int(p.klass[row]), int(p.width[row]), int(p.per_node[row])
        by_shape = self._with_room[empty]
        if (has_room := by_shape.get(shape)) is None:
            has_room = by_shape[shape] = len(p.room(row, p.node_gpus if empty else self.free)) > 0
        return has_room

    @cached_property
    def open_to(self) -> Bools:
        """Waiting jobs for which there is room that is reserved for nobody, [J]."""
        return waiting_beside_room(self.problem, self.schedule)

    @cached_property
    def _open(self) -> int:
        return int(self.open_to.sum())

    @cached_property
    def pinned(self) -> dict[str, Ints]:
        """GPUs of each node that running jobs keep, [N], by the limit of the policy that forbids to stop them."""
        p, kept = self.problem, self.problem.guarantees
        if kept is None or kept.spent is None or p.locked or not kept.pinned.any():
            return {}
        gpus = {}
        planned = np.zeros(len(p), dtype=bool) if kept.planned is None else kept.planned
        young = kept.pinned & ~kept.spent & ~planned
        for name, jobs in (("min_run_s", young), ("max_starts", kept.spent), ("wait_for_price", planned)):
            staying = jobs & (p.stay >= 0) & (self.schedule.choice == p.stay)
            if staying.any():
                only = Schedule(np.where(staying, p.stay, POSTPONED), self.schedule.nodes)
                gpus[name] = p.node_gpus - only.free_gpus(p)
        return gpus

    def _unstopped(self, rows: Ints) -> tuple[str, ...]:
        """Return the limits without which there could be room for one of *rows*."""
        return tuple(
            name
            for name, gpus in self.pinned.items()
            if any(len(self.problem.room(row, self.free + gpus)) for row in rows)
        )

    def fits(self, row: Index, job: Index) -> bool:
        """Whether configuration *row* of *job* would fit into what the schedule leaves free, and gives to it."""
        p, has = self.problem, self.schedule.choice[job]
        if has == POSTPONED or self._packed[job]:
            if row == p.stay[job]:
                return bool(np.all(self.free[p.nodes_held(job)] >= p.per_node[row]))
            return self._has_room(row, empty=False)
        free = self.free.copy()
        free[self.schedule.nodes_of(p, job)] += p.per_node[has]
        if row == p.stay[job]:
            return bool(np.all(free[p.nodes_held(job)] >= p.per_node[row]))
        return len(p.room(row, free)) > 0

    def explain(self, job: int) -> PlacementExplanation:
        """Explain what *job* got."""
        row = int(self.schedule.choice[job])
        return self._waits(job) if row == POSTPONED else self._runs(job, row)

    def _runs(self, job: int, row: int) -> PlacementExplanation:
        p = self.problem
        nodes = self.schedule.nodes_of(p, job)
        end_s = p.now_s + p.time_s[row] + p.node_wait_s[nodes].max(initial=0.0)
        spare_s, rows = p.due_s[job] - end_s, np.arange(p.start[job], p.start[job + 1])
        cost = cheapest = fits = None
        if self._packed[job]:
            reason = Reason.PACKED
        elif row == p.stay[job]:
            reason = Reason.KEPT
        elif self.schedule.may_have is not None:
            asked = rows[p.asked[rows]]
            as_asked = len(asked) and p.gpus_of(row) == p.gpus_of(asked[0])
            reason = Reason.AS_REQUESTED if as_asked else Reason.FIRST_FREE
        elif spare_s > 0:
            in_time = rows[p.now_s + p.time_s[rows] < p.due_s[job]]
            cost, cheapest = float(p.run_cost[row]), float(p.run_cost[in_time].min())
            reason = Reason.CHEAPEST_IN_TIME if cost <= cheapest * (1 + 1e-12) else Reason.IN_TIME
            fits = self._any_fits(in_time, job) if reason is Reason.IN_TIME else None
        elif p.time_s[row] <= p.fastest_s[job] * (1 + 1e-12):
            reason = Reason.FASTEST
        else:
            reason, fits = Reason.LATE, self._any_fits(rows[p.time_s[rows] < p.time_s[row]], job)
        return PlacementExplanation(
            reason, p.job_names[job], tuple(p.node_names[n] for n in nodes), p.gpus_of(row), cost, cheapest, fits,
            due_at_submission=self._due_before(job), spare_s=_finite(spare_s), currency=p.currency,
            power_limit=float(p.limits[row]),
            **self._uncertain(job, row, end_s - p.now_s - p.time_s[row]),
        )  # fmt: skip

    def _uncertain(self, job: int, row: Index, begins_s: float) -> dict[str, Any]:
        """Return what is expected of *job* in configuration *row*, and how surely; nothing where it is certain."""
        p = self.problem
        if p.outcomes is None:
            return {} if p.by_limit is None else {"by_limit": bool(p.by_limit[job])}
        ends_s = begins_s + p.time_s[row] * p.outcomes[job]
        in_time = float(np.mean(p.now_s + ends_s <= p.due_s[job])) if np.isfinite(p.due_s[job]) else None
        likely_s = tuple(float(q) for q in np.quantile(ends_s, (0.1, 0.9)))
        return {"expected_s": float(ends_s.mean()), "likely_s": likely_s, "in_time": in_time}

    def _due_before(self, job: int) -> bool:
        """Whether the job was late when it was submitted; how late, the problem does not know."""
        return bool(self.problem.due_s[job] <= self.problem.submit_s[job])

    def _any_fits(self, rows: Ints, job: int) -> bool:
        return any(self.fits(row, job) for row in rows)

    def _waits(self, job: int) -> PlacementExplanation:
        p = self.problem
        rows, runs = np.arange(p.start[job], p.start[job + 1]), p.stay[job] >= 0
        if self.schedule.may_have is not None and not runs:
            rows = rows[self.schedule.may_have[rows]]
        nodes = p.nodes_held(job) if runs else ()
        takers: tuple[str, ...] = ()
        other_takers, restart_s, within_s, reserved, cost = 0, None, None, self.schedule.reservation, None
        gpus, for_oldest = int(self._row_gpus[rows].min()), False
        lack: dict[str, Any] = {}
        if self.schedule.capped is not None and self.schedule.capped[job]:
            reason = Reason.POWER_CAP
        elif self.schedule.short is not None and self.schedule.short[job]:
            reason = Reason.CPUS_OR_MEMORY
            nodes, lack = self._lack(rows)
        elif runs:
            reason = Reason.DISPLACED
            (takers, other_takers), lack = self._takers(job), {"gone": self._gone(nodes)}
            if len(again_s := p.time_s[rows[rows != p.stay[job]]]):
                restart_s = max(float(again_s.min() - p.time_s[p.stay[job]]), 0.0)
        elif reserved is not None and reserved.job == job:
            reason = Reason.RESERVED if reserved.oldest else Reason.NEXT
            nodes, gpus = reserved.nodes, len(reserved.nodes) * reserved.per_node
            within_s = max(0.0, reserved.expected_s - p.now_s)
        elif not any(self._has_room(row, empty=True) for row in rows):
            reason = Reason.NODES_DOWN
        else:
            over = self.schedule.shares is not None and not self.schedule.shares.first[job]
            no_room = Reason.OVER_SHARE if over else Reason.NO_ROOM
            fitting = [row for row in rows if self.fits(row, job)]
            reason = Reason.HELD_BACK if fitting else no_room
            if fitting and not any(self._has_all(row) for row in fitting):
                reason, (nodes, lack) = Reason.CPUS_OR_MEMORY, self._lack(rows)
            for_oldest = reason is Reason.HELD_BACK and reserved is not None and reserved.oldest
            for_oldest = for_oldest and not self.open_to[job]
            if reason is Reason.HELD_BACK and not for_oldest and not self._others_want(job):
                reason = Reason.NOT_YET
                cost = float(min(p.run_cost[row] for row in fitting))
        return PlacementExplanation(
            reason, p.job_names[job], tuple(p.node_names[n] for n in nodes), gpus, cost, currency=p.currency,
            takers=takers, other_takers=other_takers, restart_s=restart_s, starts_within_s=within_s,
            for_oldest=for_oldest, unstopped=self._unstopped(rows) if reason is Reason.NO_ROOM else (),
            **self._share(job, reason),
            **lack,
            shared_w=self.schedule.shared_w or None if reason is Reason.POWER_CAP else None,
            due_at_submission=self._due_before(job),
            spare_s=_finite(p.due_s[job] - p.now_s - p.interval_s - p.fastest_s[job]),
            **self._uncertain(job, int(rows[np.argmin(p.time_s[rows])]), 0.0),
        )  # fmt: skip

    def _gone(self, nodes: Ints | tuple[()]) -> tuple[str, ...]:
        """Return those of *nodes* that have fewer GPUs than the jobs that run there."""
        p, used = self.problem, np.zeros_like(self.problem.node_gpus)
        for job in np.flatnonzero(p.stay >= 0):
            np.add.at(used, p.nodes_held(job), p.per_node[p.stay[job]])
        return tuple(p.node_names[n] for n in nodes if used[n] > p.node_gpus[n])

    @cached_property
    def _left(self) -> Floats:
        """CPUs, memory and more that the schedule leaves on each node, [N, R]."""
        p = self.problem
        assert p.node_cpus_memory is not None
        assert p.cpus_memory is not None
        return left_by(p, self.schedule, p.cpus_memory, p.node_cpus_memory)

    def _has_all(self, row: Index) -> bool:
        """Whether enough nodes with free GPUs for configuration *row* have all else that it needs."""
        p = self.problem
        if p.node_cpus_memory is None or p.cpus_memory is None:
            return True
        enough = (self._left[p.room(row, self.free)] >= p.cpus_memory[row] - EXACT).all(axis=1)
        return bool(enough.sum() >= p.width[row])

    def _lack(self, rows: Ints) -> tuple[Ints, dict[str, Any]]:
        """Return the node that is nearest to one of *rows*, of those with GPUs for it, and what that lacks."""
        p, best = self.problem, None
        if p.node_cpus_memory is None or p.cpus_memory is None:
            return rows[:0], {}
        for row in rows.tolist():
            alike = np.flatnonzero((p.node_class == p.klass[row]) & (p.node_gpus >= p.per_node[row]))
            now = alike[self.free[alike] >= p.per_node[row]]
            nodes, needs = (now if len(now) else alike), p.cpus_memory[row]
            left = self._left[nodes]
            lacks = left < needs - EXACT
            parts = np.divide(needs - left, needs, out=np.zeros_like(left), where=lacks).max(axis=1, initial=0.0)
            count = lacks.sum(axis=1)
            for k in np.lexsort((parts, np.where(count > 0, count, lacks.size)))[:1].tolist():
                if count[k] and (best is None or (count[k], parts[k]) < best[0]):
                    best = (count[k], parts[k]), int(nodes[k]), row
        if best is None:
            return rows[:0], {}
        _, n, row = best
        short = np.flatnonzero(self._left[n] < p.cpus_memory[row] - EXACT)
        named = tuple(p.resources[k] for k in short)
        needs, left = (tuple(amounts[short].tolist()) for amounts in (p.cpus_memory[row], self._left[n]))
        return np.array([n]), {"lacks": named, "needs": needs, "left": left}

    def _share(self, job: int, reason: Reason) -> dict[str, Any]:
        """Return what the tenant of *job* has and is entitled to, where that is why the job does not run."""
        p, shares = self.problem, self.schedule.shares
        if shares is None or shares.first[job] or reason not in (Reason.OVER_SHARE, Reason.DISPLACED):
            return {}
        own = int(p.tenant[job])
        given = self.schedule.choice[(p.tenant == own) & (self.schedule.choice != POSTPONED)]
        received = p.counted(p.klass[given], self._row_gpus[given]).sum().item()
        return {
            "tenant": p.tenant_names[own], "received_gpus": received,
            "entitled_gpus": float(shares.entitled[own]), "used_share": float(shares.used[own]),
            "half_life_s": shares.half_life_s,
        }  # fmt: skip

    def _others_want(self, job: int) -> bool:
        """Whether the room is reserved for another job, or another that waits would fit into it, too."""
        return not self.open_to[job] or self._open > 1

    def _takers(self, job: int) -> tuple[tuple[str, ...], int]:
        """Jobs that newly get GPUs of the nodes allocated to *job*.

        The owner of *job* reads the sentence: jobs of the same tenant are named, others counted.
        """
        p, nodes = self.problem, set(self.problem.nodes_held(job).tolist())
        own, others = [], 0
        for other in np.flatnonzero(self.schedule.choice != POSTPONED):
            if nodes & (set(self.schedule.nodes_of(p, other).tolist()) - set(p.nodes_held(other).tolist())):
                if p.tenant[other] == p.tenant[job]:
                    own.append(p.job_names[int(other)])
                else:
                    others += 1
        return tuple(own), others


def _finite(seconds: float) -> float | None:
    return float(seconds) if np.isfinite(seconds) else None
