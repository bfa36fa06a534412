"""What ``commonwatt partition characterize`` answers with. Unknown is null, never 0."""

from __future__ import annotations

from commonwatt.model.fields import AnswerModel, ResultModel, quantity

__all__ = ["CharacterizeResult", "FractionResult", "KernelResult", "LawResult", "RunResult"]


class RunResult(ResultModel):
    """Runs at one number of threads."""

    threads: int = quantity("threads (or processing elements)")
    runs: int = quantity("number of runs")
    median: float = quantity("median time, in the result's unit", "unit")
    spread: float = quantity("most less least over the median")
    speedup: float = quantity("median at one thread over this median")


class FractionResult(ResultModel):
    """One estimate of the parallel fraction."""

    method: str = quantity("karp-flatt, least-squares or counters")
    parallel_fraction: float = quantity("F")
    standard_error: float | None = quantity(
        "of F, from how runs disagree with the law (counters: with each other; one run: a lower bound); null: too few"
    )
    bootstrap_error: float | None = quantity("of F, from how repeats disagree with each other; null: no repeats")
    misfit: float | None = quantity("root mean square relative error of the speedups it predicts; null: none is known")
    clipped: bool = quantity("whether the formula gave a value outside [0, 1]")


class LawResult(ResultModel):
    """One scaling law fitted."""

    law: str = quantity("amdahl, usl (Universal Scalability Law) or table (as measured)")
    parameters: dict[str, float] = quantity("what was fitted")
    misfit: float = quantity("root mean square relative error of the speedups it was fitted to")
    left_out: float | None = quantity("the same for each count predicted from the others; null: too few counts")


class KernelResult(ResultModel):
    """How one program scales."""

    name: str = quantity("name of the program")
    runs: tuple[RunResult, ...] = quantity("by number of threads")
    fractions: tuple[FractionResult, ...] = quantity("estimates of F")
    laws: tuple[LawResult, ...] = quantity("laws fitted, simplest first")
    chosen: str = quantity("law to use")
    law: dict[str, str | float | tuple[float, ...]] = quantity("the same as a partition problem takes it")
    sentence: str = quantity("why, in one sentence")


class CharacterizeResult(AnswerModel):
    """Answer of ``commonwatt partition characterize``."""

    unit: str = quantity("unit of times: s or cycles")
    cpus: int | None = quantity("CPUs this process may use; null: measured elsewhere")
    kernels: tuple[KernelResult, ...] = quantity("programs")
    warnings: tuple[str, ...] = quantity("reasons to doubt the measurements")
