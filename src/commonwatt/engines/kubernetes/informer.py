"""Lists and watches objects of the API in one thread, so that nobody has to poll for them."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import random
import select
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from commonwatt.engines.kubernetes.api import KubernetesApi, RefusedByServerError, lines_of
from commonwatt.model.errors import EngineDownError, EngineError

__all__ = ["Informer", "Watched"]

log = logging.getLogger("commonwatt.kubernetes")

_T = TypeVar("_T")

_PAGE, _MOST_GONE = 500, 10_000
_WATCH_S = 60  # after which a watch is asked for again: a connection that broke in silence is found out
_QUIET_S = 2.0  # how long a watch may be interrupted before the server counts as not answering
_SHORT_S = 1.0  # a watch that ends sooner is not asked for again at once
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_SYNC_S = 5.0  # how long to wait for the first lists
_PULSE_S, _STALL_S = 0.5, 3.0  # a thread that was silent for the latter was frozen, and has missed changes
_CATCH_UP_S = 5.0  # how long it may take to hear of them


@dataclass
class Watched(Generic[_T]):
    """Objects of one kind: where they are, how they are read, and those there are now, by uid.

    ``version`` grows with every change, ``at`` is the server's version up to which all is known. *trouble* says why
    they cannot be watched, since *since_s*. ``gone`` has the last state of those that were deleted, if *keep* says so.
    ``unread`` are those whose present state cannot be read: they stay as they were last known, if they were.
    """

    path: str
    read: Callable[[Mapping[str, Any]], _T]
    params: Mapping[str, str] = field(default_factory=dict)
    items: dict[str, _T] = field(default_factory=dict)
    keep: Callable[[_T], bool] = lambda _: False
    version: int = 0
    at: str = ""
    gone: dict[str, _T] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)
    synced: bool = False
    trouble: EngineError | None = None
    steady_s: float = -1e18  # since when it is watched without trouble
    since_s: float = field(default_factory=time.monotonic)

    @property
    def steady(self) -> bool:
        """Whether it is watched; what is known stays so for a moment after it is not."""
        return self.trouble is None


class Informer:
    """Keeps all *watched* up to date from when it is started until it is stopped.

    A list is read in pages; a watch goes on from where the list, or the watch before, has ended. If the server does not
    have that any more (410 Gone), everything is listed again. Each is over a connection of its own.
    """

    def __init__(self, api: KubernetesApi, *watched: Watched[Any]) -> None:
        self._api, self._watched = api, watched
        self._changed = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        """Readable when something has changed; ``rest`` clears it."""
        self.lists, self.began_s = 0, time.monotonic()
        self._pulse_s, self._thawed_s = _clock_s(), -math.inf
        self._thread = threading.Thread(target=self._run, name="commonwatt-informer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close the connections."""
        with self._changed:
            self._changed.wait_for(lambda: self._loop is not None or not self._thread.is_alive(), _SYNC_S)
            loop, tasks = self._loop, list(self._tasks)
        if loop is not None:
            with suppress(RuntimeError):  # it has ended just now
                for task in tasks:  # once: a second time would break off the closing of connections
                    loop.call_soon_threadsafe(task.cancel)
        self._thread.join(_SYNC_S)
        with self._changed:  # a thread that lives on writes no more: the number may be that of another file then
            numbers, self.woken, self._waker = (self.woken, self._waker), -1, -1
            for number in numbers:
                with suppress(OSError):
                    os.close(number)

    @property
    def awake(self) -> bool:
        """Whether the process was not frozen a moment ago (SIGSTOP, a suspended machine).

        If it was, what has changed meanwhile is not heard at once.
        """
        now_s = _clock_s()
        return now_s < self._pulse_s + _STALL_S and now_s >= self._thawed_s + _CATCH_UP_S

    def rest(self) -> None:
        """Clear the pipe."""
        with suppress(OSError):
            while os.read(self.woken, 4096):
                pass

    def await_change(self, seconds: float) -> None:
        """Wait until something changes, at most so long, and clear the pipe."""
        poll = select.poll()
        poll.register(self.woken, select.POLLIN)
        poll.poll(1000 * seconds)
        self.rest()

    def look(self, watched: Watched[_T]) -> dict[str, _T]:
        """Return the objects there are.

        Raises ``EngineError`` if they are not known, or the server cannot be watched for longer than a moment.
        """
        with self._changed:
            self._await_list(watched)
            return dict(watched.items)

    def find(self, watched: Watched[_T], uid: str) -> _T | None:
        """Return the object of a *uid*, ``None`` if there is none; raises ``EngineError`` as ``look`` does."""
        with self._changed:
            self._await_list(watched)
            return watched.items.get(uid)

    def _await_list(self, watched: Watched[Any]) -> None:
        left_s = self.began_s + _SYNC_S - time.monotonic()  # once: who looks later does not wait for what hangs
        if left_s > 0:
            self._changed.wait_for(lambda: watched.synced or self._lost(watched) is not None, left_s)
        if (trouble := self._lost(watched)) is not None:
            raise trouble
        if not watched.synced:
            msg = f"the API server {self._api.access.server} has not listed {watched.path} yet"
            raise EngineDownError(msg)

    @staticmethod
    def _lost(watched: Watched[Any]) -> EngineError | None:
        """Return why the objects are not known any more, if they are not."""
        patience_s = _QUIET_S if watched.synced else 0.5
        return watched.trouble if time.monotonic() > watched.since_s + patience_s else None

    def put(self, watched: Watched[_T], uid: str, item: _T) -> None:
        """Take note of an object that an answer has shown, before the watch does; one that is known stays."""
        with self._changed:
            if uid not in watched.items and uid not in watched.gone:
                watched.items[uid] = item
                watched.version += 1

    def _run(self) -> None:
        why = "it was stopped"
        try:
            asyncio.run(self._follow_all())
        except asyncio.CancelledError:
            pass
        except Exception as error:
            why = repr(error)
            log.exception("the API server is not watched any more")
        with self._changed:
            for each in self._watched:  # who looks from now on is told
                each.trouble, each.since_s = EngineDownError(f"{each.path} is not watched any more: {why}"), -math.inf
            self._tell()

    async def _follow_all(self) -> None:
        import httpx

        most = 2 * len(self._watched) + 10  # one for each, and those that are being closed: none waits for another
        options = {
            **self._api.options(), "timeout": httpx.Timeout(self._api.timeout_s, read=_WATCH_S + 15.0),
            "limits": httpx.Limits(max_connections=most, max_keepalive_connections=most),
        }  # fmt: skip
        async with httpx.AsyncClient(**options) as client, asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._follow(client, each)) for each in self._watched]
            tasks.append(group.create_task(self._pulse()))
            with self._changed:
                self._loop, self._tasks = asyncio.get_running_loop(), tasks
                self._changed.notify_all()

    async def _pulse(self) -> None:
        while True:
            now_s = _clock_s()
            if now_s >= self._pulse_s + _STALL_S:
                self._thawed_s = now_s
            self._pulse_s = now_s
            await asyncio.sleep(_PULSE_S)

    async def _follow(self, client: Any, watched: Watched[Any]) -> None:  # noqa: ANN401
        pause_s, gone = _PAUSE_S, False
        while True:
            try:
                if not watched.at:
                    await self._list(client, watched)
                began_s = time.monotonic()
                await self._watch(client, watched)
                if time.monotonic() > began_s + _SHORT_S:
                    pause_s, gone = _PAUSE_S, False
                    continue
            except EngineError as error:
                if not isinstance(error, RefusedByServerError) or error.status != 410:
                    self._trouble(watched, error)
                else:
                    watched.at, first, gone = "", not gone, True
                    if first:
                        continue
            except Exception as error:  # whatever it is: the others go on, and who looks is told
                watched.at = ""
                msg = f"GET {watched.path}: its answer cannot be read: {error!r}"
                self._trouble(watched, EngineDownError(msg))
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    def _trouble(self, watched: Watched[Any], error: EngineError) -> None:
        with self._changed:
            if watched.trouble is None:
                watched.since_s = time.monotonic()
            watched.trouble = error
            self._tell()

    async def _list(self, client: Any, watched: Watched[Any]) -> None:  # noqa: ANN401
        records: dict[str, Any] = {}
        params = {**watched.params, "limit": str(_PAGE)}
        while True:
            with self._api.contact(watched.path):
                headers, limit_s = self._api.headers(), self._api.timeout_s
                answer = await client.get(watched.path, params=params, headers=headers, timeout=limit_s)
            self._api.check(answer, answer.content, f"GET {watched.path}")
            page = answer.json()
            for item in page.get("items") or ():
                uid, record = self._read(watched, item)
                if record is not None:
                    records[uid] = record
            if not (more := page["metadata"].get("continue")):
                break
            params = {**params, "continue": more}
        with self._changed:
            if watched.trouble is not None:
                watched.steady_s = time.monotonic()
            watched.items, watched.trouble = records, None
            watched.version += 1
            watched.at = str(page["metadata"]["resourceVersion"])
            self.lists += 1
            self._tell()

    async def _watch(self, client: Any, watched: Watched[Any]) -> None:  # noqa: ANN401
        """Follow changes until the watch ends."""
        params = {
            **watched.params, "watch": "1", "allowWatchBookmarks": "true", "resourceVersion": watched.at,
            "timeoutSeconds": str(_WATCH_S),
        }  # fmt: skip
        with self._api.contact(watched.path):
            async with client.stream("GET", watched.path, params=params, headers=self._api.headers()) as answer:
                if answer.status_code >= 400:
                    self._api.check(answer, await answer.aread(), f"GET {watched.path}")
                with self._changed:
                    if watched.trouble is not None:
                        watched.trouble, watched.steady_s = None, time.monotonic()
                    watched.synced = True  # who may list and not watch would know what was, and no more
                    self._changed.notify_all()
                async for line in lines_of(answer.aiter_bytes()):
                    if line.strip():
                        self._take(watched, json.loads(line.decode(errors="replace")))

    def _take(self, watched: Watched[Any], event: Mapping[str, Any]) -> None:
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            code = int(item.get("code") or 500)
            message = f"GET {watched.path}: {item.get('message', 'the watch failed')}"
            if code >= 500:
                raise EngineDownError(message)
            raise RefusedByServerError(code, str(item.get("reason", "")), message)
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            uid, record = self._read(watched, item)
            with self._changed:
                if kind == "DELETED":
                    self._remove(watched, uid, record)
                elif watched.items.get(uid) != record:  # a heartbeat of a node changes nothing
                    watched.items[uid] = record
                    watched.version += 1
                    self._tell()
        watched.at = str(item["metadata"]["resourceVersion"])

    @staticmethod
    def _read(watched: Watched[_T], item: Mapping[str, Any]) -> tuple[str, _T | None]:
        """Return the uid of an object and its record; where it cannot be read, the last one, ``None`` without one."""
        uid = ""
        try:
            uid = str(item["metadata"]["uid"])
            record = watched.read(item)
        except Exception as error:  # whatever it is, others do not depend on it
            if uid not in watched.unread:
                extra = {"path": watched.path, "uid": uid, "cause": repr(error)}
                log.warning("an object cannot be read, and stays as it was last known", extra=extra)
            watched.unread.add(uid)
            return uid, watched.items.get(uid)
        watched.unread.discard(uid)
        return uid, record

    def _remove(self, watched: Watched[Any], uid: str, record: object) -> None:
        watched.items.pop(uid, None)
        watched.unread.discard(uid)
        if record is not None and watched.keep(record):
            watched.gone[uid] = record
            while len(watched.gone) > _MOST_GONE:
                del watched.gone[next(iter(watched.gone))]
        watched.version += 1
        self._tell()

    def _tell(self) -> None:
        self._changed.notify_all()
        if self._waker >= 0:
            with suppress(OSError):
                os.write(self._waker, b"!")


def _clock_s() -> float:
    """Time that goes on while the machine sleeps, seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
