"""Fairness of divisions: the metrics, phi_fair, and the properties of ETF section 4.4."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.timeslicing._policies import Ef, Etf, QuantumProblem, Tf
from commonwatt.timeslicing._solve_file import energy_fair_times, evenness, fairness, phi_fair
from tests.timeslicing.literal import any_positive, phis, problems


def compositions(units, tenants):
    if tenants == 1:
        yield (units,)
        return
    for first in range(units + 1):
        for rest in compositions(units - first, tenants - 1):
            yield (first, *rest)


def test_metrics_by_hand():
    fair = fairness(np.array([14, 9, 7]), np.array([28, 27, 56]), np.ones(3))
    assert (fair.time, fair.energy, fair.system) == (0.5, 27 / 56, 27 / 56)
    assert fairness(np.array([10, 20]), np.array([10, 40]), np.array([1, 2])).time == 1
    assert evenness(np.zeros(3)) is None
    assert evenness(np.zeros(0)) is None
    assert fairness(np.array([5, 0]), np.array([5, 0]), np.ones(2), np.array([False, True])).system == 1


@pytest.mark.slow
@given(problems(backlogged=True), st.floats(0.01, 100))
def test_metrics_do_not_depend_on_units(problem, factor):
    times = Etf(0.5).slices(problem).astype(float)
    energies = times * problem.powers_w
    one = fairness(times, energies, problem.weights)
    other = fairness(times * factor, energies * factor * 2, problem.weights * 3)
    assert (one.time, one.energy) == (pytest.approx(other.time), pytest.approx(other.energy))


def fluid(problem, phi):
    """ETF where time is divisible: guaranteed time, then energy per weight raised from below."""
    sure = np.minimum(phi * problem.quantum * problem.weights / problem.weights.sum(), problem.demands)
    low, high = 0.0, float((problem.demands * problem.powers_w / problem.weights).max())
    for _ in range(200):
        middle = (low + high) / 2
        times = np.clip(middle * problem.weights / problem.powers_w, sure, problem.demands)
        low, high = (middle, high) if times.sum() < min(problem.quantum, problem.demands.sum()) else (low, middle)
    return np.clip(high * problem.weights / problem.powers_w, sure, problem.demands)


def is_energy_fair(problem, phi):
    return fluid(problem, phi) == pytest.approx(energy_fair_times(problem), rel=1e-7, abs=1e-13)


@pytest.mark.long
@settings(max_examples=150)
@given(problems(numbers=any_positive))
def test_phi_fair_is_where_bisection_finds_it(problem):
    if is_energy_fair(problem, 1.0):
        assert phi_fair(problem) == pytest.approx(1, rel=1e-4)
        return
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if is_energy_fair(problem, middle) else (low, middle)
    assert phi_fair(problem) == pytest.approx(low, rel=1e-3, abs=1e-6)


@pytest.mark.slow
@given(st.lists(st.tuples(any_positive, any_positive), min_size=1, max_size=6))
def test_phi_fair_in_closed_form(tenants):
    weights, powers = np.array(tenants).T
    closed = weights.sum() / (powers.max() * (weights / powers).sum())
    assert phi_fair(QuantumProblem.make(10**6, weights, powers)) == pytest.approx(closed)


def test_phi_fair_of_two_equal_tenants_hangs_on_the_power_ratio_alone():
    for ratio in (1.0, 2.2, 4.0, 7.9):
        assert phi_fair(QuantumProblem.make(100, [1, 1], [1, ratio])) == pytest.approx(2 / (1 + ratio))


@pytest.mark.slow
@given(problems(numbers=any_positive))
def test_energy_fair_times_are_level_but_for_demands(problem):
    times = energy_fair_times(problem)
    assert times.sum() == pytest.approx(min(problem.quantum, problem.demands.sum()))
    level = times * problem.powers_w / problem.weights
    unmet = times < problem.demands * (1 - 1e-9)
    if unmet.any():
        assert level[unmet] == pytest.approx(np.full(unmet.sum(), level[unmet][0]))
        assert (level[~unmet] <= level[unmet][0] * (1 + 1e-9)).all()


# ---- section 4.4


@pytest.mark.slow
@given(problems(), phis)
def test_pareto_efficiency(problem, phi):
    """Theorem 1: no unit is left that anybody could use, and nobody has more than he can use."""
    slices = Etf(phi).slices(problem)
    assert (slices <= problem.demands).all()
    assert slices.sum() == min(problem.quantum, problem.demands.sum())


@pytest.mark.slow
@given(problems(), phis)
def test_time_guarantee(problem, phi):
    """Eq. (7), in whole units: nobody has less than phi of a fair share, unless he asks for less."""
    fair = problem.quantum * problem.weights / problem.weights.sum()
    assert (Etf(phi).slices(problem) > np.minimum(phi * fair, problem.demands) - 1 - 1e-9).all()


@pytest.mark.slow
@settings(max_examples=60)
@given(problems(most=3, longest=14), phis)
def test_max_min_energy(problem, phi):
    """Theorem 3 by brute force: of all divisions that keep the guarantee, none has a higher least energy."""
    policy = Etf(phi)
    slices, sure = policy.slices(problem), policy.guarantee(problem)

    def least(units):
        energy = np.array(units) * problem.powers_w / problem.weights
        return energy[problem.demands > sure].min(initial=np.inf)

    best = max(
        (least(units) for units in compositions(int(slices.sum()), len(slices))
         if (np.array(units) >= sure).all() and (np.array(units) <= problem.demands).all()),
    )  # fmt: skip
    unmet = slices < problem.demands
    if unmet.all():
        assert least(slices) == pytest.approx(best)
    for i, j in permutations(range(len(slices)), 2):  # no exchange of one unit raises the lower of the two
        moved = slices.copy()
        moved[i], moved[j] = moved[i] - 1, moved[j] + 1
        if moved[i] >= sure[i] and moved[j] <= problem.demands[j]:
            now, then = (x * problem.powers_w / problem.weights for x in (slices, moved))
            assert min(then[i], then[j]) <= min(now[i], now[j]) * (1 + 1e-12)


@pytest.mark.slow
@settings(max_examples=200)
@given(problems(numbers=any_positive, backlogged=True), st.integers(0, 7), st.floats(1.01, 5))
def test_a_lie_about_power_under_energy_fairness_gains_no_time_and_no_energy(problem, liar, factor):
    """Lemma 1: who claims more power gets less time; who claims less gets energy beyond his fair part only by
    really being charged for it: with power measured, he who draws more ends with no more energy than the rest."""
    liar %= len(problem)
    honest = energy_fair_times(problem)
    powers = problem.powers_w.copy()
    powers[liar] *= factor
    drawing_more = energy_fair_times(QuantumProblem(problem.quantum, problem.weights, powers, problem.demands))
    assert drawing_more[liar] <= honest[liar] * (1 + 1e-9)  # less time
    energy = drawing_more * powers / problem.weights
    assert energy == pytest.approx(np.full(len(problem), energy[0]))  # and no more energy than anybody


@pytest.mark.slow
@settings(max_examples=200)
@given(problems(numbers=any_positive, backlogged=True), phis, st.integers(0, 7), st.integers(0, 300))
def test_a_lie_about_demand_gains_no_useful_time(problem, phi, liar, claimed):
    """Theorem 2 for time: asking for less gives no more, and what is given beyond the true demand is no use."""
    liar %= len(problem)
    true = problem.demands.copy()
    true[liar] = min(problem.quantum, claimed)
    honest = Etf(phi).slices(QuantumProblem(problem.quantum, problem.weights, problem.powers_w, true))[liar]
    for told in {0, claimed // 2, claimed + 1, problem.quantum}:
        demands = true.copy()
        demands[liar] = min(problem.quantum, told)
        lied = Etf(phi).slices(QuantumProblem(problem.quantum, problem.weights, problem.powers_w, demands))[liar]
        assert min(lied, true[liar]) <= honest


def test_lemma_2_the_glutton():
    """C of the example has no more than its guarantee; drawing 10 W instead of 8 costs it no time: 70 J, not 56."""
    for power, energy in ((8, 56), (10, 70)):
        slices = Etf(0.7).slices(QuantumProblem.make(30, [1, 1, 1], [2, 3, power]))
        assert slices[2] == 7
        assert slices[2] * power == energy


def test_lemma_2_the_frugal():
    """A tenant that gets all that is left can draw more up to the next one without losing time."""
    for power in (0.1, 0.2, 0.4):
        slices = Etf(0.7).slices(QuantumProblem.make(30, [1, 1, 1], [power, 3, 8]))
        assert slices.tolist() == [16, 7, 7]
    assert Etf(0.7).slices(QuantumProblem.make(30, [1, 1, 1], [2, 3, 8]))[0] < 16


def test_without_knowing_the_others_either_may_cost():
    """The same moves against other neighbours: time is lost."""
    assert Etf(0.7).slices(QuantumProblem.make(30, [1, 1, 1], [2, 2, 2]))[0] == 10
    assert Etf(0.7).slices(QuantumProblem.make(30, [1, 1, 1], [4, 2, 2]))[0] == 7


@pytest.mark.slow
@given(problems(backlogged=True), phis)
def test_with_two_tenants_etf_lies_between_tf_and_ef(problem, phi):
    two = QuantumProblem(problem.quantum, problem.weights[:2], problem.powers_w[:2], problem.demands[:2])
    etf, tf, ef = (policy.slices(two) for policy in (Etf(phi), Tf(), Ef()))
    assert (etf >= np.minimum(tf, ef) - 1).all()
    assert (etf <= np.maximum(tf, ef) + 1).all()


def test_with_more_a_tenant_of_middling_power_can_get_less_than_under_either():
    problem = QuantumProblem.make(4300, [1, 1, 5, 5], [1, 4, 5, 43])
    etf, tf, ef = (policy.slices(problem)[2] for policy in (Etf(0.7), Tf(), Ef()))
    assert etf < min(tf, ef)


@pytest.mark.slow
@given(problems(numbers=any_positive), phis, st.randoms(use_true_random=False))
def test_order_breaks_ties_only(problem, phi, random):
    order = list(range(len(problem)))
    random.shuffle(order)
    other = QuantumProblem(problem.quantum, problem.weights[order], problem.powers_w[order], problem.demands[order])
    assert np.abs(Etf(phi).slices(problem)[order] - Etf(phi).slices(other)).max() <= 1


@pytest.mark.slow
@given(problems(), phis, st.sampled_from([0.5, 2.0, 8.0]))
def test_scaling_all_powers_or_all_weights_changes_nothing(problem, phi, factor):
    slices = Etf(phi).slices(problem).tolist()
    scaled = QuantumProblem(problem.quantum, problem.weights * factor, problem.powers_w / factor, problem.demands)
    assert Etf(phi).slices(scaled).tolist() == slices
