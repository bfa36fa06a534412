"""Estimates of speed from data sheets, for GPU types that nobody measured in the public tables.

The speed of one GPU relative to another is the cube root of ``peak TFLOPS ratio * memory bandwidth ratio``: the
geometric mean of the two and of 1, as if a third of the work did not depend on the GPU at all. Peak is dense BF16 or
FP16, FP32 where a GPU has no faster one. More GPUs scale as on an A100.

The rule is ours. ``misfit`` compares it with a fitted law: over the seven measured types beside the A100 and the
classes of models without Recommendation, root mean square of ln(rule / law) is 0.36 (a factor of 1.4); with it, which
is bound by neither figure, 0.71 (2.0). An H100 comes out 1.9 times an A100, as in MLPerf Training v2.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from commonwatt.data.profiles.base import GPU_TYPES, mig_slice, type_in
from commonwatt.data.profiles.law import Law
from commonwatt.data.table import read_table

__all__ = ["DataSheet", "data_sheet", "data_sheets", "misfit", "relative_speed"]

_FILE = Path(__file__).parent.parent / "gpu_speed.csv"


@dataclass(frozen=True)
class DataSheet:
    """A row of ``gpu_speed.csv``: peak of one GPU, and where that is written."""

    gpu_type: str
    form: str  # SXM2, PCIE, ...; empty where there is one
    peak_tflops: float
    bandwidth_gbs: float
    source: str
    name: str  # of the type; with the form unless it is the type's first


@cache
def data_sheets() -> tuple[DataSheet, ...]:
    """Return the rows of the table."""
    table = read_table(_FILE)
    rows = zip(
        table.text("gpu_type"), table.text("form"), table.numbers("peak_tflops"), table.numbers("bandwidth_gbs"),
        table.text("source"), strict=True,
    )  # fmt: skip
    found: list[DataSheet] = []
    for gpu_type, form, peak, bandwidth, source in rows:
        name = f"{gpu_type}-{form}" if any(row.gpu_type == gpu_type for row in found) else gpu_type
        found.append(DataSheet(gpu_type, form, float(peak), float(bandwidth), source, name))
    return tuple(found)


def data_sheet(product: str) -> DataSheet | None:
    """Return the row for *product*: that of its form if the name says one, else the type's first; ``None``: unknown."""
    if mig_slice(product) is not None:
        return None
    gpu_type = type_in(product, {row.gpu_type.upper(): row.gpu_type for row in data_sheets()})
    own = [row for row in data_sheets() if row.gpu_type == gpu_type]
    said = product.upper().replace("PCI-E", "PCIE")
    return next((row for row in own if row.form and row.form[:3] in said), own[0] if own else None)


def relative_speed(one: DataSheet, other: DataSheet) -> float:
    """Return the estimated speed of *one* as a multiple of *other*'s."""
    peak, bandwidth = one.peak_tflops / other.peak_tflops, one.bandwidth_gbs / other.bandwidth_gbs
    return float(np.cbrt(peak * bandwidth))


def misfit(law: Law, reference: str = "A100") -> dict[str, dict[str, float]]:
    """Return ``ln(rule / law)`` of the speed relative to *reference*, by class of models and measured GPU type."""
    other = _first(reference)
    return {
        kind: {
            name: float(np.log(relative_speed(_first(name), other) / (speeds[name] / speeds[reference])))
            for name in GPU_TYPES
            if name in speeds and name != reference
        }
        for kind, speeds in law.speed_of_one.items()
        if reference in speeds
    }


def _first(gpu_type: str) -> DataSheet:
    return next(row for row in data_sheets() if row.gpu_type == gpu_type)
