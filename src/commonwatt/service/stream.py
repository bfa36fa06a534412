"""``/stream``: server-sent events for the dashboard and whoever else wants to know at once.

Messages: ``hello`` (who the token belongs to), ``board`` (first all of it, then what changed, after each tick) and
``event`` (a line of the event log; its id can be resumed after with ``Last-Event-ID``). Comments in between say that
the connection is alive.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Request
from sse_starlette import EventSourceResponse

from commonwatt import __version__
from commonwatt.service.feed import Feed, Message
from commonwatt.service.guard import Caller, Guard, Member
from commonwatt.service.parameters import PREFIX, desk_of
from commonwatt.service.problems import Refusal

__all__ = ["HEARTBEAT_S", "router"]

router = APIRouter(prefix=PREFIX, include_in_schema=False)

HEARTBEAT_S = 5
MOST_LISTENERS = 200
STALLED_S = 60
"""A listener that takes nothing for so long is hung up on."""


@router.get("/stream")
async def stream(
    request: Request, caller: Member, last_event_id: Annotated[str | None, Header(max_length=40)] = None
) -> EventSourceResponse:
    """Send the board after each tick, and each event; a tenant's own jobs only."""
    feed = _feed(request)
    if feed.listeners >= MOST_LISTENERS:
        raise Refusal(503, f"{MOST_LISTENERS} listen already; try again later", headers={"Retry-After": "30"})
    resume = int(last_event_id) if last_event_id and last_event_id.isascii() and last_event_id.isdigit() else 0
    return EventSourceResponse(
        _messages(request, feed, caller, resume), ping=HEARTBEAT_S, send_timeout=STALLED_S,
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )  # fmt: skip


async def _messages(request: Request, feed: Feed, caller: Caller, resume: int) -> AsyncIterator[bytes]:
    desk, guard = desk_of(request), request.app.state.guard
    hello = {
        "operator": caller.operator, "tenant": caller.tenant, "label": caller.owner.label, "version": __version__,
        "currency": desk.config.electricity.currency, "heartbeat_s": HEARTBEAT_S,
    }  # fmt: skip
    yield Message("hello", json.dumps(hello)).written()
    token = request.headers["authorization"].partition(" ")[2].strip()

    async def still() -> bool:
        assert isinstance(guard, Guard)
        return await guard.owner(token) is not None

    async for message in feed.listen(caller.tenant, resume=resume, still=still):
        yield message.written()


def _feed(request: Request) -> Feed:
    state = request.app.state
    if not hasattr(state, "feed"):
        desk = desk_of(request)
        state.feed = Feed(desk.board, desk.store.database)
    feed: Feed = state.feed
    return feed
