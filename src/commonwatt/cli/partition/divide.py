"""``commonwatt partition PROBLEM``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commonwatt.cli.compiling import compiling
from commonwatt.cli.output import PluginChoice, blamed_on, json_option, plot_option, print_json, say, seed_option
from commonwatt.partitioning import MECHANISMS, WELFARES

if TYPE_CHECKING:
    from commonwatt.model.partition_file import PartitionFile
    from commonwatt.model.partition_results import ConfigurationResult, PartitionResult, PartitionSweepResult

__all__ = ["divide"]

_OLD_NAMES = {"weighted-nash": "nash"}
_MOST_POINTS = 1000


@click.command(hidden=True)
@click.argument("problem", type=click.Path(path_type=Path))
@click.option("--mechanism", type=PluginChoice(MECHANISMS, "partitioners"), default="fisher", show_default=True,
              help="Mechanism that divides a configuration.")  # fmt: skip
@click.option("--welfare", type=click.Choice((*WELFARES, *_OLD_NAMES)), default="nash", show_default=True,
              help="Welfare to maximize; weighted-nash is an older name of nash.")  # fmt: skip
@click.option("--tolerance", type=click.FloatRange(0, min_open=True), default=1e-9, show_default=True,
              help="Largest residual accepted as an equilibrium.")  # fmt: skip
@click.option("--iterations", type=click.IntRange(1), help="Most rounds of bidding.  [default: 30000]")
@click.option("--sweep-weight", metavar="TENANT=FROM:TO:N",
              help="Show instead how the choice and speedups change with a tenant's weight.")  # fmt: skip
@click.option("--explain", is_flag=True, help="Explain every tenant's share.")
@plot_option("shares, prices and welfare")
@seed_option
@json_option
def divide(
    problem: Path, *, mechanism: str, welfare: str, tolerance: float, iterations: int | None, sweep_weight: str | None,
    explain: bool, plot: Path | None, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Choose a configuration for the tenants of PROBLEM (YAML or JSON), and divide it among them."""
    from commonwatt.data.partition import load_partition
    from commonwatt.partitioning import answer, sweep
    from commonwatt.plugins import chosen, valid

    file, by = load_partition(problem), chosen("partitioners", mechanism, MECHANISMS)
    how: dict[str, Any] = {
        "mechanism": by, "welfare": _OLD_NAMES.get(welfare, welfare), "tolerance": tolerance,
        "iterations": iterations, "seed": seed,
    }  # fmt: skip
    if sweep_weight is not None:
        with blamed_on(problem), compiling("the market solver"), valid("partitioners", mechanism, MECHANISMS):
            swept = sweep(file, *_range(file, sweep_weight), **how)
        _show_sweep(swept, plot, as_json=as_json)
        return
    with blamed_on(problem), compiling("the market solver"), valid("partitioners", mechanism, MECHANISMS):
        result = answer(file, **how)
    if plot is not None:
        from commonwatt.report.partition_plots import save_partition

        save_partition(result, plot)
        say(f"written: {plot}")
    if as_json:
        print_json(result)
    else:
        _tell(result, explain=explain)


def _range(file: PartitionFile, text: str) -> tuple[str, list[float]]:
    """Return the tenant and its weights from TENANT=FROM:TO:N; raises ``InputError``."""
    import numpy as np

    from commonwatt.model.errors import InputError

    tenant, _, span = text.rpartition("=")
    words = span.split(":")
    wanted = "TENANT=FROM:TO:N, such as user1=0.1:10:9, with weights above 0 and N of 2 or more"
    try:
        low, high, count = float(words[0]), float(words[1]), int(words[2])
    except (ValueError, IndexError):
        raise InputError(wanted, field="--sweep-weight", value=text) from None
    if not (0 < low < high < np.inf) or not 2 <= count <= _MOST_POINTS or len(words) != 3:
        raise InputError(wanted, field="--sweep-weight", value=text)
    if tenant not in (names := [one.name for one in file.tenants]):
        raise InputError(f"one of the tenants {', '.join(names)}", field="--sweep-weight", value=tenant)
    return tenant, np.geomspace(low, high, count).tolist()


def _show_sweep(result: PartitionSweepResult, plot: Path | None, *, as_json: bool) -> None:
    if plot is not None:
        from commonwatt.report.partition_plots import save_sweep

        save_sweep(result, plot)
        say(f"written: {plot}")
    if as_json:
        print_json(result)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{result.mechanism}, {result.welfare} welfare, by the weight of {result.tenant}")
    for heading in ("weight", "chosen", "margin", *(f"speedup {name}" for name in result.points[0].utilities)):
        table.add_column(heading, justify="left" if heading == "chosen" else "right")
    for point in result.points:
        margin = "unknown" if point.margin is None else f"{100 * point.margin:.2f}%"
        table.add_row(f"{point.weight:.4g}", point.chosen, margin, *(f"{u:.3f}" for u in point.utilities.values()))
    Console().print(table)
    say(result.sentence)


def _tell(result: PartitionResult, *, explain: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    ranking = Table(title=f"{result.mechanism}, {result.welfare} welfare: {result.chosen}")
    for heading in ("rank", "configuration", "Nash welfare", "least speedup", "utilization", "residual"):
        ranking.add_column(heading, justify="left" if heading == "configuration" else "right")
    for one in sorted(result.configurations, key=lambda each: each.rank):
        ranking.add_row(
            str(one.rank), one.name, _shown(one.nash_welfare), f"{min(one.utilities.values()):.4g}",
            f"{100 * one.utilization:.1f}%", _shown(one.residual),
        )  # fmt: skip
    console = Console()
    console.print(ranking)
    chosen = next(one for one in result.configurations if one.name == result.chosen)
    console.print(_shares(chosen))
    say(result.sentence)
    if explain:
        for tenant in chosen.tenants:
            click.echo(f"{tenant.name}: {tenant.sentence}")


def _shares(one: ConfigurationResult) -> object:
    from rich.table import Table

    table = Table(title=f"{one.name}: PEs of each core cluster")
    table.add_column("tenant")
    for heading in (*one.core_clusters, "speedup", "entitlement"):
        table.add_column(heading, justify="right")
    for name, shares in one.shares.items():
        ends = (f"{one.utilities[name]:.4g}", f"{one.entitlement_utilities[name]:.4g}")
        table.add_row(name, *(f"{share:.3f}" for share in shares), *ends)
    if one.prices is not None:
        table.add_row("price of a PE", *(f"{price:.5f}" for price in one.prices), "", "")
    return table


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"
