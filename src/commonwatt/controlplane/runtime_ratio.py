"""How long jobs really took, relative to the time they were planned by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from commonwatt.control.events import EventKind
from commonwatt.model.nodes import Cluster
from commonwatt.store.database import Database
from commonwatt.store.queries import events_of, worked_gpu_s
from commonwatt.store.records import ACTIVE, EventRow, JobRow

__all__ = ["Stay", "runtime_ratio", "runtime_ratios", "stays_of"]

_BEGINS = (EventKind.STARTED, EventKind.RESUMED, EventKind.RESIZED, EventKind.MIGRATED)
_ENDS = (
    EventKind.PREEMPTED, EventKind.INTERRUPTED, EventKind.NOT_STARTED, EventKind.COMPLETED, EventKind.FAILED,
    EventKind.CANCELLED,
)  # fmt: skip
_KEEPS = (EventKind.COMPLETED, EventKind.FAILED, EventKind.CANCELLED)  # the ledger lets a job that is over lose nothing


@dataclass(frozen=True)
class Stay:
    """A job had so many GPUs of these nodes for so long, and lost the work of ``lost_s``; ``None``: unknown."""

    nodes: tuple[str, ...]
    gpus: int
    seconds: float
    lost_s: float | None = 0.0


def runtime_ratios(rows: Sequence[JobRow], cluster: Cluster, database: Database) -> dict[int, float]:
    """Return, for each job of *rows* that has ended, its run time relative to the plan; 0 if it never ran.

    *cluster* has all nodes, those reserved for profiling included.
    """
    ended = {row.id: row for row in rows if row.status not in ACTIVE}
    jobs = sorted(ended)
    worked = worked_gpu_s(database, jobs)
    events = groupby(events_of(database, jobs, (*_BEGINS, *_ENDS)), key=lambda event: event.job)
    stays = {job: stays_of(own) for job, own in events}
    return {job: runtime_ratio(row, worked.get(job, 0.0), stays.get(job, ()), cluster) for job, row in ended.items()}


def stays_of(events: Iterable[EventRow]) -> list[Stay]:
    """Return the stays of a job from its *events* that begin and end one."""
    stays: list[Stay] = []
    began: EventRow | None = None
    for event in events:
        if began is not None and event.kind != EventKind.NOT_STARTED:
            lost_s = 0.0 if event.kind in _KEEPS else event.lost_s
            stays.append(Stay(began.nodes, began.gpus, max(0.0, event.time_s - began.time_s), lost_s))
        began = event if event.kind in _BEGINS else None
    return stays


def runtime_ratio(row: JobRow, worked_gpu_s: float, stays: Sequence[Stay], cluster: Cluster) -> float:
    """Return the run time of a job, which worked so many GPU seconds during *stays*, relative to the plan.

    Each stay counts by the time planned for its configuration, without lost work. If no stay is on a node of the
    cluster, because it is long ago or the cluster has changed, all configurations count alike.
    """
    planned_s = {(figure["gpu_type"], int(figure["gpus"])): float(figure["time_s"]) for figure in row.times or ()}
    kinds = dict(zip(cluster.names, cluster.klass.tolist(), strict=True))
    kept_gpu_s = parts = 0.0
    for stay, kept_s in zip(stays, _kept_s(stays, worked_gpu_s), strict=True):
        types = {cluster.classes[kinds[name]].gpu_type for name in stay.nodes if name in kinds}
        whole_s = planned_s.get((types.pop(), stay.gpus)) if len(types) == 1 else None
        if whole_s is not None:
            kept_gpu_s += stay.gpus * kept_s
            parts += kept_s / whole_s
    if kept_gpu_s > 0:
        return worked_gpu_s * parts / kept_gpu_s
    shares = [1.0 / (gpus * time_s) for (_, gpus), time_s in planned_s.items()]
    return worked_gpu_s * sum(shares) / len(shares) if shares else 0.0


def _kept_s(stays: Sequence[Stay], worked_gpu_s: float) -> list[float]:
    """Return the seconds of each stay without those lost.

    Work that is missing beyond known losses is taken from the stays whose loss is unknown, from each the same share.
    """
    lost = [min(stay.seconds, stay.lost_s or 0.0) for stay in stays]
    missing_gpu_s = sum(s.gpus * (s.seconds - lost_s) for s, lost_s in zip(stays, lost, strict=True)) - worked_gpu_s
    unknown_gpu_s = sum(stay.gpus * stay.seconds for stay in stays if stay.lost_s is None)
    share = min(1.0, max(0.0, missing_gpu_s) / unknown_gpu_s) if unknown_gpu_s > 0 else 0.0
    rest = [share * stay.seconds if stay.lost_s is None else 0.0 for stay in stays]
    return [stay.seconds - lost_s - more_s for stay, lost_s, more_s in zip(stays, lost, rest, strict=True)]
