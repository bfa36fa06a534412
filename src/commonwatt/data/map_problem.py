"""Problems of ``map`` as written, into job tables: layers costed on a platform, or a table from elsewhere.

A table from elsewhere is CSV or JSON, with latency and bandwidth of every job on every sub-accelerator.
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
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from commonwatt import __version__
from commonwatt.data.files import load_yaml
from commonwatt.data.layer_batches import batch_of
from commonwatt.data.layer_files import read_layers
from commonwatt.data.table import TextTable, read_table
from commonwatt.data.text import read_text
from commonwatt.mapping import MappingProblem
from commonwatt.mapping.costs import MODELS, PLATFORMS, Array, JobTable, Layer, ModelName, job_table
from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError
from commonwatt.model.fields import digest
from commonwatt.model.map_file import AcceleratorSpec, BatchSpec, LayerSpec, MapFile, MapTable
from commonwatt.model.map_results import MapTableResult
from commonwatt.model.names import one_of

__all__ = [
    "COLUMNS",
    "LoadedMapping",
    "NamedTable",
    "arrays_of",
    "complete",
    "from_arrays",
    "load_map",
    "load_problem",
    "read_job_table",
    "table_result",
    "table_text",
]

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
            tuple(value if fit else None for value, fit in zip(row, fits, strict=True))
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
    has_value = ~np.isnan(latency)
    for i in np.flatnonzero(has_value & ~(latency > 0)).tolist()[:1]:
        raise table.error(i, "latency_cycles", "a number above 0")
    values = {"latency": np.where(has_value, latency, np.inf), "bandwidth": _bandwidth(table, latency, has_value)}
    if "energy_nj" in table:
        values["energy"] = _not_negative(table, "energy_nj", has_value)
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


def _bandwidth(table: TextTable, latency: Floats, has_value: np.ndarray) -> Floats:
    if "bytes" not in table:
        return _not_negative(table, "bandwidth_gbs", has_value)
    if "bandwidth_gbs" in table:
        raise InputError("bandwidth_gbs or bytes, not both", file=table.path, field="bytes")
    moved = _not_negative(table, "bytes", has_value)
    return np.where(has_value, moved / np.where(has_value, latency, 1.0), np.inf)


def _not_negative(table: TextTable, name: str, has_value: np.ndarray) -> Floats:
    values = table.numbers(name, blank=np.nan)
    for i in np.flatnonzero(has_value & ~(values >= 0)).tolist()[:1]:
        raise table.error(i, name, "a number, 0 or more")
    return np.where(has_value, values, np.inf)


@dataclass(frozen=True)
class LoadedMapping:
    """A problem with its job table. *costs* and *arrays* are there if it was made from layers."""

    file: MapFile  # with the table filled in
    named: NamedTable
    costs: JobTable | None
    arrays: tuple[Array, ...]
    layers: tuple[Layer, ...]


def load_map(path: str | Path) -> MapFile:
    """Read a problem; its ``table`` is the job table, whatever it was given as.

    Jobs without names get those of their layers, and without tenants the networks they are from, if all have one.

    Raises
    ------
    InputError
        For all that is wrong with the file and those it names: an unknown platform, a layer that is none, an empty
        batch, a layer that no sub-accelerator has room for, a table with gaps.
    """
    return load_problem(path).file


def load_problem(path: str | Path, cost_model: ModelName | None = None) -> LoadedMapping:
    """Read a problem and all it names; *cost_model* stands for the file's. Raises ``InputError`` as ``load_map``."""
    path = Path(path)
    file = load_yaml(path, MapFile)
    try:
        return complete(file, path.parent, cost_model)
    except InputError as error:
        raise error.within(path) from None


def complete(file: MapFile, folder: Path, cost_model: ModelName | None = None) -> LoadedMapping:
    """Make the job table of *file*, whose paths are relative to *folder*. Raises ``InputError`` as ``load_map``."""
    if isinstance(file.table, str):
        return _ready(file, read_job_table(folder / file.table))
    if isinstance(file.table, MapTable):
        width = max(len(row) for row in file.table.latency_cycles)
        return _ready(file, NamedTable(file.table, numbered(len(file.table.latency_cycles)), numbered(width)))
    return _costed(file, folder, cost_model or file.cost_model)


def table_result(loaded: LoadedMapping) -> MapTableResult:
    """Return the document of ``commonwatt map table``; raises ``InputError`` if a job can run nowhere."""
    MappingProblem.of(loaded.file)
    costs, given = loaded.costs, loaded.named.table
    return MapTableResult(
        version=__version__,
        seed=0,
        input_digest=digest(loaded.file),
        cost_model=None if costs is None else loaded.file.cost_model,
        jobs=loaded.named.jobs,
        accelerators=loaded.named.accelerators,
        latency_cycles=given.latency_cycles,
        bandwidth_gbs=given.bandwidth_gbs,
        energy_nj=given.energy_nj,
        macs=None if costs is None else tuple(layer.macs for layer in loaded.layers),
        sg_bytes=None if costs is None else _rows(costs.sg_needed),
        pe_rows=None if costs is None else _rows(costs.rows),
        pe_cols=None if costs is None else _rows(costs.cols),
    )


def _rows(values: Floats) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, values.tolist()))


def arrays_of(platform: str | Sequence[AcceleratorSpec]) -> tuple[Array, ...]:
    """Return the sub-accelerators of a platform; raises ``InputError`` on a name that is none."""
    if isinstance(platform, str):
        if platform not in PLATFORMS:
            raise InputError(f"{one_of(PLATFORMS, platform)}, or a list", field="platform", value=platform)
        return PLATFORMS[platform]
    arrays: list[Array] = []
    for spec in platform:
        array = Array(
            spec.dataflow, spec.pe_rows, spec.pe_cols, None if spec.sg_kib is None else 1024.0 * spec.sg_kib,
            spec.sl_bytes, spec.flexible, spec.name,
        )  # fmt: skip
        several = spec.count > 1 and spec.name
        arrays += [replace(array, name=f"{spec.name}{i}") if several else array for i in range(spec.count)]
    return tuple(arrays)


def _ready(file: MapFile, named: NamedTable) -> LoadedMapping:
    filled: dict[str, object] = {"table": named.table}
    if file.names is None and named.jobs != numbered(len(named.jobs)):
        filled["names"] = named.jobs
    return LoadedMapping(file.model_copy(update=filled), named, None, (), ())


def _costed(file: MapFile, folder: Path, cost_model: ModelName) -> LoadedMapping:
    assert file.platform is not None
    assert file.jobs is not None
    arrays = arrays_of(file.platform)
    layers = _layers(file.jobs, folder)
    costs = job_table(layers, arrays, MODELS[cost_model])
    table = from_arrays(costs.latency, costs.bandwidth, costs.energy)
    jobs = _distinct([_name(layer, j) for j, layer in enumerate(layers)])
    named = NamedTable(table, jobs, _distinct([array.label for array in arrays]))
    filled: dict[str, object] = {"table": table, "platform": None, "jobs": None, "cost_model": cost_model}
    if file.names is None:
        filled["names"] = jobs
    if file.tenants is None and all(layer.model for layer in layers):
        filled["tenants"] = tuple(layer.model for layer in layers)
    return LoadedMapping(file.model_copy(update=filled), named, costs, arrays, layers)


def _layers(specs: str | Sequence[LayerSpec] | BatchSpec, folder: Path) -> tuple[Layer, ...]:
    if isinstance(specs, str):
        return read_layers(folder / specs)
    if isinstance(specs, BatchSpec):
        return batch_of(specs)
    layers: list[Layer] = []
    for j, spec in enumerate(specs):
        try:
            layer = Layer(**spec.model_dump(exclude={"repeat"}))
        except InputError as error:
            raise InputError(error.expected, field=f"jobs.{spec.name or j}.{error.field}", value=error.value) from None
        layers += [layer] * spec.repeat
    return tuple(layers)


def _name(layer: Layer, j: int) -> str:
    return "/".join(part for part in (layer.model, layer.name) if part) or f"{layer.kind}-{j}"


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Return *names* with a number behind those that stand more than once."""
    often, seen, unique_names = Counter(names), Counter[str](), []
    taken = {name for name, times in often.items() if times == 1}
    for name in names:
        unique = name
        while often[name] > 1 and (unique == name or unique in taken):
            seen[name] += 1
            unique = f"{name}#{seen[name]}"
        taken.add(unique)
        unique_names.append(unique)
    return tuple(unique_names)
