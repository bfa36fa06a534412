"""``commonwatt map PROBLEM``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.map.show import described, read_mapping, tell
from commonwatt.cli.output import blamed_on, json_option, plot_option, print_json, say, seed_option

if TYPE_CHECKING:
    from commonwatt.model.map_results import MapResult

__all__ = ["solve"]

OBJECTIVES = ("latency", "energy", "edp", "satisfaction", "tail", "completion")

ALGORITHMS = (
    "auto", "gsharp", "heft", "fcfs-olb", "fcfs-met", "fcfs-rr", "fcfs-random", "sjf-olb", "sjf-met", "sjf-rr",
    "sjf-random", "random-olb", "random-met", "random-rr", "random-random",
)  # fmt: skip


@click.command()
@click.argument("problem", type=click.Path(path_type=Path))
@click.option(
    "--algorithm", type=click.Choice(ALGORITHMS), default="auto", show_default=True, metavar="NAME",
    help="auto: rules, then G#, then annealing; gsharp; heft (longest first); or an order and a rule: "
    "{fcfs,sjf,random}-{olb,met,rr,random}.",
)  # fmt: skip
@click.option(
    "--budget", type=click.IntRange(min=1), default=10_000, show_default=True, help="Mappings to evaluate at most."
)
@click.option(
    "--time-limit", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
    help="Stop after so long with the best mapping so far.",
)  # fmt: skip
@click.option(
    "--objective", type=click.Choice(OBJECTIVES), metavar="NAME",
    help="What is made small: " + ", ".join(OBJECTIVES) + "; by default what PROBLEM says.",
)  # fmt: skip
@click.option(
    "--start", type=click.Path(path_type=Path), metavar="MAPPING", help="Search from this mapping; auto and gsharp."
)
@plot_option("the schedule, the bandwidth and the search")
@seed_option
@json_option
def solve(
    problem: Path,
    *,
    algorithm: str,
    budget: int,
    time_limit: float | None,
    objective: str | None,
    start: Path | None,
    plot: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Map the jobs of PROBLEM (YAML or JSON) onto its sub-accelerators: which one, and in what order."""
    result = _solve(problem, algorithm, budget, time_limit, objective, start, seed)
    if plot is not None:
        from commonwatt.report.map_plots import save_map

        save_map(result, plot)
        say(f"written: {plot}")
    if as_json:
        print_json(result)
    else:
        tell(result, f"{algorithm}: {result.evaluations} mappings evaluated in {result.search_s:.3f} s")


def _solve(
    path: Path, name: str, budget: int, time_limit: float | None, objective: str | None, start: Path | None, seed: int
) -> MapResult:
    from time import perf_counter

    import numpy as np

    from commonwatt.data.map_problem import load_map
    from commonwatt.mapping.algorithms import ALGORITHMS as MAKE
    from commonwatt.mapping.algorithms import warmed
    from commonwatt.mapping.problem import Problem
    from commonwatt.model.map_results import MapProgress, MapResult

    file = load_map(path)
    if objective is not None:
        file = file.model_copy(update={"objective": objective})
    with blamed_on(path):
        problem = Problem.of(file)
    algorithm = MAKE[name](budget)
    if start is not None:
        with blamed_on(start):
            algorithm = warmed(algorithm, read_mapping(start, problem))
    began = perf_counter()
    search = algorithm.solve(
        problem, np.random.default_rng(seed), lambda: time_limit is None or perf_counter() - began < time_limit
    )
    search_s = perf_counter() - began
    return MapResult(
        **described(file, problem, search.mapping, seed),
        algorithm=name,
        evaluations=search.evaluations,
        history=tuple(MapProgress(evaluations=spent, best=best) for spent, best in search.history),
        search_s=search_s,
    )
