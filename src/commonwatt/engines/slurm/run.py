"""One run of a job, seen from the engine: its order on disk, its job in Slurm, and how it ended."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from commonwatt.control.engine import Change, JobInterrupted, JobLeft, Stopped
from commonwatt.engines.local.folder import End, RunFolder, RunOrder
from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.reading import SlurmJob
from commonwatt.engines.slurm.settings import GONE_S, SlurmSettings

__all__ = ["SlurmRun", "await_end", "comment_of", "kill_overdue", "out_of_place", "run_of", "strays", "told"]

_BLINK_S = 0.05
_AGAIN_S = 1.0

_CAUSES = {
    "BOOT_FAIL": "a node of it did not boot",
    "CANCELLED": "it was cancelled in Slurm, not by us",
    "DEADLINE": "Slurm ended it at its deadline",
    "NODE_FAIL": "a node of it failed",
    "PREEMPTED": "Slurm gave its place to another job",
    "TIMEOUT": "Slurm ended it at the time limit of its partition",
}
_FAILURES = {"OUT_OF_MEMORY": (137, "it used more memory than Slurm gave it")}


def comment_of(identity: str, handle: int, attempt: int) -> str:
    """What a job of ours carries in Slurm, by which it is found again."""
    return f"commonwatt {identity} {handle} {attempt}"


def run_of(identity: str, comment: str) -> tuple[int, int] | None:
    """Handle and attempt of a job of ours; ``None`` for any other."""
    words = comment.split(" ")
    if len(words) != 4 or words[:2] != ["commonwatt", identity]:
        return None
    if not all(word.isascii() and word.isdigit() and len(word) <= 18 for word in words[2:]):
        return None
    return int(words[2]), int(words[3])


@dataclass(slots=True, eq=False)
class SlurmRun:
    """A run that was ordered, and of whose end nobody has been told yet."""

    folder: RunFolder
    order: RunOrder
    number: int | None = None  # of its job in Slurm, if it was us who submitted it
    held: bool = False  # not submitted yet: its nodes are being woken
    there: bool = False  # on its nodes, as far as is known
    told_s: float | None = None  # when it was first asked to stop
    why: str = ""  # why we took it out of Slurm, if we did
    missing_s: float | None = None  # since when there has been nothing in Slurm, and no record of an end
    waiting_s: float = field(default_factory=time.monotonic)  # since when it waits in Slurm's queue
    killed_s: float | None = None  # when it was killed, by us
    left: bool = False  # whoever had it stopped takes it for gone, and it is not
    now_s: Callable[[], float] = time.time

    @property
    def killed(self) -> bool:
        """Whether we had Slurm kill it."""
        return self.killed_s is not None

    @property
    def stuck(self) -> bool:
        """Whether it was killed so long ago that it is not waited for any more, should it be there still."""
        return self.killed_s is not None and time.monotonic() > self.killed_s + GONE_S

    def ended(self, job: SlurmJob | None, lag_s: float, seen_s: float = math.inf) -> End | None:
        """Return how the run ended, ``None`` if it has not; *job* is what was seen in Slurm at *seen_s*.

        Slurm says whether: only when it has given everything back. The record of the runner says how; where there is
        none even after *lag_s*, which the shared file system may need, Slurm does, and the run is given up for good.
        """
        end = self._ended(job, lag_s, seen_s)
        return None if end is None else end.timely(self.order, self.now_s())

    def _ended(self, job: SlurmJob | None, lag_s: float, seen_s: float) -> End | None:
        if job is not None and job.over and self.number not in (None, job.id):
            job = None  # of another run, whose records were put aside
        if self.held or (job is None and seen_s < self.waiting_s):  # it has only just been submitted
            return None
        if job is not None and not job.over:
            self.missing_s = None
            return None
        end = self.folder.end()
        if end is None:
            now_s = time.monotonic()
            self.missing_s = self.missing_s or now_s
            if now_s - self.missing_s < lag_s:
                return None
            return self.give_up(_without_record(job, self.why, self.now_s()))
        if end.stopped or (self.killed and _killed(end)):
            return replace(end, stopped=True, cause=self.why or _stopped_by(job, end))
        if _killed(end) and job is not None and job.state in _CAUSES:  # before its runner, which saw it and no more
            return replace(end, exit_code=None, cause=f"{_CAUSES[job.state]} ({job.state})")
        return end

    def misplaced(self, job: SlurmJob, start_s: float) -> bool:
        """Whether it is to be taken out of Slurm's queue, where it has nothing to do (any more)."""
        if job.state != "PENDING":
            self.waiting_s = time.monotonic()
        elif not self.why and self.folder.end() is not None:  # a controller that was killed forgot having started it
            self.why = "Slurm lost sight of it and put it back into its queue"
            return True
        elif not self.why and time.monotonic() > self.waiting_s + start_s:
            self.why = f"Slurm did not start it within {start_s:g} s: {job.reason}"
            return True
        return False

    def give_up(self, end: End) -> End:
        """Write down *end*, unless its runner was faster; a runner still alive, or yet to come, gives way to it."""
        with self.folder.without_runner():
            written = self.folder.end()
            if written is None:
                self.folder.finish(end)
        return written or end

    def prevented(self, cause: str) -> bool:
        """Make sure that it never begins; says whether that could be, because it has not."""
        with self.folder.without_runner() as dead:
            if not dead:
                return False
            if self.folder.end() is None:
                self.folder.finish(End(None, stopped=False, at_s=self.now_s(), cause=cause))
        return True

    def ended_s(self) -> float:
        """When it ended, by its record; infinite if it has none."""
        end = self.folder.end()
        return math.inf if end is None else end.timely(self.order, self.now_s()).at_s

    def just_ended(self, within_s: float) -> bool:
        """Whether its record says that it ended a moment ago, which Slurm is to confirm soon."""
        return self.now_s() - within_s <= self.ended_s() < math.inf


def told(run: SlurmRun, change: Change) -> Change:
    """Return what the controller hears of the end of a run: of one it takes for gone, that it has left at last."""
    if run.left and isinstance(change, JobInterrupted):
        return JobLeft(change.handle, change.at_s, change.lost_s)
    return change


def strays(runs: Mapping[int, SlurmRun]) -> list[int]:
    """Return the jobs that run on nodes that are not in the configuration any more."""
    return [handle for handle, run in runs.items() if not run.order.nodes and run.folder.end() is None]


def out_of_place(handle: int, stopped: Stopped, now_s: float) -> JobInterrupted:
    """Return what the controller hears of a run that was stopped as its nodes are not in the configuration any more."""
    cause = "its place is not in the configuration any more"
    return JobInterrupted(handle, now_s, stopped.lost_s, cause)


def kill_overdue(
    runs: Iterable[SlurmRun], job_of: Callable[[RunOrder], SlurmJob | None], slurm: Slurm, settings: SlurmSettings
) -> None:
    """Have Slurm kill, all at once, what was told to stop and has not in its time; waits for none of it."""
    now_s = time.monotonic()
    told = [run for run in runs if run.told_s is not None and not run.killed and now_s > run.told_s + settings.kill_s]
    due = [(run, job) for run in told if (job := job_of(run.order)) is not None and (job.holds or job.leaving)]
    if due:
        slurm.cancel([job.id for _, job in due])
    for run, _ in due:
        run.killed_s, run.why = now_s, run.why or "stopped"


def await_end(
    run: SlurmRun, slurm: Slurm, settings: SlurmSettings, job_of: Callable[[], SlurmJob | None]
) -> End | None:
    """Have a run end that was told to, and Slurm take its GPUs back; kill it if it does not.

    Returns ``None`` if Slurm has yet to take it off its nodes though it was killed, or has ended: it may have a long
    epilog, or a process that cannot be killed. Raises ``EngineError`` if Slurm does not answer. Its end is told later.
    """
    stopped = End(None, stopped=True, at_s=run.now_s(), cause="stopped")
    if run.held:
        return run.give_up(stopped)
    told_s = time.monotonic()
    kill_s = max(told_s, (told_s if run.told_s is None else run.told_s) + settings.kill_s)
    pause_s, at_work, rest_s = _BLINK_S, False, math.inf
    while (job := job_of()) is not None and not job.over:
        now_s = time.monotonic()
        at_work = at_work or job.holds
        if job.leaving or run.killed or now_s > kill_s + settings.patience_s:
            since_s = now_s if run.killed_s is None else run.killed_s
            rest_s = min(rest_s, since_s + (settings.patience_s if at_work and now_s < kill_s else GONE_S))
        if now_s > rest_s:
            run.left = True
            return None
        if job.state == "PENDING" or (now_s > kill_s and not run.killed):
            slurm.cancel([job.id])
            run.killed_s, run.why = None if job.state == "PENDING" else now_s, run.why or "stopped"
        elif job.state == "RUNNING" and now_s > told_s + _AGAIN_S:  # one still being launched did not hear it
            slurm.terminate([job.id])
            told_s = now_s
        time.sleep(pause_s)
        pause_s = min(_AGAIN_S, 1.5 * pause_s)
    over_s = time.monotonic()
    while run.folder.end() is None and run.folder.processes() and time.monotonic() < over_s + settings.lag_s:
        time.sleep(_BLINK_S)
    end = run.give_up(stopped).timely(run.order, run.now_s())
    return replace(end, stopped=True) if run.killed and _killed(end) else end


def _killed(end: End) -> bool:
    return end.exit_code is not None and end.exit_code < 0


def _without_record(job: SlurmJob | None, why: str, now_s: float) -> End:
    if why:
        return End(None, stopped=False, at_s=now_s, cause=why)
    if job is None:
        return End(None, stopped=False, at_s=now_s, cause="Slurm knows nothing of it, and it left no record")
    if job.state == "COMPLETED":
        return End(0, stopped=False, at_s=now_s, cause="completed, says Slurm")
    if job.state in _FAILURES:
        code, cause = _FAILURES[job.state]
        return End(code, stopped=False, at_s=now_s, cause=f"{cause} ({job.state})")
    cause = _CAUSES.get(job.state, "its batch script ended before it could write how")
    return End(None, stopped=False, at_s=now_s, cause=f"{cause} ({job.state})")


def _stopped_by(job: SlurmJob | None, end: End) -> str:
    if job is not None and job.state in _CAUSES:
        return f"{_CAUSES[job.state]} ({job.state})"
    return f"somebody told it to stop: {end.cause}"
