"""Sends requests; sends them again where that is safe; turns refusals into errors."""

from __future__ import annotations

import ipaddress
import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from commonwatt import __version__
from commonwatt.client.settings import Settings
from commonwatt.model.errors import InputError, MissingExtraError, ServiceError
from commonwatt.model.live_results import Problem

if TYPE_CHECKING:
    import httpx

__all__ = ["Link"]

M = TypeVar("M", bound=BaseModel)

_PREFIX = "/api/v1"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0


class Link:
    """A connection to one server. Safe to use from several threads.

    Parameters
    ----------
    timeout_s
        Longest time without a sign of the server.
    retries
        Times a request is sent again that failed for a reason that may pass.
    transport
        What httpx sends by; for tests.
    """

    def __init__(
        self, settings: Settings, *, timeout_s: float, retries: int, transport: Any = None,  # noqa: ANN401
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        try:
            import httpx
        except ImportError as error:
            raise MissingExtraError("httpx", "live") from error
        self._httpx, self._retries, self._sleep = httpx, retries, sleep
        self.url = settings.url
        headers = {"User-Agent": f"commonwatt/{__version__}", "Accept": "application/json"}
        if settings.token is not None:
            headers["Authorization"] = f"Bearer {settings.token}"
        self._http = httpx.Client(
            headers=headers, timeout=timeout_s, transport=transport, follow_redirects=False,
            trust_env=not _here(settings.url),
        )  # fmt: skip

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def ask(
        self, model: type[M], method: str, path: str, *, params: Mapping[str, Any] | None = None, body: Any = None,  # noqa: ANN401
        headers: Mapping[str, str] | None = None, again: bool = True,
    ) -> M:  # fmt: skip
        """Send a request and return its answer as *model*.

        With *again*, it is sent once more if it is not known whether it arrived: only for what may be done twice.
        """
        response = self.send(method, path, params=params, body=body, headers=headers, again=again)
        try:
            return model.model_validate_json(response.content)
        except ValidationError:
            msg = f"what answers at {self.url} is no commonwatt of this version (to {method} {path})"
            raise ServiceError(msg, response.status_code) from None

    def send(
        self, method: str, path: str, *, params: Mapping[str, Any] | None = None, body: Any = None,  # noqa: ANN401
        headers: Mapping[str, str] | None = None, again: bool = True,
    ) -> httpx.Response:  # fmt: skip
        """Send a request and return the answer. Raises ``InputError``, or ``ServiceError``, if it is refused."""
        known = {name: value for name, value in (params or {}).items() if value is not None}
        content = None if body is None else json.dumps(body)
        sent = dict(headers or {}) | ({} if body is None else {"Content-Type": "application/json"})
        for attempt in range(self._retries + 1):
            last = attempt == self._retries
            pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0**attempt)
            try:
                response = self._http.request(method, self.url + _PREFIX + path, params=known, content=content,
                                              headers=sent)  # fmt: skip
            except self._httpx.TransportError as error:
                before = isinstance(error, self._httpx.ConnectError | self._httpx.ConnectTimeout)
                if last or not (again or before):
                    raise self._unreachable(error, arrived=not before) from None
            except (self._httpx.InvalidURL, UnicodeError):
                raise InputError("an address such as http://127.0.0.1:8470", field="url", value=self.url) from None
            else:
                if last or not (response.status_code == 429 or (again and response.status_code == 503)):
                    return self._judged(response)
                pause_s = max(pause_s, _retry_after_s(response))
            self._sleep(min(pause_s, _LONGEST_PAUSE_S))
        raise AssertionError  # the last attempt returns or raises

    def _unreachable(self, error: Exception, *, arrived: bool) -> ServiceError:
        cause = " ".join(str(error).split()) or type(error).__name__
        doubt = "; it is not known whether the request was carried out" if arrived else ""
        return ServiceError(f"cannot reach {self.url}: {cause}{doubt}")

    def _judged(self, response: httpx.Response) -> httpx.Response:
        if response.is_success:
            return response
        try:
            problem = Problem.model_validate_json(response.content)
        except ValidationError:
            msg = f"{self.url} answers with status {response.status_code}; it may be no commonwatt"
            raise ServiceError(msg, response.status_code) from None
        if problem.status in {400, 422} and problem.expected is not None:
            raise InputError(problem.expected, field=problem.field, value=problem.value)
        raise ServiceError(problem.detail, problem.status)


def _retry_after_s(response: httpx.Response) -> float:
    text = response.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0.0


def _here(url: str) -> bool:
    """Whether *url* is of this machine: no proxy then."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
