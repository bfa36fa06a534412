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
_PR_SET_CHILD_SUBREAPER = 36
_OVER_LIMIT = 124  # what timeout(1) says, too
_AGAIN_S = 0.5  # how often to try to write down the end
_TURN_S = 0.2  # how often to look whether the run before is gone
_KILL_AGAIN_S = 0.05  # how often to look for what is left of a job
_IN_VAIN = 20  # so often, before what may not be killed is left alone
_LONGEST_WAIT_S = 3600.0  # poll() takes milliseconds, 24.8 days at most


def _write(path: Path, document: dict[str, Any]) -> None:
    temporary = path.with_name(path.name + ".part")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _die_with_the_runner() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _take_in_orphans() -> None:
    """Have whatever the job leaves without a parent become our child, so that nothing of it gets out of sight."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, *map(ctypes.c_ulong, (1, 0, 0, 0)))


def _stat(pid: int) -> list[bytes]:
    """Return the fields of ``/proc/PID/stat`` from the third on; raises ``OSError``."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()


def _began(pid: int) -> int | None:
    """Return when a process began, in clock ticks since the machine did."""
    try:
        return int(_stat(pid)[19])
    except (OSError, IndexError):
        return None


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _descendants() -> dict[int, int]:
    """Return the processes that came from us, however far, and when each began."""
    children: dict[int, list[int]] = {}
    began: dict[int, int] = {}
    try:
        names = os.listdir("/proc")  # noqa: PTH208
    except OSError:
        return {}
    for pid in map(int, filter(str.isdigit, names)):
        with suppress(OSError, IndexError):
            fields = _stat(pid)
            began[pid] = int(fields[19])
            children.setdefault(int(fields[1]), []).append(pid)
    found, at = {}, [os.getpid()]
    while at:
        for pid in children.pop(at.pop(), []):
            found[pid] = began[pid]
            at.append(pid)
    return found


class _Told:
    """Hears SIGTERM: the engine wants the job off its GPUs; and of the ends of children."""

    def __init__(self) -> None:
        self.at_s: float | None = None
        self.job: subprocess.Popen[bytes] | None = None
        self.woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._hear)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGCHLD})

    def _hear(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.at_s is None:
            self.at_s = time.monotonic()
            self.pass_on(signal.SIGTERM)

    def rest(self) -> None:
        """Forget what woke us."""
        with suppress(BlockingIOError):
            os.read(self.woken, 4096)

    def pass_on(self, number: signal.Signals) -> bool:
        """Send a signal to the job and all it started; says whether anything got it."""
        if self.job is None:
            return False
        got, group = False, self.job.pid if self.job.returncode is None else 0
        if group:  # at once, so that none of it can have a child meanwhile that does not get it
            with suppress(OSError):
                os.killpg(group, number)
                got = True
        for pid, began in _descendants().items():
            with suppress(OSError):
                if not group or os.getpgid(pid) != group:
                    got |= _send(pid, began, number)
        return got


def _send(pid: int, began: int, number: signal.Signals) -> bool:
    """Send a signal to the process that has had this number since *began*."""
    process = os.pidfd_open(pid)
    try:
        same = _began(pid) == began
        if same:
            signal.pidfd_send_signal(process, number)
        return same
    finally:
        os.close(process)


def main(folder: Path) -> int:
    """Run the job ordered in *folder*; returns its exit code, as a shell would, once its end is written down."""
    told = _Told()
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if Path("/proc/self/fd").is_dir():
        folder = Path(f"/proc/self/fd/{number}")  # by which it is found, too, once it was moved
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
            if _is_deleted(number):
                return 1
            time.sleep(_AGAIN_S)
        else:
            break
    else:
        return 1
    if code is None:
        return 0 if told.at_s is not None else 1
    return code if code >= 0 else 128 - code


def _is_deleted(number: int) -> bool:
    """Whether the open folder *number* is nowhere any more: nobody will ever ask how this ended."""
    try:
        return os.fstat(number).st_nlink == 0
    except OSError:
        return False


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
    _take_in_orphans()
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
        began = {"runner_began": _began(os.getpid()), "job_began": _began(job.pid)}
        _write(folder / "runner.json", {"runner": os.getpid(), "job": job.pid, "boot": _boot(), **began})
    except OSError as error:
        _clear(job, told)
        return None, f"its records cannot be written: {error}", False
    if told.at_s is not None:
        told.pass_on(signal.SIGTERM)
    over = _wait(job, told, order, folder / "end.json")
    code = _clear(job, told)
    if over:
        return _OVER_LIMIT, f"its time limit of {order['limit_s']:g} s was over", True
    return code, f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}", False


def _wait(job: subprocess.Popen[bytes], told: _Told, order: dict[str, Any], end: Path) -> bool:
    """Return when the job has ended, or is to be killed; says whether its time was over.

    It is to be killed if it is told to stop, or its time is over, and it or anything it started does not end within
    its grace time, and at once if the engine gave this run up.
    """
    limit_s, look_s = order.get("limit_s"), order.get("look_s")
    over_s = math.inf if limit_s is None else time.monotonic() + limit_s
    warned = False
    waiting = select.poll()
    waiting.register(told.woken, select.POLLIN)
    while True:
        left = _reap(job)
        if job.returncode is not None and not (left and (warned or told.at_s is not None)):
            return warned
        now_s = time.monotonic()
        if told.at_s is None and now_s >= over_s and not warned:
            warned = True
            told.pass_on(signal.SIGTERM)
        kill_s = min(over_s, math.inf if told.at_s is None else told.at_s) + order["grace_s"]
        if now_s >= kill_s or (look_s is not None and end.exists()):
            return warned
        next_s = min(kill_s if warned else min(over_s, kill_s), math.inf if look_s is None else now_s + look_s)
        waiting.poll(1000 * min(_LONGEST_WAIT_S, max(0.0, next_s - now_s)))
        told.rest()


def _reap(job: subprocess.Popen[bytes]) -> bool:
    """Take note of the ends of children; says whether there are any left."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        if ended is None:
            return True
        if ended.si_pid == job.pid:
            job.poll()
        else:
            with suppress(ChildProcessError):
                os.waitpid(ended.si_pid, os.WNOHANG)


def _clear(job: subprocess.Popen[bytes], told: _Told) -> int:
    """Kill the job and whatever it has started, as far as that may be, until nothing is left; returns its exit code."""
    waiting, in_vain = select.poll(), 0
    waiting.register(told.woken, select.POLLIN)
    while _reap(job) and in_vain < _IN_VAIN:
        in_vain = 0 if told.pass_on(signal.SIGKILL) else in_vain + 1
        waiting.poll(1000 * _KILL_AGAIN_S)
        told.rest()
    return job.wait()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
