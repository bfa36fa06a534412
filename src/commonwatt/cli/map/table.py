"""``commonwatt map table``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import digest, json_option, print_json, say

if TYPE_CHECKING:
    from commonwatt.data.map_problem import LoadedMapping
    from commonwatt.mapping.costs import ModelName
    from commonwatt.model.arrays import Floats
    from commonwatt.model.map_results import MapTableResult

__all__ = ["table"]

_SHOWN = 20  # jobs in the terminal; --json and --out have all
_MODELS = ("maestro", "shi", "roofline")


@click.command()
@click.argument("problem", type=click.Path(path_type=Path))
@click.option("--cost-model", type=click.Choice(_MODELS), help="Cost model, instead of the problem's.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE",
    help="Write the table (.csv or .json), for `table` of a problem.",
)  # fmt: skip
@json_option
def table(problem: Path, *, cost_model: ModelName | None, out: Path | None, as_json: bool) -> None:
    """Compute the job table of PROBLEM: cycles, bandwidth and energy of each layer on each sub-accelerator.

    \b
    Examples:
      commonwatt map table examples/map_layers.yaml
      commonwatt map table examples/map_layers.yaml --cost-model roofline --out table.csv
    """
    from commonwatt.data.map_problem import load_problem
    from commonwatt.model.errors import InputError

    if out is not None and out.suffix not in {".csv", ".json"}:
        raise InputError("a name that ends in .csv or .json", field="--out", value=out)
    loaded = load_problem(problem, cost_model)
    result = _result(loaded)
    if out is not None:
        _write(loaded, out)
        say(f"written: {out}")
    if as_json:
        print_json(result)
    else:
        _tell(result)


def _result(loaded: LoadedMapping) -> MapTableResult:
    from commonwatt import __version__
    from commonwatt.mapping import MappingProblem
    from commonwatt.model.map_results import MapTableResult

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


def _write(loaded: LoadedMapping, out: Path) -> None:
    from commonwatt.data.files import write_atomic
    from commonwatt.data.job_tables import table_text

    text = table_text(loaded.named) if out.suffix == ".csv" else loaded.named.table.model_dump_json() + "\n"
    write_atomic(out, text)


def _tell(result: MapTableResult) -> None:
    from rich.console import Console
    from rich.table import Table

    kinds = _kinds(result)
    shown = Table(title=f"cost model: {result.cost_model or 'the table given'}; cycles at GB/s")
    shown.add_column("job", no_wrap=True)
    for names in kinds.values():
        shown.add_column(", ".join(names), justify="right")
    for j, job in enumerate(result.jobs[:_SHOWN]):
        cells = [(result.latency_cycles[j][a], result.bandwidth_gbs[j][a]) for a in kinds]
        shown.add_row(job, *("-" if cycles is None else f"{cycles:.4g} at {gbs:.3g}" for cycles, gbs in cells))
    Console().print(shown)
    if len(result.jobs) > _SHOWN:
        say(f"and {len(result.jobs) - _SHOWN} more; --json and --out have all")


def _kinds(result: MapTableResult) -> dict[int, list[str]]:
    """Group equal sub-accelerators by the first of them."""
    columns = list(zip(zip(*result.latency_cycles, strict=True), zip(*result.bandwidth_gbs, strict=True), strict=True))
    kinds: dict[int, list[str]] = {}
    for a, name in enumerate(result.accelerators):
        kinds.setdefault(columns.index(columns[a]), []).append(name)
    return kinds
