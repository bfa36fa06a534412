"""The table of counters ``partition characterize`` reads: cycles with exactly so many threads at work.

``perf stat`` has no such counters: it counts the cycles of all threads together.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["read_counters"]


def read_counters(path: Path, kernels: tuple[str, ...]) -> dict[str, list[list[float]]]:
    """Return by kernel the runs, each with the cycles at 1, 2, .. P active threads. Raises ``InputError``."""
    from commonwatt.data.table import read_table
    from commonwatt.model.errors import InputError

    table = read_table(path)
    active, cycles = table.counts("active"), table.numbers("cycles")
    names = table.text("kernel") if "kernel" in table else [kernels[0]] * len(table)
    found: dict[str, dict[int, list[float]]] = {}
    for row, (name, n, count) in enumerate(zip(names, active.tolist(), cycles.tolist(), strict=True)):
        if name not in kernels:
            raise table.error(row, "kernel", f"one of those measured: {', '.join(kernels)}")
        if n < 1:
            raise table.error(row, "active", "1 or more")
        if not count >= 0:
            raise table.error(row, "cycles", "a number, 0 or more")
        found.setdefault(name, {}).setdefault(n, []).append(count)
    for name, by_count in found.items():
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
        for name, by_count in found.items()
    }
