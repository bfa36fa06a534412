"""``commonwatt map PROBLEM`` and ``commonwatt map evaluate``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from commonwatt.cli.output import (
    PluginChoice,
    compiling,
    json_option,
    naming_file,
    plot_option,
    print_json,
    print_message,
    progress_bar,
    seed_option,
)
from commonwatt.model.units import plural

if TYPE_CHECKING:
    from pydantic import BaseModel

    from commonwatt._map import MapTask
    from commonwatt.mapping import Mapping, MappingProblem
    from commonwatt.model.map_results import MapEvaluateResult, MapResult
    from commonwatt.optimize import Solver

__all__ = ["evaluate", "solve", "tell"]

OBJECTIVES = ("latency", "energy", "edp", "satisfaction", "tail", "completion")

ALGORITHMS = (
    "auto", "gsharp", "heft", "fcfs-olb", "fcfs-met", "fcfs-rr", "fcfs-random", "sjf-olb", "sjf-met", "sjf-rr",
    "sjf-random", "random-olb", "random-met", "random-rr", "random-random",
)  # fmt: skip
OTHERS = (
    "exact", "standard-ga", "de", "one-plus-one", "cma", "tbpsa", "pso", "cauchy-lhs", "halton", "hammersley",
    "portfolio", "a2c", "ppo",
)  # fmt: skip


@click.command()
@click.argument("problem", type=click.Path(path_type=Path))
@click.option(
    "--algorithm", type=PluginChoice(ALGORITHMS + OTHERS, "mappers"), default="auto", show_default=True, metavar="NAME",
    help="auto: several starts, then annealing; gsharp; heft (longest first); an order and a rule: "
    "{fcfs,sjf,random}-{olb,met,rr,random}; exact, for about a dozen jobs; or to compare with: " + ", ".join(OTHERS[1:])
    + ".",
)  # fmt: skip
@click.option(
    "--budget", type=click.IntRange(min=1),
    help="Most mappings to evaluate.  [default: 10000; with --time-limit: no limit]",
)  # fmt: skip
@click.option(
    "--time-limit", "time_limit_s", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
    help="Search for this long, unless the best mapping is proven optimal before.  [default for exact: 60]",
)  # fmt: skip
@click.option(
    "--objective", type=click.Choice(OBJECTIVES), metavar="NAME",
    help="Objective: " + ", ".join(OBJECTIVES) + ".  [default: the problem's]",
)  # fmt: skip
@click.option(
    "--start", type=click.Path(path_type=Path), metavar="MAPPING", help="Search from this mapping; auto and gsharp."
)
@click.option(
    "--save-transfer",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Save the mapping for use with other batches.",
)
@click.option(
    "--transfer", type=click.Path(path_type=Path), metavar="FILE", help="Start from the mapping of another batch."
)
@click.option("--epochs", type=click.IntRange(min=0), help="With --transfer: generations of fine-tuning.  [default: 0]")
@click.option(
    "--match", type=click.Choice(("nearest", "rank")),
    help="With --transfer: pair similar jobs, or jobs of equal rank as in the paper.  [default: nearest]",
)  # fmt: skip
@click.option(
    "--schedule", type=click.Path(path_type=Path), metavar="FILE",
    help="Write the schedule (JSON): start, end and bandwidth of each job.",
)  # fmt: skip
@click.option(
    "--after", type=click.Path(path_type=Path), metavar="SCHEDULE",
    help="Map the jobs beside those of a running schedule; needs --at.",
)  # fmt: skip
@click.option(
    "--at", "at_cycles", type=click.FloatRange(min=0), metavar="CYCLES",
    help="With --after: its clock now; running jobs stay, waiting ones are mapped again.",
)  # fmt: skip
@click.option(
    "--bound", type=click.Choice(("sharp", "quick")), default="sharp", show_default=True,
    help="Lower bound to compare with; quick: within milliseconds, for decisions between two batches.",
)  # fmt: skip
@plot_option("the schedule, the bandwidth and the search")
@seed_option
@json_option
def solve(
    problem: Path,
    *,
    algorithm: str,
    budget: int | None,
    time_limit_s: float | None,
    objective: str | None,
    start: Path | None,
    save_transfer: Path | None,
    transfer: Path | None,
    epochs: int | None,
    match: Literal["nearest", "rank"] | None,
    schedule: Path | None,
    after: Path | None,
    at_cycles: float | None,
    bound: Literal["sharp", "quick"],
    plot: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Map the jobs of PROBLEM (YAML or JSON) onto its sub-accelerators, and order them on each."""
    from commonwatt._map import mapper, task_of
    from commonwatt.data.map_problem import load_map
    from commonwatt.mapping import Transfer, build_schedule

    task = task_of(load_map(problem), problem, after, at_cycles)
    if objective is not None:
        task = task._replace(file=task.file.model_copy(update={"objective": objective}))
    with naming_file(problem):
        by, first = mapper(
            task, algorithm, ALGORITHMS + OTHERS, budget, time_limit_s, start=start, transfer=transfer, epochs=epochs,
            match=match,
        )  # fmt: skip
    result = _solve(problem, task, algorithm, by, first, start, budget, time_limit_s, bound, seed)
    if save_transfer is not None:
        _save(save_transfer, Transfer.of_result(task.file, result).file())
    if schedule is not None:
        _save(schedule, build_schedule(task.file, result, begin_cycles=task.begin_cycles))
    if plot is not None:
        from commonwatt.report.decision_plots import save_map

        save_map(result, plot)
        print_message(f"written: {plot}")
    if as_json:
        print_json(result)
    else:
        proven = "; proven optimal" if result.optimal else ""
        tell(
            result,
            f"{result.algorithm}: {plural(result.evaluations, 'mapping')} evaluated in {result.search_s:.3f} s{proven}",
        )


def _solve(
    path: Path, task: MapTask, name: str, by: str | Solver[MappingProblem, Mapping], first: Mapping | None,
    start: Path | None, budget: int | None, time_limit_s: float | None, bound: Literal["sharp", "quick"], seed: int,
) -> MapResult:  # fmt: skip
    from commonwatt.mapping import solve_file
    from commonwatt.model.plugins import valid

    with (
        naming_file(path if start is None else start),
        compiling(f"algorithm {name}") as watch,
        _shown(time_limit_s, task.file.objective, lambda: watch.elapsed_s) as report,
        valid("mappers", name, ALGORITHMS + OTHERS),
    ):
        return solve_file(
            task.file, clock=lambda: watch.elapsed_s, algorithm=by, budget=budget, time_limit_s=time_limit_s,
            start=first, seed=seed, report=report, bound=bound,
        )  # fmt: skip


def _save(path: Path, document: BaseModel) -> None:
    from commonwatt.data.files import write_atomic

    write_atomic(path, document.model_dump_json(indent=1) + "\n")
    print_message(f"written: {path}")


@contextmanager
def _shown(
    limit_s: float | None, objective: str, clock: Callable[[], float]
) -> Iterator[Callable[[float, float], None]]:
    """Show on standard error how much of a time limit has passed, the best mapping so far and its gap."""
    incumbents: list[tuple[float, float]] = []
    if limit_s is None:
        yield lambda *_: None
        return

    def said(*_: object) -> str:
        if not incumbents:
            return ""
        best, bound = incumbents[-1]
        gap = f", gap {100 * max(0.0, best / bound - 1):.3g}%" if bound > 0 else ""
        return f"best {objective} {best:.6g}{gap}"

    began_s = clock()
    with progress_bar("map", 1, limit_s, said) as bar:
        bar.follow(lambda: (clock() - began_s,))
        yield lambda best, bound: incumbents.append((best, bound))
        bar.done()


@click.command(short_help="Score a mapping.")
@click.argument("problem", type=click.Path(path_type=Path))
@click.argument("mapping", type=click.Path(path_type=Path))
@click.option("--after", type=click.Path(path_type=Path), metavar="SCHEDULE", help="The running schedule, as in `map`.")
@click.option("--at", "at_cycles", type=click.FloatRange(min=0), metavar="CYCLES", help="As in `map`, with --after.")
@plot_option("the schedule")
@seed_option
@json_option
def evaluate(
    problem: Path,
    mapping: Path,
    *,
    after: Path | None,
    at_cycles: float | None,
    plot: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Score MAPPING: a file with `accelerator` and `priority` for every job of PROBLEM, such as a schedule.

    \b
    Example:
      commonwatt map evaluate examples/map.yaml mapping.json --json
    """
    from commonwatt._map import mapping_in, task_of
    from commonwatt.data.map_problem import load_map
    from commonwatt.mapping import evaluate as score

    file = task_of(load_map(problem), problem, after, at_cycles).file
    with naming_file(problem):
        result = score(file, mapping_in(mapping, file, "mapping"), seed=seed)
    if plot is not None:
        from commonwatt.report.decision_plots import save_map

        save_map(result, plot)
        print_message(f"written: {plot}")
    if as_json:
        print_json(result)
    else:
        tell(result, f"{mapping}")


_UNITS = {
    "energy": " nJ", "edp": " nJ cycles", "satisfaction": " of the jobs", "tail": " cycles", "completion": " cycles",
}  # fmt: skip


def tell(result: MapEvaluateResult, title: str) -> None:
    """Print the sub-accelerators with their jobs, then the totals."""
    from rich.console import Console
    from rich.table import Table

    from commonwatt.report import format as fmt

    table = Table(title=title)
    for heading in ("sub-accelerator", "jobs", "ends, cycles", "in this order"):
        table.add_column(heading, overflow="fold", justify="left" if heading == "in this order" else "right")
    for a, end in enumerate(result.accelerator_end_cycles):
        order = [job.job for job in sorted(result.jobs, key=lambda job: job.start_cycles) if job.accelerator == a]
        table.add_row(str(a), str(len(order)), fmt.cycles(end), ", ".join(map(str, order)))
    Console().print(table)
    worth = "proven optimal" if result.optimal else f"at most {100 * result.gap:.3g}% above the best possible"
    if result.objective != "latency":
        print_message(f"{result.objective}: {result.objective_value:.6g}{_UNITS[result.objective]}")
    if result.target_met is not None:
        print_message("the target of the makespan is " + ("met" if result.target_met else "not met"))
    print_message(
        f"makespan {fmt.cycles(result.makespan_cycles)} cycles, {worth} (lower bound "
        f"{fmt.cycles(result.lower_bound_cycles)}); bandwidth is short for "
        f"{fmt.cycles(result.bandwidth_limited_cycles)} cycles"
    )
