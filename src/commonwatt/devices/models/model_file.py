"""What every kind of model file has in common: it is there, and it has a digest."""

from __future__ import annotations

import hashlib
from pathlib import Path

from commonwatt.model.errors import InputError

__all__ = ["checked_file", "digest_of"]


def checked_file(path: str | Path, what: str) -> Path:
    """Return *path* if a file with something in it is there; *what* says what it should be, as in ``an ONNX model``."""
    found = Path(path)
    if found.is_dir():
        raise InputError(f"{what}, a file", file=found, value="a directory")
    if not found.is_file():
        raise InputError(what, file=found, value="no such file")
    try:
        if found.stat().st_size == 0:
            raise InputError(what, file=found, value="an empty file")
        with found.open("rb"):
            pass
    except OSError as error:
        raise InputError(f"{what} that can be read", file=found, value=error.strerror) from error
    return found


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
