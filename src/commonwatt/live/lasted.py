"""How long jobs that have ended really took, against what was known of them before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from commonwatt.control.events import EventKind, lost_s_of
from commonwatt.model.nodes import Cluster
from commonwatt.store.database import Database
from commonwatt.store.records import ACTIVE, EventRow, JobRow
from commonwatt.store.runs import events_of, worked_gpu_s

__all__ = ["Stay", "factor", "factors", "stays_of"]

_BEGINS = (EventKind.STARTED, EventKind.RESUMED, EventKind.RESIZED, EventKind.MIGRATED)
_ENDS = (
    EventKind.PREEMPTED, EventKind.INTERRUPTED, EventKind.NOT_STARTED, EventKind.COMPLETED, EventKind.FAILED,
    EventKind.CANCELLED,
)  # fmt: skip
_LOSES = (EventKind.PREEMPTED, EventKind.INTERRUPTED)
_KEEPS = (EventKind.COMPLETED, EventKind.FAILED, EventKind.CANCELLED)  # the ledger lets a job that is over lose nothing


@dataclass(frozen=True)
class Stay:
    """A job held so many GPUs of these nodes, for so long, and lost of that what was done in ``lost_s``.

    That is ``None`` where it was not told.
    """

    nodes: tuple[str, ...]
    gpus: int
    seconds: float
    lost_s: float | None = 0.0


def factors(rows: Sequence[JobRow], cluster: Cluster, database: Database) -> dict[int, float]:
    """Return, of each job of *rows* that has ended, how many times as long as planned it ran; 0 if it never did.

    *cluster* has all nodes, those for profiling among them.
    """
    ended = {row.id: row for row in rows if row.status not in ACTIVE}
    jobs = sorted(ended)
    worked = worked_gpu_s(database, jobs)
    events = groupby(events_of(database, jobs, (*_BEGINS, *_ENDS), _LOSES), key=lambda event: event.job)
    stays = {job: stays_of(own) for job, own in events}
    return {job: factor(row, worked.get(job, 0.0), stays.get(job, ()), cluster) for job, row in ended.items()}


def stays_of(events: Iterable[EventRow]) -> list[Stay]:
    """Return where a job was from its *events*, which are of the kinds that begin and end that."""
    found: list[Stay] = []
    began: EventRow | None = None
    for event in events:
        if began is not None and event.kind != EventKind.NOT_STARTED:
            lost_s = 0.0 if event.kind in _KEEPS else lost_s_of(event.sentence)
            found.append(Stay(began.nodes, began.gpus, max(0.0, event.time_s - began.time_s), lost_s))
        began = event if event.kind in _BEGINS else None
    return found


def factor(row: JobRow, worked_gpu_s: float, stays: Sequence[Stay], cluster: Cluster) -> float:
    """Return how many times as long as planned a job ran that worked so many GPU seconds during *stays*.

    Each stay counts by the time planned for where it was, without what was lost of it. If none was anywhere that is
    known, because it is long ago or the cluster has changed, the job counts as if it had been in each of its
    configurations alike.
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
    """Return of each of *stays* its seconds without those lost.

    What is missing of the work beyond that of which was told is taken from the stays of which nothing was told, from
    each the same share; what is left, starting among it, is left to all.
    """
    told = [min(stay.seconds, stay.lost_s or 0.0) for stay in stays]
    missing_gpu_s = sum(s.gpus * (s.seconds - lost_s) for s, lost_s in zip(stays, told, strict=True)) - worked_gpu_s
    untold_gpu_s = sum(stay.gpus * stay.seconds for stay in stays if stay.lost_s is None)
    share = min(1.0, max(0.0, missing_gpu_s) / untold_gpu_s) if untold_gpu_s > 0 else 0.0
    rest = [share * stay.seconds if stay.lost_s is None else 0.0 for stay in stays]
    return [stay.seconds - lost_s - more_s for stay, lost_s, more_s in zip(stays, told, rest, strict=True)]
