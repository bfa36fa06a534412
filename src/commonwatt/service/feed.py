"""What all listeners of ``/stream`` hear: the board whenever it has changed, and events.

One loop looks at the board and the store, for as long as somebody listens. Nothing is queued for a listener: it
remembers the number of the last view it was sent, and is sent what has changed since. A slow one therefore misses
views in between, but never a change, and holds nobody up.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, fields
from typing import Any

from pydantic_core import to_json

from commonwatt.live.board import Board, BoardJob, BoardNode, why_of
from commonwatt.model.errors import StoreError
from commonwatt.store.database import Database
from commonwatt.store.watch import last_event, new_events, outlines

__all__ = ["Feed", "Message"]

EVENTS_AT_FIRST = 100
EVENTS_KEPT = 2000
GONE_KEPT = 20_000
ASK_AGAIN_S = 5.0
_NODE = tuple(part.name for part in fields(BoardNode))
_JOB = tuple(part.name for part in fields(BoardJob))
_WHY = ("reason", "sentence")
_log = logging.getLogger("commonwatt.service")


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the stream: its event name, its JSON (one line), its id if it can be resumed after."""

    event: str
    data: str
    id: int | None = None

    def written(self) -> bytes:
        """Return it as server-sent events are written."""
        number = "" if self.id is None else f"id: {self.id}\r\n"
        return f"{number}event: {self.event}\r\ndata: {self.data}\r\n\r\n".encode()


@dataclass(frozen=True)
class _View:
    """The board at one look, as it is sent. ``changed`` holds the number of the view an entry last changed in."""

    number: int
    head: dict[str, Any]
    nodes: dict[str, tuple[int, BoardNode]]
    jobs: dict[int, tuple[int, BoardJob, dict[str, Any]]]
    gone: tuple[tuple[int, int, str], ...] = ()  # number of the view without it, job, its tenant
    whole_since: int = 0  # views older than this are followed by everything


@dataclass
class Feed:
    """The looks at one board.

    Parameters
    ----------
    board
        Returns the board after the controller's last tick.
    database
        The store.
    poll_s
        Time between looks.
    """

    board: Callable[[], Board]
    database: Database
    poll_s: float = 0.25
    clock: Callable[[], float] = time.time
    listeners: int = 0
    _view: _View | None = None
    _seen: Board | None = None
    _events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))
    _looks: int = 0
    _after: int = -1  # id of the last event read; -1: none was read yet
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _news: asyncio.Event | None = None
    _task: asyncio.Task[None] | None = None
    _written: dict[tuple[str | None, int], tuple[int, str]] = field(default_factory=dict)

    async def listen(
        self, tenant: str | None, *, resume: int = 0, still: Callable[[], Any] | None = None
    ) -> AsyncIterator[Message]:
        """Yield the board and events, then what changes, for an operator (``None``) or a tenant.

        Parameters
        ----------
        resume
            Id of the last event heard before; those after it are sent first, if they are still kept.
        still
            Coroutine function asked every few seconds whether to go on.
        """
        self._begin()
        seen, told, asked_s = 0, resume, time.monotonic()
        try:
            while True:
                news = self._news
                assert news is not None
                view = self._view
                if view is not None and view.number > seen:
                    yield Message("board", await asyncio.to_thread(self._board_since, view, seen, tenant))
                    seen = view.number
                for event in [event for event in self._events if event["id"] > told]:
                    told = event["id"]
                    if tenant is None or event["tenant"] == tenant:
                        yield Message("event", _json(event), told)
                if still is not None and time.monotonic() - asked_s > ASK_AGAIN_S:
                    if not await still():
                        return
                    asked_s = time.monotonic()
                if news is self._news:
                    await _or_later(news, ASK_AGAIN_S)
        finally:
            self._end()

    def _begin(self) -> None:
        self.listeners += 1
        if self._task is None or self._task.done():
            self._news = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._look_on())

    def _end(self) -> None:
        self.listeners -= 1
        if not self.listeners and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _look_on(self) -> None:
        """Look at the board until nobody listens any more."""
        while True:
            try:
                if await asyncio.to_thread(self._look):
                    news, self._news = self._news, asyncio.Event()
                    assert news is not None
                    news.set()
            except StoreError as error:
                _log.warning("the stream cannot read the store: %s", error)
            except Exception:
                _log.exception("looking at the board failed")
            await asyncio.sleep(self.poll_s)

    def _look(self) -> bool:
        """Look once; whether there was anything new."""
        with self._lock:  # a look of a loop that was ended may not be over yet
            return self._looked()

    def _looked(self) -> bool:
        board, view = self.board(), self._view
        fresh = board is not self._seen
        if fresh:
            self._view, self._seen = self._next(board, view), board
            self._written.clear()
        self._looks += 1
        if self._after < 0:
            self._after = last_event(self.database, back=EVENTS_AT_FIRST)
        elif not fresh and self._looks % 8:
            return False  # events come with ticks, or soon after
        while events := new_events(self.database, self._after):
            self._events.extend(events)
            self._after = events[-1]["id"]
            fresh = True
        return fresh

    def _next(self, board: Board, before: _View | None) -> _View:
        number = 1 if before is None else before.number + 1
        old_nodes, old_jobs = ({}, {}) if before is None else (before.nodes, before.jobs)
        nodes = {}
        for node in board.nodes:
            known = old_nodes.get(node.name)
            nodes[node.name] = known if known is not None and known[1] == node else (number, node)
        unknown = [job.id for job in board.jobs.values() if _turned(old_jobs.get(job.id), job)]
        found = outlines(self.database, unknown)
        jobs = {}
        for job in board.jobs.values():
            old = old_jobs.get(job.id)
            if old is not None and job.id not in found and old[1] == job:
                jobs[job.id] = old
            elif (outline := found.get(job.id) or (old and old[2])) is not None:
                jobs[job.id] = (number, job, outline)
        gone = () if before is None else before.gone
        gone += tuple((number, job, old[2]["tenant"]) for job, old in old_jobs.items() if job not in jobs)
        whole_since = number if before is None or nodes.keys() != old_nodes.keys() else before.whole_since
        if len(gone) > GONE_KEPT:
            whole_since, gone = max(whole_since, gone[-GONE_KEPT][0]), gone[-GONE_KEPT:]
        return _View(number, _head(board), nodes, jobs, gone, whole_since)

    def _board_since(self, view: _View, seen: int, tenant: str | None) -> str:
        key = (tenant, seen)
        written = self._written.get(key)
        if written is None or written[0] != view.number:
            written = (view.number, _since(view, seen, tenant, self.clock()))
            self._written[key] = written
        return written[1]


def _turned(old: tuple[int, BoardJob, dict[str, Any]] | None, job: BoardJob) -> bool:
    """Whether what the store says of a job has to be read (again)."""
    if old is None:
        return True
    known = old[1]
    if job.status == "running" and known.sentence != job.sentence:
        return True  # it may have been started anew in the same place
    return (known.status, known.held, known.nodes, known.gpus) != (job.status, job.held, job.nodes, job.gpus)


def _since(view: _View, seen: int, tenant: str | None, now_s: float) -> str:
    """Return the JSON of what changed after view *seen*, of what *tenant* may see.

    It is put together from small parts, so that other threads get their turn meanwhile.
    """
    whole = seen < view.whole_since
    since = 0 if whole else seen

    def own(job: int) -> bool:
        return tenant is None or (job in view.jobs and view.jobs[job][2]["tenant"] == tenant)

    nodes = (
        {name: getattr(node, name) for name in _NODE} | {"jobs": [job for job in node.jobs if own(job)]}
        for number, node in view.nodes.values()
        if number > since
    )
    jobs = (
        outline | {name: getattr(job, name) for name in _JOB} | dict(zip(_WHY, why_of(job), strict=True))
        for number, job, outline in view.jobs.values()
        if number > since and (tenant is None or outline["tenant"] == tenant)
    )
    gone = [
        job
        for number, job, of in view.gone
        if not whole and number > since and tenant in (None, of) and job not in view.jobs
    ]
    parts = {
        "whole": _json(whole),
        "sent_s": _json(now_s),
        "head": _json(view.head if tenant is None else view.head | _own_head(view, tenant)),
        "nodes": f"[{','.join(map(_json, nodes))}]",
        "jobs": f"[{','.join(map(_json, jobs))}]",
        "gone": _json(gone),
    }
    return "{" + ",".join(f'"{name}":{part}' for name, part in parts.items()) + "}"


def _own_head(view: _View, tenant: str) -> dict[str, Any]:
    """Return what of the numbers is different for a tenant: its own jobs are counted."""
    own = [job.status for _, job, outline in view.jobs.values() if outline["tenant"] == tenant]
    return {"trouble": None, "saved": None} | {status: own.count(status) for status in ("running", "waiting")}


def _head(board: Board) -> dict[str, Any]:
    parts = (
        "time_s", "mode", "engine", "healthy", "trouble", "power_w", "busy_gpus", "total_gpus", "running", "waiting",
        "tick_s", "ticks",
    )  # fmt: skip
    return {part: getattr(board, part) for part in parts} | {
        "saved": None if board.saved is None else dict(board.saved)
    }


_encoder = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def _json(value: Any) -> str:  # noqa: ANN401
    try:
        return _encoder.encode(value)
    except ValueError:  # infinite or no number: unknown
        return to_json(value, inf_nan_mode="null").decode()


async def _or_later(news: asyncio.Event, timeout_s: float) -> None:
    try:
        await asyncio.wait_for(news.wait(), timeout_s)
    except TimeoutError:
        return
