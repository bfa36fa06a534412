"""Who may do what: keys of tenants and of the operator."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

from commonwatt.model.errors import InputError
from commonwatt.model.timeslice_config import TimesliceConfig

__all__ = ["Keys", "is_loopback", "presented_key", "resolve_keys"]

SHORTEST = 8


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def is_loopback(host: str | None) -> bool:
    """Whether *host* is this machine's loopback, by address or as ``localhost``."""
    if host is None:
        return False
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def presented_key(authorization: str | None, api_key: str | None) -> str | None:
    """Return the key in ``Authorization: Bearer KEY`` or ``X-API-Key: KEY``."""
    scheme, _, key = (authorization or "").strip().partition(" ")
    if scheme.lower() == "bearer" and key:
        return key.strip()
    return api_key.strip() or None if api_key else None


@dataclass(frozen=True)
class Keys:
    """Digests of keys; the keys themselves are kept nowhere, and comparing takes the same time for all of them."""

    tenants: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)
    operator: bytes | None = field(default=None, repr=False)  # None: loopback clients may do what the operator may
    open_tenant: str | None = None  # the only tenant there is, served without a key

    @classmethod
    def of(cls, tenants: Mapping[str, str], operator: str | None = None) -> Keys:
        """Return the keys of *tenants* by name, and of the operator."""
        pairs = tuple((name, _digest(key)) for name, key in tenants.items())
        return cls(pairs, None if operator is None else _digest(operator))

    @classmethod
    def without(cls, tenant: str, operator: str | None = None) -> Keys:
        """Return keys that let everyone in as *tenant*."""
        return cls((), None if operator is None else _digest(operator), tenant)

    def tenant_of(self, key: str | None) -> str | None:
        """Return whose *key* it is, ``None`` if nobody's."""
        if self.open_tenant is not None:
            return self.open_tenant
        found = None
        shown = _digest(key or "")
        for name, digest in self.tenants:  # never stops early
            if hmac.compare_digest(shown, digest):
                found = name
        return found if key else None

    def opens_operation(self, key: str | None, client_host: str | None) -> bool:
        """Whether *key*, presented from *client_host*, lets one see metrics and change settings."""
        if self.operator is None:
            return is_loopback(client_host)
        return hmac.compare_digest(_digest(key or ""), self.operator) and bool(key)


def resolve_keys(config: TimesliceConfig, environment: Mapping[str, str]) -> Keys:
    """Return the keys *config* gives, those in environment variables read from *environment*.

    Raises
    ------
    InputError
        If a variable is not set or holds no key, if two keys are the same, or if a tenant has no key though there are
        others or the server can be reached from elsewhere.
    """
    server = config.server
    operator = _key(server.operator_key, server.operator_key_env, "server.operator_key", environment)
    keys: dict[str, str] = {}
    for place, tenant in enumerate(config.tenants):
        where = f"tenants.{place}.key"
        key = _key(tenant.key, tenant.key_env, where, environment)
        if key is None:
            if len(config.tenants) == 1 and is_loopback(server.host):
                return Keys.without(tenant.name, operator)
            raise InputError(
                f"a key for tenant '{tenant.name}': set key or key_env (no key is needed only by a single tenant of a "
                "server that listens on 127.0.0.1)",
                field=where,
            )
        if key in keys.values() or key == operator:
            raise InputError("a key that nobody else has", field=where if tenant.key else f"{where}_env")
        keys[tenant.name] = key
    return Keys.of(keys, operator)


def _key(key: str | None, variable: str | None, where: str, environment: Mapping[str, str]) -> str | None:
    if key is not None and variable is not None:
        raise InputError("one of the two, not key and key_env at once", field=f"{where}_env")
    if variable is not None:
        where = f"{where}_env"
        key = environment.get(variable)
        if key is None:
            raise InputError("an environment variable that is set", field=where, value=variable)
        if len(key) < SHORTEST:
            raise InputError(f"a variable that holds {SHORTEST} characters or more", field=where, value=variable)
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise InputError("a key of printable ASCII characters without spaces", field=where, value=variable)
    return key
