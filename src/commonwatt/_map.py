"""``cw.map_layers``, and what ``commonwatt map`` shares with it: mappings, schedules and transfers beside a problem."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from commonwatt._api import naming_file, read_given, shown
from commonwatt._stopwatch import without_compiling
from commonwatt.model.errors import ArgumentError
from commonwatt.model.plugins import chosen, valid

if TYPE_CHECKING:
    from commonwatt._results import LayerMapping
    from commonwatt.mapping import Mapping as Encoding
    from commonwatt.mapping import MappingProblem, Transfer
    from commonwatt.model.map_file import MapFile, MappingFile, TransferFile
    from commonwatt.model.map_results import MapResult, MapSchedule
    from commonwatt.optimize import Solver

__all__ = ["MapTask", "map_layers", "mapper", "mapping_in", "task_of"]

STARTING = ("auto", "gsharp")
"""Algorithms that can search from a given mapping."""

Given = str | Path | Mapping[str, object]
Match = Literal["nearest", "rank"]


class MapTask(NamedTuple):
    """The jobs to map, when they begin, and where a search may start from."""

    file: MapFile
    begin_cycles: float = 0.0
    start: Encoding | None = None


def task_of(file: MapFile, path: Path | None, after: Given | MapSchedule | None, at_cycles: float | None) -> MapTask:
    """Return *file*, read from *path*, beside the schedule *after*, which is at *at_cycles* of its clock.

    Raises
    ------
    InputError
        Only one of the two is given, the schedule begins later, or the two do not share their sub-accelerators.
    """
    from commonwatt.mapping import Mapping as Encoding
    from commonwatt.mapping import MappingProblem, continue_mapping
    from commonwatt.model.map_file import MappingFile
    from commonwatt.model.map_results import MapSchedule

    if (after is None) != (at_cycles is None):
        missing, given, value = ("after", "at_cycles", at_cycles) if after is None else ("at_cycles", "after", after)
        raise ArgumentError(f"`{missing}` beside it", field=given, value=str(value))
    if after is None or at_cycles is None:
        return MapTask(file)
    runs, runs_path = read_given(after, MapSchedule, "after")
    if not at_cycles >= runs.begin_cycles:
        where = "the schedule" if runs_path is None else str(runs_path)
        raise ArgumentError(f"{runs.begin_cycles:g} or more, where {where} begins", field="at_cycles", value=at_cycles)
    with naming_file(runs_path):
        genes = MappingFile(accelerator=runs.accelerator, priority=runs.priority)
        mapping = Encoding.of(genes, MappingProblem.of(runs.problem))
    with naming_file(path):
        made = continue_mapping(file, runs.problem, mapping, at_cycles - runs.begin_cycles)
    return MapTask(made.file, at_cycles, made.start)


def mapping_in(given: Given | MappingFile | MapResult, file: MapFile, name: str = "start") -> Encoding:
    """Return a mapping, for the parameter *name*.

    Raises
    ------
    InputError
        It does not place every job of *file* where it can run.
    """
    from commonwatt.mapping import Mapping as Encoding
    from commonwatt.mapping import MappingProblem
    from commonwatt.model.map_file import MappingFile
    from commonwatt.model.map_results import MapEvaluateResult

    if isinstance(given, MapEvaluateResult):
        given = MappingFile(accelerator=given.accelerator, priority=given.priority)
    problem = MappingProblem.of(file)
    genes, path = read_given(given, MappingFile, name)
    with naming_file(path):
        return Encoding.of(genes, problem)


def mapper(
    task: MapTask, algorithm: str, algorithms: Collection[str], budget: int | None, time_limit_s: float | None, *,
    start: Given | MappingFile | MapResult | None, transfer: Given | TransferFile | None, epochs: int | None,
    match: Match | None,
) -> tuple[str | Solver[MappingProblem, Encoding], Encoding | None]:  # fmt: skip
    """Return the algorithm, and the mapping it starts from.

    *algorithms* are the names of our algorithms; others are plugins.

    Raises
    ------
    InputError
        Arguments that do not go together, or a mapping or transfer that does not suit the problem.
    """
    if transfer is None:
        for name, value in (("epochs", epochs), ("match", match)):
            if value is not None:
                raise ArgumentError("`transfer` beside it", field=name, value=value)
    elif algorithm != "auto":
        raise ArgumentError("no algorithm beside `transfer`", field="algorithm", value=algorithm)
    elif start is not None:
        raise ArgumentError("no mapping to start from beside `transfer`", field="start", value=str(start))
    by = chosen("mappers", algorithm, algorithms, budget or (10**9 if time_limit_s else 10_000))
    if transfer is not None:
        return _learnt(transfer, task.file).tuned(epochs or 0, match or "nearest"), None
    if start is not None:
        return by, mapping_in(start, task.file)
    return by, task.start if algorithm in STARTING else None


def _learnt(given: Given | TransferFile, file: MapFile) -> Transfer:
    from commonwatt.mapping import MappingProblem, Transfer
    from commonwatt.model.map_file import TransferFile

    problem = MappingProblem.of(file)
    learnt, path = read_given(given, TransferFile, "transfer")
    with naming_file(path):
        return Transfer.of(learnt, problem)


def map_layers(
    problem: str | Path | Mapping[str, object] | MapFile,
    *,
    algorithm: str = "auto",
    budget: int | None = None,
    time_limit_s: float | None = None,
    objective: str | None = None,
    start: str | Path | Mapping[str, object] | MappingFile | MapResult | None = None,
    after: str | Path | Mapping[str, object] | MapSchedule | None = None,
    at_cycles: float | None = None,
    transfer: str | Path | Mapping[str, object] | TransferFile | None = None,
    epochs: int | None = None,
    match: Match | None = None,
    bound: Literal["sharp", "quick"] = "sharp",
    folder: str | Path | None = None,
    seed: int = 0,
) -> LayerMapping:
    """Map layer jobs onto sub-accelerators that share bandwidth: which one, and in what order.

    Parameters
    ----------
    problem
        A file, its content as a mapping, or a validated problem.
    algorithm
        Name of an algorithm, as ``commonwatt map --algorithm`` takes it.
    budget
        Mappings to evaluate at most. [default: 10,000 without a time limit; no limit with one]
    time_limit_s
        Search for so many seconds, unless the best mapping is proven optimal before. The result then depends on the
        speed of the machine.
    objective
        What is minimised; the problem's if not given.
    start
        Mapping of the same jobs to search from, such as an earlier result; ``auto`` and ``gsharp``.
    after, at_cycles
        A running schedule, such as ``schedule()`` of an earlier result, and its clock now: jobs that run stay, those
        that wait are mapped again beside those of *problem*.
    transfer
        What ``transfer()`` of the mapping of another batch returned: the search starts from that.
    epochs, match
        With *transfer*: generations of fine-tuning [default: 0]; whether similar jobs are paired (``"nearest"``, the
        default) or jobs of equal rank, as in the paper (``"rank"``).
    bound
        Lower bound that the result is compared with: ``"sharp"`` takes up to seconds where bandwidth is short,
        ``"quick"`` milliseconds, for decisions between two batches.
    folder
        Folder that paths in the problem are relative to. [default: the file's, else the current one]
    seed
        Seed of the search.

    Raises
    ------
    InputError
        Something is wrong in the problem or an argument.
    MissingExtraError
        The algorithm needs a package that is not installed.
    """
    from typing import get_args

    from commonwatt._results import LayerMapping
    from commonwatt.data.map_problem import complete
    from commonwatt.mapping import ALGORITHMS, solve_file
    from commonwatt.model.map_file import MapFile
    from commonwatt.model.names import check_choice, check_count

    check_count("epochs", epochs, 0)
    if match is not None:
        check_choice("match", match, get_args(Match))
    file, path = read_given(problem, MapFile)
    base = Path(folder) if folder is not None else Path() if path is None else path.parent
    with naming_file(path):
        file = complete(file, base).file
    task = task_of(file, path, after, at_cycles)
    with naming_file(path), without_compiling() as watch, valid("mappers", algorithm, ALGORITHMS):
        by, first = mapper(
            task, algorithm, ALGORITHMS, budget, time_limit_s, start=start, transfer=transfer, epochs=epochs,
            match=match,
        )  # fmt: skip
        result = solve_file(
            task.file, clock=lambda: watch.elapsed_s, algorithm=by, budget=budget, time_limit_s=time_limit_s,
            objective=objective, start=first, seed=seed, bound=bound,
        )  # fmt: skip

    def draw(to: Path) -> None:
        from commonwatt.report.decision_plots import save_map

        save_map(result, to)

    if objective is not None:
        task = task._replace(file=task.file.model_copy(update={"objective": objective}))
    return shown(LayerMapping, result, draw).of_batch(task.file, task.begin_cycles)
