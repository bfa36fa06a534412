"""Runs one job: started detached by the engine, it outlives it, and writes down how the job ended.

A program of its own, ``python runner.py FOLDER``, on the standard library alone, so that it starts in milliseconds and
a change of commonwatt under a running job does not touch it. Where the engine is on another machine, it tells a run
that it was given up by writing down its end.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
_OVER_LIMIT = 124  # what timeout(1) says, too
_AGAIN_S = 0.5  # how often to try to write down the end
_TURN_S = 0.2  # how often to look whether the run before is gone


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
    """Run the job ordered in *folder*; returns its exit code, as a shell would, once its end is written down."""
    told = _Told()
    lock = (folder / "lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 1  # another runner has it, or the engine is just giving it up
    if (folder / "end.json").exists():
        return 1
    if (folder / "runner.json").exists():  # a run is begun once; what runs it may not know that it had
        _write(folder / "end.json", _end(None, told, "its runner died"))
        return 1
    order = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    began_s = time.monotonic()
    code, cause, over_limit = _run(order, folder, told)
    end = _end(code, told, cause) | {"ran_s": time.monotonic() - began_s, "over_limit": over_limit}
    while not (folder / "end.json").exists():  # else it was given up meanwhile
        try:
            _write(folder / "end.json", end)
        except OSError:  # a full disk: as long as this is not written, the run is not over
            time.sleep(_AGAIN_S)
        else:
            break
    else:
        return 1
    if code is None:
        return 0 if told.at_s is not None else 1
    return code if code >= 0 else 128 - code


def _end(code: int | None, told: _Told, cause: str) -> dict[str, Any]:
    return {"exit_code": code, "stopped": told.at_s is not None, "at_s": time.time(), "cause": cause}


def _await_turn(path: str, folder: Path, told: _Told) -> IO[str] | None:
    """Wait until no other run of the job is alive; ``None`` if this one is told to stop, or is given up, before."""
    lock = Path(path).open("a")  # noqa: SIM115
    waiting = select.poll()
    waiting.register(told.woken, select.POLLIN)
    while told.at_s is None and not (folder / "end.json").exists():
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting.poll(1000 * _TURN_S)
            told.rest()
        else:
            return lock
    return None


def _run(order: dict[str, Any], folder: Path, told: _Told) -> tuple[int | None, str, bool]:
    turn = _await_turn(order["lock"], folder, told) if order.get("lock") else None  # held as long as we live
    if told.at_s is not None or (turn is None and order.get("lock")):
        return None, "stopped before it began", False
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
            return None, f"could not be started: {error}", False
    told.job = job
    try:
        _write(folder / "runner.json", {"runner": os.getpid(), "job": job.pid})
    except OSError as error:
        told.pass_on(signal.SIGKILL)
        job.wait()
        return None, f"its records cannot be written: {error}", False
    if told.at_s is not None:
        told.pass_on(signal.SIGTERM)
    code, over = _wait(job, told, order, folder / "end.json")
    told.pass_on(signal.SIGKILL)  # whatever of its group is left
    if over:
        return _OVER_LIMIT, f"its time limit of {order['limit_s']:g} s was over", True
    return code, f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}", False


def _wait(job: subprocess.Popen[bytes], told: _Told, order: dict[str, Any], end: Path) -> tuple[int, bool]:
    """Return the job's exit code, and whether its time was over.

    It is killed if it is told to stop, or its time is over, and does not end within its grace time, and at once if the
    engine gave this run up.
    """
    limit_s, look_s = order.get("limit_s"), order.get("look_s")
    over_s = math.inf if limit_s is None else time.monotonic() + limit_s
    warned = False
    waiting = select.poll()
    waiting.register(os.pidfd_open(job.pid), select.POLLIN)
    waiting.register(told.woken, select.POLLIN)
    while job.poll() is None:
        now_s = time.monotonic()
        if told.at_s is None and now_s >= over_s and not warned:
            warned = True
            told.pass_on(signal.SIGTERM)
        kill_s = min(over_s, math.inf if told.at_s is None else told.at_s) + order["grace_s"]
        if now_s >= kill_s or (look_s is not None and end.exists()):
            told.pass_on(signal.SIGKILL)
            return job.wait(), warned
        next_s = min(kill_s if warned else min(over_s, kill_s), math.inf if look_s is None else now_s + look_s)
        waiting.poll(None if next_s == math.inf else 1000 * max(0.0, next_s - now_s))
        told.rest()
    return job.wait(), warned


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
