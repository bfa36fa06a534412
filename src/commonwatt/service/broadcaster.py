"""Broadcasts changes of the cluster's snapshot, and events, to the subscribers of ``/stream``.

One loop reads the snapshot and the store while there is a subscriber. Nothing is queued: a subscriber keeps the number
of the last snapshot it received and is sent what has changed since. A slow subscriber skips snapshots, never a change,
and delays nobody.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, fields
from heapq import nsmallest
from typing import Any, NamedTuple

from pydantic_core import to_json

from commonwatt.controlplane.snapshot import Snapshot, SnapshotJob, SnapshotNode
from commonwatt.model.errors import StoreError
from commonwatt.service.serializers import node_document
from commonwatt.store.database import Database
from commonwatt.store.queries import last_event, new_events
from commonwatt.store.records import JobStatus, Part, parts_of, unpacked

__all__ = ["Broadcaster", "Message"]

EVENTS_AT_FIRST = 100
EVENTS_KEPT, _AT_ONCE = 2000, 1000
WAITING_LISTED = 2000
"""So many waiting jobs are sent at most, those that start first; tens of thousands would hold up all other answers."""
RECHECK_S = 5.0
_JOB = tuple(part.name for part in fields(SnapshotJob) if part.name not in {"facts", "_why"})
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
    tenant: str
    status: str
    rank: tuple[float, bool, int]  # among those that wait
    _text: str | None = None

    @classmethod
    def of(cls, number: int, packed: SnapshotJob | Part) -> _Job:
        """Return a job that has changed in snapshot *number*."""
        job: SnapshotJob = unpacked(packed)
        start_s = math.inf if job.expected_start_s is None else job.expected_start_s
        return cls(number, packed, sys.intern(job.tenant), sys.intern(str(job.status)), (start_s, not job.held, job.id))

    def text(self) -> str:
        """Return its JSON."""
        if (text := self._text) is None:
            job = unpacked(self.job)
            values = {name: getattr(job, name) for name in _JOB} | dict(zip(_WHY, job.why, strict=True))
            text = self._text = _json(values)
        return text


@dataclass(frozen=True)
class _SentSnapshot:
    """A snapshot as it is sent; each node comes with the number of the one in which it last changed."""

    number: int
    head: dict[str, Any]
    nodes: dict[str, tuple[int, SnapshotNode]]
    jobs: dict[int, _Job]
    whole_since: int = 0  # a subscriber with an older one is sent everything

    def seen_by(self, tenant: str | None) -> _View:
        """Return what an operator (``None``) or a tenant sees of it."""
        own = self.jobs if tenant is None else {n: job for n, job in self.jobs.items() if job.tenant == tenant}
        waiting = [n for n, job in own.items() if job.status == JobStatus.WAITING]
        counts = {"running": len(own) - len(waiting), "waiting": len(waiting)}
        if len(waiting) > WAITING_LISTED:
            first = nsmallest(WAITING_LISTED, (own[n].rank for n in waiting))
            unlisted = set(waiting).difference(number for *_, number in first)
            return _View(self, tenant, counts, frozenset(own.keys() - unlisted))
        return _View(self, tenant, counts, frozenset(own))


class _Seen(NamedTuple):
    """What a subscriber has received: the number of a snapshot, and the jobs that were listed then."""

    number: int
    listed: frozenset[int]


_NOTHING = _Seen(0, frozenset())


@dataclass(frozen=True)
class _View:
    """What a tenant, or an operator (``None``), sees of a snapshot: *listed* are the jobs that are sent."""

    snapshot: _SentSnapshot
    tenant: str | None
    counts: dict[str, int]  # of all jobs, by status
    listed: frozenset[int]
    texts: dict[int, str] = field(default_factory=dict)  # what was sent, by the snapshot seen before

    @property
    def head(self) -> dict[str, Any]:
        """The numbers of the cluster; for a tenant, those of its own jobs only."""
        return self.snapshot.head | self.counts | ({} if self.tenant is None else {"trouble": None, "saved": None})

    def since(self, seen: _Seen, now_s: float) -> str:
        """Return the JSON of what a subscriber that has *seen* something else lacks.

        It is assembled from small parts, so that other threads can run in between.
        """
        sent, operator = self.snapshot, self.tenant is None
        whole = seen.number < sent.whole_since
        since, known = _NOTHING if whole else seen
        nodes = (
            node_document(node) | ({} if operator else {"jobs": [n for n in node.jobs if n in self.listed]})
            for number, node in sent.nodes.values()
            if number > since
        )
        jobs = (
            job.text() for n, job in sent.jobs.items() if n in self.listed and (job.number > since or n not in known)
        )
        parts = {
            "whole": _json(whole),
            "sent_s": _json(now_s),
            "head": _json(self.head),
            "nodes": f"[{','.join(map(_json, nodes))}]",
            "jobs": f"[{','.join(jobs)}]",
            "gone": _json(sorted(known - self.listed)),
        }
        return "{" + ",".join(f'"{name}":{part}' for name, part in parts.items()) + "}"


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
    _events: deque[tuple[int, str | None, Message]] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))
    _reads: int = 0
    _behind: bool = False  # there are more events than were read
    _after: int = -1  # id of the last event read; -1: none yet
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _encoding: threading.Lock = field(default_factory=threading.Lock)
    _changed: asyncio.Event | None = None
    _task: asyncio.Task[None] | None = None
    _views: dict[str | None, _View] = field(default_factory=dict)

    async def subscribe(
        self, tenant: str | None, *, resume: int = 0, authorized: Callable[[], Any] | None = None
    ) -> AsyncIterator[list[Message]]:
        """Yield the snapshot and recent events, then changes, for an operator (``None``) or a tenant.

        Those that are there together come together: a message of its own for each of a thousand events costs seconds.

        Parameters
        ----------
        resume
            Id of the last event received before; later events are sent first, if they are still kept.
        authorized
            Coroutine function that is called every few seconds; the stream ends when it returns false.
        """
        self._begin()
        seen, last, checked_s = _NOTHING, resume, time.monotonic()
        try:
            while True:
                changed = self._changed
                assert changed is not None
                sent, messages = self._sent, []
                if sent is not None and sent.number > seen.number:
                    data, seen = await asyncio.to_thread(self._changes_since, sent, seen, tenant)
                    messages.append(Message("board", data))
                events = [event for event in tuple(self._events) if event[0] > last]  # the other thread adds some
                messages += [message for _, owner, message in events if tenant in (None, owner)]
                last = events[-1][0] if events else last
                if messages:
                    yield messages
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
            with self._encoding:
                self._views.clear()
        self._reads += 1
        if self._after < 0:
            self._after = last_event(self.database, back=EVENTS_AT_FIRST)
        elif not (fresh or self._behind) and self._reads % 8:
            return False  # events arrive with ticks, or soon after
        events = new_events(self.database, self._after, limit=_AT_ONCE)
        self._behind = len(events) == _AT_ONCE  # who listens gets these before others are read
        if events:
            self._events.extend((e["id"], e["tenant"], Message("event", _json(e), e["id"])) for e in events)
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
        jobs = {
            n: old if (old := old_jobs.get(n)) is not None and _same(old.job, job) else _Job.of(number, job)
            for n, job in parts_of(snapshot.jobs).items()
        }
        whole_since = number if before is None or nodes.keys() != old_nodes.keys() else before.whole_since
        return _SentSnapshot(number, _head(snapshot), nodes, jobs, whole_since)

    def _changes_since(self, sent: _SentSnapshot, seen: _Seen, tenant: str | None) -> tuple[str, _Seen]:
        """Return the JSON of what has changed for *tenant* since it has *seen* something, and what it has seen then."""
        with self._encoding:  # subscribers that come together wait for the first of them
            view = self._views.get(tenant)
            if view is None or view.snapshot is not sent:
                view = self._views[tenant] = sent.seen_by(tenant)
            if (text := view.texts.get(seen.number)) is None:
                text = view.texts[seen.number] = view.since(seen, self.clock())
            return text, _Seen(sent.number, view.listed)


def _same(old: SnapshotJob | Part, new: SnapshotJob | Part) -> bool:
    return old is new or old == new


def _head(snapshot: Snapshot) -> dict[str, Any]:
    parts = (
        "time_s", "mode", "engine", "healthy", "trouble", "role", "power_w", "busy_gpus", "total_gpus", "running",
        "waiting", "tick_s", "ticks",
    )  # fmt: skip
    return {part: getattr(snapshot, part) for part in parts} | {
        "saved": None if snapshot.saved is None else dict(snapshot.saved)
    }


def _json(value: Any) -> str:  # noqa: ANN401
    return to_json(value, inf_nan_mode="null").decode()  # infinity and NaN are unknown


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return
