"""Speeds without measured tables: scaling laws per class of models, and estimates from data sheets for GPU types.

**Scaling laws** are used if the measured tables are not available.

``speed(class, type, g) = speed_of_one[class][type] * g ** exponent[class][type]``, relative to one P100.

The figures are ours, fitted by ``fit`` (which says how, and prints the misfit) to three public tables: Gavel's
throughputs (github.com/stanford-futuredata/gavel, MIT), Zeus' power table (github.com/ml-energy/zeus, Apache-2.0)
and Sia's scaling table (github.com/siasosp23/artifacts). They were measured within one node of at most 8 GPUs: across
nodes, and beyond 8 GPUs, they extrapolate and flatter slow networks. Root mean square of ln(measured / law) over batch
sizes and counts: 0.03 to 0.30, but 0.42 for language models, whose V100 figures jump with the machine (4 GPUs with
slow links, 8 with fast ones).

What the tables lack is borrowed: nobody measured the A40 on several GPUs (RTX6000's exponents), BERT on several P100
and V100 (Transformer's), Recommendation on several K80, P100 and V100 (NCF on other GPUs), an LSTM language model
beyond V100 (speed from DeepSpeech2 and BERT, its own exponent on the three types it was measured on).
Power is known for four types only. ResNet-18, Transformer, LM and Recommendation have the power of ShuffleNetV2, BERT,
DeepSpeech2 and NCF; so they have with a power limit (``at_limit``): the mean over these four types, and over batch
sizes, of time and power at a part of the highest limit (Zeus: J. You et al., NSDI 2023), for all GPU types.

**Data sheets** serve for GPU types that nobody measured in the public tables.

The speed of one GPU relative to another is the cube root of ``peak TFLOPS ratio * memory bandwidth ratio``: the
geometric mean of the two and of 1, as if a third of the work did not depend on the GPU at all. Peak is dense BF16 or
FP16, FP32 where a GPU has no faster one. More GPUs scale as on an A100.

The rule is ours. ``misfit`` compares it with a fitted law: over the seven measured types beside the A100 and the
classes of models without Recommendation, root mean square of ln(rule / law) is 0.36 (a factor of 1.4); with it, which
is bound by neither figure, 0.71 (2.0). An H100 comes out 1.9 times an A100, as in MLPerf Training v2.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from commonwatt.data.profiles.base import GPU_TYPES, known_gpu_type, mig_slice, type_in
from commonwatt.data.table import read_table
from commonwatt.model.errors import InputError
from commonwatt.model.names import one_of

__all__ = ["LAW", "LIMITS", "DataSheet", "Law", "data_sheet", "data_sheets", "misfit", "relative_speed"]

_ByType = Mapping[str, float]

LIMITS = (0.5, 0.6, 0.7, 0.8, 0.9)
"""Power limits of ``Law.at_limit``, as parts of the highest."""


@dataclass(frozen=True)
class Law:
    """Figures by class of model and GPU type."""

    speed_of_one: Mapping[str, _ByType]  # one GPU, relative to one P100
    exponent: Mapping[str, _ByType]  # of the GPU count
    power_w: Mapping[str, _ByType]  # board of one GPU while training
    at_limit: Mapping[str, Sequence[tuple[float, float]]]  # time and power at each of ``LIMITS``, over those without

    @property
    def kinds(self) -> tuple[str, ...]:
        """Classes of model."""
        return tuple(self.speed_of_one)

    @property
    def source(self) -> str:
        """Return the source of the figures."""
        return "scaling laws fitted to Gavel's, Sia's and Zeus' measurements"

    def type_named(self, name: str, field: str | None = None, file: object = None) -> str:
        """Return the known GPU type that *name* means; raises ``InputError`` listing them if there is none."""
        return known_gpu_type(name, field, file)

    def speed(self, kind: str, gpu_type: str, gpus: int) -> float | None:
        """Samples per second relative to one P100; ``None`` on a type the class was never measured on."""
        name = known_gpu_type(gpu_type)
        of_one = self._row(self.speed_of_one, kind).get(name)
        return None if of_one is None else of_one * gpus ** self.exponent[kind][name]

    def gpu_w(self, kind: str, gpu_type: str) -> float | None:
        """Power of one GPU's board while it trains, watts; ``None`` on a type without measurements."""
        return self._row(self.power_w, kind).get(known_gpu_type(gpu_type))

    def limited(self, kind: str, gpu_type: str, limit: float) -> tuple[float, float] | None:  # noqa: ARG002
        """Time and power of training with a power limit, relative to those without: the mean of four GPU types."""
        time, power = np.array([*self.at_limit[kind], (1.0, 1.0)]).T
        return float(np.interp(limit, [*LIMITS, 1.0], time)), float(np.interp(limit, [*LIMITS, 1.0], power))

    @staticmethod
    def _row(table: Mapping[str, _ByType], kind: str) -> _ByType:
        if kind not in table:
            raise InputError(one_of(table, kind), field="kind", value=kind)
        return table[kind]


_TEXT_W = {"P100": 173, "V100": 226, "RTX6000": 236, "A40": 267}
_TEXT_AT_LIMIT = ((1.40, 0.58), (1.19, 0.69), (1.09, 0.79), (1.04, 0.87), (1.02, 0.95))
_TEXT_SCALES = {"P100": 0.67, "V100": 0.78, "T4": 0.95, "RTX2080Ti": 0.60, "RTX6000": 0.64, "A40": 0.64, "A100": 1.00}

# fmt: off
LAW = Law(
    speed_of_one={
        "resnet18": {
            "K80": 0.17, "P100": 1.00, "V100": 1.11, "T4": 0.44,
            "RTX2080Ti": 0.63, "RTX6000": 0.77, "A40": 1.08, "A100": 1.18,
        },
        "resnet50": {
            "K80": 0.24, "P100": 1.00, "V100": 1.52, "T4": 0.77,
            "RTX2080Ti": 0.92, "RTX6000": 1.10, "A40": 1.44, "A100": 1.48,
        },
        "transformer": {
            "K80": 0.38, "P100": 1.00, "V100": 1.35, "T4": 0.54,
            "RTX2080Ti": 1.02, "RTX6000": 1.23, "A40": 2.30, "A100": 2.24,
        },
        "bert": {
            "P100": 1.00, "V100": 1.75, "T4": 0.70, "RTX2080Ti": 1.32,
            "RTX6000": 1.59, "A40": 2.98, "A100": 2.90,
        },
        "lm": {
            "K80": 0.30, "P100": 1.00, "V100": 1.19, "T4": 0.49,
            "RTX2080Ti": 0.92, "RTX6000": 1.11, "A40": 1.22, "A100": 2.02,
        },
        "recommendation": {
            "K80": 0.60, "P100": 1.00, "V100": 0.46, "T4": 0.31,
            "RTX2080Ti": 0.17, "RTX6000": 0.22, "A40": 0.46, "A100": 0.30,
        },
    },
    exponent={
        "resnet18": {
            "K80": 0.90, "P100": 0.81, "V100": 1.00, "T4": 0.89,
            "RTX2080Ti": 0.87, "RTX6000": 0.86, "A40": 0.86, "A100": 1.00,
        },
        "resnet50": {
            "K80": 0.93, "P100": 0.90, "V100": 0.57, "T4": 0.97,
            "RTX2080Ti": 0.95, "RTX6000": 0.98, "A40": 0.98, "A100": 1.00,
        },
        "transformer": {"K80": 0.73, **_TEXT_SCALES},
        "bert": _TEXT_SCALES,
        "lm": {
            "K80": 0.58, "P100": 0.37, "V100": 0.81, "T4": 0.59,
            "RTX2080Ti": 0.59, "RTX6000": 0.59, "A40": 0.59, "A100": 0.59,
        },
        "recommendation": {
            "K80": 0.77, "P100": 0.77, "V100": 0.77, "T4": 0.63,
            "RTX2080Ti": 0.80, "RTX6000": 0.71, "A40": 0.71, "A100": 0.96,
        },
    },
    power_w={
        "resnet18": {"P100": 104, "V100": 147, "RTX6000": 166, "A40": 188},
        "resnet50": {"P100": 159, "V100": 222, "RTX6000": 232, "A40": 241},
        "transformer": _TEXT_W,
        "bert": _TEXT_W,
        "lm": {"P100": 122, "V100": 171, "RTX6000": 177, "A40": 177},
        "recommendation": {"P100": 35, "V100": 38, "RTX6000": 67, "A40": 87},
    },
    at_limit={
        "resnet18": ((1.10, 0.82), (1.04, 0.88), (1.02, 0.92), (1.02, 0.95), (1.01, 0.98)),
        "resnet50": ((1.32, 0.60), (1.13, 0.70), (1.06, 0.80), (1.03, 0.88), (1.01, 0.95)),
        "transformer": _TEXT_AT_LIMIT,
        "bert": _TEXT_AT_LIMIT,
        "lm": ((1.20, 0.70), (1.08, 0.77), (1.04, 0.85), (1.02, 0.91), (1.01, 0.96)),
        "recommendation": ((1.02, 0.99), (1.02, 0.99), (1.02, 0.99), (1.02, 0.99), (1.02, 0.99)),
    },
)
# fmt: on


# -- data sheets


_FILE = Path(__file__).parent.parent / "gpu_speed.csv"


@dataclass(frozen=True)
class DataSheet:
    """A row of ``gpu_speed.csv``: peak and memory of one GPU, and where the peak is written.

    The memory is that of the smallest version of the GPU; of the H100 NVL it is that of one GPU.
    """

    gpu_type: str
    form: str  # SXM2, PCIE, ...; empty where there is one
    peak_tflops: float
    bandwidth_gbs: float
    memory_gib: float
    source: str
    name: str  # of the type; with the form unless it is the type's first


@cache
def data_sheets() -> tuple[DataSheet, ...]:
    """Return the rows of the table."""
    table = read_table(_FILE)
    rows = zip(
        table.text("gpu_type"), table.text("form"), table.numbers("peak_tflops"), table.numbers("bandwidth_gbs"),
        table.numbers("memory_gib"), table.text("source"), strict=True,
    )  # fmt: skip
    sheets: list[DataSheet] = []
    for gpu_type, form, peak, bandwidth, memory, source in rows:
        name = f"{gpu_type}-{form}" if any(row.gpu_type == gpu_type for row in sheets) else gpu_type
        sheets.append(DataSheet(gpu_type, form, float(peak), float(bandwidth), float(memory), source, name))
    return tuple(sheets)


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
