"""An ``Engine`` whose jobs run in pods of a Kubernetes cluster, placed by this engine.

Every run and its end are on disk, as for the local engine and by the same runner: the state folder has to be on a
volume that all pods share. Kubernetes says what runs, what it has, and what is over. See ``docs/reference/engines.md``.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from commonwatt.control.engine import Capabilities, Change, NodeRoom, NodeView, Reading, SetPower, Start
from commonwatt.control.external_jobs import ExternalJob
from commonwatt.engines.hosting_engine import HostingEngine
from commonwatt.engines.kubernetes.api import DENIED, KubernetesApi, path_of
from commonwatt.engines.kubernetes.informer import Informer, Watched
from commonwatt.engines.kubernetes.model_servers import KubernetesServers, as_server
from commonwatt.engines.kubernetes.node_control import PodAllocations, PodNeeds
from commonwatt.engines.kubernetes.objects import Node, Pod, PodSeen, bound_s, node_of, pod_of
from commonwatt.engines.kubernetes.pod_placer import AT_ONCE, PodPlacer
from commonwatt.engines.kubernetes.power import Cordons, HostPower
from commonwatt.engines.kubernetes.run import KubernetesRun, StartRequest, change_of
from commonwatt.engines.kubernetes.settings import (
    SCHEDULER,
    InPods,
    KubernetesSettings,
    cluster_label,
    manifests,
    prepare,
    rank_specs,
    resource_of,
)
from commonwatt.engines.kubernetes.snapshot import (
    KubernetesSnapshot,
    PodFinder,
    Strays,
    external_jobs,
    lost,
    refused,
    snapshot_of,
)  # fmt: skip
from commonwatt.engines.kubernetes.user_job import UserJob, job_file
from commonwatt.engines.kubernetes.user_jobs import UserJobs
from commonwatt.engines.kubernetes.user_requests import LateError, Pauses
from commonwatt.engines.kubernetes.user_run import UserJobRun, maybe_placed, nodes_of, runs_over
from commonwatt.engines.local.folder import End, RunFolder
from commonwatt.engines.meters import Since
from commonwatt.engines.model_servers import FIRST_SERVER, Hosting
from commonwatt.engines.recorded_engine import SchedulerEngine
from commonwatt.engines.run_history import RunPlanner
from commonwatt.engines.run_spec import JobWork, RunSpec
from commonwatt.engines.state_folder import fence_in
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.model.job_file import JobFile
from commonwatt.model.nodes import Cluster

__all__ = ["KubernetesEngine"]

log = logging.getLogger("commonwatt.engines")

_GONE_S = 5.0  # which a kubelet may take to say that a pod it has killed is over
_LOOK_S, _SOON_S, _AGAIN_S = 1.0, 0.1, 5.0  # the last after a stop was denied
_NO_JOB = "its Job is gone, or has lost its label"


class KubernetesEngine(HostingEngine[KubernetesRun], SchedulerEngine[KubernetesRun]):
    """Jobs in a Kubernetes cluster.

    Parameters
    ----------
    cluster
        The declared nodes, named as in Kubernetes.
    state
        Folder of its own, on a volume shared by all pods, made if need be; one engine at a time.
    work_of
        Returns the work of the job of a given name.
    api
        The API server.
    settings
        Times and options of the site.
    node_energy_j
        Reading of a node's meter, joules; energy is unknown if there is none.
    declared_power
        Use the declared power where there is no meter.
    since
        How an earlier engine read each node's meter last (``marks``).
    hosting
        What GPUs may be shared for, by model servers in pods; none are if not given.

    Raises
    ------
    InputError
        For a node name that Kubernetes does not allow.
    """

    _allocations: PodAllocations

    def __init__(
        self, cluster: Cluster, state: Path, work_of: Callable[[str], JobWork], api: KubernetesApi, *,
        settings: KubernetesSettings | None = None, node_energy_j: Callable[[int], float] | None = None,
        declared_power: bool = False, since: Since | None = None, now_s: Callable[[], float] = time.time,
        hosting: Hosting | None = None,
    ) -> None:  # fmt: skip
        self._settings, metered = settings or KubernetesSettings(), node_energy_j is not None or declared_power
        self.capabilities = Capabilities(
            preempt=True, gangs=True, energy=metered, deferred_stop=True, stop_s=self._settings.kill_s + _GONE_S,
            drain=True, prune=True, power_states=bool(self._settings.power_hook),
            measures_shared=hosting is not None,
        )  # fmt: skip
        super().__init__(
            cluster, state, work_of, node_energy_j=node_energy_j, declared_power=declared_power, now_s=now_s
        )
        self._api, self._pauses = api, (pauses := Pauses.left_or_new(api))  # of all that changes something there
        self._planner = RunPlanner(
            cluster, self._reports, self._history, InPods(), self._settings.grace_s, now_s,
            look_s=self._settings.runner_look_s, locked=True, fence=fence_in(self._state),
        )  # fmt: skip
        self._label, own = cluster_label(prepare(self._state, self._settings, cluster.names)), self._settings
        self._power = HostPower(api, cluster, self._label, own, self._state / "power", pauses)
        self.user_jobs = UserJobs(api, self._label, own.user_namespaces, own.user_kinds, kueue=own.kueue, pauses=pauses)
        gpus = {resource_of(kind.gpu_type, self._settings.resources) for kind in cluster.classes}
        needs = PodNeeds(self._settings, gpus, work_of, self.user_jobs)
        self._allocations = PodAllocations(cluster, self._settings, self._power, needs)
        asleep = {n for n, last in (since or {}).items() if last.asleep}  # what was asleep at its last reading
        self._metered = [(False, n in asleep) for n in range(len(cluster))]  # waking, asleep
        self._cordons = Cordons(api, self._allocations.hosts, self._label, pauses)
        ours = (SCHEDULER, self._label)
        self._pods = Watched(path_of("pods"), pod_of, keep=lambda pod: pod.scheduler in ours or pod.cluster in ours)
        self._nodes: Watched[Node] = Watched(path_of("nodes"), node_of)
        self._snapshot: tuple[object, KubernetesSnapshot] | None = None  # none when runs have come or gone
        self._by_uid: Mapping[str, Pod] = {}  # all pods, as of the last look
        self._strays = Strays()
        self._left: set[str] = set()  # pods of users' runs that have ended before them, by uid
        self._late: dict[int, StartRequest] = {}  # by handle: whose pods may have yet to be made, or placed
        self._waited_for: tuple[int, ...] = ()  # version of the users' Jobs when nobody waited any longer
        if hosting is not None:
            free = self._free_slots_by(lambda n: self._allocations.free(n, self._look()))
            servers = KubernetesServers(
                look_s=own.runner_look_s, free_slots=free, run_of=self._run_of, enter=self._enter,
                start=self._start_server, ended=self._end_of, stop=self._stop_server, leave=self._leave,
            )  # fmt: skip
            self._host(hosting, [range(gpus) for gpus in cluster.gpus.tolist()], servers)
            self._allocations.kept = self._devices.without_run
        self._take_over(since or {}, asleep)
        self.informer = Informer(api, self._pods, self._nodes, *self.user_jobs.watched)
        self.user_jobs.informer, self.user_jobs.pods = self.informer, self._pods
        put = partial(self.informer.put, self._pods)
        self._placer = PodPlacer(
            api, self._label, own.namespace, pauses, self._allocations, self.user_jobs, self.informer, self._pods
        )
        self._finder = PodFinder(api, self._label, own.namespace, put, lambda: self._pods.gone)
        self._supervise()

    def nodes(self) -> NodeView:
        """Nodes as they are; GPUs of others are not usable."""
        return self._allocations.view(self._look())

    def poll(self) -> Sequence[Change]:
        """What changed since the last poll; raises ``EngineError``, and loses nothing, without an answer."""
        self._tend_front()
        snapshot = self._look()
        self._advance(snapshot)
        self._look_at_devices()
        for handle, run in list(self._runs.items()):
            is_job = handle < FIRST_SERVER  # else it is a model server, which its device has heard of
            if (is_job or run.detached) and (end := self._end(run, snapshot)) is not None:
                self._vacate(handle, end)
                if not is_job:
                    continue
                change = self._reports.change(run.spec, end, begun=run.begun(end))
                away = self._allocations.away(run.spec.nodes, snapshot)
                self._changes.append(change_of(run, change, end, requeue=self._settings.requeue_deleted, away=away))
        self._sweep(self._look())
        changes, self._changes = self._changes, []
        return changes

    def request_stop(self, handles: Collection[int]) -> Collection[int]:
        """Ask jobs to stop, all at once; returns those that will."""
        runs = [self._runs[handle] for handle in handles if handle in self._runs]
        snapshot = self._look() if runs else None
        going = []
        for run in runs:
            assert snapshot is not None
            seen = self._seen(run, snapshot)
            if run.spec.handle in self._late and len(run.uids) < len(run.ranks):  # none is placed: those to come go
                run.give_up(End(None, stopped=True, at_s=self._now_s(), cause="stopped"))
            if not run.detached and any(not one.over for one in seen.values()):
                self._delete_pods(run, [one.pod for one in seen.values() if one.pod is not None and not one.over])
                run.asked_s = time.monotonic() if run.asked_s is None else run.asked_s
                going.append(run.spec.handle)
        return going

    def has_room(self, nodes: Collection[int], gpus_per_node: int, job: int | None = None) -> bool:
        """Whether so many GPUs of each of *nodes* are free, and what else *job* takes there."""
        return self._allocations.has_room(nodes, gpus_per_node, job, self._look())

    def room(self, jobs: Sequence[tuple[int, str, int]]) -> NodeRoom | None:
        """Return what nodes have beside GPUs, and what *jobs* take."""
        return self._allocations.room(jobs, self._look())

    def close(self) -> None:
        """Stop watching and close connections; jobs keep running."""
        self._leave_services()
        self.informer.stop()
        self._pauses.close()

    def wait(self, seconds: float, waker: int = -1) -> None:
        """Return after so long, as soon as a job has ended, or when *waker* is readable."""
        woken = select.poll()
        woken.register(self.informer.woken, select.POLLIN)
        if waker >= 0:
            woken.register(waker, select.POLLIN)
        until_s = time.monotonic() + seconds
        while not self._changes and not self.has_shared_news() and (left_s := until_s - time.monotonic()) > 0:
            soon = False
            with suppress(EngineError):
                snapshot = self._look()
                self._advance(snapshot)
                if any(self._end(run, snapshot) for run in self._runs.values()):
                    return
                if self._waited_for != self.user_jobs.version:
                    self._waited_for = self.user_jobs.version
                    return
                soon = any(run.missing_s or run.asked_s or run.spec.handle in self._late for run in self._runs.values())
            if any(number == waker for number, _ in woken.poll(1000 * min(left_s, _SOON_S if soon else _LOOK_S))):
                return
            self.informer.rest()

    def drain(self, nodes: Collection[int]) -> None:
        """Cordon exactly these nodes, except those that somebody else has cordoned."""
        hosts = self._allocations.hosts
        kept = {host for n, host in enumerate(hosts) if n not in nodes}
        self._cordons.set({hosts[n] for n in nodes} - kept, self._look().nodes)

    def external_jobs(self) -> list[ExternalJob]:
        """Return the jobs of others; raises ``EngineError`` if the server does not answer."""
        snapshot, pods = self._look(), self._by_uid.values()
        return external_jobs(pods, snapshot.nodes, self._cluster, self._settings.resources, self._label)

    def file_of(self, job: UserJob) -> JobFile:
        """Return what is submitted for a user's Job.

        Raises ``InputError`` if it cannot be taken over, ``EngineError`` if the server does not answer.
        """
        return job_file(job, self._cluster, self._look().nodes.values(), self._settings.resources)

    def runs(self, job: UserJob) -> bool:
        """Whether a user's Job has a run whose end was not reported yet."""
        return any(isinstance(run, UserJobRun) and run.owner == job.uid for run in self._runs.values())

    # -- jobs

    def start_all(self, starts: Sequence[Start], guard: Callable[[], None]) -> Sequence[EngineError | None]:
        """Start jobs, a few at a time; returns what refused each. No more are tried of a server that is down."""
        errors: list[EngineError | None] = []
        for at in range(0, len(starts), AT_ONCE):
            guard()
            errors += self._start_some(starts[at : at + AT_ONCE])
            if any(isinstance(error, EngineDownError) for error in errors):
                break
        return errors

    def _start(self, command: Start) -> None:
        (error,) = self._start_some([command])
        if error is not None:
            raise error

    def _start_some(self, starts: Sequence[Start]) -> list[EngineError | None]:
        """Write down the runs of *starts* one by one, create all their pods at once, and then place all of them."""
        errors: list[EngineError | None] = [None] * len(starts)
        requests: dict[int, StartRequest] = {}
        try:
            snapshot = self._look()
        except EngineError as error:
            return [error] * len(starts)
        for k, command in enumerate(starts):
            try:
                request = self._start_request(command, snapshot)
            except EngineError as error:
                errors[k] = error
            else:
                requests |= {} if request is None else {k: request}
        self._placer.place(requests, snapshot)
        for k, request in requests.items():
            if (refusal := self._error_of(request)) is not None:
                errors[k] = self._taken_back(request.run, starts[k], refusal)
        return errors

    def _error_of(self, request: StartRequest) -> EngineError | None:
        """Return why a run was not started; ``None``: it was, or some of its pods may have yet to be placed."""
        if request.error is None and not request.waits:
            self._meter(request.run.spec.nodes)
            request.run.note_placed()
        elif request.error is None or isinstance(request.error, LateError):
            self._late[request.run.spec.handle], request.run.deferred = request, True
        else:
            return request.error
        return None

    def _start_server(self, run: KubernetesRun) -> None:
        """Create and place the pod of a model server; one that is refused has ended."""
        try:
            snapshot = self._look()
            waits = self._power.make_ready(snapshot.there(self._allocations.hosts[n] for n in run.spec.nodes))
            bodies = [as_server(body) for body in self._manifests([run.spec], run.folder.path)]
            request = StartRequest(run, [run.spec], bodies, waits)
            self._placer.place({0: request}, snapshot)
            if (refusal := self._error_of(request)) is not None:
                raise refusal
        except EngineError as error:
            run.give_up(refused(error, self._now_s()))

    def _stop_server(self, run: KubernetesRun) -> bool:
        """Stop a model server; returns whether it is over. Nobody waits for one that was asked to stop."""
        try:
            end = None if self.request_stop([run.spec.handle]) else self._await_end(run)
        except EngineError as error:
            log.warning("a model server cannot be stopped", extra={"cause": str(error)})
            end = None
        run.detached = end is None
        if end is not None:
            self._vacate(run.spec.handle, end)
        return end is not None

    def _leave(self, run: KubernetesRun) -> None:
        if self._runs.get(run.spec.handle) is run:
            self._vacate(run.spec.handle, run.folder.end())

    def _start_request(self, command: Start, snapshot: KubernetesSnapshot) -> StartRequest | None:
        """Check a start, and write its run down; ``None``: there is no more to do."""
        if self._has_ended(command):
            return None
        self._allocations.check(command, snapshot)
        waits = self._power.make_ready(snapshot.there(self._allocations.hosts[n] for n in command.nodes))
        planned = self._planner.spec(command, ((),) * len(command.nodes))  # the kubelet chooses the GPUs
        if planned.workload:
            self._start_user_job(command, planned)
            return None
        for verb in ("create", "bind"):
            if why := self._pauses.paused((self._settings.namespace, "pods", verb)):
                msg = f"start {command.name}: no pods are made or placed for a while, a webhook may hang: {why}"
                raise EngineError(msg)
        own = self._state / "jobs" / str(command.handle)
        specs = rank_specs(replace(planned, echo=True), self._label, self._settings.namespace, own)
        bodies = self._manifests(specs, self._state / "runs" / f"{command.handle}-{specs[0].attempt}")
        self._meter(command.nodes)
        run = self._run_of(RunFolder.create(self._state / "runs", specs[0]), specs[0])
        self._enter(run)
        self._history.add(specs[0])
        return StartRequest(run, specs, bodies, waits)

    def _waits_for_nodes(self, run: KubernetesRun, snapshot: KubernetesSnapshot) -> bool:
        """Whether a run of an earlier controller was never placed because its nodes are still waking."""
        if not run.placed:
            hosts = (self._allocations.hosts[n] for n in run.spec.nodes)
            run.deferred = any(self._power.waking(snapshot.nodes.get(host)) for host in hosts)
        return run.deferred

    def _bind_deferred(
        self, run: KubernetesRun, seen: Mapping[int, PodSeen], snapshot: KubernetesSnapshot
    ) -> End | None:
        """Make and place what is left of the pods of a run if its nodes are awake; returns its end if that fails."""
        hosts = [self._allocations.hosts[n] for n in run.spec.nodes]
        nodes = [snapshot.nodes.get(host) for host in hosts]
        if any(self._power.waking(node) for node in nodes):
            run.waiting_s = time.monotonic()
            return None
        if not all(self._power.is_awake(node) for node in nodes):
            return End(None, stopped=False, at_s=self._now_s(), cause="its nodes did not wake, or are not ready")
        request = self._late.get(run.spec.handle) or StartRequest(run, (), (), waits=False)
        request.waits, request.error = False, None
        run.note_seen(seen, hosts)
        self._placer.place({0: request}, snapshot)
        if isinstance(request.error, EngineDownError):
            raise request.error
        if request.error is None:
            self._late.pop(run.spec.handle, None)
            self._charge_between(run, bound_s(seen), run.ended_s())
            run.note_placed()
        in_time = isinstance(request.error, LateError) and time.monotonic() < run.waiting_s + self._settings.start_s
        return None if request.error is None or in_time else refused(request.error, self._now_s())

    def _taken_back(self, run: KubernetesRun, command: Start, error: EngineError) -> EngineError:
        """Give up a run that could not be started; returns the *error* for the caller."""
        run.give_up(refused(error, self._now_s()))
        self._vacate(command.handle)
        with suppress(EngineError):
            self._sweep(self._look())
        msg = f"start {command.name}: {str(error).removeprefix(f'start {command.name}: ')}"
        return (EngineDownError if isinstance(error, EngineDownError) else EngineError)(msg)

    def _start_user_job(self, command: Start, spec: RunSpec) -> None:
        """Let the pods of a user's Job be made, and place those that are there already; ``poll`` places the others."""
        if spec.workload[2] not in self.user_jobs.all():
            msg = f"start {command.name}: {self.user_jobs.why_unseen(spec.workload[0]) or _NO_JOB}"
            raise EngineError(msg)
        self._meter(command.nodes)
        run = self._run_of(RunFolder.create(self._state / "runs", spec), spec)
        assert isinstance(run, UserJobRun)
        self._enter(run)
        self._history.add(spec)
        try:
            self._place(run)
        except EngineError as error:  # what is denied, in one namespace, is not the server's being down
            failure = EngineError(str(error)) if isinstance(error, DENIED) else error
            raise self._taken_back(run, command, failure) from error

    def _place(self, run: UserJobRun) -> None:
        """Place the pods of a run if they are there; raises ``EngineError`` if that is impossible."""
        job = run.job = self.user_jobs.of(run)
        if job is None or job.over:
            msg = _NO_JOB if job is None else f"its Job has ended: {job.why or job.end or 'it is being deleted'}"
            raise EngineError(msg)
        if not self.user_jobs.resume(job):
            return
        hosts = {n: self._allocations.hosts[n] for n in run.spec.nodes}
        snapshot = self._look()
        nodes = [snapshot.nodes.get(host) for host in hosts.values()]
        if any(self._power.waking(node) for node in nodes):
            run.waiting_s = time.monotonic()
            return
        if not all(self._power.is_awake(node) for node in nodes):
            msg = "its nodes did not wake, or are not ready any more"
            raise EngineError(msg)
        fits = partial(self._allocations.check_pods, run, snapshot=snapshot)
        if self.user_jobs.place(run, job, self._by_uid.values(), hosts, fits):
            self._charge_between(run, bound_s(self._seen(run, snapshot)))
            run.note_bound()

    def _manifests(self, specs: Sequence[RunSpec], path: Path) -> list[dict[str, Any]]:
        resources = [self._allocations.resources[n] for n in specs[0].nodes]
        return manifests(self._settings, specs, self._label, resources, path, self._state)

    def _set_power(self, command: SetPower) -> None:
        snapshot, n = self._look(), command.node
        self._power.set(command, snapshot.nodes.get(self._allocations.hosts[n]), used=self._allocations.own(n) > 0)
        self._meter_power(snapshot)

    def _power_state(self, n: int) -> tuple[bool, bool]:
        return self._metered[n]

    def _meter_power(self, snapshot: KubernetesSnapshot) -> None:
        """Close the readings of nodes that fell asleep, or began to wake."""
        self._meter(self._power.changed(self._metered, [snapshot.nodes.get(host) for host in self._allocations.hosts]))

    def _await_end(self, run: KubernetesRun) -> End | None:
        run.asked_s = time.monotonic() if run.asked_s is None else run.asked_s
        until_s = max(run.asked_s + self._settings.kill_s, time.monotonic()) + _GONE_S
        while (end := self._end_of(run)) is None:
            left_s = until_s - time.monotonic()
            if left_s <= 0 or run.detached or run.denied_s is not None:
                run.detached = True
                return None
            self.informer.await_change(min(left_s, _SOON_S))
        return end

    def _enter(self, run: KubernetesRun) -> None:
        super()._enter(run)
        self._snapshot = None

    def _vacate(self, handle: int, end: End | None = None) -> None:
        run = self._runs[handle]
        self._finder.forget(handle)
        self._late.pop(handle, None)
        with suppress(EngineError):
            self._charge_until_over(runs_over([run], partial(self._seen, snapshot=self._look())))
            if end is not None and run.pending and (at_s := bound_s(self._seen(run, self._look()))) is not None:
                self._charge_between(run, at_s, end.at_s)
        if end is not None and not (run.charged or run.pending):
            self._charge_until_over([(end.at_s, run)])
        if isinstance(run, UserJobRun):
            pods = {uid: self._by_uid.get(uid) for uid in (*self._left, *map(run.pod_uid, run.ranks))}
            self._left = {uid for uid, pod in pods.items() if pod is not None and pod.node}  # others wait for the next
        super()._vacate(handle)
        self._snapshot = None

    def readings(self, *, up_to_now: bool = False) -> Sequence[Reading]:
        """Readings closed since the last call; *up_to_now* only where it is known what runs: else they stay open."""
        with suppress(EngineError):
            if up_to_now:
                snapshot = self._look()
                self._charge_until_over(runs_over(self._runs.values(), partial(self._seen, snapshot=snapshot)))
                settled_s = max(self.informer.began_s, snapshot.steady_s) + self._settings.settle_s
                steady, awake = self._pods.steady and time.monotonic() >= settled_s, self.informer.awake
                unknown = nodes_of(self._runs.values(), steady=steady, awake=awake)
                self._meter(set(range(len(self._cluster))) - unknown)
        waiting = {handle for handle, request in self._late.items() if request.waits}
        return self._meters.take(maybe_placed(run for run in self._runs.values() if run.spec.handle not in waiting))

    def _advance(self, snapshot: KubernetesSnapshot) -> None:
        """Give up runs whose node is lost, that were never placed, or that the kubelet does not start."""
        self._power.advance(snapshot.nodes)
        self._meter_power(snapshot)
        self._charge_until_over(runs_over(self._runs.values(), partial(self._seen, snapshot=snapshot)))
        gone = self._allocations.lost(snapshot)
        for run in self._runs.values():
            seen = self._seen(run, snapshot)
            run.note_preempted(seen, snapshot.nominated, self._allocations.hosts)
            at_work = [one.pod for one in seen.values() if one.pod is not None and not one.over]
            if run.denied_s is not None and time.monotonic() > run.denied_s + _AGAIN_S:
                self._delete_pods(run, at_work)
            if isinstance(run, UserJobRun):
                self._release(run, run.left(seen, gone))
                self._advance_user_job(run, seen)
                continue
            end: End | None = None
            if (node := next((pod.node for pod in at_work if pod.node in gone), None)) is not None:
                end = lost(node, gone[node], self._now_s())
            elif run.asked_s is None and (run.deferred or self._waits_for_nodes(run, snapshot)):
                end = self._bind_deferred(run, seen, snapshot)
            elif not run.placed:
                run.placed = bool(placed := run.was_placed(seen))
                if placed is False and run.asked_s is None:
                    end = refused(EngineError("the controller ended before it had placed it"), self._now_s())
            else:
                end = run.stalled(seen, self._settings)
            if end is not None and run.folder.end() is None:
                run.give_up(end)
            elif late := run.overstayers(seen, self._settings, end):
                self._delete_pods(run, late)
            for pod in run.finished(seen, self._settings):
                with suppress(*DENIED):
                    self.user_jobs.delete(pod)

    def _advance_user_job(self, run: UserJobRun, seen: Mapping[int, PodSeen]) -> None:
        """Place pods that have come; give up a run that gets none, or whose pods the kubelet does not start.

        One on a lost node goes on until Kubernetes has removed its pod: nothing else says that it does not run.
        """
        if run.deleted_by_us() or run.given_up() or (run.unseen and not run.placed):
            return
        end: End | None = None
        there = all(one.over or (one.pod is not None and one.pod.node) for one in seen.values())
        if not run.placed and there and run.has_chosen():  # late, or by an earlier engine, which has charged it so far
            if run.pending:
                self._charge_between(run, bound_s(seen), run.over_s(seen))
            run.placed = True
        if not run.placed:
            try:
                self._place(run)
            except EngineError as error:
                if isinstance(error, EngineDownError) and not isinstance(error, DENIED):
                    raise
                end = refused(error, self._now_s())
            if not run.placed and end is None and (cause := self.user_jobs.podless(run, self._settings)):
                end = End(None, stopped=False, at_s=self._now_s(), cause=cause)
        else:
            end = run.stalled(seen, self._settings)
        if end is not None:
            run.give_up(end)
        elif late := run.overstayers(seen, self._settings, None):
            self._delete_pods(run, late)

    def _delete_pods(self, run: KubernetesRun, pods: Iterable[Pod]) -> None:
        run.note_deleted()
        self.user_jobs.stop(run, pods)

    def _sweep(self, snapshot: KubernetesSnapshot) -> None:
        """Delete our pods that are of no run that goes on: at once, or some time after they are over."""
        for pod in self._strays.due(snapshot, self._settings.keep_s):
            with suppress(EngineError):
                self.user_jobs.delete(pod, 0 if pod.over else None)

    # -- what the server shows

    def _look(self) -> KubernetesSnapshot:
        """Return the cluster as it is known; raises ``EngineError`` if the server does not answer."""
        version = (self._pods.version, self._nodes.version, self._pods.steady_s, self._nodes.steady_s)
        pods, nodes = self.informer.look(self._pods), self.informer.look(self._nodes)  # as of then, or later
        self._by_uid = pods
        if self._snapshot is None or self._snapshot[0] != version:
            own, steady_s = self._settings, max(self._pods.steady_s, self._nodes.steady_s)
            self._snapshot = version, snapshot_of(
                pods.values(), nodes.values(), self._runs.values(), self._label, own.namespace, steady_s,
                own.user_namespaces, self._left,
            )  # fmt: skip
        return self._snapshot[1]

    def _seen(self, run: KubernetesRun, snapshot: KubernetesSnapshot) -> dict[int, PodSeen]:
        if isinstance(run, UserJobRun):
            return run.looked_at(self.user_jobs.of, self._by_uid, self._pods.gone)
        may_come = run.spec.handle in self._late
        return {rank: self._finder.find(run, rank, snapshot, may_come=may_come) for rank in run.ranks}

    def _end(self, run: KubernetesRun, snapshot: KubernetesSnapshot) -> End | None:
        """Return how a run ended, ``None`` if it has not."""
        return run.ended(self._seen(run, snapshot), self._settings)

    def _end_of(self, run: KubernetesRun) -> End | None:
        return self._end(run, self._look())

    def _run_of(self, folder: RunFolder, spec: RunSpec) -> KubernetesRun:
        return (UserJobRun if spec.workload else KubernetesRun)(folder, spec, now_s=self._now_s)
