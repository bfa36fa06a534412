"""``commonwatt map layers``, ``map batch`` and ``map table``: what a mapping problem is made of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import json_option, naming_file, print_json, print_message, seed_option
from commonwatt.model.units import plural

if TYPE_CHECKING:
    from commonwatt.data.layer_batches import BatchClass
    from commonwatt.data.map_problem import LoadedMapping
    from commonwatt.data.model_layers.collecting import Collection
    from commonwatt.mapping.costs import ModelName
    from commonwatt.model.map_results import MapLayer, MapTableResult

__all__ = ["batch", "layers", "table", "tell_layers"]

_IMPORTED = {".onnx", ".pt2"}


@click.command(short_help="List the layers of a model as a batch.")
@click.argument("model", required=False)
@click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="Size of a dynamic dimension of a model file.")
@click.option("--tokens", type=int, help="Input length of a language network, tokens.  [default: 20]")
@click.option("--ignore-unsupported", is_flag=True, help="Leave out operators that are not supported.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the layers as CSV, for `jobs` of a problem."
)
@json_option
def layers(
    model: str | None, *, dims: tuple[str, ...], tokens: int | None, ignore_unsupported: bool, out: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """List the layers of MODEL: a file (.onnx, .pt2 or .csv) or a network of the paper. Without MODEL, list these.

    \b
    Examples:
      commonwatt map layers
      commonwatt map layers resnet50 --out resnet50.csv
      commonwatt map layers bert --tokens 128
      commonwatt map layers model.onnx --dim batch=1 --out layers.csv
    """
    from commonwatt.model.errors import InputError

    if model is None:
        given = [name for name, value in (("--dim", dims), ("--tokens", tokens), ("--out", out)) if value]
        if given:
            raise InputError("a MODEL with it", field=given[0])
        _tell_networks(as_json=as_json)
        return
    collection = _collected(model, _sizes(dims), tokens)
    made = collection.checked(model, ignore_unsupported=ignore_unsupported)
    if out is not None:
        from commonwatt.data.layer_files import write_layers

        write_layers(out, made)
        print_message(f"written: {out}")
    result = collection.result(model, made)
    if as_json:
        print_json(result)
        return
    tell_layers(result.layers, f"{model}: {plural(len(made), 'layer')}, {result.macs:,} multiply-accumulates")
    if result.unsupported:
        print_message(
            "counted as nothing: " + ", ".join(f"{name} ({count})" for name, count in result.unsupported.items())
        )
    if result.approximated:
        print_message("inputs counted in part (unequal strides, dilations): " + ", ".join(result.approximated))


def _collected(model: str, sizes: dict[str, int], tokens: int | None) -> Collection:
    from commonwatt.data.file_kinds import other_kind
    from commonwatt.data.model_layers.collecting import Collection
    from commonwatt.data.text import read_text
    from commonwatt.model.errors import ArgumentError, InputError

    path = Path(model)
    suffix = path.suffix.lower()
    if tokens is not None and (suffix in _IMPORTED or suffix == ".csv"):
        raise InputError("a network of the paper with it", field="--tokens", value=tokens)
    if suffix == ".onnx":
        from commonwatt.data.model_layers.from_onnx import collect_onnx

        return collect_onnx(path, sizes)
    if suffix == ".pt2":
        from commonwatt.data.model_layers.from_torch import collect_program

        with naming_file(path):
            return collect_program(path, sizes)
    if sizes:
        raise InputError("a model file (.onnx or .pt2) with it", field="--dim", value=next(iter(sizes)))
    if suffix == ".csv":
        from commonwatt.data.layer_files import read_layers

        return Collection(path.stem, list(read_layers(path)))
    if path.is_file():
        wanted = "a file that ends in .onnx, .pt2 or .csv, or the name of a network"
        raise other_kind(path, read_text(path), wanted) or InputError(wanted, file=path)
    from commonwatt.data.networks import network_layers

    try:
        return Collection(model, list(network_layers(model, tokens)))
    except InputError as error:
        field = "model" if error.field == "network" else error.field
        raise ArgumentError(error.expected, field=field, value=error.value) from None


def _sizes(dims: tuple[str, ...]) -> dict[str, int]:
    from commonwatt.model.errors import InputError

    sizes: dict[str, int] = {}
    for given in dims:
        name, _, size = given.rpartition("=")
        if not name or not re.fullmatch(r"0*[1-9]\d{0,8}", size):
            raise InputError("NAME=SIZE with a size of 1 or more, such as batch=1", field="--dim", value=given)
        sizes[name] = int(size)
    return sizes


def _tell_networks(*, as_json: bool) -> None:
    from dataclasses import asdict

    from commonwatt import __version__
    from commonwatt.data.layer_files import digest_of
    from commonwatt.data.networks import networks
    from commonwatt.model.map_results import MapNetwork, MapNetworksResult

    rows = tuple(MapNetwork(**asdict(network)) for network in networks())
    if as_json:
        print_json(MapNetworksResult(version=__version__, seed=0, input_digest=digest_of(networks()), networks=rows))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title="networks of G#'s Table 3; one input, of language 20 tokens")
    for title in ("network", "class"):
        table.add_column(title)
    for title in ("layers", "million MACs", "million parameters"):
        table.add_column(title, justify="right")
    for row in rows:
        counts = (str(row.layers), f"{row.macs / 1e6:,.1f}", f"{row.parameters / 1e6:,.2f}")
        table.add_row(row.model + ("" if row.in_table_3 else " (not in it)"), row.task, *counts)
    Console().print(table)
    print_message("--json has the source of each and how its layers were derived")


_SHOWN = 40  # layers in the terminal; --json and --out have all


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
        print_message(f"and {len(rows) - _SHOWN} more; --json and --out have all")


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


_CLASSES = ("vision", "lang", "recom", "mix", "random")


@click.command(short_help="Draw a random batch of layers of published networks.")
@click.option("--class", "batch_class", type=click.Choice(_CLASSES), required=True, help="Networks to draw from.")
@click.option("--jobs", type=click.IntRange(1, 100_000), default=100, show_default=True, help="Layers to draw.")
@click.option("--products", is_flag=True, help="Draw products of activations, too (attention, interactions).")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the batch as CSV, for `jobs` of a problem."
)
@seed_option
@json_option
def batch(batch_class: BatchClass, *, jobs: int, products: bool, out: Path | None, seed: int, as_json: bool) -> None:
    """Draw a random batch of layers from the networks of a class, each layer with the same probability.

    \b
    Examples:
      commonwatt map batch --class mix --jobs 100 --seed 0 --out batch.csv
      commonwatt map batch --class vision --json
    """
    from commonwatt.data.layer_batches import draw_batch

    drawn, result = draw_batch(batch_class, jobs, seed, products=products)
    if out is not None:
        from commonwatt.data.layer_files import write_layers

        write_layers(out, drawn)
        print_message(f"written: {out}")
    if as_json:
        print_json(result)
        return
    title = f"{batch_class}, seed {seed}: {plural(jobs, 'layer')}, {result.distinct} distinct, {result.macs:,} MACs"
    tell_layers(result.layers, title)


_SHOWN_JOBS = 20  # in the terminal; --json and --out have all
_SHOWN_NAMES = 3
_MODELS = ("maestro", "shi", "roofline")


@click.command(short_help="Compute the job table of a problem.")
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
    from commonwatt.data.map_problem import load_problem, table_result
    from commonwatt.model.errors import InputError

    if out is not None and out.suffix not in {".csv", ".json"}:
        raise InputError("a name that ends in .csv or .json", field="--out", value=out)
    loaded = load_problem(problem, cost_model)
    result = table_result(loaded)
    if out is not None:
        _write(loaded, out)
        print_message(f"written: {out}")
    if as_json:
        print_json(result)
    else:
        _tell(result)


def _write(loaded: LoadedMapping, out: Path) -> None:
    from commonwatt.data.files import write_atomic
    from commonwatt.data.map_problem import table_text

    text = table_text(loaded.named) if out.suffix == ".csv" else loaded.named.table.model_dump_json() + "\n"
    write_atomic(out, text)


def _tell(result: MapTableResult) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    kinds = _kinds(result)
    shown = Table(
        title=f"cost model: {result.cost_model or 'the table given'}", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    shown.add_column("job", overflow="fold", vertical="bottom")
    for names in kinds.values():
        few = names if len(names) <= _SHOWN_NAMES else [names[0], f"and {len(names) - 1} more"]
        for heading in (",\n".join(few) + "\ncycles", "GB/s"):
            shown.add_column(heading, justify="right", vertical="bottom", no_wrap=True)
    for j, job in enumerate(result.jobs[:_SHOWN_JOBS]):
        cells = [(result.latency_cycles[j][a], result.bandwidth_gbs[j][a]) for a in kinds]
        shown.add_row(job, *(text for cell in cells for text in _cell(*cell)))
    Console().print(shown)
    if len(result.jobs) > _SHOWN_JOBS:
        print_message(f"and {len(result.jobs) - _SHOWN_JOBS} more; --json and --out have all")


def _cell(cycles: float | None, gbs: float | None) -> tuple[str, str]:
    from commonwatt.report import format as fmt

    return ("-", "-") if cycles is None or gbs is None else (fmt.cycles(cycles), f"{gbs:.3g}")


def _kinds(result: MapTableResult) -> dict[int, list[str]]:
    """Group equal sub-accelerators by the first of them."""
    columns = list(zip(zip(*result.latency_cycles, strict=True), zip(*result.bandwidth_gbs, strict=True), strict=True))
    kinds: dict[int, list[str]] = {}
    for a, name in enumerate(result.accelerators):
        kinds.setdefault(columns.index(columns[a]), []).append(name)
    return kinds
