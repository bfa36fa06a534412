"""One run of a job, seen from the engine: starting its runner, hearing of its end, stopping it."""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from commonwatt.engines.local import runner
from commonwatt.engines.local.folder import End, Processes, RunFolder, RunOrder
from commonwatt.engines.local.processes import end_marked, none_marked, opened
from commonwatt.model.errors import EngineError

__all__ = ["PATIENCE_S", "Run", "await_any", "passed_on", "reap"]

_children: set[int] = set()
"""Runners that are processes of ours, and of whose end nobody has taken note."""

PATIENCE_S = 5.0
"""How long a runner may take beyond a job's grace time before it is killed itself, and then to be gone."""

_BLINK_S = 0.02
"""How often to look at a run whose process is not known (yet)."""

_AGAIN_S = 1.0
"""How often to look for what a dead runner has left and what does not die, killed."""

_LONGEST_WAIT_S = 3600.0
"""The system counts a wait in milliseconds, of which it cannot take more than 24.8 days."""

_MARK = "COMMONWATT_PROGRESS"
"""A variable by which the processes of a job are known: each job has a file of its own."""

_PASSED_ON = frozenset(
    {"CONDA_DEFAULT_ENV", "CONDA_PREFIX", "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "SHELL"}
    | {"TMPDIR", "TZ", "USER", "VIRTUAL_ENV"}
)
_PASSED_ON_FAMILIES = ("CUDA_", "LC_", "NCCL_", "NVIDIA_", "OMP_", "PYTHON", "XDG_")


@dataclass(slots=True)
class Run:
    """A run that was ordered, and of whose end nobody has been told yet."""

    folder: RunFolder
    order: RunOrder
    watched: int = -1  # a descriptor that becomes readable when the runner ends
    child: int | None = None  # the runner, until it is known to have ended, if it is a process of ours
    told_s: float | None = None  # when it was first asked to stop
    orphaned_s: float | None = None  # since when its runner is dead, and what that has left, though killed, is not
    again_s: float = -math.inf  # when to look for that next

    def launch(self) -> None:
        """Start the runner."""
        devices = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
        command = [sys.executable, "-I", runner.__file__, str(self.folder.path)]
        try:
            environment = passed_on(os.environ)
            self.child = os.posix_spawn(sys.executable, command, environment, file_actions=devices, setsid=True)
            _children.add(self.child)
        except OSError as error:
            self.folder.finish(End(None, stopped=False, at_s=time.time(), cause=f"no runner could be started: {error}"))

    def stuck(self) -> bool:
        """Whether it is there still though it was killed."""
        killed_s = math.inf if self.told_s is None else self.told_s + self.order.grace_s + PATIENCE_S
        return time.monotonic() > killed_s + PATIENCE_S

    def watch(self) -> None:
        """Get a descriptor of the runner's process, once it has one and as long as it lives."""
        if self.watched >= 0 or self.orphaned_s is not None:
            return
        if self.folder.end() is not None:
            return
        if self.child is not None:
            with suppress(ProcessLookupError):
                self.watched = os.pidfd_open(self.child)
        elif (known := self.folder.processes()) is not None:
            self.watched = opened(known.runner, str(self.folder.path))

    def tell(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask the runner to stop its job; with SIGKILL both die at once."""
        self.told_s = time.monotonic() if self.told_s is None else self.told_s
        self.watch()
        if self.watched >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.watched, number)

    def glance(self) -> End | None:
        """Return how the run ended, as ``ended`` does, but look for what a dead runner has left only now and then."""
        return None if time.monotonic() < self.again_s else self.ended()

    def ended(self) -> End | None:
        """Return how the run ended, writing it down for a runner that died without doing so."""
        end = self.folder.end()
        if end is not None:
            return end
        if self.child is not None and not _reaped(self.child, os.WNOHANG):
            return None
        self.child = None
        with self.folder.without_runner() as dead:
            if not dead:
                return None
            end = self.folder.end()
            if end is None:
                known = self.folder.processes()
                if not self._cleared(known):
                    self.forsake()  # the end of a runner, once come, would be told for ever
                    now_s = time.monotonic()
                    self.orphaned_s, self.again_s = self.orphaned_s or now_s, now_s + _AGAIN_S
                    return None
                cause = "its runner died" if known else "it never began"
                end = End(None, stopped=False, at_s=time.time(), cause=cause)
                self.folder.finish(end)
        return end

    def _cleared(self, known: Processes | None) -> bool:
        """Kill what the job has left: it died with its runner, what it started may not have; says whether all is gone.

        Numbers of processes are given again: only what is surely of this job is killed.
        """
        if known is not None and known.job.there():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(known.job.pid, signal.SIGKILL)
        own = self.order.environment.get(_MARK)
        gone = end_marked if self.orphaned_s is None else none_marked
        return own is None or gone(f"{_MARK}={own}")

    def await_end(self) -> End:
        """Return how the run ended that was told to; raises ``EngineError`` if its processes do not end even killed."""
        now_s = time.monotonic()
        kill_s = max(now_s, (now_s if self.told_s is None else self.told_s) + self.order.grace_s + PATIENCE_S)
        while (end := self.ended()) is None:
            kill_s = kill_s if self.orphaned_s is None else min(kill_s, self.orphaned_s)
            left_s = kill_s - time.monotonic()
            if left_s < -PATIENCE_S:
                msg = f"stop {self.order.name}: its processes do not end, even killed"
                raise EngineError(msg)
            if left_s <= 0 or self.watched < 0:
                self.tell(signal.SIGKILL if left_s <= 0 else signal.SIGTERM)
                time.sleep(_BLINK_S)
            else:
                select.select([self.watched], [], [], min(left_s, _LONGEST_WAIT_S))
        return end

    def close(self) -> None:
        """Let go of a run that has ended."""
        if self.watched >= 0:
            os.close(self.watched)
            self.watched = -1
        if self.child is not None:
            _reaped(self.child, 0)
            self.child = None

    def forsake(self) -> None:
        """Let go of a run that goes on without us."""
        if self.watched >= 0:
            os.close(self.watched)
            self.watched = -1


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what jobs get of *environment*, that of the controller, which may hold secrets."""
    return {
        name: value for name, value in environment.items() if name in _PASSED_ON or name.startswith(_PASSED_ON_FAMILIES)
    }


def reap() -> None:
    """Take note of runners that have ended, also of those an engine before us started in this process."""
    for child in tuple(_children):
        if _reaped(child, os.WNOHANG):
            _children.discard(child)


def await_any(runs: Collection[Run], seconds: float, waker: int = -1) -> None:
    """Return after so long, as soon as one of *runs* has ended, or when the descriptor *waker* is readable."""
    until_s = time.monotonic() + seconds
    while (left_s := until_s - time.monotonic()) > 0:
        waiting = select.poll()
        if waker >= 0:
            waiting.register(waker, select.POLLIN)
        blind = []
        for run in runs:
            run.watch()
            if run.watched < 0:
                blind.append(run)
            else:
                waiting.register(run.watched, select.POLLIN)
        if any(run.glance() for run in blind):
            return
        now_s = time.monotonic()
        longest_s = min([left_s, _LONGEST_WAIT_S, *(max(_BLINK_S, run.again_s - now_s) for run in blind)])
        if waiting.poll(1000 * longest_s):
            return


def _reaped(child: int, how: int) -> bool:
    """Take note of the end of a process of ours; with ``WNOHANG`` says whether it has come."""
    try:
        return os.waitpid(child, how)[0] == child
    except ChildProcessError:
        return True
