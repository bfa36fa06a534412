"""What jobs that have ended tell about the next one.

A job belongs to groups, from general to specific: everybody; its number of GPUs; its tenant; its tenant and GPUs; its
tenant, its name and kind; and these with its GPUs. Each group has a histogram of the run times that ended in it. The
prediction is built down that line: a group of ``n`` jobs with histogram ``h`` turns what the group above it says,
``p``, into ``(h + k p) / (n + k)``: the mean of a Dirichlet posterior whose prior is the group above, of the weight of
``k`` jobs. A group of no jobs changes nothing, a group of many believes itself.

Old jobs are forgotten: a job weighs ``1 - 1/memory`` times as much as the next that ends in the same group.

Sources: hierarchical Dirichlet shrinkage as in Y. W. Teh et al., JASA 101 (2006), without its sampling; history of
"similar" jobs from general to specific templates as in W. Smith, I. Foster and V. Taylor, JSSPP 1998; the weight of the
last few jobs of a user as in D. Tsafrir, Y. Etsion and D. Feitelson, IEEE TPDS 18(6), 2007.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.runtimes._distribution import BINS, RuntimeDistribution, bin_of, prior

__all__ = ["JobFeatures", "RuntimePredictor", "Shrinkage", "job_group"]

LEVELS = 7
_OWN = 2  # of these, of jobs of the same name
_LARGEST_WEIGHT = 1e12
_ROWS = 2048  # predicted at a time
_DIGITS = re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{6,}\b|\d+")  # a hash, or a number


def job_group(name: str) -> str:
    """Return what jobs of the same series share: the name without its digits and hashes.

    >>> job_group("resnet50-seed17") == job_group("resnet50-seed4")
    True
    """
    return _DIGITS.sub("#", name)


@dataclass(frozen=True, slots=True)
class JobFeatures:
    """What is known of a job when it is submitted; *limit_s* is its declared run time, infinity: none."""

    tenant: str
    name: str
    kind: str = ""
    gpus: int = 1
    limit_s: float = math.inf

    def groups(self) -> tuple[tuple[object, ...], ...]:
        """Return the groups of the job, from general to specific."""
        own = (self.tenant, job_group(self.name), self.kind)
        limit = self.limit_s if math.isfinite(self.limit_s) else None
        return (
            (), ("gpus", self.gpus), ("limit", limit, self.gpus), ("tenant", self.tenant),
            ("tenant", self.tenant, self.gpus), own, (*own, self.gpus, limit),
        )  # fmt: skip


@dataclass(frozen=True)
class Shrinkage:
    """How groups are weighed.

    Attributes
    ----------
    strength
        ``k``: how many jobs the more general group weighs.
    memory, own_memory
        About how many jobs a group remembers, and one of jobs of the same name; infinity: all, alike.
    spread
        Part of a job's weight that goes to each of the two bins beside its own.
    """

    strength: float = 10.0
    memory: float = 1000.0
    own_memory: float = 100.0
    spread: float = 0.1


class RuntimePredictor:
    """Learns run times as jobs end; predicts those of others. Deterministic; the order of learning matters.

    100,000 jobs are learned, and 100,000 asked, in seconds.
    """

    levels: ClassVar[int] = LEVELS
    """Groups of a job."""

    def __init__(self, shrinkage: Shrinkage | None = None) -> None:
        self.shrinkage = shrinkage or Shrinkage()
        self.learned = 0
        self._group_at: dict[tuple[object, ...], int] = {}
        self._counts = np.zeros((64, BINS), dtype=np.float64)
        self._weight = np.ones(64)  # of the next job of each group
        self._root = prior()
        memories = [self.shrinkage.memory] * (LEVELS - _OWN) + [self.shrinkage.own_memory] * _OWN
        self._growth = [1.0 / (1.0 - 1.0 / memory) for memory in memories]

    def groups(self, jobs: Sequence[JobFeatures]) -> Ints:
        """Return the numbers of the groups of *jobs*, from general to specific, [J, levels]; new groups are empty."""
        at = self._group_at
        numbers = [[at.setdefault(group, len(at)) for group in job.groups()] for job in jobs]
        if len(at) > len(self._weight):
            more = max(len(at), 2 * len(self._weight)) - len(self._weight)
            self._counts = np.concatenate((self._counts, np.zeros((more, BINS))))
            self._weight = np.append(self._weight, np.ones(more))
        return np.array(numbers, dtype=np.int64).reshape(len(jobs), LEVELS)

    def learn(self, groups: Ints, run_time_s: Floats) -> None:
        """Learn that jobs of these *groups* ([J, levels]) have ended after *run_time_s* ([J], s), one by one."""
        spread = self.shrinkage.spread
        counts, weights = self._counts, self._weight
        for own, at in zip(groups.tolist(), bin_of(np.asarray(run_time_s, dtype=float)).tolist(), strict=True):
            below, above = max(at - 1, 0), min(at + 1, BINS - 1)
            for group, growth in zip(own, self._growth, strict=True):
                weight = weights[group]
                counts[group, at] += weight * (1.0 - 2.0 * spread)
                counts[group, below] += weight * spread
                counts[group, above] += weight * spread
                weights[group] = weight * growth
                if weight > _LARGEST_WEIGHT:
                    counts[group] /= weights[group]
                    weights[group] = 1.0
        self.learned += len(groups)

    def predict(self, groups: Ints) -> RuntimeDistribution:
        """Return the distributions of the run times of jobs of these *groups* ([J, levels])."""
        parts = [self._believed(groups[k : k + _ROWS]) for k in range(0, len(groups), _ROWS)]
        return RuntimeDistribution(np.concatenate(parts) if parts else np.zeros((0, BINS)))

    def _believed(self, groups: Ints) -> Floats:
        strength = self.shrinkage.strength
        believed = np.broadcast_to(self._root, (len(groups), BINS))
        for level in range(LEVELS):
            own = groups[:, level]
            seen = self._counts[own]
            seen /= self._weight[own, None]
            seen += strength * believed
            seen /= seen.sum(axis=1, keepdims=True)
            believed = seen
        return believed
