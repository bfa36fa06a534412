"""How programs scale, from their run times at several thread counts: F by each method, laws fitted, one chosen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

import numpy as np

from commonwatt import __version__
from commonwatt.model.errors import ProfileError
from commonwatt.model.partition_results import (
    CharacterizeResult,
    FractionResult,
    KernelResult,
    LawResult,
    RunResult,
)
from commonwatt.partitioning._scaling_laws import (
    Estimate,
    ScalingLaw,
    bootstrap,
    choose_law,
    fit_all,
    from_counters_of_runs,
    from_karp_flatt,
    least_squares,
)

__all__ = ["characterize"]

NOISY, HOPELESS = 0.1, 0.5
"""Spread of repeats over their median: a warning above the first, an error above the second."""

Timings = Mapping[str, Mapping[int, Sequence[float]]]
Counters = Mapping[str, Sequence[Sequence[float]]]


def characterize(
    timings: Timings, *, rng: np.random.Generator, seed: int, unit: str = "s", counters: Counters | None = None,
    cpus: int | None = None, warnings: Sequence[str] = (),
) -> CharacterizeResult:  # fmt: skip
    """Estimate F of each program and fit its scaling laws.

    Parameters
    ----------
    timings
        Run times by program and number of threads, 1 and at least one more.
    rng
        Draws the bootstrap.
    seed
        Of *rng*, for the record.
    unit
        Of the times: s or cycles.
    counters
        By program its runs, each with the cycles at 1, 2, .. P active threads (eq. 4.3).
    cpus
        CPUs of this machine, if it measured the times; ``None`` if they come from elsewhere. Noisy measurements of this
        machine are refused, others get a warning.
    warnings
        What already speaks against the measurements.

    Raises
    ------
    InputError
        If times or counters are no measurement.
    ProfileError
        If repeats measured here differ by more than half of their median.
    """
    counted = counters or {}
    kernels = tuple(_kernel(name, runs, rng, counted.get(name)) for name, runs in timings.items())
    said = list(warnings)
    for kernel in kernels:
        said += _doubts(kernel, refuse=cpus is not None)
    text = json.dumps([timings, counted] if counted else timings, sort_keys=True)
    return CharacterizeResult(
        version=__version__, seed=seed, input_digest=hashlib.sha256(text.encode()).hexdigest(), unit=unit, cpus=cpus,
        kernels=kernels, warnings=tuple(said),
    )  # fmt: skip


def _doubts(kernel: KernelResult, *, refuse: bool) -> list[str]:
    """Return warnings about noise and clipping; raise ``ProfileError`` where measurements are of no use."""
    worst = max(kernel.runs, key=lambda run: run.spread)
    if refuse and worst.spread > HOPELESS:
        msg = (
            f"{kernel.name}: runs at {worst.threads} threads differ by {worst.spread:.0%} of their median, "
            "too noisy to say how it scales; try more repeats, a longer run or a quieter machine"
        )
        raise ProfileError(msg)
    said = []
    if worst.spread > NOISY:
        said.append(f"{kernel.name}: runs at {worst.threads} threads differ by {worst.spread:.0%} of their median")
    if any(fraction.clipped for fraction in kernel.fractions):
        said.append(f"{kernel.name}: slower with more threads, or faster than ideal: F is at the end of its range")
    return said


def _kernel(
    name: str, times: Mapping[int, Sequence[float]], rng: np.random.Generator,
    counted: Sequence[Sequence[float]] | None,
) -> KernelResult:  # fmt: skip
    counts = sorted(times)
    medians = {n: float(np.median(times[n])) for n in counts}
    above = np.array(counts[1:], dtype=float)
    speedups = np.array([medians[1] / medians[n] for n in counts[1:]])
    repeated = max(map(len, times.values())) > 1
    shaken = bootstrap([times[n] for n in counts], counts, rng) if repeated else None
    estimates = [
        _fraction(from_karp_flatt(speedups, above), None),
        _fraction(least_squares(speedups, above), shaken),
    ]
    if counted is not None:
        most = len(counted[0])
        at_most = medians[1] / medians[most] if most in medians else None
        estimates.append(_fraction(from_counters_of_runs(counted, at_most), None))
    fits = fit_all(above.tolist(), speedups.tolist())
    chosen, why = choose_law(fits)
    return KernelResult(
        name=name,
        runs=tuple(
            RunResult(
                threads=n, runs=len(times[n]), median=medians[n], spread=(max(times[n]) - min(times[n])) / medians[n],
                speedup=medians[1] / medians[n],
            )
            for n in counts
        ),
        fractions=tuple(estimates),
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
    return FractionResult(
        method=estimate.method, parallel_fraction=estimate.fraction, standard_error=estimate.standard_error,
        bootstrap_error=shaken, misfit=estimate.misfit, clipped=estimate.clipped,
    )  # fmt: skip
