"""``commonwatt study``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.data import columns_of
from commonwatt.cli.output import (
    FiniteRange,
    compiling,
    json_option,
    pace_of,
    plot_option,
    print_json,
    print_message,
    progress_bar,
    seed_option,
)

if TYPE_CHECKING:
    from commonwatt.model.study_results import StudyResult
    from commonwatt.simulation.runner import Listener, Prepared
    from commonwatt.studies.run import StudyPlan

__all__ = ["command"]


@click.command()
@click.argument("log")
@click.option(
    "--nodes", type=click.Path(path_type=Path), metavar="FILE",
    help="The cluster: what `scontrol show node` printed, or a scenario.",
)  # fmt: skip
@click.option(
    "--qos", type=click.Path(path_type=Path), metavar="FILE",
    help="QOS of Slurm: what `sacctmgr --parsable2 show qos` printed, or a scenario.",
)  # fmt: skip
@click.option(
    "--associations", type=click.Path(path_type=Path), metavar="FILE",
    help="Accounts and users of Slurm: `sacctmgr --parsable2 show associations tree`, or a scenario.",
)  # fmt: skip
@click.option(
    "--priority", type=click.Path(path_type=Path), metavar="FILE",
    help="Priority weights and preemption rules: the output of `scontrol show config`.",
)  # fmt: skip
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR",
    help="Write report.html, result.json and the study to DIR, and keep finished runs there.",
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace another study in DIR; finished runs that it shares are kept.")
@click.option("--draft", is_flag=True, help="Print the study file and run nothing.")
@plot_option("the waterfall")
@click.option("--format", "source", metavar="NAME", help="Format of LOG: philly, alibaba, helios, slurm, swf or csv.")
@click.option("--column", "columns", multiple=True, metavar="OURS=THEIRS", help="csv: a column; repeatable.")
@click.option("--begin", metavar="TIME", help="Start of the first period: ISO 8601, or seconds from the log's origin.")
@click.option("--days", type=FiniteRange(min=0, min_open=True), help="Length of a period. [default: 7]")
@click.option("--weeks", type=click.IntRange(min=1), help="Periods. [default: as many as the log has, up to 4]")
@click.option("--seeds", type=click.IntRange(min=1), help="Seeds of each period, from --seed on.")
@click.option(
    "--knowledge", type=click.Choice(["auto", "oracle", "user-limit", "predicted", "none"]),
    help="What schedulers know of run times.",
)  # fmt: skip
@click.option("--gpu-type", metavar="NAME", help="GPU type of jobs whose log names none.")
@click.option("--price", type=FiniteRange(min=0), help="Price of a kWh.")
@click.option("--pue", type=FiniteRange(min=1), help="Power usage effectiveness.")
@click.option("--currency", metavar="NAME", help="Currency of the price.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Runs at a time, in processes; if not given, one per CPU, or one by one if all are short.",
)
@seed_option
@json_option
def command(
    log: str, *, nodes: Path | None, qos: Path | None, associations: Path | None, priority: Path | None,
    out: Path | None, overwrite: bool, draft: bool, plot: Path | None, source: str | None, columns: tuple[str, ...],
    begin: str | None, days: float | None, weeks: int | None, seeds: int | None, knowledge: str | None,
    gpu_type: str | None, price: float | None, pue: float | None, currency: str | None, jobs: int | None, seed: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Estimate what another scheduler would have saved on LOG. The first estimate changes no job's request.

    LOG is a job log (sacct, SWF, CSV, a public trace), a study file or a scenario. Then, step by step, what more would
    bring: other GPU types, switching nodes off, resizing, preemption.

    \b
    Examples:
      commonwatt study examples/study/jobs.txt --nodes examples/study/nodes.txt --out out/study
      commonwatt study jobs.json --nodes nodes.txt --weeks 1 --price 0.21 --pue 1.3
    """
    from commonwatt.model.errors import InputError
    from commonwatt.report.study_folder import check_study_folder, study_text, write_study
    from commonwatt.studies.draft import DraftOptions, load_study
    from commonwatt.studies.run import StudyInterruptedError, plan_study, run_study
    from commonwatt.studies.summary import study_result

    options = DraftOptions(
        nodes=nodes, qos=qos, associations=associations, priority=priority, source=source,
        columns=columns_of(columns), begin=begin, days=days, weeks=weeks, seeds=seeds, knowledge=knowledge,
        gpu_type=gpu_type, price_per_kwh=price, pue=pue, currency=currency,
    )  # fmt: skip
    file, folder = load_study(log, options)
    if draft:
        if as_json:
            print_json(file)
        else:
            click.echo(study_text(file), nl=False)
        return
    if out is not None:
        check_study_folder(out, file, folder, overwrite=overwrite)
    try:
        plan = plan_study(file, folder, seed)
    except InputError as error:
        of_nodes = nodes is not None and (error.field or "").startswith("nodes.")
        raise error.within(nodes if nodes and of_nodes else Path(log)) from None
    print_message(_sentence(plan))
    try:
        outcome = run_study(plan, folder=out, jobs=jobs, following=_following)
    except StudyInterruptedError as stopped:
        then = f"run the same command to resume from {out}" if out else "nothing is kept, as there is no --out"
        if out is not None:
            write_study(out, file, folder, study_result(plan, stopped.outcome))
        print_message(f"stopped after {stopped.done} of {stopped.total} runs; {then}")
        raise
    result = study_result(plan, outcome)
    if plot is not None:
        from commonwatt.report.plots import save_waterfall

        save_waterfall(result, plot)
    if out is not None:
        write_study(out, file, folder, result)
        print_message(f"written: {out / 'report.html'}")
    if as_json:
        print_json(result)
    else:
        _show(result)


def _sentence(plan: StudyPlan) -> str:
    from commonwatt.report.format import plural

    first = plan.first()
    sizes = (plural(len(first.cluster), "node"), plural(first.cluster.total_gpus, "GPU"))
    return f"{first.sentence}: {', '.join(sizes)}; {plural(len(plan.prepared), 'run')}, run times: {plan.knowledge}"


@contextmanager
def _following(todo: Sequence[Prepared]) -> Iterator[Listener]:
    """Show how far the runs *todo* are."""
    longest = max((p.table.submit_s for p in todo), key=lambda submit_s: float(submit_s.max()))
    submit_s = sorted(longest.tolist())
    solvers = ", ".join(dict.fromkeys(p.scenario.policies[0].solver for p in todo))
    from commonwatt.simulation.runner import warm_up_all

    with compiling(f"solvers ({solvers})"):
        warm_up_all([p.scenario.policies[0] for p in todo], todo[0].scenario.knowledge)  # before the bar: it is no run
        with progress_bar("runs", len(todo), submit_s[-1], pace_of(submit_s)) as listener:
            yield listener


def _show(result: StudyResult) -> None:
    from rich.console import Console

    from commonwatt.report.study_text import (
        about,
        headline,
        interval_text,
        policies_table,
        treated,
        unpriced,
        waiting,
        waterfall_table,
    )

    console = Console()
    click.echo(about(result))
    click.echo(" ".join(filter(None, (headline(result), interval_text(result)))))
    click.echo(f"{waiting(result)}\n")
    console.print(policies_table(result))
    click.echo("\nWhat each further step would save, and what it requires:")
    console.print(waterfall_table(result))
    for text in treated(result):
        click.echo(f"not as logged: {text}")
    for note in filter(None, (unpriced(result), *result.notes)):
        click.echo(f"note: {note}")
