"""Names of tenants and nodes in addresses of the API."""

from __future__ import annotations

import re

from commonwatt.model.errors import InputError

__all__ = ["check_in_address"]

_PART = re.compile(r"(?!\.{1,2}\Z)[^\x00-\x1f\x7f/]{1,128}")


def check_in_address(name: str, field: str) -> str:
    """Return *name*; raises ``InputError`` naming *field* if it cannot be one part of an address.

    Servers and proxies undo the encoding of ``/`` before they look for a part.
    """
    if not _PART.fullmatch(name):
        expected = "a name of up to 128 characters without '/' and control characters, not '.' or '..'"
        raise InputError(expected, field=field, value=name)
    return name
