"""Features of nodes, and what jobs ask of them, as Slurm writes it: ``ib&(a100|h100)``."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

from commonwatt.model.errors import FieldError

__all__ = ["FEATURE", "check_constraint", "meets"]

FEATURE = r"[A-Za-z0-9_][A-Za-z0-9_.:=+-]*"
"""Pattern of the name of a feature."""

_MOST_PARENTHESES = 50
_CLOSING = {"(": ")", "[": "]"}
_Expression = str | tuple[str, tuple["_Expression", ...]]  # a feature; or & or | and what is joined by it
_TOKEN = re.compile(rf"\s*({FEATURE}|[&|()\[\]])")


def check_constraint(text: str) -> str:
    """Return *text*, features joined by & or |, with parentheses where both are; raises ``FieldError``.

    Brackets (of several features, nodes have the same one) are parentheses: the nodes of a job are alike.
    """
    if text:
        _parsed(text)
    return text


@lru_cache(maxsize=1024)
def _parsed(text: str) -> _Expression:
    tokens = _TOKEN.findall(text)
    if sum(map(text.count, _CLOSING)) > _MOST_PARENTHESES:
        raise FieldError(f"at most {_MOST_PARENTHESES} parentheses", value=text)
    if "".join(tokens) != "".join(text.split()):
        raise FieldError("features joined by & or |, such as ib&(a100|h100); no numbers of nodes", value=text)
    expression, rest = _joined(tuple(tokens), text)
    if rest:
        raise FieldError("no ) without its (", value=text)
    return expression


def _joined(tokens: tuple[str, ...], text: str) -> tuple[_Expression, tuple[str, ...]]:
    """Read one feature or several joined by one operator; also return what comes after them."""
    parts: list[_Expression] = []
    operator = ""
    while True:
        part, tokens = _one(tokens, text)
        parts.append(part)
        if not tokens or tokens[0] in ")]":
            return (parts[0] if len(parts) == 1 else (operator, tuple(parts))), tokens
        if tokens[0] not in "&|" or operator not in ("", tokens[0]):
            raise FieldError("& or | between features, and parentheses where both are", value=text)
        operator, tokens = tokens[0], tokens[1:]


def _one(tokens: tuple[str, ...], text: str) -> tuple[_Expression, tuple[str, ...]]:
    if tokens and tokens[0] in "([":
        part, rest = _joined(tokens[1:], text)
        if rest[:1] != (_CLOSING[tokens[0]],):
            raise FieldError(f"{_CLOSING[tokens[0]]} after {tokens[0]}", value=text)
        return part, rest[1:]
    if not tokens or tokens[0] in "&|)]":
        raise FieldError("a feature before and after each & and |", value=text)
    return tokens[0], tokens[1:]


def meets(constraint: str, features: Collection[str]) -> bool:
    """Whether *features* are what *constraint* asks for; "": nothing."""
    return not constraint or _holds(_parsed(constraint), features)


def _holds(wanted: _Expression, features: Collection[str]) -> bool:
    if isinstance(wanted, str):
        return wanted in features
    operator, parts = wanted
    return (all if operator == "&" else any)(_holds(part, features) for part in parts)
