"""Solve a problem file, and say why each job runs where it does or waits.

By default with the best schedule there is time for, and how far from the optimum it can be: ours, beyond the paper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from commonwatt.model.errors import InputError
from commonwatt.model.fields import stamp
from commonwatt.model.names import check_choice, check_count, check_number
from commonwatt.model.place_file import PlaceFile
from commonwatt.model.results import PlaceAssignment, PlaceDecision, PlaceResult
from commonwatt.optimize import KeepGoing, always, seeded, within
from commonwatt.placement._exact import Exact
from commonwatt.placement._explain import Explainer
from commonwatt.placement._local_search import LocalSearch
from commonwatt.placement._objective import check, objective
from commonwatt.placement._problem import POSTPONED, PlacementProblem, PlacementSearch, PlacementSolver
from commonwatt.placement._random_greedy import RandomGreedy
from commonwatt.placement._solvers import SOLVERS, make_solver
from commonwatt.placement.guarantees._domains import in_few_domains

__all__ = ["Best", "solve_file"]

MOST_EXACT = 200
"""Pairs of a configuration and a node up to which branch and bound takes seconds."""

MOST_BOUNDED = 5_000
"""Those up to which its linear program takes seconds."""

MOST_NODES = 1_000
"""Nodes of the tree after which branch and bound stops: a limit that does not depend on the machine."""

_CLOSE = 1e-9


@dataclass(frozen=True)
class Best:
    """Local search, beside branch and bound where the problem is small enough, else beside its linear program.

    Attributes
    ----------
    search
        The local search.
    time_limit_s
        Of branch and bound, which reads the clock itself; no limit if ``None``.
    """

    search: LocalSearch = field(default_factory=LocalSearch)
    time_limit_s: float | None = None

    plans: ClassVar[bool] = False
    leaves_room: ClassVar[bool] = True

    def solve(
        self, problem: PlacementProblem, rng: np.random.Generator, keep_going: KeepGoing = always
    ) -> PlacementSearch:
        """Return the best schedule found, with a bound unless the problem is too large for one.

        Raises ``SolverError`` if ``use_every_node`` cannot be met: branch and bound alone keeps it.
        """
        exact = Exact(time_limit_s=self.time_limit_s, most_nodes=MOST_NODES)
        if problem.use_every_node:
            return Exact(time_limit_s=self.time_limit_s).solve(problem, rng)
        search, items = self.search.solve(problem, rng, keep_going), exact.items(problem)
        if not len(problem) or items > MOST_BOUNDED:
            return search
        if items > MOST_EXACT:
            bound, better = exact.bound(problem), search
        else:
            proven = exact.solve(problem, rng)
            bound, better = proven.bound, proven if proven.cost < search.cost - _CLOSE * abs(search.cost) else search
        optimal = bound is not None and better.cost <= bound + _CLOSE * abs(bound)
        return PlacementSearch(better.best, better.cost, search.evaluations, optimal=optimal, bound=bound)


def solve_file(
    file: PlaceFile, *, clock: Callable[[], float], solver: str | PlacementSolver = "best", iterations: int = 1000,
    time_limit_s: float | None = None, seed: int = 0,
) -> PlaceResult:  # fmt: skip
    """Decide which job of *file* runs on which node with how many GPUs now.

    Parameters
    ----------
    clock
        Seconds from any instant, such as ``time.perf_counter``.
    solver
        ``best``, one of ``make_solver``'s names, or a solver; the answer has its ``name``.
    iterations
        Candidates of ``random-greedy``; ``local-search`` and ``best`` take 20 steps for each.
    time_limit_s
        Stop after so long with the best schedule found.
    seed
        Seed of everything random.

    Raises
    ------
    InputError
        If something is wrong in the problem or an argument; the message names it.
    SolverError
        If ``exact`` finds no schedule.
    """
    name = solver if isinstance(solver, str) else str(getattr(solver, "name", type(solver).__name__))
    names = ("best", *SOLVERS)  # without published schedulers, which need what happened before
    if isinstance(solver, str):
        check_choice("solver", solver, names)
    check_count("iterations", iterations)
    check_number("time_limit_s", time_limit_s, above=True)
    check_count("seed", seed, 0)
    problem = PlacementProblem.of(file)
    if problem.use_every_node and name not in ("best", "exact"):
        raise InputError("false, as only solvers best and exact keep it", field="use_every_node", value=True)
    if not isinstance(solver, str):
        chosen: PlacementSolver = solver
    elif solver == "best":
        chosen = Best(LocalSearch(RandomGreedy(iterations), 20 * iterations), time_limit_s)
    else:
        depth = max(1, len(problem))  # every job, where a cluster's backfill looks at the first only
        chosen = make_solver(solver, iterations=iterations, time_limit_s=time_limit_s, depth=depth)
    began_s = clock()
    search = chosen.solve(problem, seeded(seed), within(time_limit_s, clock))
    solve_s = clock() - began_s
    best = in_few_domains(problem, search.best)
    check(problem, best)
    worth, why = objective(problem, best), Explainer(problem, best)
    listed = {name: n for n, name in enumerate(problem.node_names)}
    assigned = [(a.job, tuple(sorted(a.nodes, key=listed.__getitem__)), a.gpus) for a in best.assignments(problem)]
    explained = [(name, why.explain(j)) for j, name in enumerate(problem.job_names)]
    return PlaceResult(
        **stamp(file, seed),
        solver=name,
        objective=worth.total,
        tardiness_cost=worth.tardiness,
        postponement_cost=worth.postponement,
        first_ending_cost=worth.first_ending,
        assignments=tuple(
            PlaceAssignment(job=job, node=nodes[0], nodes=nodes, gpus=gpus) for job, nodes, gpus in assigned
        ),
        postponed=tuple(problem.job_names[int(j)] for j in np.flatnonzero(best.choice == POSTPONED)),
        decisions=tuple(PlaceDecision(job=job, reason=e.reason, sentence=e.sentence) for job, e in explained),
        iterations=search.evaluations,
        solve_s=solve_s,
        optimal=search.optimal,
        bound=search.bound,
    )
