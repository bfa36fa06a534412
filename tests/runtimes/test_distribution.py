"""Distributions of run times, against samples drawn from their bins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.runtimes import RuntimeDistribution

BINS = 70


def drawn(seed: int, jobs: int = 3) -> RuntimeDistribution:
    rng = np.random.default_rng(seed)
    mass = rng.gamma(0.3, size=(jobs, BINS)) + 1e-12
    return RuntimeDistribution(mass / mass.sum(axis=1, keepdims=True))


def sample(said: RuntimeDistribution, job: int, count: int) -> np.ndarray:
    rng = np.random.default_rng(7)
    return 10.0 ** ((rng.choice(BINS, count, p=said.probability[job]) + rng.random(count)) / 10)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("age_s", [0.0, 30.0, 5000.0])
def test_quantiles_are_those_of_what_is_older_than_the_age(seed, age_s):
    said = drawn(seed)
    shares = np.array([0.1, 0.5, 0.9])
    ours = said.quantiles(np.full(3, age_s), shares)
    for job in range(3):
        times = sample(said, job, 400_000)
        older = times[times > age_s]
        below = [(older < quantile).mean() for quantile in ours[job]]
        assert below == pytest.approx(shares, abs=0.02)


@pytest.mark.parametrize("age_s", [0.0, 600.0])
def test_the_mean_of_the_outcomes_is_that_of_the_distribution(age_s):
    said = drawn(1)
    outcomes = said.outcomes(np.full(3, age_s), 16)
    for job in range(3):
        times = sample(said, job, 400_000)
        assert outcomes[job].mean() == pytest.approx(times[times > age_s].mean(), rel=0.05)


@settings(deadline=None)
@given(seed=st.integers(0, 99), age_s=st.floats(0, 1e9), count=st.integers(1, 16))
def test_outcomes_increase_and_lie_above_the_age(seed, age_s, count):
    outcomes = drawn(seed).outcomes(np.full(3, age_s), count)
    assert outcomes.shape == (3, count)
    assert np.isfinite(outcomes).all()
    assert (outcomes > age_s).all()
    assert (np.diff(outcomes, axis=1) >= 0).all()


def test_where_nothing_is_known_what_has_run_longer_is_expected_to_run_longer():
    ages = np.array([0.0, 600.0, 6000.0, 60_000.0, 600_000.0, 6e6, 6e7])
    left = RuntimeDistribution.unknown(len(ages)).outcomes(ages, 10).mean(axis=1) - ages
    assert (np.diff(left) > 0).all()
    median = RuntimeDistribution.unknown(1).quantiles(np.zeros(1), np.array([0.5]))
    assert median[0, 0] == pytest.approx(np.sqrt(60.0 * 604_800.0), rel=0.05)


def test_the_density_integrates_to_one():
    edges = np.linspace(0, 7 * np.log(10), 7001)
    middle = (edges[1:] + edges[:-1]) / 2
    said = RuntimeDistribution(np.repeat(drawn(5, 1).probability, len(middle), axis=0))
    density = np.exp(said.log_likelihood(np.exp(middle)))
    assert np.sum(density * np.diff(edges)) == pytest.approx(1.0, abs=1e-6)


def test_no_jobs():
    assert RuntimeDistribution.unknown(0).outcomes(np.zeros(0), 4).shape == (0, 4)
