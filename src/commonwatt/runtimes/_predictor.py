"""Distributions of run times, and what jobs that have ended tell about the next one.

A job belongs to groups, from general to specific: everybody; its number of GPUs; its tenant; its tenant and GPUs; its
tenant, its name and kind; and these with its GPUs. Where kinds count, a job with a kind belongs to two more, before its
name: all of its kind, and those of its tenant. Each group has a histogram of the run times that ended in it. The
prediction is built down that line: a group of ``n`` jobs with histogram ``h`` turns what the group above it says,
``p``, into ``(h + k p) / (n + k)``: the mean of a Dirichlet posterior whose prior is the group above, of the weight of
``k`` jobs. A group of no jobs changes nothing, a group of many believes itself.

Old jobs are forgotten: a job weighs ``1 - 1/memory`` times as much as the next that ends in the same group.

Sources: hierarchical Dirichlet shrinkage as in Y. W. Teh et al., JASA 101 (2006), without its sampling; history of
"similar" jobs from general to specific templates as in W. Smith, I. Foster and V. Taylor, JSSPP 1998; the weight of the
last few jobs of a user as in D. Tsafrir, Y. Etsion and D. Feitelson, IEEE TPDS 18(6), 2007.

Run times are probabilities of logarithmic bins: ten a decade from 1 s to 10^7 s (116 days). Within a bin the logarithm
is uniform. Run times of jobs spread over six decades, with no shape a formula would have: bins take any, and cost a few
additions to learn, to mix and to condition.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from commonwatt.model.arrays import Floats, Ints

__all__ = [
    "BINS",
    "PER_DECADE",
    "JobFeatures",
    "RuntimeDistribution",
    "RuntimePredictor",
    "Shrinkage",
    "bin_of",
    "job_group",
    "predict_at_submission",
    "prior",
]

# -- distributions


PER_DECADE = 10
BINS = 7 * PER_DECADE
_PRIOR_S = (60.0, 7 * 86400.0)
_OUTSIDE = 0.01  # probability that a run time is of any length at all
_FINE = 4  # quantiles averaged to one outcome
_ROWS = 2048  # handled at a time
_LEFT = 1e-12  # probability below which nothing is known of what is left
_BEYOND = 4.0  # such a job ends, log-uniformly, until it is so many times as old


def _position(time_s: Floats) -> Floats:
    """Place of times on the axis of bins, from 0 to ``BINS``."""
    return np.clip(PER_DECADE * np.log10(np.maximum(time_s, 1.0)), 0.0, BINS)


def bin_of(time_s: Floats) -> Ints:
    """Bin of each run time; what is outside goes to the first or the last."""
    return np.minimum(_position(time_s), BINS - 1).astype(np.int64)


def prior() -> Floats:
    """Probabilities of bins where nothing is known: the logarithm is uniform from a minute to a week, [B].

    One in a hundred is of any length.
    """
    low, high = _position(np.array(_PRIOR_S))
    at = np.arange(BINS)
    inside = np.clip(np.minimum(at + 1, high) - np.maximum(at, low), 0.0, 1.0) / (high - low)
    return (1.0 - _OUTSIDE) * inside + _OUTSIDE / BINS


@dataclass(frozen=True)
class RuntimeDistribution:
    """Distributions of the run times of J jobs.

    Attributes
    ----------
    probability
        Of each bin, shape [J, B]; rows sum to 1.
    """

    probability: Floats

    @classmethod
    def unknown(cls, jobs: int) -> RuntimeDistribution:
        """Return what is believed where nothing is known: any time from a minute to a week, on a logarithmic scale.

        Such a distribution has no scale of its own: the longer a job has run, the longer it is expected to go on.
        """
        return cls(np.broadcast_to(prior(), (jobs, BINS)))

    def __len__(self) -> int:
        return len(self.probability)

    def outcomes(self, age_s: Floats, count: int) -> Floats:
        """Return *count* equally likely run times of each job given that it has run *age_s* ([J], s), [J, count].

        They increase, lie above the age, and their mean is that of the distribution: each is the mean of its share.
        A job older than anything that is thought possible ends, log-uniformly, by four times its age.
        """
        share = (np.arange(count * _FINE) + 0.5) / (count * _FINE)
        parts = [self._quantiles(slice(k, k + _ROWS), age_s[k : k + _ROWS], share) for k in range(0, len(self), _ROWS)]
        fine = np.concatenate(parts) if parts else np.zeros((0, count * _FINE))
        return fine.reshape(len(self), count, _FINE).mean(axis=2)

    def quantiles(self, age_s: Floats, share: Floats) -> Floats:
        """Return quantiles of the run times given the age ([J], s): shape [J, S] for *share* [S] in (0, 1)."""
        return self._quantiles(slice(None), age_s, share)

    def _quantiles(self, rows: slice, age_s: Floats, share: Floats) -> Floats:
        probability = self.probability[rows]
        jobs = np.arange(len(probability))
        cumulated = np.zeros((len(jobs), BINS + 1))
        np.cumsum(probability, axis=1, out=cumulated[:, 1:])
        cumulated /= cumulated[:, -1:]
        done = self._before(probability, cumulated, age_s)
        left = 1.0 - done
        wanted = done[:, None] + left[:, None] * share
        flat = (cumulated + 2.0 * jobs[:, None]).ravel()  # one increasing sequence
        at = np.searchsorted(flat, (wanted + 2.0 * jobs[:, None]).ravel(), side="right").reshape(wanted.shape) - 1
        at = np.clip(at - (BINS + 1) * jobs[:, None], 0, BINS - 1)
        before, mass = np.take_along_axis(cumulated, at, 1), np.take_along_axis(probability, at, 1)
        part = np.clip((wanted - before) / np.maximum(mass, 1e-300), 0.0, 1.0)
        times = 10.0 ** ((at + part) / PER_DECADE)
        age = np.maximum(age_s, 1.0)[:, None]
        return np.where(left[:, None] > _LEFT, np.maximum(times, age_s[:, None] * (1 + 1e-9)), age * _BEYOND**share)

    @staticmethod
    def _before(probability: Floats, cumulated: Floats, age_s: Floats) -> Floats:
        place = _position(age_s)
        at = np.minimum(place, BINS - 1).astype(np.int64)
        jobs = np.arange(len(at))
        return np.asarray(cumulated[jobs, at] + probability[jobs, at] * (place - at))

    def log_likelihood(self, run_time_s: Floats) -> Floats:
        """Return the logarithm of the density of the logarithm (base e) of each job's run time, [J]."""
        own = self.probability[np.arange(len(self)), bin_of(run_time_s)]
        return np.log(np.maximum(own, 1e-300)) - np.log(np.log(10.0) / PER_DECADE)


# -- the predictor


LEVELS = 7
_OWN = 2  # of these, of jobs of the same name
_NO_GROUP = -1
_LARGEST_WEIGHT = 1e12
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

    def groups_with_kind(self) -> tuple[tuple[object, ...] | None, ...]:
        """Return the same with those of its kind; ``None``: it has no kind."""
        of_kind = (("kind", self.kind), ("kind", self.kind, self.tenant)) if self.kind else (None, None)
        groups = self.groups()
        return (*groups[:-_OWN], *of_kind, *groups[-_OWN:])


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

    100,000 jobs are learned, and 100,000 asked, in seconds. With *kinds*, jobs of the same kind count, of any tenant.
    """

    levels: ClassVar[int] = LEVELS
    """Groups of a job, unless kinds count."""

    def __init__(self, shrinkage: Shrinkage | None = None, *, kinds: bool = False) -> None:
        self.shrinkage = shrinkage or Shrinkage()
        self.learned = 0
        self._group_at: dict[tuple[object, ...], int] = {}
        self._counts = np.zeros((64, BINS), dtype=np.float64)
        self._weight = np.ones(64)  # of the next job of each group
        self._root = prior()
        self._kinds, self._levels = kinds, LEVELS + (2 if kinds else 0)
        memories = [self.shrinkage.memory] * (self._levels - _OWN) + [self.shrinkage.own_memory] * _OWN
        self._growth = [1.0 / (1.0 - 1.0 / memory) for memory in memories]

    def groups(self, jobs: Sequence[JobFeatures]) -> Ints:
        """Return the numbers of the groups of *jobs*, from general to specific, [J, levels]; new groups are empty."""
        at = self._group_at
        named = [job.groups_with_kind() if self._kinds else job.groups() for job in jobs]
        numbers = [[_NO_GROUP if g is None else at.setdefault(g, len(at)) for g in groups] for groups in named]
        if len(at) > len(self._weight):
            more = max(len(at), 2 * len(self._weight)) - len(self._weight)
            self._counts = np.concatenate((self._counts, np.zeros((more, BINS))))
            self._weight = np.append(self._weight, np.ones(more))
        return np.array(numbers, dtype=np.int64).reshape(len(jobs), self._levels)

    def learn(self, groups: Ints, run_time_s: Floats) -> None:
        """Learn that jobs of these *groups* ([J, levels]) have ended after *run_time_s* ([J], s), one by one."""
        spread = self.shrinkage.spread
        counts, weights = self._counts, self._weight
        for own, at in zip(groups.tolist(), bin_of(np.asarray(run_time_s, dtype=float)).tolist(), strict=True):
            below, above = max(at - 1, 0), min(at + 1, BINS - 1)
            for group, growth in zip(own, self._growth, strict=True):
                if group == _NO_GROUP:
                    continue
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
        for level in range(self._levels):
            own = groups[:, level]
            seen = self._counts[own]
            seen /= self._weight[own, None]
            if self._kinds:
                seen[own == _NO_GROUP] = 0.0
            seen += strength * believed
            seen /= seen.sum(axis=1, keepdims=True)
            believed = seen
        return believed


def predict_at_submission(
    predictor: RuntimePredictor, jobs: Sequence[JobFeatures], submit_s: Floats, end_s: Floats, run_time_s: Floats
) -> RuntimeDistribution:
    """Return what *predictor* said of each job when it was submitted; it has learned the whole log afterwards.

    A prediction at time t has learned the jobs with ``end_s`` <= t, in order of their ends, ties by position. Arrays
    have shape [J]; infinite ends are never learned.
    """
    groups = predictor.groups(jobs)
    by_submit = np.argsort(submit_s, kind="stable")
    by_end = np.argsort(end_s, kind="stable")
    by_end = by_end[np.isfinite(end_s[by_end])]
    ended = np.searchsorted(end_s[by_end], submit_s[by_submit], side="right")
    out = np.empty((len(jobs), BINS))
    upto, k = 0, 0
    while k < len(by_submit):
        last = int(np.searchsorted(ended, ended[k], side="right"))  # nothing ends between these submissions
        learned = by_end[upto : ended[k]]
        predictor.learn(groups[learned], run_time_s[learned])
        upto = int(ended[k])
        asked = by_submit[k:last]
        out[asked] = predictor.predict(groups[asked]).probability
        k = last
    rest = by_end[upto:]
    predictor.learn(groups[rest], run_time_s[rest])
    return RuntimeDistribution(out)
