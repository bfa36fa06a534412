"""Connections of the server: how many there are, and how long a client may take for a handshake, a request, an answer.

The descriptors of a process are shared by its API, its controller and its database. Without limits, clients that send a
byte now and then would take them all, and no job could start.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import ssl
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from commonwatt.model.live import ServerSpec

__all__ = ["ACCEPTED_AT_ONCE", "AcceptErrors", "Connections", "limits_of"]

_log = logging.getLogger("commonwatt.service")

ACCEPTED_AT_ONCE = 32
"""Connections that are accepted before any of them is counted."""

_SHARE = 2  # of all descriptors, half may be connections
_SAY_S = 60.0
_GOODBYE_S = 5.0
_PEER = struct.Struct("3i")  # process, user, group (SO_PEERCRED)
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 5\r\ncontent-type: text/plain\r\n"
    b"content-length: 22\r\n\r\ntoo many connections\r\n"
)
_TOO_SLOW = (
    b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-type: text/plain\r\n"
    b"content-length: 36\r\n\r\nthe request did not arrive in time\r\n"
)


@dataclass(eq=False)
class Connections:
    """All open connections of a server, used by one event loop.

    At *most* connections, the one that has waited longest for a whole request makes room for a new one; if all are at
    work, the new one is refused. Clients that send what they have to say at once are not affected by slow ones.

    Attributes
    ----------
    most
        Largest number of connections.
    head_s, body_s
        Longest time for the head of a request, from its first byte or from the connection, and for its body.
    write_s
        Longest time for which a client may leave an answer unread.
    tls
        Returns the context of a new TCP connection; ``None``: no TLS. Its handshake counts as waiting, and may take
        *head_s*. Unix sockets need none.
    """

    most: int
    head_s: float = 10.0
    body_s: float = 35.0
    write_s: float = 60.0
    clock: Callable[[], float] = time.monotonic
    tls: Callable[[], ssl.SSLContext] | None = None
    _open: set[_Connection] = field(default_factory=set)
    _waiting: dict[_Connection, None] = field(default_factory=dict)  # for a head, those that wait longest first
    _closed: dict[str, int] = field(default_factory=dict)  # since it was logged last
    _said_s: float = -_SAY_S

    def __len__(self) -> int:
        return len(self._open)

    def protocol(self, *arguments: Any, **more: Any) -> _Connection:  # noqa: ANN401
        """Return the protocol of a new connection (uvicorn's option `http`)."""
        return _Connection(self, *arguments, **more)

    async def watch(self, every_s: float = 1.0) -> None:
        """Close connections that exceed their time, until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            now_s = self.clock()
            for one in [one for one in self._open if one.overdue(now_s)]:
                self._count("too slow")
                one.expire()
            self._say(now_s)

    def drop_handshakes(self) -> None:
        """Close connections whose handshake is not over."""
        for one in [one for one in self._open if one.shaking]:
            one.expire()

    def admit(self, one: _Connection) -> bool:
        """Count a new connection; returns whether there is room for it."""
        if len(self._open) >= self.most:
            longest = next(iter(self._waiting), None)
            if longest is None:
                self._count("refused")
                return False
            self._count("made room")
            self.leave(longest)
            longest.transport.abort()
        self._open.add(one)
        self.wait(one)
        return True

    def wait(self, one: _Connection) -> None:
        """Count a connection as waiting for a request from now on."""
        self._waiting.pop(one, None)
        self._waiting[one] = None

    def work(self, one: _Connection) -> None:
        """Count a connection as at work: it is not closed to make room."""
        self._waiting.pop(one, None)

    def leave(self, one: _Connection) -> None:
        """Forget a connection that has ended."""
        self._open.discard(one)
        self._waiting.pop(one, None)

    def _count(self, why: str) -> None:
        self._closed[why] = self._closed.get(why, 0) + 1

    def _say(self, now_s: float) -> None:
        """Log what was closed, once a minute at most."""
        if self._closed and now_s >= self._said_s + _SAY_S:
            counts = {why.replace(" ", "_"): count for why, count in sorted(self._closed.items())}
            _log.warning("connections were closed", extra={"open": len(self._open), "most": self.most, **counts})
            self._closed, self._said_s = {}, now_s


class _Connection(H11Protocol):
    """A connection that is counted, with a time limit for each part of a request."""

    def __init__(self, connections: Connections, *arguments: Any, **more: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **more)
        self._all = connections
        self._part: tuple[str, object] = ("", None)
        self._since_s = connections.clock()  # of the part
        self._unread_s: float | None = None
        self._closing_s: float | None = None
        self._early: list[bytes] = []
        self._hands: asyncio.Task[None] | None = None

    @property
    def shaking(self) -> bool:
        """Whether its handshake is not over."""
        return self._part[0] == "handshake"

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        made = transport.get_extra_info("socket")
        local = made is not None and made.family == socket.AF_UNIX
        shakes = self._all.tls is not None and not local
        if not self._all.admit(self):
            transport.write(b"" if shakes else _TOO_MANY)
            transport.close()
            return
        if shakes:
            self._part = ("handshake", None)
            transport.pause_reading()
            self._hands = self.loop.create_task(self._shake(transport))
            return
        if local:
            _, uid, _ = _PEER.unpack(made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            self.app_state = {**self.app_state, "peer_uid": uid}  # of who connected, for every request on it
        super().connection_made(transport)
        self._look()

    async def _shake(self, transport: asyncio.Transport) -> None:
        """Encrypt the connection, then begin with what came in the meantime."""
        limits = self._all
        assert limits.tls is not None
        secure: asyncio.Transport | None = None
        try:
            secure = await self.loop.start_tls(
                transport, self, limits.tls(), server_side=True, ssl_handshake_timeout=limits.head_s,
                ssl_shutdown_timeout=_GOODBYE_S,
            )  # fmt: skip
        except OSError:  # a client that speaks no TLS, trusts nobody, has no certificate, or is gone
            pass
        finally:
            if secure is None:
                limits.leave(self)
                transport.abort()
        if secure is None:
            return
        self.transport = secure
        early, self._early = b"".join(self._early), []
        super().connection_made(secure)
        self._look()
        if early:
            self.data_received(early)

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.leave(self)
        if self.flow is not None:  # it was admitted
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.shaking:  # it came with the end of the handshake
            self._early.append(data)
            return
        if self.flow is None or self.transport.is_closing():
            return
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        self._unread_s = self._all.clock()
        if self.flow is not None:
            super().pause_writing()

    def resume_writing(self) -> None:
        self._unread_s = None
        if self.flow is not None:
            super().resume_writing()

    def _look(self) -> None:
        """Note which part of which request the client is to send, and since when."""
        theirs = self.conn.their_state
        if theirs is h11.IDLE:
            name = "idle" if self.cycle is not None and not self.conn.trailing_data[0] else "head"
        else:
            name = "body" if theirs is h11.SEND_BODY else "answer"
        part = (name, self.cycle)
        if part == self._part:
            return
        self._part, self._since_s = part, self._all.clock()
        if name in {"idle", "head"}:
            self._all.wait(self)
        else:
            self._all.work(self)

    def overdue(self, now_s: float) -> bool:
        """Whether the client has exceeded the time of what it does at *now_s*."""
        limits = self._all
        if self.transport.is_closing():
            self._closing_s = now_s if self._closing_s is None else self._closing_s
            return now_s > self._closing_s + limits.write_s
        if self._unread_s is not None and now_s > self._unread_s + limits.write_s:
            return True
        longest_s = {"handshake": limits.head_s, "head": limits.head_s, "body": limits.body_s}.get(self._part[0])
        return longest_s is not None and now_s > self._since_s + longest_s

    def expire(self) -> None:
        """Close it, with a reason if the client has sent part of a head; it counts until it is closed."""
        if self._part[0] == "head" and self.conn.trailing_data[0] and not self.transport.is_closing():
            self.transport.write(_TOO_SLOW)
            self.transport.close()
        else:
            self._all.leave(self)
            self.transport.abort()


def limits_of(server: ServerSpec) -> Connections:
    """Return the limits of a server: at most half of the descriptors this process may have are connections."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = server.connections
    if descriptors != resource.RLIM_INFINITY:
        most = max(1, min(most, descriptors // _SHARE))
    return Connections(most, head_s=server.head_limit_s)


class AcceptErrors:
    """Logs connections that cannot be accepted, once a minute: an event loop reports each attempt, with a traceback."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._said_s, self._unsaid = clock, -_SAY_S, 0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an error of *loop*; any other goes on to its default handler."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _EXHAUSTED and "socket" in context):
            loop.default_exception_handler(context)
            return
        self._unsaid += 1
        if self._clock() >= self._said_s + _SAY_S:
            _log.error("connections cannot be accepted", extra={"cause": error.strerror, "times": self._unsaid})
            self._said_s, self._unsaid = self._clock(), 0
