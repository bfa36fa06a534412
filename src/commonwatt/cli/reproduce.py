"""``commonwatt reproduce``."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import (
    completed_by,
    json_option,
    plot_option,
    print_json,
    print_message,
    progress_bar,
    seed_option,
)

if TYPE_CHECKING:
    from commonwatt.model.results import ReproducePoint, ReproduceResult
    from commonwatt.model.suite_results import ReproduceAllResult
    from commonwatt.reproduce.topic import Extent

__all__ = ["command"]

_MOST_COLUMNS = 10


def _names(ctx: click.Context) -> list[str]:  # noqa: ARG001
    from commonwatt.reproduce.registry import topics

    return ["all", *(topic.name for topic in topics())]


@click.command()
@click.argument("name", required=False, shell_complete=completed_by(_names))
@click.option("--quick", is_flag=True, help="Run the smallest case only: minutes.")
@click.option("--full", is_flag=True, help="Run every case of the paper: hours.")
@click.option("--seeds", type=click.IntRange(min=1), help="Run N seeds, from --seed on.  [default: by extent]")
@click.option("--jobs", type=click.IntRange(min=1), help="Parallel processes.  [default: one per CPU]")
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    help="With all: run this figure or table, or a topic (andreas, cuff, etf, fleet, gsharp, market); repeatable.",
)
@click.option("--skip", multiple=True, metavar="NAME", help="With all: leave this one or this paper out; repeatable.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR",
    help="With all: folder for the report and finished runs; rerun to resume.  [default: out/reproduce]",
)  # fmt: skip
@click.option(
    "--from", "recorded", type=click.Path(path_type=Path), metavar="FILE",
    help="With all: run nothing; write the report of this result.json of an earlier call again.",
)  # fmt: skip
@plot_option("the figure")
@seed_option
@json_option
def command(
    name: str | None, *, quick: bool, full: bool, seeds: int | None, jobs: int | None, only: tuple[str, ...],
    skip: tuple[str, ...], out: Path | None, recorded: Path | None, plot: Path | None, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Reproduce the figure or table NAME of a paper beside the paper's values. Without NAME, list them.

    NAME all reproduces every one, over several seeds, and writes report.html and result.json.

    \b
    Examples:
      commonwatt reproduce
      commonwatt reproduce all --quick --out out/reproduce
      commonwatt reproduce all --only gsharp --skip gsharp-learners
      commonwatt reproduce all --from out/reproduce/result.json --out out/again
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
    extent: Extent = "quick" if quick else "full" if full else "default"
    if name == "all":
        if plot is not None:
            raise InputError("no file, as report.html has all figures", field="--plot", value=str(plot))
        if recorded is not None:
            if quick or full or seeds or only or skip:
                raise InputError(
                    "no --quick, --full, --seeds, --only or --skip beside it: nothing is run",
                    field="--from",
                    value=str(recorded),
                )
            _again(recorded, out or recorded.parent, as_json=as_json)
            return
        _all(
            out or Path("out/reproduce"), extent, seed, seeds, jobs or os.cpu_count() or 1, only, skip, as_json=as_json
        )
        return
    if out is not None or only or skip or recorded is not None:
        raise InputError("all, which alone takes --out, --only, --skip and --from", field="NAME", value=name)
    topic = find(name)
    if plot is not None and not topic.draws:
        raise InputError("a topic that has a picture", field="--plot", value=name)
    request = TopicRequest(
        extent=extent, seed=seed, seeds=seeds, jobs=jobs or os.cpu_count() or 1, progress=partial(progress_bar, name)
    )
    result, answer = reproduce(topic, request)
    if plot is not None and answer.draw is not None:
        answer.draw(plot)
        print_message(f"written: {plot}")
    if as_json:
        print_json(result)
    else:
        _tell(result)


def _all(
    out: Path, extent: Extent, seed: int, seeds: int | None, jobs: int, only: tuple[str, ...],
    skip: tuple[str, ...], *, as_json: bool,
) -> None:  # fmt: skip
    from commonwatt.data.files import write_atomic
    from commonwatt.model.units import plural
    from commonwatt.reproduce.collection import Reproduction, chosen

    topics = chosen(only, skip)
    collection = Reproduction(out, extent, seed, seeds, topics, jobs)
    _make(out, "runs", "figures")
    began = perf_counter()
    with progress_bar("reproduce all", len(collection.runs()), 1.0) as bar:
        try:
            result, kept = collection.run(bar.done)
        except KeyboardInterrupt:
            print_message(f"stopped; run the same command to resume from {out}")
            raise
    if not kept:
        result = result.model_copy(update={"call_s": perf_counter() - began})
    write_atomic(out / "result.json", result.model_dump_json(indent=1) + "\n")
    write_atomic(out / "report.html", _report(result, out, out / "figures"))
    if kept:
        print_message(f"kept: {plural(kept, 'run')} of an earlier call in {out}")
    print_message(f"written: {out / 'report.html'}")
    if as_json:
        print_json(result)
    else:
        _tell_all(result)
    if any(topic.state == "failed" for topic in result.topics):
        sys.exit(1)


def _make(out: Path, *names: str) -> None:
    """Make folders in *out*; raises ``InputError`` where that cannot be."""
    from commonwatt.model.errors import InputError

    if out.exists() and not out.is_dir():
        raise InputError("a folder", field="--out", value=str(out))
    try:
        for name in names:
            (out / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"a folder that can be written ({error.strerror})", field="--out", value=str(out)) from None


def _again(recorded: Path, out: Path, *, as_json: bool) -> None:
    """Write the report of a recorded result, with the figures beside it."""
    from commonwatt.data.files import write_atomic
    from commonwatt.reproduce.collection import recorded as read

    result = read(recorded)
    _make(out, "figures")
    write_atomic(out / "report.html", _report(result, out, recorded.parent / "figures"))
    print_message(f"written: {out / 'report.html'}")
    if as_json:
        print_json(result)
    else:
        _tell_all(result)


def _report(result: ReproduceAllResult, out: Path, drawn: Path) -> str:
    """Return the page; *drawn* has our figures."""
    from commonwatt.report.claims_page import render_claims
    from commonwatt.report.redrawing import Redrawing, draw_printed
    from commonwatt.reproduce.collection import drawable, redrawings
    from commonwatt.reproduce.registry import left_out
    from commonwatt.reproduce.verdicts import legend, little

    figures: dict[str, tuple[bytes | None, bytes | None]] = {}
    described = redrawings()
    for topic in result.topics:
        ours, printed = drawn / f"{topic.name}.svg", out / "figures" / f"{topic.name}-printed.svg"
        redrawing = described[topic.name] = drawable(topic, described.get(topic.name, Redrawing()))
        if topic.state == "done" and redrawing.panels:
            draw_printed(topic, redrawing, printed)
        else:
            printed.unlink(missing_ok=True)
        figures[topic.name] = (
            ours.read_bytes() if ours.is_file() else None,
            printed.read_bytes() if printed.is_file() else None,
        )
    claims = [(claim.rule, claim.verdict) for topic in result.topics for claim in topic.claims]
    return render_claims(result, figures, described, legend(), left_out(), little(claims))


def _tell_all(result: ReproduceAllResult) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("topic", no_wrap=True)
    for heading in result.verdicts:
        table.add_column(heading, justify="right")
    for topic in result.topics:
        counts = [sum(claim.verdict == verdict for claim in topic.claims) for verdict in result.verdicts]
        table.add_row(topic.name, *(str(count) if topic.state == "done" else "-" for count in counts))
    table.add_row("all", *map(str, result.verdicts.values()), style="bold")
    Console().print(table)
    for topic in result.topics:
        if topic.state != "done":
            click.echo(f"{topic.name}: {topic.state}: {topic.reason}")
        elif topic.stand_in is not None:
            click.echo(f"{topic.name}: {topic.stand_in} is missing, and was replaced; nothing is comparable")


def _list(*, as_json: bool) -> None:
    from commonwatt.reproduce.registry import listed

    document = listed()
    if as_json:
        print_json(document)
        return
    for topic in document.topics:
        click.echo(f"{topic.name}\n  {topic.title}\n  paper     {topic.paper}\n  compares  {topic.compares}")
    click.echo(
        "\nRun one with: commonwatt reproduce NAME --quick; every one of the papers: commonwatt reproduce all --quick"
    )


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
