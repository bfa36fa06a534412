"""Partitioning problems from their files, and the measurements that ``partition characterize`` fits laws to."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter

from pydantic import ValidationError

from commonwatt.data.files import load_yaml
from commonwatt.data.table import read_table
from commonwatt.data.text import read_text
from commonwatt.model.errors import InputError
from commonwatt.model.names import one_of
from commonwatt.model.partition_file import LawSpec, PartitionFile
from commonwatt.model.partition_results import CharacterizeResult

__all__ = ["Timings", "cpu_count", "law_from", "load_partition", "measure", "read_counters", "read_timings"]


def load_partition(path: Path) -> PartitionFile:
    """Read a problem; every ``characterized`` law is read too, relative to *path*, and stands there as it was chosen.

    Raises ``InputError`` naming file and field.
    """
    file = load_yaml(path, PartitionFile)

    def read(spec: LawSpec | str | None, field: str) -> LawSpec | str | None:
        if not isinstance(spec, LawSpec) or spec.law != "characterized":
            return spec
        return law_from(path.parent / str(spec.file), spec.kernel, path, field)

    tenants = tuple(
        one.model_copy(update={"law": read(one.law, f"tenants.{one.name}.law")}) for one in file.tenants
    )  # fmt: skip
    laws = {name: read(spec, f"laws.{name}") for name, spec in file.laws.items()}
    configurations = tuple(
        one
        if one.laws is None
        else one.model_copy(
            update={
                "laws": tuple(
                    tuple(read(spec, f"configurations.{one.name}.laws.{i}.{c}") for c, spec in enumerate(row))
                    for i, row in enumerate(one.laws)
                )
            }
        )
        for one in file.configurations
    )
    return file.model_copy(update={"tenants": tenants, "laws": laws, "configurations": configurations})


def law_from(path: Path, kernel: str | None, problem: object = None, field: str | None = None) -> LawSpec:
    """Return the law chosen for *kernel* (None: the only one) in the result ``partition characterize`` wrote to *path*.

    Raises ``InputError`` for a file that is no such result, and for a kernel that is not in it.
    """
    try:
        result = CharacterizeResult.model_validate_json(read_text(path))
    except ValidationError:
        raise InputError("a result that partition characterize wrote (--out)", file=path) from None
    named = {one.name: one for one in result.kernels}
    if kernel is None and len(named) == 1:
        kernel = next(iter(named))
    if kernel not in named:
        raise InputError(
            f"kernel: {one_of(named, kernel)} in {path.name}", file=problem, field=field, value=kernel or "none"
        )
    return LawSpec.model_validate(named[kernel].law)


Timings = dict[str, dict[int, list[float]]]
"""Run times by program and number of threads."""


def cpu_count() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measure(command: Sequence[str], counts: Sequence[int], repeats: int, variable: str) -> Timings:
    """Time *command* at each number of threads, in seconds, with the environment *variable* set to it.

    Thread counts take turns, so that a change of load is not mistaken for scaling. Raises ``InputError`` for a command
    that cannot be run or fails.
    """
    _run_once(command, {variable: "1"})  # fills the caches
    times: dict[int, list[float]] = {n: [] for n in counts}
    for _ in range(repeats):
        for n in counts:
            times[n].append(_run_once(command, {variable: str(n)}))
    return {Path(command[0]).name: times}


def _run_once(command: Sequence[str], variables: Mapping[str, str]) -> float:
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


def read_timings(path: Path) -> tuple[Timings, str]:
    """Read a table of threads and seconds or cycles (kernel, size and cores optional); return times and their unit.

    Raises ``InputError`` naming file, line and column.
    """
    table = read_table(path)
    unit = next((name for name in ("seconds", "cycles") if name in table), None)
    if unit is None:
        raise InputError(f"a column seconds or cycles; the file has {', '.join(table.columns)}", file=path)
    counts = table.counts("threads")
    if "cores" in table:
        counts = counts * table.counts("cores")
    times = table.numbers(unit)
    names = [table.text(column) for column in ("kernel", "size") if column in table]
    timings: Timings = {}
    for row, (n, t) in enumerate(zip(counts.tolist(), times.tolist(), strict=True)):
        if n < 1:
            raise table.error(row, "threads", "1 or more")
        if not t > 0:
            raise table.error(row, unit, "a number above 0")
        name = " ".join(column[row] for column in names) or path.stem
        timings.setdefault(name, {}).setdefault(n, []).append(t)
    for name, runs in timings.items():
        if 1 not in runs or len(runs) < 2:
            raise InputError(
                "runs at one thread and at more", file=path, field="threads", value=f"{name}: {sorted(runs)}"
            )
    return timings, "s" if unit == "seconds" else unit


def read_counters(path: Path, kernels: tuple[str, ...]) -> dict[str, list[list[float]]]:
    """Return by program its runs, each with the cycles at 1, 2, .. P active threads. Raises ``InputError``.

    ``perf stat`` has no such counters: it counts the cycles of all threads together.
    """
    table = read_table(path)
    active, cycles = table.counts("active"), table.numbers("cycles")
    names = table.text("kernel") if "kernel" in table else [kernels[0]] * len(table)
    by_kernel: dict[str, dict[int, list[float]]] = {}
    for row, (name, n, count) in enumerate(zip(names, active.tolist(), cycles.tolist(), strict=True)):
        if name not in kernels:
            raise table.error(row, "kernel", f"one of those measured: {', '.join(kernels)}")
        if n < 1:
            raise table.error(row, "active", "1 or more")
        if not count >= 0:
            raise table.error(row, "cycles", "a number, 0 or more")
        by_kernel.setdefault(name, {}).setdefault(n, []).append(count)
    for name, by_count in by_kernel.items():
        most = max(by_count)
        if sorted(by_count) != list(range(1, most + 1)) or most < 2:
            raise InputError(
                "cycles with 1, 2, .. threads at work, each of them", file=path, field="active",
                value=f"{name}: {sorted(by_count)}",
            )  # fmt: skip
        if len({len(runs) for runs in by_count.values()}) > 1:
            raise InputError(
                "as many rows for each number of threads, one a run", file=path, field="active", value=name
            )
    return {
        name: [list(run) for run in zip(*(runs for _, runs in sorted(by_count.items())), strict=True)]
        for name, by_count in by_kernel.items()
    }
