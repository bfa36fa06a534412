"""``commonwatt map PROBLEM`` and ``commonwatt map evaluate``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import click

from commonwatt.cli.output import (
    PluginChoice,
    blamed_on,
    compiling,
    json_option,
    plot_option,
    print_json,
    progress_bar,
    say,
    seed_option,
)
from commonwatt.model.units import plural

if TYPE_CHECKING:
    from commonwatt.mapping import Mapping, Transfer
    from commonwatt.model.map_file import MapFile
    from commonwatt.model.map_results import MapEvaluateResult, MapResult

__all__ = ["MapTask", "evaluate", "read_mapping", "read_task", "solve", "tell"]

WARMED = ("auto", "gsharp")

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
    plot: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Map the jobs of PROBLEM (YAML or JSON) onto its sub-accelerators, and order them on each."""
    _check_options(algorithm, start, transfer, {"--epochs": epochs, "--match": match})
    learnt = None if transfer is None else (transfer, epochs or 0, match or "nearest")
    task = read_task(problem, after, at_cycles)
    result = _solve(problem, task, algorithm, budget, time_limit_s, objective, start, learnt, save_transfer, seed)
    if schedule is not None:
        _save_schedule(schedule, task, result, objective)
    if plot is not None:
        from commonwatt.report.decision_plots import save_map

        save_map(result, plot)
        say(f"written: {plot}")
    if as_json:
        print_json(result)
    else:
        proven = "; proven optimal" if result.optimal else ""
        tell(
            result,
            f"{result.algorithm}: {plural(result.evaluations, 'mapping')} evaluated in {result.search_s:.3f} s{proven}",
        )


def _check_options(
    algorithm: str, start: Path | None, transfer: Path | None, of_transfer: dict[str, int | str | None]
) -> None:
    from commonwatt.model.errors import InputError

    if transfer is None:
        for name, value in of_transfer.items():
            if value is not None:
                raise InputError("--transfer beside it", field=name, value=value)
    elif algorithm != "auto":
        raise InputError("no algorithm beside --transfer", field="--algorithm", value=algorithm)
    elif start is not None:
        raise InputError("no mapping to start from beside --transfer", field="--start", value=start)


def _solve(
    path: Path, task: MapTask, name: str, budget: int | None, time_limit_s: float | None, objective: str | None,
    start: Path | None, learnt: tuple[Path, int, Literal["nearest", "rank"]] | None, save_to: Path | None, seed: int,
) -> MapResult:  # fmt: skip
    from commonwatt.mapping import answer
    from commonwatt.plugins import chosen, valid

    file = task.file
    if objective is not None:
        file = file.model_copy(update={"objective": objective})
    spent = budget or (10**9 if time_limit_s else 10_000)
    by = chosen("mappers", name, ALGORITHMS + OTHERS, spent)
    with blamed_on(path):
        algorithm = by if learnt is None else _transfer(file, learnt[0]).tuned(*learnt[1:])
        first = task.start if start is None else read_mapping(start, file)
    if name not in WARMED or learnt is not None:
        first = None if start is None else first
    with (
        blamed_on(path if start is None else start),
        compiling(f"algorithm {name}") as watch,
        _shown(time_limit_s, file.objective, lambda: watch.elapsed_s) as report,
        valid("mappers", name, ALGORITHMS + OTHERS),
    ):
        result = answer(
            file, clock=lambda: watch.elapsed_s, algorithm=algorithm, budget=budget, time_limit_s=time_limit_s,
            start=first, seed=seed, report=report,
        )  # fmt: skip
    if save_to is not None:
        _save_transfer(save_to, file, result)
    return result


class MapTask(NamedTuple):
    """The jobs to map, when they begin, and where a search may start from."""

    file: MapFile
    begin_cycles: float = 0.0
    start: Mapping | None = None


def read_task(path: Path, after: Path | None, at_cycles: float | None) -> MapTask:
    """Read a problem and, with *after*, the schedule that runs beside it. Raises ``InputError`` as they do."""
    from commonwatt.data.files import load_yaml
    from commonwatt.data.map_problem import load_map
    from commonwatt.mapping import Mapping, MappingProblem, continued
    from commonwatt.model.errors import InputError
    from commonwatt.model.map_file import MappingFile
    from commonwatt.model.map_results import MapSchedule

    file = load_map(path)
    if (after is None) != (at_cycles is None):
        missing, given = ("--after", "--at") if after is None else ("--at", "--after")
        raise InputError(f"{missing} beside it", field=given, value=at_cycles if after is None else after)
    if after is None or at_cycles is None:
        return MapTask(file)
    runs = load_yaml(after, MapSchedule)
    if at_cycles < runs.begin_cycles:
        raise InputError(f"{runs.begin_cycles:g} or more, where {after} begins", field="--at", value=at_cycles)
    with blamed_on(after):
        genes = MappingFile(accelerator=runs.accelerator, priority=runs.priority)
        mapping = Mapping.of(genes, MappingProblem.of(runs.problem))
    with blamed_on(path):
        made = continued(file, runs.problem, mapping, at_cycles - runs.begin_cycles)
    return MapTask(made.file, at_cycles, made.start)


def _save_schedule(path: Path, task: MapTask, result: MapResult, objective: str | None) -> None:
    from commonwatt.data.files import write_atomic
    from commonwatt.mapping import scheduled

    file = task.file if objective is None else task.file.model_copy(update={"objective": objective})
    write_atomic(path, scheduled(file, result, begin_cycles=task.begin_cycles).model_dump_json(indent=1) + "\n")
    say(f"written: {path}")


@contextmanager
def _shown(
    limit_s: float | None, objective: str, clock: Callable[[], float]
) -> Iterator[Callable[[float, float], None]]:
    """Show on standard error how much of a time limit has passed, the best mapping so far and its gap."""
    found: list[tuple[float, float]] = []
    if limit_s is None:
        yield lambda *_: None
        return

    def said(*_: object) -> str:
        if not found:
            return ""
        best, bound = found[-1]
        gap = f", gap {100 * max(0.0, best / bound - 1):.3g}%" if bound > 0 else ""
        return f"best {objective} {best:.6g}{gap}"

    began_s = clock()
    with progress_bar("map", 1, limit_s, said) as bar:
        bar.follow(lambda: (clock() - began_s,))
        yield lambda best, bound: found.append((best, bound))
        bar.done()


def _transfer(file: MapFile, path: Path) -> Transfer:
    """Read a transfer of another batch; raises ``InputError`` if it does not suit this one."""
    from commonwatt.data.files import load_yaml
    from commonwatt.mapping import MappingProblem, Transfer
    from commonwatt.model.map_file import TransferFile

    learnt, problem = load_yaml(path, TransferFile), MappingProblem.of(file)
    with blamed_on(path):
        return Transfer.of(learnt, problem)


def _save_transfer(path: Path, file: MapFile, result: MapResult) -> None:
    from commonwatt.data.files import write_atomic
    from commonwatt.mapping import Mapping, MappingProblem, Transfer
    from commonwatt.model.map_file import MappingFile

    problem = MappingProblem.of(file)
    mapping = Mapping.of(MappingFile(accelerator=result.accelerator, priority=result.priority), problem)
    write_atomic(path, Transfer.learn(problem, mapping).file().model_dump_json(indent=1) + "\n")
    say(f"written: {path}")


@click.command()
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
    from commonwatt.mapping import evaluate as score

    file = read_task(problem, after, at_cycles).file
    with blamed_on(problem):
        result = score(file, read_mapping(mapping, file), seed=seed)
    if plot is not None:
        from commonwatt.report.decision_plots import save_map

        save_map(result, plot)
        say(f"written: {plot}")
    if as_json:
        print_json(result)
    else:
        tell(result, f"{mapping}")


_UNITS = {
    "energy": " nJ", "edp": " nJ cycles", "satisfaction": " of the jobs", "tail": " cycles", "completion": " cycles",
}  # fmt: skip


def read_mapping(path: Path, file: MapFile) -> Mapping:
    """Read a mapping file; raises ``InputError`` unless it places every job of the problem where it can run."""
    from commonwatt.data.files import load_yaml
    from commonwatt.mapping import Mapping, MappingProblem
    from commonwatt.model.map_file import MappingFile

    genes, problem = load_yaml(path, MappingFile), MappingProblem.of(file)
    with blamed_on(path):
        return Mapping.of(genes, problem)


def tell(result: MapEvaluateResult, title: str) -> None:
    """Print the sub-accelerators with their jobs, then the totals."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for heading in ("sub-accelerator", "jobs", "ends, cycles", "in this order"):
        table.add_column(heading, overflow="fold", justify="left" if heading == "in this order" else "right")
    for a, end in enumerate(result.accelerator_end_cycles):
        order = [job.job for job in sorted(result.jobs, key=lambda job: job.start_cycles) if job.accelerator == a]
        table.add_row(str(a), str(len(order)), f"{end:.6g}", ", ".join(map(str, order)))
    Console().print(table)
    worth = "proven optimal" if result.optimal else f"at most {100 * result.gap:.3g}% above the best possible"
    if result.objective != "latency":
        say(f"{result.objective}: {result.objective_value:.6g}{_UNITS[result.objective]}")
    if result.target_met is not None:
        say("the target of the makespan is " + ("met" if result.target_met else "not met"))
    say(
        f"makespan {result.makespan_cycles:.6g} cycles, {worth} (lower bound "
        f"{result.lower_bound_cycles:.6g}); bandwidth is short for {result.bandwidth_limited_cycles:.6g} cycles"
    )
