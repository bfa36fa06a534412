"""Pools: nodes that only some jobs may use, each pool with a demand and a promise of its own.

Glossary: P pools, K node classes, N nodes. A node may serve several pools: one in two partitions does, and so does an
empty one where jobs that need whole nodes have a pool of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from commonwatt.model.arrays import Bools, Ints
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.errors import InputError
from commonwatt.model.jobs import JobArrays
from commonwatt.model.names import one_of
from commonwatt.model.nodes import Cluster, NodeClass

__all__ = ["NO_PARTITION", "Pools"]

NO_PARTITION = "no partition"
"""Name of the pool of nodes that are in no partition."""


@dataclass(frozen=True)
class Pools:
    """The pools of a cluster.

    Attributes
    ----------
    names
        Name of each pool. Length P.
    reach
        Whether jobs of a pool may use nodes of a class. Shape [P, K].
    home
        The pool of jobs that name none, by the class they ask for. Shape [K].
    home_whole
        The same of jobs that need whole nodes. Shape [K].
    whole
        Whether a pool takes nodes as a whole: its jobs use no part of one. Shape [P].
    class_gpus
        GPUs of a node of each class. Shape [K].
    partitions
        The pool of each partition, where partitions name the pools.
    """

    names: tuple[str, ...]
    reach: Bools
    home: Ints
    home_whole: Ints
    whole: Bools
    class_gpus: Ints
    partitions: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: CapacitySpec, cluster: Cluster) -> Pools:
        """Return the pools of *spec*; one pool of all nodes if it has none.

        Raises
        ------
        InputError
            For partitions where no node is in one, and groups that share nodes with a pool that does not exist or is
            in another group.
        """
        kinds = cluster.classes
        class_gpus = np.array([kind.gpus for kind in kinds], dtype=np.int64)
        if spec.pools is None:
            one = np.zeros(len(kinds), dtype=np.int64)
            return cls(("",), np.ones((1, len(kinds)), dtype=bool), one, one, np.zeros(1, dtype=bool), class_gpus)
        whole_labels: list[str] = []
        if spec.pools == "partition":
            named = list(dict.fromkeys(name for kind in kinds for name in kind.partitions))
            if not named:
                raise InputError("nodes with partitions: they name the pools", field="capacity.pools", value=spec.pools)
            labels = [kind.partitions[0] if kind.partitions else NO_PARTITION for kind in kinds]
            names = [*named, NO_PARTITION] if NO_PARTITION in labels else named
            reach = np.array([[kind.admits("" if name == NO_PARTITION else name) for kind in kinds] for name in names])
        else:
            labels = [_label(kind, spec.pools) for kind in kinds]
            if spec.pools == "shape":
                whole_labels = [_whole_label(kind) for kind in kinds]
            pairs = list(zip(labels, whole_labels or labels, strict=True))
            names = list(dict.fromkeys(name for pair in pairs for name in pair))
            reach = np.array([[name in pair for pair in pairs] for name in names])
        groups = _groups(names, spec.share)
        pool = {name: p for p, group in enumerate(groups) for name in group}
        alone = set(whole_labels) - set(labels)
        return cls(
            tuple("+".join(group) for group in groups),
            np.array([reach[[names.index(name) for name in group]].any(axis=0) for group in groups]),
            np.array([pool[label] for label in labels], dtype=np.int64),
            np.array([pool[label] for label in whole_labels or labels], dtype=np.int64),
            np.array([alone.issuperset(group) for group in groups]),
            class_gpus,
            pool if spec.pools == "partition" else {},
        )

    def __len__(self) -> int:
        return len(self.names)

    def of_job(self, partition: str, klass: int, gpus: int) -> int:
        """Return the pool of a job of *partition* (or several, with commas) that asks for *gpus* of class *klass*."""
        for name in partition.split(","):
            pool = self.partitions.get(name)
            if pool is not None and self.reach[pool, klass]:
                return pool
        return self._home(klass, whole=gpus >= self.class_gpus[klass])

    def of_jobs(self, table: JobArrays, rows: Ints, cluster: Cluster) -> Ints:
        """Return the pool of each of *rows*, jobs of *table*. Shape [R]."""
        if len(self) == 1:
            return np.zeros(len(rows), dtype=np.int64)
        asked = [(table.partition_of(j), _class_asked(table, j, cluster), j) for j in rows.tolist()]
        pools = [self.of_job(partition, k, int(table.requested_gpus[j])) for partition, k, j in asked]
        return np.array(pools, dtype=np.int64)

    def running(self, pool: int, klass: int, *, whole: bool) -> int:
        """Return the pool that a job of *pool* counts for while it runs on nodes of *klass*, *whole* ones or parts."""
        if self.reach[pool, klass] and not self.whole.any():
            return pool
        return self._home(klass, whole=whole)

    def _home(self, klass: int, *, whole: bool) -> int:
        return int((self.home_whole if whole else self.home)[klass])

    def serving(self, cluster: Cluster, usable: Ints, uses: Bools) -> Bools:
        """Return which pools each node serves now. Shape [P, N].

        A node of which a pool uses a part serves no pool of whole nodes, nor does one that has not all its GPUs; one
        that is used as a whole serves no other.

        Parameters
        ----------
        usable
            GPUs of each node that may be used. Shape [N].
        uses
            Whether a pool has GPUs of a node. Shape [P, N].
        """
        reach: Bools = self.reach[:, cluster.klass]
        if not self.whole.any():
            return reach
        entire = ~uses[~self.whole].any(axis=0) & (usable >= cluster.gpus)
        taken = entire & uses[self.whole].any(axis=0)
        serves: Bools = reach & np.where(self.whole[:, None], entire, ~taken)
        return serves

    def gpus(self, cluster: Cluster) -> Ints:
        """GPUs that each pool may use; those of shared nodes count in every pool. Shape [P]."""
        each: Ints = self.reach[:, cluster.klass] @ cluster.gpus
        return each


def _label(kind: NodeClass, by: str) -> str:
    if by == "gpu_type":
        return kind.gpu_type
    parts = "parts of " if by == "shape" and kind.gpus > 1 else ""
    return f"{parts}{kind.gpus} x {kind.gpu_type}"


def _whole_label(kind: NodeClass) -> str:
    return f"{'whole ' if kind.gpus > 1 else ''}{kind.gpus} x {kind.gpu_type}"


def _groups(names: Sequence[str], share: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the pools that are planned as one, in order of their first names."""
    left = dict.fromkeys(names)
    for group in share:
        for name in group:
            if name not in left:
                expected = f"pools that nodes serve, each named once ({one_of(sorted(names), name)})"
                raise InputError(expected, field="capacity.share", value=name)
            del left[name]
    groups = [*((name,) for name in left), *(tuple(group) for group in share if group)]
    return sorted(groups, key=lambda group: names.index(group[0]))


def _class_asked(table: JobArrays, j: int, cluster: Cluster) -> int:
    """Return the first class on which a job can have what it asked for, else its smallest configuration."""
    rows = range(int(table.start[j]), int(table.start[j + 1]))
    asked = [
        c for c in rows
        if table.config_gpus[c] == table.requested_gpus[j] and table.requested_type[j] in (-1, table.config_type[c])
    ]  # fmt: skip
    smallest = sorted(rows, key=lambda c: int(table.config_gpus[c]))
    for c in (*asked, *smallest):
        gpu_type, gpus = table.gpu_types[table.config_type[c]], int(table.config_gpus[c])
        if shapes := cluster.shapes(gpu_type, gpus, *table.nodes_of(j)):
            return shapes[0][0]
    return 0
