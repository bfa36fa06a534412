"""``commonwatt partition characterize``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import json_option, plot_option, print_json, say, seed_option

if TYPE_CHECKING:
    import numpy as np

    from commonwatt.model.characterize_results import CharacterizeResult, FractionResult, KernelResult
    from commonwatt.partitioning.parallel_fraction import Estimate
    from commonwatt.partitioning.scaling_laws import ScalingLaw

__all__ = ["characterize"]

NOISY, HOPELESS = 0.1, 0.5
"""Spread of repeats over their median: said above the first, refused above the second (measured on this machine)."""
Measured = dict[str, dict[int, list[float]]]
Counted = dict[str, list[list[float]]]


@click.command()
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--threads", default="1,2,4", show_default=True, help="Thread counts to try; one must be 1.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True, help="Runs at each of them.")
@click.option("--env", default="OMP_NUM_THREADS", show_default=True, help="Variable set to the thread count.")
@click.option(
    "--from", "source", type=click.Path(path_type=Path), metavar="FILE",
    help="Read a table instead: threads, seconds or cycles; maybe kernel, size, cores.",
)  # fmt: skip
@click.option(
    "--counters", type=click.Path(path_type=Path), metavar="FILE",
    help="Also F from counters (eq. 4.3): active threads, cycles with just so many at work; maybe kernel. "
    "Rows that come again are further runs.",
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
    """Time COMMAND at several thread counts, and fit how it scales.

    \b
    Example:
      commonwatt partition characterize --threads 1,2 --repeats 3 -- python -c "sum(range(10**6))"
    """
    from commonwatt.cli.partition._counters import read_counters
    from commonwatt.data.files import write_atomic
    from commonwatt.model.errors import InputError

    if (source is None) == (not command):
        raise InputError("either a command after -- or --from FILE", field="COMMAND")
    warnings: list[str] = []
    if source is not None:
        measured, unit = _read(source)
    else:
        measured, unit = _measure(command, _counts(threads), repeats, env, warnings), "s"
    counted = {} if counters is None else read_counters(counters, tuple(measured))
    result = _result(measured, unit, seed, warnings, None if source is not None else _cpus(), source, counted)
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


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _counts(text: str) -> list[int]:
    from commonwatt.model.errors import InputError

    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) >= 1 for word in words):
        raise InputError("numbers of threads, such as 1,2,4", field="--threads", value=text)
    counts = sorted({int(word) for word in words})
    if counts[0] != 1 or len(counts) < 2:
        raise InputError("1 and at least one more", field="--threads", value=text)
    return counts


def _measure(command: Sequence[str], counts: list[int], repeats: int, env: str, warnings: list[str]) -> Measured:
    """Time the command; thread counts take turns, so that what changes meanwhile is not taken for scaling."""
    if counts[-1] > _cpus():
        warnings.append(f"{counts[-1]} threads on {_cpus()} CPUs: beyond these they only share")
    _once(command, {env: "1"})  # caches are warm from here on
    times: dict[int, list[float]] = {n: [] for n in counts}
    for _ in range(repeats):
        for n in counts:
            times[n].append(_once(command, {env: str(n)}))
    return {Path(command[0]).name: times}


def _once(command: Sequence[str], variables: Mapping[str, str]) -> float:
    import subprocess

    from commonwatt.model.errors import InputError

    began = perf_counter()
    try:
        done = subprocess.run(  # noqa: S603 - the user's own command
            list(command), env=os.environ | variables, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    except OSError as error:
        raise InputError(
            "a command that can be run", field="COMMAND", value=f"{command[0]}: {error.strerror}"
        ) from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        last = f": {lines[-1][-60:]}" if lines else ""
        raise InputError("a command that succeeds", field="COMMAND", value=f"exit code {done.returncode}{last}")
    return perf_counter() - began


def _read(path: Path) -> tuple[Measured, str]:
    from commonwatt.data.table import read_table
    from commonwatt.model.errors import InputError

    table = read_table(path)
    unit = next((name for name in ("seconds", "cycles") if name in table), None)
    if unit is None:
        raise InputError(f"a column seconds or cycles; the file has {', '.join(table.columns)}", file=path)
    counts = table.counts("threads")
    if "cores" in table:
        counts = counts * table.counts("cores")
    times = table.numbers(unit)
    names = [table.text(column) for column in ("kernel", "size") if column in table]
    found: Measured = {}
    for row, (n, t) in enumerate(zip(counts.tolist(), times.tolist(), strict=True)):
        if n < 1:
            raise table.error(row, "threads", "1 or more")
        if not t > 0:
            raise table.error(row, unit, "a number above 0")
        name = " ".join(column[row] for column in names) or path.stem
        found.setdefault(name, {}).setdefault(n, []).append(t)
    for name, runs in found.items():
        if 1 not in runs or len(runs) < 2:
            raise InputError(
                "runs at one thread and at more", file=path, field="threads", value=f"{name}: {sorted(runs)}"
            )
    return found, "s" if unit == "seconds" else unit


def _result(
    measured: Measured,
    unit: str,
    seed: int,
    warnings: list[str],
    cpus: int | None,
    source: Path | None,
    counted: Counted,
) -> CharacterizeResult:
    import hashlib
    import json

    import numpy as np

    from commonwatt import __version__
    from commonwatt.model.characterize_results import CharacterizeResult

    rng = np.random.default_rng(seed)
    kernels = tuple(_kernel(name, runs, rng, counted.get(name)) for name, runs in measured.items())
    for kernel in kernels:
        _judge(kernel, warnings, refuse=source is None)
    text = json.dumps([measured, counted] if counted else measured, sort_keys=True)
    return CharacterizeResult(
        version=__version__, seed=seed, input_digest=hashlib.sha256(text.encode()).hexdigest(), unit=unit, cpus=cpus,
        kernels=kernels, warnings=tuple(warnings),
    )  # fmt: skip


def _judge(kernel: KernelResult, warnings: list[str], *, refuse: bool) -> None:
    """Say that measurements are noisy; raise ``ProfileError`` where they are of no use."""
    from commonwatt.model.errors import ProfileError

    worst = max(kernel.runs, key=lambda run: run.spread)
    if refuse and worst.spread > HOPELESS:
        msg = (
            f"{kernel.name}: runs at {worst.threads} threads differ by {worst.spread:.0%} of their median, "
            "too noisy to say how it scales; try more repeats, a longer run or a quieter machine"
        )
        raise ProfileError(msg)
    if worst.spread > NOISY:
        warnings.append(f"{kernel.name}: runs at {worst.threads} threads differ by {worst.spread:.0%} of their median")
    if any(fraction.clipped for fraction in kernel.fractions):
        warnings.append(f"{kernel.name}: slower with more threads, or faster than ideal: F is at the end of its range")


def _kernel(
    name: str, times: dict[int, list[float]], rng: np.random.Generator, counted: list[list[float]] | None
) -> KernelResult:  # fmt: skip
    import numpy as np

    from commonwatt.model.characterize_results import KernelResult, LawResult, RunResult
    from commonwatt.partitioning.parallel_fraction import (
        bootstrap,
        from_counters_of_runs,
        from_karp_flatt,
        least_squares,
    )
    from commonwatt.partitioning.scaling_laws import choose, fit_all

    counts = sorted(times)
    medians = {n: float(np.median(times[n])) for n in counts}
    above = np.array(counts[1:], dtype=float)
    speedups = np.array([medians[1] / medians[n] for n in counts[1:]])
    repeated = max(map(len, times.values())) > 1
    shaken = bootstrap([times[n] for n in counts], counts, rng) if repeated else None
    counters: tuple[FractionResult, ...] = ()
    if counted is not None:
        most = len(counted[0])
        known = medians[1] / medians[most] if most in medians else None
        counters = (_fraction(from_counters_of_runs(counted, known), None),)
    fits = fit_all(above.tolist(), speedups.tolist())
    chosen, why = choose(fits)
    return KernelResult(
        name=name,
        runs=tuple(
            RunResult(
                threads=n, runs=len(times[n]), median=medians[n], spread=(max(times[n]) - min(times[n])) / medians[n],
                speedup=medians[1] / medians[n],
            )
            for n in counts
        ),
        fractions=(
            _fraction(from_karp_flatt(speedups, above), None), _fraction(least_squares(speedups, above), shaken),
            *counters,
        ),
        laws=tuple(
            LawResult(law=f.law.name, parameters=dict(f.law.parameters), misfit=f.misfit, left_out=f.left_out)
            for f in fits
        ),
        chosen=chosen.law.name,
        law=_as_problem(chosen.law, above.tolist(), speedups.tolist()),
        sentence=why,
    )  # fmt: skip


def _as_problem(
    law: ScalingLaw, counts: list[float], speedups: list[float]
) -> dict[str, str | float | tuple[float, ...]]:  # fmt: skip
    if law.name == "table":
        return {"law": "table", "pes": tuple(counts), "speedups": tuple(speedups)}
    return {"law": law.name, **law.parameters}


def _fraction(estimate: Estimate, shaken: float | None) -> FractionResult:
    from commonwatt.model.characterize_results import FractionResult

    return FractionResult(
        method=estimate.method, parallel_fraction=estimate.fraction, standard_error=estimate.standard_error,
        bootstrap_error=shaken, misfit=estimate.misfit, clipped=estimate.clipped,
    )  # fmt: skip


def _draw(kernel: KernelResult, path: Path) -> None:
    from commonwatt.partitioning.scaling_laws import fit_all
    from commonwatt.report.mig_plots import save_scaling

    counts, speedups = [float(r.threads) for r in kernel.runs], [r.speedup for r in kernel.runs]
    laws = {fit.law.name: fit.law.speedup for fit in fit_all(counts[1:], speedups[1:])}
    save_scaling(counts, speedups, laws, kernel.chosen, path)
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
