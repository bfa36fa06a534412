"""``commonwatt data``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import completed_by, json_option, plot_option, print_json, print_message
from commonwatt.cli.root import VerbGroup

if TYPE_CHECKING:
    from commonwatt.model.results import DataCheckResult, DataListResult, LogSummary, SizeRow

__all__ = ["columns_of", "command"]

_SHOWN = 8  # tenants in the terminal; --json has all


@click.group(cls=VerbGroup)
def command() -> None:
    """List public traces and profiles; validate a job log.

    \b
    Examples:
      commonwatt data list
      commonwatt data check sacct.txt --format slurm --plot load.png
    """


@command.command("list", short_help="List the traces and profiles that commonwatt reads.")
@json_option
def list_(*, as_json: bool) -> None:
    """List the traces and profiles that commonwatt reads, where to get them, and which are on this machine.

    Searches the folder COMMONWATT_DATA, else ../shared/data.

    \b
    Example:
      commonwatt data list --json
    """
    from commonwatt.data import third_party
    from commonwatt.data.check import list_data

    result = list_data(third_party.folder())
    if as_json:
        print_json(result)
    else:
        _tell_list(result)


def _names(ctx: click.Context) -> list[str]:  # noqa: ARG001
    from commonwatt.data.catalog import CATALOG

    return [entry.name for entry in CATALOG]


@command.command(short_help="Validate a job log or a public trace.")
@click.argument("file", shell_complete=completed_by(_names))
@click.option("--format", "source", metavar="NAME", help="philly, alibaba, helios, slurm, swf, csv, gavel or zeus.")
@click.option(
    "--column", "columns", multiple=True, metavar="OURS=THEIRS",
    help="csv: name of the column for job, tenant, submit_s, duration_s (or start_s, end_s), gpus, gpu_type, "
    "time_limit_s, nodes, partition, user, qos, energy_j, cpus, memory_gib, known_s, after; repeatable.",
)  # fmt: skip
@plot_option("submissions per hour and GPUs in use")
@json_option
def check(file: str, *, source: str | None, columns: tuple[str, ...], plot: Path | None, as_json: bool) -> None:
    """Validate the job log FILE, or a public trace by its name, and summarize it.

    Without --format, the content of the file decides. In a table, `after` says which jobs a job waits for, as
    `sbatch --dependency` has it: afterok:12:13,afterany:7.

    \b
    Examples:
      commonwatt data check philly
      commonwatt data check jobs.csv --column submit_s=created --column gpus=num_gpus --plot load.png
    """
    from commonwatt.data.check import check as read
    from commonwatt.data.check import locate_input
    from commonwatt.model.errors import InputError

    path, own_format = locate_input(file)
    checked = read(path, source or own_format, columns_of(columns))
    if plot is not None:
        if checked.log is None:
            raise InputError("a job log, as there is nothing to draw of profiles", field="--plot", value=file)
        from commonwatt.report.plots import save_log

        save_log(checked.log, plot)
        print_message(f"written: {plot}")
    if as_json:
        print_json(checked.result)
    else:
        _tell_check(checked.result, named=own_format is not None)


def columns_of(given: tuple[str, ...]) -> dict[str, str]:
    """Read what ``--column OURS=THEIRS`` was given; raises ``InputError``."""
    from commonwatt.data.readers.plain import COLUMNS
    from commonwatt.model.errors import InputError
    from commonwatt.model.names import one_of

    columns = {}
    for pair in given:
        ours, equals, theirs = pair.partition("=")
        if not (equals and ours and theirs):
            raise InputError("a pair such as gpus=num_gpus", field="--column", value=pair)
        if ours not in COLUMNS:
            raise InputError(one_of(COLUMNS, ours), field="--column", value=ours)
        if ours in columns:
            raise InputError("each column once", field="--column", value=ours)
        columns[ours] = theirs
    return columns


def _tell_list(result: DataListResult) -> None:
    for row in result.datasets:
        click.echo(f"{row.name}: {row.what} ({row.kind})")
        click.echo(f"  publisher  {row.url}")
        click.echo(f"  licence    {row.licence}")
        click.echo(f"  files      {row.files}")
        click.echo(f"  available  {row.found or 'no'}")
        if row.kind == "job log":
            click.echo(f"  scenario   workload: {{source: {row.name}{'' if row.found else ', path: FILE'}, days: 7}}")
    click.echo("\nLogs of your own:")
    for form in result.formats:
        click.echo(f"  {form.name:<6} {form.what}")
    where = result.folder or "no folder of traces here"
    click.echo(f"\nLooked in: {where} (set COMMONWATT_DATA to change it).")
    click.echo("Check one with: commonwatt data check FILE")


def _tell_check(result: DataCheckResult, *, named: bool) -> None:
    from commonwatt.report import format as fmt

    log = result.log
    if log is None:
        types = ", ".join(result.gpu_types)
        click.echo(f"{result.file}: {result.format} profiles, {fmt.plural(result.rows, 'model')} at a batch size")
        click.echo(f"GPU types: {types}")
        return
    click.echo(f"{result.file}: {result.format} job log{' (found by name)' if named else ''}\n")
    for name, text in _facts(result, log):
        click.echo(f"{name:<16} {text}")
    _tell_sizes("GPUs of a job", log.by_gpus, sum(row.gpu_hours for row in log.by_gpus))
    if result.gpu_types:
        _tell_sizes("GPU type", log.by_gpu_type, log.gpu_hours)
    _tell_sizes("tenant", log.by_tenant, log.gpu_hours)
    click.echo("\nFor a scenario (the busiest week of the log):\n")
    click.echo(log.workload.rstrip())


def _facts(result: DataCheckResult, log: LogSummary) -> list[tuple[str, str]]:
    from commonwatt.report import format as fmt

    left_out = ", ".join(f"{fmt.count(count)} {reason}" for reason, count in log.left_out.items())
    per_day = "" if log.gpu_hours_per_day is None else f", {fmt.count(log.gpu_hours_per_day)} submitted a day"
    rule = "starts" if log.in_use_from == "starts" else "submissions, as the log has no starts"
    median, p95 = fmt.column(fmt.duration, [log.median_run_s, log.p95_run_s])
    wait = "" if log.median_wait_s is None else f"; median wait {fmt.duration(log.median_wait_s)}"
    mean = "" if log.mean_gpus is None else f", mean {log.mean_gpus:,.1f}"
    no_ends = ": no job has an end, so it cannot be studied or simulated" if log.still_running == result.rows else ""
    since = f"; jobs are missing before {log.complete_from}" if log.complete_from else ""
    return [
        ("jobs", f"{fmt.count(result.rows)} of {fmt.plural(log.tenants, 'tenant')}"),
        ("left out", left_out or "none"),
        ("still running", f"{fmt.plural(log.still_running, 'job')} at the end of the log{no_ends}"),
        *(("not as logged", f"{count:,} {how}") for how, count in log.treated.items()),
        ("first submitted", f"{log.first}{since}"),
        ("last submitted", f"{log.last} ({fmt.duration(log.span_days * 86400)} later)"),
        ("run time", f"median {median}, 95% within {p95}{wait}"),
        ("GPU hours", f"{fmt.count(log.gpu_hours)}{per_day}"),
        ("GPUs in use", f"peak {fmt.count(log.peak_gpus)} at {log.peak_at}; at most {fmt.count(log.p95_gpus)}"),
        ("", f"95% of the time{mean} (from {rule})"),
        ("GPU types", ", ".join(result.gpu_types) or "not said"),
    ]


def _tell_sizes(what: str, rows: tuple[SizeRow, ...], total: float) -> None:
    from commonwatt.report import format as fmt

    shown = rows if len(rows) <= _SHOWN + 1 else sorted(rows, key=lambda row: -row.gpu_hours)[:_SHOWN]
    if len(rows) > len(shown) and all(row.value.isdecimal() for row in shown):
        shown = sorted(shown, key=lambda row: int(row.value))
    click.echo(f"\n{what:<24} {'jobs':>10} {'GPU hours':>12}   share")
    for row in shown:
        share = row.gpu_hours / total if total else 0.0
        click.echo(f"{row.value[:24] or 'not said':<24} {row.jobs:>10,} {fmt.count(row.gpu_hours):>12}  {share:6.1%}")
    if len(rows) > len(shown):
        left = len(rows) - len(shown)
        jobs = sum(row.jobs for row in rows) - sum(row.jobs for row in shown)
        hours = sum(row.gpu_hours for row in rows) - sum(row.gpu_hours for row in shown)
        share = hours / total if total else 0.0
        click.echo(f"{f'{left} more':<24} {jobs:>10,} {fmt.count(hours):>12}  {share:6.1%}")
