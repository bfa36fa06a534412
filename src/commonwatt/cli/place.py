"""``commonwatt place``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import (
    PluginChoice,
    compiling,
    json_option,
    naming_file,
    plot_option,
    print_json,
    print_message,
    seed_option,
)

if TYPE_CHECKING:
    from commonwatt.model.results import PlaceResult

__all__ = ["command"]

SOLVERS = (
    "best", "random-greedy", "local-search", "lookahead", "exact", "fifo", "edf", "priority", "srtf", "easy",
    "fair-share",
)  # fmt: skip


@click.command()
@click.argument("problem", type=click.Path(path_type=Path))
@click.option(
    "--solver",
    type=PluginChoice(SOLVERS, "solvers"),
    default="best",
    show_default=True,
    help="Solver or policy to place by; best: local search, with a bound on the optimum.",
)
@click.option(
    "--iterations", type=click.IntRange(min=1), default=1000, show_default=True,
    help="Candidate schedules of random-greedy; best and local-search take 20 steps for each.",
)  # fmt: skip
@click.option(
    "--time-limit", "time_limit_s", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
    help="Stop after this time with the best schedule so far.",
)  # fmt: skip
@plot_option("the schedule")
@seed_option
@json_option
def command(
    problem: Path,
    *,
    solver: str,
    iterations: int,
    time_limit_s: float | None,
    plot: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Place the jobs of PROBLEM (YAML or JSON): choose the node and the GPUs of each, or postpone it.

    \b
    Example:
      commonwatt place examples/place.yaml --solver exact --json
    """
    result, currency = _solve(problem, solver, iterations, time_limit_s, plot, seed)
    if as_json:
        print_json(result)
    else:
        _tell(result, currency)


def _solve(
    path: Path, solver: str, iterations: int, time_limit_s: float | None, plot: Path | None, seed: int
) -> tuple[PlaceResult, str]:
    from commonwatt.data.files import load_yaml
    from commonwatt.model.place_file import PlaceFile
    from commonwatt.model.plugins import chosen, valid
    from commonwatt.placement import PlacementProblem, Schedule, solve_file

    file, by = load_yaml(path, PlaceFile), chosen("solvers", solver, SOLVERS)
    with naming_file(path), compiling(f"solver {solver}") as watch, valid("solvers", solver, SOLVERS):
        result = solve_file(
            file, clock=lambda: watch.elapsed_s, solver=by, iterations=iterations, time_limit_s=time_limit_s,
            seed=seed,
        )  # fmt: skip
    if plot is not None:
        from commonwatt.report.plots import save_schedule

        problem = PlacementProblem.of(file)
        save_schedule(problem, Schedule.of(problem, result), plot)
    return result, file.electricity.currency


def _tell(result: PlaceResult, currency: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from commonwatt.model.units import money, plural

    table = Table(title=f"{result.solver}: objective {money(result.objective, currency)}")
    for heading in ("job", "nodes", "GPUs", "why"):
        table.add_column(heading, overflow="fold")
    given = {a.job: a for a in result.assignments}
    for decision in result.decisions:
        a = given.get(decision.job)
        where, gpus = (", ".join(a.nodes), str(a.gpus)) if a else ("waits", "")
        table.add_row(decision.job, where, gpus, decision.sentence)
    Console().print(table)
    print_message(
        f"tardiness {money(result.tardiness_cost, currency)}, postponement "
        f"{money(result.postponement_cost, currency)}, first-ending jobs {money(result.first_ending_cost, currency)}; "
        f"{plural(result.iterations, 'candidate')} in {result.solve_s:.3f} s"
    )
    if result.bound is not None:
        print_message(_gap(result, result.bound, currency))
    elif result.solver == "best":
        print_message("no bound on the optimum: the problem is too large for one")


def _gap(result: PlaceResult, bound: float, currency: str) -> str:
    if result.optimal:
        return "optimal"
    from commonwatt.model.units import money

    above = f"{result.objective / bound - 1:.2%}" if bound > 0 else money(result.objective - bound, currency)
    return f"at most {above} above the optimum; no schedule costs less than {money(bound, currency)}"
