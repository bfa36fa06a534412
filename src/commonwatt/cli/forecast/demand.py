"""``commonwatt forecast demand``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.forecast._numbers import NumberRange
from commonwatt.cli.output import json_option, print_json, say, seed_option

if TYPE_CHECKING:
    from commonwatt.data.log import JobLog
    from commonwatt.forecasting.series import DemandSeries
    from commonwatt.model.forecast_results import ForecastDemandResult

__all__ = ["demand"]


@dataclass(frozen=True)
class _Found:
    source: str
    running: DemandSeries
    wanted: DemandSeries | None
    counted_from: str | None
    dated: bool


@click.command()
@click.argument("log", required=False)
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write it here: CSV or .parquet.")
@click.option("--format", "source", metavar="NAME", help="philly, alibaba, helios, slurm, swf or csv.")
@click.option(
    "--column", "columns", multiple=True, metavar="OURS=THEIRS",
    help="csv: the column for job, tenant, submit_s, duration_s, gpus, ...; repeatable.",
)  # fmt: skip
@click.option("--tenant", metavar="NAME", help="Only the jobs of one tenant.")
@click.option("--step", "step_s", type=NumberRange(0, min_open=True), default=60.0, show_default=True, metavar="S",
              help="Time between two values, seconds.")  # fmt: skip
@click.option("--begin", metavar="TIME", help="First instant: ISO 8601, or seconds on the log's clock.")
@click.option("--end", metavar="TIME", help="First instant that is not counted.")
@click.option("--prometheus", "url", metavar="URL", help="Ask this Prometheus instead of reading a LOG.")
@click.option("--query", help="What to ask it, giving one series: sum(...).")
@click.option("--days", type=NumberRange(0.1, 3650), default=14.0, show_default=True,
              help="Length, where LOG is the word generated.")  # fmt: skip
@seed_option
@json_option
def demand(
    log: str | None, *, out: Path | None, source: str | None, columns: tuple[str, ...], tenant: str | None,
    step_s: float, begin: str | None, end: str | None, url: str | None, query: str | None, days: float, seed: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Count GPUs wanted over time: from the job log LOG, a public log by its name, or Prometheus.

    The file has the columns time, gpus (jobs running) and wanted_gpus (jobs running or waiting). Where the log tells no
    starts, jobs count from their submission and the two are one. LOG may be the word generated: a series in the
    likeness of a public cluster, with jumps, drift, an outage and gaps.

    \b
    Examples:
      commonwatt forecast demand generated --days 14 --seed 1 --out demand.csv
      commonwatt forecast demand philly --begin 2017-10-01 --out philly.csv
      commonwatt forecast demand --prometheus http://localhost:9090 --query 'sum(gpus_in_use)' --begin 2026-01-01
        --end 2026-01-15 --out demand.csv
    """
    from commonwatt.model.errors import InputError

    if (log is None) == (url is None):
        raise InputError("a LOG or --prometheus, one of them", field="LOG", value=log)
    if url is not None:
        found = _asked(url, query, begin, end, step_s)
    elif log == "generated":
        found = _generated(days, step_s, seed)
    else:
        found = _counted(str(log), source, columns, tenant, step_s, begin, end)
    if out is not None:
        _write(found, out)
    result = _result(found, out, seed)
    if as_json:
        print_json(result)
    else:
        _tell(result)


def _asked(url: str, query: str | None, begin: str | None, end: str | None, step_s: float) -> _Found:
    from commonwatt.data.prometheus import query_range
    from commonwatt.data.table import MOMENT, moment_s
    from commonwatt.model.errors import InputError

    if query is None:
        raise InputError("a query, such as sum(gpus_in_use)", field="--query")
    edges = []
    for field, text in (("--begin", begin), ("--end", end)):
        try:
            edges.append(moment_s(str(text)))
        except ValueError:
            raise InputError(MOMENT, field=field, value=text) from None
    return _Found(f"{query} of {url}", query_range(url, query, edges[0], edges[1], step_s), None, None, dated=True)


def _generated(days: float, step_s: float, seed: int) -> _Found:
    import numpy as np

    from commonwatt.data.generators.demand import DemandSpec, generate_demand

    series = generate_demand(DemandSpec(days=days, step_s=step_s), np.random.default_rng(seed))
    return _Found("generated in the likeness of a public cluster", series, None, None, dated=True)


def _counted(
    log: str, source: str | None, columns: tuple[str, ...], tenant: str | None, step_s: float, begin: str | None,
    end: str | None,
) -> _Found:  # fmt: skip
    from commonwatt.cli.forecast._series import pairs
    from commonwatt.data.check import locate_input
    from commonwatt.data.demand import demand_of
    from commonwatt.data.guess import guess_format
    from commonwatt.data.readers import READERS, read_log
    from commonwatt.model.errors import InputError

    path, own_format = locate_input(log)
    named = pairs(columns, "--column")
    kind = source or own_format or ("csv" if named else guess_format(path))
    if kind not in READERS:
        raise InputError("a job log", file=path, field="LOG", value=f"{kind} profiles")
    jobs = read_log(kind, path, named or None)
    if tenant is not None:
        jobs = _of_tenant(jobs, tenant)
    edges = [
        None if text is None else _clock(jobs, text, field) for field, text in (("--begin", begin), ("--end", end))
    ]
    found = demand_of(jobs, step_s, *edges)
    counted_from = "starts" if found.from_starts else "submissions"
    return _Found(jobs.source, found.running, found.wanted, counted_from, found.dated)


def _of_tenant(log: JobLog, tenant: str) -> JobLog:
    from commonwatt.data.log import JobLog
    from commonwatt.model.errors import InputError

    others = [name != tenant for name in log.tenant]
    if all(others):
        raise InputError(f"one of {', '.join(sorted(set(log.tenant))[:20])}", field="--tenant", value=tenant)
    return JobLog.of(
        f"{log.source}, {tenant}", job=log.job, tenant=log.tenant, submit_s=log.submit_s, duration_s=log.duration_s,
        gpus=log.gpus, start_s=log.start_s, censored=log.censored, origin=log.origin, dropped=log.dropped,
        reasons={"of other tenants": others}, path=log.path, complete_from_s=log.complete_from_s,
    )  # fmt: skip


def _clock(log: JobLog, text: str, field: str) -> float:
    """Seconds on the clock of *log*."""
    from commonwatt.data.log import time_of
    from commonwatt.model.errors import InputError

    try:
        return time_of(log, text)
    except InputError as error:
        raise InputError(error.expected, field=field, value=text) from None


def _write(found: _Found, out: Path) -> None:
    from commonwatt.data.series_files import write_series

    columns = {"gpus": found.running.gpus}
    if found.wanted is not None:
        columns["wanted_gpus"] = found.wanted.gpus
    write_series(out, found.running.start_s, found.running.step_s, columns, dated=found.dated)
    say(f"written: {out}")


def _result(found: _Found, out: Path | None, seed: int) -> ForecastDemandResult:
    import numpy as np

    from commonwatt import __version__
    from commonwatt.cli.forecast._series import series_digest
    from commonwatt.data.series_files import SeriesFile
    from commonwatt.model.forecast_results import ForecastDemandResult

    series, file = found.running, SeriesFile(found.running, found.dated, 0)
    known, wanted = series.gpus[series.known], found.wanted
    return ForecastDemandResult(
        version=__version__,
        seed=seed,
        input_digest=series_digest(file),
        source=found.source,
        out=None if out is None else str(out),
        step_s=series.step_s,
        first=file.moment(0),
        last=file.moment(len(series) - 1),
        values=len(series),
        unknown=int((~series.known).sum()),
        counted_from=found.counted_from,
        mean_gpus=float(known.mean()) if len(known) else None,
        most_gpus=float(known.max()) if len(known) else None,
        mean_wanted_gpus=None if wanted is None else float(np.mean(wanted.gpus)),
        most_wanted_gpus=None if wanted is None else float(np.max(wanted.gpus)),
    )


def _tell(result: ForecastDemandResult) -> None:
    click.echo(f"{result.source}: {result.values:,} values, every {result.step_s:g} s, {result.first} to {result.last}")
    if result.unknown:
        click.echo(f"unknown     {result.unknown:,} values")
    if result.mean_gpus is not None:
        click.echo(f"running     mean {result.mean_gpus:.1f} GPUs, most {result.most_gpus:g}")
    if result.mean_wanted_gpus is not None:
        click.echo(f"wanted      mean {result.mean_wanted_gpus:.1f} GPUs, most {result.most_wanted_gpus:g}")
    if result.counted_from == "submissions":
        click.echo("The log tells no starts: jobs count from their submission.")
