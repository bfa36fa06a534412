"""Batches, platforms and searches of G#'s evaluation, each made once."""

from __future__ import annotations

import csv
import hashlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from commonwatt.data import third_party
from commonwatt.data.layer_batches import BatchClass, sample_batch
from commonwatt.data.layer_files import read_layers
from commonwatt.mapping import ALGORITHMS, GSharp, GSharpSettings, Mapping, MappingProblem
from commonwatt.mapping.costs import MODELS, PLATFORMS, JobTable, Layer, ModelName, job_table
from commonwatt.model.results import ReproducePoint, ReproduceRow
from commonwatt.optimize import SearchResult
from commonwatt.reproduce.papers.etf_plots import Panel

__all__ = [
    "CHOSEN",
    "DRAWS",
    "EVERY",
    "GSHARPS",
    "HEURISTICS",
    "LARGE",
    "MANY",
    "MARGIN",
    "NEAR",
    "ORDERS_OF_MAGNITUDE",
    "PAPERS",
    "SCALE_UP",
    "SMALL",
    "TASKS",
    "TIMES_SMALLER",
    "WAYS",
    "Case",
    "GSharpPart",
    "GSharpStudy",
    "Task",
    "beside_published",
    "published_rules",
    "reference_folder",
]

Task = Literal["vision", "language", "recommendation", "mix"]
TASKS: tuple[Task, ...] = ("vision", "language", "recommendation", "mix")
_BATCHES = {"vision": "conv", "language": "lang", "recommendation": "recom", "mix": "mix"}
_CLASSES: dict[Task, BatchClass] = {
    "vision": "vision", "language": "lang", "recommendation": "recom", "mix": "mix",
}  # fmt: skip
HEURISTICS = (
    *(f"{order}-{where}" for order in ("fcfs", "sjf", "random") for where in ("olb", "met", "rr", "random")), "heft",
)  # fmt: skip
"""Every order of Table 5 with every way to choose a sub-accelerator, and HEFT; it does not say which the paper has."""
DRAWS = 5
"""How often a rule that draws at random is asked; its makespan is the mean."""
PAPERS = GSharpSettings(elites=0.05, parents=0.1, last_parents=0.1, power=0.0, even=1.0)
"""The paper's G#: genes become random values, each as likely (4.2.3). The parts that have children, and that stay, are
those of the published code, as the paper prints none. Ours draws by times, and its parents become fewer."""
GSHARPS = {"gsharp": PAPERS, "our-gsharp": GSharpSettings()}
WAYS = (("gsharp", ""), ("our-gsharp", ", with our G#"))
"""The paper's G#, which is judged, and ours, by the name that ``GSharpStudy.solve`` knows and what rows say of it."""

Case = tuple[str, float]
"""A setting and the bandwidth all share, GB/s."""

SMALL: tuple[Case, ...] = (("S1", 16.0), ("S2", 16.0))
LARGE: tuple[Case, ...] = (("S4", 256.0), ("S5", 256.0))
SCALE_UP: Case = ("S6", 256.0)
EVERY: tuple[Case, ...] = (*SMALL, ("S3", 256.0), *LARGE, SCALE_UP)
"""The six settings, each under the bandwidth of Fig. 7 and 10."""


TIMES_SMALLER: dict[Literal["vision", "language", "recommendation", "mix", "all batches"], tuple[float, ...]] = {
    "vision": (5.5, 5.0), "language": (17.4, 98.0), "recommendation": (297.0, 1233.0), "mix": (25.9, 34.7),
    "all batches": (86.4, 342.7, 610.7),
}  # fmt: skip
"""Fig. 7, small and large, and Fig. 10: mean makespan of all other methods over G#'s, by class."""


MARGIN = 0.01
"""A makespan that is shorter by less counts as equal, in Fig. 9."""
NEAR = 0.01
"""A search has converged once its best is within this of its last."""
MANY = 0.5
"""Many of the rules are more than this part of them."""
ORDERS_OF_MAGNITUDE = 10.0
"""What "orders of magnitude" is at least."""
CHOSEN = (
    f"Thresholds of ours, G#: in Fig. 9 a platform beats another if its makespan is shorter by {MARGIN:.0%} or more; "
    "elsewhere less is less, by however little, and one case that is not refutes a claim on all; many rules "
    f"are more than {MANY:.0%} of them; orders of magnitude are {ORDERS_OF_MAGNITUDE:g} times or more; a search has "
    f"converged once its best is within {NEAR:.0%} of its last."
)


@dataclass
class GSharpPart:
    """Rows and points of one figure or table. ``panels`` draw it, each on its own axes."""

    label: str
    rows: list[ReproduceRow] = field(default_factory=list)
    points: list[ReproducePoint] = field(default_factory=list)
    panels: list[tuple[str, Panel]] = field(default_factory=list)

    def row(
        self, what: str, paper: float | str | bool | None, ours: float | str | bool | None, unit: str = "-",
        note: str = "", *, comparable: bool = True,
    ) -> None:  # fmt: skip
        """Add a finding."""
        self.rows.append(
            ReproduceRow(
                quantity=f"{self.label}: {what}", paper=paper, ours=ours, unit=unit, comparable=comparable, note=note
            )
        )

    def point(self, series: str, what: str, x: float, value: float | None, unit: str = "-") -> None:
        """Add a point of a line."""
        self.points.append(
            ReproducePoint(series=series, quantity=f"{self.label}: {what}", x=x, mean=value, sd=None, unit=unit)
        )

    def draw(self, title: str, panel: Panel) -> None:
        """Add a picture."""
        self.panels.append((f"{self.label}: {title}", panel))


def reference_folder() -> Path | None:
    """Return the folder of the published batches; ``None`` if it is not available."""
    traces = third_party.folder()
    folder = traces.parent / "mapping" if traces is not None else None
    return folder if folder is not None and (folder / "instances").is_dir() else None


@dataclass
class GSharpStudy:
    """Everything the parts ask for more than once.

    Batches are the published ones, by path; where they are not available, 100 layers drawn from our tables of networks.
    """

    seeds: tuple[int, ...]
    budget: int
    instances: tuple[int, ...]
    quick: bool = False
    folder: Path | None = field(default_factory=reference_folder)
    digests: list[str] = field(default_factory=list)
    _layers: dict[tuple[Task, int], tuple[Layer, ...]] = field(default_factory=dict)
    _tables: dict[tuple[Task, str, int, ModelName], JobTable] = field(default_factory=dict)
    _searches: dict[tuple[str, Task, Case, int, ModelName, int], SearchResult[Mapping]] = field(default_factory=dict)
    _published: dict[tuple[str, str, int, str, float], float] | None = None

    def layers(self, task: Task, instance: int = 0) -> tuple[Layer, ...]:
        """Return a batch."""
        key = task, instance
        if key not in self._layers:
            made = self._read(task, instance)
            self.digests.append(hashlib.sha256(repr(made).encode()).hexdigest())
            self._layers[key] = made
        return self._layers[key]

    def _read(self, task: Task, instance: int) -> tuple[Layer, ...]:
        if self.folder is not None:
            return read_layers(self.folder / "instances" / f"batch_{_BATCHES[task]}" / f"insts{instance}.csv")
        return sample_batch(_CLASSES[task], 100, instance)

    def table(self, task: Task, setting: str, instance: int = 0, model: ModelName = "maestro") -> JobTable:
        """Return the job table of a batch on a setting."""
        key = task, setting, instance, model
        if key not in self._tables:
            self._tables[key] = job_table(self.layers(task, instance), PLATFORMS[setting], MODELS[model])
        return self._tables[key]

    def problem(self, task: Task, case: Case, instance: int = 0, model: ModelName = "maestro") -> MappingProblem:
        """Return a batch on a setting under a bandwidth."""
        table = self.table(task, case[0], instance, model)
        return MappingProblem(
            table.latency, table.bandwidth, case[1], np.where(table.latency < np.inf, table.energy, 0.0)
        )

    def solve(
        self, method: str, task: Task, case: Case, instance: int = 0, model: ModelName = "maestro", seed: int = 0
    ) -> SearchResult[Mapping]:
        """Return the makespan of a method (the paper's G#, or ours, within the budget), from a cache."""
        key = method, task, case, instance, model, seed
        if key not in self._searches:
            genetic = GSHARPS.get(method)
            algorithm = ALGORITHMS[method](self.budget) if genetic is None else GSharp(self.budget, genetic)
            problem = self.problem(task, case, instance, model)
            self._searches[key] = algorithm.solve(problem, np.random.default_rng(seed))
        return self._searches[key]

    def makespan(self, method: str, task: Task, case: Case, model: ModelName = "maestro") -> float:
        """Return the mean makespan of a method over instances and, if it draws, seeds, in cycles."""
        seeds = self.seeds if method in GSHARPS else self.seeds[:1]
        if method in HEURISTICS:
            return float(np.mean([self.rule(method, task, case, i, model) for i in self.instances]))
        cycles = [self.solve(method, task, case, i, model, s).cost for i in self.instances for s in seeds]
        return float(np.mean(cycles))

    def rule(self, name: str, task: Task, case: Case, instance: int = 0, model: ModelName = "maestro") -> float:
        """Return the makespan of a rule on a batch: of one that draws the mean over some draws of each seed."""
        draws = [seed * DRAWS + draw for seed in self.seeds for draw in range(DRAWS)] if "random" in name else [0]
        return float(np.mean([self.solve(name, task, case, instance, model, draw).cost for draw in draws]))

    def total(self, method: str, case: Case, model: ModelName = "maestro") -> float:
        """Return the sum of the mean makespans of the four tasks, as the paper's stacked bars."""
        return sum(self.makespan(method, task, case, model) for task in TASKS)

    def published(self, method: str, task: Task, case: Case) -> float | None:
        """Return the mean makespan of the published code's *method* over our instances and its seeds, if known."""
        if self._published is None:
            self._published = _published(self.folder)
        makespans = [self._published.get((method, _BATCHES[task], i, *case)) for i in self.instances]
        values = [value for value in makespans if value is not None]
        return float(np.mean(values)) if values and len(values) == len(makespans) else None


def _published(folder: Path | None) -> dict[tuple[str, str, int, str, float], float]:
    if folder is None or not (folder / "peer_results.csv").is_file():
        return {}
    makespans = defaultdict(list)
    with (folder / "peer_results.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = row["method"], row["batch"], int(row["instance"]), row["setting"], float(row["bw_gbs"])
            makespans[key].append(float(row["best_makespan_cycles"]))
    return {key: float(np.mean(values)) for key, values in makespans.items()}


_PUBLISHED = ("HEFT", *(f"{order}-{rule}" for order in ("FCFS", "SJF") for rule in ("OLB", "MET", "RR")))


def published_rules(study: GSharpStudy, part: GSharpPart, cases: tuple[Case, ...]) -> None:
    """Add whether G# is behind a rule as the published code gave it, whose HEFT begins with the shortest job."""
    ratios: dict[str, float] = {}
    for case in cases:
        for task in TASKS:
            makespans = [value for rule in _PUBLISHED if (value := study.published(rule, task, case)) is not None]
            if makespans:
                ratios[f"{task} on {case[0]}"] = min(makespans) / study.makespan("gsharp", task, case)
    if ratios:
        behind = ", ".join(f"{where} ({ratio:.4f})" for where, ratio in ratios.items() if ratio < 1)
        part.row("G# takes no longer than any rule of the published code in each class and setting", None, not behind,
                 note=f"its results on {len(ratios)} of {len(TASKS) * len(cases)}, not run here; its HEFT begins with "
                 f"the shortest job{f'; ahead: {behind}' * bool(behind)}")  # fmt: skip


def beside_published(study: GSharpStudy, part: GSharpPart, case: Case) -> None:
    """Makespans, and those that the published code's methods had, where these are known: no comparison of the two."""
    searches = ("MAGMA-GA", "nevergrad-DE", "nevergrad-CMA", "nevergrad-PSO")
    rules = ("heft", "fcfs-olb", "fcfs-rr")
    for theirs, ours in (*((name, "gsharp") for name in searches), *((name.upper(), name) for name in rules)):
        pairs = [(study.published(theirs, task, case), study.makespan(ours, task, case)) for task in TASKS]
        complete = [(their, our) for their, our in pairs if their is not None]
        if complete:
            note = f"geometric mean over {len(complete)} of 4 batches, beside {theirs} as the published code gave it"
            their, our = (float(np.exp(np.mean(np.log(column)))) for column in zip(*complete, strict=True))
            where = f"{case[0]}, {case[1]:g} GB/s: makespan of"
            part.row(f"{where} {ours}, as far as {theirs} is known", None, our, "cycles", note)
            part.row(f"{where} the published code's {theirs}", None, their, "cycles",
                     f"{note}: not run here")  # fmt: skip
