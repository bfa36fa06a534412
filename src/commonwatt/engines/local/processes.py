"""Processes of this machine, distinguished from later ones with the same number."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Process", "end_marked", "none_marked", "opened", "this_process"]

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_GONE_S = 0.2
_BLINK_S = 0.01


@dataclass(frozen=True)
class Process:
    """A process, as it was written down.

    Attributes
    ----------
    pid
        Its number.
    boot
        Boot of the machine; empty if that was not written.
    began
        When it started, in clock ticks since that boot.
    """

    pid: int
    boot: str = ""
    began: int | None = None

    @property
    def identified(self) -> bool:
        """Whether it can be distinguished from another of its number."""
        return self.began is not None and bool(self.boot)

    def there(self) -> bool:
        """Whether it exists now; never for one that is not identified."""
        if not self.identified:
            return False
        try:
            boot = _BOOT.read_text(encoding="ascii").strip()
            fields = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return False
        return boot == self.boot and int(fields[19]) == self.began


def this_process() -> tuple[Process, str]:
    """Return this process, identified as far as the machine allows, and the namespace of its number."""
    try:
        boot = _BOOT.read_text(encoding="ascii").strip()
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        return Process(os.getpid(), boot, int(fields[19])), str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return Process(os.getpid()), ""


def opened(process: Process, last_argument: str) -> int:
    """Return a descriptor of *process* if it exists, else -1.

    One that is not identified must have *last_argument* on its command line.
    """
    try:
        number = os.pidfd_open(process.pid)
    except (OSError, OverflowError):
        return -1
    if process.there() or (not process.identified and _called_with(process.pid, last_argument)):
        return number
    os.close(number)
    return -1


def end_marked(mark: str) -> bool:
    """Kill every process with *mark* (``NAME=VALUE``) in its environment; returns whether none is left."""
    until_s = time.monotonic() + _GONE_S
    while _kill_marked(os.fsencode(mark)):
        if time.monotonic() > until_s:
            return False
        time.sleep(_BLINK_S)
    return True


def none_marked(mark: str) -> bool:
    """Kill as ``end_marked`` does, without waiting; returns whether there was none."""
    return not _kill_marked(os.fsencode(mark))


def _kill_marked(mark: bytes) -> int:
    count = 0
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit() or not _has(name, mark):
            continue
        with suppress(OSError):
            number = os.pidfd_open(int(name))
            try:
                if _has(name, mark):  # still the same
                    signal.pidfd_send_signal(number, signal.SIGKILL)
                    count += 1
            finally:
                os.close(number)
    return count


def _has(pid: str, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _called_with(pid: int, last: str) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-2:] == [os.fsencode(last), b""]
    except OSError:
        return False
