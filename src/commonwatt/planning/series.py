"""Demand from a series file, a job log, a generator or Prometheus."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from commonwatt import __version__
from commonwatt.data.catalog import guess_format
from commonwatt.data.check import LOG_NAMES, locate_input
from commonwatt.data.demand import demand_of
from commonwatt.data.file_kinds import DEMAND, kind_of_text, other_kind
from commonwatt.data.generators.week import DemandSpec, generate_demand
from commonwatt.data.log import JobLog, part_of, time_of
from commonwatt.data.readers import READERS, read_log
from commonwatt.data.series_files import FIRST_DATE_S, LONGEST_GAP_S, SeriesFile, read_series, write_series
from commonwatt.data.text import read_text
from commonwatt.model.demand import TIME_COLUMNS, Arrivals, DemandSeries
from commonwatt.model.errors import ArgumentError, InputError
from commonwatt.model.forecast_results import ForecastDemandResult
from commonwatt.model.names import one_of

__all__ = [
    "CountedDemand",
    "LoadedSeries",
    "check_features",
    "count_demand",
    "generated_demand",
    "given_series",
    "job_log",
    "load_series",
    "refuse_blank",
    "refuse_features",
]


@dataclass(frozen=True)
class LoadedSeries:
    """A demand series, and the jobs behind it if it comes from a job log.

    Parameters
    ----------
    arrivals
        When each job is first counted; ``None`` without a job log.
    """

    file: SeriesFile
    arrivals: Arrivals | None = None

    def with_notice(self, share: float, steps: int, seed: int) -> LoadedSeries:
        """Return the same series as if a random *share* of jobs had been known *steps* values before they came.

        What is expected of jobs that wait for others is left aside.

        Raises
        ------
        InputError
            For a series without jobs.
        """
        jobs = self.arrivals
        if jobs is None or not len(jobs):
            raise InputError("a job log: a series does not say when jobs come", field="known_share", value=share)
        before = jobs.index if jobs.notice_index is None else jobs.notice_index
        drawn = np.random.default_rng([seed, 5]).random(len(jobs)) < share
        announced_at = np.where(drawn, np.minimum(before, jobs.index - steps), before)
        return LoadedSeries(self.file, replace(jobs, notice_index=announced_at, notices=None))


def load_series(
    path: Path, column: str = "gpus", time_column: str | None = None, where: Mapping[str, str] | None = None,
    longest_gap_s: float = LONGEST_GAP_S, features: Sequence[str] = (),
) -> LoadedSeries:  # fmt: skip
    """Read a demand file or, recognised by its columns, a job log.

    Parameters
    ----------
    column
        The column with the demand; of a job log ``gpus`` (running) or ``wanted_gpus`` (running or waiting).
    time_column, where, longest_gap_s, features
        As ``data.series_files.read_series`` takes them, for a demand file.

    Raises
    ------
    InputError
        For a file that is neither, whatever is wrong in it, and features of a job log.
    """
    log = job_log(path, where) if time_column is None and path.suffix.lower() != ".parquet" else None
    if log is None:
        check_features(features, column, time_column)
        file = read_series(path, column, time_column, where, longest_gap_s, features)
        refuse_blank(path, features, [file.series])
        return LoadedSeries(file)
    refuse_features(features)
    counted = demand_of(log)
    both = {"gpus": (counted.running, counted.started), "wanted_gpus": (counted.wanted, counted.submitted)}
    if column not in both:
        raise InputError("gpus or wanted_gpus, as this is a job log", field="column", value=column)
    series, arrivals = both[column]
    return LoadedSeries(SeriesFile(series, counted.dated, 0), arrivals)


def refuse_features(features: Sequence[str]) -> None:
    """Raise ``InputError`` on features of a job log."""
    if features:
        expected = "a series file with such a column: what waits at an instant is no column of a job log"
        raise InputError(expected, field="features", value=", ".join(features))


def check_features(features: Sequence[str], column: str, time_column: str | None) -> None:
    """Raise ``InputError`` on features that are the demand or the time."""
    for name in features:
        if name == column:
            raise InputError("columns beside the demand itself", field="features", value=name)
        if name == time_column or (time_column is None and name in TIME_COLUMNS):
            raise InputError("columns beside the time", field="features", value=name)


def refuse_blank(path: Path, features: Sequence[str], several: Collection[DemandSeries]) -> None:
    """Raise ``InputError`` on a feature without a value in any of *several* series of the file *path*."""
    for name in features:
        if all(np.isnan(series.features[name]).all() for series in several):
            raise InputError("a column with at least one known count", file=path, field="features", value=name)


def job_log(path: Path, where: Mapping[str, str] | None) -> JobLog | None:
    """Return the job log at *path*; ``None`` if it is none."""
    located, source = locate_input(str(path), "series", LOG_NAMES)
    if source is None:
        try:
            source = guess_format(located)
        except ArgumentError:
            return None
        except InputError as error:
            text = read_text(located)
            if kind_of_text(text) is DEMAND:
                return None
            raise (other_kind(path, text, "a demand series or a job log") or error) from None
    if source not in READERS:
        return None
    if where:
        raise InputError("no --where, as this is a job log: see forecast demand --tenant", field="where")
    return read_log(source, located)


@dataclass(frozen=True)
class CountedDemand:
    """Demand, and where it comes from.

    Parameters
    ----------
    running, wanted
        Demand of jobs running, and of jobs running or waiting; the latter ``None`` without a job log.
    counted_from
        ``starts`` or ``submissions``: from when jobs count; ``None`` without a job log.
    dated
        Whether times are dates.
    """

    source: str
    running: DemandSeries
    wanted: DemandSeries | None = None
    counted_from: str | None = None
    dated: bool = True

    def write(self, out: Path) -> None:
        """Write the series to *out*, CSV or Parquet; raises ``InputError`` as ``write_series``."""
        columns = {"gpus": self.running.gpus}
        if self.wanted is not None:
            columns["wanted_gpus"] = self.wanted.gpus
        write_series(out, self.running.start_s, self.running.step_s, columns, dated=self.dated)

    def result(self, out: Path | None, seed: int) -> ForecastDemandResult:
        """Return the document; *out* is the file written."""
        series, file = self.running, SeriesFile(self.running, self.dated, 0)
        gpus, wanted = series.gpus[series.has_value], self.wanted
        return ForecastDemandResult(
            version=__version__,
            seed=seed,
            input_digest=file.digest,
            source=self.source,
            out=None if out is None else str(out),
            step_s=series.step_s,
            first=file.moment(0),
            last=file.moment(len(series) - 1),
            values=len(series),
            unknown=int((~series.has_value).sum()),
            counted_from=self.counted_from,
            mean_gpus=float(gpus.mean()) if len(gpus) else None,
            most_gpus=float(gpus.max()) if len(gpus) else None,
            mean_wanted_gpus=None if wanted is None else float(np.mean(wanted.gpus)),
            most_wanted_gpus=None if wanted is None else float(np.max(wanted.gpus)),
        )


def generated_demand(days: float, step_s: float, seed: int) -> CountedDemand:
    """Return a synthetic series like those of public clusters."""
    series = generate_demand(DemandSpec(days=days, step_s=step_s), np.random.default_rng(seed))
    return CountedDemand("generated, like those of public clusters", series)


def count_demand(
    log: str, source: str | None = None, columns: Mapping[str, str] | None = None, *, tenant: str | None = None,
    step_s: float = 60.0, begin: str | None = None, end: str | None = None,
) -> CountedDemand:  # fmt: skip
    """Count the GPUs that the jobs of a log wanted over time.

    Parameters
    ----------
    log
        Path of a job log, or name of a public one.
    source
        Its format; guessed if ``None``.
    columns
        The columns of a CSV log by our names.
    tenant
        Only the jobs of this tenant.
    begin, end
        Period: ISO 8601, or seconds on the clock of the log.

    Raises
    ------
    InputError
        For a file that is no job log, and a tenant or a period that is not in it.
    """
    path, own_format = locate_input(log, "log", ("generated", *LOG_NAMES))
    kind = source or own_format or ("csv" if columns else guess_format(path))
    if kind not in READERS:
        raise InputError("a job log", file=path, field="LOG", value=f"{kind} profiles")
    jobs = read_log(kind, path, columns or None)
    if tenant is not None:
        jobs = _of_tenant(jobs, tenant)
    begin_s, end_s = (
        None if text is None else _clock(jobs, text, field) for field, text in (("begin", begin), ("end", end))
    )
    counted = demand_of(jobs, step_s, begin_s, end_s)
    counted_from = "starts" if counted.from_starts else "submissions"
    return CountedDemand(jobs.source, counted.running, counted.wanted, counted_from, counted.dated)


def _of_tenant(log: JobLog, tenant: str) -> JobLog:
    own = np.array([name == tenant for name in log.tenant])
    if not own.any():
        raise InputError(one_of(sorted(set(log.tenant))[:20], tenant), field="tenant", value=tenant)
    return replace(part_of(log, own, "of other tenants"), source=f"{log.source}, {tenant}")


def _clock(log: JobLog, text: str, field: str) -> float:
    """Return seconds on the clock of *log*."""
    try:
        return time_of(log, text)
    except InputError as error:
        raise InputError(error.expected, field=field, value=text) from None


def given_series(given: object, column: str = "gpus", features: Sequence[str] = ()) -> LoadedSeries:
    """Return a series, however it is given in Python: a path, a mapping, a frame or a ``DemandSeries``.

    Of a file the columns *features* are read, too. Raises ``InputError`` for anything else.
    """
    if isinstance(given, str | Path):
        return load_series(Path(given), column, features=features)
    if isinstance(given, Mapping):
        if wrong := sorted({"gpus", "step_s"} - given.keys()) or sorted(given.keys() - {"gpus", "step_s", "start_s"}):
            raise InputError("gpus, step_s and, if known, start_s", field=wrong[0], value=given.get(wrong[0]))
        try:
            values = np.asarray(given["gpus"], dtype=float)
            start_s, step_s = float(str(given.get("start_s", 0.0))), float(str(given["step_s"]))
        except (TypeError, ValueError):
            raise InputError("numbers in gpus, step_s and start_s", field="series") from None
        given = DemandSeries(start_s, step_s, values)
    elif not isinstance(given, DemandSeries):
        if not hasattr(given, "columns"):
            expected = "a path, a mapping, a frame (polars or pandas) or a DemandSeries"
            raise ArgumentError(expected, field="series", value=type(given).__name__)
        from commonwatt.data.nixtla import from_long  # imports polars

        named = from_long(given)
        if len(named) != 1:
            raise InputError("a frame with one series", field="unique_id", value=", ".join(sorted(named)))
        (given,) = named.values()
    return LoadedSeries(SeriesFile(given, given.start_s > FIRST_DATE_S, int((~given.has_value).sum())))
