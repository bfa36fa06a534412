"""Tokens of an OpenID Connect provider: its keys, fetched and kept, and the checks of a token (RFC 7519, RFC 8725).

The algorithm is taken from the configuration's list, the key from the provider's documents alone: a token's own `jwk`,
`jku` and `x5u` are ignored. The provider is asked for keys, never about a token, so a token is valid until it expires.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import math
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from commonwatt.model.errors import MissingExtraError
from commonwatt.model.identity import OidcSpec, is_secure
from commonwatt.model.names import is_loopback

if TYPE_CHECKING:
    from joserfc.jwk import Key

__all__ = [
    "JWT",
    "BusyError",
    "Person",
    "ProviderKeys",
    "TokenError",
    "TokenVerifier",
    "configuration",
    "provider_client",
    "trusted",
]

JWT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_LONGEST = 16_384  # characters of a token
_MOST_GROUPS = 10_000
_LEAST_RSA_BITS = 2048
_LARGEST_DOCUMENT = 1_000_000  # bytes
_FETCH_S = 10.0
_AGAIN_S = 10.0
"""An unknown key is looked for this often at most."""
_PATIENCE_S = 2.0
"""How long a request with a known key waits for newer keys."""
_MOST_WAITING = 20
_TYPES = {"jwt", "at+jwt", "application/at+jwt"}
_log = logging.getLogger("commonwatt.service")


class TokenError(Exception):
    """A token is not accepted; the message says why, after `got`."""


class BusyError(Exception):
    """The provider's keys are being fetched, and enough requests wait for them."""


@dataclass(frozen=True)
class Person:
    """Whom a valid token is about."""

    subject: str
    name: str | None
    groups: tuple[str, ...]
    expires_s: float


@dataclass
class ProviderKeys:
    """The provider's keys, used by one event loop.

    They are fetched when a token names an unknown one, at most every 10 s, and when they are older than *refresh_s*, so
    that a key which the provider has dropped is dropped here. While the provider does not answer, known keys are used
    for *keep_keys_s*.
    """

    spec: OidcSpec
    folder: Path
    clock: Callable[[], float] = time.monotonic
    fetches: int = 0
    _keys: tuple[tuple[Mapping[str, Any], Key], ...] = ()
    _fetched_s: float = -math.inf
    _tried_s: float = -math.inf
    _fetching: asyncio.Task[None] | None = None
    _waiting: int = 0

    async def find(self, kid: str | None, algorithm: str) -> Key:
        """Return the key that a token names; raises ``TokenError`` if the provider has none, ``BusyError``."""
        age_s = self.clock() - self._fetched_s
        if age_s > self.spec.keep_keys_s:
            self._keys = ()
        key = self._among(kid, algorithm)
        if key is None or age_s > self.spec.refresh_s:
            await self._fetch(math.inf if key is None else _PATIENCE_S)
            key = self._among(kid, algorithm)
        if key is None:
            raise TokenError("a token signed with a key that the provider does not have")
        return key

    def _among(self, kid: str | None, algorithm: str) -> Key | None:
        fitting = [
            key for facts, key in self._keys
            if (kid is None or facts.get("kid") == kid) and _fits(facts, algorithm)
        ]  # fmt: skip
        return fitting[0] if len(fitting) == 1 or (fitting and kid is not None) else None

    async def _fetch(self, patience_s: float) -> None:
        """Fetch the keys once for all who wait, unless that was tried a moment ago."""
        if self._fetching is None:
            if self.clock() < self._tried_s + _AGAIN_S:
                return
            self._tried_s = self.clock()
            self._fetching = asyncio.get_running_loop().create_task(self._fetched())
        if self._waiting >= _MOST_WAITING:
            if math.isinf(patience_s):
                raise BusyError
            return
        self._waiting += 1
        try:
            await asyncio.wait({self._fetching}, timeout=None if math.isinf(patience_s) else patience_s)
        finally:
            self._waiting -= 1

    async def _fetched(self) -> None:
        try:
            async with asyncio.timeout(_FETCH_S):
                keys = _usable(await self._documents())
        except Exception as error:  # whatever a provider answers, the service goes on
            cause = " ".join(str(error).split())[:300] or type(error).__name__
            _log.warning("the identity provider's keys cannot be fetched", extra={"cause": cause})
        else:
            self._keys, self._fetched_s = keys, self.clock()
        finally:
            self._fetching = None

    async def _documents(self) -> Any:  # noqa: ANN401
        """Return the provider's JWKS, at the address that its configuration names."""
        self.fetches += 1
        async with provider_client(self.spec, self.folder) as client:
            address = str((await configuration(client, self.spec)).get("jwks_uri"))
            if not is_secure(address, self.spec.issuer):
                raise ValueError("its configuration names no jwks_uri with https")
            return await document(client, address)


def trusted(spec: OidcSpec, folder: Path) -> ssl.SSLContext | bool:
    """Return the authorities by which the provider's certificate is checked."""
    return True if spec.ca_file is None else ssl.create_default_context(cafile=folder / spec.ca_file)


def provider_client(spec: OidcSpec, folder: Path) -> Any:  # noqa: ANN401
    """Return a client for the provider's documents."""
    import httpx

    return httpx.AsyncClient(
        timeout=_FETCH_S, follow_redirects=False, verify=trusted(spec, folder),
        trust_env=not is_loopback(urlsplit(spec.issuer).hostname),
    )  # fmt: skip


async def configuration(client: Any, spec: OidcSpec) -> Mapping[str, Any]:  # noqa: ANN401
    """Return the document in which the provider names its endpoints; raises ``ValueError`` if it is another's."""
    facts = await document(client, f"{spec.issuer.rstrip('/')}/.well-known/openid-configuration")
    if not isinstance(facts, dict) or facts.get("issuer") != spec.issuer:
        raise ValueError(f"its configuration does not name the issuer {spec.issuer}")
    return facts


async def document(client: Any, url: str, form: Mapping[str, str] | None = None, **more: Any) -> Any:  # noqa: ANN401
    """Return a JSON document of limited size, or the answer to a *form*, which may be a refusal or nothing.

    Raises ``ValueError`` on another answer.
    """
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    async with client.stream("GET" if form is None else "POST", url, data=form, headers=headers, **more) as answer:
        if answer.status_code != 200 and not (form is not None and 400 <= answer.status_code < 500):
            raise ValueError(f"{url} answers with status {answer.status_code}")
        if answer.headers.get("content-encoding", "identity") != "identity":
            raise ValueError(f"{url} answers with a compressed document")
        body = b""
        async for part in answer.aiter_raw():
            body += part
            if len(body) > _LARGEST_DOCUMENT:
                raise ValueError(f"{url} answers with more than {_LARGEST_DOCUMENT} bytes")
    return json.loads(body) if body or form is None else None  # a token is revoked without a word


def _usable(document: Any) -> tuple[tuple[Mapping[str, Any], Key], ...]:  # noqa: ANN401
    """Return the public keys for signatures in a JWKS; those of other kinds are left out."""
    from joserfc.errors import JoseError
    from joserfc.jwk import JWKRegistry

    if not isinstance(document, dict) or not isinstance(document.get("keys"), list):
        raise TypeError("its jwks_uri has no list of keys")
    keys = []
    for facts in document["keys"]:
        if not isinstance(facts, dict) or facts.get("kty") not in {"RSA", "EC"} or facts.get("use") == "enc":
            continue
        try:
            if facts["kty"] == "EC" or _bits(facts["n"]) >= _LEAST_RSA_BITS:
                keys.append((facts, JWKRegistry.import_key({n: v for n, v in facts.items() if n in _PUBLIC})))
        except (JoseError, ValueError, TypeError, KeyError):
            continue
    if not keys:
        raise ValueError("its jwks_uri has no key for signatures")
    return tuple(keys)


_PUBLIC = {"kty", "kid", "n", "e", "crv", "x", "y"}
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}


def _bits(number: str) -> int:
    """Return the length of a number in base64url."""
    return int.from_bytes(base64.urlsafe_b64decode(number + "=" * (-len(number) % 4))).bit_length()


def _fits(facts: Mapping[str, Any], algorithm: str) -> bool:
    """Whether a key is for an algorithm: of its kind and curve, and not declared for another one."""
    if facts.get("alg") not in (None, algorithm):
        return False
    if algorithm in _CURVES:
        return facts["kty"] == "EC" and facts.get("crv") == _CURVES[algorithm]
    return facts["kty"] == "RSA"


@dataclass
class TokenVerifier:
    """Checks tokens of one provider."""

    spec: OidcSpec
    folder: Path
    clock: Callable[[], float] = time.time
    keys: ProviderKeys = field(init=False)

    def __post_init__(self) -> None:
        try:
            import httpx  # noqa: F401
            from joserfc import jwk, jwt  # noqa: F401 - now, as the first request would wait for it
        except ImportError as error:
            raise MissingExtraError("authlib", "oidc") from error
        self.keys = ProviderKeys(self.spec, self.folder)

    async def person(self, token: str) -> Person:
        """Return whom *token* is about. Raises ``TokenError`` on one that is not valid here, ``BusyError``."""
        if len(token) > _LONGEST or not JWT.fullmatch(token):
            raise TokenError("an unknown or revoked token")
        header = _part(token.partition(".")[0])
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in self.spec.algorithms:
            raise TokenError(f"a token signed by an algorithm other than {', '.join(self.spec.algorithms)}")
        if not (kid is None or (isinstance(kid, str) and len(kid) <= 512)) or "crit" in header or "b64" in header:
            raise TokenError("a token with a header that is not understood")
        if str(header.get("typ", "jwt")).lower() not in _TYPES:
            raise TokenError("a token of another type")
        key = await self.keys.find(kid, str(algorithm))
        return self._checked(_claims(token, key, str(algorithm)))

    def _checked(self, claims: Mapping[str, Any]) -> Person:
        spec, now_s = self.spec, self.clock()
        if claims.get("iss") != spec.issuer:
            raise TokenError("a token of another issuer")
        audience = claims.get("aud")
        if spec.audience not in (audience if isinstance(audience, list) else [audience]):
            raise TokenError("a token for another audience")
        expires_s, begins_s, made_s = (_time(claims, name) for name in ("exp", "nbf", "iat"))
        if expires_s is None:
            raise TokenError("a token that never expires")
        if now_s >= expires_s + spec.skew_s:
            raise TokenError("a token that has expired")
        if max(begins_s or 0.0, made_s or 0.0) > now_s + spec.skew_s:
            raise TokenError("a token that is not valid yet")
        subject = claims.get("sub")
        if not isinstance(subject, str) or not 0 < len(subject) <= 255 or "events" in claims:
            raise TokenError("a token that is about nobody")
        names = (claims.get(name) for name in ("preferred_username", "email", "name"))
        name = next((name for name in names if isinstance(name, str) and name), None)
        return Person(subject, name, _groups(claims.get(spec.groups_claim)), expires_s + spec.skew_s)


def _claims(token: str, key: Key, algorithm: str) -> Mapping[str, Any]:
    from joserfc import jwt
    from joserfc.errors import JoseError

    try:
        claims = jwt.decode(token, key, algorithms=[algorithm]).claims
    except (JoseError, ValueError, TypeError, RecursionError):
        raise TokenError("a token whose signature is wrong") from None
    if not isinstance(claims, dict):
        raise TokenError("a token without claims")
    return claims


def _part(text: str) -> Mapping[str, Any]:
    try:
        fields = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise TokenError("an unknown or revoked token")
    return fields


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise TokenError(f"a token whose {name} is no time")
    return float(value)


def _groups(value: object) -> tuple[str, ...]:
    """Return a list of groups; a single group may be a text of its own. Anything else counts as no group."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and len(value) <= _MOST_GROUPS:
        return tuple(group for group in value if isinstance(group, str))
    return ()
