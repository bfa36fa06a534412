"""The exact optimum: the MINLP of ANDREAS, Appendix A, linearised and solved with HiGHS.

``x_r`` = 1 if configuration row ``r`` is run on node ``n``. The product ``alpha * pi`` of eq. (3) is what made
the program non-linear; all run times are known, so on each node the items (job, configuration) can be
sorted by end time once and for all. With ``u_k`` = 1 if any of the first ``k`` items is chosen,

    cost of the first-ending job of the node = sum_k c_k * (u_k - u_{k-1}),
    u_k >= u_{k-1},  u_k >= x_k,  u_k <= u_{k-1} + x_k,

is linear, and ``u`` is integral whenever ``x`` is. A gang of ``w`` nodes adds an integer ``z_r`` with
``sum_n x_rn = w * z_r``. It begins when the last of its nodes is awake: a row of a gang stands there once for each time
``q`` that may be, a *variant* of it, on nodes that wait no longer than ``q``, one of them just as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import SolverError
from commonwatt.optimize import KeepGoing, Program, always, ranked
from commonwatt.placement._objective import objective
from commonwatt.placement._problem import PlacementProblem, PlacementSearch, Schedule
from commonwatt.placement._random_greedy import RandomGreedy

__all__ = ["Exact"]


@dataclass(frozen=True)
class Exact:
    """Branch and bound.

    Attributes
    ----------
    time_limit_s
        Stop after so long with the best schedule and bound so far; no limit if ``None``. HiGHS keeps this time
        itself: the one solver that looks at a clock.
    gap
        Relative gap at which a schedule counts as optimal.
    most_nodes
        Stop after so many nodes of the tree with the best schedule and bound so far; no limit if ``None``.
    """

    time_limit_s: float | None = None
    gap: float = 1e-9
    most_nodes: int | None = None

    plans: ClassVar[bool] = False
    leaves_room: ClassVar[bool] = True
    by_objective: ClassVar[bool] = True

    def solve(
        self, problem: PlacementProblem, rng: np.random.Generator, keep_going: KeepGoing = always  # noqa: ARG002
    ) -> PlacementSearch:  # fmt: skip
        """Return the optimum, or the best known at the time limit; raises ``SolverError`` if HiGHS fails."""
        if not len(problem):
            return PlacementSearch(Schedule.empty(problem), 0.0, optimal=True, bound=0.0)
        program = _Program(problem)
        solution = program.program.minimise(
            time_limit_s=self.time_limit_s, gap=self.gap, most_nodes=self.most_nodes
        )  # fmt: skip
        optimal = solution.status == "optimal"
        schedules = [] if solution.x is None else [program.schedule(solution.x)]
        if not optimal and not problem.use_every_node:
            schedules.append(RandomGreedy().solve(problem, rng).best)
        if not schedules:
            why = "there is none" if solution.status == "infeasible" else f"{self.time_limit_s} s are too short"
            msg = f"HiGHS found no schedule: {why}"
            raise SolverError(msg)
        costs = [objective(problem, schedule).total for schedule in schedules]
        least = int(np.argmin(costs))
        return PlacementSearch(schedules[least], costs[least], optimal=optimal, bound=program.worth(solution.bound))

    def items(self, problem: PlacementProblem) -> int:
        """Return how many pairs of a configuration and a node there are: the size of the program."""
        return sum(int(np.sum(problem.node_class == klass)) for klass in problem.klass)

    def bound(self, problem: PlacementProblem) -> float | None:
        """Return what no schedule can cost less than: the optimum without integers."""
        program = _Program(problem)
        return program.worth(program.program.minimise(time_limit_s=self.time_limit_s, relaxed=True).bound)


class _Program:
    """Columns: x of each item (variant, node), u of each item in order of end on its node, z of each variant."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = p = problem
        variants = [(r, wait_s, nodes) for r in range(len(p.time_s)) for wait_s, nodes in self._variants(r)]
        self.of_row = np.array([r for r, _, _ in variants], dtype=np.int64)
        self.wait_s = np.array([wait_s for _, wait_s, _ in variants])
        self.variant = np.repeat(np.arange(len(variants)), [len(nodes) for _, _, nodes in variants])
        self.node = np.concatenate([nodes for _, _, nodes in variants])
        self.row = self.of_row[self.variant]
        self.job = p.row_job[self.row]
        self.items = len(self.node)
        wait_s = self.wait_s[self.variant]
        self.end_s = p.time_s[self.row] + np.where(np.isnan(wait_s), p.node_wait_s[self.node], wait_s)
        self.columns = 2 * self.items + len(variants)
        self.constant = float(p.postponed_cost.sum())
        cost = self._costs()
        self.scale = float(np.abs(cost).max()) or 1.0
        whole = np.ones(self.columns, dtype=bool)
        whole[self.items : 2 * self.items] = False
        self.program = Program()
        self.program.columns(cost / self.scale, high=1.0, whole=whole)
        self._constraints()

    def _variants(self, row: int) -> list[tuple[float, Ints]]:
        """When a row begins, and its nodes; not a number: when its one node is awake."""
        p = self.problem
        job = int(p.row_job[row])
        if row == p.stay[job]:
            nodes = p.nodes_held(job)
            return [(float(p.node_wait_s[nodes].max()), nodes)]
        fit = np.flatnonzero((p.node_class == p.klass[row]) & (p.node_gpus >= p.per_node[row]))
        if p.width[row] == 1 or len(fit) < p.width[row]:
            return [(np.nan, fit if p.width[row] == 1 else fit[:0])]
        waits = np.sort(p.node_wait_s[fit])[p.width[row] - 1 :]
        return [(float(q), fit[p.node_wait_s[fit] <= q]) for q in np.unique(waits)]

    def _costs(self) -> Floats:
        p = self.problem
        late_s = p.late_s(self.job, p.now_s + self.end_s, p.time_s[self.row])
        cost = np.zeros(self.columns)
        cost[: self.items] = p.weight[self.job] * late_s / p.width[self.row]
        z = 2 * self.items
        cost[z:] -= p.postponed_cost[p.row_job[self.of_row]]
        for order in self._by_end():
            c = p.node_cost[self.row[order]]
            cost[self.items + order] += c - np.append(c[1:], 0.0)
        return cost

    def _by_end(self) -> Iterator[Ints]:
        """Items of each node in the order in which they would end, ties by job."""
        for n in range(len(self.problem.node_names)):
            here = np.flatnonzero(self.node == n)
            yield here[ranked(self.end_s[here], self.job[here])]

    def _constraints(self) -> None:
        p, items = self.problem, self.items
        z = 2 * items
        for v, r in enumerate(self.of_row):  # all nodes of a gang or none, one of them the last to wake
            here = np.flatnonzero(self.variant == v)
            self.program.row([*here, z + v], [1.0] * len(here) + [-float(p.width[r])], 0, 0)
            last = here[p.node_wait_s[self.node[here]] == self.wait_s[v]]
            if p.width[r] > 1 and len(last) < len(here):
                self.program.row([*last, z + v], [1.0] * len(last) + [-1.0], 0, np.inf)
        for j in range(len(p)):  # (4d), (4e): at most one configuration
            own = np.flatnonzero(p.row_job[self.of_row] == j)
            self.program.row(z + own, np.ones(len(own)), 0, 1)
        if p.locked:
            for kept in np.flatnonzero(np.isin(self.of_row, p.stay[p.stay >= 0])):
                self.program.row([z + int(kept)], [1.0], 1, 1)
        opened = []
        for n, order in enumerate(self._by_end()):
            self.program.row(order, p.per_node[self.row[order]].astype(float), 0, float(p.node_gpus[n]))  # (4g), (4h)
            for k, item in enumerate(order):  # the first-ending job
                u, before = items + int(item), ([items + int(order[k - 1])] if k else [])
                self.program.row([u, item], [1.0, -1.0], 0, np.inf)
                self.program.row([u, item, *before], [1.0, -1.0] + [-1.0] * len(before), -np.inf, 0)
                if before:
                    self.program.row([u, *before], [1.0, -1.0], 0, np.inf)
            if len(order):
                opened.append(items + int(order[-1]))
        if p.use_every_node:  # (4n)
            wanted = min(len(p.node_names), len(p))
            self.program.row(opened, [1.0] * len(opened), wanted, wanted)

    def worth(self, value: float) -> float | None:
        """Return the cost of a value of the program; ``None`` for an infinite one."""
        return value * self.scale + self.constant if np.isfinite(value) else None

    def schedule(self, x: Floats) -> Schedule:
        p = self.problem
        schedule = Schedule.empty(p)
        filled = p.slot_start[:-1].copy()
        for item in np.flatnonzero(x[: self.items] > 0.5):
            job = self.job[item]
            schedule.choice[job] = self.row[item]
            schedule.nodes[filled[job]] = self.node[item]
            filled[job] += 1
        return schedule
