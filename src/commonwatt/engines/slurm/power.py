"""Nodes that Slurm puts to sleep and wakes. Its power saving knows one low-power state."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

import numpy as np

from commonwatt.control.engine import SetPower
from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.reading import SlurmNode
from commonwatt.engines.slurm.sight import Sight
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import EngineDownError, EngineError, InputError
from commonwatt.model.nodes import Cluster

__all__ = ["NodePower", "check_one_state", "still_asleep"]


def check_one_state(cluster: Cluster) -> None:
    """Raise ``InputError`` on nodes with several low-power states."""
    for kind in cluster.classes:
        if len(kind.states) > 1:
            expected, names = "one state at most: Slurm's power saving has no other", [s.name for s in kind.states]
            raise InputError(expected, field="nodes.states", value=", ".join(names))


class NodePower:
    """Who sleeps, who was told to wake.

    Parameters
    ----------
    cluster
        The declared nodes. Their one low-power state, whatever its name, is Slurm's ``POWER_DOWN``.
    may_sleep
        Whether nodes are put to sleep by us; they are woken for jobs in any case.

    Raises
    ------
    InputError
        If nodes are to sleep and a class of them has several states: only one can be real.
    """

    def __init__(self, slurm: Slurm, cluster: Cluster, *, may_sleep: bool) -> None:
        if may_sleep:
            check_one_state(cluster)
        self._slurm, self._cluster, self._may_sleep = slurm, cluster, may_sleep
        self._kinds = [cluster.classes[k] for k in cluster.klass]
        self._told_down_s: dict[int, float] = {}
        self._wished_s: dict[int, float] = {}  # nodes that are to be on, and since when

    def set(self, command: SetPower, sight: Sight, *, used: bool) -> None:
        """Put a node to sleep, or wake it; raises ``EngineError`` on one that is down, and on putting one in use."""
        n, name = command.node, self._cluster.names[command.node]
        node = sight.nodes.get(name)
        if command.state is not None:
            self._kinds[n].state(command.state)
        if not self._may_sleep:
            msg = f"power of node {name}: this engine was told to leave power alone"
            raise EngineError(msg)
        if node is None or node.out or node.silent:
            msg = f"power of node {name}: it is down"
            raise EngineError(msg)
        asleep = (node.asleep or n in self._told_down_s) and n not in self._wished_s
        if command.state is None:
            if asleep:
                self.wake(n, node)
        elif not asleep:
            used = used or node.used
            if used or node.waking or n in self._wished_s:
                msg = f"put node {name} to {command.state}: it is {'used' if used else 'not on'}"
                raise EngineError(msg)
            self._slurm.update_node(name, "POWER_DOWN")
            self._told_down_s[n] = time.monotonic()

    def wake(self, n: int, node: SlurmNode) -> None:
        """Have a node come up, now or as soon as it is down: Slurm does not hear it while a node goes to sleep."""
        if node.settled_asleep:
            self._slurm.update_node(self._cluster.names[n], "POWER_UP")
        self._wished_s.setdefault(n, time.monotonic())

    def advance(self, sight: Sight) -> None:
        """Wake those that could not hear it, forget what has come true, and what Slurm refuses."""
        for n, told_s in list(self._told_down_s.items()):
            node = sight.nodes.get(self._cluster.names[n])
            if node is None or (not node.asleep and sight.at_s > told_s):
                del self._told_down_s[n]
        for n in list(self._wished_s):
            node = sight.nodes.get(self._cluster.names[n])
            if node is None or node.out or (node.ready and n not in self._told_down_s):
                del self._wished_s[n]
            elif node.settled_asleep:
                try:
                    self._slurm.update_node(self._cluster.names[n], "POWER_UP")
                except EngineDownError:
                    raise
                except EngineError:
                    del self._wished_s[n]

    def waking(self, n: int, node: SlurmNode | None) -> bool:
        """Whether a node is on its way up."""
        return n in self._wished_s or (node is not None and node.waking)

    def asleep(self, n: int, node: SlurmNode | None) -> bool:
        """Whether a node is down, or going down, and nobody wants it otherwise."""
        told = n in self._told_down_s or (node is not None and node.asleep and not node.down)
        return told and not self.waking(n, node)

    def view(self, sight: Sight, there: Collection[bool]) -> tuple[Floats, Ints]:
        """Seconds until each node that is *there* could run a job, and the index of its state, -1 for none."""
        wait_s, states = np.zeros(len(self._kinds)), np.full(len(self._kinds), -1, dtype=np.int64)
        now_s = time.monotonic()
        for n, (kind, known) in enumerate(zip(self._kinds, there, strict=True)):
            node = sight.nodes.get(self._cluster.names[n])
            wake_s, enter_s = (kind.states[0].wake_s, kind.states[0].enter_s) if kind.states else (0.0, 0.0)
            going_s = 0.0
            if node is not None and not node.settled_asleep and n in self._told_down_s:
                going_s = max(0.0, self._told_down_s[n] + enter_s - now_s)
            if not known:
                continue
            if self.asleep(n, node):
                wait_s[n] = wake_s + going_s
                states[n] = 0 if kind.states and self._may_sleep else -1
            elif self.waking(n, node):
                left_s = self._wished_s.get(n, now_s) + wake_s - now_s
                wait_s[n] = max(1.0, left_s + going_s)
        return wait_s, states


def still_asleep(slurm: Slurm, names: Mapping[int, str]) -> set[int]:
    """Return which nodes of these *names* are down to save power; all of them where Slurm does not answer (yet)."""
    if not names:
        return set()
    try:
        slurm.ping()
        down = {node.name for node in slurm.nodes() if "powered_down" in node.states}
    except EngineError:
        return set(names)
    return {n for n, name in names.items() if name in down}
