"""Nodes of Kubernetes: GPUs, CPUs and more that our runs may have there, and what pods of jobs take of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from commonwatt.control.engine import NodeRoom, NodeView, Start
from commonwatt.engines.kubernetes.containers import requests_of
from commonwatt.engines.kubernetes.objects import PODS, Node, Pod, kept_off, matches, tolerated, tolerations_of, whole
from commonwatt.engines.kubernetes.power import HostPower
from commonwatt.engines.kubernetes.run import KubernetesRun
from commonwatt.engines.kubernetes.settings import (
    SCHEDULER,
    KubernetesSettings,
    all_shown,
    container_requests,
    lasting,
    resource_of,
    shown,
    unit_of,
)
from commonwatt.engines.kubernetes.snapshot import KubernetesSnapshot
from commonwatt.engines.model_servers import FIRST_SERVER
from commonwatt.engines.recorded_engine import RunAllocations
from commonwatt.engines.run_spec import JobWork
from commonwatt.model.errors import EngineError
from commonwatt.model.explanation import CONDITION
from commonwatt.model.nodes import Cluster

if TYPE_CHECKING:
    from commonwatt.engines.kubernetes.user_jobs import UserJobs

__all__ = ["PodAllocations", "PodNeeds"]

_EXACT = 1e-6  # of a resource: what adding and subtracting may leave
_NOT_SAID = {PODS: math.inf}  # a node that does not say how many it may have has no limit known to us; of others: none

_OF_SLEEP = frozenset(f"node.kubernetes.io/{word}" for word in ("unschedulable", "not-ready", "unreachable"))
"""Taints that Kubernetes gives to a node that is asleep."""


class PodNeeds:
    """What the pods of a job take of a node beside its GPUs, by resource, and the taints that they tolerate.

    Parameters
    ----------
    settings
        Of the engine, for the pods that we make.
    gpus
        Resources that are GPUs.
    work_of
        Returns the work of the job of a given name.
    users
        Jobs of users.
    """

    def __init__(
        self, settings: KubernetesSettings, gpus: Collection[str], work_of: Callable[[str], JobWork], users: UserJobs
    ) -> None:
        self._settings, self._gpus, self._work_of, self._users = settings, frozenset(gpus), work_of, users
        self._asked: dict[int, tuple[str, float | None, float | None]] = {}  # uid, CPUs and GiB for each GPU
        self._more: dict[int, dict[str, float]] = {}  # on a node, that the server has added to pods, by handle
        self._opened: tuple[object, list[list[Any]]] = None, []

    def of(self, handle: int, name: str, gpus: int) -> dict[str, float]:
        """Return what a job takes of each of its nodes with so many GPUs there; raises ``EngineError``."""
        requests = self._planned(handle, name, gpus)
        for resource, amount in self._more.get(handle, {}).items():
            requests[resource] = requests.get(resource, 0.0) + amount
        return requests

    def of_asked(self, handle: int, gpus: int) -> dict[str, float]:
        """Return the same of a job that was asked for before; nothing of another."""
        return self.of(handle, "", gpus) if handle in self._asked else {}

    def _planned(self, handle: int, name: str, gpus: int) -> dict[str, float]:
        if handle not in self._asked:
            work = JobWork(()) if handle >= FIRST_SERVER else self._work_of(name)
            uid = work.workload[2] if work.workload else ""
            self._asked[handle] = uid, work.cpus_per_gpu, work.memory_gib_per_gpu
        uid, *each = self._asked[handle]
        pods, pod = 1, self._settings.pod
        if uid:
            job = self._users.find(uid)
            own = {} if job is None else dict(job.requests)
            pods = max(1, gpus // max(1, whole(sum(n for k, n in own.items() if k in self._gpus))))
        else:
            cpus, memory_gib = (None if amount is None else amount * gpus for amount in each)
            own_requests = container_requests(self._settings, gpus, cpus, memory_gib)
            beside = {key: pod[key] for key in ("initContainers", "overhead") if pod.get(key)}
            own = requests_of({**beside, "containers": [{"resources": {"requests": own_requests}}]})
        return {PODS: float(pods), **{k: pods * n for k, n in own.items() if k not in self._gpus and n}}

    def learn(self, handle: int, name: str, gpus: int, real: Mapping[str, float]) -> None:
        """Take note of what the pods of a job really request of a node: a server adds defaults, or an overhead."""
        planned = self._planned(handle, name, gpus)
        more = {k: n - planned.get(k, 0.0) for k, n in real.items() if n > planned.get(k, 0.0) + _EXACT}
        if more:
            self._more[handle] = more

    def taken_by(self, pods: Iterable[Pod]) -> dict[str, float]:
        """Return what *pods* request beside GPUs."""
        requests = {PODS: 0.0}
        for pod in pods:
            if not pod.over:
                for name, amount in ((PODS, 1.0), *pod.requests):
                    requests[name] = requests.get(name, 0.0) + amount
        return {name: amount for name, amount in requests.items() if name not in self._gpus}

    def gpus_of(self, pod: Pod) -> dict[str, float]:
        """Return the GPUs that a pod requests, by resource."""
        return {name: amount for name, amount in pod.requests if name in self._gpus and amount}

    def tolerations(self, handle: int) -> Sequence[Any]:
        """Return the tolerations of a job's pods, as far as it is known: those of a user's Job are its own alone."""
        uid = self._asked[handle][0] if handle in self._asked else ""
        if not uid:
            return self._settings.pod.get("tolerations") or ()
        job = self._users.find(uid)
        return () if job is None else tolerations_of(job.rules)

    def open(self, taints: Collection[tuple[str, str, str]]) -> bool:
        """Whether the pods of some user's Job tolerate *taints*."""
        if self._opened[0] != (version := self._users.version):
            self._opened = version, [t for job in self._users.all().values() if (t := tolerations_of(job.rules))]
        return any(tolerated(taints, tolerations) for tolerations in self._opened[1])


class PodAllocations(RunAllocations[KubernetesRun, KubernetesSnapshot]):
    """The declared nodes, and our runs on them.

    Parameters
    ----------
    cluster
        The declared nodes. A name ``NODE:TYPE`` is the part of a node that has GPUs of this type.
    settings
        Of the engine.
    power
        Which nodes we have put to sleep.
    needs
        What jobs take beside GPUs; ``None``: nothing is known of it.
    """

    def __init__(
        self, cluster: Cluster, settings: KubernetesSettings, power: HostPower, needs: PodNeeds | None = None
    ) -> None:
        super().__init__(cluster)
        self._settings, self._power, self._needs = settings, power, needs
        self.hosts = [name.partition(":")[0] for name in cluster.names]
        self.resources = [resource_of(cluster.classes[k].gpu_type, settings.resources) for k in cluster.klass]
        self._gpus = cluster.gpus.tolist()
        self._parts: dict[str, list[int]] = {}
        for n, host in enumerate(self.hosts):
            self._parts.setdefault(host, []).append(n)
        self._dark_s: float | None = None
        self._unknown_s: dict[str, float] = {}  # since when nodes are silent or gone

    def usable(self, n: int, snapshot: KubernetesSnapshot) -> int:
        """GPUs of node *n* that our runs may have, those they have included.

        None but these where it is not ready, cordoned, or does not admit our pods.
        """
        own, node = self.own(n), snapshot.nodes.get(self.hosts[n])
        if node is None or not self.admits(node):
            return own
        if self._power.mark(node) is None and (
            node.ready != "True" or (node.cordoned and not self._power.released(node))
        ):
            return own
        if node.cordoned_by and node.cordoned:
            return own
        others = snapshot.others.get(node.name, {})
        resource = self.resources[n]
        most = min(self._gpus[n], whole(node.allocatable.get(resource, 0.0) - others.get(resource, 0.0)))
        return max(own, most)

    def admits(self, node: Node) -> bool:
        """Whether our pods, or those of some user's Job, tolerate its taints, and ours select it."""
        pod, taints = self._settings.pod, node.taints
        if self._power.mark(node) is not None or self._power.released(node):
            taints = tuple(taint for taint in taints if taint[0] not in _OF_SLEEP)
        if not matches(pod, node.labels, node.name):
            return False
        if tolerated(taints, tolerations := pod.get("tolerations") or ()):
            return True
        stay = lasting(taints)
        passing = tolerated(set(taints) - set(stay), tolerations)
        return passing and self._needs is not None and self._needs.open(stay)

    # -- what there is beside GPUs

    def room(self, jobs: Sequence[tuple[int, str, int]], snapshot: KubernetesSnapshot) -> NodeRoom:
        """Return what the nodes have for our runs, and what *jobs* take; raises ``EngineError``."""
        assert self._needs is not None
        needs = {each: self._needs.of(*each) for each in dict.fromkeys(jobs)}
        names = sorted({name for own in needs.values() for name in own})
        there = [snapshot.nodes.get(host) for host in self.hosts]
        taints = sorted({taint for node in there if node is not None for taint in lasting(node.taints)})
        left = np.zeros((len(there), len(names) + len(taints)))
        most = np.full(left.shape, np.inf)
        for n, node in enumerate(there):
            if node is not None:
                most[n, : len(names)] = [node.allocatable.get(k, _NOT_SAID.get(k, 0.0)) / unit_of(k) for k in names]
                gone = [run for part in self._parts[node.name] for run in self._on[part] if part != n or run.detached]
                free = self._free_of(node, names, snapshot, gone)
                left[n] = [
                    *(free[k] / unit_of(k) for k in names),
                    *(0.0 if t in node.taints else np.inf for t in taints),
                ]
        rows: dict[tuple[int, str, int], list[float]] = {}
        for each, own in needs.items():
            tolerations = self._needs.tolerations(each[0]) if taints else ()
            rows[each] = [own.get(name, 0.0) / unit_of(name) for name in names]
            rows[each] += [0.0 if tolerated((taint,), tolerations) else 1.0 for taint in taints]
        conditions = tuple(f"{CONDITION}{key}{value and f'={value}'}:{effect}" for key, value, effect in taints)
        asked = np.array([rows[each] for each in jobs]).reshape(len(jobs), left.shape[1])
        return NodeRoom((*names, *conditions), left, asked, len(taints), most)

    def _free_of(
        self, node: Node, names: Iterable[str], snapshot: KubernetesSnapshot, runs: Iterable[KubernetesRun]
    ) -> dict[str, float]:
        """Return what of a node is neither with others nor with these *runs* of ours."""
        others = snapshot.others.get(node.name, {})
        free = {k: node.allocatable.get(k, _NOT_SAID.get(k, 0.0)) - others.get(k, 0.0) for k in names}
        for run in dict.fromkeys(runs):
            for k, amount in self._requests_on(run, node.name, snapshot).items():
                if k in free:
                    free[k] -= amount
        return free

    def _requests_on(self, run: KubernetesRun, host: str, snapshot: KubernetesSnapshot) -> dict[str, float]:
        """Return what a run has of a node: what its pods there request, or will."""
        assert self._needs is not None
        ranks = [rank for rank in run.ranks if run.spec.nodes and self.hosts[run.node_of(rank)] == host]
        pods = [pod for rank in ranks if (pod := snapshot.own.get(run.key(rank))) is not None]
        if len(pods) == len(ranks):
            return self._needs.taken_by(pods)
        return self._needs.of(run.spec.handle, run.spec.name, run.spec.gpus_per_node)

    def short(
        self, n: int, wanted: Mapping[str, float], snapshot: KubernetesSnapshot, but: KubernetesRun | None = None
    ) -> str:
        """Return what node *n* lacks of what is *wanted* there, in words; "" if nothing. Leaves out run *but*."""
        if (node := snapshot.nodes.get(self.hosts[n])) is None:
            return ""
        runs = [run for part in self._parts[node.name] for run in self._on[part] if run is not but]
        free = self._free_of(node, wanted, snapshot, runs)
        lacking = [k for k, amount in wanted.items() if amount > free[k] + _EXACT]
        said = [f"{shown(k, free[k])} left, and its pods need {shown(k, wanted[k])}" for k in lacking]
        return f"node {node.name} has {', and '.join(said)}" if said else ""

    def has_room(self, nodes: Collection[int], gpus: int, job: int | None, seen: KubernetesSnapshot) -> bool:
        """Whether so many GPUs of each of *nodes* are free, and what else a *job* that is known takes there."""
        wanted = {} if job is None or self._needs is None else self._needs.of_asked(job, gpus)
        return all(self.free(n, seen) >= gpus and not (wanted and self.short(n, wanted, seen)) for n in nodes)

    def check(self, command: Start, seen: KubernetesSnapshot) -> None:
        """Raise ``EngineError`` if a node has too few free GPUs for *command*, or too little of something else."""
        super().check(command, seen)
        if self._needs is None:
            return
        wanted = self._needs.of(command.handle, command.name, command.gpus_per_node)
        for n in command.nodes:
            if short := self.short(n, wanted, seen):
                msg = f"start {command.name}: {short}"
                raise EngineError(msg)

    def check_pods(self, run: KubernetesRun, pods: Mapping[int, Pod | None], snapshot: KubernetesSnapshot) -> None:
        """Raise ``EngineError`` if nodes lack what the *pods* of a run really request, by rank; the next ones know it.

        A server adds to what was asked for: defaults of the namespace, the overhead of a runtime, or a node selector.
        """
        assert self._needs is not None
        spec = run.spec
        for n in dict.fromkeys(map(run.node_of, pods)):
            own = [pod for rank in run.ranks if run.node_of(rank) == n and (pod := pods.get(rank)) is not None]
            each = {self.resources[n]: float(spec.gpus_per_node * len(spec.nodes) // len(run.ranks))}
            node = snapshot.nodes.get(self.hosts[n])
            taints = [] if node is None else lasting(node.taints)
            for pod in own:
                why = kept_off(pod, SCHEDULER, node, taints)
                if (gpus := self._needs.gpus_of(pod)) != each:
                    why = f"requests {all_shown(gpus)}, and is to have {all_shown(each)}"
                if why:
                    msg = f"start {spec.name}: pod {pod.name} {why}"
                    raise EngineError(msg)
            real = self._needs.taken_by(own)
            self._needs.learn(spec.handle, spec.name, spec.gpus_per_node, real)
            if short := self.short(n, real, snapshot, run):
                msg = f"start {spec.name}: {short}"
                raise EngineError(msg)

    def view(self, snapshot: KubernetesSnapshot) -> NodeView:
        """The nodes for the controller, without the GPUs of others and of runs that it takes for gone."""
        lost, nodes = self.lost(snapshot), range(len(self._cluster))
        usable = [0 if self.hosts[n] in lost else max(0, self.usable(n, snapshot) - self.detached(n)) for n in nodes]
        used = [
            self.own(n) > 0 or snapshot.others.get(self.hosts[n], {}).get(self.resources[n], 0.0) > 0 for n in nodes
        ]
        up = [self.hosts[n] not in lost and self._is_up(snapshot.nodes.get(self.hosts[n])) for n in nodes]
        there = [snapshot.nodes.get(host) for host in self.hosts]
        wait_s = [self._power.wait_s(n, there[n]) for n in nodes]
        states = [0 if self._power.asleep(there[n]) else -1 for n in nodes]
        return NodeView(
            np.array(usable, dtype=np.int64), np.array(wait_s), np.array(states, dtype=np.int64),
            np.array(used, dtype=bool), np.array(up, dtype=bool),
        )  # fmt: skip

    def _is_up(self, node: Node | None) -> bool:
        return node is not None and (node.ready != "False" or self._power.mark(node) is not None)

    def away(self, nodes: Iterable[int], snapshot: KubernetesSnapshot) -> bool:
        """Whether one of *nodes* is gone, not ready or cordoned: who deletes pods there need not be their owner."""
        there = (snapshot.nodes.get(self.hosts[n]) for n in nodes)
        return any(node is None or node.ready != "True" or node.cordoned for node in there)

    def lost(self, snapshot: KubernetesSnapshot) -> dict[str, str | None]:
        """Return the declared nodes that are lost: their condition Ready is Unknown, or they are gone (``None``).

        Not at once, and not soon after the server was away. That all are lost together is more likely to be a fault of
        the control plane: it is not believed for a while.
        """
        now_s, lost = time.monotonic(), {}
        for host in self._parts:
            node = snapshot.nodes.get(host)
            if node is not None and (node.ready in ("True", "False") or self._power.mark(node) is not None):
                self._unknown_s.pop(host, None)
                continue
            if now_s >= self._unknown_s.setdefault(host, now_s) + self._settings.lost_s:
                lost[host] = None if node is None else node.ready
        if now_s < snapshot.steady_s + self._settings.settle_s:
            return {}
        if len(self._unknown_s) < len(self._parts) or len(self._parts) == 1:
            self._dark_s = None
            return lost
        self._dark_s = now_s if self._dark_s is None else self._dark_s
        return lost if now_s > self._dark_s + self._settings.dark_s else {}
