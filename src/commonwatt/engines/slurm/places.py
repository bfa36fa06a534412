"""What our jobs may have of each node, after what Slurm, others and our own runs leave."""

from __future__ import annotations

import numpy as np

from commonwatt.control.engine import NodeView, Start
from commonwatt.engines.local.folder import RunOrder
from commonwatt.engines.slurm.power import NodePower
from commonwatt.engines.slurm.reading import SlurmNode
from commonwatt.engines.slurm.run import SlurmRun
from commonwatt.engines.slurm.sight import Sight
from commonwatt.model.errors import EngineError
from commonwatt.model.nodes import Cluster

__all__ = ["Places"]


class Places:
    """The nodes, and which runs of ours are on them.

    Parameters
    ----------
    cluster
        The declared nodes.
    power
        Who sleeps.
    cpus_per_gpu
        CPUs asked for with each GPU.
    """

    def __init__(self, cluster: Cluster, power: NodePower, cpus_per_gpu: int) -> None:
        self._cluster, self._power, self._cpus_per_gpu = cluster, power, cpus_per_gpu
        self._on: list[list[SlurmRun]] = [[] for _ in cluster.names]
        self._usable: list[int | None] = [None] * len(cluster)
        self._up = [False] * len(cluster)

    def enter(self, run: SlurmRun) -> None:
        """A run is on its nodes from now on."""
        run.there = True
        for n in run.order.nodes:
            self._on[n].append(run)

    def leave(self, run: SlurmRun) -> None:
        """A run is off its nodes."""
        run.there = False
        for n in run.order.nodes:
            self._on[n].remove(run)

    def orders(self, n: int) -> list[RunOrder]:
        """Return what was ordered of the runs on node *n*."""
        return [run.order for run in self._on[n]]

    def node(self, n: int, sight: Sight) -> SlurmNode | None:
        """Return node *n* as Slurm sees it."""
        return sight.nodes.get(self._cluster.names[n])

    def ready(self, n: int, sight: Sight) -> bool:
        """Whether node *n* is on."""
        node = self.node(n, sight)
        return node is not None and not (node.asleep or node.waking or self._power.asleep(n, node))

    def used(self, n: int, sight: Sight) -> bool:
        """Whether anybody has anything on node *n*."""
        node = self.node(n, sight)
        return bool(self._on[n]) or (node is not None and node.used)

    def free(self, n: int, sight: Sight) -> int:
        """Return how many GPUs of node *n* a run could get now."""
        return self._usable_of(n, sight) - sum(run.order.gpus_per_node for run in self._on[n])

    def check(self, command: Start, sight: Sight) -> None:
        """Raise ``EngineError`` if a node has too few GPUs free for what is to be started."""
        for n in command.nodes:
            free = self.free(n, sight)
            if free < command.gpus_per_node:
                name = self._cluster.names[n]
                msg = f"start {command.name}: node {name} has {max(0, free)} GPUs free, not {command.gpus_per_node}"
                raise EngineError(msg)

    def view(self, sight: Sight) -> NodeView:
        """The nodes for the controller: without what others hold, or runs of ours that it takes for gone."""
        nodes = range(len(self._cluster))
        left = [sum(run.order.gpus_per_node for run in self._on[n] if run.left) for n in nodes]
        usable = np.array([max(0, self._usable_of(n, sight) - left[n]) for n in nodes], dtype=np.int64)
        used = np.array([self.used(n, sight) for n in nodes], dtype=bool)
        up = np.array([self._is_up(n, sight) for n in nodes], dtype=bool)
        wait_s, states = self._power.view(sight, up | (usable > 0))
        return NodeView(usable, wait_s, states, used, up)

    def _is_up(self, n: int, sight: Sight) -> bool:
        """Whether node *n* is not down: one Slurm does not hear of, as each after ``UNDRAIN``, is what it was.

        If that is not known, it is up while jobs are on it.
        """
        node = self.node(n, sight)
        up = node is not None and not node.down and (not node.silent or self._up[n] or self.used(n, sight))
        self._up[n] = up
        return up

    def _usable_of(self, n: int, sight: Sight) -> int:
        kind, held = self._cluster.classes[self._cluster.klass[n]], sight.held_by(self.orders(n))
        name, before = self._cluster.names[n], self._usable[n]
        usable = sight.usable(name, kind.gpu_type, kind.gpus, held, self._cpus_per_gpu, before)
        self._usable[n] = usable
        return usable
