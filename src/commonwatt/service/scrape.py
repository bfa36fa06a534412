"""``/metrics``, for Prometheus: with a token of an operator, or from this machine without one."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from commonwatt.service.guard import Watcher

__all__ = ["router"]

router = APIRouter(include_in_schema=False)


@router.get("/metrics", dependencies=[Watcher])
def metrics(request: Request) -> Response:
    """Return all metrics as text."""
    body, kind = request.app.state.metrics()
    return Response(body, headers={"Content-Type": kind, "Cache-Control": "no-store"})
