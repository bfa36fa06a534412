"""What the log itself did: its own starts, ends and places, through the ledger and power model of the policies.

The first row of a what-if study. Nodes are on all the time, as a log does not tell when they were not. Jobs take as
long as the log says, whatever the scenario's ``runtime_error``, and draw what the workload's kinds of model draw on
the GPU type they are on. ``log_places`` says where they run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from commonwatt.control.engine import Holder, Reading
from commonwatt.control.ledger import Ledger
from commonwatt.data.log import JobLog, eligible_s
from commonwatt.data.profiles import type_name
from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError
from commonwatt.model.nodes import Cluster
from commonwatt.model.scenario import LogWorkload
from commonwatt.model.units import MICRO
from commonwatt.simulation.log_places import Places, Taken
from commonwatt.simulation.record import EventColumns, JobColumns, Record, SampleColumns, Segments
from commonwatt.simulation.reference import reference_runs
from commonwatt.simulation.runner import Prepared
from commonwatt.simulation.summary import account_columns, policy_result, service_fields, why_late, window_fields
from commonwatt.simulation.waiting import bounded_slowdown
from commonwatt.simulation.window import Window

__all__ = ["AS_LOGGED", "LogReplay", "MeasuredEnergy", "replay_log"]

AS_LOGGED = "as logged"


@dataclass(frozen=True)
class MeasuredEnergy:
    """Energy of the jobs whose energy the log has, and which it has whole."""

    jobs: int
    logged_j: float
    modelled_j: float  # what the ledger charges to them, with their part of their nodes' idle power


@dataclass(frozen=True)
class LogReplay:
    """The log replayed.

    Attributes
    ----------
    record
        Its run, as of a policy called ``as logged``; ``record.result`` is its ``PolicyResult``. ``record.cluster`` has
        the extra nodes too, utilization is of the cluster without them.
    treatments
        Jobs not taken as the log has them, by what was done: those of the workload, and those of places.
    extra_nodes
        Nodes beyond the cluster that the log's jobs needed.
    measured
        The model's energy beside the log's; ``None``: the log has none.
    """

    record: Record
    treatments: dict[str, int]
    extra_nodes: int
    measured: MeasuredEnergy | None = None


def replay_log(prepared: Prepared, lower_bound: float | None = None) -> LogReplay:
    """Replay the log of *prepared*; *lower_bound* is that of its policies, computed if ``None``.

    Raises ``InputError`` for a workload that is from no log, and for a log without start times.
    """
    log = _log_of(prepared)
    unknown = np.isnan(log.start_s)
    may_s, begin_s = eligible_s(log)
    start_s = np.maximum(begin_s, may_s)
    end_s = start_s + log.duration_s
    run = _replay(prepared, replace(log, submit_s=may_s), start_s, end_s)
    counts = dict(prepared.treatments) | dict(run.places.counts)
    if unknown.any():
        counts["without a logged start: at their submission"] = int(unknown.sum())
    bound = prepared.lower_bound() if lower_bound is None else lower_bound
    record = _record(prepared, run, (may_s, start_s, end_s), bound)
    return LogReplay(record, counts, len(run.places.extra), _measured(log, record.jobs.energy_j))


def _measured(log: JobLog, modelled_j: Floats) -> MeasuredEnergy | None:
    whole = ~(np.isnan(log.energy_j) | np.isnan(modelled_j) | log.censored)
    if not whole.any():
        return None
    return MeasuredEnergy(int(whole.sum()), float(log.energy_j[whole].sum()), float(modelled_j[whole].sum()))


def _log_of(prepared: Prepared) -> JobLog:
    workload, log = prepared.scenario.workload, prepared.log
    if log is None or not isinstance(workload, LogWorkload):
        source = None if workload is None else workload.source
        raise InputError("the log of a cluster, to replay as logged", field="workload.source", value=source)
    if np.isnan(log.start_s).all():
        expected = "a log with start times, to replay as logged; this one has submissions and run times only"
        raise InputError(expected, file=log.path, field="start_s", value="none")
    return log


@dataclass
class _Meters:
    """Jobs on nodes over time, and the readings of their meters."""

    places: Places
    holders: dict[int, list[Holder]] = field(default_factory=dict)
    metered_s: dict[int, float] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    segments: list[tuple[int, int, int, float, float]] = field(default_factory=list)
    samples: list[tuple[float, int, float, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        cluster = self.places.cluster
        self.power_w = float(sum(cluster.classes[k].idle_w for k in cluster.klass))

    def put(self, now_s: float, holder: Holder, node: int) -> None:
        """Let a job begin on *node*."""
        before_w = self._power_w(node)
        self.read(now_s, node)
        self.holders.setdefault(node, []).append(holder)
        self.power_w += self._power_w(node) - before_w

    def remove(self, now_s: float, handle: int, node: int) -> None:
        """Let a job leave *node*."""
        before_w = self._power_w(node)
        self.read(now_s, node)
        self.holders[node] = [holder for holder in self.holders[node] if holder.handle != handle]
        self.power_w += self._power_w(node) - before_w

    def read(self, now_s: float, node: int) -> None:
        """Read the meter of *node*: an extra node draws nothing while it is not in use."""
        from_s, holders = self.metered_s.get(node, 0.0), tuple(self.holders.get(node, ()))
        self.metered_s[node] = now_s
        if now_s > from_s and (holders or node < len(self.places.cluster)):
            energy_uj = round(self._power_w(node) * MICRO * (now_s - from_s))
            self.readings.append(Reading(node, from_s, now_s, energy_uj, holders))

    def _power_w(self, node: int) -> float:
        holders = self.holders.get(node, ())
        idle_w = self.places.kind(node).idle_w if holders or node < len(self.places.cluster) else 0.0
        return idle_w + sum(holder.gpus * holder.gpu_w for holder in holders)


def _replay(prepared: Prepared, log: JobLog, start_s: Floats, end_s: Floats) -> _Meters:
    places = Places(prepared.cluster, prepared.scenario.gpu_types)
    meters = _Meters(places)
    ran_on = _types(prepared, log)
    watts = _Watts(prepared)
    taken: dict[int, tuple[Taken, float]] = {}
    busy = running = submitted = 0
    for now_s, order, j in _moments(log.submit_s, start_s, end_s):
        if order == 0:
            given, began_s = taken.pop(j)
            for node, gpus in given:
                meters.remove(now_s, j, node)
                meters.segments.append((j, node, gpus, began_s, now_s))
            places.release(given)
            busy, running = busy - int(log.gpus[j]), running - 1
        elif order == 1:
            submitted += 1
        else:
            given = places.take(ran_on[j], int(log.gpus[j]), log.nodes[j] if log.nodes else "")
            taken[j] = given, now_s
            for node, gpus in given:
                kind = places.kind(node)
                meters.put(now_s, Holder(j, gpus, watts.of(j, kind.gpu_type, kind.gpu_w), now_s), node)
            busy, running, submitted = busy + int(log.gpus[j]), running + 1, submitted - 1
        if meters.samples and meters.samples[-1][0] == now_s:
            meters.samples.pop()
        meters.samples.append((now_s, busy, meters.power_w, running, submitted))
    for node in range(len(prepared.cluster) + len(places.extra)):
        meters.read(float(end_s.max()), node)
    return meters


def _moments(submit_s: Floats, start_s: Floats, end_s: Floats) -> Iterator[tuple[float, int, int]]:
    """Yield ends (0), submissions (1) and starts (2) by time and then in this order: (time, which, job)."""
    times = np.concatenate((end_s, submit_s, start_s))
    which = np.repeat(np.arange(3), len(submit_s))
    job = np.tile(np.arange(len(submit_s)), 3)
    for i in np.lexsort((job, which, times)).tolist():
        yield float(times[i]), int(which[i]), int(job[i])


def _types(prepared: Prepared, log: JobLog) -> list[str]:
    """Return the GPU type each job ran on."""
    otherwise = getattr(prepared.scenario.workload, "logged_gpu_type", "")
    return [name or otherwise for name in log.gpu_type]


class _Watts:
    """Power per GPU of each job on each type, as the workload has it."""

    def __init__(self, prepared: Prepared) -> None:
        self._table = prepared.table
        self._specs = prepared.scenario.gpu_types
        self._type = [type_name(name, self._specs) for name in prepared.table.gpu_types]

    def of(self, job: int, gpu_type: str, otherwise_w: float) -> float:
        """Return the power per GPU, W: the figure of the node where the job has none on this type."""
        own, wanted = self._table.configs(job), type_name(gpu_type, self._specs)
        for config_type, watts in zip(self._table.config_type[own], self._table.config_gpu_w[own], strict=True):
            if self._type[config_type] == wanted and not np.isnan(watts):
                return float(watts)
        return otherwise_w


def _record(prepared: Prepared, run: _Meters, times_s: tuple[Floats, Floats, Floats], lower_bound: float) -> Record:
    _, start_s, end_s = times_s
    table, cluster = prepared.table, run.places.with_extra()
    tariff = prepared.scenario.electricity.tariff()
    window = Window.of(table, tariff, reference_runs(prepared.scenario, prepared.cluster, table))
    done_s = np.clip(window.to_s - start_s, 0.0, end_s - start_s)
    window.close(np.arange(len(table)), 1.0 - done_s / (end_s - start_s))
    ledger = Ledger(cluster, tariff, on_metered=window.metered)
    ledger.charge(run.readings)
    jobs = _jobs(prepared, ledger, *times_s)
    samples, segments = _samples(run, cluster), _segments(run)
    gpus, rows = prepared.cluster.total_gpus, np.arange(len(table))
    result = policy_result(
        AS_LOGGED, jobs, samples, ledger, gpus, lower_bound,
        **service_fields(jobs, segments, window.reference, rows, gpus),
        **window_fields(window, jobs, gpus),
        preemptions=0, migrations=0, decisions=0,
    )  # fmt: skip
    slowdown = bounded_slowdown(jobs, window.reference, rows)
    return Record(AS_LOGGED, cluster, result, jobs, segments, samples, _events(cluster, jobs, segments), slowdown)


def _jobs(prepared: Prepared, ledger: Ledger, may_s: Floats, start_s: Floats, end_s: Floats) -> JobColumns:
    table = prepared.table
    fastest_s = np.minimum.reduceat(table.config_time_s, table.start[:-1])
    due_s = table.due_s + (may_s - table.submit_s)
    columns = {"submit_s": may_s, "due_s": due_s, "began_s": start_s, "ended_s": end_s}
    return JobColumns(
        name=table.names,
        tenant=tuple(table.tenants[t] for t in table.tenant),
        tardiness_weight=table.tardiness_weight,
        starts=np.ones(len(table), dtype=np.int64),
        fastest_s=fastest_s,
        why_late=why_late(columns, fastest_s, ()),
        **account_columns(ledger, len(table)),
        **columns,
    )


def _segments(run: _Meters) -> Segments:
    columns = np.array(run.segments, dtype=float).reshape(-1, 5)
    ints = columns[:, :3].astype(np.int64)
    return Segments(ints[:, 0], ints[:, 1], ints[:, 2], columns[:, 3], columns[:, 4])


def _samples(run: _Meters, cluster: Cluster) -> SampleColumns:
    time_s, busy, power_w, running, waiting = np.array(run.samples).T
    counts = [column.astype(np.int64) for column in (busy, running, waiting)]
    on_gpus = np.full(len(time_s), run.places.cluster.total_gpus, dtype=np.int64)
    on_gpus = np.minimum(np.maximum(on_gpus, counts[0]), cluster.total_gpus)
    return SampleColumns(time_s, counts[0], power_w, counts[1], counts[2], on_gpus, counts[0])


def _events(cluster: Cluster, jobs: JobColumns, segments: Segments) -> EventColumns:
    nodes: dict[int, list[str]] = {}
    gpus = np.bincount(segments.job, segments.gpus, len(jobs.name)).astype(np.int64)
    for job, node in zip(segments.job.tolist(), segments.node.tolist(), strict=True):
        nodes.setdefault(job, []).append(cluster.names[node])
    kinds = ("completed", "submitted", "started")
    moments = list(_moments(jobs.submit_s, jobs.began_s, jobs.ended_s))
    job_of = np.array([job for _, _, job in moments], dtype=np.int64)
    return EventColumns(
        time_s=np.array([time_s for time_s, _, _ in moments]),
        kind=tuple(kinds[which] for _, which, _ in moments),
        job=job_of,
        nodes=tuple("" if which == 1 else ",".join(nodes[job]) for _, which, job in moments),
        gpus=np.where([which == 1 for _, which, _ in moments], 0, gpus[job_of]),
        reason=(AS_LOGGED,) * len(moments),
        sentence=("as in the log",) * len(moments),
        lost_s=np.full(len(moments), np.nan),
    )
