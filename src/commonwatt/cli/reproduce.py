"""``commonwatt reproduce``."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import completed_by, json_option, plot_option, print_json, progress_bar, say, seed_option

if TYPE_CHECKING:
    from commonwatt.model.results import ReproducePoint, ReproduceResult
    from commonwatt.reproduce.topic import Extent

__all__ = ["command"]

_MOST_COLUMNS = 10


def _names(ctx: click.Context) -> list[str]:  # noqa: ARG001
    from commonwatt.reproduce.registry import topics

    return [topic.name for topic in topics()]


@click.command()
@click.argument("name", required=False, shell_complete=completed_by(_names))
@click.option("--quick", is_flag=True, help="Run the smallest case only: half a minute.")
@click.option("--full", is_flag=True, help="Run every case of the paper with 10 seeds: an hour or more.")
@click.option("--seeds", type=click.IntRange(min=1), help="Run N seeds, from --seed on.  [default: by extent]")
@click.option("--jobs", type=click.IntRange(min=1), help="Parallel processes.  [default: one per CPU]")
@plot_option("the figure")
@seed_option
@json_option
def command(
    name: str | None, *, quick: bool, full: bool, seeds: int | None, jobs: int | None, plot: Path | None, seed: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Reproduce the figure or table NAME of a paper beside the paper's values. Without NAME, list them.

    \b
    Examples:
      commonwatt reproduce
      commonwatt reproduce andreas-scenario-1 --quick --plot scenario-1.png
      commonwatt reproduce andreas-table-3 --json
    """
    from commonwatt.model.errors import InputError
    from commonwatt.reproduce.registry import find, reproduce
    from commonwatt.reproduce.topic import TopicRequest

    if quick and full:
        raise InputError("--quick or --full, not both", field="--full", value=True)
    if name is None:
        _list(as_json=as_json)
        return
    topic = find(name)
    if plot is not None and not topic.draws:
        raise InputError("a topic that has a picture", field="--plot", value=name)
    extent: Extent = "quick" if quick else "full" if full else "default"
    request = TopicRequest(
        extent=extent, seed=seed, seeds=seeds, jobs=jobs or os.cpu_count() or 1, progress=partial(progress_bar, name)
    )
    result, answer = reproduce(topic, request)
    if plot is not None and answer.draw is not None:
        answer.draw(plot)
        say(f"written: {plot}")
    if as_json:
        print_json(result)
    else:
        _tell(result)


def _list(*, as_json: bool) -> None:
    from commonwatt.reproduce.registry import listed

    document = listed()
    if as_json:
        print_json(document)
        return
    for topic in document.topics:
        click.echo(f"{topic.name}\n  {topic.title}\n  paper     {topic.paper}\n  compares  {topic.compares}")
    click.echo("\nRun one with: commonwatt reproduce NAME --quick")


def _tell(result: ReproduceResult) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    click.echo(f"{result.name}: {result.title}\n{result.paper}\n")
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("", overflow="fold")
    for heading in ("paper", "ours", "unit", "comparable"):
        table.add_column(heading, justify="right")
    for row in result.rows:
        comparable = "yes" if row.comparable else "no"
        table.add_row(row.quantity, _shown(row.paper, "not printed"), _shown(row.ours, "unknown"), row.unit, comparable)
    Console().print(table)
    for quantity in dict.fromkeys(point.quantity for point in result.points):
        _tell_points(result, [point for point in result.points if point.quantity == quantity])
    for sentence in result.story:
        click.echo(sentence)
    click.echo()
    for row in result.rows:
        if row.note:
            click.echo(f"{row.quantity}: {row.note}.")
    for note in result.notes:
        click.echo(f"Note: {note}")
    from commonwatt.model.units import plural

    seeds = plural(len(result.seeds), "seed")
    click.echo(f"{result.extent} extent, {seeds}, {result.wall_s:.0f} s")


def _tell_points(result: ReproduceResult, points: list[ReproducePoint]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    x_name = (result.x_name or "x").split(",")[0]
    table = Table(
        title=f"\n{points[0].quantity}, {points[0].unit}", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False,
        title_justify="left",
    )  # fmt: skip
    table.add_column(x_name)
    cells = {(p.series, p.x): _shown(p.mean, "unknown") + (f" ±{p.sd:.2g}" if p.sd else "") for p in points}
    across = list(dict.fromkeys(point.x for point in points))
    names = list(dict.fromkeys(point.series for point in points))
    if len(across) > _MOST_COLUMNS:  # many points of few lines: downwards
        for name in names:
            table.add_column(name, justify="right")
        for x in across:
            table.add_row(f"{x:g}", *(cells[name, x] for name in names))
    else:
        for x in across:
            table.add_column(f"{x:g}", justify="right")
        for name in names:
            table.add_row(name, *(cells[name, x] for x in across))
    Console().print(table)


def _shown(value: bool | float | str | None, missing: str) -> str:
    if value is None:
        return missing
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else f"{value:.4g}"
