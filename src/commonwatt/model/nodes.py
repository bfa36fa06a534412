"""Nodes, GPU types and power.

A node draws ``idle_w + sum of the GPU power of its busy GPUs`` while any GPU is used, ``idle_w`` while it is on
and unused, and the power of its state when it sleeps or is off. ``Cluster`` is the compiled form: nodes
of equal type, size and power form one class, and solvers work on classes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Ints
from commonwatt.model.errors import InputError
from commonwatt.model.fields import FileModel, quantity

__all__ = ["Cluster", "NodeClass", "NodeSpec", "PowerState"]


class PowerState(FileModel):
    """A low-power state an unused node can be put into."""

    name: str = quantity("name of the state, such as sleep or off", "-", min_length=1)
    power_w: float = quantity("power in this state", "W", 0.0, ge=0)
    enter_s: float = quantity("time to enter the state, at idle power", "s", 0.0, ge=0)
    wake_s: float = quantity("time to wake, at idle power", "s", 0.0, ge=0)
    wake_j: float = quantity("energy of waking beyond idle power", "J", 0.0, ge=0)


OFF = PowerState(name="off")


class NodeSpec(FileModel):
    """A node, or `count` equal nodes."""

    name: str = quantity("name of the node; with `count`, the prefix of the numbered names", "-", min_length=1)
    count: int = quantity(
        "number of equal nodes; more than one are named NAME-1, NAME-2, ...", "-", 1, ge=1, le=1_000_000
    )
    gpu_type: str = quantity("type of its GPUs", "-", min_length=1)
    gpus: int = quantity("number of its GPUs", "GPUs", ge=1, le=1024)
    idle_w: float = quantity("power of the node while on, without its busy GPUs", "W", ge=0)
    gpu_w: float = quantity("power added by each busy GPU", "W", ge=0)
    states: tuple[PowerState, ...] = quantity("low-power states of an unused node", "-", (OFF,))


@dataclass(frozen=True)
class NodeClass:
    """Nodes of one GPU type, size and power."""

    gpu_type: str
    gpus: int
    idle_w: float
    gpu_w: float
    states: tuple[PowerState, ...] = (OFF,)

    def power_w(self, gpus: int) -> float:
        """Return the power with *gpus* busy GPUs."""
        return self.idle_w + gpus * self.gpu_w

    def state(self, name: str) -> PowerState:
        """Return the low-power state called *name*; raises ``InputError`` if there is none."""
        for state in self.states:
            if state.name == name:
                return state
        states = ", ".join(state.name for state in self.states) or "no state"
        raise InputError(f"a power state of its nodes ({states})", field="unused_nodes.state", value=name)


@dataclass(frozen=True)
class Cluster:
    """All nodes by index, and their classes in order of first appearance."""

    names: tuple[str, ...]  # [N]
    klass: Ints  # [N] index into classes
    classes: tuple[NodeClass, ...]  # [K]

    @classmethod
    def of(cls, specs: Iterable[NodeSpec]) -> Cluster:
        """Expand counts; raises ``InputError`` on a duplicate name or an empty cluster."""
        names: list[str] = []
        klass: list[int] = []
        classes: dict[NodeClass, int] = {}
        for spec in specs:
            kind = NodeClass(spec.gpu_type, spec.gpus, spec.idle_w, spec.gpu_w, spec.states)
            index = classes.setdefault(kind, len(classes))
            width = len(str(spec.count))
            names += [spec.name] if spec.count == 1 else [f"{spec.name}-{i:0{width}}" for i in range(1, spec.count + 1)]
            klass += [index] * spec.count
        if not names:
            raise InputError("at least one node", field="nodes", value="none")
        seen: set[str] = set()
        for name in names:
            if name in seen:
                raise InputError("distinct node names", field="nodes.name", value=name)
            seen.add(name)
        return cls(tuple(names), np.array(klass, dtype=np.int64), tuple(classes))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def gpus(self) -> Ints:
        """GPUs of each node, [N]."""
        return np.array([kind.gpus for kind in self.classes], dtype=np.int64)[self.klass]

    @property
    def total_gpus(self) -> int:
        """GPUs of the whole cluster."""
        return int(self.gpus.sum())

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """GPU types present, in order of first appearance."""
        return tuple(dict.fromkeys(kind.gpu_type for kind in self.classes))

    def without(self, names: Collection[str]) -> Cluster:
        """Return the cluster of the other nodes, with the same classes, some of which may be empty."""
        kept = [n for n, name in enumerate(self.names) if name not in names]
        return Cluster(tuple(self.names[n] for n in kept), self.klass[kept], self.classes)

    def class_sizes(self) -> Ints:
        """Number of nodes of each class, [K]."""
        return np.bincount(self.klass, minlength=len(self.classes)).astype(np.int64)

    def shapes(self, gpu_type: str, gpus: int) -> list[tuple[int, int, int]]:
        """Return the ways to allocate *gpus* GPUs of *gpu_type*: ``(class, nodes, GPUs on each)``.

        One node if they fit; else a gang: the fewest nodes of one class with equally many GPUs each.
        """
        sizes = self.class_sizes()
        found = []
        for index, kind in enumerate(self.classes):
            if kind.gpu_type != gpu_type:
                continue
            fewest, most = max(1, -(-gpus // kind.gpus)), min(gpus, int(sizes[index]))
            nodes = next((k for k in range(fewest, most + 1) if gpus % k == 0), 0)
            if nodes:
                found.append((index, nodes, gpus // nodes))
        return found
