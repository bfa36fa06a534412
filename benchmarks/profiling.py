"""How far predicted epochs are off, by how much was measured: ``python -m benchmarks.profiling [--json]``.

Gavel's measured speeds (K80, P100, V100; 1 to 8 GPUs). Each model at each batch size is a new job; the same model at
other batch sizes are the jobs of its kind, measured everywhere. Configurations are measured in the profiler's order,
and all others are predicted. Beside it: the same without jobs of its kind, and the guess that speed grows with the
number of GPUs. Two set-ups: a profiling node of every type with 8 GPUs, or of V100 alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

import numpy as np

from commonwatt.control.profiling import next_probe
from commonwatt.control.scaling import KindScaling, predict
from commonwatt.data.profiles.gavel import FILE, GavelRun, Throughputs, read_gavel
from commonwatt.data.third_party import find
from commonwatt.model.job_file import Configuration, Measurement, Source

WORK = 1e6  # samples, or steps, of an epoch
SETUPS = {"a node of each type": ("K80", "P100", "V100"), "a node of V100": ("V100",)}
WAYS = ("with its kind", "alone", "ideal speed-up")


def measurements(job: int, speeds: dict[tuple[str, int], float]) -> list[Measurement]:
    return [
        Measurement("kind", job, gpu_type, gpus, WORK / speed, epochs=1) for (gpu_type, gpus), speed in speeds.items()
    ]


def ideal_s(there: Configuration, own: Iterable[Measurement]) -> float | None:
    """Return the guess from the nearest count on that type."""
    known = [m for m in own if m.gpu_type == there.gpu_type]
    if not known:
        return None
    nearest = min(known, key=lambda m: abs(np.log(m.gpus / there.gpus)))
    return nearest.epoch_s * nearest.gpus / there.gpus


def errors_of(run: GavelRun, table: Throughputs, types: tuple[str, ...]) -> list[tuple[int, str, float | None]]:
    """Return (measured configurations, way, relative error) of every prediction of one job; no error: no prediction."""
    others = [measurements(j, table[o]) for j, o in enumerate(table, 1) if o.model == run.model and o != run]
    kind = KindScaling(m for rows in others for m in rows)
    truth = {m.configuration: m for m in measurements(0, table[run])}
    allowed = sorted(truth)
    capacity = dict.fromkeys(types, 8)
    found: list[tuple[int, str, float | None]] = []
    own: list[Measurement] = []
    while isinstance(
        there := next_probe(allowed, [m.configuration for m in own], {}, capacity, kind.fractions), Configuration
    ):
        own.append(truth[there])
        for way, scaling in (("with its kind", kind), ("alone", None)):
            for figure in predict(allowed, own, scaling, limit_s=1.0):
                if figure.source is Source.MEASURED:
                    continue
                known = figure.source is not Source.TIME_LIMIT
                off = abs(figure.epoch_s / truth[figure.configuration].epoch_s - 1.0)
                found.append((len(own), way, off if known else None))
        for there in allowed:
            if all(m.configuration != there for m in own):
                guess_s = ideal_s(there, own)
                off = None if guess_s is None else abs(guess_s / truth[there].epoch_s - 1.0)
                found.append((len(own), "ideal speed-up", off))
    return found


def main() -> None:
    path = find(FILE)
    if path is None:
        sys.exit(f"{FILE} is not there: set COMMONWATT_DATA")
    table = {run: {(y.upper(), g): s for (y, g), s in speeds.items()} for run, speeds in read_gavel(path).items()}
    runs = [run for run in table if sum(o.model == run.model for o in table) > 1]
    rows = []
    for setup, types in SETUPS.items():
        found = [row for run in runs for row in errors_of(run, table, types)]
        for count in sorted({measured for measured, _, _ in found}):
            for way in WAYS:
                mine = [off for measured, how, off in found if (measured, how) == (count, way)]
                known = [off for off in mine if off is not None]
                if not mine:
                    continue
                low, high = np.percentile(known, [50, 90]) if known else (None, None)
                rows.append(
                    {
                        "profiling": setup, "measured": count, "way": way, "figures": len(mine),
                        "unknown": len(mine) - len(known), "median": low, "p90": high,
                    }
                )  # fmt: skip
    if "--json" in sys.argv:
        print(json.dumps({"jobs": len(runs), "rows": rows}))
        return
    print(f"{len(runs)} jobs of {len({run.model for run in runs})} kinds")
    print("profiling node      | measured | way            | figures | unknown | median | 90th percentile")
    for row in rows:
        low, high = (f"{row[name]:.1%}" if row[name] is not None else "-" for name in ("median", "p90"))
        print(
            f"{row['profiling']:19s} | {row['measured']:8d} | {row['way']:14s} | {row['figures']:7d} | "
            f"{row['unknown']:7d} | {low:>6s} | {high:>6s}"
        )


if __name__ == "__main__":
    main()
