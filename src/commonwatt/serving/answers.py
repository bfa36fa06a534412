"""An answer over HTTP, and what errors look like as one."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from commonwatt.serving.optional import Foreign
from commonwatt.serving.refusals import Refusal

__all__ = ["Answer", "json_answer", "refusal_answer"]


@dataclass(frozen=True)
class Answer:
    """Status, body and headers; an ASGI application that sends them."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    async def __call__(self, scope: Foreign, receive: Foreign, send: Callable[[Any], Awaitable[None]]) -> None:  # noqa: ARG002
        """Send it."""
        headers = [(b"content-length", b"%d" % len(self.body)), (b"content-type", self.content_type.encode())]
        headers += [(name.lower().encode(), value.encode("latin-1")) for name, value in self.headers.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else self.body})

    def last(self) -> Answer:
        """Return the same answer as the last on its connection, so that a client does not lose another one there."""
        return replace(self, headers={**self.headers, "Connection": "close"})


def json_answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Return *value* as JSON."""
    return Answer(status, json.dumps(value).encode(), headers=headers or {})


def refusal_answer(refusal: Refusal) -> Answer:
    """Return the protocol's error body."""
    headers = {}
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(refusal.retry_after_s)
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return json_answer({"error": refusal.text}, refusal.status, headers)
