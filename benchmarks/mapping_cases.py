"""The reference batches as job tables, read by path, and what the published search makes of them."""

from __future__ import annotations

import csv
import functools
import sys
from pathlib import Path

import numpy as np

from commonwatt.data import third_party
from commonwatt.mapping import MappingProblem

BATCHES = ("conv", "lang", "recom", "mix")
SETTINGS = {
    "S1": ["HB32"] * 4,
    "S2": ["HB32"] * 3 + ["LB32"],
    "S3": ["HB128"] * 8,
    "S4": ["HB128"] * 7 + ["LB128"],
    "S5": ["HB128"] * 3 + ["LB128"] + ["HB64"] * 3 + ["LB64"],
    "S6": ["HB128"] * 7 + ["LB128"] + ["HB64"] * 7 + ["LB64"],
}
PUBLISHED = (("S2", 16), ("S4", 1), ("S4", 256), ("S5", 1), ("S5", 256))
"""Settings and bandwidths, GB/s, the published search was run at."""


def home() -> Path:
    """Return the folder of the reference data; ends the program if there is none."""
    traces = third_party.folder()
    found = traces.parent / "mapping" if traces is not None else None
    if found is None or not (found / "job_analysis.csv").is_file():
        sys.exit(f"no reference mappings: set {third_party.VARIABLE}")
    return found


@functools.cache
def _costs() -> dict[tuple[tuple[int, ...], str], tuple[float, float]]:
    names = ("d1", "d2", "d3", "d4", "d5", "d6", "type_code")
    with (home() / "job_analysis.csv").open() as file:
        return {
            (tuple(int(float(row[name])) for name in names), row["dataflow"] + row["pe_rows"]): (
                float(row["latency_cycles"]),
                float(row["req_bw_gbs"]),
            )
            for row in csv.DictReader(file)
        }


@functools.cache
def case(batch: str, instance: int, setting: str, bandwidth_gbs: float) -> MappingProblem:
    """Return one batch on one platform."""
    with (home() / "instances" / f"batch_{batch}" / f"insts{instance}.csv").open() as file:
        shapes = [tuple(int(float(cell)) for cell in row[2:]) for row in csv.reader(file)]
    cells = np.array([[_costs()[shape, name] for name in SETTINGS[setting]] for shape in shapes])
    return MappingProblem(
        np.ascontiguousarray(cells[..., 0]), np.ascontiguousarray(cells[..., 1]), float(bandwidth_gbs)
    )


@functools.cache
def published() -> dict[tuple[str, int, str, float], dict[str, list[float]]]:
    """Return the makespans of every method on every case it was run on."""
    found: dict[tuple[str, int, str, float], dict[str, list[float]]] = {}
    with (home() / "peer_results.csv").open() as file:
        for row in csv.DictReader(file):
            key = row["batch"], int(row["instance"]), row["setting"], float(row["bw_gbs"])
            found.setdefault(key, {}).setdefault(row["method"], []).append(float(row["best_makespan_cycles"]))
    return found
