"""Who may do what in the live control plane beside its own tokens, and how connections are encrypted."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal
from urllib.parse import urlsplit

from pydantic import field_validator, model_validator

from commonwatt.model.errors import FieldError, ServiceError
from commonwatt.model.fields import FileModel, quantity
from commonwatt.model.names import is_loopback

__all__ = [
    "Grant", "GrantRole", "GroupGrant", "OidcSpec", "SocketSpec", "TlsSpec", "UserGrant", "chosen_grant", "is_secure",
]  # fmt: skip

GrantRole = Literal["viewer", "member", "admin", "operator"]
_STRENGTH = ("viewer", "member", "admin", "operator")
_ROLE = (
    "what they may do: viewer (read), member (also submit and change jobs), admin (also manage the tenant's tokens), "
    "operator (everything, of all tenants)"
)
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"]


class Grant(FileModel):
    """A role, in one tenant or over all of them."""

    tenant: str | None = quantity(
        "their tenant; absent: all tenants, for an operator, or a viewer of everything", "-", None, min_length=1,
        max_length=128,
    )  # fmt: skip
    role: GrantRole = quantity(_ROLE, "-", "member")

    @model_validator(mode="after")
    def _of_a_tenant(self) -> Grant:
        if self.role == "operator" and self.tenant is not None:
            raise FieldError(
                "no tenant: operators are of none", field="role", value=f"'operator' of tenant {self.tenant!r}"
            )
        if self.role in ("member", "admin") and self.tenant is None:
            raise FieldError(f"the tenant of this {self.role}", field="tenant")
        return self


class GroupGrant(Grant):
    """A role of the people in a group of the identity provider."""

    group: str = quantity("name of the group, as in the claim", "-", min_length=1, max_length=512)


class UserGrant(Grant):
    """A role of a Unix user of this machine."""

    user: str = quantity("name of the Unix user", "-", min_length=1, max_length=64)


class OidcSpec(FileModel):
    """Single sign-on: the control plane accepts tokens (JWT) of an OpenID Connect provider beside its own."""

    issuer: str = quantity("URL of the provider, exactly as in its tokens", "-", max_length=1024)
    audience: str = quantity("audience that a token must name", "-", min_length=1, max_length=256)
    client_id: str | None = quantity(
        "client that people sign in with; absent: the audience", "-", None, min_length=1, max_length=256
    )
    scopes: tuple[str, ...] = quantity(
        "scopes that a sign-in asks for", "-", ("openid", "profile", "offline_access"), min_length=1
    )
    token: Literal["id", "access"] = quantity(
        "which token is sent after a sign-in: the ID token, or the access token where it is a JWT for the audience",
        "-",
        "id",
    )
    secret_variable: str | None = quantity(
        "environment variable with the client's secret, for sign-in to the dashboard; absent: a public client", "-",
        None, min_length=1,
    )  # fmt: skip
    algorithms: tuple[Algorithm, ...] = quantity("signatures that are accepted", "-", ("RS256", "ES256"), min_length=1)
    groups_claim: str = quantity("claim with the groups of a person", "-", "groups", min_length=1, max_length=256)
    skew_s: float = quantity("largest difference of the clocks", "s", 30.0, ge=0, le=300)
    refresh_s: float = quantity("age at which the provider's keys are fetched again", "s", 300.0, ge=10, le=86_400)
    keep_keys_s: float = quantity(
        "how long known keys are used while the provider does not answer", "s", 86_400.0, ge=60, le=2_592_000
    )
    ca_file: str | None = quantity(
        "PEM file of the authority that signed the provider's certificate, relative to this file; absent: the usual "
        "authorities",
        "-",
        None,
        min_length=1,
    )
    groups: tuple[GroupGrant, ...] = quantity("roles by group; a person in none of them may do nothing", "-", ())

    @field_validator("issuer")
    @classmethod
    def _address(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            host = parts.hostname if re.fullmatch(r"https?://[^\s?#@]+", value) else None
        except ValueError:
            host = None
        if host is None or not (parts.scheme == "https" or is_loopback(host)):
            raise FieldError("a URL with https (http is for a provider on this machine's loopback)", value=value)
        return value


class TlsSpec(FileModel):
    """Encryption of a server's connections (TLS 1.2 and 1.3)."""

    certificate: str = quantity("PEM file of the certificate and its chain, relative to this file", "-", min_length=1)
    key: str = quantity("PEM file of its private key, without a passphrase, relative to this file", "-", min_length=1)
    client_ca: str | None = quantity(
        "PEM file of the authority that signs clients' certificates: without one, nobody connects; absent: clients "
        "need none",
        "-",
        None,
        min_length=1,
    )


class SocketSpec(FileModel):
    """A Unix socket for this machine, where the kernel says which user connects."""

    path: str = quantity("path of the socket, relative to this file", "-", min_length=1)
    users: tuple[UserGrant, ...] = quantity(
        "roles of Unix users; root and the user of `serve` are operators, unless jobs run as them; others need a token",
        "-",
        (),
    )


def is_secure(address: str, issuer: str) -> bool:
    """Return whether an *address* of a provider has https, or is on this machine's loopback, as the provider is.

    Raises ``ValueError`` for what is no address.
    """
    parts = urlsplit(address)
    local = is_loopback(urlsplit(issuer).hostname) and is_loopback(parts.hostname)
    return parts.scheme == "https" or (parts.scheme == "http" and local)


def chosen_grant(grants: Iterable[Grant], tenant: str | None) -> Grant:
    """Return the one of a person's *grants* that a request counts with.

    Where it names a *tenant*, the strongest one of this tenant. Else that of an operator; else the strongest one of the
    person's only tenant; else that of a viewer of everything.

    Raises ``ServiceError`` (403) if there is none, or if there are several tenants and none is named.
    """
    ranked = sorted(grants, key=lambda grant: _STRENGTH.index(grant.role), reverse=True)
    tenants = sorted({grant.tenant for grant in ranked if grant.tenant is not None})
    if tenant is not None:
        ranked = [grant for grant in ranked if grant.tenant == tenant]
        if not ranked:
            raise ServiceError("you have no role in the tenant of the header Commonwatt-Tenant", 403)
        return ranked[0]
    if not ranked:
        raise ServiceError("you are known, but have no role here; an operator has to give you one", 403)
    if ranked[0].role == "operator" or not tenants:
        return ranked[0]
    if len(tenants) > 1:
        named = ", ".join(tenants)
        raise ServiceError(f"you have several tenants ({named}): name one (COMMONWATT_TENANT, Commonwatt-Tenant)", 403)
    return next(grant for grant in ranked if grant.tenant is not None)
