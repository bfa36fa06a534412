"""Runs one job: started detached by the engine, it outlives it, and writes down how the job ended.

A program of its own, ``python runner.py FOLDER``, on the standard library alone, so that it starts in milliseconds and
a change of commonwatt under a running job does not touch it.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1


def _write(path: Path, document: dict[str, Any]) -> None:
    temporary = path.with_name(path.name + ".part")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _die_with_the_runner() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _Told:
    """Hears SIGTERM: the engine wants the job off its GPUs."""

    def __init__(self) -> None:
        self.at_s: float | None = None
        self.job: subprocess.Popen[bytes] | None = None
        self.woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGTERM, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.at_s is None:
            self.at_s = time.monotonic()
            self.pass_on(signal.SIGTERM)

    def rest(self) -> None:
        """Forget what woke us."""
        with suppress(BlockingIOError):
            os.read(self.woken, 4096)

    def pass_on(self, number: signal.Signals) -> None:
        if self.job is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.job.pid, number)


def main(folder: Path) -> int:
    """Run the job ordered in *folder*; returns 0 once its end is written down."""
    told = _Told()
    lock = (folder / "lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 1  # another runner has it, or the engine is just giving it up
    if (folder / "end.json").exists():
        return 1
    order = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    code, cause = _run(order, folder, told)
    end = {"exit_code": code, "stopped": told.at_s is not None, "at_s": time.time(), "cause": cause}
    _write(folder / "end.json", end)
    return 0


def _run(order: dict[str, Any], folder: Path, told: _Told) -> tuple[int | None, str]:
    if told.at_s is not None:
        return None, "stopped before it began"
    with (folder / "output.log").open("ab") as output:
        try:
            job = subprocess.Popen(  # noqa: S603
                order["command"],
                cwd=order["folder"],
                env={**os.environ, **order["environment"]},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_the_runner,  # noqa: PLW1509
            )
        except OSError as error:
            return None, f"could not be started: {error}"
    told.job = job
    _write(folder / "runner.json", {"runner": os.getpid(), "job": job.pid})
    if told.at_s is not None:
        told.pass_on(signal.SIGTERM)
    code = _wait(job, told, order["grace_s"])
    told.pass_on(signal.SIGKILL)  # whatever of its group is left
    return code, f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _wait(job: subprocess.Popen[bytes], told: _Told, grace_s: float) -> int:
    """Return the job's exit code; killed if it is told to stop and does not within *grace_s*."""
    waiting = select.poll()
    waiting.register(os.pidfd_open(job.pid), select.POLLIN)
    waiting.register(told.woken, select.POLLIN)
    while job.poll() is None:
        left_s = None if told.at_s is None else told.at_s + grace_s - time.monotonic()
        if left_s is not None and left_s <= 0:
            told.pass_on(signal.SIGKILL)
            return job.wait()
        waiting.poll(None if left_s is None else 1000 * left_s)
        told.rest()
    return job.wait()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
