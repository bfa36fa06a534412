"""What the service needs of the process it runs in, and parameters that several routes share."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from fastapi import Query, Request
from starlette.concurrency import run_in_threadpool

from commonwatt.controlplane.counters import TickCounts
from commonwatt.controlplane.jobs import JobMaker
from commonwatt.controlplane.snapshot import Snapshot
from commonwatt.model.scenario import Scenario
from commonwatt.service.ttl_cache import TtlCache
from commonwatt.store.api_store import ApiStore

__all__ = [
    "FEW",
    "PREFIX",
    "After",
    "Before",
    "Limit",
    "NewestFirst",
    "ServiceContext",
    "TenantName",
    "cache_of",
    "context_of",
    "run_query",
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
    """

    config: Scenario
    folder: Path
    store: ApiStore
    maker: JobMaker
    snapshot: Callable[[], Snapshot]
    wake: Callable[[], None]
    counts: Callable[[], TickCounts] = TickCounts

    def job_log(self, job: int, attempt: int, last_bytes: int) -> bytes | None:
        """Return the end of the output of a job's run; ``None`` if it is not on this machine."""
        live = self.config.live
        state = {"local": live.local.state, "slurm": live.slurm.state}.get(self.config.engine)
        if state is None:
            return None
        path = self.folder / state / "runs" / f"{job}-{attempt}" / "output.log"
        try:
            number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        with os.fdopen(number, "rb") as file:
            if not stat.S_ISREG(os.fstat(number).st_mode):  # reading a pipe could block forever
                return None
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - last_bytes))
            return file.read(last_bytes)


T = TypeVar("T")

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
