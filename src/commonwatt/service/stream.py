"""``/stream``: server-sent events for the dashboard and whoever else wants to know at once.

Messages: ``hello`` (who the token belongs to), ``board`` (first all of it, then what changed, after each tick) and
``event`` (a line of the event log; its id can be resumed after with ``Last-Event-ID``). Comments in between say that
the connection is alive.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

from commonwatt import __version__
from commonwatt.service.feed import Feed, Message
from commonwatt.service.guard import Caller, Guard, Member
from commonwatt.service.parameters import PREFIX, desk_of
from commonwatt.service.problems import problem

__all__ = ["HEARTBEAT_S", "router"]

router = APIRouter(prefix=PREFIX, include_in_schema=False)

HEARTBEAT_S = 5
MOST_LISTENERS = 200
MOST_OF_A_TOKEN = 10
STALLED_S = 60
"""A listener that takes nothing for so long is hung up on."""


class _Listening(EventSourceResponse):
    """A stream that is counted while it lasts, and refused where too many are open; *open_of* counts them by token."""

    open_of: Counter[int]
    token: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refused()
        if refused is not None:
            await refused(scope, receive, send)
            return
        self.open_of[self.token] += 1  # nothing was awaited since it was looked at
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.open_of[self.token] -= 1

    def _refused(self) -> Response | None:
        later = {"Retry-After": "30"}
        if self.open_of[self.token] >= MOST_OF_A_TOKEN:
            detail = f"this token has {MOST_OF_A_TOKEN} streams open already; close one, or try again later"
            return problem(429, detail, headers=later)
        if self.open_of.total() >= MOST_LISTENERS:
            return problem(503, f"{MOST_LISTENERS} listen already; try again later", headers=later)
        return None


@router.get("/stream")
async def stream(
    request: Request, caller: Member, last_event_id: Annotated[str | None, Header(max_length=40)] = None
) -> EventSourceResponse:
    """Send the board after each tick, and each event; a tenant's own jobs only."""
    feed = _feed(request)
    resume = int(last_event_id) if last_event_id and last_event_id.isascii() and last_event_id.isdigit() else 0
    answer = _Listening(
        _messages(request, feed, caller, resume), ping=HEARTBEAT_S, send_timeout=STALLED_S,
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )  # fmt: skip
    answer.open_of, answer.token = request.app.state.streams, caller.owner.token
    return answer


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
