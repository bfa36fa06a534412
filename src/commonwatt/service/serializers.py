"""Request bodies into models, with the same errors as for files; rows of the store into results of the API."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from commonwatt.controlplane.services import SnapshotService
from commonwatt.controlplane.snapshot import Snapshot, SnapshotJob, SnapshotNode, why_of
from commonwatt.data.files import validate
from commonwatt.model.capacity import CapacitySpec, target_label
from commonwatt.model.errors import InputError
from commonwatt.model.explanation import Reason
from commonwatt.model.fields import FileModel
from commonwatt.model.job_file import Source
from commonwatt.model.live_results import (
    BudgetState,
    CapacityState,
    ClusterSample,
    EventEntry,
    JobConfiguration,
    JobState,
    NodeState,
    PoolState,
    ServiceState,
    SubmittedJob,
)
from commonwatt.service.auth import Caller
from commonwatt.service.problems import ApiRefusal
from commonwatt.store.records import ACTIVE, EventRow, JobRow, JobStatus, SampleRow, is_late

__all__ = [
    "ATTRIBUTE_OF",
    "body_of",
    "cluster_document",
    "described",
    "event_page",
    "explanation",
    "job_detail",
    "job_document",
    "job_state",
    "node_document",
    "node_documents",
    "node_states",
    "samples_page",
    "service_state",
    "submitted_job",
]

M = TypeVar("M", bound=FileModel)
_LONGEST_S = 30.0


def body_of(model: type[M]) -> Callable[[Request], Awaitable[M]]:
    """Return a dependency that reads the body into *model*."""

    async def read(request: Request) -> M:
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise ApiRefusal(415, f"got a body of type {media_type[:80]!r}, expected application/json")
        try:
            async with asyncio.timeout(_LONGEST_S):
                raw = await request.body()
        except TimeoutError:
            raise ApiRefusal(408, "the body did not arrive in time") from None
        except ClientDisconnect:
            raise ApiRefusal(400, "the connection ended before the end of the body") from None
        return validate(_parsed(raw), model, strict=True)

    return read


def described(model: type[FileModel]) -> dict[str, Any]:
    """Return the body's description for OpenAPI, which refers to a schema among the components."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        document = json.loads(raw.decode("utf-8"), object_pairs_hook=_object, parse_constant=_no_constant)
        json.dumps(document, ensure_ascii=False).encode("utf-8")
    except InputError as error:
        raise ApiRefusal(400, str(error), field=error.field, expected=error.expected) from None
    except UnicodeError:
        raise ApiRefusal(400, "expected JSON in valid UTF-8") from None
    except RecursionError:
        raise ApiRefusal(400, "expected JSON with less nesting") from None
    except ValueError as error:
        raise ApiRefusal(400, f"expected JSON: {error}") from None
    if not isinstance(document, dict):
        raise ApiRefusal(422, "expected a JSON object of fields", expected="a JSON object of fields")
    return document


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InputError("each key once", field=twice)
    for key, value in pairs:
        if "\0" in key or (isinstance(value, str) and "\0" in value):
            raise InputError("text without NUL characters", field=key.replace("\0", "?"))
        if isinstance(value, list) and any(isinstance(entry, str) and "\0" in entry for entry in value):
            raise InputError("text without NUL characters", field=key)
    return document


def _no_constant(name: str) -> float:
    msg = f"{name} is not a JSON number"
    raise ValueError(msg)


_CONFIGURATION = tuple(JobConfiguration.model_fields)
_EVENT, _NODE, _SAMPLE = map(tuple, (EventEntry.model_fields, NodeState.model_fields, ClusterSample.model_fields))
_event, _sample = attrgetter(*_EVENT), attrgetter(*_SAMPLE)
ATTRIBUTE_OF = {"held_gpus": "allocated_gpus"}
"""Keys of the API, which stay, and the attributes that they show."""
_node = attrgetter(*(ATTRIBUTE_OF.get(name, name) for name in _NODE))
_OPERATORS_ONLY = ("running", "waiting", "wanted_gpus")
_NEW = ("new", "the controller has not processed this job yet")
_ON_HOLD = "it is on hold: it continues, but does not start again until it is released"
_ENDED = {"completed": "it completed", "failed": "it failed", "cancelled": "it was cancelled"}


def service_state(service: SnapshotService) -> ServiceState:
    """Return a service."""
    return ServiceState(late_share=service.late_share, **asdict(service))


def job_state(row: JobRow, snapshot: Snapshot) -> JobState:
    """Return a job; values that are newer in *snapshot* than in the store are taken from there."""
    return JobState(**job_document(row, snapshot))


def submitted_job(row: JobRow, snapshot: Snapshot, warnings: tuple[str, ...]) -> SubmittedJob:
    """Return a job just accepted."""
    return SubmittedJob(**job_document(row, snapshot), warnings=warnings)


def job_detail(row: JobRow, snapshot: Snapshot, account: Mapping[str, int | None]) -> dict[str, Any]:
    """Return the document of a ``JobDetail``: all about a job, with its energy and cost so far."""
    file = row.file
    return job_document(row, snapshot) | {
        "command": file.command, "image": file.image, "folder": file.folder, "snapshots": file.snapshots,
        "environment": tuple(file.environment), "kind": file.kind, "tardiness_weight": file.tardiness_weight,
        "time_limit_s": file.time_limit_s, "configurations": _configurations(row),
        "energy_j": _scaled(account["energy_uj"], 1e-6), "cost": _scaled(account["cost_n"], 1e-9),
        "carbon_g": _scaled(account["carbon_ug"], 1e-6), "gpu_s": _scaled(account["gpu_us"], 1e-6),
    }  # fmt: skip


def explanation(row: JobRow, snapshot: Snapshot, history: Sequence[EventRow]) -> dict[str, Any]:
    """Return the document of a ``JobExplanation``: the reason why a job runs where it does, or waits."""
    state = job_document(row, snapshot)
    if row.status not in ACTIVE:
        reason, sentence = row.reason or row.status.value, row.sentence or _ENDED[row.status]
    else:
        reason, sentence = state["reason"] or _NEW[0], state["sentence"] or _NEW[1]
        if row.held and row.status is not JobStatus.WAITING:
            sentence = f"{sentence.rstrip('.')}; {_ON_HOLD}"
    return {
        "job": row.id, "name": row.name, "status": row.status.value, "reason": reason, "sentence": sentence,
        "expected_start_s": state["expected_start_s"], "expected_end_s": state["expected_end_s"], "due_s": row.due_s,
        "configurations": _configurations(row), "history": event_documents(history),
    }  # fmt: skip


def event_documents(rows: Iterable[EventRow]) -> list[dict[str, Any]]:
    """Return documents of ``EventEntry``: lines of the event log."""
    return [dict(zip(_EVENT, _event(row), strict=True)) for row in rows]


def event_page(rows: Sequence[EventRow], after: int) -> dict[str, Any]:
    """Return the document of an ``EventPage``: the page of the event log that follows number *after*."""
    return {"events": event_documents(rows), "next_after": max((row.id for row in rows), default=after)}


def node_states(snapshot: Snapshot, visible: Mapping[int, bool] | None) -> tuple[NodeState, ...]:
    """Return all nodes with those of their jobs that are *visible* (``None``: all)."""
    return tuple(NodeState(**node) for node in node_documents(snapshot, visible))


def node_document(node: SnapshotNode) -> dict[str, Any]:
    """Return the document of a ``NodeState``, with all its jobs."""
    return dict(zip(_NODE, _node(node), strict=True))


def node_documents(snapshot: Snapshot, visible: Mapping[int, bool] | None) -> list[dict[str, Any]]:
    """Return documents of ``NodeState``: all nodes with those of their jobs that are *visible* (``None``: all)."""
    nodes = [node_document(node) for node in snapshot.nodes]
    if visible is not None:
        for node in nodes:
            node["jobs"] = [job for job in node["jobs"] if visible.get(job, False)]
    return nodes


def cluster_document(snapshot: Snapshot, caller: Caller, visible: Mapping[int, bool] | None) -> dict[str, Any]:
    """Return the document of a ``ClusterState`` as *caller* may see it: a tenant sees only its own jobs."""
    counts = {JobStatus.RUNNING: snapshot.running, JobStatus.WAITING: snapshot.waiting}
    saved = None if snapshot.saved is None else dict(snapshot.saved)
    if not caller.operator:
        counts, saved = {status: snapshot.by_tenant.get((str(caller.tenant), status), 0) for status in counts}, None
    return {
        "time_s": snapshot.time_s, "mode": snapshot.mode, "engine": snapshot.engine, "healthy": snapshot.healthy,
        "role": "standby" if snapshot.role == "standby" else "active",
        "trouble": snapshot.trouble if caller.operator else None, "power_w": snapshot.power_w,
        "busy_gpus": snapshot.busy_gpus, "total_gpus": snapshot.total_gpus, "running": counts[JobStatus.RUNNING],
        "waiting": counts[JobStatus.WAITING], "tick_s": snapshot.tick_s, "ticks": snapshot.ticks, "saved": saved,
        "nodes": node_documents(snapshot, visible),
    }  # fmt: skip


_LONGEST_GAP_S = 3600.0
"""Between samples; what was on in a longer gap is not known, as no controller ran."""


def capacity_state(
    snapshot: Snapshot, plan: CapacitySpec | None, samples: Sequence[SampleRow], now_s: float
) -> CapacityState:
    """Return the capacity *plan*, and how much was on at the *samples*, in order of time, up to *now_s*."""
    power, pools, one = snapshot.power, snapshot.pools, len(snapshot.pools) == 1
    jobs = () if power is None else snapshot.jobs.values()
    short = sum(job.reason == Reason.POWER_CAP and job.status == JobStatus.WAITING for job in jobs)
    ends_s = [row.time_s for row in samples[1:]] + [now_s]
    spans = [min(_LONGEST_GAP_S, max(0.0, end_s - row.time_s)) for row, end_s in zip(samples, ends_s, strict=False)]
    period_s = sum(spans)

    def mean(figures: Iterable[float]) -> float | None:
        weighted = (span * figure for span, figure in zip(spans, figures, strict=True))
        return sum(weighted) / period_s if period_s > 0 else None

    wanted = [min(row.wanted_gpus, snapshot.total_gpus) for row in samples]
    promises = plan is not None and plan.policy == "cuff" and plan.delay_price is None
    return CapacityState(
        policy=None if plan is None else plan.policy,
        target=target_label(plan.target) if plan is not None and promises else None,
        pools=tuple(
            PoolState(
                name=None if one else pool.name, gpus=pool.gpus, on_gpus=pool.on_gpus, wanted_gpus=pool.wanted_gpus,
                promised_gpus=pool.promised_gpus, kept=pool.kept, sentence=None if pool.kept else pool.sentence,
            )
            for pool in pools
        ),
        budget=None if power is None else BudgetState(
            limit_w=power.limit_w if math.isfinite(power.limit_w) else None, counted_w=power.counted_w,
            nodes_off=power.nodes_off, waiting_jobs=short,
        ),
        period_s=period_s, total_gpus=snapshot.total_gpus,
        mean_on_gpus=mean(row.on_gpus for row in samples), mean_wanted_gpus=mean(wanted),
        served_share=mean(row.on_gpus >= own for row, own in zip(samples, wanted, strict=True)),
    )  # fmt: skip


def samples_page(rows: Iterable[SampleRow], caller: Caller) -> dict[str, Any]:
    """Return the document of a ``SamplePage``; only operators see the numbers of jobs and requested GPUs."""
    documents = [dict(zip(_SAMPLE, _sample(row), strict=True)) for row in rows]
    if not caller.operator:
        for document in documents:
            document.update(dict.fromkeys(_OPERATORS_ONLY))
    return {"samples": documents}


def job_document(row: JobRow, snapshot: Snapshot) -> dict[str, Any]:
    """Return the document of a ``JobState``, as ``job_state`` does."""
    latest: JobRow | SnapshotJob = row
    active = row.status in ACTIVE
    if active:
        latest = snapshot.jobs.get(row.id, row)
    if isinstance(latest, SnapshotJob) and not (row.held and row.status is JobStatus.WAITING):
        reason, sentence = latest.why
    else:
        reason, sentence = why_of(row)
    begin_s, end_s = _expected(row, snapshot, latest)
    return {
        "id": row.id, "name": row.name, "tenant": row.tenant, "status": row.status.value, "held": row.held,
        "submit_s": row.submit_s, "due_s": row.due_s, "began_s": row.began_s, "started_s": row.started_s,
        "ended_s": row.ended_s, "attempts": row.attempts, "nodes": row.nodes, "gpu_type": row.gpu_type,
        "gpus": row.gpus, "gpus_asked": row.file.gpus, "epochs": row.file.epochs,
        "done_epochs": max(row.done_epochs, latest.done_epochs),
        "kept_epochs": max(row.kept_epochs, latest.kept_epochs), "reason": reason, "sentence": sentence,
        "expected_start_s": begin_s, "expected_end_s": end_s,
        "late": _late(row, snapshot.time_s, end_s),
    }  # fmt: skip


def _expected(row: JobRow, snapshot: Snapshot, latest: JobRow | SnapshotJob) -> tuple[float | None, float | None]:
    """Return when a job is expected to start, where it is queued, and to end.

    The estimate may be a few seconds older than the snapshot: what has not begun then ends as much later.
    """
    if row.status not in ACTIVE:
        return None, None
    if row.status is not JobStatus.WAITING:
        return None, latest.expected_end_s
    begin_s, end_s = latest.expected_start_s, latest.expected_end_s
    if row.held or begin_s is None:
        return None, None
    later_s = max(0.0, snapshot.time_s - begin_s)
    return begin_s + later_s, None if end_s is None else end_s + later_s


def _late(row: JobRow, now_s: float, expected_end_s: float | None) -> bool | None:
    if row.due_s is None:
        return None
    if row.status not in ACTIVE:
        return row.ended_s is not None and row.ended_s > row.due_s
    return is_late(row.due_s, now_s, expected_end_s)


def _configurations(row: JobRow) -> list[dict[str, Any]] | None:
    if row.times is None:
        return None
    made = [{name: time.get(name) for name in _CONFIGURATION} for time in row.times]
    for one, time in zip(made, row.times, strict=True):
        if one["source"] == Source.UNKNOWN or time.get("outlived"):  # plans need some time, which tells nobody anything
            one |= {"time_s": None, "likely_s": None}
    return made


def _scaled(value: int | None, factor: float) -> float | None:
    return None if value is None else value * factor
