"""Runs one job: started detached by the engine, it outlives the engine, and writes down how the job ended.

A program of its own, ``python runner.py FOLDER``, on the standard library alone, so that it starts in milliseconds and
an upgrade of commonwatt does not affect a running job. An engine on another machine gives up a run by writing down its
end.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import math
import os
import pwd
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_OVER_LIMIT, _NOT_EXECUTABLE, _NOT_FOUND = 124, 126, 127  # as timeout(1) and shells do
_OF_THE_JOB = frozenset({
    errno.E2BIG, errno.EACCES, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOEXEC,
    errno.ENOTDIR,
})  # fmt: skip
"""Errors of a start that another attempt would repeat; others may be the machine's."""
_AGAIN_S = 0.5  # how often to try to write down the end
_TURN_S = 0.2  # how often to check whether the run before is gone
_KILL_AGAIN_S = 0.05  # how often to look for processes that are left of a job
_IN_VAIN = 20  # attempts before processes that cannot be killed are left alone
_OUTPUT_S, _OUTPUT_MOST_S = 0.25, 5.0  # how often to look at how much was printed; less often while nothing is
_LEAST_OUTPUT = 1_000_000
_ECHO_S, _ECHO_MOST_S = 0.25, 5.0  # how often to copy what was printed; how long to wait at the end for its reader
_FILES_S, _FILES_PART = 2.0, 0.02  # how often to add up a job's files, and the part of time that may take
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
    """Become the parent of orphans of the job, so that all its processes can be found."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, *map(ctypes.c_ulong, (1, 0, 0, 0)))


def _stat(pid: int) -> list[bytes]:
    """Return the fields of ``/proc/PID/stat`` from the third on; raises ``OSError``."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()


def _began(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot."""
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
    """Return our descendants, and when each started."""
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
    descendants, at = {}, [os.getpid()]
    while at:
        for pid in children.pop(at.pop(), []):
            descendants[pid] = began[pid]
            at.append(pid)
    return descendants


class _Output:
    """The file a job prints to, of which the end is kept; the job appends to it all the while."""

    def __init__(self, number: int, most: int | None, reserve: int) -> None:
        self._number, self._most, self._reserve = number, most, reserve
        self._size, self._next_s, self._pause_s = 0, time.monotonic(), _OUTPUT_S
        self._dropped, self._noted = 0, 0  # bytes of output that are gone in all; bytes of the line that says so

    def tend(self) -> float:
        """Cut it if it is due and too long; returns when to look again, by the monotonic clock."""
        now_s = time.monotonic()
        if now_s < self._next_s or (self._most is None and not self._reserve):
            return math.inf if self._most is None and not self._reserve else self._next_s
        with suppress(OSError):
            size, space = os.fstat(self._number).st_size, os.fstatvfs(self._number)
            scarce = space.f_bavail * space.f_frsize < self._reserve
            most = min(_LEAST_OUTPUT if scarce else size, self._most or size)
            if size > most:
                self._cut(size, most)
            self._pause_s = _OUTPUT_S if size != self._size else min(_OUTPUT_MOST_S, 2 * self._pause_s)
            self._size = size
        self._next_s = now_s + self._pause_s
        return self._next_s

    def finish(self) -> None:
        """Cut it once more, when the job has ended."""
        self._next_s = 0.0
        self.tend()

    def _cut(self, size: int, most: int) -> None:
        """Move the last half of *most* bytes to the beginning: this takes no space, which there may not be."""
        begin = size - most // 2
        self._dropped += max(0, begin - self._noted)
        to = self._noted = os.pwrite(self._number, self._note(), 0)
        while part := os.pread(self._number, 1 << 20, begin):
            begin += len(part)
            to += os.pwrite(self._number, part, to)
            if begin >= size + most:
                break  # it prints faster than this copies
        missed = os.fstat(self._number).st_size - begin
        os.ftruncate(self._number, to)
        self._dropped += missed
        if missed and len(note := self._note()) == self._noted:
            os.pwrite(self._number, note, 0)

    def _note(self) -> bytes:
        return f"[commonwatt: {self._dropped} bytes of output before this line were dropped]\n".encode()


class _Echo(threading.Thread):
    """Copies what a job prints to our own output, as it comes; what is cut from the file meanwhile may be missing.

    It is a thread of its own: a reader that does not read must not keep the job from being stopped.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._file, self._over = path.open("rb"), threading.Event()

    def run(self) -> None:
        """Copy until the job is over and all is copied."""
        at, last = 0, False
        with self._file, suppress(OSError):
            while not last:
                last = self._over.wait(_ECHO_S)
                at = min(at, os.fstat(self._file.fileno()).st_size)
                while part := os.pread(self._file.fileno(), 1 << 16, at):
                    at += len(part)
                    while part:
                        part = part[os.write(1, part) :]

    def finish(self) -> None:
        """Wait until all is copied, but not for long."""
        self._over.set()
        self.join(_ECHO_MOST_S)


class _Files(threading.Thread):
    """Adds up the files of a folder now and then, beside our other work: a walk can take long."""

    def __init__(self, folder: Path, most: int) -> None:
        super().__init__(daemon=True)
        self._folder, self._most = folder, most
        self.over = 0  # their size, once it is more than they may have

    def run(self) -> None:
        """Look until there are too many."""
        while not self.over:
            began_s = time.monotonic()
            size = _size_of(self._folder)
            self.over = size if size > self._most else 0
            time.sleep(max(_FILES_S, (time.monotonic() - began_s) / _FILES_PART))


def _size_of(folder: Path) -> int:
    """Return the space that the files in *folder* take: a file with several names once, one that goes meanwhile not."""
    size, seen = 0, set()
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                there = os.lstat(f"{place}/{name}")
                if there.st_nlink == 1 or (there.st_dev, there.st_ino) not in seen:
                    seen.add((there.st_dev, there.st_ino))
                    size += 512 * there.st_blocks
    return size


class _Signals:
    """Handles SIGTERM, by which the engine stops the job, and SIGCHLD."""

    def __init__(self) -> None:
        self.stop_s: float | None = None
        self.job: subprocess.Popen[bytes] | None = None
        self.woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._hear)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGCHLD})

    def _hear(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.stop_s is None:
            self.stop_s = time.monotonic()
            self.pass_on(signal.SIGTERM)

    def rest(self) -> None:
        """Clear the wake-up pipe."""
        with suppress(BlockingIOError):
            os.read(self.woken, 4096)

    def pass_on(self, number: signal.Signals) -> bool:
        """Send a signal to the job and all its descendants; returns whether any process got it."""
        if self.job is None:
            return False
        got, group = False, self.job.pid if self.job.returncode is None else 0
        if group:  # all at once, so that no process can start a child meanwhile that does not get it
            with suppress(OSError):
                os.killpg(group, number)
                got = True
        for pid, began in _descendants().items():
            with suppress(OSError):
                if not group or os.getpgid(pid) != group:
                    got |= _send(pid, began, number)
        return got


def _send(pid: int, began: int, number: signal.Signals) -> bool:
    """Send a signal to the process with this number, if it started at *began*."""
    process = os.pidfd_open(pid)
    try:
        same = _began(pid) == began
        if same:
            signal.pidfd_send_signal(process, number)
        return same
    finally:
        os.close(process)


def main(folder: Path) -> int:
    """Run the job of *folder*; returns its exit code, as a shell would, once its end is written down."""
    signals = _Signals()
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if Path("/proc/self/fd").is_dir():
        folder = Path(f"/proc/self/fd/{number}")  # which still works when the folder is moved
    lock = (folder / "lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 1  # another runner has the lock, or the engine is giving the run up
    if (folder / "end.json").exists():
        return 1
    if (folder / "runner.json").exists():  # a run begins once: Slurm may have requeued it
        _write(folder / "end.json", _end(None, signals, "its runner died"))
        return 1
    spec = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    if _fenced_off(spec):
        _write(folder / "end.json", _end(None, signals, "another controller had taken over before it began"))
        return 1
    began_s = time.monotonic()
    code, cause, reason = _run(spec, folder, signals)
    end = _end(code, signals, cause) | {"ran_s": time.monotonic() - began_s, "reason": reason}
    end["over_limit"] = reason == "time-limit"
    while not (folder / "end.json").exists():  # else it was given up meanwhile
        try:
            _write(folder / "end.json", end)
        except OSError:  # a full disk: the run is over once this is written
            if _is_deleted(number):
                return 1
            time.sleep(_AGAIN_S)
        else:
            break
    else:
        return 1
    if code is None:
        return 0 if signals.stop_s is not None else 1
    return code if code >= 0 else 128 - code


def _fenced_off(spec: dict[str, Any]) -> bool:
    """Whether another controller has taken over since the run was ordered: a frozen one may order it when it thaws."""
    try:
        return bool(spec.get("fence")) and Path(spec["fence_file"]).read_text(encoding="utf-8") != spec["fence"]
    except OSError:
        return False


def _is_deleted(number: int) -> bool:
    """Whether the open folder *number* was deleted: then nobody needs the end."""
    try:
        return os.fstat(number).st_nlink == 0
    except OSError:
        return False


def _end(code: int | None, signals: _Signals, cause: str) -> dict[str, Any]:
    return {"exit_code": code, "stopped": signals.stop_s is not None, "at_s": time.time(), "cause": cause}


def _await_turn(path: str, folder: Path, signals: _Signals) -> IO[str] | None:
    """Wait until no other run of the job is alive; ``None`` if this one is stopped, or given up, before."""
    lock = Path(path).open("a")  # noqa: SIM115
    waiting = select.poll()
    waiting.register(signals.woken, select.POLLIN)
    while signals.stop_s is None and not (folder / "end.json").exists():
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting.poll(1000 * _TURN_S)
            signals.rest()
        else:
            return lock
    return None


def _inherited() -> dict[str, str]:
    """Our environment, without what tells a job's own ``srun`` to hand on what ``sbatch`` was told to."""
    return {name: value for name, value in os.environ.items() if name != "SLURM_EXPORT_ENV"}


def _run(spec: dict[str, Any], folder: Path, signals: _Signals) -> tuple[int | None, str, str]:
    """Run the command; returns its exit code, the cause in words, and a typed reason (or "")."""
    locks = [*filter(None, [spec.get("lock")]), *spec.get("locks", ())]
    turns = [_await_turn(path, folder, signals) for path in locks]  # locked as long as we live
    if signals.stop_s is not None or None in turns:
        return None, "stopped before it began", ""
    _take_in_orphans()
    try:
        owner, own = _owner(spec.get("user"))
    except KeyError:
        return None, f"there is no user {spec['user']} on this machine", ""
    with (folder / "output.log").open("ab") as output:
        try:
            job = subprocess.Popen(  # noqa: S603
                spec["command"],
                cwd=spec["folder"],
                env={**_inherited(), **own, **spec["environment"]},
                **owner,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_the_runner,  # noqa: PLW1509
            )
        except OSError as error:
            return _refused(spec, error)
    signals.job = job
    try:
        began = {"runner_began": _began(os.getpid()), "job_began": _began(job.pid)}
        _write(folder / "runner.json", {"runner": os.getpid(), "job": job.pid, "boot": _boot(), **began})
    except OSError as error:
        _clear(job, signals)
        return None, f"its records cannot be written: {error}", ""
    if signals.stop_s is not None:
        signals.pass_on(signal.SIGTERM)
    echo = _Echo(folder / "output.log") if spec.get("echo") else None
    if echo is not None:
        echo.start()
    with (folder / "output.log").open("r+b") as written:
        kept = _Output(written.fileno(), spec.get("output_bytes"), spec.get("reserve_bytes") or 0)
        files = _Files(Path(spec["files_folder"]), spec["files_bytes"]) if spec.get("files_bytes") else None
        if files is not None:
            files.start()
        over = _wait(job, signals, spec, folder / "end.json", kept, files)
        code = _clear(job, signals)
        if echo is not None:
            echo.finish()
        kept.finish()
    if files is not None and files.over and over:
        took, most = files.over / 1e9, spec["files_bytes"] / 1e9
        return _OVER_LIMIT, f"its files in {spec['files_folder']} took {took:.3g} GB, more than {most:g}", "files-limit"
    if over:
        return _OVER_LIMIT, f"its time limit of {spec['limit_s']:g} s was over", "time-limit"
    return code, f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}", ""


def _owner(name: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Return how a process is started as the user *name*, and that user's variables; raises ``KeyError``."""
    if name is None:
        return {}, {}
    user = pwd.getpwnam(name)
    groups = os.getgrouplist(name, user.pw_gid)
    variables = {"HOME": user.pw_dir, "USER": name, "LOGNAME": name, "SHELL": user.pw_shell}
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": groups}, variables


def _refused(spec: dict[str, Any], error: OSError) -> tuple[int | None, str, str]:
    """Return the end of a run whose command could not be started."""
    in_folder = str(error.filename) == str(spec["folder"]) != str(spec["command"][0])
    if error.errno not in _OF_THE_JOB or (in_folder and spec.get("lock")):  # this node may lack a shared folder
        return None, f"could not be started: {error}", ""
    if in_folder:
        return _NOT_EXECUTABLE, f"its folder {spec['folder']} cannot be entered: {error.strerror}", "no-folder"
    if error.errno == errno.ENOENT:
        return _NOT_FOUND, f"its command was not found: {spec['command'][0]}", "command-not-found"
    return _NOT_EXECUTABLE, f"its command cannot be run: {error}", "not-executable"


def _wait(
    job: subprocess.Popen[bytes], signals: _Signals, spec: dict[str, Any], end: Path, output: _Output,
    files: _Files | None,
) -> bool:  # fmt: skip
    """Return when the job has ended, or has to be killed; returns whether its time limit was over.

    It has to be killed if it, or a process it started, does not end within its grace time after a stop was requested,
    its time limit was over, or its *files* took too much; at once if the engine gave the run up.
    """
    limit_s, look_s = spec.get("limit_s"), spec.get("look_s")
    over_s = math.inf if limit_s is None else time.monotonic() + limit_s
    warned = False
    waiting = select.poll()
    waiting.register(signals.woken, select.POLLIN)
    while True:
        left = _reap(job)
        if job.returncode is not None and not (left and (warned or signals.stop_s is not None)):
            return warned
        now_s = time.monotonic()
        if files is not None and files.over:
            over_s = min(over_s, now_s)
        if signals.stop_s is None and now_s >= over_s and not warned:
            warned = True
            signals.pass_on(signal.SIGTERM)
        kill_s = min(over_s, math.inf if signals.stop_s is None else signals.stop_s) + spec["grace_s"]
        if now_s >= kill_s or (look_s is not None and end.exists()):
            return warned
        next_s = min(kill_s if warned else min(over_s, kill_s), math.inf if look_s is None else now_s + look_s)
        next_s = min(next_s, output.tend(), math.inf if files is None or files.over else now_s + _FILES_S)
        waiting.poll(1000 * min(_LONGEST_WAIT_S, max(0.0, next_s - now_s)))
        signals.rest()


def _reap(job: subprocess.Popen[bytes]) -> bool:
    """Reap children; returns whether any are left."""
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


def _clear(job: subprocess.Popen[bytes], signals: _Signals) -> int:
    """Kill the job and all its descendants until none is left, if possible; returns the job's exit code."""
    waiting, in_vain = select.poll(), 0
    waiting.register(signals.woken, select.POLLIN)
    while _reap(job) and in_vain < _IN_VAIN:
        in_vain = 0 if signals.pass_on(signal.SIGKILL) else in_vain + 1
        waiting.poll(1000 * _KILL_AGAIN_S)
        signals.rest()
    return job.wait()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
