"""Paths of a configuration: whether this process can so much as look at them."""

from __future__ import annotations

from pathlib import Path

from commonwatt.model.errors import InputError

__all__ = ["within_reach"]


def within_reach(path: Path, field: str) -> Path:
    """Return *path*, be anything there or not.

    Raises ``InputError`` naming *field* if it cannot be looked at: its name is too long or holds NUL characters, or it
    is in a folder this process may not enter.
    """
    expected = "a path this process can look at"
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return path
    except OSError as error:
        raise InputError(f"{expected} ({error.strerror})", field=field, value=path) from None
    except ValueError:
        raise InputError(f"{expected} (without NUL characters)", field=field, value=path) from None
    return path
