"""Problems of ``map`` as written, into job tables: layers costed on a platform, or a table from elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from commonwatt.data.files import load_yaml
from commonwatt.data.job_tables import NamedTable, from_arrays, numbered, read_job_table
from commonwatt.data.layer_batches import batch_of
from commonwatt.data.layer_files import read_layers
from commonwatt.mapping.costs import MODELS, PLATFORMS, Array, JobTable, Layer, ModelName, job_table
from commonwatt.model.errors import InputError
from commonwatt.model.map_file import AcceleratorSpec, BatchSpec, LayerSpec, MapFile, MapTable
from commonwatt.model.names import one_of

__all__ = ["LoadedMapping", "arrays_of", "complete", "load_map", "load_problem"]


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


def arrays_of(platform: str | Sequence[AcceleratorSpec]) -> tuple[Array, ...]:
    """Return the sub-accelerators of a platform; raises ``InputError`` on a name that is none."""
    if isinstance(platform, str):
        if platform not in PLATFORMS:
            raise InputError(f"{one_of(PLATFORMS, platform)}, or a list", field="platform", value=platform)
        return PLATFORMS[platform]
    found: list[Array] = []
    for spec in platform:
        array = Array(
            spec.dataflow, spec.pe_rows, spec.pe_cols, None if spec.sg_kib is None else 1024.0 * spec.sg_kib,
            spec.sl_bytes, spec.flexible, spec.name,
        )  # fmt: skip
        several = spec.count > 1 and spec.name
        found += [replace(array, name=f"{spec.name}{i}") if several else array for i in range(spec.count)]
    return tuple(found)


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
    found: list[Layer] = []
    for j, spec in enumerate(specs):
        try:
            layer = Layer(**spec.model_dump(exclude={"repeat"}))
        except InputError as error:
            raise InputError(error.expected, field=f"jobs.{spec.name or j}.{error.field}", value=error.value) from None
        found += [layer] * spec.repeat
    return tuple(found)


def _name(layer: Layer, j: int) -> str:
    return "/".join(part for part in (layer.model, layer.name) if part) or f"{layer.kind}-{j}"


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Return *names* with a number behind those that stand more than once."""
    often, seen, found = Counter(names), Counter[str](), []
    taken = {name for name, times in often.items() if times == 1}
    for name in names:
        unique = name
        while often[name] > 1 and (unique == name or unique in taken):
            seen[name] += 1
            unique = f"{name}#{seen[name]}"
        taken.add(unique)
        found.append(unique)
    return tuple(found)
