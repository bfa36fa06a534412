"""The state folder of an engine: its small files, its identity, and the lock of the one controller that uses it.

Jobs can write to such a folder, too: nothing they put there may block a controller.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import socket
import stat
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from commonwatt.engines.local.processes import Process, opened, this_process
from commonwatt.model.errors import EngineError

__all__ = [
    "FolderLock",
    "fence_in",
    "hold",
    "identity_in",
    "make_identity",
    "read_json",
    "read_small",
    "set_fence",
    "used_by_another",
    "write_record",
    "write_text",
]  # fmt: skip

_FENCE = "fence"
_MOST_BYTES = 4096
_PATIENCE_S, _GONE_S, _BLINK_S = 1.0, 5.0, 0.05
"""How long a controller that has lost its claim may keep a folder, and how long its end may take. Seconds."""


def read_small(path: Path, most_bytes: int, *, follow: bool = True) -> bytes:
    """Return the content of the file *path*; never blocks.

    Raises ``OSError`` if it cannot be read, is no regular file (but a pipe, a device, a folder; with *follow* false, a
    link), or is too long.
    """
    _check_regular(path, path.stat(follow_symlinks=follow))  # a device is not even opened
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    number = os.open(path, flags)
    with os.fdopen(number, "rb") as file:
        _check_regular(path, os.fstat(number))
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        msg = f"{path} is longer than {most_bytes} bytes"
        raise OSError(msg)
    return content


def _check_regular(path: Path, seen: os.stat_result) -> None:
    if not stat.S_ISREG(seen.st_mode):
        msg = f"{path} is not a regular file"
        raise OSError(msg)


def read_json(path: Path, most_bytes: int, *, follow: bool = True) -> Any:  # noqa: ANN401
    """Return the document in the file *path*; raises ``OSError`` as ``read_small`` does, and ``ValueError``."""
    try:
        return json.loads(read_small(path, most_bytes, follow=follow).decode("utf-8"))
    except RecursionError as error:
        msg = f"{path} is nested too deeply"
        raise ValueError(msg) from error


def write_record(path: Path, document: dict[str, Any], mode: int = 0o600) -> None:
    """Write *document* whole or not at all, and onto the disk before returning; raises ``OSError``."""
    write_text(path, json.dumps(document), mode)


def write_text(path: Path, text: str, mode: int = 0o600) -> None:
    """Write *text* as ``write_record`` does."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")  # a name no job can have taken
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


def make_identity(state: Path, first: str) -> str:
    """Return the identity of the folder *state*, which it keeps when it is moved; made once, from *first* and chance.

    Raises ``OSError``, and as ``identity_in`` does.
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


def fence_in(state: Path) -> tuple[str, Path] | None:
    """Return the text of the file that says which controller's runs may begin, and the file; ``None``: all may."""
    try:
        return read_small(state / _FENCE, _MOST_BYTES).decode("utf-8"), state / _FENCE
    except (OSError, ValueError):
        return None


def set_fence(state: Path, *, anew: bool) -> None:
    """Make that file if there is none; *anew*: replace it, so that runs ordered before begin no more.

    Raises ``EngineError``.
    """
    if anew or fence_in(state) is None:
        try:
            write_text(state / _FENCE, secrets.token_hex(16), 0o644)
        except OSError as error:
            msg = f"the state folder {state} cannot be written: {error.strerror}"
            raise EngineError(msg) from error


class FolderLock:
    """A state folder that only this process uses; the lock ends with the process at the latest."""

    def __init__(self, number: int) -> None:
        self._number = number

    def release(self) -> None:
        """Release the lock."""
        if self._number >= 0:
            os.close(self._number)
            self._number = -1


def hold(state: Path, store: str, *, claimed: Callable[[], None] | None = None) -> FolderLock:
    """Lock the folder *state*, which is made if need be; *store* tells other controllers whose it is.

    With *claimed*, the caller has claimed *store*; it raises where that claim is lost. A controller of that store that
    still has the lock has lost its own. It gets a moment to release the lock. Then, if it is a process of this machine,
    it is killed, as it is frozen or hangs; the lock of one that is elsewhere is replaced.

    Raises ``EngineError`` if another controller uses it, it cannot be written, or its file system has no locks; and
    what *claimed* raises.
    """
    path = state / "controller"
    until_s, killed = time.monotonic() + _PATIENCE_S, False
    while (number := _locked(path)) is None:
        holder = _holder(path)
        if claimed is None or holder.get("store") != store or (killed and time.monotonic() > until_s):
            msg = f"{_user(holder)} already uses the state folder {state}"
            raise EngineError(msg)
        if time.monotonic() > until_s:
            claimed()  # this process, too, may have been frozen meanwhile
            until_s, killed = time.monotonic() + _GONE_S, True
            if not _killed(holder):
                with suppress(OSError):
                    path.unlink()
        time.sleep(_BLINK_S)
    own, namespace = this_process()
    document = {
        "pid": own.pid, "host": socket.gethostname(), "store": store, "boot": own.boot, "began": own.began,
        "namespace": namespace,
    }  # fmt: skip
    with suppress(OSError):  # a full disk: other controllers then do not learn who uses it
        os.ftruncate(number, 0)
        os.pwrite(number, json.dumps(document).encode(), 0)
    return FolderLock(number)


def _locked(path: Path) -> int | None:
    """Return a descriptor of the file *path*, locked; ``None`` if another process has locked it."""
    state = path.parent
    try:
        state.mkdir(parents=True, exist_ok=True)
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        msg = f"the state folder {state} cannot be used: {error.strerror}"
        raise EngineError(msg) from error
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(path.stat(), os.fstat(number)):  # it was not replaced meanwhile
            return number
    except BlockingIOError:
        pass
    except OSError as error:
        os.close(number)
        msg = f"the state folder {state} is on a file system that cannot lock files (flock): {error.strerror}"
        raise EngineError(msg) from error
    os.close(number)
    return None


def _killed(holder: dict[str, Any]) -> bool:
    """Kill the controller that *holder* describes, if it is surely a process of this machine; returns whether it is."""
    pid, boot, began = holder.get("pid"), holder.get("boot"), holder.get("began")
    if not (isinstance(pid, int) and isinstance(boot, str) and isinstance(began, int)):
        return False
    if holder.get("namespace") != this_process()[1] or (number := opened(Process(pid, boot, began), "")) < 0:
        return False
    try:
        signal.pidfd_send_signal(number, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(number)
    return True


def used_by_another(state: Path, store: str) -> str | None:
    """Return who uses the folder *state* for another store than *store*; ``None`` if nobody does."""
    path = state / "controller"
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _holder(path)
        return None if holder.get("store") == store else _user(holder)
    except OSError:
        return None
    finally:
        os.close(number)
    return None


def _holder(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        document = read_json(path, _MOST_BYTES)
        return document if isinstance(document, dict) else {}
    return {}


def _user(holder: dict[str, Any]) -> str:
    if {"pid", "host", "store"} <= holder.keys():
        return f"another controller, process {holder['pid']} on {holder['host']} with the store {holder['store']},"
    return "another controller"
