"""Pools: nodes that only some jobs may use, each pool with a demand and a promise of its own.

Glossary: P pools, K node classes, N nodes. A node may serve several pools (a node in two partitions); its GPUs are then
divided among them, so that as much as possible of every promise is met by the nodes that rank first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from commonwatt.model.arrays import Bools, Ints
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.errors import InputError
from commonwatt.model.names import one_of
from commonwatt.model.nodes import Cluster, NodeClass

__all__ = ["NO_PARTITION", "Pools", "shared_out"]

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
    partitions
        The pool of each partition, where partitions name the pools.
    """

    names: tuple[str, ...]
    reach: Bools
    home: Ints
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
        if spec.pools is None:
            return cls(("",), np.ones((1, len(kinds)), dtype=bool), np.zeros(len(kinds), dtype=np.int64))
        if spec.pools == "partition":
            named = list(dict.fromkeys(name for kind in kinds for name in kind.partitions))
            if not named:
                raise InputError("nodes with partitions: they name the pools", field="capacity.pools", value=spec.pools)
            labels = [kind.partitions[0] if kind.partitions else NO_PARTITION for kind in kinds]
            names = [*named, NO_PARTITION] if NO_PARTITION in labels else named
            reach = np.array([[kind.admits("" if name == NO_PARTITION else name) for kind in kinds] for name in names])
        else:
            labels = [_label(kind, spec.pools) for kind in kinds]
            names = list(dict.fromkeys(labels))
            reach = np.array([[label == name for label in labels] for name in names])
        groups = _groups(names, spec.share)
        pool = {name: p for p, group in enumerate(groups) for name in group}
        return cls(
            tuple("+".join(group) for group in groups),
            np.array([reach[[names.index(name) for name in group]].any(axis=0) for group in groups]),
            np.array([pool[label] for label in labels], dtype=np.int64),
            pool if spec.pools == "partition" else {},
        )

    def __len__(self) -> int:
        return len(self.names)

    def of_job(self, partition: str, klass: int) -> int:
        """Return the pool of a job of *partition* (or several, with commas between them) that asks for *klass*."""
        for name in partition.split(","):
            pool = self.partitions.get(name)
            if pool is not None and self.reach[pool, klass]:
                return pool
        return int(self.home[klass])

    def running(self, pool: int, klass: int) -> int:
        """Return the pool that a job of *pool* counts for while it runs on nodes of *klass*."""
        return pool if self.reach[pool, klass] else int(self.home[klass])

    def gpus(self, cluster: Cluster) -> Ints:
        """GPUs that each pool may use; those of shared nodes count in every pool. Shape [P]."""
        each: Ints = self.reach[:, cluster.klass] @ cluster.gpus
        return each


def _label(kind: NodeClass, by: str) -> str:
    return kind.gpu_type if by == "gpu_type" else f"{kind.gpus} x {kind.gpu_type}"


def _groups(names: Sequence[str], share: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the pools that are planned as one, in order of their first names."""
    left = dict.fromkeys(names)
    for group in share:
        for name in group:
            if name not in left:
                expected = f"pools that nodes serve, each named once ({one_of(sorted(names), name)})"
                raise InputError(expected, field="capacity.share", value=name)
            del left[name]
    found = [*((name,) for name in left), *(tuple(group) for group in share if group)]
    return sorted(found, key=lambda group: names.index(group[0]))


def shared_out(
    usable: Ints, order: Ints, reach: Bools, promised: Ints, chance: Callable[[int, int], float]
) -> Ints:  # fmt: skip
    """Divide the GPUs of nodes among the pools they serve.

    Nodes are taken in *order*. Each adds as many GPUs to the promises as it can: what earlier nodes give to a pool may
    go to another one in exchange (a maximum flow, grown node by node). So, for every k, the first k nodes meet as much
    of the promises as any division of them could. GPUs beyond the promises count for the pool that most probably needs
    them.

    Parameters
    ----------
    usable
        GPUs of each node. Shape [N].
    order
        Nodes by rank. Shape [N].
    reach
        Whether a node serves a pool. Shape [P, N].
    promised
        GPUs promised to each pool. Shape [P].
    chance
        Returns the probability that a pool needs more than a number of GPUs.

    Returns
    -------
    GPUs of each node that count for each pool; those of a node that serves any sum to all it has. Shape [P, N].
    """
    parts: Ints = np.where(reach, usable, 0)
    several = reach.sum(axis=0) > 1
    if not several.any():
        return parts
    concerned = reach[:, several].any(axis=1)
    ranked = [int(n) for n in order if reach[concerned, n].any()]
    flow = _Flow(promised)
    kind = {n: tuple(np.flatnonzero(reach[:, n]).tolist()) for n in ranked}
    used = {n: flow.push(kind[n], int(usable[n])) for n in ranked}
    given = {pools: dict(flow.given[pools]) for pools in set(kind.values())}
    before = [0] * len(promised)
    for n in ranked:
        pools = kind[n]
        if len(pools) > 1:
            parts[:, n] = 0
            for pool in pools:
                parts[pool, n] = taken = min(used[n] - int(parts[:, n].sum()), given[pools][pool])
                given[pools][pool] -= taken
            left = int(usable[n] - parts[:, n].sum())
            if left:
                chances = [(chance(pool, before[pool] + int(parts[pool, n])), -pool) for pool in pools]
                parts[-max(chances)[1], n] += left
        for pool in pools:
            before[pool] += int(parts[pool, n])
    return parts


class _Flow:
    """A maximum flow from nodes to promises that grows; nodes that serve the same pools are one source.

    Attributes
    ----------
    given
        GPUs that nodes serving these pools give to each of them.
    """

    def __init__(self, promised: Ints) -> None:
        self._left = promised.tolist()
        self.given: dict[tuple[int, ...], dict[int, int]] = {}

    def push(self, pools: tuple[int, ...], gpus: int) -> int:
        """Add a node with *gpus* GPUs that serves *pools*; returns by how many GPUs the flow grows."""
        self.given.setdefault(pools, dict.fromkeys(pools, 0))
        left = gpus
        while left and any(self._left) and (path := self._path(pools)):
            end = path[-1][1]
            swaps = [(source, pool) for (_, pool), (source, _) in pairwise(path)]  # whom each source gives less
            grown = min([left, self._left[end], *(self.given[source][pool] for source, pool in swaps)])
            self._left[end] -= grown
            for source, pool in path:
                self.given[source][pool] += grown
            for source, pool in swaps:
                self.given[source][pool] -= grown
            left -= grown
        return gpus - left

    def _path(self, pools: tuple[int, ...]) -> list[tuple[tuple[int, ...], int]]:
        """Return the shortest way to a pool that lacks GPUs: who gives to which pool in turn; empty if none is."""
        ways = {pool: [(pools, pool)] for pool in pools}
        found = list(pools)
        for pool in found:  # grows
            if self._left[pool] > 0:
                return ways[pool]
            for source, given in self.given.items():
                if given.get(pool, 0) > 0:
                    for other in source:
                        if other not in ways:
                            ways[other] = [*ways[pool], (source, other)]
                            found.append(other)
        return []
