"""Run times as probabilities of logarithmic bins: ten a decade from 1 s to 10^7 s (116 days).

Within a bin the logarithm is uniform. Run times of jobs spread over six decades, with no shape a formula would have:
bins take any, and cost a few additions to learn, to mix and to condition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Floats, Ints

__all__ = ["BINS", "PER_DECADE", "RuntimeDistribution", "bin_of", "prior"]

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
