"""An ``Engine`` whose jobs run in a real Slurm.

Every run and its end are on disk, as for the local engine and by the same runner: the state folder has to be on a file
system that all nodes share. Slurm says what runs, what it has, and what is over. See ``docs/reference/engines.md``.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from commonwatt.control.engine import (
    Capabilities,
    Change,
    Command,
    Holder,
    JobEnded,
    JobProgress,
    LiveEngine,
    MeterMark,
    NodeView,
    Reading,
    RecordedRun,
    SetPower,
    Start,
    Stop,
    Stopped,
)
from commonwatt.engines.local.folder import End, RunFolder
from commonwatt.engines.meters import DeclaredPower, Meters, Since, catch_up, holders_of
from commonwatt.engines.reports import Reports
from commonwatt.engines.run_history import RunHistory, RunPlanner
from commonwatt.engines.run_spec import Images, JobWork, RunSpec
from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.node_control import Allocations, Drains, NodePower, still_asleep
from commonwatt.engines.slurm.run import (
    SlurmRun,
    await_end,
    cancelled_by_others,
    change_of,
    comment_of,
    evicted,
    kill_overdue,
    note_cancel,
    unplaced_runs,
)
from commonwatt.engines.slurm.settings import GONE_S, SlurmSettings, prepare, submission
from commonwatt.engines.slurm.snapshot import SlurmSnapshot, look
from commonwatt.engines.state_folder import fence_in
from commonwatt.model.arrays import Ints
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.model.nodes import Cluster

__all__ = ["SlurmEngine"]

_BLINK_S = 0.05
_SOON_S = 0.2


class SlurmEngine(LiveEngine):
    """Jobs in a real Slurm.

    Parameters
    ----------
    cluster
        The declared nodes, named as in Slurm.
    state
        Folder of its own, on a file system shared by all nodes, made if need be; one engine at a time.
    work_of
        Returns the work of the job of a given name.
    slurm
        The client programs; those of this machine if not given.
    settings
        Times and options of the site.
    node_energy_j
        Reading of a node's meter, joules; energy is unknown if there is none.
    images
        How jobs that name an image are run; they cannot be if not given.
    declared_power
        Use the declared power where there is no meter.
    since
        How an earlier engine read each node's meter last (``marks``).
    now_s
        The time.

    Raises
    ------
    InputError
        For a node name that Slurm could read as several, and as ``NodePower`` and ``SlurmSettings`` do.
    """

    def __init__(
        self, cluster: Cluster, state: Path, work_of: Callable[[str], JobWork], *, slurm: Slurm | None = None,
        settings: SlurmSettings | None = None, node_energy_j: Callable[[int], float] | None = None,
        images: Images | None = None, declared_power: bool = False, since: Since | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._settings, metered = settings or SlurmSettings(), node_energy_j is not None or declared_power
        power = self._settings.power
        self.capabilities = Capabilities(
            preempt=True, gangs=True, energy=metered, power_states=power, deferred_stop=True,
            stop_s=self._settings.kill_s + 2 * GONE_S, drain=True, prune=True,
        )  # fmt: skip
        self._cluster, self._state, self._slurm = cluster, state.absolute(), slurm or Slurm()
        self._reports = Reports(self._state / "jobs", work_of)
        self._declared = DeclaredPower(cluster) if declared_power and node_energy_j is None else None
        self._meters = Meters(len(cluster), node_energy_j, self._declared, now_s=now_s)
        self._power = NodePower(self._slurm, cluster, may_sleep=power)
        self._runs: dict[int, SlurmRun] = {}  # running, or ended but not yet reported
        self._allocations = Allocations(cluster, self._power, self._settings.cpus_per_gpu)
        self._history, self._now_s = RunHistory(self._state, self._reports, now_s), now_s
        self._planner = RunPlanner(
            cluster, self._reports, self._history, images or Images(), self._settings.grace_s, now_s,
            look_s=self._settings.runner_look_s, locked=True,
            fence=fence_in(self._state),
        )  # fmt: skip
        self._changes: list[Change] = []
        self._snapshot: SlurmSnapshot | None = None  # none while it is known to be outdated
        self._last: SlurmSnapshot | None = None
        self._metered: list[tuple[bool, bool]] = [(False, False)] * len(cluster)  # waking, asleep
        self._identity, self._script = prepare(self._state, self._settings, cluster.names)
        self._drains = Drains(self._slurm, cluster.names, self._identity)
        self._attach(since or {})

    def nodes(self) -> NodeView:
        """Nodes as of a recent snapshot; GPUs of external jobs are not usable."""
        return self._allocations.view(self._look(self._settings.look_s))

    def progress(self, handles: Ints) -> JobProgress:
        """Epochs as the jobs report them; when they begin to work is unknown."""
        return self._reports.progress(handles, self._spec_of)

    def poll(self) -> Sequence[Change]:
        """What changed since the last poll; raises ``EngineError``, and loses nothing, if Slurm does not answer."""
        snapshot = self._look()
        self._advance(snapshot)
        for handle, run in list(self._runs.items()):
            if (end := self._end(run, snapshot)) is not None:
                self._vacate(handle)
                change = change_of(run, self._reports.change(run.spec, end, begun=run.folder.begun(end)))
                if not self._settings.requeue_cancelled:
                    change = cancelled_by_others(run, snapshot.job_of(run.spec), change)
                self._changes.append(change)
                self._snapshot = None  # its GPUs may still be in use there
        self._sweep(snapshot)
        changes, self._changes = self._changes, []
        return changes

    def apply(self, commands: Sequence[Command]) -> Sequence[Stopped]:
        """Execute *commands*, signalling all jobs to stop at once; raises ``EngineError`` on one that is impossible."""
        self.request_stop([command.handle for command in commands if isinstance(command, Stop)])
        stopped = []
        for command in commands:
            match command:
                case Stop():
                    stopped.append(self._stop(command.handle))
                case Start():
                    self._start(command, self._look(self._settings.look_s))
                case SetPower():
                    snapshot = self._look(self._settings.look_s)
                    self._power.set(command, snapshot, used=self._allocations.used(command.node, snapshot))
        return stopped

    def request_stop(self, handles: Collection[int]) -> Collection[int]:
        """Ask jobs to stop, all at once; returns those that will: Slurm has started them, or is completing them."""
        if not handles:
            return []
        runs, going, at_work = {handle: self._runs[handle] for handle in handles if handle in self._runs}, [], []
        snapshot = self._look(self._settings.look_s if all(run.stuck for run in runs.values()) else 0.0)
        for handle, run in runs.items():
            job = None if run.deferred else snapshot.job_of(run.spec)
            if job is not None and (job.allocated or job.completing):
                run.asked_s = time.monotonic() if run.asked_s is None else run.asked_s
                going.append(handle)
                at_work += [job.id] if job.allocated and not run.killed else []
        if at_work:
            self._slurm.terminate(at_work)
        return going

    def has_room(self, nodes: Collection[int], gpus_per_node: int) -> bool:
        """Whether so many GPUs of each of *nodes* are free."""
        snapshot = self._look(self._settings.look_s)
        return all(self._allocations.free(n, snapshot) >= gpus_per_node for n in nodes)

    def readings(self, *, up_to_now: bool = False) -> Sequence[Reading]:
        """Readings closed since the last call; with *up_to_now*, those of all nodes up to this moment."""
        if up_to_now:
            self._meter(range(len(self._cluster)))
        return self._meters.take()

    def power_w(self) -> float | None:
        """Return the declared power, where that is used; else ``None``: meters read energy."""
        if self._declared is None:
            return None
        return sum(self._declared(n, self._holders(n), asleep=seen[1]) for n, seen in enumerate(self._metered))

    # -- what survives a controller

    def recorded_runs(self) -> Sequence[RecordedRun]:
        """Return every job ever started here."""
        running = {handle: run.spec for handle, run in self._runs.items() if self._end(run) is None}
        return self._history.recorded_runs(running)

    def evict_unplaced(self, *, dry: bool) -> Collection[int]:
        """Stop runs on nodes the configuration does not have (any more); in a *dry* run they keep running."""
        unplaced = unplaced_runs(self._runs)
        self._changes += [] if dry else [evicted(h, self._stop(h), self._now_s()) for h in unplaced]
        return unplaced

    def attempts(self, handle: int) -> int:
        """How often a job was started."""
        return self._history.next_attempt(handle) - 1

    def prunable(self) -> Sequence[int]:
        """Return the jobs that do not run and have records."""
        return self._history.not_running(self._runs)

    def prune(self, handles: Collection[int], *, aside: bool = False) -> None:
        """Delete the records of jobs that do not run, or move all their files *aside*."""
        for handle in set(handles) & self._runs.keys():
            if self._end(self._runs[handle]) is not None:
                self._vacate(handle)
        gone = self._history.prune(set(handles) - self._runs.keys(), aside=aside)
        self._changes = [change for change in self._changes if change.handle not in gone]

    def marks(self) -> dict[int, MeterMark]:
        """Return how each node's meter was read last: for the next engine."""
        return {n: self._meters.mark(n, asleep=asleep) for n, (_, asleep) in enumerate(self._metered)}

    def wait(self, seconds: float, waker: int = -1) -> None:
        """Return after so long, as soon as a job has ended, or when *waker* is readable.

        Meanwhile, jobs whose nodes have woken are submitted.
        """
        woken = select.poll()
        if waker >= 0:
            woken.register(waker, select.POLLIN)
        until_s = time.monotonic() + seconds
        looked_s = -np.inf if self._snapshot is None else self._snapshot.at_s
        while not self._changes and (left_s := until_s - time.monotonic()) > 0:
            ended = any(run.just_ended(self._settings.lag_s) for run in self._runs.values())
            if time.monotonic() >= looked_s + min(self._settings.look_s, _SOON_S if ended else np.inf):
                with suppress(EngineError):
                    snapshot = self._look()
                    self._advance(snapshot)
                    if any(self._end(run, snapshot) for run in self._runs.values()):
                        return
                looked_s = time.monotonic()
            if woken.poll(1000 * min(left_s, max(_BLINK_S, 0.002 * len(self._runs)))):
                return

    def drain(self, nodes: Collection[int]) -> None:
        """Drain exactly these nodes in Slurm, except those that somebody else has drained."""
        self._drains.set(nodes, self._look())
        self._snapshot = None

    # -- jobs

    def _start(self, command: Start, snapshot: SlurmSnapshot) -> None:
        current = self._runs.get(command.handle)
        if current is not None or any(isinstance(c, JobEnded) and c.handle == command.handle for c in self._changes):
            if current is None or self._end(current, snapshot) is not None:
                return  # it has ended by itself, which the next poll reports
            msg = f"start {command.name}: it is running already"
            raise EngineError(msg)
        self._allocations.check(command, snapshot)
        spec = self._planner.spec(command, ((),) * len(command.nodes))  # Slurm chooses the GPUs
        self._meter(command.nodes)
        run = SlurmRun(RunFolder.create(self._state / "runs", spec), spec, now_s=self._now_s)
        self._runs[command.handle] = run
        self._allocations.enter(run)
        self._history.add(spec)
        sleepers = [n for n in command.nodes if not self._allocations.ready(n, snapshot)]
        try:
            for n in sleepers:
                self._power.wake(n, snapshot.nodes[self._cluster.names[n]])
            run.deferred = bool(sleepers)
            if not sleepers:
                self._submit(run, snapshot)
        except EngineError as error:
            if run.prevented(str(error)):  # if Slurm has it all the same, the next sweep cancels it
                self._vacate(command.handle)
                msg = f"start {command.name}: {error}"
                raise type(error)(msg) from error

    def _submit(self, run: SlurmRun, snapshot: SlurmSnapshot) -> None:
        nodes = [self._cluster.names[n] for n in run.spec.nodes]
        gpu_type = self._cluster.classes[self._cluster.klass[run.spec.nodes[0]]].gpu_type
        kind = snapshot.nodes[nodes[0]].type_for(gpu_type)
        comment = comment_of(self._identity, run.spec.handle, run.spec.attempt)
        options = submission(self._settings, run.spec, nodes, kind, run.folder.path, comment)
        run.number = self._slurm.submit(options, self._script, str(run.folder.path))
        run.deferred, run.waiting_s = False, time.monotonic()

    def _stop(self, handle: int) -> Stopped:
        run = self._runs.get(handle)
        if run is None:
            msg = f"stop job {handle}: it is not running"
            raise EngineError(msg)
        age_s = self._settings.look_s if run.stuck else 0.0  # a run that survived being killed has no news
        end = await_end(run, self._slurm, self._settings, lambda: self._look(age_s).job_of(run.spec))
        if end is None:
            return Stopped(handle, 0.0, later=True)
        self._snapshot = None
        self._vacate(handle)
        if self._reports.by_itself(run.spec, end):
            self._changes.append(self._reports.change(run.spec, end))
            return Stopped(handle, 0.0)
        return Stopped(handle, self._reports.interrupted(run.spec, end.at_s, end.ran_s))

    def _vacate(self, handle: int) -> None:
        run = self._runs.pop(handle)
        if run.there:
            self._meter(run.spec.nodes)
            self._allocations.leave(run)

    def _advance(self, snapshot: SlurmSnapshot) -> None:
        """Submit the jobs whose nodes have woken; withdraw those that Slurm does not start."""
        self._power.advance(snapshot)
        for run in self._runs.values():
            job = snapshot.job_of(run.spec)
            if run.deferred:
                self._submit_deferred(run, snapshot)
            elif job is not None and run.misplaced(job, self._settings.start_s):
                run.note_cancel()
                self._slurm.cancel([job.id])

    def _submit_deferred(self, run: SlurmRun, snapshot: SlurmSnapshot) -> None:
        """Submit a run whose nodes were asleep, if all are up; give it up if one did not wake."""
        seen = {n: self._allocations.node(n, snapshot) for n in run.spec.nodes}
        gone = [n for n, node in seen.items() if node is None or node.out or self._power.asleep(n, node)]
        if not gone and not all(self._allocations.ready(n, snapshot) for n in run.spec.nodes):
            return
        cause = f"node {self._cluster.names[gone[0]]} did not wake" if gone else ""
        try:
            if not gone:
                self._submit(run, snapshot)
        except EngineError as error:
            cause = str(error)
        if cause and run.prevented(cause):
            run.deferred = False

    def _sweep(self, snapshot: SlurmSnapshot) -> None:
        """Cancel our jobs in Slurm that were given up, such as a submission whose answer never came."""
        wanted = {(run.spec.handle, run.spec.attempt) for run in self._runs.values()}
        given_up = {run: job.id for run, job in snapshot.jobs.items() if not job.over and run not in wanted}
        for handle, attempt in given_up:
            note_cancel(self._state / "runs" / f"{handle}-{attempt}")
        if stray := [*snapshot.doubled, *given_up.values()]:
            with suppress(EngineDownError):
                self._slurm.cancel(stray)

    # -- nodes

    def _look(self, age_s: float = 0.0) -> SlurmSnapshot:
        """Return a snapshot of at most this age; overdue jobs are killed."""
        if self._snapshot is None or time.monotonic() > self._snapshot.at_s + age_s:
            snapshot = look(self._slurm, self._identity, self._last, self._runs.values())
            for n in range(len(self._cluster)):
                node = self._allocations.node(n, snapshot)
                power = (self._power.waking(n, node), node is not None and "powered_down" in node.states)
                if power != self._metered[n]:
                    self._meter([n])
                    self._metered[n] = power
            for run in self._runs.values():
                job = None if run.there else snapshot.job_of(run.spec)
                if job is not None and not job.over:  # it ended before we began, and still has its GPUs
                    self._meter(run.spec.nodes)
                    self._allocations.enter(run)
            self._snapshot = self._last = snapshot
            kill_overdue(self._runs.values(), snapshot.job_of, self._slurm, self._settings)
        return self._snapshot

    def _end(self, run: SlurmRun, snapshot: SlurmSnapshot | None = None) -> End | None:
        """Return how a run ended, ``None`` if it has not."""
        snapshot = snapshot or self._look(self._settings.look_s)
        return run.ended(snapshot.job_of(run.spec), self._settings.lag_s, snapshot.at_s)

    def _spec_of(self, handle: int) -> RunSpec | None:
        return self._runs[handle].spec if handle in self._runs else None

    def _meter(self, nodes: Iterable[int]) -> None:
        """Close the readings of *nodes* at this moment."""
        for n in nodes:
            waking, asleep = self._metered[n]
            self._meters.close(n, self._holders(n), waking=waking, asleep=asleep)

    def _holders(self, n: int) -> list[Holder]:
        return holders_of(self._cluster, n, self._allocations.specs(n))

    def _attach(self, since: Since) -> None:
        """Take over the runs of an earlier engine: those that ended unnoticed are reported.

        A run that has ended counts as on its nodes only if Slurm still has it: else nothing is charged to it. A node
        that was asleep at its last reading, and is now, was asleep meanwhile.
        """
        spans, last = [], {}
        for folder, ordered in RunFolder.all_in(self._state / "runs"):
            run = SlurmRun(folder, ordered.placed(self._cluster.names), now_s=self._now_s)
            spans.append((run.spec.started_s, run.ended_s(), run.spec))
            last[run.spec.handle] = run, spans[-1][1]
        asleep = still_asleep(self._slurm, {n: self._cluster.names[n] for n, mark in since.items() if mark.asleep})
        catch_up(self._meters, self._cluster, since, spans, asleep)
        self._metered = [(False, n in asleep) for n in range(len(self._cluster))]
        for handle, (run, ended_s) in last.items():
            self._history.add(run.spec)
            self._reports.add(run.spec)
            self._runs[handle] = run
            if ended_s == np.inf:
                self._allocations.enter(run)
