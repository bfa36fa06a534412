"""Results of ``commonwatt reproduce all`` and ``commonwatt bench``."""

from __future__ import annotations

from typing import Literal

from commonwatt.model.fields import ResultModel, quantity
from commonwatt.model.results import ReproducePoint

__all__ = [
    "BenchResult",
    "BenchScore",
    "BenchSolver",
    "BenchSuite",
    "ReproduceAllResult",
    "ReproduceClaim",
    "ReproduceTopicResult",
    "Verdict",
]

Verdict = Literal["holds", "holds with changes", "does not hold", "not comparable"]

_field = quantity  # for models with a field called quantity


class ReproduceClaim(ResultModel):
    """A claim of a paper beside the reproduced value, with the verdict that its rule gives."""

    quantity: str = _field("the quantity")
    paper: bool | float | str | None = _field("the paper's value", "as in unit")
    ours: bool | float | str | None = _field(
        "the reproduced value: the mean over the seeds; of yes and no, whether it is yes for all; null: unknown",
        "as in unit",
    )
    unit: str = _field("unit of both; - for none")
    least: float | None = _field("least value of any seed; null: no number", "as in unit")
    most: float | None = _field("greatest value of any seed; null: no number", "as in unit")
    sd: float | None = _field("sample standard deviation over the seeds; null: no number, or one seed", "as in unit")
    held_pct: float | None = _field(
        "part of the seeds, or of draws of unpublished inputs, with yes; null: a number", "%"
    )
    verdict: Verdict = _field("the verdict")
    rule: str = _field("the rule that gives the verdict")
    why: str = _field("what the rule was applied to, or why the values cannot be compared")
    note: str = _field("other remarks, of the first seed", default="")


class ReproduceTopicResult(ResultModel):
    """A figure or table of a paper, over all seeds."""

    name: str = quantity("name, for the command line")
    title: str = quantity("what it is")
    paper: str = quantity("place in the paper")
    state: Literal["done", "skipped", "failed"] = quantity(
        "done; skipped: an extra is missing; failed: it ended with an error"
    )
    reason: str | None = quantity("why it was skipped or failed; null: it is done")
    stand_in: str | None = quantity("third-party data that is missing, and replaced; null: none")
    seeds: tuple[int, ...] = quantity("seeds that were run")
    input_digests: tuple[str, ...] = quantity("SHA-256 of the inputs of each seed")
    claims: tuple[ReproduceClaim, ...] = quantity("values that the paper prints, beside ours")
    others: tuple[ReproduceClaim, ...] = quantity("values that the paper does not print")
    x_name: str | None = quantity("quantity on the horizontal axis; null: none")
    points: tuple[ReproducePoint, ...] = quantity("the lines of the figure, over the seeds")
    notes: tuple[str, ...] = quantity("assumptions where the paper gives no values")
    wall_s: float = quantity("wall-clock time of all seeds", "s")


class ReproduceAllResult(ResultModel):
    """Answer of ``commonwatt reproduce all``."""

    version: str = quantity("version of commonwatt")
    command: str = quantity("the command that gives the same result")
    extent: str = quantity("quick, default or full")
    seed: int = quantity("first seed")
    seeds: tuple[int, ...] = quantity("seeds of the topic that has most")
    verdicts: dict[str, int] = quantity("claims by verdict")
    wall_s: float = quantity("wall-clock time of all runs, as if they had been one after another", "s")
    call_s: float | None = quantity(
        "wall-clock time of the call that made every run; null: some were kept from an earlier call", "s", default=None
    )
    topics: tuple[ReproduceTopicResult, ...] = quantity("figures and tables of the papers")


class BenchSolver(ResultModel):
    """A solver of a suite: ours, a baseline, a peer or a plugin."""

    name: str = quantity("name, as for --solver")
    kind: Literal["ours", "baseline", "peer", "plugin"] = quantity("whose it is")
    origin: str | None = quantity("package, or distribution and version of a plugin; null: ours")
    state: Literal["done", "missing", "failed"] = quantity("done; missing: a package is not installed; failed")
    reason: str | None = quantity("why it is missing or failed; null: it is done")
    score: float | None = quantity("geometric mean of the ratios over the problems; less is better; null: none")
    worst: float | None = quantity("largest ratio of any problem; null: none")
    evaluations: int | None = quantity("candidates evaluated over all problems; null: not counted")
    time_ratio: float | None = quantity("processor time over that of the suite's reference solver; null: none")


class BenchScore(ResultModel):
    """A solver on a problem."""

    problem: str = quantity("name of the problem")
    solver: str = quantity("name of the solver")
    value: float = quantity("what the solver reached", "as in metric")
    reference: float = quantity("the bound or the baseline's value", "as in metric")
    ratio: float = quantity("score: how far the value is from the reference; less is better")


class BenchSuite(ResultModel):
    """Solvers on the problems of a suite."""

    name: str = quantity("name, as for --suite")
    version: int = quantity("version of the problems; scores of different versions cannot be compared")
    title: str = quantity("what the problems are")
    metric: str = quantity("what is measured, with its unit")
    against: str = quantity("bound or baseline that values are divided by")
    reference_solver: str = quantity("the solver whose processor time is 1")
    problems: tuple[str, ...] = quantity("problems, by their names")
    solvers: tuple[BenchSolver, ...] = quantity("solvers, best first")
    scores: tuple[BenchScore, ...] = quantity("solvers by problem")


class BenchResult(ResultModel):
    """Answer of ``commonwatt bench``."""

    version: str = quantity("version of commonwatt")
    command: str = quantity("the command that gives the same scores")
    seed: int = quantity("seed of the solvers; problems have seeds of their own")
    extent: Literal["quick", "default"] = quantity("whether only the first problems were run")
    suites: tuple[BenchSuite, ...] = quantity("suites")
