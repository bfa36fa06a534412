"""Layers as rows of an answer and of a table in the terminal."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from commonwatt.cli.output import say

if TYPE_CHECKING:
    from commonwatt.mapping.costs import Layer
    from commonwatt.model.map_results import MapLayer

__all__ = ["digest_of", "rows_of", "tell_layers"]

_SHOWN = 40  # layers in the terminal; --json and --out have all


def digest_of(things: Sequence[object]) -> str:
    """SHA-256 of what dataclasses hold."""
    return hashlib.sha256("\n".join(map(repr, things)).encode()).hexdigest()


def rows_of(layers: Sequence[Layer]) -> tuple[MapLayer, ...]:
    """Return the rows of an answer."""
    from dataclasses import asdict

    from commonwatt.model.map_results import MapLayer

    fields = set(MapLayer.model_fields) - {"macs"}
    return tuple(
        MapLayer(**{name: value for name, value in asdict(layer).items() if name in fields}, macs=layer.macs)
        for layer in layers
    )


def tell_layers(rows: Sequence[MapLayer], title: str) -> None:
    """Print a table of the first layers."""
    from rich.console import Console
    from rich.table import Table

    single = len({row.model for row in rows}) == 1
    table = Table(title=title)
    table.add_column("layer", overflow="fold")
    table.add_column("kind", no_wrap=True)
    table.add_column("outputs x inputs; pixels; filter", no_wrap=True)
    table.add_column("MACs", justify="right", no_wrap=True)
    for row in rows[:_SHOWN]:
        name = row.name if single else "/".join(part for part in (row.model, row.name) if part)
        table.add_row(name, row.kind, _shape(row), f"{row.macs:,}")
    Console().print(table)
    if len(rows) > _SHOWN:
        say(f"and {len(rows) - _SHOWN} more; --json and --out have all")


def _shape(row: MapLayer) -> str:
    parts = [str(row.c) if row.kind == "depthwise" else f"{row.k} x {row.c}"]
    if row.kind == "gemm":
        parts.append(f"{row.y} rows")
    elif row.kind != "fc":
        stride = f" / {row.stride}" if row.stride > 1 else ""
        parts += [f"{row.y} x {row.x}", f"{row.r} x {row.s}{stride}"]
    if row.groups > 1:
        parts.append(f"{row.groups} groups")
    if row.batch > 1:
        parts.append(f"batch {row.batch}")
    return "; ".join(parts)
