"""Nodes of Kubernetes: GPUs our runs may have there, and the cordons that are ours."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from commonwatt.control.engine import NodeView, Start
from commonwatt.engines.kubernetes.api import KubernetesApi, path_of
from commonwatt.engines.kubernetes.objects import CORDON, CPU, MEMORY, Node, Pod, matches, tolerated, whole
from commonwatt.engines.kubernetes.run import KubernetesRun
from commonwatt.engines.kubernetes.settings import KubernetesSettings, resource_of
from commonwatt.engines.run_spec import RunSpec
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.model.nodes import Cluster
from commonwatt.model.units import plural

__all__ = ["Cordons", "PodAllocations", "Sight"]


@dataclass(frozen=True)
class Sight:
    """The cluster at one moment: nodes by name, our pods by handle, attempt and rank, and what others take."""

    nodes: Mapping[str, Node]
    own: Mapping[tuple[int, int, int], Pod]
    stray: tuple[Pod, ...]  # ours, and of no run that goes on
    others: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by node and resource, strays included
    steady_s: float = -1e18  # since when the server answers without interruption


class PodAllocations:
    """The declared nodes, and our runs on them.

    Parameters
    ----------
    cluster
        The declared nodes. A name ``NODE:TYPE`` is the part of a node that has GPUs of this type.
    settings
        Of the engine.
    """

    def __init__(self, cluster: Cluster, settings: KubernetesSettings) -> None:
        self._cluster, self._settings = cluster, settings
        self.hosts = [name.partition(":")[0] for name in cluster.names]
        self.resources = [resource_of(cluster.classes[k].gpu_type, settings.resources) for k in cluster.klass]
        self._gpus = cluster.gpus.tolist()
        self._on: list[list[KubernetesRun]] = [[] for _ in cluster.names]
        self._parts: dict[str, list[int]] = {}
        for n, host in enumerate(self.hosts):
            self._parts.setdefault(host, []).append(n)
        self._dark_s: float | None = None
        self._unknown_s: dict[str, float] = {}  # since when nodes are silent or gone

    def enter(self, run: KubernetesRun) -> None:
        """A run is on its nodes from now on."""
        run.there = True
        for n in run.spec.nodes:
            self._on[n].append(run)

    def leave(self, run: KubernetesRun) -> None:
        """A run is off its nodes."""
        run.there = False
        for n in run.spec.nodes:
            self._on[n].remove(run)

    def specs(self, n: int) -> list[RunSpec]:
        """Return the specs of the runs on node *n*."""
        return [run.spec for run in self._on[n]]

    def own(self, n: int) -> int:
        """Return how many GPUs of node *n* our runs have."""
        return sum(run.spec.gpus_per_node for run in self._on[n])

    def free(self, n: int, sight: Sight) -> int:
        """Return how many GPUs of node *n* are free for our runs."""
        return self.usable(n, sight) - self.own(n)

    def usable(self, n: int, sight: Sight) -> int:
        """GPUs of node *n* that our runs may have, those they have included.

        None but these where it is not ready, cordoned, or does not admit our pods.
        """
        own, node = self.own(n), sight.nodes.get(self.hosts[n])
        if node is None or node.ready != "True" or node.cordoned or not self.admits(node):
            return own
        others = sight.others.get(node.name, {})
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
        pod = self._settings.pod
        return tolerated(node.taints, pod.get("tolerations") or ()) and matches(pod, node.labels, node.name)

    def check(self, command: Start, sight: Sight) -> None:
        """Raise ``EngineError`` if a node has too few free GPUs for *command*."""
        for n in command.nodes:
            free = self.free(n, sight)
            if free < command.gpus_per_node:
                has = plural(max(0, free), "GPU")
                msg = f"start {command.name}: node {self._cluster.names[n]} has {has} free, not {command.gpus_per_node}"
                raise EngineError(msg)

    def view(self, sight: Sight) -> NodeView:
        """The nodes for the controller, without the GPUs of others and of runs that it takes for gone."""
        lost, nodes = self.lost(sight), range(len(self._cluster))
        detached = [sum(run.spec.gpus_per_node for run in self._on[n] if run.detached) for n in nodes]
        usable = [0 if self.hosts[n] in lost else max(0, self.usable(n, sight) - detached[n]) for n in nodes]
        used = [self.own(n) > 0 or sight.others.get(self.hosts[n], {}).get(self.resources[n], 0.0) > 0 for n in nodes]
        up = [self.hosts[n] not in lost and self._is_up(sight.nodes.get(self.hosts[n])) for n in nodes]
        return NodeView(
            np.array(usable, dtype=np.int64), np.zeros(len(usable)), np.full(len(usable), -1, dtype=np.int64),
            np.array(used, dtype=bool), np.array(up, dtype=bool),
        )  # fmt: skip

    @staticmethod
    def _is_up(node: Node | None) -> bool:
        return node is not None and node.ready != "False"

    def lost(self, sight: Sight) -> dict[str, str | None]:
        """Return the declared nodes that are lost: their condition Ready is Unknown, or they are gone (``None``).

        Not at once, and not soon after the server was away. That all are lost together is more likely to be a fault of
        the control plane: it is not believed for a while.
        """
        now_s, found = time.monotonic(), {}
        for host in self._parts:
            node = sight.nodes.get(host)
            if node is not None and node.ready in ("True", "False"):
                self._unknown_s.pop(host, None)
                continue
            if now_s >= self._unknown_s.setdefault(host, now_s) + self._settings.lost_s:
                found[host] = None if node is None else node.ready
        if now_s < sight.steady_s + self._settings.settle_s:
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
        refused: EngineError | None = None
        for host in self._hosts:
            node = nodes.get(host)
            if node is None:
                continue
            try:
                self._set(node, cordon=host in wanted)
            except EngineDownError:
                raise
            except EngineError as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def _set(self, node: Node, *, cordon: bool) -> None:
        if cordon and not node.cordoned:
            self._patch(node.name, self._label, cordon=True)
        elif not cordon and node.cordoned_by == self._label:
            self._patch(node.name, None, cordon=False if node.cordoned else None)

    def _patch(self, name: str, by: str | None, *, cordon: bool | None) -> None:
        body = {
            "metadata": {"annotations": {CORDON: by}},
            **({} if cordon is None else {"spec": {"unschedulable": cordon or None}}),
        }
        self._api.merge(path_of("nodes", name=name), body)
