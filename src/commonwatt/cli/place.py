"""``commonwatt place``."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import blamed_on, digest, json_option, plot_option, print_json, say, seed_option

if TYPE_CHECKING:
    from commonwatt.model.results import PlaceResult

__all__ = ["command"]

SOLVERS = (
    "random-greedy", "local-search", "lookahead", "exact", "fifo", "edf", "priority", "srtf", "easy", "fair-share",
)  # fmt: skip


@click.command()
@click.argument("problem", type=click.Path(path_type=Path))
@click.option("--solver", type=click.Choice(SOLVERS), default="random-greedy", show_default=True)
@click.option(
    "--iterations", type=click.IntRange(min=1), default=1000, show_default=True,
    help="Candidates of random-greedy; local-search takes 20 steps for each.",
)  # fmt: skip
@click.option(
    "--time-limit", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
    help="Stop after so long with the best schedule so far.",
)  # fmt: skip
@plot_option("the schedule")
@seed_option
@json_option
def command(
    problem: Path,
    *,
    solver: str,
    iterations: int,
    time_limit: float | None,
    plot: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Decide which job of PROBLEM (YAML or JSON) runs on which node with how many GPUs now.

    \b
    Example:
      commonwatt place examples/place.yaml --solver exact --json
    """
    result = _solve(problem, solver, iterations, time_limit, plot, seed)
    if as_json:
        print_json(result)
    else:
        _tell(result)


def _solve(
    path: Path, solver: str, iterations: int, time_limit: float | None, plot: Path | None, seed: int
) -> PlaceResult:
    import numpy as np

    from commonwatt import __version__
    from commonwatt.data.files import load_yaml
    from commonwatt.model.errors import InputError
    from commonwatt.model.place_file import PlaceFile
    from commonwatt.model.results import PlaceAssignment, PlaceDecision, PlaceResult
    from commonwatt.placement.explain import Explainer
    from commonwatt.placement.objective import check, objective
    from commonwatt.placement.problem import POSTPONED, Problem
    from commonwatt.placement.solvers import SOLVERS as MAKE
    from commonwatt.placement.solvers import Exact

    file = load_yaml(path, PlaceFile)
    with blamed_on(path):
        problem = Problem.of(file)
    if problem.use_every_node and solver != "exact":
        raise InputError("false, as only solver exact keeps it", file=path, field="use_every_node", value=True)
    chosen = Exact(time_limit_s=time_limit) if solver == "exact" else MAKE[solver](iterations)
    began = perf_counter()
    search = chosen.solve(
        problem, np.random.default_rng(seed), lambda: time_limit is None or perf_counter() - began < time_limit
    )
    solve_s = perf_counter() - began
    schedule = search.schedule
    check(problem, schedule)
    worth = objective(problem, schedule)
    why = Explainer(problem, schedule)
    explained = [(problem.job_names[j], why.explain(j)) for j in range(len(problem))]
    if plot is not None:
        from commonwatt.report.plots import save_schedule

        save_schedule(problem, schedule, plot)
    return PlaceResult(
        version=__version__,
        seed=seed,
        input_digest=digest(file),
        solver=solver,
        objective=worth.total,
        tardiness_cost=worth.tardiness,
        postponement_cost=worth.postponement,
        first_ending_cost=worth.first_ending,
        assignments=tuple(
            PlaceAssignment(job=a.job, node=a.nodes[0], nodes=a.nodes, gpus=a.gpus)
            for a in schedule.assignments(problem)
        ),
        postponed=tuple(problem.job_names[int(j)] for j in np.flatnonzero(schedule.choice == POSTPONED)),
        decisions=tuple(PlaceDecision(job=j, reason=e.reason, sentence=e.sentence) for j, e in explained),
        iterations=search.iterations,
        solve_s=solve_s,
        optimal=search.optimal,
        bound=search.bound,
    )


def _tell(result: PlaceResult) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{result.solver}: objective {result.objective:.6g}")
    for heading in ("job", "nodes", "GPUs", "why"):
        table.add_column(heading, overflow="fold")
    given = {a.job: a for a in result.assignments}
    for decision in result.decisions:
        a = given.get(decision.job)
        where, gpus = (", ".join(a.nodes), str(a.gpus)) if a else ("waits", "")
        table.add_row(decision.job, where, gpus, decision.sentence)
    Console().print(table)
    say(
        f"tardiness {result.tardiness_cost:.6g}, postponement {result.postponement_cost:.6g}, "
        f"first-ending jobs {result.first_ending_cost:.6g}; {result.iterations} candidates in {result.solve_s:.3f} s"
    )
    if result.optimal is not None and result.bound is not None:
        say(f"{'optimal' if result.optimal else 'not proven optimal'}, lower bound {result.bound:.6g}")
