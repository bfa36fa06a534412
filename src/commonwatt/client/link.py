"""Connection of a client: its settings, requests (repeated where that is safe), and refusals as errors."""

from __future__ import annotations

import json
import os
import re
import ssl
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from commonwatt import __version__
from commonwatt.data.files import load_yaml
from commonwatt.model.errors import InputError, MissingExtraError, ServiceError
from commonwatt.model.fields import FileModel, quantity
from commonwatt.model.live_results import ProblemDetail
from commonwatt.model.names import is_loopback

if TYPE_CHECKING:
    import httpx

__all__ = ["ClientFile", "ClientSettings", "Link", "find_settings"]

M = TypeVar("M", bound=BaseModel)

_PREFIX = "/api/v1"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0


class Link:
    """A connection to one server. Safe to use from several threads.

    Parameters
    ----------
    timeout_s
        Longest time without data from the server.
    retries
        Number of times a request is repeated after a failure that may be temporary.
    transport
        Transport of httpx; for tests.
    """

    def __init__(
        self, settings: ClientSettings, *, timeout_s: float, retries: int, transport: Any = None,  # noqa: ANN401
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        try:
            import httpx
        except ImportError as error:
            raise MissingExtraError("httpx", "live") from error
        self._httpx, self._retries, self._sleep = httpx, retries, sleep
        self._urls, self._at = (settings.url, *settings.others), 0
        headers = {"User-Agent": f"commonwatt/{__version__}", "Accept": "application/json"}
        if settings.token is not None:
            headers["Authorization"] = f"Bearer {settings.token}"
        self._http = httpx.Client(
            headers=headers, timeout=timeout_s, transport=transport, follow_redirects=False,
            trust_env=not all(is_loopback(urlsplit(url).hostname) for url in self._urls),
            verify=True if settings.ca_file is None else _trusting(settings.ca_file),
        )  # fmt: skip

    @property
    def url(self) -> str:
        """URL of the server that is asked now."""
        return self._urls[self._at % len(self._urls)]

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def ask(
        self, model: type[M], method: str, path: str, *, params: Mapping[str, Any] | None = None, body: Any = None,  # noqa: ANN401
        headers: Mapping[str, str] | None = None, again: bool = True,
    ) -> M:  # fmt: skip
        """Send a request and return the response as *model*.

        With *again*, the request is repeated if it may have arrived: only for requests that may be carried out twice.
        Of several servers, the next one is asked where one cannot be reached.
        """
        response = self.send(method, path, params=params, body=body, headers=headers, again=again)
        try:
            return model.model_validate_json(response.content)
        except ValidationError:
            msg = f"the server at {self.url} is not a commonwatt of this version (response to {method} {path})"
            raise ServiceError(msg, response.status_code) from None

    def send(
        self, method: str, path: str, *, params: Mapping[str, Any] | None = None, body: Any = None,  # noqa: ANN401
        headers: Mapping[str, str] | None = None, again: bool = True,
    ) -> httpx.Response:  # fmt: skip
        """Send a request and return the response. Raises ``InputError`` or ``ServiceError`` if it is refused."""
        given = {name: value for name, value in (params or {}).items() if value is not None}
        content = None if body is None else json.dumps(body)
        sent = dict(headers or {}) | ({} if body is None else {"Content-Type": "application/json"})
        for attempt in range(self._retries + 1):
            last = attempt == self._retries
            pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0**attempt)
            try:
                response = self._http.request(method, self.url + _PREFIX + path, params=given, content=content,
                                              headers=sent)  # fmt: skip
            except self._httpx.TransportError as error:
                before = isinstance(error, self._httpx.ConnectError | self._httpx.ConnectTimeout)
                if last or not (again or before):
                    raise self._unreachable(error, arrived=not before) from None
                self._at += 1
                if self._at % len(self._urls):
                    pause_s = 0.0
            except (self._httpx.InvalidURL, UnicodeError):
                raise InputError("a URL such as http://127.0.0.1:8470", field="url", value=self.url) from None
            else:
                if last or not (response.status_code == 429 or (again and response.status_code == 503)):
                    return self._checked(response)
                pause_s = max(pause_s, _retry_after_s(response))
            self._sleep(min(pause_s, _LONGEST_PAUSE_S))
        raise AssertionError  # the last attempt returns or raises

    def _unreachable(self, error: Exception, *, arrived: bool) -> ServiceError:
        cause = " ".join(str(error).split()) or type(error).__name__
        doubt = "; the request may have been carried out" if arrived else ""
        return ServiceError(f"cannot reach {self.url}: {cause}{doubt}")

    def _checked(self, response: httpx.Response) -> httpx.Response:
        if response.is_success:
            return response
        try:
            problem = ProblemDetail.model_validate_json(response.content)
        except ValidationError:
            msg = f"{self.url} answers with status {response.status_code}; it is probably not a commonwatt server"
            raise ServiceError(msg, response.status_code) from None
        if problem.status in {400, 422} and problem.expected is not None:
            raise InputError(problem.expected, field=problem.field, value=problem.value)
        raise ServiceError(problem.detail, problem.status)


def _trusting(path: Path) -> ssl.SSLContext:
    """Return a context that trusts the authorities in the PEM file *path* alone."""
    try:
        return ssl.create_default_context(cafile=str(path))
    except (OSError, ssl.SSLError) as error:
        raise InputError(
            f"a PEM file of certificates ({error.strerror or error})", field="ca_file", value=path
        ) from None


def _retry_after_s(response: httpx.Response) -> float:
    text = response.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0.0


DEFAULT_URL = "http://127.0.0.1:8470"
_TOKEN = re.compile(r"[!-~]{1,200}")


class ClientFile(FileModel):
    """``~/.config/commonwatt/client.yaml``."""

    url: str | None = quantity("URL of the server; several, with commas between, where it has standbys", "-", None)
    token: str | None = quantity("token", "-", None)
    ca_file: str | None = quantity(
        "PEM file of the authority that signed the server's certificate; absent: the usual authorities", "-", None
    )


@dataclass(frozen=True)
class ClientSettings:
    """URL and token of the server, and the URLs of others that may answer in its place, such as standbys.

    ``ca_file`` names the authorities to trust in place of the usual ones.
    """

    url: str
    token: str | None
    others: tuple[str, ...] = ()
    ca_file: Path | None = None

    def __repr__(self) -> str:
        return f"ClientSettings(url={self.url!r}, token={'***' if self.token else None})"


def find_settings(
    url: str | None = None, token: str | None = None, environment: Mapping[str, str] | None = None
) -> ClientSettings:
    """Return URL and token: the arguments, else ``COMMONWATT_URL`` and ``COMMONWATT_TOKEN``, else those in the file.

    ``COMMONWATT_CA_FILE``, else the file, names the authorities to trust.

    Several URLs, with commas between, are of one control plane and its standbys. Raises ``InputError`` on an invalid
    URL or token, and on a file that others can read.
    """
    env = os.environ if environment is None else environment
    url = url or env.get("COMMONWATT_URL") or None
    token = token or env.get("COMMONWATT_TOKEN") or None
    ca_file = env.get("COMMONWATT_CA_FILE") or None
    if url is None or token is None:
        file = _read(Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME") or "~").expanduser() / ".config"))
        if url is None or url == file.url:  # a token is sent only to the server it is listed with
            url, token, ca_file = url or file.url, token or file.token, ca_file or file.ca_file
    first, *others = (_checked(part.strip()) for part in (url or DEFAULT_URL).split(","))
    return ClientSettings(first, _checked_token(token), tuple(others), None if ca_file is None else Path(ca_file))


def _read(folder: Path) -> ClientFile:
    path = folder / "commonwatt" / "client.yaml"
    try:
        mode = path.stat().st_mode
    except OSError:
        return ClientFile()
    if stat.S_IMODE(mode) & 0o077:
        raise InputError(
            f"a file that only you can read (chmod 600 {path})", file=path, value=f"{stat.S_IMODE(mode):o}"
        )
    return load_yaml(path, ClientFile)


def _checked(url: str) -> str:
    expected = "a URL such as http://127.0.0.1:8470"
    try:
        parts = urlsplit(url)
        good = parts.scheme in {"http", "https"} and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment or not url.isprintable() or " " in url:
        raise InputError(expected, field="url", value=url)
    if parts.username is not None:
        raise InputError(expected, field="url")
    return url.rstrip("/")


def _checked_token(token: str | None) -> str | None:
    if token is not None and not _TOKEN.fullmatch(token):
        raise InputError("a token as it was shown when it was created", field="token")
    return token
