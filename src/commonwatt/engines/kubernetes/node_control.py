"""Nodes of Kubernetes: GPUs our runs may have there, and the cordons that are ours."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from commonwatt.control.engine import NodeView
from commonwatt.engines.kubernetes.api import KubernetesApi, path_of
from commonwatt.engines.kubernetes.objects import CORDON, CPU, MEMORY, Node, Pod, matches, tolerated, whole
from commonwatt.engines.kubernetes.power import HostPower
from commonwatt.engines.kubernetes.run import KubernetesRun
from commonwatt.engines.kubernetes.settings import KubernetesSettings, resource_of
from commonwatt.engines.recorded_engine import RunAllocations, command_each
from commonwatt.model.nodes import Cluster

__all__ = ["Cordons", "KubernetesSnapshot", "PodAllocations", "snapshot_of"]


_OF_SLEEP = frozenset(f"node.kubernetes.io/{word}" for word in ("unschedulable", "not-ready", "unreachable"))
"""Taints that Kubernetes gives to a node that is asleep."""


@dataclass(frozen=True)
class KubernetesSnapshot:
    """The cluster at one moment: nodes by name, our pods by handle, attempt and rank, and what others take."""

    nodes: Mapping[str, Node]
    own: Mapping[tuple[int, int, int], Pod]
    stray: tuple[Pod, ...]  # ours, and of no run that goes on
    others: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by node and resource, strays included
    steady_s: float = -1e18  # since when the server answers without interruption


def snapshot_of(
    pods: Iterable[Pod], nodes: Iterable[Node], runs: Iterable[KubernetesRun], label: str, namespace: str,
    steady_s: float, users: Collection[str] = (),
) -> KubernetesSnapshot:  # fmt: skip
    """Return the cluster with these *pods* and *nodes*.

    Ours are those with our *label* in our *namespace*, and, in those of *users*, those of their Jobs that we have
    placed. Who writes our annotations on other pods changes nothing: the run has to be one of that Job, or to have
    written down that it is this pod, as for gangs, whose pods may be made by Jobs of theirs.
    """
    marks = {run.key(rank): (run.mark, run.owner, run.pod_uid(rank)) for run in runs for rank in run.ranks}
    own: dict[tuple[int, int, int], Pod] = {}
    stray: list[Pod] = []
    others: dict[str, dict[str, float]] = {}
    for pod in pods:
        if pod.cluster == label and (pod.node and pod.namespace in users if pod.owner else pod.namespace == namespace):
            if pod.run is not None and _is_of(pod, marks.get(pod.run)):
                own[pod.run] = pod
                continue
            if not (pod.owner and pod.over):  # which Kubernetes keeps with the Job
                stray.append(pod)
        if pod.node and not pod.over:
            taken = others.setdefault(pod.node, {})
            for name, amount in pod.requests:
                taken[name] = taken.get(name, 0.0) + amount
    return KubernetesSnapshot({node.name: node for node in nodes}, own, tuple(stray), others, steady_s)


def _is_of(pod: Pod, run: tuple[str, str, str] | None) -> bool:
    """Whether a pod is of the run with this mark, owner, and uid of the pod that it has chosen."""
    return run is not None and pod.mark == run[0] and (pod.owner == run[1] or pod.uid == run[2])


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
    """

    def __init__(self, cluster: Cluster, settings: KubernetesSettings, power: HostPower) -> None:
        super().__init__(cluster)
        self._settings, self._power = settings, power
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
        there = sum(self.own(part) for part in self._parts[node.name])
        each = {CPU: self._settings.cpus_per_gpu, MEMORY: 1e9 * self._settings.memory_gb_per_gpu}
        for name, amount in each.items():
            if amount:
                left = node.allocatable.get(name, 0.0) - others.get(name, 0.0) - there * amount
                most = min(most, own + whole(left / amount))
        return max(own, most)

    def admits(self, node: Node) -> bool:
        """Whether our pods tolerate its taints, and select it."""
        pod, taints = self._settings.pod, node.taints
        if self._power.mark(node) is not None or self._power.released(node):
            taints = tuple(taint for taint in taints if taint[0] not in _OF_SLEEP)
        return tolerated(taints, pod.get("tolerations") or ()) and matches(pod, node.labels, node.name)

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

    def lost(self, snapshot: KubernetesSnapshot) -> dict[str, str | None]:
        """Return the declared nodes that are lost: their condition Ready is Unknown, or they are gone (``None``).

        Not at once, and not soon after the server was away. That all are lost together is more likely to be a fault of
        the control plane: it is not believed for a while.
        """
        now_s, found = time.monotonic(), {}
        for host in self._parts:
            node = snapshot.nodes.get(host)
            if node is not None and (node.ready in ("True", "False") or self._power.mark(node) is not None):
                self._unknown_s.pop(host, None)
                continue
            if now_s >= self._unknown_s.setdefault(host, now_s) + self._settings.lost_s:
                found[host] = None if node is None else node.ready
        if now_s < snapshot.steady_s + self._settings.settle_s:
            return {}
        if len(self._unknown_s) < len(self._parts) or len(self._parts) == 1:
            self._dark_s = None
            return found
        self._dark_s = now_s if self._dark_s is None else self._dark_s
        return found if now_s > self._dark_s + self._settings.dark_s else {}


class Cordons:
    """Cordons in our name: an annotation tells them from an administrator's, which are left alone."""

    def __init__(self, api: KubernetesApi, hosts: Collection[str], label: str) -> None:
        self._api, self._hosts, self._label = api, tuple(dict.fromkeys(hosts)), label

    def set(self, wanted: Collection[str], nodes: Mapping[str, Node]) -> None:
        """Cordon exactly the *wanted* nodes, except those that somebody else has cordoned.

        Raises ``EngineError`` if one cannot be, after the others are done.
        """
        there = [nodes[host] for host in self._hosts if host in nodes]
        command_each(there, lambda node: self._set(node, cordon=node.name in wanted))

    def _set(self, node: Node, *, cordon: bool) -> None:
        slept = bool(node.asleep)  # its cordon is that of its sleep, and goes with it
        if cordon and (not node.cordoned or (slept and not node.cordoned_by)):
            self._patch(node.name, self._label, cordon=True)
        elif not cordon and node.cordoned_by == self._label:
            self._patch(node.name, None, cordon=False if node.cordoned and not slept else None)

    def _patch(self, name: str, by: str | None, *, cordon: bool | None) -> None:
        body = {
            "metadata": {"annotations": {CORDON: by}},
            **({} if cordon is None else {"spec": {"unschedulable": cordon or None}}),
        }
        self._api.merge(path_of("nodes", name=name), body)
