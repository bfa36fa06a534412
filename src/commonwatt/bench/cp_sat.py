"""OR-tools' CP-SAT as a peer: a placement decision, and the assignment of jobs to sub-accelerators.

CP-SAT has one worker, a seed and a limit in its deterministic time, which counts work and not seconds, so that it finds
the same on a busy machine. Coefficients are whole numbers. What it finds is judged by our evaluators.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from time import process_time
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from commonwatt.model.errors import SolverError

if TYPE_CHECKING:
    from commonwatt.mapping import Mapping, MappingProblem
    from commonwatt.optimize import KeepGoing, SearchResult
    from commonwatt.placement import PlacementProblem, Schedule

__all__ = ["CpSatMapping", "CpSatPlacement"]

T = TypeVar("T")
_WHOLE = 10**9
"""What the largest coefficient of a program becomes."""


@dataclass
class _Apart:
    """A process of its own for CP-SAT: OR-tools and highspy bring shared libraries of one name, and only the first
    that is loaded in a process works.

    Attributes
    ----------
    spent_s
        Processor time there, without starting it and importing OR-tools.
    """  # noqa: D205

    spent_s: float = 0.0

    def call(self, function: Callable[..., T], *arguments: Any) -> T:  # noqa: ANN401
        """Return what *function*, of this module, returns there."""
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            answer, spent_s = pool.submit(_timed, function, *arguments).result()
        self.spent_s += spent_s
        return answer


def _timed(function: Callable[..., T], *arguments: Any) -> tuple[T, float]:  # noqa: ANN401
    import ortools.sat.python.cp_model  # noqa: F401

    began_s = process_time()
    return function(*arguments), process_time() - began_s


def _solved(model: Any, limit: float, seed: int, *, presolve: bool = True) -> Any:  # noqa: ANN401
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.cp_model_presolve = presolve
    solver.parameters.max_deterministic_time = limit
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        msg = f"CP-SAT found nothing within its limit: status {status}"
        raise SolverError(msg)
    return solver


# -- placement


@dataclass(frozen=True)
class CpSatPlacement:
    """Eq. (1) for jobs that wait and take one node each, in Booleans.

    ``x[i]``: item i, a configuration on a node, is chosen. ``f[i]``: it is the first-ending one of its node, whose run
    the objective counts. With the items of a node in order of their ends,

        at most one x of a job;  GPUs of x on a node at most those it has;
        at most one f of a node;  f[i] only with x[i];  x[i] only with an f up to i.

    Attributes
    ----------
    seed
        Of CP-SAT.
    limit
        Deterministic time.
    """

    seed: int = 0
    limit: float = 20.0
    apart: _Apart = field(default_factory=_Apart)

    plans: ClassVar[bool] = False
    leaves_room: ClassVar[bool] = True

    def solve(
        self, problem: PlacementProblem, rng: np.random.Generator, keep_going: KeepGoing | None = None  # noqa: ARG002
    ) -> SearchResult[Schedule]:  # fmt: skip
        """Return the best schedule found. Raises ``SolverError`` for gangs and running jobs: it does not state them."""
        from commonwatt.optimize import SearchResult
        from commonwatt.placement import Schedule, objective

        if (problem.width > 1).any() or (problem.stay >= 0).any() or problem.node_wait_s.any():
            msg = "CP-SAT: stated for jobs that wait, one node each, on nodes that are awake"
            raise SolverError(msg)
        schedule = Schedule.empty(problem)
        for row, node in self.apart.call(_placed, problem, self.limit, self.seed):
            job = problem.row_job[row]
            schedule.choice[job], schedule.nodes[problem.slot_start[job]] = row, node
        return SearchResult(schedule, objective(problem, schedule).total)


def _placed(problem: PlacementProblem, limit: float, seed: int) -> list[tuple[int, int]]:
    """Return the chosen configurations, and the node of each."""
    from ortools.sat.python import cp_model

    row, node = np.nonzero(
        (problem.klass[:, None] == problem.node_class) & (problem.per_node[:, None] <= problem.node_gpus)
    )
    job, time_s = problem.row_job[row], problem.time_s[row]
    late_s = np.maximum(0.0, problem.now_s + time_s - problem.due_s[job])
    alone = problem.weight[job] * late_s - problem.postponed_cost[job]  # against postponing it
    first = problem.node_cost[row]
    scale = _WHOLE / max(np.abs(alone).max(initial=0.0), first.max(initial=0.0), 1e-300)

    model = cp_model.CpModel()
    x = [model.new_bool_var("") for _ in row]
    f = [model.new_bool_var("") for _ in row]
    for j in range(len(problem)):
        model.add_at_most_one(x[i] for i in np.flatnonzero(job == j).tolist())
    starts = []
    for n in range(len(problem.node_gpus)):
        here = np.flatnonzero(node == n)
        here = here[np.lexsort((job[here], time_s[here]))].tolist()
        model.add(sum(int(problem.per_node[row[i]]) * x[i] for i in here) <= int(problem.node_gpus[n]))
        model.add_at_most_one(f[i] for i in here)
        before: list[Any] = []
        for i in here:
            up_to = model.new_bool_var("")  # an f up to i
            model.add(up_to == sum([f[i], *before]))
            model.add_implication(f[i], x[i])
            model.add_implication(x[i], up_to)
            before = [up_to]
            starts.append(up_to)
    for variable in (*x, *f, *starts):  # everybody waits: where it begins
        model.add_hint(variable, 0)
    whole = np.round(np.concatenate([alone, first]) * scale).astype(np.int64).tolist()
    model.minimize(cp_model.LinearExpr.weighted_sum([*x, *f], whole))
    solver = _solved(model, limit, seed, presolve=False)  # of a large problem it would take the whole limit
    return [(int(row[i]), int(node[i])) for i in range(len(row)) if solver.boolean_value(x[i])]


# -- mapping


@dataclass(frozen=True)
class CpSatMapping:
    """Jobs on sub-accelerators so that what their loads, excess and volume allow is least; each queue longest first.

    Whatever the order, a mapping takes at least ``max(load + E, V)``: the latencies of one sub-accelerator plus all
    excess over the system bandwidth, or all volume. CP-SAT assigns jobs so that this is least; it states no order.
    """

    seed: int = 0
    limit: float = 5.0
    apart: _Apart = field(default_factory=_Apart)

    def solve(
        self, problem: MappingProblem, rng: np.random.Generator, keep_going: KeepGoing | None = None  # noqa: ARG002
    ) -> SearchResult[Mapping]:  # fmt: skip
        """Return the mapping of the best assignment found."""
        from commonwatt.mapping import Mapping, timeline
        from commonwatt.optimize import SearchResult

        where = np.array(self.apart.call(_assigned, problem, self.limit, self.seed))
        mapping = Mapping(where, -problem.latency[np.arange(len(problem)), where])
        return SearchResult(mapping, float(timeline(problem, mapping).makespan))


def _assigned(problem: MappingProblem, limit: float, seed: int) -> list[int]:
    """Return the sub-accelerator of each job."""
    from ortools.sat.python import cp_model

    latency = np.where(problem.possible, problem.latency, 0.0)
    share = problem.bandwidth / problem.system_bandwidth
    scale = _WHOLE / (latency * np.maximum(1.0, share)).max()
    load, excess, volume = (
        np.ceil(latency * part * scale).astype(np.int64) for part in (1.0, np.maximum(0.0, share - 1.0), share)
    )
    model = cp_model.CpModel()
    on = {(j, a): model.new_bool_var("") for j, a in np.argwhere(problem.possible).tolist()}
    for j in range(len(problem)):
        model.add_exactly_one(x for (i, _), x in on.items() if i == j)
    worst = int((load + excess + volume).max(axis=1).sum())
    least, all_excess = model.new_int_var(0, worst, ""), model.new_int_var(0, worst, "")
    model.add(all_excess == sum(int(excess[pair]) * x for pair, x in on.items()))
    model.add(sum(int(volume[pair]) * x for pair, x in on.items()) <= least)
    for a in range(problem.accelerators):
        model.add(sum(int(load[pair]) * x for pair, x in on.items() if pair[1] == a) + all_excess <= least)
    model.minimize(least)
    solver = _solved(model, limit, seed)
    where = [0] * len(problem)
    for (j, a), x in on.items():
        if solver.boolean_value(x):
            where[j] = a
    return where
