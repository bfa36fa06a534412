"""What may go into a text of the store: all three databases take it, and give it back as it was."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from commonwatt.model.errors import InputError

__all__ = ["LONGEST_NAME", "check_name", "check_number", "cleaned", "cleaned_column", "cleaned_document", "row_number"]

LONGEST_NAME = 128
_LARGEST = 2**63 - 1


def check_name(text: str, field: str, *, longest: int = LONGEST_NAME) -> str:
    """Return *text*; raises ``InputError`` naming *field* if it is empty, too long or has what cannot be stored."""
    if not text:
        raise InputError("a text that is not empty", field=field)
    if len(text) > longest:
        raise InputError(f"{longest} characters at most", field=field, value=text)
    if cleaned(text) != text:
        raise InputError("text without NUL characters and halves of surrogate pairs", field=field, value=ascii(text))
    return text


def check_number(number: float, field: str) -> float:
    """Return *number*; raises ``InputError`` naming *field* if it is not finite."""
    if not math.isfinite(number):
        raise InputError("a finite number", field=field, value=number)
    return number


def cleaned(text: str, longest: int | None = None) -> str:
    """Return *text* with characters that cannot be stored replaced, cut to *longest* characters."""
    stored = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    return stored if longest is None or len(stored) <= longest else stored[: longest - 3] + "..."


def cleaned_document(value: Any) -> Any:  # noqa: ANN401
    """Return a JSON value with all its texts ``cleaned``."""
    if isinstance(value, str):
        return cleaned(value)
    if isinstance(value, Mapping):
        return {cleaned(str(name)): cleaned_document(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned_document(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def row_number(number: int) -> int:
    """Return *number* brought into the range of the databases' integers."""
    return max(-_LARGEST, min(number, _LARGEST))


def cleaned_column(name: str, value: Any) -> Any:  # noqa: ANN401
    """Return the value of a job's column *name* as it can be stored."""
    if isinstance(value, str) and name in ("reason", "sentence"):
        return cleaned(value, LONGEST_NAME if name == "reason" else None)
    return list(value) if isinstance(value, tuple) else value
