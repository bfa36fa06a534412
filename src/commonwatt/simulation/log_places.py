"""Where the jobs of a log ran: the nodes it names, else nodes of their type with room.

Tried in this order, at the logged start of each job:

1. The nodes the log names, if they are in the cluster, of the job's type, and have room for equal parts of the job.
2. One node with room, the first by index; for a job too large for one, the fewest equal parts, on the first nodes.
3. Free GPUs of its type wherever they are, on as many nodes as it takes.
4. Extra nodes, which the cluster does not have: then the log had more GPUs in use than the cluster has.

A job whose GPU type the cluster lacks may have any type.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from commonwatt.data.profiles import type_name
from commonwatt.model.arrays import Ints
from commonwatt.model.nodes import Cluster, GpuTypeSpec, NodeClass

__all__ = ["Places", "Taken", "host_names"]

Taken = tuple[tuple[int, int], ...]
"""Nodes, by index, and GPUs on each."""


@dataclass
class Places:
    """GPUs in use while a log is replayed; indices from ``len(cluster)`` on are extra nodes.

    Attributes
    ----------
    gpu_types
        GPU types that the scenario declares.
    counts
        Jobs not placed as the log has them, by how.
    extra
        Class of each extra node.
    """

    cluster: Cluster
    gpu_types: Mapping[str, GpuTypeSpec] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    extra: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._free = self.cluster.gpus.tolist()
        self._at = self.cluster.by_name()
        self._of_type: dict[str, list[int]] = {}
        self._nodes = [np.flatnonzero(self.cluster.klass == k) for k in range(len(self.cluster.classes))]

    def take(self, gpu_type: str, gpus: int, named: str = "") -> Taken:
        """Take *gpus* GPUs of *gpu_type* ("": any type) for a job that ran on the nodes *named*."""
        classes = self._classes(gpu_type)
        taken = self._named(classes, gpus, named) or self._together(classes, gpus) or self._anywhere(classes, gpus)
        if not taken:
            self.counts["did not fit at their logged start: on extra nodes, which draw power only while in use"] += 1
            taken = self._extra(classes, gpus)
        for node, count in taken:
            self._free[node] -= count
        return taken

    def release(self, taken: Taken) -> None:
        """Give the GPUs of a job back."""
        for node, count in taken:
            self._free[node] += count

    def kind(self, node: int) -> NodeClass:
        """Return the class of a node."""
        own = node < len(self.cluster)
        return self.cluster.classes[self.cluster.klass[node] if own else self.extra[node - len(self.cluster)]]

    def with_extra(self) -> Cluster:
        """Return the cluster with its extra nodes at the end."""
        width = len(str(len(self.extra)))
        names = tuple(f"extra-{i:0{width}}" for i in range(1, len(self.extra) + 1))
        klass = np.concatenate((self.cluster.klass, np.array(self.extra, dtype=np.int64)))
        return Cluster(self.cluster.names + names, klass, self.cluster.classes)

    def _classes(self, gpu_type: str) -> list[int]:
        if gpu_type not in self._of_type:
            own, kinds = type_name(gpu_type, self.gpu_types), enumerate(self.cluster.classes)
            self._of_type[gpu_type] = [k for k, kind in kinds if type_name(kind.gpu_type, self.gpu_types) == own]
        classes = self._of_type[gpu_type]
        if gpu_type and not classes:
            self.counts["ran on a GPU type the cluster lacks: on another, for as long as logged"] += 1
        return classes or list(range(len(self.cluster.classes)))

    def _named(self, classes: Sequence[int], gpus: int, named: str) -> Taken:
        if not named:
            return ()
        klass = self.cluster.klass
        own = [[n for n in self._at.get(name, ()) if klass[n] in classes] for name in host_names(named)]
        nodes = [indices[0] if indices else -1 for indices in own]
        each = gpus // max(1, len(nodes))
        fits = nodes and each * len(nodes) == gpus and len(set(nodes)) == len(nodes)
        if fits and all(n >= 0 and self._free[n] >= each for n in nodes):
            return tuple((n, each) for n in nodes)
        self.counts["named nodes that the cluster lacks or that had no room: on others"] += 1
        return ()

    def _together(self, classes: Sequence[int], gpus: int) -> Taken:
        for k in classes:
            kind, nodes = self.cluster.classes[k], self._nodes[k]
            fewest, most = max(1, -(-gpus // kind.gpus)), min(gpus, len(nodes))
            parts = next((p for p in range(fewest, most + 1) if gpus % p == 0), 0)
            free = self._first(nodes, gpus // parts, parts) if parts else []
            if free:
                return tuple((n, gpus // parts) for n in free)
        return ()

    def _first(self, nodes: Ints, each: int, parts: int) -> list[int]:
        """Return the first *parts* of *nodes* with *each* GPUs free, or none."""
        free: list[int] = []
        for n in nodes.tolist():
            if self._free[n] >= each:
                free.append(n)
                if len(free) == parts:
                    return free
        return []

    def _anywhere(self, classes: Sequence[int], gpus: int) -> Taken:
        taken: list[tuple[int, int]] = []
        for n in (n for k in classes for n in self._nodes[k].tolist() if self._free[n]):
            count = min(gpus, self._free[n])
            taken.append((n, count))
            gpus -= count
            if not gpus:
                return tuple(taken)
        return ()

    def _extra(self, classes: Sequence[int], gpus: int) -> Taken:
        """Take free GPUs of extra nodes of the first class, and of new ones."""
        k = classes[0]
        size, first = self.cluster.classes[k].gpus, len(self.cluster)
        whole = [n for n, own in enumerate(self.extra, start=first) if own == k and self._free[n] >= min(gpus, size)]
        taken: list[tuple[int, int]] = []
        while gpus:
            if whole:
                n = whole.pop(0)
            else:
                self.extra.append(k)
                self._free.append(size)
                n = len(self._free) - 1
            count = min(gpus, self._free[n])
            taken.append((n, count))
            gpus -= count
        return tuple(taken)


_PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
MOST_HOSTS = 100_000


def host_names(text: str) -> tuple[str, ...]:
    """Return the hosts of a list in Slurm's notation: none if it cannot be read, or is longer than ``MOST_HOSTS``.

    >>> host_names("gpu[01-03,7],login1")
    ('gpu01', 'gpu02', 'gpu03', 'gpu7', 'login1')
    """
    names: list[str] = []
    for part in _PART.findall(text):
        pieces = [_numbers(bracket) if bracket else [plain] for bracket, plain in _PIECE.findall(part)]
        size = 1
        for piece in pieces:
            size *= len(piece)
        if not size or size + len(names) > MOST_HOSTS:
            return ()
        names += filter(None, map("".join, product(*pieces)))
    return tuple(names)


def _numbers(bracket: str) -> list[str]:
    """Return the numbers of ``01-03,7`` as written; none if they cannot be read."""
    numbers: list[str] = []
    for span in bracket.split(","):
        first, _, last = (part.strip() for part in span.partition("-"))
        last = last or first
        if not (first.isdecimal() and last.isdecimal()) or not 0 <= int(last) - int(first) < MOST_HOSTS:
            return []
        numbers += [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
    return numbers
