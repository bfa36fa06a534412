"""Slices are those of the literal algorithm, exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from commonwatt.timeslicing._policies import (
    Ef,
    Etf,
    EtfEnergy,
    QuantumProblem,
    Tf,
    energy_fair_shares,
    give_least,
    guaranteed,
    time_fair_shares,
)
from tests.timeslicing.literal import line_1, literal, phis, problems


def lists(problem):
    return problem.weights.tolist(), problem.powers_w.tolist(), problem.demands.tolist()


def test_the_example_of_section_4_3():
    problem = QuantumProblem.make(30, [1, 1, 1], [2, 3, 8])
    policy = Etf(0.7)
    assert policy.guarantee(problem).tolist() == [7, 7, 7]
    assert policy.slices(problem).tolist() == [14, 9, 7]
    assert (policy.slices(problem) * problem.powers_w).tolist() == [28, 27, 56]


def test_tf_and_ef_of_the_example():
    problem = QuantumProblem.make(30, [1, 1, 1], [2, 3, 8])
    assert Tf().slices(problem).tolist() == [10, 10, 10]
    assert Ef().slices(problem).tolist() == [16, 10, 4]  # the earlier tenant where energies are level


@pytest.mark.slow
@settings(max_examples=400)
@given(problems(), phis)
@example(QuantumProblem.make(30, [1, 1, 1], [2, 3, 8]), 0.7)
@example(QuantumProblem.make(300, [1] * 8, [1] * 8), 0.3)
def test_etf_is_the_literal_algorithm(problem, phi):
    weights, powers, demands = lists(problem)
    wanted = literal(problem.quantum, weights, powers, demands, line_1(problem.quantum, phi, weights))
    assert Etf(phi).slices(problem).tolist() == wanted


@pytest.mark.slow
@settings(max_examples=200)
@given(problems())
def test_ef_is_etf_without_a_guarantee(problem):
    weights, powers, demands = lists(problem)
    nothing = [0] * len(weights)
    assert Ef().slices(problem).tolist() == literal(problem.quantum, weights, powers, demands, nothing)
    assert Ef().slices(problem).tolist() == Etf(0.0).slices(problem).tolist()


@pytest.mark.slow
@settings(max_examples=200)
@given(problems())
def test_tf_evens_out_time(problem):
    weights, _, demands = lists(problem)
    ones = [1.0] * len(weights)
    wanted = literal(problem.quantum, weights, ones, demands, line_1(problem.quantum, 1.0, weights))
    assert Tf().slices(problem).tolist() == wanted


@pytest.mark.slow
@settings(max_examples=200)
@given(problems(backlogged=True), phis)
def test_the_dual_guarantees_energy_then_evens_out_time(problem, phi):
    slices = EtfEnergy(phi).slices(problem)
    energy = slices * problem.powers_w
    fair = problem.quantum / (problem.weights / problem.powers_w).sum()  # energy per weight of energy fairness
    assert (energy >= phi * fair * problem.weights - problem.powers_w).all()  # but for less than a unit
    guarantee = EtfEnergy(phi).guarantee(problem)
    time = slices / problem.weights
    took_more = slices > guarantee
    if took_more.any():  # nobody gave time to one who had more than another
        before = ((slices - 1) / problem.weights)[took_more].max()
        assert (time >= before - 1e-9).all()


def test_the_dual_at_its_ends():
    problem = QuantumProblem.make(3000, [1, 2], [1, 5])
    assert EtfEnergy(0.0).slices(problem).tolist() == Tf().slices(problem).tolist()
    assert EtfEnergy(1.0).slices(problem) == pytest.approx(Ef().slices(problem), abs=1)


@pytest.mark.slow
@settings(max_examples=100)
@given(problems(longest=2000), st.integers(0, 2000), st.booleans())
def test_units_left_go_to_the_lowest(problem, left, time):
    weights, powers, demands = lists(problem)
    costs = [1.0] * len(weights) if time else powers
    start = [d // 3 for d in demands]
    got = give_least(np.array(start), left, np.array(costs), problem.weights, problem.demands)
    assert got.tolist() == literal(sum(start) + left, weights, costs, demands, start)


@pytest.mark.slow
@pytest.mark.parametrize("phi", [0.1, 0.2, 0.3, 0.6, 0.7, 0.9])
@pytest.mark.parametrize("tenants", [1, 3, 7, 10, 49])
@pytest.mark.parametrize("quantum", [30, 1000, 10**9, 10**15])
def test_a_guarantee_that_is_whole_is_not_rounded_down(phi, tenants, quantum):
    problem = QuantumProblem.make(quantum, [1] * tenants, [1] * tenants)
    assert Etf(phi).guarantee(problem).tolist() == line_1(quantum, phi, [1] * tenants)


@pytest.mark.slow
@given(problems(longest=10**12), phis)
def test_guarantees_never_exceed_the_quantum(problem, phi):
    assert (
        guaranteed(time_fair_shares(problem.weights) * problem.quantum * phi, problem.demands).sum() <= problem.quantum
    )


@pytest.mark.slow
@settings(max_examples=50)
@given(problems(longest=10**12, most=60), phis)
def test_long_quanta(problem, phi):
    """Too many units to give one by one: the result is checked instead (no exchange helps; ties apart)."""
    slices, guarantee = Etf(phi).slices(problem), Etf(phi).guarantee(problem)
    assert slices.sum() == min(problem.quantum, problem.demands.sum())
    assert (guarantee <= slices).all()
    assert (slices <= problem.demands).all()
    level = slices * problem.powers_w / problem.weights
    last = (slices - 1) * problem.powers_w / problem.weights
    open_, extra = slices < problem.demands, slices > guarantee
    if open_.any() and extra.any():
        assert last[extra].max() <= level[open_].min()


def test_shares_sum_to_one():
    weights, powers = np.array([1e-6, 1.0, 1e6]), np.array([300.0, 0.1, 50.0])
    for shares in (time_fair_shares(weights), energy_fair_shares(weights, powers)):
        assert shares.sum() == pytest.approx(1)
    assert energy_fair_shares(weights, powers) * powers / weights == pytest.approx(
        np.full(3, 1 / (weights / powers).sum())
    )


@pytest.mark.slow
def test_equation_2_holds_for_two_tenants_of_equal_weight_only():
    printed = lambda w, p: 1 - w * p / (w * p).sum()  # noqa: E731
    two = np.ones(2), np.array([1.0, 7.9])
    assert energy_fair_shares(*two) == pytest.approx(printed(*two))
    three = np.ones(3), np.array([2.0, 3.0, 8.0])
    assert printed(*three).sum() == pytest.approx(2)  # more than the whole
    weighted = np.array([1.0, 2.0]), np.array([1.0, 1.0])
    assert energy_fair_shares(*weighted) != pytest.approx(printed(*weighted))
