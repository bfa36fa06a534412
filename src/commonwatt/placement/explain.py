"""Why a job runs here, why it waits, what moving it costs: a typed reason and one plain sentence.

Reasons are read off the finished schedule, so they are true of it whichever solver made it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from commonwatt.model.arrays import Index, Ints
from commonwatt.placement.problem import POSTPONED, Problem, Schedule

__all__ = ["Explainer", "Explanation", "Reason"]

_DUE_BEFORE = "its due date was no later than its submission"


class Reason(StrEnum):
    """Why a job got what it got."""

    CHEAPEST_IN_TIME = "cheapest-in-time"
    IN_TIME = "in-time"
    FASTEST = "fastest"
    LATE = "late"
    KEPT = "kept"
    NO_ROOM = "no-room"
    HELD_BACK = "held-back"
    NODES_DOWN = "nodes-down"
    DISPLACED = "displaced"


@dataclass(frozen=True)
class Explanation:
    """A reason and its sentence."""

    reason: Reason
    sentence: str


class Explainer:
    """Explains one schedule of one problem, job by job."""

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        self.problem, self.schedule = problem, schedule
        self._free: Ints | None = None

    def free_gpus(self) -> Ints:
        """GPUs of each node the schedule leaves free, [N]."""
        if self._free is None:
            free = self.problem.node_gpus.copy()
            nodes, gpus = self.schedule.occupancy(self.problem)
            np.subtract.at(free, nodes, gpus)
            self._free = free
        return self._free

    def fits(self, row: Index, job: Index) -> bool:
        """Whether configuration *row* of *job* would fit into what the schedule leaves free."""
        p, free = self.problem, self.free_gpus()
        if row == p.stay[job]:
            return bool(np.all(free[p.nodes_held(job)] >= p.per_node[row]))
        return bool(np.sum((p.node_class == p.klass[row]) & (free >= p.per_node[row])) >= p.width[row])

    def explain(self, job: int) -> Explanation:
        """Explain what *job* got."""
        row = int(self.schedule.choice[job])
        return self._waits(job) if row == POSTPONED else self._runs(job, row)

    def _runs(self, job: int, row: int) -> Explanation:
        p = self.problem
        nodes = self.schedule.nodes_of(p, job)
        where = _names([p.node_names[n] for n in nodes])
        end_s = p.now_s + p.time_s[row] + p.node_wait_s[nodes].max(initial=0.0)
        spare_s = p.due_s[job] - end_s
        head = f"{p.job_names[job]} runs on {where} with {_gpus(p.gpus_of(row))}"
        ends = _DUE_BEFORE if self._due_before(job) else _ends(spare_s)
        if row == p.stay[job]:
            return Explanation(Reason.KEPT, f"{head}, where it is; {ends}")
        rows = np.arange(p.start[job], p.start[job + 1])
        in_time = rows[p.now_s + p.time_s[rows] < p.due_s[job]]
        cost = p.run_cost[row]
        if spare_s > 0:
            if cost <= p.run_cost[in_time].min() * (1 + 1e-12):
                why = "the cheapest way to meet its due date" if np.isfinite(spare_s) else "the cheapest way to run it"
                return Explanation(Reason.CHEAPEST_IN_TIME, f"{head}: {why} ({cost:.4g} for energy); {ends}")
            meets = "it meets its due date there; " if np.isfinite(spare_s) else ""
            return Explanation(
                Reason.IN_TIME,
                f"{head}: {meets}a cheaper way ({p.run_cost[in_time].min():.4g} instead of {cost:.4g}) "
                f"{self._why_not(in_time, job)}; {ends}",
            )
        if p.time_s[row] <= p.fastest_s[job] * (1 + 1e-12):
            return Explanation(Reason.FASTEST, f"{head}: the fastest way, as it is late anyway; {ends}")
        faster = rows[p.time_s[rows] < p.time_s[row]]
        return Explanation(Reason.LATE, f"{head}: a faster way {self._why_not(faster, job)}; {ends}")

    def _due_before(self, job: int) -> bool:
        """Whether the job was late when it was submitted; how late, the problem does not know."""
        return bool(self.problem.due_s[job] <= self.problem.submit_s[job])

    def _why_not(self, rows: Ints, job: int) -> str:
        return (
            "was passed over for the sake of other jobs" if any(self.fits(r, job) for r in rows) else "has no room now"
        )

    def _waits(self, job: int) -> Explanation:
        p = self.problem
        rows = np.arange(p.start[job], p.start[job + 1])
        smallest = int((p.width * p.per_node)[rows].min())
        name = p.job_names[job]
        late_s = p.now_s + p.interval_s + p.fastest_s[job] - p.due_s[job]
        late = f"; it will be late by {_span(late_s)} or more" if late_s > 0 else ""
        if self._due_before(job):
            late = f"; {_DUE_BEFORE}"
        if p.stay[job] >= 0:
            takers = self._takers(job)
            whom = f"go to {takers}" if takers else "are needed elsewhere"
            again_s = p.time_s[rows[rows != p.stay[job]]]
            more_s = again_s.min(initial=np.inf) - p.time_s[p.stay[job]]
            extra = (
                f"at least {_span(max(more_s, 0.0))} more" if len(again_s) else "as long as its configuration allows"
            )
            return Explanation(
                Reason.DISPLACED,
                f"{name} is preempted: its GPUs on {_names([p.node_names[n] for n in p.nodes_held(job)])} {whom}; "
                f"restarted from its last snapshot it takes {extra}{late}",
            )
        if not any(self._could(r) for r in rows):
            return Explanation(
                Reason.NODES_DOWN, f"{name} waits: too many nodes that could run it are down or drained{late}"
            )
        if any(self.fits(r, job) for r in rows):
            return Explanation(
                Reason.HELD_BACK,
                f"{name} waits although {_gpus(smallest)} are free: they are kept for other jobs{late}",
            )
        return Explanation(Reason.NO_ROOM, f"{name} waits: no room for the {_gpus(smallest)} or more it needs{late}")

    def _could(self, row: Index) -> bool:
        p = self.problem
        return bool(np.sum((p.node_class == p.klass[row]) & (p.node_gpus >= p.per_node[row])) >= p.width[row])

    def _takers(self, job: int) -> str:
        """Jobs that got GPUs of the nodes *job* held, without having held them before.

        Its owner reads the sentence: jobs of the same tenant are named, others counted.
        """
        p, held = self.problem, set(self.problem.nodes_held(job).tolist())
        own, others = [], 0
        for other in np.flatnonzero(self.schedule.choice != POSTPONED):
            if held & (set(self.schedule.nodes_of(p, other).tolist()) - set(p.nodes_held(other).tolist())):
                if p.tenant[other] == p.tenant[job]:
                    own.append(p.job_names[int(other)])
                else:
                    others += 1
        unnamed = "a job of another tenant" if others == 1 else f"{others} jobs of other tenants" if others else ""
        return " and ".join(filter(None, (_names(own), unnamed)))


def _names(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _ends(spare_s: float) -> str:
    if not np.isfinite(spare_s):
        return "it has no due date"
    return f"it ends {_span(abs(spare_s))} {'before' if spare_s >= 0 else 'after'} its due date"
