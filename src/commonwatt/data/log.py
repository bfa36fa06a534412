"""``JobLog``: the one table behind all readers and generators, and periods of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from commonwatt.data.table import moment_s
from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.dependencies import Dependency, among, in_order
from commonwatt.model.errors import InputError
from commonwatt.model.units import DAY_S

__all__ = ["AFTER_LEFT_OUT", "AFTER_UNKNOWN", "EARLY", "JobLog", "eligible_s", "plural", "time_of", "utc", "window"]

EARLY = "running before the log begins: from its beginning"
AFTER_UNKNOWN = "wait for jobs that are not in the log: not for these"
AFTER_LEFT_OUT = "wait for jobs that are left out: from when those had ended in the log"
_CARRIED = "carried in from before the period: with the run time they had left"
_SPEAKABLE_S = 1e10  # beyond about three centuries a date is meaningless


@dataclass(frozen=True)
class JobLog:
    """Jobs of one size and run time each, in columns, in order of submission.

    ``submit_s`` counts from ``origin``; where that is ``None`` it counts from a moment the log does not tell.
    What the log does not say is "" (GPU type, nodes) or NaN (time limit, start).
    """

    source: str  # source of the jobs, as a sentence without a full stop
    job: tuple[str, ...]  # [J] distinct names
    tenant: tuple[str, ...]  # [J]
    submit_s: Floats  # [J] increasing
    duration_s: Floats  # [J] run time, above 0
    gpus: Ints  # [J] 1 or more
    gpu_type: tuple[str, ...]  # [J] as the log spells it
    time_limit_s: Floats  # [J] declared run time; infinity: unlimited
    start_s: Floats  # [J] time of the start, on the clock of submit_s
    energy_j: Floats  # [J] of the whole job; NaN: not measured
    censored: Bools  # [J] still running at the end of the log, so that duration_s is too short
    origin: datetime | None = None  # time of submit_s = 0, with a time zone
    dropped: Mapping[str, int] = field(default_factory=dict)  # records left out, by reason
    path: Path | None = None
    complete_from_s: float | None = None  # before this the log is known to lack jobs
    nodes: tuple[str, ...] = ()  # [J] where they ran, a list of hosts in Slurm's notation; empty: no job names any
    treated: Mapping[str, Bools] = field(default_factory=dict)  # [J] each: jobs not taken as the log has them, and how
    series: tuple[str, ...] = ()  # [J] what the owner called the job, as repeated jobs share it; empty: not said
    partition: tuple[str, ...] = ()  # [J] partitions it was submitted to, with commas between them; empty: not said
    user: tuple[str, ...] = ()  # [J] who submitted it; empty: not said
    qos: tuple[str, ...] = ()  # [J] its quality of service; empty: not said
    gpu_milli: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # [J] of one GPU; empty: whole ones
    cpus: Floats = field(default_factory=lambda: np.zeros(0))  # [J] of the whole job, NaN: not said; empty: no job does
    memory_gib: Floats = field(default_factory=lambda: np.zeros(0))  # [J] likewise
    known_s: Floats = field(default_factory=lambda: np.zeros(0))  # [J] when submit_s was known; empty: at submit_s
    after: tuple[Mapping[str, Dependency], ...] = ()  # [J] jobs of this log that it waits for; empty: none waits

    @classmethod
    def of(
        cls, source: str, *, job: Sequence[str], tenant: Sequence[str], submit_s: ArrayLike, duration_s: ArrayLike,
        gpus: ArrayLike, gpu_type: Sequence[str] | None = None, time_limit_s: ArrayLike | None = None,
        start_s: ArrayLike | None = None, censored: ArrayLike | None = None, origin: datetime | None = None,
        reasons: Mapping[str, ArrayLike] | None = None, dropped: Mapping[str, int] | None = None,
        path: Path | None = None, complete_from_s: float | None = None, nodes: Sequence[str] | None = None,
        treated: Mapping[str, ArrayLike] | None = None, series: Sequence[str] | None = None,
        energy_j: ArrayLike | None = None, partition: Sequence[str] | None = None,
        user: Sequence[str] | None = None, qos: Sequence[str] | None = None,
        gpu_milli: ArrayLike | None = None, cpus: ArrayLike | None = None, memory_gib: ArrayLike | None = None,
        known_s: ArrayLike | None = None, after: Sequence[Mapping[str, Dependency]] | None = None,
    ) -> JobLog:  # fmt: skip
        """Sort by submission, leave out the records marked in *reasons* (a mask each; the first that applies counts).

        A job that waits for records left out counts as submitted when these had ended.

        Raises ``InputError`` if a name occurs twice or no job remains.
        """
        unknown = np.full(len(job), np.nan)
        out, counts = _leave_out(len(job), reasons or {}, dropped or {})
        submit = np.asarray(submit_s, dtype=float)
        treated = dict(treated or {})
        if after is not None and any(after):
            submit, late = _after_left_out(after, job, out, submit, start_s, duration_s)
            treated[AFTER_LEFT_OUT] = late
        remaining = np.flatnonzero(~out)
        kept = remaining[np.argsort(submit[remaining], kind="stable")]
        rows: list[int] = kept.tolist()
        if not rows:
            why = ", ".join(f"{count} {reason}" for reason, count in counts.items())
            raise InputError(f"at least one GPU job{f' (left out: {why})' if why else ''}", file=path, value="none")
        _refuse_duplicates([job[i] for i in rows], path)

        def column(values: ArrayLike | None) -> Floats:
            return (unknown if values is None else np.asarray(values, dtype=float))[kept]

        return cls(
            source=source,
            job=tuple(job[i] for i in rows),
            tenant=tuple(tenant[i] for i in rows),
            submit_s=submit[kept],
            duration_s=column(duration_s),
            gpus=np.asarray(gpus)[kept].astype(np.int64),
            gpu_type=tuple("" if gpu_type is None else gpu_type[i] for i in rows),
            time_limit_s=column(time_limit_s),
            start_s=column(start_s),
            censored=np.zeros(len(kept), bool) if censored is None else np.asarray(censored, dtype=bool)[kept],
            origin=origin,
            dropped=counts,
            path=path,
            complete_from_s=complete_from_s,
            nodes=() if nodes is None else tuple(nodes[i] for i in rows),
            treated={how: np.asarray(mask, dtype=bool)[kept] for how, mask in treated.items()},
            series=() if series is None else tuple(series[i] for i in rows),
            energy_j=column(energy_j),
            partition=() if partition is None else tuple(partition[i] for i in rows),
            user=() if user is None else tuple(user[i] for i in rows),
            qos=() if qos is None else tuple(qos[i] for i in rows),
            gpu_milli=np.zeros(0, dtype=np.int64) if gpu_milli is None else np.asarray(gpu_milli, dtype=np.int64)[kept],
            cpus=_said(cpus, kept),
            memory_gib=_said(memory_gib, kept),
            known_s=np.zeros(0) if known_s is None else np.asarray(known_s, dtype=float)[kept],
            after=() if after is None else among([after[i] for i in rows], {job[i] for i in rows})[0],
        )

    def __len__(self) -> int:
        return len(self.job)

    @property
    def span_s(self) -> tuple[float, float]:
        """Return the first and last submission."""
        return float(self.submit_s[0]), float(self.submit_s[-1])

    @property
    def whole_from_s(self) -> float:
        """Return the first submission, or a later time before which the log lacks jobs, if jobs follow it."""
        first, last = self.span_s
        complete_s = self.complete_from_s
        return complete_s if complete_s is not None and first < complete_s < last else first

    def treatments(self) -> dict[str, int]:
        """Return how many jobs were left out or not taken as the log has them, by what was done."""
        counts = self.left_out() | {how: int(mask.sum()) for how, mask in self.treated.items()}
        counts["still running at the end of the log: they end there"] = int(self.censored.sum())
        return {how: number for how, number in counts.items() if number}

    def left_out(self) -> dict[str, int]:
        """Return how many jobs of the whole log were left out, by why."""
        return {f"left out of the log: {reason}": number for reason, number in self.dropped.items()}

    def moment(self, time_s: float) -> str:
        """Return a time of this log as text."""
        if self.origin is None or abs(time_s) > _SPEAKABLE_S:
            return f"{time_s:.0f} s"
        return (self.origin + timedelta(seconds=round(time_s))).isoformat().replace("+00:00", "Z")


def _said(values: ArrayLike | None, kept: Ints) -> Floats:
    """Column of the jobs *kept*, NaN for what is 0 or not said; empty if it is said of none."""
    column = np.zeros(0) if values is None else np.asarray(values, dtype=float)[kept]
    column = np.where(column > 0, column, np.nan)
    return column[:0] if np.isnan(column).all() else column


def _leave_out(
    count: int, reasons: Mapping[str, ArrayLike], dropped: Mapping[str, int]
) -> tuple[Bools, dict[str, int]]:
    out = np.zeros(count, dtype=bool)
    counts = {reason: number for reason, number in dropped.items() if number}
    for reason, mask in reasons.items():
        fresh = np.asarray(mask, dtype=bool) & ~out
        if fresh.any():
            counts[reason] = counts.get(reason, 0) + int(fresh.sum())
        out |= fresh
    return out, counts


def _after_left_out(
    after: Sequence[Mapping[str, Dependency]], job: Sequence[str], out: Bools, submit_s: Floats,
    start_s: ArrayLike | None, duration_s: ArrayLike,
) -> tuple[Floats, Bools]:  # fmt: skip
    """Return when jobs count as submitted that wait for records left out, and which these are. Shapes [J]."""
    at = {name: i for i, name in enumerate(job)}
    own_s = np.full(len(job), np.nan) if start_s is None else np.asarray(start_s, dtype=float)
    begin_s = np.where(np.isnan(own_s), submit_s, own_s)
    end_s = begin_s + np.asarray(duration_s, dtype=float)
    moved_s, late = submit_s.copy(), np.zeros(len(job), dtype=bool)
    for i, own in enumerate(after):
        for name, kind in own.items():
            if out[at[name]]:
                late[i] = True
                moved_s[i] = np.fmax(moved_s[i], (begin_s if kind == "after" else end_s)[at[name]])
    return np.where(late, np.fmin(moved_s, own_s), submit_s), late


def eligible_s(log: JobLog, *, from_starts: bool = True) -> tuple[Floats, Floats]:
    """Return when each job of *log* might start, and when it started. Shapes [J].

    A job might start when it was submitted, and those it waits for had started or ended. Where the log has no start,
    or not *from_starts*, that is when it starts.
    """
    has_start = np.isfinite(log.start_s) & from_starts
    begin_s = np.where(has_start, log.start_s, log.submit_s)
    if not log.after:
        return log.submit_s, begin_s
    at, may_s = {name: i for i, name in enumerate(log.job)}, log.submit_s.copy()
    for name in in_order(dict(zip(log.job, log.after, strict=True))):
        i = at[name]
        for other, kind in log.after[i].items():
            o = at[other]
            may_s[i] = max(may_s[i], begin_s[o] + (0.0 if kind == "after" else log.duration_s[o]))
        if has_start[i]:
            may_s[i] = min(may_s[i], max(log.submit_s[i], begin_s[i]))
        else:
            begin_s[i] = may_s[i]
    return may_s, begin_s


def _refuse_duplicates(names: Sequence[str], path: Path | None) -> None:
    if len(set(names)) == len(names):
        return
    twice = next(name for name, times in Counter(names).items() if times > 1)
    raise InputError("distinct job names", file=path, field="job", value=twice)


def window(log: JobLog, begin: str | None, days: float, *, carry_in: bool = True) -> JobLog:
    """Select the jobs submitted in the *days* from *begin*; times then count from *begin*.

    With *carry_in* also those submitted earlier and not yet finished, submitted at 0: a running one with the run
    time it has left, one that has not started with all of it. Where the log has no start times, jobs count as
    started when they were submitted.

    Parameters
    ----------
    begin
        ISO 8601, or seconds from the log's origin; the first submission if ``None``.

    Raises ``InputError`` if *begin* cannot be read or no job is submitted in the period.
    """
    begin_s = log.span_s[0] if begin is None else time_of(log, begin)
    end_s = begin_s + days * DAY_S
    fresh = (log.submit_s >= begin_s) & (log.submit_s < end_s)
    if not fresh.any():
        first, last = (log.moment(t) for t in log.span_s)
        within = log.span_s[0] <= begin_s < log.span_s[1]
        after = f"; the next is at {log.moment(float(log.submit_s[log.submit_s >= begin_s][0]))}" if within else ""
        called = "the log" if log.path is None else log.path.name
        raise InputError(
            f"a period of {called}, whose submissions are from {first} to {last}{after}",
            field="workload.days" if within else "workload.begin",
            value=f"{days:g} days from {log.moment(begin_s)}",
        )
    started_s = np.fmax(eligible_s(log)[1], log.submit_s)  # fmax ignores NaN
    ran_s = np.clip(begin_s - started_s, 0.0, None)
    carried = ~fresh & carry_in & (log.submit_s < begin_s) & (ran_s < log.duration_s)
    rows = np.flatnonzero(fresh | carried)
    left_s = np.where(carried, log.duration_s - ran_s, log.duration_s)
    return JobLog(
        source=_sentence(log, begin_s, end_s, int(fresh.sum()), int(carried.sum())),
        job=tuple(log.job[i] for i in rows),
        tenant=tuple(log.tenant[i] for i in rows),
        submit_s=np.clip(log.submit_s[rows] - begin_s, 0.0, None),
        duration_s=left_s[rows],
        gpus=log.gpus[rows],
        gpu_type=tuple(log.gpu_type[i] for i in rows),
        time_limit_s=np.where(carried, np.maximum(log.time_limit_s - ran_s, left_s), log.time_limit_s)[rows],
        start_s=log.start_s[rows] - begin_s,
        censored=log.censored[rows],
        origin=None if log.origin is None else log.origin + timedelta(seconds=begin_s),
        dropped=log.dropped,
        path=log.path,
        nodes=tuple(log.nodes[i] for i in rows) if log.nodes else (),
        treated={how: mask[rows] for how, mask in log.treated.items()} | {_CARRIED: carried[rows]},
        series=tuple(log.series[i] for i in rows) if log.series else (),
        energy_j=np.where(carried, np.nan, log.energy_j)[rows],
        partition=tuple(log.partition[i] for i in rows) if log.partition else (),
        user=tuple(log.user[i] for i in rows) if log.user else (),
        qos=tuple(log.qos[i] for i in rows) if log.qos else (),
        gpu_milli=log.gpu_milli[rows] if len(log.gpu_milli) else log.gpu_milli,
        cpus=log.cpus[rows] if len(log.cpus) else log.cpus,
        memory_gib=log.memory_gib[rows] if len(log.memory_gib) else log.memory_gib,
        known_s=log.known_s[rows] - begin_s if len(log.known_s) else log.known_s,
        after=among([log.after[i] for i in rows], {log.job[i] for i in rows})[0] if log.after else (),
    )


def time_of(log: JobLog, begin: str) -> float:
    """Return a moment (ISO 8601, or seconds from the log's origin) on the clock of *log*; raises ``InputError``."""
    try:
        seconds = float(begin)
    except ValueError:
        seconds = math.nan
    if math.isfinite(seconds):
        return seconds
    try:
        moment = moment_s(begin)
    except ValueError:
        expected = "a day or moment (ISO 8601) or a number of seconds from the log's origin"
        raise InputError(expected, field="workload.begin", value=begin) from None
    if log.origin is None:
        expected = "seconds from the log's origin, as this log has no dates"
        raise InputError(expected, field="workload.begin", value=begin)
    return moment - log.origin.timestamp()


def _sentence(log: JobLog, begin_s: float, end_s: float, fresh: int, carried: int) -> str:
    length = plural(round((end_s - begin_s) / DAY_S, 3), "day")
    parts = [f"{log.source}, {length} from {log.moment(begin_s)}: {plural(fresh, 'job')} submitted"]
    if carried:
        parts.append(f"and {carried} carried in from before")
    if log.complete_from_s is not None and begin_s < log.complete_from_s:
        parts.append(f"(the log lacks jobs before {log.moment(log.complete_from_s)})")
    last_s = log.span_s[1]
    if last_s < end_s - DAY_S:
        parts.append(f"(the log's last submission is at {log.moment(last_s)})")
    return " ".join(parts)


def plural(count: float, word: str) -> str:
    """Return ``1 day``, ``2.5 days``."""
    shown = str(count) if isinstance(count, int) else f"{count:g}"
    return f"{shown} {word}{'' if count == 1 else 's'}"


def utc(seconds: float) -> datetime:
    """Return the moment that is *seconds* after 1970; raises ``InputError`` beyond the year 9999."""
    try:
        return datetime.fromtimestamp(seconds, tz=UTC)
    except (ValueError, OverflowError, OSError):
        raise InputError("a moment in seconds since 1970, before the year 10000", value=f"{seconds:g}") from None


def part_of(log: JobLog, own: Bools, others: str) -> JobLog:
    """Return the jobs of *log* that are *own*, [J]; the rest is left out as *others*."""
    return JobLog.of(
        log.source, job=log.job, tenant=log.tenant, submit_s=log.submit_s, duration_s=log.duration_s,
        gpus=log.gpus, start_s=log.start_s, censored=log.censored, origin=log.origin, dropped=log.dropped,
        reasons={others: ~own}, path=log.path, complete_from_s=log.complete_from_s,
        known_s=log.known_s if len(log.known_s) else None, time_limit_s=log.time_limit_s, after=log.after or None,
    )  # fmt: skip
