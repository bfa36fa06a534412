"""One run of a job, seen from the engine: starting its runner, hearing of its end, stopping it."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from commonwatt.engines.local import runner
from commonwatt.engines.local.folder import End, RunFolder, RunOrder
from commonwatt.model.errors import EngineError

__all__ = ["Run", "await_any", "reap"]

_children: set[int] = set()
"""Runners that are processes of ours, and of whose end nobody has taken note."""

_PATIENCE_S = 5.0
"""How long a runner may take beyond a job's grace time before it is killed itself, and then to be gone."""

_BLINK_S = 0.02
"""How often to look at a run whose process is not known (yet)."""


@dataclass(slots=True)
class Run:
    """A run that was ordered, and of whose end nobody has been told yet."""

    folder: RunFolder
    order: RunOrder
    watched: int = -1  # a descriptor that becomes readable when the runner ends
    child: int | None = None  # the runner, until it is known to have ended, if it is a process of ours

    def launch(self) -> None:
        """Start the runner."""
        devices = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
        command = [sys.executable, "-I", runner.__file__, str(self.folder.path)]
        try:
            self.child = os.posix_spawn(sys.executable, command, os.environ, file_actions=devices, setsid=True)
            _children.add(self.child)
        except OSError as error:
            self.folder.finish(End(None, stopped=False, at_s=time.time(), cause=f"no runner could be started: {error}"))

    def watch(self) -> None:
        """Get a descriptor of the runner's process, once it has one and as long as it lives."""
        if self.watched >= 0:
            return
        known = self.folder.processes()
        pid = self.child if self.child is not None else known[0] if known else None
        if pid is not None and self.folder.end() is None:
            with suppress(ProcessLookupError):
                self.watched = os.pidfd_open(pid)

    def tell(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask the runner to stop its job; with SIGKILL both die at once."""
        self.watch()
        if self.watched >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.watched, number)

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
                if known is not None:  # the job died with its runner; its children may not have
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(known[1], signal.SIGKILL)
                cause = "its runner died" if known else "it never began"
                end = End(None, stopped=False, at_s=time.time(), cause=cause)
                self.folder.finish(end)
        return end

    def await_end(self) -> End:
        """Return how the run ended that was told to; raises ``EngineError`` if its processes do not end even killed."""
        kill_s = time.monotonic() + self.order.grace_s + _PATIENCE_S
        while (end := self.ended()) is None:
            left_s = kill_s - time.monotonic()
            if left_s < -_PATIENCE_S:
                msg = f"stop {self.order.name}: its processes do not end, even killed"
                raise EngineError(msg)
            if left_s <= 0 or self.watched < 0:
                self.tell(signal.SIGKILL if left_s <= 0 else signal.SIGTERM)
                time.sleep(_BLINK_S)
            else:
                select.select([self.watched], [], [], left_s)
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
        if any(run.ended() for run in blind) or waiting.poll(1000 * (min(left_s, _BLINK_S) if blind else left_s)):
            return


def _reaped(child: int, how: int) -> bool:
    """Take note of the end of a process of ours; with ``WNOHANG`` says whether it has come."""
    try:
        return os.waitpid(child, how)[0] == child
    except ChildProcessError:
        return True
