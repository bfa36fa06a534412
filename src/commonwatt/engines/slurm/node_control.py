"""Nodes of Slurm: drains, power commands (Slurm has one low-power state), meters, and the GPUs our jobs may have."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from commonwatt.control.engine import NodeView, SetPower
from commonwatt.engines.meters import Since
from commonwatt.engines.recorded_engine import RunAllocations, command_each
from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.parsing import NodeDraw, SlurmNode, node_draws
from commonwatt.engines.slurm.run import SlurmRun
from commonwatt.engines.slurm.snapshot import SlurmSnapshot
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import EngineDownError, EngineError, InputError
from commonwatt.model.nodes import Cluster

__all__ = ["Allocations", "Drains", "NodeMeter", "NodePower", "check_one_state", "node_draw", "still_asleep"]

log = logging.getLogger("commonwatt.slurm")

_DRAW_S = 10.0
"""Slurm is asked what nodes draw at most so often: it measures every ``AcctGatherNodeFreq`` seconds."""
_DRAINING = frozenset({"drain", "drained", "draining"})
_BEFORE = ", before: "
_NONE = {"", "none", "(null)"}


class Drains:
    """Drains in our name: the reason in Slurm distinguishes them from an administrator's, which are left alone.

    A node that is down has a reason already; it is kept behind ours and restored afterwards.

    Parameters
    ----------
    names
        Of the nodes.
    identity
        Our name in Slurm.
    """

    def __init__(self, slurm: Slurm, names: Sequence[str], identity: str) -> None:
        self._slurm, self._names, self._ours = slurm, names, f"drained by commonwatt {identity}"

    def set(self, nodes: Collection[int], snapshot: SlurmSnapshot) -> None:
        """Drain exactly *nodes*, except those that somebody else has drained.

        Raises ``EngineError`` if Slurm refuses one, after the others are done.
        """
        reasons, wanted = self._slurm.reasons(), {self._names[n] for n in nodes}
        there = [snapshot.nodes[name] for name in self._names if name in snapshot.nodes]  # on others no jobs start
        command_each(there, lambda node: self._set(node, reasons.get(node.name, ""), drain=node.name in wanted))

    def _set(self, node: SlurmNode, reason: str, *, drain: bool) -> None:
        who, _, before = reason.partition(_BEFORE)
        drained = bool(node.states & _DRAINING)
        if drain and not drained:
            earlier = "" if who == self._ours or reason in _NONE else f"{_BEFORE}{reason}"
            self._slurm.update_node(node.name, "DRAIN", f"{self._ours}{earlier}")
        elif not drain and drained and who == self._ours:
            self._slurm.update_node(node.name, "UNDRAIN")
            if before:
                self._slurm.update_node(node.name, None, before)


def check_one_state(cluster: Cluster) -> None:
    """Raise ``InputError`` on nodes with several low-power states."""
    for kind in cluster.classes:
        if len(kind.states) > 1:
            expected, names = "one state at most: Slurm's power saving has no other", [s.name for s in kind.states]
            raise InputError(expected, field="nodes.states", value=", ".join(names))


class NodePower:
    """Power states of nodes, and commands that are under way.

    Parameters
    ----------
    cluster
        The declared nodes. Their one low-power state, whatever its name, is Slurm's ``POWER_DOWN``.
    may_sleep
        Whether we put nodes to sleep; they are woken for jobs in any case.

    Raises
    ------
    InputError
        If nodes are to sleep and a class has several states: Slurm has only one.
    """

    def __init__(self, slurm: Slurm, cluster: Cluster, *, may_sleep: bool) -> None:
        if may_sleep:
            check_one_state(cluster)
        self._slurm, self._cluster, self._may_sleep = slurm, cluster, may_sleep
        self._kinds = [cluster.classes[k] for k in cluster.klass]
        self._powered_down_s: dict[int, float] = {}  # when nodes were asked to power down, until they do
        self._woken_s: dict[int, float] = {}  # when nodes were asked to wake, until they are on

    def set(self, command: SetPower, snapshot: SlurmSnapshot, *, used: bool) -> None:
        """Put a node to sleep, or wake it; raises ``EngineError`` if it is down, or in use when it is to sleep."""
        n, name = command.node, self._cluster.names[command.node]
        node = snapshot.nodes.get(name)
        if command.state is not None:
            self._kinds[n].state(command.state)
        if not self._may_sleep:
            msg = f"power of node {name}: live.slurm.power is off"
            raise EngineError(msg)
        if node is None or node.out or node.silent:
            msg = f"power of node {name}: it is down"
            raise EngineError(msg)
        asleep = (node.asleep or n in self._powered_down_s) and n not in self._woken_s
        if command.state is None:
            if asleep:
                self.wake(n, node)
        elif not asleep:
            used = used or node.used
            if used or node.waking or n in self._woken_s:
                msg = f"put node {name} to {command.state}: it is {'used' if used else 'not on'}"
                raise EngineError(msg)
            self._slurm.update_node(name, "POWER_DOWN")
            self._powered_down_s[n] = time.monotonic()

    def wake(self, n: int, node: SlurmNode) -> None:
        """Wake a node, now or as soon as it is powered down: Slurm ignores the command while a node powers down."""
        if node.powered_down:
            self._slurm.update_node(self._cluster.names[n], "POWER_UP")
        self._woken_s.setdefault(n, time.monotonic())

    def advance(self, snapshot: SlurmSnapshot) -> None:
        """Wake nodes for which Slurm ignored the command; drop commands that are done, or that Slurm refuses."""
        for n, commanded_s in list(self._powered_down_s.items()):
            node = snapshot.nodes.get(self._cluster.names[n])
            if node is None or (not node.asleep and snapshot.at_s > commanded_s):
                del self._powered_down_s[n]
        for n in list(self._woken_s):
            node = snapshot.nodes.get(self._cluster.names[n])
            if node is None or node.out or (node.ready and n not in self._powered_down_s):
                del self._woken_s[n]
            elif node.powered_down:
                try:
                    self._slurm.update_node(self._cluster.names[n], "POWER_UP")
                except EngineDownError:
                    raise
                except EngineError:
                    del self._woken_s[n]

    def waking(self, n: int, node: SlurmNode | None) -> bool:
        """Whether a node is waking."""
        return n in self._woken_s or (node is not None and node.waking)

    def asleep(self, n: int, node: SlurmNode | None) -> bool:
        """Whether a node is asleep, or powering down, and is not to wake."""
        down = n in self._powered_down_s or (node is not None and node.asleep and not node.down)
        return down and not self.waking(n, node)

    def view(self, snapshot: SlurmSnapshot, up: Collection[bool]) -> tuple[Floats, Ints]:
        """Seconds until each node that is *up* could run a job, and the index of its state, -1 for none."""
        wait_s, states = np.zeros(len(self._kinds)), np.full(len(self._kinds), -1, dtype=np.int64)
        now_s = time.monotonic()
        for n, (kind, is_up) in enumerate(zip(self._kinds, up, strict=True)):
            node = snapshot.nodes.get(self._cluster.names[n])
            wake_s, enter_s = (kind.states[0].wake_s, kind.states[0].enter_s) if kind.states else (0.0, 0.0)
            going_s = 0.0
            if node is not None and not node.powered_down and n in self._powered_down_s:
                going_s = max(0.0, self._powered_down_s[n] + enter_s - now_s)
            if not is_up:
                continue
            if self.asleep(n, node):
                wait_s[n] = wake_s + going_s
                states[n] = 0 if kind.states and self._may_sleep else -1
            elif self.waking(n, node):
                left_s = self._woken_s.get(n, now_s) + wake_s - now_s
                wait_s[n] = max(1.0, left_s + going_s)
        return wait_s, states


def node_draw(slurm: Slurm) -> dict[str, NodeDraw]:
    """Ask Slurm what each node draws; raises ``EngineError`` if it does not answer, or cannot be read."""
    text = slurm.run("scontrol", "--details", "--oneliner", "show", "node")
    try:
        return node_draws(text)
    except ValueError as error:
        msg = f"scontrol show node: {error}"
        raise EngineError(msg) from None


class NodeMeter:
    """Energy of nodes, joules since some moment: what Slurm says they draw (``CurrentWatts``), summed up over time.

    A node that Slurm does not measure draws what is declared, with the GPUs that jobs have, anybody's; one that is off
    what its state does. While Slurm does not answer, what nodes drew last counts.

    Parameters
    ----------
    since
        How an earlier engine read the meters last: the time since then counts with what nodes draw now.
    """

    def __init__(self, slurm: Slurm, cluster: Cluster, since: Since, now_s: Callable[[], float]) -> None:
        self._slurm, self._now_s, self._names = slurm, now_s, cluster.names
        self._kinds = [cluster.classes[k] for k in cluster.klass]
        self._at_s, self._joules = np.full(len(cluster), now_s()), np.zeros(len(cluster))
        for n, (read_s, read_j, _) in since.items():
            if read_j is not None:
                self._at_s[n], self._joules[n] = min(read_s, self._at_s[n]), read_j
        asleep = {n for n, mark in since.items() if mark.asleep}
        self._watts = np.array([self._off_w(n) if n in asleep else kind.idle_w for n, kind in enumerate(self._kinds)])
        self._looked_s = -np.inf
        self._look()

    def __call__(self, n: int) -> float:
        """Return the reading of node *n*."""
        now_s = self._now_s()
        self._joules += self._watts * np.maximum(0.0, now_s - self._at_s)
        self._at_s[:] = now_s
        if time.monotonic() >= self._looked_s + _DRAW_S:
            self._look()
        return float(self._joules[n])

    @property
    def watts(self) -> Floats:
        """What each node drew at the last look, W. Shape [N]."""
        return self._watts.copy()

    def _off_w(self, n: int) -> float:
        states = self._kinds[n].states
        return states[0].power_w if states else 0.0

    def _look(self) -> None:
        self._looked_s = time.monotonic()
        try:
            drawn = node_draw(self._slurm)
        except EngineError as error:
            log.warning("what nodes draw is not known: what they drew last counts", extra={"cause": str(error)})
            return
        for n, (name, kind) in enumerate(zip(self._names, self._kinds, strict=True)):
            one = drawn.get(name)
            if one is None:
                continue
            if one.off:
                self._watts[n] = self._off_w(n)
            else:
                self._watts[n] = kind.idle_w + one.gpus * kind.gpu_w if one.watts is None else one.watts


def still_asleep(slurm: Slurm, names: Mapping[int, str]) -> set[int]:
    """Return which nodes of these *names* are powered down; all of them if Slurm does not answer (yet)."""
    if not names:
        return set()
    try:
        slurm.ping()
        down = {node.name for node in slurm.nodes() if "powered_down" in node.states}
    except EngineError:
        return set(names)
    return {n for n, name in names.items() if name in down}


class Allocations(RunAllocations[SlurmRun, SlurmSnapshot]):
    """The nodes, and our runs on them.

    Parameters
    ----------
    cluster
        The declared nodes.
    power
        Power states of the nodes.
    cpus_per_gpu
        CPUs requested with each GPU.
    """

    def __init__(self, cluster: Cluster, power: NodePower, cpus_per_gpu: int) -> None:
        super().__init__(cluster)
        self._power, self._cpus_per_gpu = power, cpus_per_gpu
        self._usable: list[int | None] = [None] * len(cluster)
        self._up = [False] * len(cluster)

    def node(self, n: int, snapshot: SlurmSnapshot) -> SlurmNode | None:
        """Return node *n* as Slurm sees it."""
        return snapshot.nodes.get(self._cluster.names[n])

    def ready(self, n: int, snapshot: SlurmSnapshot) -> bool:
        """Whether node *n* is on."""
        node = self.node(n, snapshot)
        return node is not None and not (node.asleep or node.waking or self._power.asleep(n, node))

    def used(self, n: int, snapshot: SlurmSnapshot) -> bool:
        """Whether anybody has anything on node *n*."""
        node = self.node(n, snapshot)
        return bool(self._on[n]) or (node is not None and node.used)

    def view(self, snapshot: SlurmSnapshot) -> NodeView:
        """The nodes for the controller, without the GPUs of external jobs and of runs that it takes for gone."""
        nodes = range(len(self._cluster))
        usable = np.array([max(0, self.usable(n, snapshot) - self.detached(n)) for n in nodes], dtype=np.int64)
        used = np.array([self.used(n, snapshot) for n in nodes], dtype=bool)
        up = np.array([self._is_up(n, snapshot) for n in nodes], dtype=bool)
        wait_s, states = self._power.view(snapshot, up | (usable > 0))
        return NodeView(usable, wait_s, states, used, up)

    def _is_up(self, n: int, snapshot: SlurmSnapshot) -> bool:
        """Whether node *n* is not down. One that does not respond, as each after ``UNDRAIN``, stays what it was.

        If that is unknown, it is up while jobs are on it.
        """
        node = self.node(n, snapshot)
        up = node is not None and not node.down and (not node.silent or self._up[n] or self.used(n, snapshot))
        self._up[n] = up
        return up

    def usable(self, n: int, snapshot: SlurmSnapshot) -> int:
        """GPUs of node *n* that our runs may have, those they have included."""
        kind, own = self._cluster.classes[self._cluster.klass[n]], snapshot.used_by(self.specs(n))
        name, before = self._cluster.names[n], self._usable[n]
        usable = snapshot.usable(name, kind.gpu_type, kind.gpus, own, self._cpus_per_gpu, before)
        self._usable[n] = usable
        return usable
