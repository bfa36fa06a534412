"""``/healthz`` and ``/readyz``, for whatever watches the service; without a token."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from commonwatt import __version__
from commonwatt.model.errors import StoreError
from commonwatt.model.live_results import Health
from commonwatt.service.parameters import desk_of

__all__ = ["router"]

router = APIRouter(tags=["health"])

_FAILING: dict[int | str, dict[str, Any]] = {503: {"model": Health, "description": "Not now."}}


@router.get("/healthz", response_model=Health, responses=_FAILING)
async def healthz(request: Request, response: Response) -> Health:
    """Say whether the controller works."""
    return _told(response, good=desk_of(request).board().healthy)


@router.get("/readyz", response_model=Health, responses=_FAILING)
def readyz(request: Request, response: Response) -> Health:
    """Say whether jobs can be accepted: the database answers."""
    try:
        desk_of(request).store.setting("mode")
    except StoreError:
        return _told(response, good=False)
    return _told(response, good=True)


def _told(response: Response, *, good: bool) -> Health:
    response.status_code = 200 if good else 503
    return Health(status="ok" if good else "failing", version=__version__)
