"""Parameters that several routes have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import Query, Request
from starlette.concurrency import run_in_threadpool

from commonwatt.service.desk import Desk
from commonwatt.service.recent import Recent

__all__ = [
    "FEW",
    "PREFIX",
    "After",
    "Before",
    "Limit",
    "NewestFirst",
    "TenantName",
    "desk_of",
    "looked_up",
    "recent_of",
]

T = TypeVar("T")

PREFIX = "/api/v1"
"""Where all resources are."""

FEW = 100
"""Rows of a file of SQLite that are read at once."""

After = Annotated[int, Query(ge=0, le=2**53 - 1, description="Where the page before ended; 0: begin.")]
Before = Annotated[int | None, Query(ge=0, le=2**53 - 1, description="Only those with a smaller number.")]
NewestFirst = Annotated[bool, Query(description="The newest first.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="Most entries of a page.")]
TenantName = Annotated[
    str | None, Query(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$", description="Name of a tenant.")
]


def desk_of(request: Request) -> Desk:
    """Return the desk of the application."""
    desk: Desk = request.app.state.desk
    return desk


def recent_of(request: Request) -> Recent:
    """Return what was found a moment ago."""
    recent: Recent = request.app.state.recent
    return recent


async def looked_up(request: Request, find: Callable[[], T], *, rows: int = 1) -> T:
    """Return what *find* reads: about so many *rows*, found by an index.

    A few from a file come sooner than another thread would get its turn, and reading it waits for nobody; a server of
    databases may be slow to answer, and must not hold up other requests.
    """
    if rows <= FEW and desk_of(request).store.database.backend == "sqlite":
        return find()
    return await run_in_threadpool(find)
