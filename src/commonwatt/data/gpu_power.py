"""What a GPU of a type draws at most, by the data sheets of its maker (``gpu_power.csv``)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from commonwatt.data.profiles.gpu_types import MIG_SLICES, mig_slice, type_in
from commonwatt.data.table import read_table

__all__ = ["BoardPower", "board_power", "type_of"]


@dataclass(frozen=True)
class BoardPower:
    """A row of the table."""

    gpu_type: str
    form: str  # SXM2, PCIE, ...; empty where there is one
    board_w: float
    source: str


@cache
def _rows() -> tuple[BoardPower, ...]:
    table = read_table(Path(__file__).with_suffix(".csv"))
    cells = zip(table.text("gpu_type"), table.text("form"), table.numbers("board_w"), table.text("source"), strict=True)
    return tuple(BoardPower(gpu_type, form, float(board_w), source) for gpu_type, form, board_w, source in cells)


def type_of(product: str) -> str | None:
    """Return the GPU type of the table that *product* means, in any spelling, or ``None``."""
    return type_in(product, {row.gpu_type.upper(): row.gpu_type for row in _rows()})


def board_power(product: str) -> BoardPower | None:
    """Return the row for *product*: that of its form if the name says one, else the type's first; ``None``: unknown.

    A MIG slice has its share of the GPU's compute slices.
    """
    part = mig_slice(product)
    if part is not None:
        whole = board_power(part.whole)
        share = f"{part.slices}/{MIG_SLICES} of {whole.board_w:g} W, {whole.source}" if whole else ""
        return whole and BoardPower(product, whole.form, whole.board_w * part.slices / MIG_SLICES, share)
    own = [row for row in _rows() if row.gpu_type == type_of(product)]
    said = product.upper().replace("PCI-E", "PCIE")
    fits = (row for row in own if row.form and all(part[:3] in said for part in row.form.split("-")))
    return next(fits, own[0] if own else None)
