"""Lists of layers as files: one row for each layer, a header with the names of its loops.

Columns: ``model, layer, kind, k, c, y, x, r, s, stride, padding, groups, batch, task, repeat``, in any order (``name``
may stand for ``layer``). Needed are ``kind``, ``k`` and ``c``, of a convolution also ``y``, ``x``, ``r``, ``s``, of a
``gemm`` ``y``; the others are 1 where they are blank or missing, ``padding`` 0. A row with ``repeat`` n stands for n
layers. Files of the published reference batches have no header: ``thread, layer, d1..d6, type``. What
``map layers --json`` and ``map batch --json`` print is read too.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from commonwatt.data.files import write_atomic
from commonwatt.data.table import TextTable, read_table
from commonwatt.data.text import read_text
from commonwatt.mapping.costs import Kind, Layer, TaskClass
from commonwatt.model.errors import InputError
from commonwatt.model.fields import ResultModel
from commonwatt.model.map_results import MapLayer
from commonwatt.model.names import one_of
from commonwatt.model.units import plural

__all__ = ["COLUMNS", "digest_of", "layers_text", "read_layers", "rows_of", "write_layers"]

COLUMNS = (
    "model", "layer", "kind", "k", "c", "y", "x", "r", "s", "stride", "padding", "groups", "batch", "task", "repeat",
)  # fmt: skip
_KINDS = ("fc", "conv", "depthwise", "gemm")
_TASKS = ("vision", "language", "recommendation")
_NEEDED = {
    "fc": {"k", "c"},
    "gemm": {"k", "c", "y"},
    "conv": {"k", "c", "y", "x", "r", "s"},
    "depthwise": {"c", "y", "x", "r", "s"},
}
_REFERENCE = ("thread", "layer", "d1", "d2", "d3", "d4", "d5", "d6", "type")
_MOST = 10**9  # larger dimensions are taken for mistakes
_MOST_LAYERS = 10**6


class _Layers(ResultModel):
    layers: tuple[MapLayer, ...]


def digest_of(things: Sequence[object]) -> str:
    """SHA-256 of what dataclasses hold."""
    return hashlib.sha256("\n".join(map(repr, things)).encode()).hexdigest()


def rows_of(layers: Sequence[Layer]) -> tuple[MapLayer, ...]:
    """Return *layers* as an answer has them."""
    fields = set(MapLayer.model_fields) - {"macs"}
    return tuple(
        MapLayer(**{name: value for name, value in asdict(layer).items() if name in fields}, macs=layer.macs)
        for layer in layers
    )


def read_layers(path: str | Path) -> tuple[Layer, ...]:
    """Read a list of layers, in the order of the file, each repeated ``repeat`` times.

    Raises
    ------
    InputError
        For a file without layers, a column that is missing or unknown, a dimension that is missing, no whole number or
        below 1, and whatever :class:`~commonwatt.mapping.costs.Layer` refuses. It names file, line, field and value.
    """
    path = Path(path)
    text = read_text(path)
    first = next(line for line in text.splitlines() if line.strip())
    if _is_number(first.split(",")[0].strip()):
        return tuple(_reference_layers(path, text))
    table = _of_result(path, text) if first.lstrip().startswith("{") else read_table(path, text=text)
    if "name" in table and "layer" not in table:
        table.columns["layer"] = table.columns.pop("name")
    unknown = sorted(set(table.columns) - set(COLUMNS))
    if unknown:
        raise InputError(f"columns among {', '.join(COLUMNS)}", file=path, field=unknown[0])
    table.text("kind")
    layers: list[Layer] = []
    for row in range(len(table)):
        layer, times = _layer(table, row)
        if len(layers) + times > _MOST_LAYERS:
            raise table.error(row, "repeat", f"no more than {_MOST_LAYERS} layers in all")
        layers += [layer] * times
    return tuple(layers)


def _of_result(path: Path, text: str) -> TextTable:
    """Return the layers in the output of ``map layers --json`` or ``map batch --json``, as a table."""
    try:
        rows = _Layers.model_validate_json(text).layers
    except ValidationError:
        raise InputError("a CSV of layers, or what map layers --json or map batch --json prints", file=path) from None
    if not rows:
        raise InputError("at least one layer", file=path, field="layers", value="none")
    columns = {
        name: ["" if value is None else str(value) for value in (getattr(row, name) for row in rows)]
        for name in MapLayer.model_fields
        if name != "macs"
    }
    return TextTable(path, columns, list(range(1, len(rows) + 1)))


def layers_text(layers: Iterable[Layer]) -> str:
    """Return the file that :func:`read_layers` reads back; equal layers in a row become one row with ``repeat``."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for layer, same in groupby(layers):
        sizes = (layer.k, layer.c, layer.y, layer.x, layer.r, layer.s, layer.stride, layer.padding, layer.groups)
        row = (layer.model, layer.name, layer.kind, *sizes, layer.batch, layer.task or "", sum(1 for _ in same))
        writer.writerow(row)
    return out.getvalue()


def write_layers(path: str | Path, layers: Iterable[Layer]) -> None:
    """Write *layers* to a file, completely or not at all; raises ``InputError`` if it cannot be written."""
    write_atomic(path, layers_text(layers))


def _layer(table: TextTable, row: int) -> tuple[Layer, int]:
    kind = _one_of(table, row, "kind", _KINDS)
    needed = _NEEDED[kind]
    sizes = {name: _size(table, row, name, needed=name in needed) for name in ("k", "c", "y", "x", "r", "s")}
    others = {name: _size(table, row, name, needed=False) for name in ("stride", "padding", "groups", "batch")}
    task = _one_of(table, row, "task", _TASKS) if _cell(table, row, "task") else None
    return _made(
        table.path,
        table.lines[row],
        kind=cast("Kind", kind),
        sizes=sizes | others,
        name=_cell(table, row, "layer"),
        model=_cell(table, row, "model"),
        task=cast("TaskClass | None", task),
    ), _size(table, row, "repeat", needed=False)


def _cell(table: TextTable, row: int, name: str) -> str:
    return table.columns[name][row] if name in table else ""


def _one_of(table: TextTable, row: int, name: str, allowed: tuple[str, ...]) -> str:
    cell = _cell(table, row, name)
    if cell not in allowed:
        raise table.error(row, name, one_of(allowed, cell))
    return cell


def _size(table: TextTable, row: int, name: str, *, needed: bool) -> int:
    least = 0 if name == "padding" else 1
    if needed:
        table.text(name)
    cell = _cell(table, row, name)
    if not cell and not needed:
        return least
    try:
        return _whole(cell, least)
    except ValueError:
        raise table.error(row, name, f"a whole number, {least} or more") from None


def _whole(cell: str, least: int) -> int:
    value = float(cell)
    if not value.is_integer() or not least <= value <= _MOST:
        raise ValueError
    return int(value)


def _made(
    path: Path, line: int, *, kind: Kind, sizes: dict[str, int], name: str, model: str, task: TaskClass | None
) -> Layer:
    try:
        return Layer(kind, **sizes, name=name, model=model, task=task)
    except InputError as error:
        where = f"{path}, line {line}"
        raise InputError(error.expected, file=where, field=error.field, value=error.value) from None


def _reference_layers(path: Path, text: str) -> Iterator[Layer]:
    """Yield rows of the published batches: types 0 to 3 are FC, CONV, depth-wise CONV and GEMM, with d1 to d6."""
    for line, row in enumerate(csv.reader(io.StringIO(text, newline="")), start=1):
        if not row:
            continue
        where = f"{path}, line {line}"
        if len(row) != len(_REFERENCE):
            raise InputError(
                f"{len(_REFERENCE)} cells: {', '.join(_REFERENCE)}", file=where, value=plural(len(row), "cell")
            )
        cells = dict(zip(_REFERENCE, (cell.strip() for cell in row), strict=True))
        numbers = {}
        for name in _REFERENCE[2:]:
            least = 0 if name == "type" else 1
            try:
                numbers[name] = _whole(cells[name], least)
            except ValueError:
                expected = f"a whole number, {least} or more"
                raise InputError(expected, file=where, field=name, value=cells[name] or "nothing") from None
        if numbers["type"] > 3:
            expected = "0 (FC), 1 (CONV), 2 (depth-wise CONV) or 3 (GEMM)"
            raise InputError(expected, file=where, field="type", value=numbers["type"])
        d = [numbers[f"d{i}"] for i in range(1, 7)]
        if numbers["type"] == 3:
            d = [d[1], d[2], d[0], *d[3:]]
        sizes = dict(zip(("k", "c", "y", "x", "r", "s"), d, strict=True))
        kind = ("fc", "conv", "depthwise", "gemm")[numbers["type"]]
        yield _made(path, line, kind=cast("Kind", kind), sizes=sizes, name=f"row{line}", model="", task=None)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
