"""Job tables from other tools: latency and bandwidth of every job on every sub-accelerator, as CSV or JSON.

A CSV has a row for each job on each sub-accelerator: ``job``, ``accelerator``, ``latency_cycles`` and either
``bandwidth_gbs`` or ``bytes`` (what the job moves: over its cycles at 1 GHz that is the bandwidth); ``energy_nj`` if it
is known. Where a pair has no row, or no latency, the job cannot run there. Jobs and sub-accelerators stand in the order
in which they first appear, or by number if all are whole numbers. A JSON file has the fields of ``table`` in a problem;
what ``map table --json`` prints is one.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from commonwatt.data.files import load_yaml
from commonwatt.data.table import TextTable, read_table
from commonwatt.data.text import read_text
from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError
from commonwatt.model.map_file import MapTable

__all__ = ["COLUMNS", "NamedTable", "from_arrays", "read_job_table", "table_text"]

COLUMNS = ("job", "accelerator", "latency_cycles", "bandwidth_gbs", "energy_nj")


class NamedTable(NamedTuple):
    """A job table with the names of its rows and columns."""

    table: MapTable
    jobs: tuple[str, ...]
    accelerators: tuple[str, ...]


def read_job_table(path: str | Path) -> NamedTable:
    """Read a job table.

    Raises
    ------
    InputError
        For a column that is missing, a cell that is no number, a pair that stands twice. It names file, line and field.
    """
    path = Path(path)
    text = read_text(path)
    if text.lstrip().startswith("{"):
        table = load_yaml(path, MapTable)
        shape = len(table.latency_cycles), max(len(row) for row in table.latency_cycles)
        jobs, accelerators = (
            _names(text, key, count) for key, count in zip(("jobs", "accelerators"), shape, strict=True)
        )
        return NamedTable(table, jobs, accelerators)
    return _from_rows(read_table(path, text=text))


def from_arrays(latency: Floats, bandwidth: Floats, energy: Floats | None) -> MapTable:
    """Return the tables ([J, A]) for a file: where *latency* is not finite, all are null."""
    here = np.isfinite(latency)

    def rows(values: Floats) -> tuple[tuple[float | None, ...], ...]:
        return tuple(
            tuple(value if known else None for value, known in zip(row, fits, strict=True))
            for row, fits in zip(values.tolist(), here.tolist(), strict=True)
        )

    return MapTable.model_construct(
        latency_cycles=rows(latency),
        bandwidth_gbs=rows(bandwidth),
        energy_nj=None if energy is None else rows(energy),
    )


def table_text(named: NamedTable) -> str:
    """Return the CSV that :func:`read_job_table` reads back; pairs that cannot run have no latency."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS if named.table.energy_nj is not None else COLUMNS[:-1])
    for j, job in enumerate(named.jobs):
        for a, accelerator in enumerate(named.accelerators):
            cells = [named.table.latency_cycles[j][a], named.table.bandwidth_gbs[j][a]]
            if named.table.energy_nj is not None:
                cells.append(named.table.energy_nj[j][a])
            writer.writerow([job, accelerator, *("" if cell is None else repr(cell) for cell in cells)])
    return out.getvalue()


def numbered(count: int) -> tuple[str, ...]:
    """Return default names: numbers from 0."""
    return tuple(map(str, range(count)))


def _names(text: str, key: str, count: int) -> tuple[str, ...]:
    """Return the names in the result of ``map table --json``, or numbers."""
    given = json.loads(text).get(key)
    return tuple(map(str, given)) if given and len(given) == count else numbered(count)


def _from_rows(table: TextTable) -> NamedTable:
    for name in ("job", "accelerator"):
        cells = table.text(name)
        if "" in cells:
            raise table.error(cells.index(""), name, "a name or number")
    jobs, accelerators = _order(table.columns["job"]), _order(table.columns["accelerator"])
    shape = len(jobs), len(accelerators)
    row = {name: i for i, name in enumerate(jobs)}, {name: i for i, name in enumerate(accelerators)}
    at = (
        np.array([row[0][name] for name in table.columns["job"]]),
        np.array([row[1][name] for name in table.columns["accelerator"]]),
    )
    _once(table, at[0] * len(accelerators) + at[1])
    latency = table.numbers("latency_cycles", blank=np.nan)
    known = ~np.isnan(latency)
    for i in np.flatnonzero(known & ~(latency > 0)).tolist()[:1]:
        raise table.error(i, "latency_cycles", "a number above 0")
    values = {"latency": np.where(known, latency, np.inf), "bandwidth": _bandwidth(table, latency, known)}
    if "energy_nj" in table:
        values["energy"] = _not_negative(table, "energy_nj", known)
    filled: dict[str, Floats] = {}
    for name, column in values.items():
        filled[name] = np.full(shape, np.inf)
        filled[name][at] = column
    return NamedTable(from_arrays(filled["latency"], filled["bandwidth"], filled.get("energy")), jobs, accelerators)


def _order(names: Sequence[str]) -> tuple[str, ...]:
    first = tuple(dict.fromkeys(names))
    return tuple(sorted(first, key=int)) if all(name.isdecimal() for name in first) else first


def _once(table: TextTable, pairs: np.ndarray) -> None:
    _, first = np.unique(pairs, return_index=True)
    for i in sorted(set(range(len(pairs))) - set(first.tolist()))[:1]:
        raise table.error(i, "accelerator", f"one row for job {table.columns['job'][i]} there")


def _bandwidth(table: TextTable, latency: Floats, known: np.ndarray) -> Floats:
    if "bytes" not in table:
        return _not_negative(table, "bandwidth_gbs", known)
    if "bandwidth_gbs" in table:
        raise InputError("bandwidth_gbs or bytes, not both", file=table.path, field="bytes")
    moved = _not_negative(table, "bytes", known)
    return np.where(known, moved / np.where(known, latency, 1.0), np.inf)


def _not_negative(table: TextTable, name: str, known: np.ndarray) -> Floats:
    values = table.numbers(name, blank=np.nan)
    for i in np.flatnonzero(known & ~(values >= 0)).tolist()[:1]:
        raise table.error(i, name, "a number, 0 or more")
    return np.where(known, values, np.inf)
