"""What a server takes from its environment: API keys of tenants and of the operator, and its host."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from commonwatt.model.errors import InputError
from commonwatt.model.names import is_loopback
from commonwatt.model.timeslice_file import TimesliceConfig

__all__ = ["Keys", "presented_key", "resolve_keys", "with_host"]

SHORTEST = 8


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def presented_key(authorization: str | None, api_key: str | None) -> str | None:
    """Return the key in ``Authorization: Bearer KEY`` or ``X-API-Key: KEY``."""
    scheme, _, key = (authorization or "").strip().partition(" ")
    if scheme.lower() == "bearer" and key:
        return key.strip()
    return api_key.strip() or None if api_key else None


@dataclass(frozen=True)
class Keys:
    """Digests of keys, compared in constant time; the keys themselves are not kept."""

    tenants: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)
    operator: bytes | None = field(default=None, repr=False)  # None: loopback clients count as the operator
    open_tenant: str | None = None  # a single tenant, served without a key

    @classmethod
    def of(cls, tenants: Mapping[str, str], operator: str | None = None) -> Keys:
        """Return the keys of *tenants* by name, and of the operator."""
        pairs = tuple((name, _digest(key)) for name, key in tenants.items())
        return cls(pairs, None if operator is None else _digest(operator))

    @classmethod
    def without(cls, tenant: str, operator: str | None = None) -> Keys:
        """Return keys that accept everyone as *tenant*."""
        return cls((), None if operator is None else _digest(operator), tenant)

    def tenant_of(self, key: str | None) -> str | None:
        """Return the tenant of *key*; ``None`` for an unknown key."""
        if self.open_tenant is not None:
            return self.open_tenant
        tenant = None
        shown = _digest(key or "")
        for name, digest in self.tenants:  # never stops early
            if hmac.compare_digest(shown, digest):
                tenant = name
        return tenant if key else None

    def opens_operation(self, key: str | None, client_host: str | None) -> bool:
        """Return whether *key*, presented from *client_host*, gives access to metrics and settings."""
        if self.operator is None:
            return is_loopback(client_host)
        return hmac.compare_digest(_digest(key or ""), self.operator) and bool(key)


def resolve_keys(config: TimesliceConfig, environment: Mapping[str, str]) -> Keys:
    """Return the keys in *config* and in the variables of *environment* that it names.

    Raises
    ------
    InputError
        If a variable is not set or contains no key, if two keys are equal, or if a tenant has no key although there are
        other tenants or the server can be reached from other machines.
    """
    server = config.server
    operator = _key(server.operator_key, server.operator_key_env, "server.operator_key", environment)
    keys: dict[str, str] = {}
    for tenant in config.tenants:
        where = f"tenants.{tenant.name}.key"
        key = _key(tenant.key, tenant.key_env, where, environment)
        if key is None:
            if len(config.tenants) == 1 and is_loopback(server.host):
                return Keys.without(tenant.name, operator)
            raise InputError(
                f"a key for tenant '{tenant.name}': set key or key_env (only a single tenant of a server that listens "
                "on 127.0.0.1 needs none)",
                field=where,
            )
        if key in keys.values() or key == operator:
            raise InputError(
                "a key that no other tenant or operator has", field=where if tenant.key else f"{where}_env"
            )
        keys[tenant.name] = key
    return Keys.of(keys, operator)


def _key(key: str | None, variable: str | None, where: str, environment: Mapping[str, str]) -> str | None:
    if key is not None and variable is not None:
        raise InputError("either key or key_env, not both", field=f"{where}_env")
    if variable is not None:
        where = f"{where}_env"
        key = environment.get(variable)
        if key is None:
            raise InputError("an environment variable that is set", field=where, value=variable)
        if len(key) < SHORTEST:
            raise InputError(f"a variable with {SHORTEST} characters or more", field=where, value=variable)
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise InputError("a key of printable ASCII characters without spaces", field=where, value=variable)
    return key


def with_host(config: TimesliceConfig, environment: Mapping[str, str]) -> TimesliceConfig:
    """Return *config* with the host that an environment variable says; raises ``InputError`` if it is not set."""
    host = config.server.host
    if not host.startswith("$"):
        return config
    found = environment.get(host[1:], "")
    if not found:
        raise InputError("the name of an environment variable that is set, after $", field="server.host", value=host)
    return config.model_copy(update={"server": config.server.model_copy(update={"host": found})})
