"""The records of one run of a job on disk, and the lock that tells whether its runner is alive.

::

    STATE/jobs/HANDLE/progress      epochs done and kept, written by the job
    STATE/runs/HANDLE-ATTEMPT/
        run.json       its spec: written whole before anything starts
        lock           locked by the runner as long as it lives
        runner.json    processes of the runner and of the job
        end.json       how it ended: written once
        lost.json      seconds of its work that were lost, once ``progress`` has been reset
        output.log     what the job printed
    STATE/users/HANDLE-ATTEMPT/     of a run whose runner, too, is a user of its own: where it can write
        run.json, lock, runner.json, end.json, output.log

Nothing in the second is trusted further than it concerns that run; no link in it is followed.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import math
import os
import pwd
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from commonwatt.engines.local.processes import Process
from commonwatt.engines.run_spec import RunSpec
from commonwatt.engines.state_folder import read_json, write_record, write_text
from commonwatt.model.errors import EngineDownError, EngineError

__all__ = ["EVICTED", "LEFT_EARLY", "OWN", "TAKEN", "USERS", "End", "Processes", "RunFolder"]

USERS = "users"
"""Folder, in the state folder, of the runs of other users."""

EVICTED = "evicted"
"""Reason of an end that is not the job's fault: the system that had admitted it wants it to wait again."""
LEFT_EARLY = "left-early"
"""Reason of a success whose command had been told to stop."""
OWN = "own"
"""Reason of an interruption that the job's owner answers for: its command failed, or was taken away."""

TAKEN = "taken-away"
"""Reason of an interruption by somebody unknown: its owner, if its nodes are in order."""

log = logging.getLogger("commonwatt.engine")

_NAME = re.compile(r"[0-9]{1,18}-[0-9]{1,9}")
_REASONS = frozenset({
    EVICTED, LEFT_EARLY, OWN, TAKEN, "command-not-found", "files-limit", "image-not-pulled", "no-folder",
    "not-executable", "out-of-memory", "pod-refused", "time-limit",
})  # fmt: skip
_OBSTACLES = frozenset({errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EPERM})
"""Errors of opening a file in whose place there is something else."""
_MOST_BYTES = 65_536
_MOST_SPEC_BYTES = 64 << 20  # it has the job's command and environment


@dataclass(frozen=True)
class End:
    """How a run ended. ``exit_code`` is negative for a signal, null if the job never ran."""

    exit_code: int | None
    stopped: bool
    at_s: float
    cause: str
    ran_s: float | None = None  # by a monotonic clock
    over_limit: bool = False  # of time
    reason: str = ""  # typed, if it is known: one of the above

    @property
    def killed(self) -> bool:
        """Whether a signal ended it."""
        return self.exit_code is not None and self.exit_code < 0

    def timely(self, spec: RunSpec, now_s: float) -> End:
        """Return the end at a time between the start and now, whatever the clock was when it was written."""
        at_s = self.at_s
        if self.ran_s is not None and not spec.started_s <= at_s <= now_s:
            at_s = spec.started_s + self.ran_s
        return replace(self, at_s=max(spec.started_s, min(at_s, now_s)))


@dataclass(frozen=True)
class Processes:
    """The runner of a run, and the job, which leads a group of processes."""

    runner: Process
    job: Process


@dataclass(frozen=True)
class RunFolder:
    """The records of one run.

    Attributes
    ----------
    path
        Folder of its spec.
    own
        Folder where its runner works, if that is another user's; ``None``: in *path*.
    """

    path: Path
    own: Path | None = None

    @property
    def work(self) -> Path:
        """Folder where its runner works."""
        return self.path if self.own is None else self.own

    @classmethod
    def of(cls, path: Path, spec: RunSpec) -> RunFolder:
        """Return the records at *path* of a run with this *spec*."""
        return cls(path, path.parent.parent / USERS / path.name if spec.apart else None)

    def begun(self, end: End) -> bool:
        """Whether a run with this *end* got as far as its command."""
        return end.ran_s is not None or self.processes() is not None

    @classmethod
    def create(cls, runs: Path, spec: RunSpec) -> RunFolder:
        """Write *spec* to a folder of its own; raises ``EngineDownError`` if that fails.

        A controller that was frozen until another one took over may meanwhile have made that folder, or find it made.
        """
        folder = cls.of(runs / f"{spec.handle}-{spec.attempt}", spec)
        try:
            runs.mkdir(mode=0o700, parents=True, exist_ok=True)  # for us alone: a spec contains the job's environment
            if (folder.path / "run.json").exists():
                cls._make_way(folder, spec)
            folder.path.mkdir(mode=0o700, exist_ok=True)  # it exists if an earlier spec could not be written
            if folder.own is not None:
                _hand_over(folder.own, spec)
            write_record(folder.path / "run.json", asdict(spec))
        except OSError as error:
            msg = f"start {spec.name}: its records cannot be written: {error}"
            raise EngineDownError(msg) from error
        return folder

    def _make_way(self, spec: RunSpec) -> None:
        """Move the records of another controller's run aside, if *spec* is of the one that has taken over."""
        error = EngineError(f"start {spec.name}: run {spec.attempt} was ordered by another controller")
        fence = None if spec.fence_file is None else Path(spec.fence_file).read_text(encoding="utf-8")
        if fence != spec.fence:
            raise error
        self.move_aside(self.path.parent.parent / "aside", error)

    @classmethod
    def all_in(cls, runs: Path) -> list[tuple[RunFolder, RunSpec]]:
        """Return every run, by handle and attempt.

        Unreadable records are moved aside. Raises ``EngineError`` if their run is still alive.
        """
        if not runs.is_dir():
            return []
        with suppress(OSError):  # made by an earlier version, which let others read it
            runs.chmod(0o700)
        folders = [cls(path) for path in runs.iterdir() if _NAME.fullmatch(path.name) and (path / "run.json").exists()]
        records = []
        for folder in sorted(folders, key=lambda folder: tuple(int(part) for part in folder.path.name.split("-"))):
            try:
                spec = folder.spec()
                records.append((cls.of(folder.path, spec), spec))
            except EngineError as error:
                folder.move_aside(runs.parent / "aside", error)
        return records

    def spec(self) -> RunSpec:
        """Return the spec; raises ``EngineError`` if it cannot be read."""
        try:
            raw = read_json(self.path / "run.json", _MOST_SPEC_BYTES)
            for name in ("nodes", "command", "node_names", "options", "locks", "workload"):
                raw[name] = tuple(raw.get(name, ()))
            raw["slots"] = tuple(tuple(slots) for slots in raw["slots"])
            return RunSpec(**raw)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            msg = f"{self.path / 'run.json'} is gone or damaged"
            raise EngineError(msg) from error

    def end(self) -> End | None:
        """Return how the run ended; ``None`` if that is not written (yet), or cannot be read."""
        raw = self._record("end.json")
        if raw is None:
            return None
        code, at_s, ran_s = raw.get("exit_code"), raw.get("at_s"), raw.get("ran_s")
        if not (code is None or _whole(code)) or not _finite(at_s) or not (ran_s is None or _finite(ran_s)):
            return None
        stopped, over_limit = bool(raw.get("stopped")), bool(raw.get("over_limit"))
        reason = "time-limit" if over_limit else str(raw.get("reason", ""))  # an earlier version's has no reason
        reason = reason if reason in _REASONS else ""
        return End(code, stopped, float(at_s), str(raw.get("cause", "")), ran_s, over_limit, reason)

    def finish(self, end: End) -> None:
        """Write down how the run ended, for a runner that cannot; raises ``EngineDownError`` if that fails."""
        try:
            write_record(self.path / "end.json", asdict(end))
        except OSError as error:
            msg = f"{self.path / 'end.json'} cannot be written: {error}"
            raise EngineDownError(msg) from error
        if self.own is not None:
            with suppress(OSError):  # its user may have put anything there; a runner that comes later respects it
                write_record(self.own / "end.json", asdict(end))

    def note_number(self, number: int) -> None:
        """Write down the number of the run in another scheduler."""
        with suppress(OSError):
            write_text(self.path / "number", str(number))

    def number(self) -> int | None:
        """Return that number; ``None`` if it is not written."""
        number = self._read("number", self.path)
        return number if _whole(number) else None

    def give_up(self, end: End) -> End:
        """Write down *end*, unless the runner was faster; returns what is written.

        A runner that is alive, or starts later, respects it.
        """
        with self.without_runner():
            written = self.end()
            if written is None:
                self.finish(end)
        return written or end

    def processes(self) -> Processes | None:
        """Return the processes of the runner and of the job; ``None`` if the runner has not written them."""
        raw = self._record("runner.json")
        if raw is None or not (_whole(raw.get("runner")) and _whole(raw.get("job"))):
            return None
        boot = str(raw.get("boot", ""))
        runner, job = raw.get("runner_began"), raw.get("job_began")
        return Processes(
            Process(raw["runner"], boot, runner if _whole(runner) else None),
            Process(raw["job"], boot, job if _whole(job) else None),
        )

    @contextmanager
    def without_runner(self) -> Iterator[bool]:
        """Yield whether no runner is alive, and keep one from starting meanwhile.

        Raises ``EngineDownError`` if that cannot be determined.
        """
        path = self.work / "lock"
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if self.own is not None and error.errno in _OBSTACLES:  # put there by the run's own user
                yield True
                return
            msg = f"{path} cannot be opened: {error}"
            raise EngineDownError(msg) from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            os.close(lock)

    def move_aside(self, aside: Path, error: EngineError) -> None:
        """Move unreadable records aside; raises *error* if a runner is alive."""
        with self.without_runner() as dead:
            if not dead:
                raise error
            there = aside / f"{time.time():.3f}-damaged-{self.path.name}"
            try:
                aside.mkdir(mode=0o700, exist_ok=True)
                self.path.rename(there)
            except OSError as moved:
                msg = f"{self.path} cannot be moved to {there}: {moved}"
                raise EngineDownError(msg) from moved
        log.warning("records of a run were moved aside", extra={"cause": str(error), "folder": str(there)})

    def _record(self, name: str) -> dict[str, Any] | None:
        """Return a record of a run: ours, else that of its runner; ``None`` if there is none that can be read."""
        for folder in (self.path,) if self.own is None else (self.path, self.own):
            if isinstance(raw := self._read(name, folder), dict):
                return raw
        return None

    @staticmethod
    def _read(name: str, folder: Path) -> Any:  # noqa: ANN401
        try:
            return read_json(folder / name, _MOST_BYTES, follow=False)
        except (OSError, ValueError):
            return None


def _hand_over(own: Path, spec: RunSpec) -> None:
    """Make the folder where the runner of *spec* works, with a copy of its spec, and give it to its user.

    Raises ``OSError``, and ``EngineError`` for a user that is unknown here.
    """
    assert spec.user is not None
    try:
        owner = pwd.getpwnam(spec.user)
    except KeyError:
        msg = f"start {spec.name}: there is no user {spec.user} on this machine"
        raise EngineError(msg) from None
    own.parent.mkdir(mode=0o711, exist_ok=True)
    own.parent.chmod(0o711)  # to pass through, not to list
    if own.exists() or own.is_symlink():  # of a run whose spec could not be written
        aside = own.parent.parent / "aside"
        aside.mkdir(mode=0o700, exist_ok=True)
        own.rename(aside / f"{time.time():.3f}-{USERS}-{own.name}")
    own.mkdir(mode=0o700)
    write_record(own / "run.json", asdict(replace(spec, user=None, apart=False)))
    for path in (own / "run.json", own):  # the folder last: until then nobody else can write to it
        os.chown(path, owner.pw_uid, owner.pw_gid, follow_symlinks=False)


def _whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18 and math.isfinite(value)
