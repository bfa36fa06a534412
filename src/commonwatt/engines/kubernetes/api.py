"""Requests to a Kubernetes API server: JSON over HTTP, each with a time limit and an error that says what failed."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from commonwatt.engines.kubernetes.access import Access
from commonwatt.model.errors import EngineDownError, EngineError, MissingExtraError

if TYPE_CHECKING:
    import httpx

__all__ = [
    "DENIED",
    "KubernetesApi",
    "NotYetAllowedError",
    "RefusedByServerError",
    "lines_of",
    "path_of",
    "send_all",
]


_Of = TypeVar("_Of")

_ROLES_S = 30.0
_DENIED = re.compile(r"cannot (?P<verb>\S+) resource \"(?P<resource>[^\"]+)\"")
_BUSY = frozenset({408, 429, 500, 502, 503, 504})
_WEBHOOK = re.compile("failed calling webhook|admission webhook .* denied")  # of some objects: the server is there
_AGAIN = frozenset({429, 503})  # the server did not execute it
_MOST_BYTES = 64 * 2**20  # of one event
_CORE = "/api/v1/"  # what is asked beside it may be an extension that is down, or hangs, while the server is there


class RefusedByServerError(EngineError):
    """The API server refused a request: *status* is that of HTTP, *reason* Kubernetes' word for it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status, self.reason = status, reason
        super().__init__(message)


class NotYetAllowedError(EngineDownError):
    """A valid token may not do that, so soon after the server has answered first that its roles may not be loaded."""


DENIED = (RefusedByServerError, NotYetAllowedError)


def path_of(resource: str, namespace: str | None = None, name: str = "", *, group: str = "v1") -> str:
    """Return the path of a *resource* such as ``pods``; *group* is ``v1``, or as ``batch/v1``."""
    root = "/api/v1" if group == "v1" else f"/apis/{group}"
    within = "" if namespace is None else f"/namespaces/{quote(namespace, safe='')}"
    of = f"/{quote(name, safe='')}" if name else ""
    return f"{root}{within}/{resource}{of}"


class KubernetesApi:
    """One API server.

    Parameters
    ----------
    access
        Its address and credentials.
    timeout_s
        Longest time without an answer.
    roles_s
        How long a server that has just come up may deny what it will allow, as its roles are not loaded.
    guard
        Called before each request that changes something; raises where this process may not act.
    transport
        Transport of httpx; for tests.
    """

    def __init__(
        self, access: Access, *, timeout_s: float = 10.0, roles_s: float = _ROLES_S,
        guard: Callable[[], None] = lambda: None, transport: httpx.MockTransport | None = None,
    ) -> None:  # fmt: skip
        try:
            import httpx
        except ImportError as error:
            raise MissingExtraError("httpx", "live") from error
        self.access, self.timeout_s, self._guard, self._transport = access, timeout_s, guard, transport
        self._httpx, self._roles_s = httpx, roles_s
        self._client = httpx.Client(**self.options())
        self._came_up_s: float | None = None  # when it answered for the first time after it had not
        self._lock = threading.Lock()
        self.calls: dict[str, int] = {}
        """Number of requests by verb, watches aside."""

    def options(self) -> dict[str, Any]:
        """Return the options of a client of this server."""
        return {
            "base_url": self.access.server, "verify": self.access.context, "timeout": self.timeout_s,
            "trust_env": False, "proxy": self.access.proxy, "transport": self._transport,
        }  # fmt: skip

    def headers(self, *, renew: bool = False) -> dict[str, str]:
        """Return the headers of a request; raises ``EngineDownError`` if there are no credentials."""
        token = self.access.bearer(renew=renew)
        return {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}

    def close(self) -> None:
        """Close connections."""
        self._client.close()

    def check_may_act(self) -> None:
        """Raise where this process may change nothing, here or by other means: another controller has taken over."""
        self._guard()

    def ready(self) -> bool:
        """Whether the server says that it is ready, its etcd included: what failed before is then down by itself."""
        try:
            with self.contact(_CORE):
                return self._client.get("/readyz", headers=self.headers()).status_code < 500
        except EngineDownError:
            return False

    def get(self, path: str, **params: str) -> dict[str, Any]:
        """Return what is at *path*."""
        return self.ask("GET", path, params=params)

    def create(self, path: str, body: Mapping[str, Any], **params: str) -> dict[str, Any]:
        """Create *body*; returns it as the server has it."""
        return self.ask("POST", path, body, params=params)

    def create_once(self, path: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """Create *body*, again where there was no answer; ``None``: there is one of its name already, perhaps ours."""
        try:
            try:
                return self.create(path, body)
            except EngineDownError:
                return self.create(path, body)
        except RefusedByServerError as error:
            if error.status != 409:
                raise
            return None

    def bind_once(self, path: str, node: str, meta: Mapping[str, Any]) -> bool:
        """Place the pod at *path*, whose name and what else is to be so *meta* says; returns whether it was not yet."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "target": target, "metadata": dict(meta)}
        return self.create_once(f"{path}/binding", body) is not None

    def delete(self, path: str, uid: str, grace_s: int | None = None) -> None:
        """Delete the object of this *uid*; one that is gone, or another of that name, is no error."""
        options: dict[str, Any] = {"preconditions": {"uid": uid}}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            self.ask("DELETE", path, options)
        except RefusedByServerError as error:
            if error.status not in (404, 409):
                raise

    def merge(self, path: str, body: Mapping[str, Any], **params: str) -> dict[str, Any]:
        """Change fields of an object (JSON merge patch)."""
        return self.ask("PATCH", path, body, params=params, kind="application/merge-patch+json")

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, params: Mapping[str, str] | None = None,
        kind: str = "application/json",
    ) -> dict[str, Any]:  # fmt: skip
        """Return the answer to a request.

        A server that says that it was too busy to begin is asked once more.

        Raises
        ------
        EngineDownError
            If it does not answer, cannot at the moment, or does not accept the credentials. The request may have been
            executed.
        RefusedByServerError
            If it refuses the request.
        """
        content = None if body is None else json.dumps(body).encode()
        for attempt in (0, 1):
            if method != "GET":
                self._guard()
            with self.contact(path):
                answer = self._client.request(
                    method, path, params=params, content=content,
                    headers={**self.headers(renew=attempt > 0), "Content-Type": kind},
                )  # fmt: skip
            with self._lock:
                self.calls[method] = self.calls.get(method, 0) + 1
            if attempt or answer.status_code not in (*_AGAIN, 401):
                break
            if answer.status_code in _AGAIN:
                said = answer.headers.get("Retry-After", "0.2")
                time.sleep(min(1.0, float(said)) if said.replace(".", "", 1).isdecimal() else 1.0)
        self.check(answer, answer.content, f"{method} {path}")
        try:
            document = answer.json()
        except ValueError as error:
            msg = f"{method} {path}: its answer cannot be read: {answer.text[:80]!r}"
            raise EngineDownError(msg) from error
        return document if isinstance(document, dict) else {}

    @contextmanager
    def contact(self, path: str) -> Iterator[None]:
        """Turn a failure to reach the server into ``EngineDownError``, and take note of it."""
        try:
            yield
        except (self._httpx.HTTPError, OSError) as error:
            if path.startswith(_CORE):
                self._came_up_s = None
            msg = f"the API server {self.access.server} does not answer: {str(error) or type(error).__name__}"
            raise EngineDownError(msg) from error
        if self._came_up_s is None:
            self._came_up_s = time.monotonic()

    def check(self, answer: httpx.Response, content: bytes, what: str) -> None:
        """Raise the error that *answer*, with this *content*, is; nothing if it is none."""
        code = answer.status_code
        if code < 400:
            return
        reason, message = _status(content)
        message = f"{what}: {message or answer.reason_phrase} (HTTP {code})"
        if code in _BUSY and not _WEBHOOK.search(message):
            if code == 503 and f" {_CORE}" in what:
                self._came_up_s = None
            raise EngineDownError(message)
        if code == 401:
            msg = f"the API server {self.access.server} does not accept the credentials: {message}"
            raise EngineDownError(msg)
        denied = _DENIED.search(message) if code == 403 else None
        up_s = self._came_up_s
        if denied is not None and (up_s is None or time.monotonic() < up_s + self._roles_s):
            msg = f"not allowed (yet) to {denied['verb']} {denied['resource']}: {message}"
            raise NotYetAllowedError(msg)
        if denied is not None:
            message = f"not allowed to {denied['verb']} {denied['resource']}; a Role has to grant it: {message}"
        raise RefusedByServerError(code, reason, message)


async def lines_of(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield what is between newlines, and nothing else: strings of users may have other characters that end lines."""
    parts: list[bytes] = []
    size = 0
    async for chunk in chunks:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            yield b"".join((*parts, end))
            parts, size = [], 0
        parts.append(rest)
        if (size := size + len(rest)) > _MOST_BYTES:
            msg = f"an event of more than {_MOST_BYTES >> 20} MiB"
            raise ValueError(msg)
    yield b"".join(parts)


def send_all(due: Iterable[tuple[_Of, Callable[[], object]]], at_once: int) -> Iterator[tuple[_Of, EngineError]]:
    """Make requests, so many at once, each for something; yields for what one was refused, and why."""
    with ThreadPoolExecutor(at_once) as pool:
        sent = [(of, pool.submit(request)) for of, request in due]
    for of, future in sent:
        try:
            future.result()
        except EngineError as error:
            yield of, error


def _status(content: bytes) -> tuple[str, str]:
    """Return the reason and the message of an answer that is an error."""
    try:
        document = json.loads(content)
        return str(document.get("reason") or ""), " ".join(str(document.get("message") or "").split())[:600]
    except (ValueError, AttributeError):
        return "", " ".join(content[:200].decode(errors="replace").split())
