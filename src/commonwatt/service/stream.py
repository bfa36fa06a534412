"""``/stream``: server-sent events for the dashboard and other subscribers.

Messages: ``hello`` (the owner of the token), ``board`` (the whole snapshot, then its changes after each tick) and
``event`` (an entry of the event log; ``Last-Event-ID`` resumes after its id). Comments in between keep the connection
alive.
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
from commonwatt.model.errors import ServiceError
from commonwatt.service.auth import Authenticator, Caller, Member, UnknownError
from commonwatt.service.broadcaster import Broadcaster, Message
from commonwatt.service.context import PREFIX, context_of
from commonwatt.service.problems import problem

__all__ = ["HEARTBEAT_S", "router"]

router = APIRouter(prefix=PREFIX, include_in_schema=False)

HEARTBEAT_S = 5
MOST_SUBSCRIBERS = 200
MOST_OF_A_TOKEN = 10
STALLED_S = 60
"""The connection of a subscriber that reads nothing for so long is closed."""


class _Subscription(EventSourceResponse):
    """A stream that is refused while too many are open; *open_of* counts open streams by token."""

    open_of: Counter[str]
    token: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refused()
        if refused is not None:
            await refused(scope, receive, send)
            return
        self.open_of[self.token] += 1  # no other request ran since the check
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.open_of[self.token] -= 1

    def _refused(self) -> Response | None:
        later = {"Retry-After": "30"}
        if self.open_of[self.token] >= MOST_OF_A_TOKEN:
            detail = f"this token has {MOST_OF_A_TOKEN} open streams; close one, or try again later"
            return problem(429, detail, headers=later)
        if self.open_of.total() >= MOST_SUBSCRIBERS:
            return problem(503, f"{MOST_SUBSCRIBERS} streams are open; try again later", headers=later)
        return None


@router.get("/stream")
async def stream(
    request: Request, caller: Member, last_event_id: Annotated[str | None, Header(max_length=40)] = None
) -> EventSourceResponse:
    """Send the snapshot after each tick, and each event; a tenant receives its own jobs only."""
    broadcaster = _broadcaster(request)
    resume = int(last_event_id) if last_event_id and last_event_id.isascii() and last_event_id.isdigit() else 0
    answer = _Subscription(
        _messages(request, broadcaster, caller, resume), ping=HEARTBEAT_S, send_timeout=STALLED_S,
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )  # fmt: skip
    answer.open_of, answer.token = request.app.state.streams, caller.owner.key
    return answer


async def _messages(request: Request, broadcaster: Broadcaster, caller: Caller, resume: int) -> AsyncIterator[bytes]:
    context, authenticator = context_of(request), request.app.state.authenticator
    hello = {
        "operator": caller.operator, "tenant": caller.tenant, "label": caller.owner.label, "version": __version__,
        "currency": context.config.electricity.currency, "heartbeat_s": HEARTBEAT_S,
    }  # fmt: skip
    yield Message("hello", json.dumps(hello)).encoded()
    came_with = request.state.presented

    async def authorized() -> bool:
        assert isinstance(authenticator, Authenticator)
        try:
            await authenticator.identify(*came_with)
        except (UnknownError, ServiceError):
            return False
        return True

    async for messages in broadcaster.subscribe(caller.tenant, resume=resume, authorized=authorized):
        yield b"".join(message.encoded() for message in messages)


def _broadcaster(request: Request) -> Broadcaster:
    state = request.app.state
    if not hasattr(state, "broadcaster"):
        context = context_of(request)
        state.broadcaster = Broadcaster(context.snapshot, context.store.database)
    broadcaster: Broadcaster = state.broadcaster
    return broadcaster
