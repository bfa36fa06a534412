"""No decision lets nodes draw more than their power cap, whichever solver takes it. Ours.

A schedule that would is taken apart: what runs stays, and what is to start gets its turn by pressure, in the solver's
configuration, or in the best other one whose power fits as long as it runs, on nodes with CPUs and memory for it.
Where the cap has fallen below what runs, the least pressing jobs are stopped, if jobs may be.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Index, Ints
from commonwatt.model.units import WEEK_S
from commonwatt.optimize import ranked
from commonwatt.placement._problem import POSTPONED, PlacementProblem, Schedule
from commonwatt.placement.start_times._timetable import Power, Timetable

__all__ = ["under_cap"]

_EXACT = 1e-6  # CPUs, or GiB: what adding and subtracting may leave


def under_cap(problem: PlacementProblem, schedule: Schedule, power: Power) -> Schedule:
    """Return *schedule*, or what can be carried out of it under the cap of *power*; ``capped`` are those that wait."""
    if power.cap_w is None or not len(problem):
        return schedule
    capping = _Capping(problem, schedule, power)
    if capping.fits_whole():
        return schedule
    return capping.schedule()


class _Capping:
    """One schedule under a cap."""

    def __init__(self, problem: PlacementProblem, wanted: Schedule, power: Power) -> None:
        self.problem, self.wanted, self.power = problem, wanted, power
        longest_s: Floats = problem.time_s
        if problem.outcomes is not None:
            longest_s = longest_s * problem.outcomes.max(axis=1)[problem.row_job]
        self.longest_s = longest_s  # [C]
        self.rows = np.ones(len(problem.time_s), dtype=bool) if wanted.may_have is None else wanted.may_have
        needs, whole = [problem.per_node], [problem.node_gpus]
        if problem.cpus_memory is not None and problem.node_cpus_memory is not None:
            needs, whole = [*needs, *problem.cpus_memory.T], [*whole, *problem.node_cpus_memory.T]
        # GPUs, and what else is limited: of each configuration, [C, 1 or more], and left on each node, [N, 1 or more]
        self.needs: Floats = np.column_stack(needs).astype(np.float64)
        self.left: Floats = np.column_stack(whole).astype(np.float64)

    def _profile(self) -> Timetable:
        """Power over time, without jobs: of a constant cap, its beginning is enough."""
        problem, cap_w = self.problem, self.power.cap_w
        used = self.longest_s[np.isfinite(self.longest_s)]
        ahead_s = 1.0 if cap_w is None or cap_w.is_constant else min(WEEK_S, float(used.max(initial=1.0)))
        return Timetable(problem, self.power, problem.now_s + ahead_s)

    def fits_whole(self) -> bool:
        """Whether the schedule as it is stays below the cap."""
        profile = self._profile()
        for job in np.flatnonzero(self.wanted.choice != POSTPONED):
            row = int(self.wanted.choice[job])
            profile.add(row, self.wanted.nodes_of(self.problem, job), float(self.longest_s[row]))
        return profile.under_cap()

    def schedule(self) -> Schedule:
        problem, wanted = self.problem, self.wanted
        profile, schedule = self._profile(), Schedule.unchanged(problem)
        capped = np.zeros(len(problem), dtype=bool)
        running = np.flatnonzero(problem.stay >= 0)
        for job in running[ranked(-problem.pressure_s[running])]:
            row, nodes = int(problem.stay[job]), problem.nodes_held(job)
            if not problem.locked and not profile.has_power(row, nodes, now_only=True):
                schedule.choice[job], capped[job] = POSTPONED, True
                schedule.nodes[problem.slot_start[job] : problem.slot_start[job + 1]] = -1
                continue
            profile.add(row, nodes, float(self.longest_s[row]))
            self.left[nodes] -= self.needs[row]
        short = np.zeros(len(problem), dtype=bool) if wanted.short is None else wanted.short.copy()
        starts = np.flatnonzero((wanted.choice != POSTPONED) & (problem.stay < 0))
        for job in starts[ranked(-problem.pressure_s[starts])].tolist():
            row, nodes, capped[job] = self._place(job, profile)
            if row == POSTPONED:
                short[job] = not capped[job] and self._lacks_cpus(job)
                continue
            profile.add(row, nodes, float(self.longest_s[row]))
            self.left[nodes] -= self.needs[row]
            schedule.choice[job] = row
            schedule.nodes[problem.slot_start[job] : problem.slot_start[job] + len(nodes)] = nodes
        lacking = short if short.any() else None
        schedule = replace(wanted, choice=schedule.choice, nodes=schedule.nodes, short=lacking)
        return replace(schedule, capped=capped, shared_w=self.power.shared_w)

    def _has_room(self, row: Index, nodes: Ints) -> Bools:
        """Whether each of *nodes* has what configuration *row* needs there."""
        return np.asarray((self.left[nodes] >= self.needs[row] - _EXACT).all(axis=1))

    def _lacks_cpus(self, job: int) -> bool:
        """Whether there are nodes with the GPUs, but not with the CPUs or memory, that a job needs."""
        problem = self.problem
        own = np.arange(problem.start[job], problem.start[job + 1])
        free = self.left[:, 0].astype(np.int64)
        return self.needs.shape[1] > 1 and any(len(problem.room(row, free)) > 0 for row in own[self.rows[own]].tolist())

    def _place(self, job: int, profile: Timetable) -> tuple[int, Ints, bool]:
        """Return where a job starts, and whether it was power that was short."""
        problem, wish = self.problem, int(self.wanted.choice[job])
        own = np.arange(problem.start[job], problem.start[job + 1])
        own = own[self.rows[own] | (own == wish)]
        late = problem.now_s + problem.time_s[own] >= problem.due_s[job]
        order = ranked(own != wish, late, np.where(late, problem.time_s[own], problem.run_cost[own]))
        short = False
        for row in own[order].tolist():
            nodes = self.wanted.nodes_of(problem, job) if row == wish else np.zeros(0, dtype=np.int64)
            if not len(nodes) or not self._has_room(row, nodes).all():
                alike = np.flatnonzero(problem.node_class == problem.klass[row])
                fit = alike[self._has_room(row, alike)]
                fit = fit if len(fit) >= problem.width[row] else fit[:0]
                nodes = fit[ranked(~profile.on(fit), self.left[fit, 0])][: problem.width[row]]
            if len(nodes) and profile.has_power(row, nodes, time_s=float(self.longest_s[row])):
                return row, nodes, False
            short |= len(nodes) > 0
        return POSTPONED, np.zeros(0, dtype=np.int64), short
