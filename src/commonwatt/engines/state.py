"""The state folder of an engine: whose it is, and that one controller at a time uses it."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from commonwatt.engines.files import read_json, read_small, write_text
from commonwatt.model.errors import EngineError

__all__ = ["Held", "hold", "identity_in", "make_identity", "used_by_another"]

_MOST_BYTES = 4096


def make_identity(state: Path, first: str) -> str:
    """Return by what the folder *state* is known wherever it is moved, made up once; *first* is its first part.

    The other part is random. Raises ``OSError``, and as ``identity_in`` does.
    """
    state.mkdir(parents=True, exist_ok=True)
    if not identity_in(state):
        write_text(state / "identity", f"{first}:{uuid.uuid4().hex[:12]}", 0o644)
    return identity_in(state)


def identity_in(state: Path) -> str:
    """Return the identity of a state folder, "" if it has none; raises ``EngineError`` if it cannot be read."""
    path = state / "identity"
    try:
        return read_small(path, _MOST_BYTES).decode("utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError) as error:
        msg = f"{path} cannot be read: {error}"
        raise EngineError(msg) from error


class Held:
    """A state folder that this process uses, and no other. It is given free with the process at the latest."""

    def __init__(self, number: int) -> None:
        self._number = number

    def release(self) -> None:
        """Give it free."""
        if self._number >= 0:
            os.close(self._number)
            self._number = -1


def hold(state: Path, store: str) -> Held:
    """Keep other controllers off the folder *state*, which is made if need be; *store* says to them whose it is.

    Raises ``EngineError`` if another one uses it, it cannot be written, or is on a file system without locks.
    """
    path = state / "controller"
    try:
        state.mkdir(parents=True, exist_ok=True)
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        msg = f"the state folder {state} cannot be used: {error.strerror}"
        raise EngineError(msg) from error
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(number)
        msg = f"{_told(_holder(path))} uses the state folder {state}; only one may"
        raise EngineError(msg) from error
    except OSError as error:
        os.close(number)
        msg = f"the state folder {state} is on a file system that cannot lock files (flock): {error.strerror}"
        raise EngineError(msg) from error
    with suppress(OSError):  # a full disk: then nobody is told who it is
        os.ftruncate(number, 0)
        os.pwrite(number, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "store": store}).encode(), 0)
    return Held(number)


def used_by_another(state: Path, store: str) -> str | None:
    """Return who uses the folder *state* for another store than *store*, if anybody does; changes nothing."""
    path = state / "controller"
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        said = _holder(path)
        return None if said.get("store") == store else _told(said)
    except OSError:
        return None
    finally:
        os.close(number)
    return None


def _holder(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        said = read_json(path, _MOST_BYTES)
        return said if isinstance(said, dict) else {}
    return {}


def _told(said: dict[str, Any]) -> str:
    if {"pid", "host", "store"} <= said.keys():
        return f"another controller, process {said['pid']} on {said['host']} with the store {said['store']},"
    return "another controller"
