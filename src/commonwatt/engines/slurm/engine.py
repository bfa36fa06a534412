"""An ``Engine`` whose jobs run in a real Slurm.

What was ordered, and how it ended, is on disk, as for the local engine and by the same runner: the state folder has to
be on a file system that all nodes share. Slurm says what runs, holds and is over. See ``docs/engines.md``.
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
    Found,
    Holder,
    JobEnded,
    NodeView,
    Progress,
    Reading,
    SetPower,
    Start,
    Stop,
    Stopped,
)
from commonwatt.engines.images import Images
from commonwatt.engines.local.folder import End, RunFolder, RunOrder
from commonwatt.engines.meters import DeclaredPower, Mark, Meters, Since, catch_up, holders_of
from commonwatt.engines.orders import Orders
from commonwatt.engines.past import Past
from commonwatt.engines.reports import Reports
from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.drains import Drains
from commonwatt.engines.slurm.places import Places
from commonwatt.engines.slurm.power import NodePower, still_asleep
from commonwatt.engines.slurm.run import SlurmRun, await_end, comment_of, kill_overdue, out_of_place, strays, told
from commonwatt.engines.slurm.settings import GONE_S, SlurmSettings, prepare, submission
from commonwatt.engines.slurm.sight import Sight, look
from commonwatt.engines.work import Work
from commonwatt.model.arrays import Ints
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.model.nodes import Cluster

__all__ = ["SlurmEngine"]

_BLINK_S = 0.05
_SOON_S = 0.2


class SlurmEngine:
    """Jobs in a real Slurm.

    Parameters
    ----------
    cluster
        The declared nodes, named as in Slurm.
    state
        Folder of its own, on a file system shared by all nodes, made if need be; one engine at a time.
    work_of
        What the job of a given name runs.
    slurm
        The client programs; those of this machine if not given.
    settings
        Times and options of the site.
    node_energy_j
        Reading of a node's meter, joules; energy is unknown if there is none.
    images
        How jobs that name an image are run; they cannot be if not given.
    declared_power
        Take the power the cluster declares for a meter where there is none.
    since
        When nodes were read last by an engine before this one, and how they were then (``marks``).
    now_s
        The time.

    Raises
    ------
    InputError
        For a node name that Slurm could read as several, and as ``NodePower`` and ``SlurmSettings`` do.
    """

    def __init__(
        self, cluster: Cluster, state: Path, work_of: Callable[[str], Work], *, slurm: Slurm | None = None,
        settings: SlurmSettings | None = None, node_energy_j: Callable[[int], float] | None = None,
        images: Images | None = None, declared_power: bool = False, since: Since | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._settings, metered = settings or SlurmSettings(), node_energy_j is not None or declared_power
        power = self._settings.power
        self.capabilities = Capabilities(preempt=True, gangs=True, energy=metered, power_states=power)
        self._cluster, self._state, self._slurm = cluster, state.absolute(), slurm or Slurm()
        self._reports = Reports(self._state / "jobs", work_of)
        self._declared = DeclaredPower(cluster) if declared_power and node_energy_j is None else None
        self._meters = Meters(len(cluster), node_energy_j, self._declared, now_s=now_s)
        self._power = NodePower(self._slurm, cluster, may_sleep=power)
        self._runs: dict[int, SlurmRun] = {}  # running, or ended but not yet reported
        self._places = Places(cluster, self._power, self._settings.cpus_per_gpu)
        self._past, self._now_s = Past(self._state, self._reports, now_s), now_s
        self._orders = Orders(
            cluster, self._reports, self._past, images or Images(), self._settings.grace_s, now_s,
            look_s=self._settings.runner_look_s, locked=True,
        )  # fmt: skip
        self._changes: list[Change] = []
        self._sight: Sight | None = None
        self._metered: list[tuple[bool, bool]] = [(False, False)] * len(cluster)  # waking, asleep
        self._identity, self._script = prepare(self._state, self._settings, cluster.names)
        self._drains = Drains(self._slurm, cluster.names, self._identity)
        self._attach(since or {})

    def nodes(self) -> NodeView:
        """Nodes as Slurm saw them within the last second or so; GPUs that jobs of others hold are not ours to use."""
        return self._places.view(self._look(self._settings.look_s))

    def progress(self, handles: Ints) -> Progress:
        """Epochs as the jobs report them; nothing is known of how soon they begin to work."""
        return self._reports.progress(handles, self._order_of)

    def poll(self) -> Sequence[Change]:
        """What changed since the last poll; raises ``EngineError`` if Slurm does not answer, and loses nothing then."""
        sight = self._look()
        self._advance(sight)
        for handle, run in list(self._runs.items()):
            if (end := self._end(run, sight)) is not None:
                self._vacate(handle)
                self._changes.append(told(run, self._reports.change(run.order, end, begun=run.folder.begun(end))))
                self._sight = None  # in which its GPUs may still have been used
        self._sweep(sight)
        changes, self._changes = self._changes, []
        return changes

    def apply(self, commands: Sequence[Command]) -> Sequence[Stopped]:
        """Execute *commands*; raises ``EngineError`` on one that cannot be. Jobs to be stopped are all told at once."""
        self.tell([command.handle for command in commands if isinstance(command, Stop)])
        stopped = []
        for command in commands:
            match command:
                case Stop():
                    stopped.append(self._stop(command.handle))
                case Start():
                    self._start(command, self._look(self._settings.look_s))
                case SetPower():
                    sight = self._look(self._settings.look_s)
                    self._power.set(command, sight, used=self._places.used(command.node, sight))
        return stopped

    @property
    def stop_s(self) -> float:
        """How long a job that was told may take to be gone: it is killed before, at the next look."""
        return self._settings.kill_s + 2 * GONE_S

    def tell(self, handles: Collection[int]) -> Collection[int]:
        """Tell jobs to stop, all at once; those that Slurm has not started cannot hear it, others leave already."""
        if not handles:
            return []
        runs, going, at_work = {handle: self._runs[handle] for handle in handles if handle in self._runs}, [], []
        sight = self._look(self._settings.look_s if all(run.stuck for run in runs.values()) else 0.0)
        for handle, run in runs.items():
            job = None if run.held else sight.job_of(run.order)
            if job is not None and (job.holds or job.leaving):
                run.told_s = time.monotonic() if run.told_s is None else run.told_s
                going.append(handle)
                at_work += [job.id] if job.holds and not run.killed else []
        if at_work:
            self._slurm.terminate(at_work)
        return going

    def room(self, nodes: Collection[int], gpus_per_node: int) -> bool:
        """Whether so many GPUs of each of *nodes* are free."""
        sight = self._look(self._settings.look_s)
        return all(self._places.free(n, sight) >= gpus_per_node for n in nodes)

    def readings(self, *, up_to_now: bool = False) -> Sequence[Reading]:
        """Readings closed since the last call; with *up_to_now*, those of all nodes up to this moment."""
        if up_to_now:
            self._meter(range(len(self._cluster)))
        return self._meters.take()

    def power_w(self) -> float | None:
        """Return the declared power, where that stands for a meter; unknown otherwise: meters read energy."""
        if self._declared is None:
            return None
        return sum(self._declared(n, self._holders(n), asleep=seen[1]) for n, seen in enumerate(self._metered))

    # -- what an engine adds that survives its controller

    def found(self) -> Sequence[Found]:
        """Every job that was ever ordered here, as it stands: for a controller that has just come (back) to life."""
        return self._past.found({handle: run.order for handle, run in self._runs.items() if self._end(run) is None})

    def clear_out(self, *, dry: bool) -> Collection[int]:
        """Return what runs on nodes that are not in the configuration any more; but in a *dry* run it is stopped."""
        gone = strays(self._runs)
        self._changes += [] if dry else [out_of_place(h, self._stop(h), self._now_s()) for h in gone]
        return gone

    def attempts(self, handle: int) -> int:
        """How often a job was ordered to run."""
        return self._past.next_attempt(handle) - 1

    def remembered(self) -> Sequence[int]:
        """Return the jobs that do not run."""
        return self._past.others(self._runs)

    def forget(self, handles: Collection[int], *, aside: bool = False) -> None:
        """Delete the records of runs of jobs that do not run, or move them *aside* with all these jobs have left."""
        for handle in set(handles) & self._runs.keys():
            if self._end(self._runs[handle]) is not None:
                self._vacate(handle)
        gone = self._past.forget(set(handles) - self._runs.keys(), aside=aside)
        self._changes = [change for change in self._changes if change.handle not in gone]

    def marks(self) -> dict[int, Mark]:
        """Return when each node was read last, and how it was then: for the engine after this one."""
        return {n: self._meters.mark(n, asleep=asleep) for n, (_, asleep) in enumerate(self._metered)}

    def wait(self, seconds: float, waker: int = -1) -> None:
        """Return after so long, as soon as a job has ended, or when *waker* is readable.

        Meanwhile, jobs whose nodes have woken are sent.
        """
        woken = select.poll()
        if waker >= 0:
            woken.register(waker, select.POLLIN)
        until_s = time.monotonic() + seconds
        looked_s = -np.inf if self._sight is None else self._sight.at_s
        while not self._changes and (left_s := until_s - time.monotonic()) > 0:
            ended = any(run.just_ended(self._settings.lag_s) for run in self._runs.values())
            if time.monotonic() >= looked_s + min(self._settings.look_s, _SOON_S if ended else np.inf):
                with suppress(EngineError):
                    sight = self._look()
                    self._advance(sight)
                    if any(self._end(run, sight) for run in self._runs.values()):
                        return
                looked_s = time.monotonic()
            if woken.poll(1000 * min(left_s, max(_BLINK_S, 0.002 * len(self._runs)))):
                return

    def drain(self, nodes: Collection[int]) -> None:
        """Have Slurm let no new jobs, of ours or of others, onto exactly these nodes, as far as that is our doing."""
        self._drains.set(nodes, self._look())
        self._sight = None

    # -- jobs

    def _start(self, command: Start, sight: Sight) -> None:
        current = self._runs.get(command.handle)
        if current is not None or any(isinstance(c, JobEnded) and c.handle == command.handle for c in self._changes):
            if current is None or self._end(current, sight) is not None:
                return  # it has ended by itself, which the next poll will tell: there is nothing to start
            msg = f"start {command.name}: it is running already"
            raise EngineError(msg)
        self._places.check(command, sight)
        order = self._orders.order(command, ((),) * len(command.nodes))  # Slurm says which GPUs, to the job alone
        self._meter(command.nodes)
        run = SlurmRun(RunFolder.create(self._state / "runs", order), order, now_s=self._now_s)
        self._runs[command.handle] = run
        self._places.enter(run)
        self._past.note(order)
        sleepers = [n for n in command.nodes if not self._places.ready(n, sight)]
        try:
            for n in sleepers:
                self._power.wake(n, sight.nodes[self._cluster.names[n]])
            run.held = bool(sleepers)
            if not sleepers:
                self._submit(run, sight)
        except EngineError as error:
            if run.prevented(str(error)):  # even if Slurm has it: then it is swept out of there
                self._vacate(command.handle)
                msg = f"start {command.name}: {error}"
                raise type(error)(msg) from error

    def _submit(self, run: SlurmRun, sight: Sight) -> None:
        nodes = [self._cluster.names[n] for n in run.order.nodes]
        gpu_type = self._cluster.classes[self._cluster.klass[run.order.nodes[0]]].gpu_type
        kind = sight.nodes[nodes[0]].type_for(gpu_type)
        comment = comment_of(self._identity, run.order.handle, run.order.attempt)
        options = submission(self._settings, run.order, nodes, kind, run.folder.path, comment)
        run.number = self._slurm.submit(options, self._script, str(run.folder.path))
        run.held, run.waiting_s = False, time.monotonic()

    def _stop(self, handle: int) -> Stopped:
        run = self._runs.get(handle)
        if run is None:
            msg = f"stop job {handle}: it is not running"
            raise EngineError(msg)
        age_s = self._settings.look_s if run.stuck else 0.0  # of what was killed and did not go there is no news
        end = await_end(run, self._slurm, self._settings, lambda: self._look(age_s).job_of(run.order))
        if end is None:
            return Stopped(handle, 0.0, later=True)
        self._sight = None
        self._vacate(handle)
        if self._reports.by_itself(run.order, end):
            self._changes.append(self._reports.change(run.order, end))
            return Stopped(handle, 0.0)
        return Stopped(handle, self._reports.interrupted(run.order, end.at_s, end.ran_s))

    def _vacate(self, handle: int) -> None:
        run = self._runs.pop(handle)
        if run.there:
            self._meter(run.order.nodes)
            self._places.leave(run)

    def _advance(self, sight: Sight) -> None:
        """Send the jobs whose nodes have woken; take back those that Slurm does not start."""
        self._power.advance(sight)
        for run in self._runs.values():
            job = sight.job_of(run.order)
            if run.held:
                self._send(run, sight)
            elif job is not None and run.misplaced(job, self._settings.start_s):
                self._slurm.cancel([job.id])

    def _send(self, run: SlurmRun, sight: Sight) -> None:
        """Submit a run whose nodes were asleep, if they are all up; give it up if one did not come."""
        seen = {n: self._places.node(n, sight) for n in run.order.nodes}
        gone = [n for n, node in seen.items() if node is None or node.out or self._power.asleep(n, node)]
        if not gone and not all(self._places.ready(n, sight) for n in run.order.nodes):
            return
        cause = f"node {self._cluster.names[gone[0]]} did not wake" if gone else ""
        try:
            if not gone:
                self._submit(run, sight)
        except EngineError as error:
            cause = str(error)
        if cause and run.prevented(cause):
            run.held = False

    def _sweep(self, sight: Sight) -> None:
        """Cancel what is ours in Slurm and was given up, such as a submission whose answer never came."""
        wanted = {(run.order.handle, run.order.attempt) for run in self._runs.values()}
        stray = [*sight.doubled, *(job.id for run, job in sight.jobs.items() if not job.over and run not in wanted)]
        if stray:
            with suppress(EngineDownError):
                self._slurm.cancel(stray)

    # -- nodes

    def _look(self, age_s: float = 0.0) -> Sight:
        """See the cluster as it was at most *age_s* ago; what should have gone by then is killed."""
        if self._sight is None or time.monotonic() > self._sight.at_s + age_s:
            sight = look(self._slurm, self._identity)
            for n in range(len(self._cluster)):
                node = self._places.node(n, sight)
                power = (self._power.waking(n, node), node is not None and "powered_down" in node.states)
                if power != self._metered[n]:
                    self._meter([n])
                    self._metered[n] = power
            for run in self._runs.values():
                job = None if run.there else sight.job_of(run.order)
                if job is not None and not job.over:  # it had ended before us, and has its GPUs still
                    self._meter(run.order.nodes)
                    self._places.enter(run)
            self._sight = sight
            kill_overdue(self._runs.values(), sight.job_of, self._slurm, self._settings)
        return self._sight

    def _end(self, run: SlurmRun, sight: Sight | None = None) -> End | None:
        """How a run ended, ``None`` if that is yet to come; of one off its nodes the next poll tells it."""
        sight = sight or self._look(self._settings.look_s)
        return run.ended(sight.job_of(run.order), self._settings.lag_s, sight.at_s)

    def _order_of(self, handle: int) -> RunOrder | None:
        return self._runs[handle].order if handle in self._runs else None

    def _meter(self, nodes: Iterable[int]) -> None:
        """Close the readings of *nodes* at this moment."""
        for n in nodes:
            waking, asleep = self._metered[n]
            self._meters.close(n, self._holders(n), waking=waking, asleep=asleep)

    def _holders(self, n: int) -> list[Holder]:
        return holders_of(self._cluster, n, self._places.orders(n))

    def _attach(self, since: Since) -> None:
        """Take up what an engine before us left: what runs, and what ended without anybody noticing is reported.

        What has ended is on its nodes only if Slurm, once it is asked, has it still: nothing is charged to it else.
        A node that slept when it was read last, and does now, slept meanwhile.
        """
        spans, last = [], {}
        for folder, ordered in RunFolder.all_in(self._state / "runs"):
            run = SlurmRun(folder, ordered.placed(self._cluster.names), now_s=self._now_s)
            spans.append((run.order.started_s, run.ended_s(), run.order))
            last[run.order.handle] = run, spans[-1][1]
        asleep = still_asleep(self._slurm, {n: self._cluster.names[n] for n, mark in since.items() if mark.asleep})
        catch_up(self._meters, self._cluster, since, spans, asleep)
        self._metered = [(False, n in asleep) for n in range(len(self._cluster))]
        for handle, (run, ended_s) in last.items():
            self._past.note(run.order)
            self._reports.know(run.order)
            self._runs[handle] = run
            if ended_s == np.inf:
                self._places.enter(run)
