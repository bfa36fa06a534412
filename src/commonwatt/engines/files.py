"""Reading and writing small files in folders to which jobs can write, too: nothing there may hold a controller up."""

from __future__ import annotations

import json
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["read_json", "read_small", "write_record", "write_text"]


def read_small(path: Path, most_bytes: int) -> bytes:
    """Return what the file *path* holds; never waits for anybody.

    Raises ``OSError`` if it cannot be read, is no regular file (a pipe, a device, a folder), or longer than that.
    """
    _hold_regular(path, path.stat())  # a device is not even opened
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(number, "rb") as file:
        _hold_regular(path, os.fstat(number))
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        msg = f"{path} is longer than {most_bytes} bytes"
        raise OSError(msg)
    return content


def _hold_regular(path: Path, seen: os.stat_result) -> None:
    if not stat.S_ISREG(seen.st_mode):
        msg = f"{path} is not a regular file"
        raise OSError(msg)


def read_json(path: Path, most_bytes: int) -> Any:  # noqa: ANN401
    """Return the document in the file *path*; raises ``OSError`` as ``read_small`` does, and ``ValueError``."""
    try:
        return json.loads(read_small(path, most_bytes).decode("utf-8"))
    except RecursionError as error:
        msg = f"{path} has too many brackets in one another"
        raise ValueError(msg) from error


def write_record(path: Path, document: dict[str, Any], mode: int = 0o600) -> None:
    """Write *document* whole or not at all, and have it on the disk before returning; raises ``OSError``."""
    write_text(path, json.dumps(document), mode)


def write_text(path: Path, text: str, mode: int = 0o600) -> None:
    """The same for any text."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")  # one nobody else has put in the way
    number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(number)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
