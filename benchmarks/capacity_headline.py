"""CUFF's headline (98% performance, 26% energy saving) on the nearest public trace, Earth (856 GPUs, May 2020).

What is shared of the series is cut in seven; one seventh is replayed. The predictor learns from what lies more than a
week before it (more than half of all before it, early on), knob and calibration from the rest. The sixth is for
validation, the seventh is the test part.
Savings are GPU time not kept on, of all 856 GPUs; no plan that serves 98% can save much more than perfect foresight.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys

import numpy as np

from commonwatt.data import third_party
from commonwatt.data.series_files import SeriesFile, read_series
from commonwatt.forecasting import make_predictor
from commonwatt.planning.replay import plan_series
from commonwatt.planning.series import LoadedSeries

GPUS = 856
COLUMNS = ("running_gpus", "pending_gpus")


def wanted(reading: str) -> SeriesFile:
    """Read Earth's demand: of running jobs, or of those and the waiting ones (at most all GPUs)."""
    path = third_party.find("earth_demand_1min.csv.gz")
    if path is None:
        sys.exit("earth_demand_1min.csv.gz is not at hand")
    running = read_series(path, COLUMNS[0])
    if reading == "running":
        return running
    pending = read_series(path, COLUMNS[1])
    total = np.minimum(running.series.gpus + pending.series.gpus, GPUS)
    return SeriesFile(type(running.series)(running.series.start_s, running.series.step_s, total), running.dated, 0)


def cut(file: SeriesFile, sevenths: int) -> SeriesFile:
    """Return the first *sevenths* of a series."""
    return SeriesFile(file.series.between(0, len(file.series) * sevenths // 7), file.dated, file.holes)


def possible(file: SeriesFile, sevenths: int) -> list[dict]:
    """What perfect foresight saves in each seventh."""
    size = len(file.series) // 7
    rows = []
    for k in range(sevenths):
        own = np.minimum(file.series.gpus[k * size : (k + 1) * size], GPUS)
        rows.append(
            {"seventh": k + 1, "from": file.moment(k * size), "saving_pct": 100 * (1 - float(np.mean(own)) / GPUS)}
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seventh", nargs="+", type=int, choices=range(2, 8), default=[6], help="parts replayed")
    parser.add_argument("--model", nargs="+", default=["last-value", "lightgbm"])
    parser.add_argument("--reading", nargs="+", choices=["running", "wanted"], default=["running"])
    parser.add_argument("--target", type=float, default=0.98)
    options = parser.parse_args()
    out = sys.stderr if options.json else sys.stdout
    document = []
    for reading in options.reading:
        ceilings = possible(wanted(reading), max(options.seventh))
        told = ", ".join(f"{row['saving_pct']:.1f}%" for row in ceilings)
        print(f"{reading}: perfect foresight saves, by seventh: {told}", file=out)
        for sevenths, name in itertools.product(options.seventh, options.model):
            file = cut(wanted(reading), sevenths)
            begin = len(file.series) * (sevenths - 1) // sevenths
            replayed = plan_series(
                LoadedSeries(file), make_predictor(name), begin, target=options.target, total_gpus=GPUS
            )
            found = replayed.result
            for row in found.replay:
                print(
                    f"  {sevenths}/7 {name:<12} {row.name:<18} {100 * row.performance:6.2f}% served "
                    f"{row.energy_saving_pct:6.2f}% saved",
                    file=out,
                    flush=True,
                )
            document.append({"reading": reading, "seventh": sevenths, "result": found.model_dump(mode="json")})
    if options.json:
        print(json.dumps({"rows": document}, indent=2))


if __name__ == "__main__":
    main()
