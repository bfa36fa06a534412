"""Parameters that several routes have."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request

from commonwatt.service.desk import Desk

__all__ = ["PREFIX", "After", "Limit", "TenantName", "desk_of"]

PREFIX = "/api/v1"
"""Where all resources are."""

After = Annotated[int, Query(ge=0, le=2**53 - 1, description="Where the page before ended; 0: begin.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="Most entries of a page.")]
TenantName = Annotated[
    str | None, Query(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$", description="Name of a tenant.")
]


def desk_of(request: Request) -> Desk:
    """Return the desk of the application."""
    desk: Desk = request.app.state.desk
    return desk
