"""One run of a job, as the engine handles it: starting its runner, watching for its end, stopping it."""

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
from commonwatt.engines.local.folder import End, Processes, RunFolder
from commonwatt.engines.local.processes import end_marked, none_marked, opened
from commonwatt.engines.run_spec import RunSpec
from commonwatt.model.errors import EngineError

__all__ = ["PATIENCE_S", "LocalRun", "await_any", "passed_on", "reap"]

_children: set[int] = set()
"""Runners that are children of this process, and were not reaped yet."""

PATIENCE_S = 5.0
"""How long a runner may take beyond a job's grace time before it is killed itself, and then to be gone."""

_BLINK_S = 0.02
"""How often to look at a run whose process is unknown (yet)."""

_AGAIN_S = 1.0
"""How often to look for processes of a dead runner that survive being killed."""

_LONGEST_WAIT_S = 3600.0
"""The system counts a wait in milliseconds, and takes 24.8 days at most."""

_MARK = "COMMONWATT_PROGRESS"
"""A variable that identifies the processes of a job: each job has a file of its own."""

_PASSED_ON = frozenset(
    {"CONDA_DEFAULT_ENV", "CONDA_PREFIX", "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "SHELL"}
    | {"TMPDIR", "TZ", "USER", "VIRTUAL_ENV"}
)
_PASSED_ON_FAMILIES = ("CUDA_", "LC_", "NCCL_", "NVIDIA_", "OMP_", "PYTHON", "XDG_")


@dataclass(slots=True)
class LocalRun:
    """A run whose end was not reported yet."""

    folder: RunFolder
    spec: RunSpec
    watched: int = -1  # a descriptor that becomes readable when the runner ends
    child: int | None = None  # the runner, until it was reaped, if it is a child of this process
    asked_s: float | None = None  # when it was first asked to stop
    orphaned_s: float | None = None  # since when its runner is dead, and processes of the job survive
    again_s: float = -math.inf  # when to look for these next

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
        """Whether it survived being killed."""
        killed_s = math.inf if self.asked_s is None else self.asked_s + self.spec.grace_s + PATIENCE_S
        return time.monotonic() > killed_s + PATIENCE_S

    def watch(self) -> None:
        """Get a descriptor of the runner's process, if there is one."""
        if self.watched >= 0 or self.orphaned_s is not None:
            return
        if self.folder.end() is not None:
            return
        if self.child is not None:
            with suppress(ProcessLookupError):
                self.watched = os.pidfd_open(self.child)
        elif (processes := self.folder.processes()) is not None:
            self.watched = opened(processes.runner, str(self.folder.path))

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask the runner to stop its job; SIGKILL kills both at once."""
        self.asked_s = time.monotonic() if self.asked_s is None else self.asked_s
        self.watch()
        if self.watched >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.watched, number)

    def glance(self) -> End | None:
        """Return how the run ended, as ``ended`` does, but look for orphaned processes only now and then."""
        return None if time.monotonic() < self.again_s else self.ended()

    def ended(self) -> End | None:
        """Return how the run ended; written down here if its runner died before it could."""
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
                processes = self.folder.processes()
                if not self._cleared(processes):
                    self.unwatch()  # the descriptor of a dead runner stays readable
                    now_s = time.monotonic()
                    self.orphaned_s, self.again_s = self.orphaned_s or now_s, now_s + _AGAIN_S
                    return None
                cause = "its runner died" if processes else "it never began"
                end = End(None, stopped=False, at_s=time.time(), cause=cause)
                self.folder.finish(end)
        return end

    def _cleared(self, processes: Processes | None) -> bool:
        """Kill processes that outlived the runner; returns whether none is left.

        The job died with its runner, its children may not have. Process numbers are reused: only processes that surely
        belong to this job are killed.
        """
        if processes is not None and processes.job.there():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(processes.job.pid, signal.SIGKILL)
        own = self.spec.environment.get(_MARK)
        gone = end_marked if self.orphaned_s is None else none_marked
        return own is None or gone(f"{_MARK}={own}")

    def await_end(self) -> End:
        """Wait for the end of a run that was asked to stop; raises ``EngineError`` if it survives being killed."""
        now_s = time.monotonic()
        kill_s = max(now_s, (now_s if self.asked_s is None else self.asked_s) + self.spec.grace_s + PATIENCE_S)
        while (end := self.ended()) is None:
            kill_s = kill_s if self.orphaned_s is None else min(kill_s, self.orphaned_s)
            left_s = kill_s - time.monotonic()
            if left_s < -PATIENCE_S:
                msg = f"stop {self.spec.name}: its processes do not end, even killed"
                raise EngineError(msg)
            if left_s <= 0 or self.watched < 0:
                self.terminate(signal.SIGKILL if left_s <= 0 else signal.SIGTERM)
                time.sleep(_BLINK_S)
            else:
                select.select([self.watched], [], [], min(left_s, _LONGEST_WAIT_S))
        return end

    def close(self) -> None:
        """Release a run that has ended."""
        if self.watched >= 0:
            os.close(self.watched)
            self.watched = -1
        if self.child is not None:
            _reaped(self.child, 0)
            self.child = None

    def unwatch(self) -> None:
        """Stop watching a run."""
        if self.watched >= 0:
            os.close(self.watched)
            self.watched = -1


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what jobs get of *environment*, that of the controller, which may contain secrets."""
    return {
        name: value for name, value in environment.items() if name in _PASSED_ON or name.startswith(_PASSED_ON_FAMILIES)
    }


def reap() -> None:
    """Reap runners that have ended, also those an earlier engine started in this process."""
    for child in tuple(_children):
        if _reaped(child, os.WNOHANG):
            _children.discard(child)


def await_any(runs: Collection[LocalRun], seconds: float, waker: int = -1) -> None:
    """Return after so long, as soon as one of *runs* has ended, or when the descriptor *waker* is readable."""
    until_s = time.monotonic() + seconds
    while (left_s := until_s - time.monotonic()) > 0:
        waiting = select.poll()
        if waker >= 0:
            waiting.register(waker, select.POLLIN)
        unwatched = []
        for run in runs:
            run.watch()
            if run.watched < 0:
                unwatched.append(run)
            else:
                waiting.register(run.watched, select.POLLIN)
        if any(run.glance() for run in unwatched):
            return
        now_s = time.monotonic()
        longest_s = min([left_s, _LONGEST_WAIT_S, *(max(_BLINK_S, run.again_s - now_s) for run in unwatched)])
        if waiting.poll(1000 * longest_s):
            return


def _reaped(child: int, how: int) -> bool:
    """Reap a child; with ``WNOHANG`` returns whether it had ended."""
    try:
        return os.waitpid(child, how)[0] == child
    except ChildProcessError:
        return True
