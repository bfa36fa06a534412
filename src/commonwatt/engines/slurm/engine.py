"""An ``Engine`` whose jobs run in a real Slurm.

Every run and its end are on disk, as for the local engine and by the same runner: the state folder has to be on a file
system that all nodes share. Slurm says what runs, what it has, and what is over. See ``docs/reference/engines.md``.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from commonwatt.control.engine import Capabilities, Change, NodeView, SetPower, Start
from commonwatt.engines.hosting_engine import HostingEngine
from commonwatt.engines.local.folder import End, RunFolder
from commonwatt.engines.meters import Since
from commonwatt.engines.model_servers import Hosting
from commonwatt.engines.recorded_engine import SchedulerEngine
from commonwatt.engines.run_history import RunPlanner
from commonwatt.engines.run_spec import Images, JobWork, RunSpec
from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.model_servers import SlurmServers
from commonwatt.engines.slurm.node_control import Allocations, Drains, NodeMeter, NodePower, still_asleep
from commonwatt.engines.slurm.run import (
    SlurmRun,
    await_end,
    cancelled_by_others,
    change_of,
    kill_overdue,
    note_cancel,
)
from commonwatt.engines.slurm.settings import GONE_S, SlurmSettings, prepare
from commonwatt.engines.slurm.snapshot import SlurmSnapshot, look
from commonwatt.engines.slurm.submitter import Submitter
from commonwatt.engines.state_folder import fence_in
from commonwatt.model.arrays import Floats
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.model.nodes import Cluster

__all__ = ["SlurmEngine"]

_BLINK_S = 0.05
_SOON_S = 0.2


class SlurmEngine(HostingEngine[SlurmRun], SchedulerEngine[SlurmRun]):
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
    hosting
        What GPUs may be shared for, by model servers that are jobs in Slurm; none are if not given.

    Raises
    ------
    InputError
        For a node name that Slurm could read as several, and as ``NodePower`` and ``SlurmSettings`` do.
    """

    _allocations: Allocations

    def __init__(
        self, cluster: Cluster, state: Path, work_of: Callable[[str], JobWork], *, slurm: Slurm | None = None,
        settings: SlurmSettings | None = None, node_energy_j: Callable[[int], float] | None = None,
        images: Images | None = None, declared_power: bool = False, since: Since | None = None,
        now_s: Callable[[], float] = time.time, hosting: Hosting | None = None,
    ) -> None:  # fmt: skip
        self._settings, metered = settings or SlurmSettings(), node_energy_j is not None or declared_power
        self._node_meter = node_energy_j
        power = self._settings.power
        self.capabilities = Capabilities(
            preempt=True, gangs=True, energy=metered, power_states=power, deferred_stop=True,
            stop_s=self._settings.kill_s + 2 * GONE_S, drain=True, prune=True,
            measures_shared=hosting is not None,
        )  # fmt: skip
        super().__init__(
            cluster, state, work_of, node_energy_j=node_energy_j, declared_power=declared_power, now_s=now_s
        )
        self._slurm = slurm or Slurm()
        self._power = NodePower(self._slurm, cluster, may_sleep=power)
        self._allocations = Allocations(cluster, self._power, self._settings.cpus_per_gpu)
        self._planner = RunPlanner(
            cluster, self._reports, self._history, images or Images(), self._settings.grace_s, now_s,
            look_s=self._settings.runner_look_s, locked=True, in_slurm=True, fence=fence_in(self._state),
        )  # fmt: skip
        self._snapshot: SlurmSnapshot | None = None  # none while it is known to be outdated
        self._last: SlurmSnapshot | None = None
        self._identity, script = prepare(self._state, self._settings, cluster.names)
        self._submitter = Submitter(
            self._slurm, cluster, self._settings, self._allocations, self._power, self._identity, script
        )
        self._drains = Drains(self._slurm, cluster.names, self._identity)
        since = since or {}
        # a node that was asleep at its last reading, and is now, was asleep meanwhile
        asleep = still_asleep(self._slurm, {n: cluster.names[n] for n, mark in since.items() if mark.asleep})
        self._metered = [(False, n in asleep) for n in range(len(cluster))]  # waking, asleep
        self._servers: SlurmServers | None = None
        if hosting is not None:
            slots = self._free_slots_by(lambda n: self._allocations.free(n, self._look(self._settings.look_s)))
            self._servers = SlurmServers(
                cluster, hosting, self._submitter, self._allocations, look_s=self._settings.runner_look_s,
                free_slots=slots, look=lambda: self._look(self._settings.look_s), ended=self._end_of,
                stop=self._stop_server, now_s=now_s,
            )  # fmt: skip
            self._host(hosting, [range(gpus) for gpus in cluster.gpus.tolist()], self._servers)
            self._allocations.kept = self._devices.without_run
        self._take_over(since, asleep)
        self._supervise()

    def nodes(self) -> NodeView:
        """Nodes as of a recent snapshot; GPUs of external jobs are not usable."""
        return self._allocations.view(self._look(self._settings.look_s))

    def poll(self) -> Sequence[Change]:
        """What changed since the last poll; raises ``EngineError``, and loses nothing, if Slurm does not answer."""
        self._tend_front()
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
        if self._servers is not None:
            self._servers.release_stopped()
        self._look_at_devices()
        self._sweep(snapshot)
        changes, self._changes = self._changes, []
        return changes

    def request_stop(self, handles: Collection[int]) -> Collection[int]:
        """Ask jobs to stop, all at once; returns those that will: Slurm has started them, or is completing them."""
        return self._ask_to_stop([self._runs[handle] for handle in handles if handle in self._runs])

    def _ask_to_stop(self, runs: Collection[SlurmRun]) -> list[int]:
        """Ask *runs* to stop, all at once; returns the handles of those that will."""
        if not runs:
            return []
        going, at_work = [], []
        snapshot = self._look(self._settings.look_s if all(run.stuck for run in runs) else 0.0)
        for run in runs:
            job = None if run.deferred else snapshot.job_of(run.spec)
            if job is not None and (job.allocated or job.completing):
                run.asked_s = time.monotonic() if run.asked_s is None else run.asked_s
                going.append(run.spec.handle)
                at_work += [job.id] if job.allocated and not run.killed else []
        if at_work:
            self._slurm.terminate(at_work)
        return going

    def _stop_server(self, run: SlurmRun) -> bool:
        """Stop a model server; returns whether it is over. Nobody waits for one that was asked to stop."""
        return not self._ask_to_stop([run]) and self._await_end(run) is not None

    def has_room(self, nodes: Collection[int], gpus_per_node: int, job: int | None = None) -> bool:  # noqa: ARG002
        """Whether so many GPUs of each of *nodes* are free."""
        snapshot = self._look(self._settings.look_s)
        return all(self._allocations.free(n, snapshot) >= gpus_per_node for n in nodes)

    def wait(self, seconds: float, waker: int = -1) -> None:
        """Return after so long, as soon as a job has ended, or when *waker* is readable.

        Meanwhile, jobs whose nodes have woken are submitted.
        """
        woken = select.poll()
        if waker >= 0:
            woken.register(waker, select.POLLIN)
        until_s = time.monotonic() + seconds
        looked_s = -np.inf if self._snapshot is None else self._snapshot.at_s
        while not self._changes and not self.has_shared_news() and (left_s := until_s - time.monotonic()) > 0:
            ended = any(run.just_ended(self._settings.lag_s) for run in self._all_runs())
            if time.monotonic() >= looked_s + min(self._settings.look_s, _SOON_S if ended else np.inf):
                with suppress(EngineError):
                    snapshot = self._look()
                    self._advance(snapshot)
                    if any(self._end(run, snapshot) for run in self._all_runs()):
                        return
                looked_s = time.monotonic()
            if woken.poll(1000 * min(left_s, max(_BLINK_S, 0.002 * len(self._runs)))):
                return

    def drain(self, nodes: Collection[int]) -> None:
        """Drain exactly these nodes in Slurm, except those that somebody else has drained."""
        self._drains.set(nodes, self._look())
        self._snapshot = None

    # -- jobs

    def _start(self, command: Start) -> None:
        if self._has_ended(command):
            return
        snapshot = self._look(self._settings.look_s)
        self._allocations.check(command, snapshot)
        spec = self._planner.spec(command, ((),) * len(command.nodes))  # Slurm chooses the GPUs
        self._meter(command.nodes)
        run = self._run_of(RunFolder.create(self._state / "runs", spec), spec)
        self._enter(run)
        self._history.add(spec)
        try:
            self._submitter.begin(run, snapshot)
        except EngineError as error:
            if run.prevented(str(error)):  # if Slurm has it all the same, the next sweep cancels it
                self._vacate(command.handle)
                msg = f"start {command.name}: {error}"
                raise type(error)(msg) from error

    def _set_power(self, command: SetPower) -> None:
        snapshot = self._look(self._settings.look_s)
        self._power.set(command, snapshot, used=self._allocations.used(command.node, snapshot))

    def _await_end(self, run: SlurmRun) -> End | None:
        age_s = self._settings.look_s if run.stuck else 0.0  # a run that survived being killed has no news
        end = await_end(run, self._slurm, self._settings, lambda: self._look(age_s).job_of(run.spec))
        if end is not None:
            self._snapshot = None  # its GPUs are free now
        return end

    def _advance(self, snapshot: SlurmSnapshot) -> None:
        """Submit the runs whose nodes have woken; withdraw those that Slurm does not start."""
        self._submitter.advance(self._all_runs(), snapshot)

    def _sweep(self, snapshot: SlurmSnapshot) -> None:
        """Cancel our jobs in Slurm that were given up, such as a submission whose answer never came."""
        wanted = {run.key for run in self._all_runs()}
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
            snapshot = look(self._slurm, self._identity, self._last, self._all_runs(), self._settings.users)
            for n in range(len(self._cluster)):
                node = self._allocations.node(n, snapshot)
                power = (self._power.waking(n, node), node is not None and "powered_down" in node.states)
                if power != self._metered[n]:
                    self._meter([n])
                    self._metered[n] = power
            for run in self._all_runs():
                job = None if run.there else snapshot.job_of(run.spec)
                if job is not None and not job.over:  # it ended before we began, and still has its GPUs
                    self._meter(run.spec.nodes)
                    self._allocations.enter(run)
            self._snapshot = self._last = snapshot
            kill_overdue(self._all_runs(), snapshot.job_of, self._slurm, self._settings)
        return self._snapshot

    def _all_runs(self) -> list[SlurmRun]:
        """Return the runs of jobs, and those of model servers."""
        return [*self._runs.values(), *(() if self._servers is None else self._servers.runs.values())]

    def close(self) -> None:
        """Close what this process has open; jobs and services go on."""
        self._leave_services()

    def _end(self, run: SlurmRun, snapshot: SlurmSnapshot) -> End | None:
        """Return how a run ended, ``None`` if it has not."""
        return run.ended(snapshot.job_of(run.spec), self._settings.lag_s, snapshot.at_s)

    def _end_of(self, run: SlurmRun) -> End | None:
        return self._end(run, self._look(self._settings.look_s))

    def _run_of(self, folder: RunFolder, spec: RunSpec) -> SlurmRun:
        return SlurmRun(folder, spec, now_s=self._now_s)

    def measured_w(self) -> Floats | None:
        """Return what Slurm measured nodes to draw."""
        return self._node_meter.watts if isinstance(self._node_meter, NodeMeter) else None

    def power_w(self) -> float | None:
        """Return the power of the cluster, measured or declared."""
        measured_w = self.measured_w()
        return super().power_w() if measured_w is None else float(measured_w.sum())

    def _power_state(self, n: int) -> tuple[bool, bool]:
        return self._metered[n]
