"""Broadcasts changes of the cluster's snapshot, and events, to the subscribers of ``/stream``.

One loop reads the snapshot and the store while there is a subscriber. Nothing is queued: a subscriber keeps the number
of the last snapshot it received and is sent what has changed since. A slow subscriber skips snapshots, never a change,
and delays nobody.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pydantic_core import to_json

from commonwatt.controlplane.snapshot import Snapshot, SnapshotJob, SnapshotNode
from commonwatt.model.errors import StoreError
from commonwatt.service.serializers import node_document
from commonwatt.store.database import Database
from commonwatt.store.queries import last_event, new_events, outline_of, outlines
from commonwatt.store.records import JobRow, Part, parts_of, unpacked

__all__ = ["Broadcaster", "Message"]

EVENTS_AT_FIRST = 100
EVENTS_KEPT = 2000
GONE_KEPT = 20_000
RECHECK_S = 5.0
_JOB = tuple(part.name for part in fields(SnapshotJob) if part.name not in {"started_s", "due_s", "facts", "_why"})
_WHY = ("reason", "sentence")
_log = logging.getLogger("commonwatt.service")


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the stream: its event name, its JSON in one line, and an id if a subscriber can resume after it."""

    event: str
    data: str
    id: int | None = None

    def encoded(self) -> bytes:
        """Return the message in the format of server-sent events."""
        number = "" if self.id is None else f"id: {self.id}\r\n"
        return f"{number}event: {self.event}\r\ndata: {self.data}\r\n\r\n".encode()


@dataclass(slots=True)
class _Job:
    """A job as it is sent; its JSON is made once, for all subscribers that may see it."""

    number: int  # of the snapshot in which it last changed
    job: SnapshotJob | Part
    row: JobRow | Part | Mapping[str, Any]  # or its outline
    tenant: str
    status: str
    _text: str | None = None

    @classmethod
    def of(cls, number: int, job: SnapshotJob | Part, row: JobRow | Part | Mapping[str, Any]) -> _Job:
        """Return a job that has changed in snapshot *number*."""
        known = unpacked(row)
        tenant = known["tenant"] if isinstance(known, Mapping) else known.tenant
        return cls(number, job, row, sys.intern(tenant), sys.intern(str(unpacked(job).status)))

    def text(self) -> str:
        """Return its JSON."""
        if (text := self._text) is None:
            job, row = unpacked(self.job), unpacked(self.row)
            now = {name: getattr(job, name) for name in _JOB} | dict(zip(_WHY, job.why, strict=True))
            text = self._text = _json({**(row if isinstance(row, Mapping) else outline_of(row)), **now})
        return text


@dataclass(frozen=True)
class _SentSnapshot:
    """A snapshot as it is sent; each node comes with the number of the one in which it last changed."""

    number: int
    head: dict[str, Any]
    nodes: dict[str, tuple[int, SnapshotNode]]
    jobs: dict[int, _Job]
    gone: tuple[tuple[int, int, str], ...] = ()  # first snapshot without the job, the job, its tenant
    whole_since: int = 0  # a subscriber with an older one is sent everything


@dataclass
class Broadcaster:
    """Sends one controller's snapshots to all subscribers.

    Parameters
    ----------
    snapshot
        Returns the cluster after the controller's last tick.
    database
        The store.
    poll_s
        Time between two reads.
    """

    snapshot: Callable[[], Snapshot]
    database: Database
    poll_s: float = 0.25
    clock: Callable[[], float] = time.time
    subscribers: int = 0
    _sent: _SentSnapshot | None = None
    _seen: Snapshot | None = None
    _events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))
    _reads: int = 0
    _after: int = -1  # id of the last event read; -1: none yet
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _encoding: threading.Lock = field(default_factory=threading.Lock)
    _changed: asyncio.Event | None = None
    _task: asyncio.Task[None] | None = None
    _encoded: dict[tuple[str | None, int], tuple[int, str]] = field(default_factory=dict)

    async def subscribe(
        self, tenant: str | None, *, resume: int = 0, authorized: Callable[[], Any] | None = None
    ) -> AsyncIterator[Message]:
        """Yield the snapshot and recent events, then changes, for an operator (``None``) or a tenant.

        Parameters
        ----------
        resume
            Id of the last event received before; later events are sent first, if they are still kept.
        authorized
            Coroutine function that is called every few seconds; the stream ends when it returns false.
        """
        self._begin()
        seen, last, checked_s = 0, resume, time.monotonic()
        try:
            while True:
                changed = self._changed
                assert changed is not None
                sent = self._sent
                if sent is not None and sent.number > seen:
                    yield Message("board", await asyncio.to_thread(self._changes_since, sent, seen, tenant))
                    seen = sent.number
                for event in [event for event in self._events if event["id"] > last]:
                    last = event["id"]
                    if tenant is None or event["tenant"] == tenant:
                        yield Message("event", _json(event), last)
                if authorized is not None and time.monotonic() - checked_s > RECHECK_S:
                    if not await authorized():
                        return
                    checked_s = time.monotonic()
                if changed is self._changed:
                    await _wait(changed, RECHECK_S)
        finally:
            self._end()

    def _begin(self) -> None:
        self.subscribers += 1
        if self._task is None or self._task.done():
            self._changed = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._poll())

    def _end(self) -> None:
        self.subscribers -= 1
        if not self.subscribers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _poll(self) -> None:
        """Read the snapshot until the last subscriber leaves."""
        while True:
            try:
                if await asyncio.to_thread(self._read):
                    changed, self._changed = self._changed, asyncio.Event()
                    assert changed is not None
                    changed.set()
            except StoreError as error:
                _log.warning("the stream cannot read the store: %s", error)
            except Exception:
                _log.exception("the stream cannot read the snapshot")
            await asyncio.sleep(self.poll_s)

    def _read(self) -> bool:
        """Read the snapshot and events; returns whether anything has changed."""
        with self._lock:  # a read of an ended loop may still run
            return self._read_locked()

    def _read_locked(self) -> bool:
        snapshot, sent = self.snapshot(), self._sent
        fresh = snapshot is not self._seen
        if fresh:
            self._sent, self._seen = self._next(snapshot, sent), snapshot
            self._encoded.clear()
        self._reads += 1
        if self._after < 0:
            self._after = last_event(self.database, back=EVENTS_AT_FIRST)
        elif not fresh and self._reads % 8:
            return False  # events arrive with ticks, or soon after
        while events := new_events(self.database, self._after):
            self._events.extend(events)
            self._after = events[-1]["id"]
            fresh = True
        return fresh

    def _next(self, snapshot: Snapshot, before: _SentSnapshot | None) -> _SentSnapshot:
        number = 1 if before is None else before.number + 1
        old_nodes, old_jobs = ({}, {}) if before is None else (before.nodes, before.jobs)
        nodes = {}
        for node in snapshot.nodes:
            old_node = old_nodes.get(node.name)
            same = old_node is not None and (old_node[1] is node or old_node[1] == node)
            nodes[node.name] = old_node if same and old_node is not None else (number, node)
        parts, rows = parts_of(snapshot.jobs), parts_of(snapshot.rows)
        changed = [n for n, job in parts.items() if (old := old_jobs.get(n)) is None or not _same(old.job, job)]
        read = outlines(self.database, [n for n in changed if n not in rows])
        fresh = {
            n: _Job.of(number, parts[n], rows[n] if n in rows else read[n]) for n in changed if n in rows or n in read
        }
        jobs = {n: job for n in parts if (job := fresh.get(n) or old_jobs.get(n)) is not None}
        gone = () if before is None else before.gone
        gone += tuple((number, n, old.tenant) for n, old in old_jobs.items() if n not in jobs)
        whole_since = number if before is None or nodes.keys() != old_nodes.keys() else before.whole_since
        if len(gone) > GONE_KEPT:
            whole_since, gone = max(whole_since, gone[-GONE_KEPT][0]), gone[-GONE_KEPT:]
        return _SentSnapshot(number, _head(snapshot), nodes, jobs, gone, whole_since)

    def _changes_since(self, sent: _SentSnapshot, seen: int, tenant: str | None) -> str:
        key = (tenant, seen)
        with self._encoding:  # subscribers that come together wait for the first of them
            encoded = self._encoded.get(key)
            if encoded is None or encoded[0] != sent.number:
                encoded = (sent.number, _since(sent, seen, tenant, self.clock()))
                self._encoded[key] = encoded
            return encoded[1]


def _same(old: SnapshotJob | Part, new: SnapshotJob | Part) -> bool:
    return old is new or old == new


def _since(sent: _SentSnapshot, seen: int, tenant: str | None, now_s: float) -> str:
    """Return the JSON of the changes after snapshot *seen* that *tenant* may see.

    It is assembled from small parts, so that other threads can run in between.
    """
    whole = seen < sent.whole_since
    since = 0 if whole else seen

    def own(job: int) -> bool:
        return tenant is None or (job in sent.jobs and sent.jobs[job].tenant == tenant)

    nodes = (
        node_document(node) | {"jobs": [job for job in node.jobs if own(job)]}
        for number, node in sent.nodes.values()
        if number > since
    )
    jobs = (
        entry.text()
        for entry in sent.jobs.values()
        if entry.number > since and (tenant is None or entry.tenant == tenant)
    )
    gone = [
        job
        for number, job, of in sent.gone
        if not whole and number > since and tenant in (None, of) and job not in sent.jobs
    ]
    parts = {
        "whole": _json(whole),
        "sent_s": _json(now_s),
        "head": _json(sent.head if tenant is None else sent.head | _own_head(sent, tenant)),
        "nodes": f"[{','.join(map(_json, nodes))}]",
        "jobs": f"[{','.join(jobs)}]",
        "gone": _json(gone),
    }
    return "{" + ",".join(f'"{name}":{part}' for name, part in parts.items()) + "}"


def _own_head(sent: _SentSnapshot, tenant: str) -> dict[str, Any]:
    """Return the numbers that differ for a tenant, which sees counts of its own jobs only."""
    own = [entry.status for entry in sent.jobs.values() if entry.tenant == tenant]
    return {"trouble": None, "saved": None} | {status: own.count(status) for status in ("running", "waiting")}


def _head(snapshot: Snapshot) -> dict[str, Any]:
    parts = (
        "time_s", "mode", "engine", "healthy", "trouble", "role", "power_w", "busy_gpus", "total_gpus", "running",
        "waiting", "tick_s", "ticks",
    )  # fmt: skip
    return {part: getattr(snapshot, part) for part in parts} | {
        "saved": None if snapshot.saved is None else dict(snapshot.saved)
    }


_encoder = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def _json(value: Any) -> str:  # noqa: ANN401
    try:
        return _encoder.encode(value)
    except ValueError:  # infinity and NaN are unknown: null
        return to_json(value, inf_nan_mode="null").decode()


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return
