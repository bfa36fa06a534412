"""Arrays of processing elements and the preset platforms, costs of layers, and the interface of a cost model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from commonwatt.mapping.costs._layers import Loops
from commonwatt.model.arrays import Bools, Floats
from commonwatt.model.errors import InputError

__all__ = ["PLATFORMS", "Array", "CostModel", "Costs", "Dataflow"]

Dataflow = Literal["HB", "LB", "SHI"]


@dataclass(frozen=True)
class Array:
    """A sub-accelerator: *rows* by *cols* processing elements with a dataflow (G#, 2.2.2 and Table 4).

    Parameters
    ----------
    dataflow
        ``HB`` (NVDLA-like: output channels over rows, input channels over columns), ``LB`` (Eyeriss-like: rows of the
        output), ``SHI`` (ShiDianNao-like: rows and columns of the output).
    rows, cols
        Of processing elements.
    sg_bytes
        Global scratchpad, both halves of the double buffer; ``None``: as large as it takes.
    sl_bytes
        Scratchpad of one processing element, both halves; ``None``: as large as it takes.
    flexible
        Whether rows and columns are chosen anew for each layer, within their product (5.5).
    name
        What it is called.

    Raises
    ------
    InputError
        For a size below 1 or a buffer below 0.
    """

    dataflow: Dataflow
    rows: int
    cols: int = 64
    sg_bytes: float | None = None
    sl_bytes: float | None = None
    flexible: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        for size in ("rows", "cols"):
            if getattr(self, size) < 1:
                raise InputError("a whole number above 0", field=f"pe_{size}", value=getattr(self, size))
        for buffer in ("sg_bytes", "sl_bytes"):
            capacity = getattr(self, buffer)
            if capacity is not None and not capacity > 0:
                raise InputError("a number above 0", field=buffer, value=capacity)

    @property
    def elements(self) -> int:
        """Number of processing elements."""
        return self.rows * self.cols

    @property
    def label(self) -> str:
        """Its name, or its dataflow and rows as in Table 4, with the columns if they are not 64."""
        flexible = "-flexible" if self.flexible else ""
        return self.name or f"{self.dataflow}{self.rows}" + (f"x{self.cols}" if self.cols != 64 else "") + flexible


@dataclass(frozen=True)
class Costs:
    """What each layer costs on one array. All of shape [L]; cycles are infinite where it does not fit."""

    cycles: Floats  # if bandwidth is free
    bandwidth: Floats  # bytes per cycle it requests meanwhile: GB/s at 1 GHz
    sg_needed: Floats  # bytes of the global scratchpad, both halves
    sl_needed: Floats  # bytes of the scratchpad of one processing element, both halves
    macs: Floats
    sl_accesses: Floats
    sg_accesses: Floats
    dram_bytes: Floats  # for the energy; what ``bandwidth`` moves is the model's own
    rows: Floats  # shape of the array
    cols: Floats

    @property
    def fits(self) -> Bools:
        """Where the layer can run."""
        return np.isfinite(self.cycles)


class CostModel(Protocol):
    """Anything that says what layers cost on an array."""

    def cycles(self, loops: Loops, array: Array, rows: Floats, cols: Floats) -> Floats:
        """Return the no-stall cycles with ample buffers; *rows* and *cols* stand for the array's and broadcast."""
        ...

    def costs(self, loops: Loops, array: Array) -> Costs:
        """Return all that layers cost on an array in the shape it has; never fewer cycles than ``cycles`` says."""
        ...


_KIB = 1024.0


def _hb32(count: int) -> tuple[Array, ...]:
    return (Array("HB", 32, sg_bytes=146 * _KIB),) * count


def _hb64(count: int) -> tuple[Array, ...]:
    return (Array("HB", 64, sg_bytes=291 * _KIB),) * count


def _hb128(count: int) -> tuple[Array, ...]:
    return (Array("HB", 128, sg_bytes=580 * _KIB),) * count


_LB32 = Array("LB", 32, sg_bytes=110 * _KIB)
_LB64 = Array("LB", 64, sg_bytes=218 * _KIB)
_LB128 = Array("LB", 128, sg_bytes=434 * _KIB)


def _flexible(rows: int, count: int) -> tuple[Array, ...]:
    return (Array("HB", rows, sg_bytes=2048 * _KIB, sl_bytes=_KIB, flexible=True),) * count


PLATFORMS: dict[str, tuple[Array, ...]] = {
    "S1": _hb32(4),
    "S2": (*_hb32(3), _LB32),
    "S3": _hb128(8),
    "S4": (*_hb128(7), _LB128),
    "S5": (*_hb128(3), _LB128, *_hb64(3), _LB64),
    "S6": (*_hb128(7), _LB128, *_hb64(7), _LB64),
    "S1-flexible": _flexible(32, 4),
    "S3-flexible": _flexible(128, 8),
}
"""Sub-accelerators by setting. Table 4 gives one buffer size, taken as the global scratchpad's; the elements' own is
unknown but in 5.5, where it is 1 KB each, beside 2 MB for all."""
