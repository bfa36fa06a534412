"""The front of a live fleet's services: one address for all of them, which passes requests on to replicas.

``python -m commonwatt.serving.replica_front FOLDER`` reads ``routes.json`` there, and again whenever it changes, and
writes where it listens to ``front.json``. It speaks the Open Inference Protocol v2 over REST as far as models go:
``/v2/models/SERVICE/...`` goes to the replica of that service with the fewest requests in progress for its part of a
GPU. Where the routes have a key, requests need it; health does not. The front outlives the controller, which sizes
replicas by what it counts.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commonwatt.data.files import write_atomic
from commonwatt.model.errors import InputError
from commonwatt.model.histogram import FINE_BOUNDS_S, Histogram
from commonwatt.serving import Foreign, import_extra
from commonwatt.serving.frontend import VERSION
from commonwatt.serving.rest import HttpAnswer, json_answer
from commonwatt.serving.server import listening

__all__ = ["COUNTS", "ReplicaFront", "ServiceCounts", "run_front"]

COUNTS = "/v2/commonwatt/services"
"""Where the front tells what it has counted."""
TIMEOUT_S = 60.0
"""Longest time a replica may take to answer."""
LARGEST_BYTES = 64_000_000
_GONE = ("connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding", "host", "authorization")


_UNKNOWN = json_answer({"error": "expected the key of services, as Authorization: Bearer KEY"}, 401,
                       {"WWW-Authenticate": "Bearer"})  # fmt: skip


@dataclass
class ServiceCounts:
    """Requests of one service since the front began.

    *late* are those later than the target, and those that no replica has answered.
    """

    requests: int = 0
    served: int = 0
    late: int = 0
    unanswered: int = 0
    latency: Histogram = field(default_factory=lambda: Histogram(FINE_BOUNDS_S))

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "requests": self.requests, "served": self.served, "late": self.late, "unanswered": self.unanswered,
            "latency_s": self.latency.sum, "buckets": self.latency.counts,
        }  # fmt: skip


@dataclass
class _Replica:
    """A model server that has a service."""

    address: str
    key: str
    milli: int
    in_progress: int = 0


class ReplicaFront:
    """Passes requests on, and counts them.

    Parameters
    ----------
    routes
        The file with services, their latency targets and replicas.
    client
        An ``httpx.AsyncClient``.
    """

    def __init__(self, routes: Path, client: Foreign) -> None:
        self._path, self._client = routes, client
        self._seen: tuple[int, int] = (-1, -1)
        self._replicas: dict[str, list[_Replica]] = {}
        self._latency_s: dict[str, float] = {}
        self._key: str | None = None
        self.counts: dict[str, ServiceCounts] = {}
        self.began_s = time.time()

    def look(self) -> None:
        """Read the routes if they have changed; those there were stay if they cannot be read."""
        try:
            stat = self._path.stat()
            if (stat.st_mtime_ns, stat.st_ino) == self._seen:
                return
            document: Mapping[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        self._seen = (stat.st_mtime_ns, stat.st_ino)
        before = {(name, r.address): r for name, own in self._replicas.items() for r in own}
        self._replicas, self._latency_s, self._key = {}, {}, document.get("key")
        for name, service in document["services"].items():
            self._latency_s[name] = float(service["latency_s"])
            self.counts.setdefault(name, ServiceCounts())
            self._replicas[name] = []
            for row in service["replicas"]:
                replica = before.get((name, row["address"])) or _Replica(row["address"], row["key"], row["milli"])
                replica.key, replica.milli = row["key"], row["milli"]
                self._replicas[name].append(replica)

    async def answer(self, request: Foreign) -> HttpAnswer:
        """Answer a request to a service: by a replica, or by an error if there is none."""
        began_s = time.perf_counter()
        self.look()
        if not self._may_ask(request):
            return _UNKNOWN
        name = request.path_params["service"]
        version = request.path_params.get("version", VERSION)
        if name not in self._replicas or version != VERSION:
            return json_answer({"error": f"unknown model {name[:100]!r} of version {version[:100]!r}"}, 404)
        counted = request.method == "POST"
        body = await _body(request)
        if body is None:
            return json_answer({"error": f"expected at most {LARGEST_BYTES} bytes"}, 413)
        reply = await self._passed_on(name, request, body)
        if counted:
            self._count(name, reply.status, time.perf_counter() - began_s)
        return reply

    async def _passed_on(self, name: str, request: Foreign, body: bytes) -> HttpAnswer:
        """Return the answer of a replica; another one is tried if one is not there, or does not have the model."""
        headers = {key: value for key, value in request.headers.items() if key not in _GONE}
        path = f"/v2/models/{name}{'/infer' if request.method == 'POST' else _tail(request.url.path)}"
        tried: list[str] = []
        last = json_answer({"error": f"no replica of {name} is ready"}, 503, {"Retry-After": "1"})
        while own := [r for r in self._replicas.get(name, ()) if r.address not in tried]:
            replica = min(own, key=lambda r: ((r.in_progress + 1) / max(1, r.milli), r.address))
            tried.append(replica.address)
            replica.in_progress += 1
            try:
                reply = await self._client.request(
                    request.method, f"http://{replica.address}{path}", content=body,
                    headers={**headers, "authorization": f"Bearer {replica.key}"},
                )  # fmt: skip
            except import_extra("httpx").HTTPError as error:
                last = json_answer({"error": f"a replica of {name} does not answer: {type(error).__name__}"}, 502)
                continue
            finally:
                replica.in_progress -= 1
            kept = {key: value for key, value in reply.headers.items() if key.lower() not in (*_GONE, "content-type")}
            kind = reply.headers.get("content-type", "application/json")
            last = HttpAnswer(reply.status_code, reply.content, kind, kept)
            if reply.status_code not in (401, 503) and not _not_ready(reply):
                break
        return last

    def _count(self, name: str, status: int, took_s: float) -> None:
        counts = self.counts[name]
        counts.requests += 1
        if status < 400:
            counts.served += 1
            counts.latency.observe(took_s)
            counts.late += took_s > self._latency_s.get(name, 0.0)
        elif status >= 500 or status in (401, 429):
            counts.unanswered += 1
            counts.late += 1

    def _may_ask(self, request: Foreign) -> bool:
        """Whether a request has the key, where one is asked for."""
        if self._key is None:
            return True
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._key.encode())

    async def counted(self, request: Foreign) -> HttpAnswer:
        """Return the counts of all services."""
        self.look()
        if not self._may_ask(request):
            return _UNKNOWN
        ready = {name: len(own) for name, own in self._replicas.items()}
        services = {name: {**counts.document(), "ready": ready.get(name, 0)} for name, counts in self.counts.items()}
        return json_answer({"began_s": self.began_s, "services": services})

    async def health(self, request: Foreign) -> HttpAnswer:
        """Return whether the front is there, or whether each service has a replica."""
        self.look()
        if request.url.path.endswith("/live"):
            return json_answer({"live": True})
        ready = all(self._replicas.values())
        return json_answer({"ready": ready}, 200 if ready else 503)

    def application(self) -> Foreign:
        """Return the ASGI application."""
        applications, routing = import_extra("starlette.applications"), import_extra("starlette.routing")
        routes = [
            routing.Route(COUNTS, self.counted, methods=["GET"]),
            routing.Route("/v2/health/live", self.health, methods=["GET"]),
            routing.Route("/v2/health/ready", self.health, methods=["GET"]),
        ]
        for model in ("/v2/models/{service}", "/v2/models/{service}/versions/{version}"):
            routes += [routing.Route(model + end, self.answer, methods=["GET"]) for end in ("", "/ready")]
            routes.append(routing.Route(model + "/infer", self.answer, methods=["POST"]))
        return applications.Starlette(routes=routes)


def _tail(path: str) -> str:
    return "/ready" if path.endswith("/ready") else ""


def _not_ready(reply: Foreign) -> bool:
    """Whether a replica has just been given up: its model is not loaded (any more)."""
    return reply.status_code == 400 and b"is not ready" in reply.content[:300]


async def _body(request: Foreign) -> bytes | None:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > LARGEST_BYTES:
            return None
        parts.append(part)
    return b"".join(parts)


async def run_front(folder: Path, host: str, port: int) -> None:
    """Serve until SIGTERM; raises ``InputError`` if the port is in use."""
    httpx, uvicorn = import_extra("httpx"), import_extra("uvicorn")
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits, trust_env=False) as client:
        front = ReplicaFront(folder / "routes.json", client)
        front.look()
        config = uvicorn.Config(
            front.application(), log_level="warning", access_log=False, lifespan="off", ws="none",
            proxy_headers=False, server_header=False, timeout_keep_alive=75, timeout_graceful_shutdown=5,
        )  # fmt: skip
        listener = listening(host, port)
        address = {"host": host, "port": listener.getsockname()[1], "pid": os.getpid()}
        write_atomic(folder / "front.json", json.dumps(address))
        await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    try:
        asyncio.run(run_front(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
    except InputError as error:
        sys.exit(str(error))
