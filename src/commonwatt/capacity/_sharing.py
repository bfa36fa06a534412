"""The division of nodes that serve several pools.

Glossary: P pools, N nodes. The nodes that rank first meet as much of the promises as they can.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from commonwatt.model.arrays import Bools, Ints

__all__ = ["shared_out"]


def shared_out(
    usable: Ints, order: Ints, reach: Bools, promised: Ints, chance: Callable[[int, int], float],
    whole: Bools | None = None,
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
    whole
        Pools that take nodes as a whole: then no node is divided, and each counts for one pool. Shape [P].

    Returns
    -------
    GPUs of each node that count for each pool; those of a node that serves any sum to all it has. Shape [P, N].
    """
    parts: Ints = np.where(reach, usable, 0)
    several = reach.sum(axis=0) > 1
    if not several.any():
        return parts
    if whole is not None and whole.any():
        return _undivided(parts, usable, order, several, promised, chance, whole)
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


def _undivided(
    parts: Ints, usable: Ints, order: Ints, several: Bools, promised: Ints, chance: Callable[[int, int], float],
    whole: Bools,
) -> Ints:  # fmt: skip
    """Give each of the nodes that serve *several* pools to one of them.

    While promises are unmet, those of whole nodes come first; then the pool that most probably needs the node has it.
    """
    given = parts[:, ~several].sum(axis=1)
    several = several & (usable > 0)
    for n in order[several[order]].tolist():
        pools = np.flatnonzero(parts[:, n]).tolist()
        unmet = [pool for pool in pools if given[pool] < promised[pool]]
        if unmet:
            own = max(unmet, key=lambda pool: (whole[pool], promised[pool] - given[pool], -pool))
        else:
            own = -max((chance(pool, int(given[pool])), -pool) for pool in pools)[1]
        parts[[pool for pool in pools if pool != own], n] = 0
        given[own] += usable[n]
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
        queue = list(pools)
        for pool in queue:  # grows
            if self._left[pool] > 0:
                return ways[pool]
            for source, given in self.given.items():
                if given.get(pool, 0) > 0:
                    for other in source:
                        if other not in ways:
                            ways[other] = [*ways[pool], (source, other)]
                            queue.append(other)
        return []
