"""``commonwatt bench``."""

from __future__ import annotations

import sys
from pathlib import Path
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
    from collections.abc import Sequence

    from commonwatt.bench.suite import Entrant, Suite
    from commonwatt.model.suite_results import BenchResult, BenchSuite

__all__ = ["command"]


def _suites(ctx: click.Context) -> list[str]:  # noqa: ARG001
    from commonwatt.bench.decisions import SUITES

    return [suite.name for suite in SUITES]


@click.command()
@click.option(
    "--suite", "suites", multiple=True, metavar="NAME", shell_complete=completed_by(_suites),
    help="Run this suite only: placement, week, market, mig, mapping, slices, demand; repeatable.",
)  # fmt: skip
@click.option(
    "--solver", "solvers", multiple=True, metavar="NAME",
    help="Score this solver only, beside the suite's reference; a plugin's name too; repeatable.",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Run the first problems only, with small budgets: half a minute.")
@click.option("--list", "only_list", is_flag=True, help="List suites, solvers and plugins; run nothing.")
@click.option(
    "--check", type=click.Path(path_type=Path), metavar="FILE",
    help="Compare with a recorded result; exit code 1 if something of ours or a baseline got worse.",
)  # fmt: skip
@click.option(
    "--tolerance", type=click.FloatRange(0, 10), default=0.01, show_default=True,
    help="With --check: part by which a score may be above the recorded one.",
)  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the result (JSON) to FILE.")
@click.option("--page", type=click.Path(path_type=Path), metavar="FILE", help="Write a leaderboard (Markdown) to FILE.")
@plot_option("the scores")
@seed_option
@json_option
def command(
    suites: tuple[str, ...], solvers: tuple[str, ...], *, quick: bool, only_list: bool, check: Path | None,
    tolerance: float, out: Path | None, page: Path | None, plot: Path | None, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Score solvers on fixed problems: ours, baselines, peers that are installed, and plugins.

    A score is the geometric mean of ratios to a bound or a baseline; less is better. No budget is a time, so that
    scores do not depend on the machine. Budgets differ; a plugin's evaluations are its own count. Times are ratios
    within this run.

    \b
    Examples:
      commonwatt bench --quick
      commonwatt bench --suite placement --solver random-greedy --json
      commonwatt bench --suite placement --page leaderboard.md
    """
    from commonwatt.bench.decisions import SUITES
    from commonwatt.bench.suite import Bench, check_comparable
    from commonwatt.data.files import load_yaml
    from commonwatt.model.errors import InputError
    from commonwatt.model.suite_results import BenchResult

    bench = Bench(SUITES, seed, quick)
    picked = bench.picked(suites, solvers)
    if only_list:
        _list(picked, as_json=as_json)
        return
    _writable(out, "--out")
    _writable(page, "--page")
    recorded = None if check is None else load_yaml(check, BenchResult)
    if recorded is not None:
        if solvers:
            raise InputError("no --solver beside --check", field="--solver", value=solvers[0])
        versions = {suite.name: suite.version for suite, _ in picked}
        check_comparable(recorded, quick=quick, seed=seed, versions=versions)
    with progress_bar("bench", sum(len(entrants) for _, entrants in picked), 1.0) as bar:
        bench.ended = bar.done
        result = bench.run(suites, solvers)
    if out is not None:
        from commonwatt.data.files import write_atomic

        write_atomic(out, result.model_dump_json(indent=1) + "\n")
        print_message(f"written: {out}")
    if page is not None:
        _write_page(result, page)
    if plot is not None:
        from commonwatt.bench.suite import save_bench

        save_bench(result, plot)
        print_message(f"written: {plot}")
    if as_json:
        print_json(result)
    elif recorded is None:
        _tell(result)
    if recorded is not None:
        _compare(recorded, result, tolerance, every_suite=not suites)


def _writable(out: Path | None, option: str) -> None:
    from commonwatt.model.errors import InputError

    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
        raise InputError("a file in an existing folder", field=option, value=str(out))


def _write_page(result: BenchResult, page: Path) -> None:
    from commonwatt.data.files import write_atomic
    from commonwatt.report.text import leaderboard

    head = f"# Leaderboard\n\nMade by `{result.command}`, commonwatt {result.version}. Less is better."
    head += " Budgets differ: evaluations are over all problems of a suite; a plugin's are its own count."
    write_atomic(page, f"{head}\n\n{leaderboard(result)}\n")
    print_message(f"written: {page}")


def _compare(recorded: BenchResult, result: BenchResult, tolerance: float, *, every_suite: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from commonwatt.bench.suite import worse

    regressions = worse(recorded, result, tolerance, every_suite=every_suite)
    if not regressions:
        print_message(f"nothing of ours or of a baseline got worse than recorded by more than {100 * tolerance:.3g}%")
        return
    table = Table(title="worse than recorded", title_justify="left")
    for heading in ("suite", "solver", "problem", "recorded", "now", "ratio"):
        table.add_column(heading, justify="left" if heading in ("suite", "solver", "problem") else "right")
    for one in regressions:
        now = "gone" if one.now is None else f"{one.now:.4f}"
        ratio = "" if one.now is None else f"{one.now / one.recorded:.4f}"
        table.add_row(one.suite, one.solver, one.problem or "all", f"{one.recorded:.4f}", now, ratio)
    Console(stderr=True).print(table)
    sys.exit(1)


def _list(picked: Sequence[tuple[Suite, Sequence[Entrant]]], *, as_json: bool) -> None:
    import json

    listed = [
        {
            "suite": suite.name, "version": suite.version, "title": suite.title,
            "solvers": [
                {
                    "name": entrant.name, "kind": entrant.kind, "origin": entrant.origin,
                    "missing": entrant.lacks,
                }
                for entrant in entrants
            ],
            "refused": [{"name": one.name, "reason": one.reason} for one in suite.refused()],
        }
        for suite, entrants in picked
    ]  # fmt: skip
    if as_json:
        click.echo(json.dumps({"suites": listed}, indent=2))
        return
    for suite, entrants in picked:
        click.echo(f"{suite.name}, version {suite.version}: {suite.title}")
        for entrant in entrants:
            missing = "" if entrant.lacks is None else f"; {entrant.lacks} is not installed"
            click.echo(f"  {entrant.name:<24} {entrant.kind}{f', {entrant.origin}' if entrant.origin else ''}{missing}")
        for one in suite.refused():
            click.echo(f"  {one.name:<24} refused: {one.reason}")


def _tell(result: BenchResult) -> None:
    for suite in result.suites:
        _tell_suite(suite)


def _tell_suite(suite: BenchSuite) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"\n{suite.name}, version {suite.version}: {suite.metric}, over {suite.against}", title_justify="left",
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False,
    )  # fmt: skip
    table.add_column("solver", overflow="fold")
    table.add_column("")
    for heading in ("score", "worst", "evaluations", "time"):
        table.add_column(heading, justify="right")
    unsaid = []
    for solver in suite.solvers:
        if solver.score is None:
            unsaid.append(f"{solver.name}: {solver.state}: {solver.reason}")
            continue
        evaluations = "" if solver.evaluations is None else f"{solver.evaluations:,}"
        time = "" if solver.time_ratio is None else f"{solver.time_ratio:.3g}"
        table.add_row(solver.name, solver.kind, f"{solver.score:.4f}", f"{solver.worst:.4f}", evaluations, time)
    Console().print(table)
    for line in unsaid:
        click.echo(line)
