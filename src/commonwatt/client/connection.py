"""Connection of a client: its settings, requests (repeated where that is safe), and refusals as errors."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import ssl
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from commonwatt import __version__
from commonwatt.client.login import LoginFile
from commonwatt.data.files import load_yaml
from commonwatt.model.errors import InputError, MissingExtraError, ServiceError
from commonwatt.model.fields import FileModel, quantity
from commonwatt.model.live_results import ProblemDetail
from commonwatt.model.names import is_loopback

if TYPE_CHECKING:
    import httpx

__all__ = [
    "ClientFile", "ClientSettings", "Link", "find_settings", "is_exposed", "logins_of", "socket_of",
]  # fmt: skip

M = TypeVar("M", bound=BaseModel)

_log = logging.getLogger("commonwatt.client")

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
        self._settings = settings
        if settings.exposed:
            _log.warning("a token crosses the network unencrypted: %s (use https)", ", ".join(settings.exposed))
        headers = {"User-Agent": f"commonwatt/{__version__}", "Accept": "application/json"}
        if settings.tenant is not None:
            headers["Commonwatt-Tenant"] = settings.tenant
        sockets = {_base(url): httpx.HTTPTransport(uds=path) for url in self._urls if (path := socket_of(url))}
        self._http = httpx.Client(
            headers=headers, timeout=timeout_s, transport=transport, follow_redirects=False,
            trust_env=not all(is_loopback(urlsplit(url).hostname) or socket_of(url) for url in self._urls),
            verify=_trusting(settings.ca_file, settings.cert_file), mounts=sockets,
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
        token = None if path == "/login" else self._settings.bearer()  # one that has ended is no obstacle to another
        content = None if body is None else json.dumps(body)
        sent = dict(headers or {}) | ({} if body is None else {"Content-Type": "application/json"})
        sent |= {} if token is None else {"Authorization": f"Bearer {token}"}
        for attempt in range(self._retries + 1):
            last = attempt == self._retries
            pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0**attempt)
            try:
                response = self._http.request(method, _base(self.url) + _PREFIX + path, params=given, content=content,
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
        whose = "; --ca FILE names the authority of its certificate" if "CERTIFICATE_VERIFY_FAILED" in cause else ""
        return ServiceError(f"cannot reach {self.url}: {cause}{whose}{doubt}")

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


def _trusting(ca_file: Path | None, cert_file: Path | None) -> ssl.SSLContext | bool:
    """Return a context that trusts the authorities in the PEM file *ca_file* alone, and shows the client's certificate.

    Without either file, ``True``: the usual authorities.
    """
    if ca_file is None and cert_file is None:
        return True
    try:
        context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise InputError(
            f"a PEM file of certificates ({error.strerror or error})", field="ca_file", value=ca_file
        ) from None
    if cert_file is not None:
        try:
            context.load_cert_chain(cert_file, password=lambda: "")
        except (OSError, ssl.SSLError) as error:
            expected = f"a PEM file of a certificate and its key, without a passphrase ({error.strerror or error})"
            raise InputError(expected, field="cert_file", value=cert_file) from None
    return context


def socket_of(url: str) -> str | None:
    """Return the path of the Unix socket that *url* names; ``None`` for one of another kind."""
    return (url.removeprefix("unix:").removeprefix("//") or None) if url.startswith("unix:") else None


def _base(url: str) -> str:
    """Return what requests to *url* begin with: over a Unix socket, a name that stands for it."""
    path = socket_of(url)
    return url if path is None else f"http://{hashlib.sha256(path.encode()).hexdigest()[:16]}.localhost"


def _retry_after_s(response: httpx.Response) -> float:
    text = response.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0.0


DEFAULT_URL = "http://127.0.0.1:8470"
DEFAULT_SOCKET = Path("/run/commonwatt/commonwatt.sock")
_TOKEN = re.compile(r"[!-~]{1,16384}")


class ClientFile(FileModel):
    """``~/.config/commonwatt/client.yaml``."""

    url: str | None = quantity("URL of the server; several, with commas between, where it has standbys", "-", None)
    token: str | None = quantity("token", "-", None)
    ca_file: str | None = quantity(
        "PEM file of the authority that signed the server's certificate; absent: the usual authorities", "-", None
    )
    cert_file: str | None = quantity(
        "PEM file of a certificate and its key, for a server that asks for one; absent: none", "-", None
    )
    tenant: str | None = quantity("tenant to act as, for people with several; absent: the only one", "-", None)


@dataclass(frozen=True)
class ClientSettings:
    """URL and token of the server, and the URLs of others that may answer in its place, such as standbys.

    ``ca_file`` names the authorities to trust in place of the usual ones, ``cert_file`` a certificate of the client,
    ``tenant`` the one to act as. ``logins`` holds what ``commonwatt login`` got, which is used without a ``token``.
    """

    url: str
    token: str | None
    others: tuple[str, ...] = ()
    ca_file: Path | None = None
    cert_file: Path | None = None
    tenant: str | None = None
    logins: LoginFile | None = None

    def __repr__(self) -> str:
        return f"ClientSettings(url={self.url!r}, token={'***' if self.token else None})"

    @property
    def name(self) -> str:
        """All URLs: the name of the control plane among the logins."""
        return ",".join((self.url, *self.others))

    @property
    def exposed(self) -> tuple[str, ...]:
        """URLs to which a token would be sent in plain text over a network."""
        if self.token is None and self.logins is None:
            return ()
        return tuple(url for url in (self.url, *self.others) if is_exposed(url))

    def bearer(self) -> str | None:
        """Return the token of a request. Raises ``ServiceError`` (401) on a login that has ended."""
        return self.token if self.logins is None else self.logins.fresh_token(self.name, time.time())


def is_exposed(url: str) -> bool:
    """Return whether requests to *url* cross a network in plain text."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname)


def find_settings(
    url: str | None = None, token: str | None = None, environment: Mapping[str, str] | None = None, *,
    ca_file: Path | None = None,
) -> ClientSettings:  # fmt: skip
    """Return URL and token: the arguments, else ``COMMONWATT_URL`` and ``COMMONWATT_TOKEN``, else those in the file.

    *ca_file*, else ``COMMONWATT_CA_FILE``, else the file, names the authorities to trust; likewise
    ``COMMONWATT_CERT_FILE`` a certificate of the client and ``COMMONWATT_TENANT`` the tenant to act as. A login
    (``commonwatt login``) for the URL goes before the token in the file. Without any URL, login and token, the control
    plane of this machine is asked over its Unix socket, if it has one in ``/run/commonwatt``.

    Several URLs, with commas between, are of one control plane and its standbys. Raises ``InputError`` on an invalid
    URL or token, and on a file that others can read.
    """
    env = os.environ if environment is None else environment
    url = url or env.get("COMMONWATT_URL") or None
    token = token or env.get("COMMONWATT_TOKEN") or None
    more = {name: env.get(f"COMMONWATT_{name.upper()}") or None for name in ("ca_file", "cert_file", "tenant")}
    more["ca_file"] = more["ca_file"] if ca_file is None else str(ca_file)
    folder = _folder(env)
    listed: str | None = None
    if url is None or token is None:
        file = _read(folder)
        if url is None or url == file.url:  # a token is sent only to the server it is listed with
            url, listed = url or file.url, file.token
            more = {name: value or getattr(file, name) for name, value in more.items()}
    if url is None and token is None and listed is None and DEFAULT_SOCKET.is_socket():
        url = f"unix:{DEFAULT_SOCKET}"
    first, *others = (_checked(part.strip()) for part in (url or DEFAULT_URL).split(","))
    ca, cert = (None if more[name] is None else Path(str(more[name])) for name in ("ca_file", "cert_file"))
    settings = ClientSettings(first, _checked_token(token), tuple(others), ca, cert, _checked_tenant(more["tenant"]))
    if token is None:
        logins = LoginFile(folder / "commonwatt" / "logins.json", ca)
        settings = replace(settings, logins=logins) if logins.find(settings.name) else replace(
            settings, token=_checked_token(listed)
        )  # fmt: skip
    return settings


def logins_of(settings: ClientSettings, environment: Mapping[str, str] | None = None) -> LoginFile:
    """Return the file that logins are kept in."""
    env = os.environ if environment is None else environment
    return LoginFile(_folder(env) / "commonwatt" / "logins.json", settings.ca_file)


def _folder(env: Mapping[str, str]) -> Path:
    return Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME") or "~").expanduser() / ".config")


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
    expected = "a URL such as http://127.0.0.1:8470 or unix:/run/commonwatt/commonwatt.sock"
    path = socket_of(url)
    if path is not None and path.startswith("/") and path.isprintable():
        return f"unix:{path}"
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


def _checked_tenant(tenant: str | None) -> str | None:
    if tenant is not None and not (tenant.isprintable() and tenant.isascii() and 0 < len(tenant) <= 128):
        raise InputError("the name of a tenant, in ASCII", field="tenant", value=tenant)
    return tenant
