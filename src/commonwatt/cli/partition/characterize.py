"""``commonwatt partition characterize``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import json_option, plot_option, print_json, say, seed_option

if TYPE_CHECKING:
    from commonwatt.model.partition_results import CharacterizeResult, KernelResult

__all__ = ["characterize"]


@click.command()
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--threads", default="1,2,4", show_default=True, help="Thread counts to run; must include 1.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True, help="Runs at each thread count.")
@click.option("--env", default="OMP_NUM_THREADS", show_default=True, help="Environment variable for the thread count.")
@click.option(
    "--from", "source", type=click.Path(path_type=Path), metavar="FILE",
    help="Read measurements instead: columns threads, seconds or cycles; optionally kernel, size, cores.",
)  # fmt: skip
@click.option(
    "--counters", type=click.Path(path_type=Path), metavar="FILE",
    help="Also compute F from counters (eq. 4.3): active threads, and cycles with that many active; optionally kernel. "
    "Repeated rows are further runs.",
)  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the result (JSON).")
@plot_option("the first program's laws")
@seed_option
@json_option
def characterize(
    command: tuple[str, ...],
    *,
    threads: str,
    repeats: int,
    env: str,
    source: Path | None,
    counters: Path | None,
    out: Path | None,
    plot: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Time COMMAND at several thread counts, and fit a scaling law.

    \b
    Example:
      commonwatt partition characterize --threads 1,2 --repeats 3 -- python -c "sum(range(10**6))"
    """
    import numpy as np

    from commonwatt import partitioning
    from commonwatt.data.files import write_atomic
    from commonwatt.data.partition import cpu_count, measure, read_counters, read_timings
    from commonwatt.model.errors import InputError

    if (source is None) == (not command):
        raise InputError("either a command after -- or --from FILE", field="COMMAND")
    warnings, cpus = [], None
    if source is not None:
        timings, unit = read_timings(source)
    else:
        counts, cpus, unit = _counts(threads), cpu_count(), "s"
        if counts[-1] > cpus:
            warnings.append(f"{counts[-1]} threads on {cpus} CPUs: more threads than CPUs only take turns")
        timings = measure(command, counts, repeats, env)
    result = partitioning.characterize(
        timings, rng=np.random.default_rng(seed), seed=seed, unit=unit, cpus=cpus, warnings=warnings,
        counters=None if counters is None else read_counters(counters, tuple(timings)),
    )  # fmt: skip
    for warning in result.warnings:
        say(f"warning: {warning}")
    if out is not None:
        write_atomic(out, result.model_dump_json(indent=2) + "\n")
        say(f"written: {out}")
    if plot is not None:
        _draw(result.kernels[0], plot)
    if as_json:
        print_json(result)
    else:
        _tell(result)


def _counts(text: str) -> list[int]:
    from commonwatt.model.errors import InputError

    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) >= 1 for word in words):
        raise InputError("numbers of threads, such as 1,2,4", field="--threads", value=text)
    counts = sorted({int(word) for word in words})
    if counts[0] != 1 or len(counts) < 2:
        raise InputError("1 and at least one more", field="--threads", value=text)
    return counts


def _draw(kernel: KernelResult, path: Path) -> None:
    from commonwatt.model.partition_file import LawSpec
    from commonwatt.partitioning import law_of
    from commonwatt.report.decision_plots import save_scaling

    threads, speedups = [float(r.threads) for r in kernel.runs], [r.speedup for r in kernel.runs]
    laws = {}
    for fit in kernel.laws:
        given = {"pes": threads[1:], "speedups": speedups[1:]} if fit.law == "table" else fit.parameters
        laws[fit.law] = law_of(LawSpec.model_validate({"law": fit.law, **given})).speedup
    save_scaling(threads, speedups, laws, kernel.chosen, path)
    say(f"written: {path}")


def _tell(result: CharacterizeResult) -> None:
    from rich.console import Console
    from rich.table import Table

    for kernel in result.kernels:
        table = Table(title=kernel.name)
        for heading in ("threads", f"median, {result.unit}", "spread", "speedup"):
            table.add_column(heading, justify="right")
        for run in kernel.runs:
            table.add_row(str(run.threads), f"{run.median:.6g}", f"{run.spread:.1%}", f"{run.speedup:.3f}")
        Console().print(table)
        for f in kernel.fractions:
            error = "unknown" if f.standard_error is None else f"{f.standard_error:.2g}"
            off = "unknown" if f.misfit is None else f"{f.misfit:.1%}"
            say(f"F by {f.method}: {f.parallel_fraction:.4f}, standard error {error}; speedups off by {off}")
        say(f"{kernel.chosen}: {kernel.sentence}")
