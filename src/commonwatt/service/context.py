"""The process that the service runs in, parameters that several routes share, and the cache of slow queries."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import Query, Request, Response
from pydantic_core import to_json
from starlette.concurrency import run_in_threadpool

from commonwatt.controlplane.feed import TickCounts
from commonwatt.controlplane.jobs import JobMaker
from commonwatt.controlplane.snapshot import Snapshot
from commonwatt.controlplane.state import output_of, state_of
from commonwatt.model.scenario import Scenario
from commonwatt.store.api_store import ApiStore

__all__ = [
    "FEW",
    "PREFIX",
    "After",
    "AnswerCache",
    "Before",
    "Limit",
    "NewestFirst",
    "ServiceContext",
    "TenantName",
    "TtlCache",
    "answers_of",
    "cache_of",
    "context_of",
    "encoded",
    "json_response",
    "run_query",
    "unchanged",
]


@dataclass(frozen=True)
class ServiceContext:
    """The store and the controller, as the service uses them. Safe to use from several threads.

    Attributes
    ----------
    config, folder
        The configuration, and the folder of its file.
    snapshot
        Returns the cluster after the controller's last tick.
    wake
        Lets the controller handle new requests at once.
    counts
        Returns the controller's counters.
    alive
        Returns whether the controller goes on, whatever its engine and its database do.
    """

    config: Scenario
    folder: Path
    store: ApiStore
    maker: JobMaker
    snapshot: Callable[[], Snapshot]
    wake: Callable[[], None]
    counts: Callable[[], TickCounts] = TickCounts
    alive: Callable[[], bool] = lambda: True

    def job_log(self, job: int, attempt: int, last_bytes: int) -> bytes | None:
        """Return the end of the output of a job's run; ``None`` if it is not on this machine."""
        part = self._job_log(job, attempt, lambda size: max(0, size - last_bytes), last_bytes)
        return None if part is None else part[0]

    def job_log_after(self, job: int, attempt: int, after: int, most_bytes: int) -> tuple[bytes, int] | None:
        """Return the output of a job's run from a byte on, and the byte after it; ``None`` as for ``job_log``.

        A character of which only a part has been written comes next time.
        """
        part = self._job_log(job, attempt, lambda size: min(after, size), most_bytes)
        if part is None:
            return None
        whole = _whole_characters(part[0])
        return whole, part[1] + len(whole)

    def _job_log(
        self, job: int, attempt: int, begin: Callable[[int], int], most_bytes: int
    ) -> tuple[bytes, int] | None:
        """Return at most so many bytes of a run's output from where *begin* says, given its size, and that place."""
        state = state_of(self.config, self.folder)
        if state is None:
            return None
        path, owner = output_of(state, job, attempt)
        try:
            number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        with os.fdopen(number, "rb") as file:
            seen = os.fstat(number)
            if not stat.S_ISREG(seen.st_mode):  # reading a pipe could block forever
                return None
            if owner not in (None, seen.st_uid):  # a second name of somebody else's file
                return None
            at = file.seek(begin(file.seek(0, os.SEEK_END)))
            return file.read(most_bytes), at


def _whole_characters(text: bytes) -> bytes:
    """Return *text* without the beginning of a character at its end."""
    for back in range(1, min(3, len(text)) + 1):
        lead = text[-back]
        if lead >= 0xC0:  # a first byte; more are to follow it than there are
            return text[:-back] if back < 2 + (lead >= 0xE0) + (lead >= 0xF0) else text
        if lead < 0x80:
            break
    return text


T = TypeVar("T")
_PROCESS = secrets.token_hex(8)
"""Ticks are counted anew in each process."""

PREFIX = "/api/v1"
"""Path of all resources."""

FEW = 100
"""Rows of an SQLite file that are read on the event loop."""

After = Annotated[int, Query(ge=0, le=2**53 - 1, description="Last number of the previous page; 0: the first page.")]
Before = Annotated[int | None, Query(ge=0, le=2**53 - 1, description="Only entries with a smaller number.")]
NewestFirst = Annotated[bool, Query(description="Newest entries first.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="Largest number of entries in the page.")]
TenantName = Annotated[
    str | None, Query(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$", description="Name of a tenant.")
]


def context_of(request: Request) -> ServiceContext:
    """Return the application's context."""
    context: ServiceContext = request.app.state.context
    return context


def answers_of(request: Request) -> AnswerCache:
    """Return the application's cache of large answers."""
    answers: AnswerCache = request.app.state.answers
    return answers


def cache_of(request: Request) -> TtlCache:
    """Return the application's cache of recent answers."""
    cache: TtlCache = request.app.state.cache
    return cache


async def run_query(request: Request, find: Callable[[], T], *, rows: int = 1) -> T:
    """Return the result of *find*, which reads about *rows* rows by an index.

    Reading a few rows of a file is faster than a switch to another thread. A database server may be slow to answer and
    must not block other requests.
    """
    if rows <= FEW and context_of(request).store.database.backend == "sqlite":
        return find()
    return await run_in_threadpool(find)


def json_response(document: object) -> Response:
    """Return a *document*, or what it was ``encoded`` to, as the answer of a route.

    Nothing is checked: it is for what was made here, in the form of the route's ``response_model``.
    """
    body = document if isinstance(document, bytes) else encoded(document)
    return Response(body, media_type="application/json")


def encoded(document: object) -> bytes:
    """Return a *document* as JSON, unknown numbers as null."""
    return to_json(document, inf_nan_mode="null")


def unchanged(request: Request, *parts: object) -> Response | str:
    """Return the ETag of what *parts* identify, or (304) the response for a caller that has it already."""
    digest = hashlib.sha256(json.dumps([_PROCESS, *parts], default=str).encode()).hexdigest()[:32]
    tag = f'W/"{digest}"'
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers={"ETag": tag})
    return tag


class AnswerCache:
    """Keeps the JSON of the *most* answers asked for last, by their ETag: it is made once for all who see the same."""

    def __init__(self, most: int = 16) -> None:
        self._most = most
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    async def response(self, tag: str, make: Callable[[], object]) -> Response:
        """Return the answer with this ETag, which *make* makes on a thread if it is not kept; callers share it."""
        if (body := self._kept.get(tag)) is None:
            body = await run_in_threadpool(self._made, tag, make)
        with suppress(KeyError):  # it may have made room for another one since
            self._kept.move_to_end(tag)
        return Response(body, media_type="application/json", headers={"ETag": tag})

    def _made(self, tag: str, make: Callable[[], object]) -> bytes:
        with self._lock:
            if (body := self._kept.get(tag)) is None:
                body = self._kept[tag] = encoded(make())
                if len(self._kept) > self._most:
                    self._kept.popitem(last=False)
            return body


class TtlCache:
    """Keeps results for *keep_s* seconds, at most *most* of them.

    Concurrent callers share one query. For *late_s* more they are given the result they had while it is asked for anew:
    nobody waits for what is asked for often. Use it from one event loop; ``change`` and ``forget`` from any thread.
    """

    def __init__(
        self, keep_s: float = 1.0, most: int = 1000, clock: Callable[[], float] = time.monotonic, late_s: float = 0.0
    ) -> None:
        self._keep_s, self._late_s, self._most, self._clock = keep_s, late_s, most, clock
        self._results: dict[Hashable, tuple[float, Any]] = {}
        self._pending: dict[Hashable, asyncio.Task[Any]] = {}
        self._lock = threading.Lock()  # of both

    async def get(self, key: Hashable, find: Callable[[], T]) -> T:
        """Return the kept result for *key*, or that of *find*, called on a thread."""
        kept = self._results.get(key)
        if kept is not None and self._clock() < kept[0] + self._keep_s:
            return kept[1]
        pending = self._pending.get(key)
        if pending is None:
            pending = asyncio.get_running_loop().create_task(self._query(key, find))
            pending.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be waiting
            self._pending[key] = pending
        if kept is not None and self._clock() < kept[0] + self._keep_s + self._late_s:
            return kept[1]
        return await asyncio.shield(pending)  # a caller that is cancelled leaves the query to the others

    async def _query(self, key: Hashable, find: Callable[[], T]) -> T:
        own = asyncio.current_task()
        try:
            result = await run_in_threadpool(find)
            with self._lock:
                if self._pending.get(key) is own:  # not forgotten meanwhile
                    if len(self._results) >= self._most:
                        self._results.clear()
                    self._results[key] = (self._clock(), result)
            return result
        finally:
            with self._lock:
                if self._pending.get(key) is own:
                    del self._pending[key]

    def change(self, key: Hashable, how: Callable[[Any], Any]) -> None:
        """Replace the kept result of *key* by *how* of it; a query in progress is not kept."""
        with self._lock:
            self._pending.pop(key, None)
            if key in self._results:
                since_s, result = self._results[key]
                self._results[key] = (since_s, how(result))

    def forget(self, *keys: Hashable) -> None:
        """Drop the results of *keys*, or all; a query in progress is not kept either."""
        with self._lock:
            for entries in (self._results, self._pending):
                for key in keys or tuple(entries):
                    entries.pop(key, None)
