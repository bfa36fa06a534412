"""Signing in with the site's identity provider, and the file that keeps the tokens of it.

Device authorization (RFC 8628) needs a browser anywhere; an authorization code with PKCE (RFC 7636, RFC 8252) needs one
on this machine. Tokens are in ``~/.config/commonwatt/logins.json``, which only its owner can read.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import secrets
import ssl
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from commonwatt.model.errors import InputError, MissingExtraError, ServiceError
from commonwatt.model.identity import is_secure
from commonwatt.model.live_results import LoginOffer
from commonwatt.model.names import is_loopback

__all__ = ["DeviceCode", "Login", "LoginFile", "sign_in_by_browser", "sign_in_by_device"]

_DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
_EARLY_S = 30.0
_LONGEST_S = 1800.0
_WAITS_S = 300.0


@dataclass(frozen=True)
class Login:
    """A person's tokens for one control plane; ``None``: the provider gave none, or does not say."""

    issuer: str
    client_id: str
    token_endpoint: str
    revocation_endpoint: str | None
    kind: str  # which token is sent: id, access
    token: str
    refresh_token: str | None
    expires_s: float | None

    def __repr__(self) -> str:
        return f"Login(issuer={self.issuer!r}, token=***)"


@dataclass(frozen=True)
class LoginFile:
    """Logins by the URL of the control plane. Several processes may use it at once."""

    path: Path
    ca_file: Path | None = None

    def find(self, url: str) -> Login | None:
        """Return the login for *url*. Raises ``InputError`` on a file that others can read."""
        kept = self._read().get(url)
        try:
            return None if kept is None else Login(**kept)
        except TypeError:
            raise self._broken() from None

    def keep(self, url: str, login: Login | None) -> None:
        """Keep the login for *url*, or (``None``) forget it."""
        with self._locked():
            self._keep(url, login)

    def fresh_token(self, url: str, now_s: float) -> str:
        """Return the token for *url*, renewed if it ends soon. Raises ``ServiceError`` (401) if it cannot be."""
        login = self.find(url)
        if login is None:
            raise ServiceError("you are signed out; run commonwatt login", 401)
        if login.expires_s is None or now_s < login.expires_s - _EARLY_S:
            return login.token
        with self._locked():
            login = self.find(url) or login  # another process may have renewed it
            if login.expires_s is None or now_s < login.expires_s - _EARLY_S:
                return login.token
            try:
                login = _renewed(login, self.ca_file)
            except ServiceError:
                if login.expires_s is not None and now_s < login.expires_s:
                    return login.token
                raise
            self._keep(url, login)
        return login.token

    def _keep(self, url: str, login: Login | None) -> None:
        kept = self._read()
        kept.pop(url, None)
        if login is not None:
            kept[url] = asdict(login)
        number, name = tempfile.mkstemp(dir=self.path.parent, prefix=".logins-")  # mode 0600
        try:
            with os.fdopen(number, "w", encoding="utf-8") as file:
                json.dump(kept, file, indent=1)
            Path(name).replace(self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def _read(self) -> dict[str, Any]:
        try:
            mode = stat.S_IMODE(self.path.stat().st_mode)
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeError):
            raise self._broken() from None
        if mode & 0o077:
            expected = f"a file that only you can read (chmod 600 {self.path})"
            raise InputError(expected, file=self.path, value=f"{mode:o}")
        try:
            kept = json.loads(text)
        except ValueError:
            raise self._broken() from None
        if not isinstance(kept, dict):
            raise self._broken()
        return kept

    def _broken(self) -> InputError:
        return InputError("what commonwatt login wrote; delete it, and sign in again", file=self.path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            number = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InputError(f"a file that can be written ({error.strerror})", file=self.path) from None
        try:
            fcntl.flock(number, fcntl.LOCK_EX)
            yield
        finally:
            os.close(number)

    def revoke(self, url: str) -> bool:
        """Forget the login for *url* and ask the provider to revoke its refresh token; returns whether there was one.

        The token itself is valid until it expires: a provider cannot take it back.
        """
        login = self.find(url)
        self.keep(url, None)
        if login is not None and login.refresh_token is not None and login.revocation_endpoint is not None:
            with _client(login.client_id, login.issuer, self.ca_file) as client:
                _asked(lambda: client.revoke_token(login.revocation_endpoint, token=login.refresh_token), login.issuer)
        return login is not None


@dataclass(frozen=True)
class DeviceCode:
    """What a person types into a browser: *user_code* at *address*; *complete* has both."""

    user_code: str
    address: str
    complete: str | None


def sign_in_by_device(
    offer: LoginOffer, tell: Callable[[DeviceCode], None], *, ca_file: Path | None = None,
    sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic,
) -> Login:  # fmt: skip
    """Sign in by a code that *tell* shows. Raises ``ServiceError`` if the provider refuses, or nobody types it."""
    with _client(offer.client_id, offer.issuer, ca_file) as client:
        endpoints = _endpoints(client, offer, "device_authorization_endpoint")
        data = {"client_id": offer.client_id, "scope": " ".join(offer.scopes)}
        answer = _asked(
            lambda: client.request("POST", endpoints["device_authorization_endpoint"], data=data, withhold_token=True),
            offer.issuer,
        )  # fmt: skip
        asked = _document(answer, offer.issuer)
        try:
            code, interval_s = str(asked["device_code"]), max(1.0, float(asked.get("interval", 5)))
            tell(DeviceCode(str(asked["user_code"]), str(asked["verification_uri"]),
                            asked.get("verification_uri_complete")))  # fmt: skip
            until_s = clock() + min(_LONGEST_S, float(asked.get("expires_in", _LONGEST_S)))
        except (KeyError, TypeError, ValueError):
            raise ServiceError(f"{offer.issuer} does not answer as RFC 8628 says") from None
        while clock() < until_s:
            sleep(interval_s)
            try:
                token = client.fetch_token(
                    endpoints["token_endpoint"], grant_type=_DEVICE, device_code=code, client_id=offer.client_id
                )
            except _oauth_error() as error:
                if error.error == "slow_down":
                    interval_s += 5.0
                elif error.error != "authorization_pending":
                    raise ServiceError(f"{offer.issuer} refuses: {error.description or error.error}", 403) from None
                continue
            except _failures():
                continue  # RFC 8628: a poll may fail
            return _login(offer, endpoints, token)
    raise ServiceError("nobody confirmed the code in time; run commonwatt login again")


def sign_in_by_browser(
    offer: LoginOffer, show: Callable[[str], None], *, ca_file: Path | None = None, timeout_s: float = _WAITS_S
) -> Login:
    """Sign in at an address that *show* opens in a browser of this machine, which comes back to a port of it."""
    state, verifier = secrets.token_urlsafe(24), secrets.token_urlsafe(48)
    answer: dict[str, str] = {}

    class Back(BaseHTTPRequestHandler):
        timeout = 10  # whoever connects and says nothing does not hold it up

        def do_GET(self) -> None:
            given = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
            good = urlsplit(self.path).path == "/back" and secrets.compare_digest(
                given.get("state", "").encode(), state.encode()
            )
            if good and not answer:
                answer.update(given)
            self.send_response(200 if good else 400)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.end_headers()
            self.wfile.write(b"You can close this page.\n" if good else b"This is not the answer to a sign-in.\n")

        def log_message(self, *_: object) -> None:
            """Stay silent: the address has the code."""

    with HTTPServer(("127.0.0.1", 0), Back) as back, _client(offer.client_id, offer.issuer, ca_file) as client:
        endpoints = _endpoints(client, offer, "authorization_endpoint")
        client.redirect_uri = f"http://127.0.0.1:{back.server_port}/back"
        client.scope = " ".join(offer.scopes)
        address, _ = client.create_authorization_url(
            endpoints["authorization_endpoint"], state=state, code_verifier=verifier
        )
        show(address)
        until_s = time.monotonic() + timeout_s
        while not answer:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise ServiceError("nobody signed in in time; run commonwatt login again")
            back.timeout = left_s
            back.handle_request()
        if "code" not in answer:
            raise ServiceError(f"{offer.issuer} refuses: {answer.get('error_description') or answer.get('error')}", 403)
        token = _asked(
            lambda: client.fetch_token(
                endpoints["token_endpoint"], grant_type="authorization_code", code=answer["code"],
                code_verifier=verifier, redirect_uri=client.redirect_uri,
            ),
            offer.issuer,
        )  # fmt: skip
    return _login(offer, endpoints, token)


def _renewed(login: Login, ca_file: Path | None) -> Login:
    if login.refresh_token is None:
        raise ServiceError("your login has expired; run commonwatt login", 401)
    with _client(login.client_id, login.issuer, ca_file) as client:
        token = _asked(
            lambda: client.refresh_token(login.token_endpoint, refresh_token=login.refresh_token),
            f"your login has ended (commonwatt login begins another): {login.issuer}",
        )
    sent, expires_s = _sent(login.kind, token, login.issuer)
    return replace(
        login, token=sent, expires_s=expires_s, refresh_token=token.get("refresh_token") or login.refresh_token
    )


def _login(offer: LoginOffer, endpoints: Mapping[str, str], token: Mapping[str, Any]) -> Login:
    sent, expires_s = _sent(offer.token, token, offer.issuer)
    return Login(
        offer.issuer, offer.client_id, endpoints["token_endpoint"], endpoints.get("revocation_endpoint"), offer.token,
        sent, token.get("refresh_token"), expires_s,
    )  # fmt: skip


def _sent(kind: str, token: Mapping[str, Any], issuer: str) -> tuple[str, float | None]:
    """Return the token that the control plane gets, and when it ends."""
    name = f"{kind}_token"
    sent = token.get(name)
    if not isinstance(sent, str) or not sent:
        more = " (does it ask for the scope openid?)" if kind == "id" else ""
        raise ServiceError(f"{issuer} gave no {name}{more}", 403)
    try:  # it is only asked when to renew it: who checks it is the control plane
        body = sent.split(".")[1]
        ends = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["exp"]
        return sent, float(ends)
    except (IndexError, ValueError, KeyError, TypeError):
        ends_s = token.get("expires_at")
        return sent, None if ends_s is None else float(ends_s)


def _endpoints(client: Any, offer: LoginOffer, wanted: str) -> dict[str, str]:  # noqa: ANN401
    """Return the provider's addresses, which need https unless the provider is on this machine."""
    _check_secure(offer.issuer, offer.issuer)
    address = f"{offer.issuer.rstrip('/')}/.well-known/openid-configuration"
    answer = _asked(lambda: client.request("GET", address, withhold_token=True), offer.issuer)
    document = _document(answer, offer.issuer)
    if document.get("issuer") != offer.issuer:
        raise ServiceError(f"{address} does not name the issuer {offer.issuer}")
    for name in ("token_endpoint", wanted):
        if name not in document:
            raise ServiceError(f"{offer.issuer} has no {name}: try another way (see commonwatt login --help)")
    endpoints = {
        name: value for name, value in document.items() if name.endswith("_endpoint") and isinstance(value, str)
    }
    for value in endpoints.values():
        _check_secure(value, offer.issuer)
    return endpoints


def _check_secure(address: str, issuer: str) -> None:
    if not is_secure(address, issuer):
        raise ServiceError(f"{issuer} has an address without https ({address}): no sign-in over plain HTTP")


def _document(answer: Any, issuer: str) -> dict[str, Any]:  # noqa: ANN401
    try:
        document = answer.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ServiceError(f"{issuer} answers with status {answer.status_code}, without JSON")
    if not answer.is_success:
        shown = document.get("error_description") or document.get("error")
        raise ServiceError(f"{issuer} refuses: {shown}", 403)
    return document


def _asked(ask: Callable[[], Any], who: str) -> Any:  # noqa: ANN401
    try:
        return ask()
    except _oauth_error() as error:
        raise ServiceError(f"{who} refuses: {error.description or error.error}", 401) from None
    except _failures() as error:
        cause = " ".join(str(error).split()) or type(error).__name__
        raise ServiceError(f"{who} cannot be reached: {cause}") from None


def _client(client_id: str, issuer: str, ca_file: Path | None) -> Any:  # noqa: ANN401
    """Return a client of the provider; *ca_file* is trusted beside the usual authorities."""
    try:
        import httpx
        from authlib.integrations.httpx_client import OAuth2Client
    except ImportError as error:
        raise MissingExtraError("authlib", "oidc") from error
    trust = httpx.create_ssl_context()
    if ca_file is not None:
        try:
            trust.load_verify_locations(ca_file)
        except (OSError, ssl.SSLError):
            raise InputError("a PEM file of certificates", field="ca_file", value=ca_file) from None
    return OAuth2Client(
        client_id, token_endpoint_auth_method="none", code_challenge_method="S256", timeout=20.0,  # noqa: S106
        verify=trust, follow_redirects=False, trust_env=not is_loopback(urlsplit(issuer).hostname),
    )  # fmt: skip


def _oauth_error() -> Any:  # noqa: ANN401
    """Class of the provider's refusals."""
    from authlib.integrations.httpx_client import OAuthError

    return OAuthError


def _failures() -> Any:  # noqa: ANN401
    """Classes of what happens where a provider does not answer, or not as one."""
    from authlib.integrations.httpx_client import OAuth2Client

    base = next(each for each in OAuth2Client.__mro__ if each.__name__ == "Client")  # of httpx, or of its successor
    return import_module(base.__module__.partition(".")[0]).HTTPError, ValueError
