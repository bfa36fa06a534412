"""``commonwatt forecast demand``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.forecast._options import NumberRange, naming_options, pairs
from commonwatt.cli.output import json_option, print_json, print_message, seed_option
from commonwatt.model.units import plural

if TYPE_CHECKING:
    from commonwatt.model.forecast_results import ForecastDemandResult
    from commonwatt.planning.series import CountedDemand

__all__ = ["demand"]


@click.command(short_help="Make a demand series from a job log or Prometheus.")
@click.argument("log", required=False)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the series to FILE: CSV or .parquet."
)
@click.option("--format", "source", metavar="NAME", help="philly, alibaba, helios, slurm, swf or csv.")
@click.option(
    "--column", "columns", multiple=True, metavar="OURS=THEIRS",
    help="csv: name of the column for job, tenant, submit_s, duration_s, gpus, ...; repeatable.",
)  # fmt: skip
@click.option("--tenant", metavar="NAME", help="Count only jobs of this tenant.")
@click.option("--step", "step_s", type=NumberRange(0, min_open=True), default=60.0, show_default=True, metavar="S",
              help="Time between two values, seconds.")  # fmt: skip
@click.option("--begin", metavar="TIME", help="Begin of the series: ISO 8601, or seconds on the log's clock.")
@click.option("--end", metavar="TIME", help="End of the series, exclusive.")
@click.option("--prometheus", "url", metavar="URL", help="Query this Prometheus instead of reading a LOG.")
@click.option("--query", help="PromQL query that returns one series, such as sum(...).")
@click.option("--days", type=NumberRange(0.1, 3650), default=14.0, show_default=True,
              help="Days to generate.")  # fmt: skip
@seed_option
@json_option
def demand(
    log: str | None, *, out: Path | None, source: str | None, columns: tuple[str, ...], tenant: str | None,
    step_s: float, begin: str | None, end: str | None, url: str | None, query: str | None, days: float, seed: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Make a demand series, GPUs over time, from the job log LOG, a public log by its name, or Prometheus.

    The file has the columns time, gpus (jobs running) and wanted_gpus (jobs running or waiting). If the log has no
    start times, jobs count from their submission and the two columns are equal. With the word generated for LOG, the
    series is synthetic, with one column of GPUs: like those of public clusters, with jumps, drift, an outage and gaps.

    \b
    Examples:
      commonwatt forecast demand generated --days 14 --seed 1 --out demand.csv
      commonwatt forecast demand philly --begin 2017-10-01 --out philly.csv
      commonwatt forecast demand --prometheus http://localhost:9090 --query 'sum(gpus_in_use)' --begin 2026-01-01
        --end 2026-01-15 --out demand.csv
    """
    from commonwatt.model.errors import InputError
    from commonwatt.planning.series import count_demand, generated_demand

    if (log is None) == (url is None):
        raise InputError("a LOG or --prometheus, one of them", field="LOG", value=log)
    if url is not None:
        counted = _queried(url, query, begin, end, step_s)
    elif log == "generated":
        counted = generated_demand(days, step_s, seed)
    else:
        with naming_options():
            counted = count_demand(
                str(log), source, pairs(columns, "--column"), tenant=tenant, step_s=step_s, begin=begin, end=end
            )
    if out is not None:
        counted.write(out)
        print_message(f"written: {out}")
    result = counted.result(out, seed)
    if as_json:
        print_json(result)
    else:
        _show(result)


def _queried(url: str, query: str | None, begin: str | None, end: str | None, step_s: float) -> CountedDemand:
    from commonwatt.data.prometheus import query_range
    from commonwatt.data.table import MOMENT, moment_s
    from commonwatt.model.errors import InputError
    from commonwatt.planning.series import CountedDemand

    if query is None:
        raise InputError("a query, such as sum(gpus_in_use)", field="--query")
    edges = []
    for field, text in (("--begin", begin), ("--end", end)):
        try:
            edges.append(moment_s(str(text)))
        except ValueError:
            raise InputError(MOMENT, field=field, value=text) from None
    return CountedDemand(f"{query} of {url}", query_range(url, query, edges[0], edges[1], step_s))


def _show(result: ForecastDemandResult) -> None:
    click.echo(
        f"{result.source}: {plural(result.values, 'value')}, every {result.step_s:g} s, {result.first} to {result.last}"
    )
    if result.unknown:
        click.echo(f"unknown     {plural(result.unknown, 'value')}")
    if result.mean_gpus is not None:
        click.echo(f"running     mean {result.mean_gpus:.1f} GPUs, most {result.most_gpus:g}")
    if result.mean_wanted_gpus is not None:
        click.echo(f"wanted      mean {result.mean_wanted_gpus:.1f} GPUs, most {result.most_wanted_gpus:g}")
    if result.counted_from == "submissions":
        click.echo("The log has no start times: jobs count from their submission.")
