"""Read a file and say what it holds: what ``commonwatt data check`` prints."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

from commonwatt import __version__
from commonwatt.data.catalog import CATALOG, FORMATS, guess_format
from commonwatt.data.demand import GpuUse, usage
from commonwatt.data.log import JobLog
from commonwatt.data.profiles import gavel, zeus
from commonwatt.data.readers import READERS, read_log
from commonwatt.data.workload import PUBLIC_LOGS
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import ArgumentError
from commonwatt.model.names import one_of
from commonwatt.model.results import DataCheckResult, DataListResult, DatasetRow, FormatRow, LogSummary, SizeRow
from commonwatt.model.units import DAY_S, HOUR_S

__all__ = ["FORMAT_NAMES", "LOG_NAMES", "CheckedFile", "check", "list_data", "locate_input", "summarize"]

FORMAT_NAMES = (*READERS, "gavel", "zeus")
_WEEK_S = 7 * DAY_S


class CheckedFile(NamedTuple):
    """A file that was read: the answer, and the log if it is one."""

    result: DataCheckResult
    log: JobLog | None


DATA_NAMES = tuple(entry.name for entry in CATALOG)
LOG_NAMES = tuple(entry.name for entry in CATALOG if entry.kind == "job log")


def list_data(folder: Path | None) -> DataListResult:
    """Return the catalogue and what of it is on this machine, where *folder* is looked through."""
    rows = []
    for entry in CATALOG:
        path = entry.local_path()
        about = {name: getattr(entry, name) for name in ("name", "kind", "what", "files", "url", "licence")}
        rows.append(DatasetRow(**about, found=None if path is None else str(path)))
    formats = tuple(FormatRow(name=name, what=what) for name, what in FORMATS.items())
    return DataListResult(
        version=__version__, folder=None if folder is None else str(folder), datasets=tuple(rows), formats=formats
    )


def locate_input(given: str, name: str = "file", names: Iterable[str] = DATA_NAMES) -> tuple[Path, str | None]:
    """Return the file that *given* names, and its format if it is the name of a public data set.

    Raises ``InputError`` if it is such a name but the data is not available, or a word that is neither.
    """
    path = Path(given)
    entry = next((entry for entry in CATALOG if entry.name == given), None)
    if entry is None and not path.suffix and path.name == given and not path.exists():
        raise ArgumentError(f"an existing file, or {one_of(names, given)}", field=name, value=given)
    if entry is None or path.exists():
        return path, None
    data_path = entry.local_path()
    if data_path is None:
        expected = f"data on this machine: get it from {entry.url} and give its path (commonwatt data list)"
        raise ArgumentError(expected, field=name, value=given)
    return data_path, entry.name


def check(path: Path, source: str | None, columns: Mapping[str, str] | None = None) -> CheckedFile:
    """Read *path* as the format *source*, guessed if ``None``; raises ``InputError`` if it cannot be read as that.

    *columns* says what a column of a CSV is called where it is not called as we do.
    """
    source = source or ("csv" if columns else guess_format(path))
    log, summary = None, None
    if source in READERS:
        log = read_log(source, path, columns)
        rows, types = len(log), {name for name in log.gpu_type if name}
        summary = summarize(log, source, columns or {})
    elif columns:
        raise ArgumentError("no columns, as the format fixes them", field="columns", value=dict(columns))
    elif source == "gavel":
        runs = gavel.read_gavel(path)
        rows, types = len(runs), {name for speeds in runs.values() for name, _ in speeds}
    elif source == "zeus":
        trainings = zeus.read_zeus(path)
        rows, types = len(trainings), {name for by_type in trainings.values() for name in by_type}
    else:
        raise ArgumentError(one_of(FORMAT_NAMES, source), field="source", value=source)
    result = DataCheckResult(
        version=__version__,
        input_digest=hashlib.sha256(path.read_bytes()).hexdigest(),
        file=str(path),
        format=source,
        rows=rows,
        gpu_types=tuple(sorted(types)),
        log=summary,
    )
    return CheckedFile(result, log)


def summarize(log: JobLog, source: str, columns: Mapping[str, str]) -> LogSummary:
    """Say what *log* holds; *source* and *columns* are what a scenario needs to read it."""
    (first, last), use = log.span_s, usage(log)
    gpu_s = log.duration_s * log.gpus
    peak = int(np.argmax(use.gpus))
    begin = log.whole_from_s
    mean, p95 = _in_use(use, begin, last)
    days = (last - begin) / DAY_S
    waited_s = log.start_s - log.submit_s
    return LogSummary(
        tenants=len(set(log.tenant)),
        first=log.moment(first),
        last=log.moment(last),
        span_days=(last - first) / DAY_S,
        complete_from=log.moment(begin) if begin > first else None,
        gpu_hours=float(gpu_s.sum()) / HOUR_S,
        gpu_hours_per_day=float(gpu_s[log.submit_s >= begin].sum()) / HOUR_S / days if days > 0 else None,
        still_running=int(log.censored.sum()),
        left_out=dict(log.dropped),
        treated={how: int(mask.sum()) for how, mask in log.treated.items() if mask.any()},
        median_run_s=float(np.median(log.duration_s)),
        p95_run_s=float(np.percentile(log.duration_s, 95)),
        median_wait_s=float(np.nanmedian(waited_s)) if use.from_starts and np.any(waited_s > 0) else None,
        peak_gpus=int(use.gpus[peak]),
        peak_at=log.moment(float(use.time_s[peak])),
        p95_gpus=p95,
        mean_gpus=mean,
        in_use_from="starts" if use.from_starts else "submissions",
        by_gpus=_by_gpus(log.gpus, gpu_s),
        by_gpu_type=_by_name(log.gpu_type, gpu_s),
        by_tenant=_by_name(log.tenant, gpu_s),
        workload=_workload(log, source, columns),
    )


def _in_use(use: GpuUse, first_s: float, last_s: float) -> tuple[float | None, int]:
    """Mean GPUs in use between two moments, and how many were enough 95% of that time."""
    seconds, gpus = use.within(first_s, last_s)
    if not seconds.sum():
        return None, int(use.gpus.max())
    order = np.argsort(gpus, kind="stable")
    passed = np.cumsum(seconds[order])
    enough = int(np.searchsorted(passed, 0.95 * passed[-1]))
    return float(seconds @ gpus / seconds.sum()), int(gpus[order][min(enough, len(gpus) - 1)])


def _by_gpus(gpus: Ints, gpu_s: Floats) -> tuple[SizeRow, ...]:
    sizes, index, jobs = np.unique(gpus, return_inverse=True, return_counts=True)
    hours = np.bincount(index, gpu_s) / HOUR_S
    rows = zip(sizes.tolist(), jobs.tolist(), hours.tolist(), strict=True)
    return tuple(SizeRow(value=str(size), jobs=count, gpu_hours=own) for size, count, own in rows)


def _by_name(names: Sequence[str], gpu_s: Floats) -> tuple[SizeRow, ...]:
    values, index, jobs = np.unique(np.array(names), return_inverse=True, return_counts=True)
    hours = np.bincount(index, gpu_s) / HOUR_S
    rows = sorted(zip(values.tolist(), jobs.tolist(), hours.tolist(), strict=True), key=lambda row: (-row[2], row[0]))
    return tuple(SizeRow(value=name, jobs=count, gpu_hours=own) for name, count, own in rows)


def _workload(log: JobLog, source: str, columns: Mapping[str, str]) -> str:
    """Lines of a scenario for the week of most submitted GPU time; for the whole log if it is shorter."""
    fields: dict[str, object] = {"source": source}
    path = log.path
    if path is not None and path.name != PUBLIC_LOGS.get(source):
        fields["path"] = str(path)
    if columns:
        fields["columns"] = dict(columns)
    begin_s, days = _busiest_week(log)
    if begin_s is not None:
        moment = log.moment(begin_s)
        fields["begin"] = f"{begin_s:.0f}" if log.origin is None else moment
    fields["days"] = int(days) if days == int(days) else days
    if not all(log.gpu_type):
        fields["logged_gpu_type"] = "P100"
    text = yaml.safe_dump({"workload": fields}, sort_keys=False, allow_unicode=True, width=1000)
    note = "logged_gpu_type: P100  # change this to the GPU type that the jobs ran on"
    return text.replace("logged_gpu_type: P100", note)


def _busiest_week(log: JobLog) -> tuple[float | None, float]:
    """Return begin and length in days: the seven days from a midnight in which most GPU time was submitted."""
    first, last = log.span_s
    since = 0.0 if log.origin is None else log.origin.timestamp()
    whole = round(max(last - first, HOUR_S) / DAY_S + 0.005, 2)
    days = (
        np.arange(np.ceil((log.whole_from_s + since) / DAY_S), np.floor((last + since - _WEEK_S) / DAY_S) + 1) * DAY_S
        - since
    )
    if not len(days):
        return None, whole
    total = np.concatenate(([0.0], np.cumsum(log.duration_s * log.gpus)))
    work = total[np.searchsorted(log.submit_s, days + _WEEK_S)] - total[np.searchsorted(log.submit_s, days)]
    return float(days[int(np.argmax(work))]), 7.0
