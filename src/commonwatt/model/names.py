"""Names and numbers that are given: choices, segments of URLs, names probably meant, checks of arguments."""

from __future__ import annotations

import difflib
import ipaddress
import math
import re
from collections.abc import Iterable
from numbers import Integral, Real

from commonwatt.model.errors import ArgumentError, InputError

__all__ = [
    "MECHANISMS", "MIG_MODES", "WELFARES", "check_choice", "check_count", "check_in_address", "check_number",
    "did_you_mean", "is_loopback", "one_of",
]  # fmt: skip

MECHANISMS = ("fisher", "entitlement", "weighted-equal-speedup")
WELFARES = ("nash", "utilitarian", "egalitarian")
MIG_MODES = ("market", "integer")
"""Choices of `commonwatt partition`. They stand here so that its help does not load the solvers."""

_SHORT = 4  # characters up to which a name with a number must be nearer
_PART = re.compile(r"(?!\.{1,2}\Z)[^\x00-\x1f\x7f/]{1,128}")


def check_in_address(name: str, field: str) -> str:
    """Return *name*; raises ``InputError`` naming *field* if it cannot be one segment of a URL's path.

    Servers and proxies decode an encoded ``/`` before they split the path.
    """
    if not _PART.fullmatch(name):
        expected = "a name of up to 128 characters without '/' and control characters, not '.' or '..'"
        raise InputError(expected, field=field, value=name)
    return name


def is_loopback(host: str | None) -> bool:
    """Return whether *host*, a name or an address, is the loopback of this machine."""
    if not host:
        return False
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host.lower().rstrip(".") == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def did_you_mean(value: object, names: Iterable[object], *, any_number: bool = False) -> str:
    """Return `` (did you mean NAME?)`` for the one of *names* nearest to *value*, or an empty string if none is near.

    Case is ignored. A name that begins with *value* is near. Different numbers are different things, unless
    *any_number*: H100 is not V100, and RTX5000 is not RTX6000.
    """
    wanted = str(value).casefold()
    near = {name.casefold(): name for name in map(str, names) if any_number or _same_number(wanted, name.casefold())}
    cutoff = 0.8 if len(wanted) <= _SHORT and any(map(str.isdigit, wanted)) else 0.6
    matches = difflib.get_close_matches(wanted, near, n=1, cutoff=cutoff)
    if not matches and len(wanted) > 1:
        matches = sorted((name for name in near if name.startswith(wanted)), key=len)[:1]
    return f" (did you mean {near[matches[0]]}?)" if matches else ""


def _same_number(one: str, other: str) -> bool:
    """Return whether the digits of one name begin those of the other."""
    digits = [re.sub(r"\D", "", text) for text in (one, other)]
    return digits[0].startswith(digits[1]) or digits[1].startswith(digits[0])


def one_of(names: Iterable[object], value: object = None, *, any_number: bool = False) -> str:
    """Return ``one of A, B, C`` and the name that *value* probably meant, for an ``InputError``."""
    choices = [str(name) for name in names]
    return f"one of {', '.join(choices)}{did_you_mean(value, choices, any_number=any_number)}"


def check_choice(name: str, value: object, choices: Iterable[object]) -> None:
    """Raise ``ArgumentError`` unless *value*, given for the parameter *name*, is one of *choices*."""
    choices = list(choices)
    if value not in choices:
        raise ArgumentError(one_of(choices, value), field=name, value=value)


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise ``ArgumentError`` unless *value*, given for the parameter *name*, is a whole number of *least* or more.

    ``None`` is no number given.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least):
        raise ArgumentError(f"a whole number, {least} or more", field=name, value=value)


def check_number(name: str, value: object, least: float = 0.0, most: float = math.inf, *, above: bool = False) -> None:
    """Raise ``ArgumentError`` unless *value*, given for the parameter *name*, is a number from *least* to *most*.

    Not *least* itself with *above*. ``None`` is no number given.
    """
    if value is None:
        return
    if not isinstance(value, bool) and isinstance(value, Real):
        number = float(value)
        if least <= number <= most and not (above and number == least):
            return
    if above:
        expected = f"a number above {least:g}" + (f", at most {most:g}" if most < math.inf else "")
    else:
        expected = f"a number from {least:g} to {most:g}" if most < math.inf else f"a number, {least:g} or more"
    raise ArgumentError(expected, field=name, value=value)
