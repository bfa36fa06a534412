"""Operators do what section 4.2.3 says; searches keep their budget and find what brute force finds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

from commonwatt.mapping._auto import STARTS, Annealing, Auto, Rounding
from commonwatt.mapping._baselines import List
from commonwatt.mapping._encoding import Mapping, check
from commonwatt.mapping._external_searches import LEARNERS, NEVERGRAD
from commonwatt.mapping._gsharp import (
    Genetic,
    GSharp,
    GSharpSettings,
    breed,
    cross_accelerator,
    cross_genome,
    cross_range,
    likelihoods,
    mutate,
    scatter,
)
from commonwatt.mapping._lower_bound import lower_bound
from commonwatt.mapping._problem import MappingProblem
from commonwatt.mapping._scoring import makespan, makespans, timeline
from commonwatt.mapping._search import MappingSearch, drive, score
from commonwatt.mapping._solve_file import ALGORITHMS, explain
from tests.mapping import literal

JOBS, PLACES = 30, 4

# Searches of others and the exact one, which takes its time: test_methods and test_exact have them.
COMPARED = {"exact", "standard-ga", *NEVERGRAD, *LEARNERS}


def rng(seed=0):
    return np.random.default_rng(seed)


def sample(jobs=JOBS, places=PLACES, seed=0, system=16.0):
    drawn = rng(seed)
    latency = drawn.integers(1, 1000, (jobs, places)).astype(float)
    latency[drawn.random((jobs, places)) < 0.2] = np.inf
    latency[:, 0] = np.where(np.isfinite(latency).any(axis=1), latency[:, 0], 50.0)
    bandwidth = np.where(np.isfinite(latency), drawn.random((jobs, places)) * 20, 0.0)
    return MappingProblem(latency, bandwidth, system)


def parents():
    """Two that differ in every gene: the mom's sub-accelerators are even, the dad's odd."""
    drawn = rng(1)
    mom = 2 * drawn.integers(0, 2, JOBS), drawn.random(JOBS)
    return [*mom, 2 * drawn.integers(0, 2, JOBS) + 1, 1 + drawn.random(JOBS)]


def anywhere():
    return np.tile(np.arange(1, PLACES + 1) / PLACES, (JOBS, 1))


def exchanged(before, after):
    """Genes that changed hands, for each genome; every gene is still with one of the two."""
    swapped = []
    for genome in (0, 1):
        one, two, new_one, new_two = before[genome], before[genome + 2], after[genome], after[genome + 2]
        moved = new_one != one
        assert (np.where(moved, two, one) == new_one).all()
        assert (np.where(moved, one, two) == new_two).all()
        swapped.append(moved)
    return swapped


def test_crossover_gen_exchanges_one_genome_from_a_pivot_on():
    seen = set()
    for seed in range(60):
        before, after = parents(), parents()
        cross_genome(*after, rng(seed))
        moved = exchanged(before, after)
        assert [m.any() for m in moved].count(True) == 1
        (which,) = [g for g in (0, 1) if moved[g].any()]
        pivot = int(np.argmax(moved[which]))
        assert moved[which][pivot:].all()
        assert not moved[which][:pivot].any()
        seen.add((which, pivot))
    assert len(seen) > 25


def test_crossover_rg_exchanges_both_genes_of_a_range():
    seen = set()
    for seed in range(60):
        before, after = parents(), parents()
        cross_range(*after, rng(seed))
        accelerators, priorities = exchanged(before, after)
        assert (accelerators == priorities).all()
        inside = np.flatnonzero(accelerators)
        assert (np.diff(inside) == 1).all()
        seen.add((inside[0], inside[-1]))
    assert len(seen) > 40


def test_crossover_accel_takes_over_one_sub_accelerator():
    mom_a, mom_p, dad_a, dad_p = parents()
    dad_a[:10] = 2
    child_a, child_p = dad_a.copy(), dad_p.copy()
    cross_accelerator(child_a, child_p, mom_a, mom_p, 2, anywhere(), rng())
    taken, own = mom_a == 2, (dad_a == 2) & (mom_a != 2)
    assert (child_a[taken] == 2).all()
    assert (child_p[taken] == mom_p[taken]).all()
    assert (child_p[own] != dad_p[own]).all()  # thrown anywhere, in any order
    assert len(set(child_a[own].tolist())) > 1
    rest = ~taken & ~own
    assert (child_a[rest] == dad_a[rest]).all()
    assert (child_p[rest] == dad_p[rest]).all()


def test_mutation_changes_so_many_genes():
    changed = 0
    for seed in range(400):
        accelerator, priority = np.full(JOBS, -1), np.full(JOBS, -1.0)
        mutate(accelerator, priority, 0.05, anywhere(), rng(seed))
        changed += (accelerator >= 0).sum() + (priority >= 0).sum()
    assert changed / (400 * 2 * JOBS) == pytest.approx(0.05, abs=0.005)


@pytest.mark.parametrize("power", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("even", [0.0, 0.2, 1.0])
def test_likelihoods(power, even):
    """Where a job cannot run it never goes; elsewhere by its time under an equal share of the bandwidth."""
    problem = MappingProblem(
        np.array([[np.inf, 10.0, 20.0, np.inf], [5, 5, 5, 5], [np.inf, np.inf, np.inf, 7]]),
        np.array([[0.0, 1, 8, 0], [0, 4, 8, 8], [0, 0, 0, 1]]), 16.0,
    )  # fmt: skip
    found = np.diff(likelihoods(problem, power, even), axis=1, prepend=0.0)
    for row, times in zip(found, ([np.inf, 10, 40, np.inf], [5, 5, 10, 10], [np.inf, np.inf, np.inf, 7]), strict=True):
        can = np.isfinite(times)
        drawn = np.where(can, np.array(times) ** -power, 0.0)
        assert row == pytest.approx((1 - even) * drawn / drawn.sum() + even * can / can.sum(), abs=1e-12)
        assert (row[~can] == 0).all()
    placed, _ = scatter(likelihoods(problem, power, even), 4000, rng())
    seen = np.stack([(placed == a).mean(axis=0) for a in range(4)], axis=1)
    assert seen == pytest.approx(found, abs=0.04)


def test_parents_become_fewer():
    search = Genetic(sample(), rng(), GSharpSettings(parents=0.5, last_parents=0.02), generations=10)
    parts = []
    for _ in range(12):
        parts.append(search._parents())
        search.tell(search.ask(), rng().random(100))
    assert parts[0] == 0.5
    assert parts[10] == parts[11] == pytest.approx(0.02)
    assert (np.diff(parts[:11]) < 0).all()


def test_breeding_leaves_parents_alone_and_jobs_where_they_can_run():
    problem = sample()
    population = Mapping.random(problem, 10, rng())
    kept = population.accelerator.copy(), population.priority.copy()
    likely = likelihoods(problem, 1.0, 0.2)
    pairs = np.array(list(itertools.product(range(10), range(10))))
    children = Mapping(*breed(*kept, pairs, np.array([0.1, 0.4, 0.3, 0.3]), likely, rng()))
    assert len(children) == 200
    for child in range(200):
        check(problem, children[child])
    assert (population.accelerator == kept[0]).all()
    assert (population.priority == kept[1]).all()


def test_without_rates_children_are_their_parents():
    problem = sample()
    population = Mapping.random(problem, 2, rng())
    likely = likelihoods(problem, 1.0, 0.2)
    got = breed(population.accelerator, population.priority, np.array([[0, 1]]), np.zeros(4), likely, rng())
    assert (got[0] == population.accelerator).all()
    assert (got[1] == population.priority).all()


def test_elites_are_never_lost():
    problem = sample()
    search = Genetic(problem, rng(), GSharpSettings(population=20))
    best = np.inf
    for _ in range(15):
        asked = search.ask()
        assert len(asked) == 20
        search.tell(asked, makespans(problem, asked))
        assert search.worth[0] <= best
        best = search.worth[0]
        assert makespan(problem, search.best[0]) == best
        assert (np.diff(search.worth) >= 0).all()


def test_what_is_told_without_being_asked_is_used():
    problem = sample()
    good = GSharp(2000).solve(problem, rng())
    search = Genetic(problem, rng(5))
    search.tell(search.ask(), makespans(problem, Mapping.random(problem, 100, rng(6))))
    search.tell(Mapping(good.best.accelerator[None], good.best.priority[None]), np.array([good.cost]))
    assert search.worth[0] == good.cost


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in COMPARED])
def test_every_algorithm(name):
    problem = sample()
    one, two = (ALGORITHMS[name](700).solve(problem, rng(3)) for _ in range(2))
    check(problem, one.best)
    assert one.cost == makespan(problem, one.best) == two.cost
    assert (one.best.accelerator == two.best.accelerator).all()
    assert one.evaluations == (700 if name in {"auto", "gsharp"} else 1)
    assert one.cost >= lower_bound(problem)


@pytest.mark.parametrize("name", ["auto", "gsharp"])
@pytest.mark.parametrize("budget", [1, 2, 5, 99, 101, 250])
def test_a_budget_is_kept_whatever_it_is(name, budget):
    found = ALGORITHMS[name](budget).solve(sample(), rng())
    assert found.evaluations == budget


@pytest.mark.parametrize("name", ["auto", "gsharp"])
def test_no_time_at_all_still_gives_a_mapping(name):
    found = ALGORITHMS[name](5000).solve(sample(), rng(), lambda: False)
    assert np.isfinite(found.cost)
    assert found.evaluations <= 100


def test_time_is_asked_for_during_the_search():
    asked = iter([True] * 6 + [False] * 100)
    assert GSharp(5000).solve(sample(), rng(), lambda: next(asked)).evaluations == 700


@pytest.mark.long
@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (5, 1), (2, 2)])
def test_tiny_problems(shape):
    problem = sample(*shape)
    for name in ALGORITHMS:
        check(problem, ALGORITHMS[name](120).solve(problem, rng()).best)


@pytest.mark.slow
@settings(max_examples=20)
@given(literal.problems(jobs=4, accelerators=3))
def test_auto_finds_what_brute_force_finds(problem):
    best = min(makespan(problem, mapping) for mapping in literal.all_mappings(problem))
    assert Auto(3000).solve(problem, rng()).cost == pytest.approx(best, rel=1e-9)


@pytest.mark.slow
@settings(max_examples=30)
@given(literal.problems(jobs=7, accelerators=3))
def test_a_rounded_program_is_a_mapping(problem):
    for longest in (np.inf, 0.0, 100.0):
        found = Rounding(longest).solve(problem, rng())
        check(problem, found.best)
        assert found.cost >= lower_bound(problem)


def test_the_rounded_program_knows_bandwidth():
    """Ten jobs of 100 cycles that ask for three times all there is, or take 140 with little."""
    latency, request = np.tile([100.0, 140.0], (10, 1)), np.tile([3.0, 0.1], (10, 1))
    found = Rounding().solve(MappingProblem(latency, request, 1.0), rng())
    assert (found.best.accelerator == 1).sum() >= 7
    assert found.cost < List("longest", "eft").solve(MappingProblem(latency, request, 1.0), rng()).cost


def test_auto_is_no_worse_than_its_starts():
    for seed in range(4):
        problem = sample(40, 5, seed, system=8.0)
        starts = [rule.solve(problem, rng()).cost for rule in STARTS]
        assert Auto(600).solve(problem, rng()).cost <= min(starts)


def test_annealing_without_a_budget_changes_nothing():
    problem = sample()
    start = MappingSearch(List("sjf", "olb").solve(problem, rng()).best, 5.0, 9)
    found = Annealing(0).improve(problem, start, rng())
    assert (found.best, found.cost, found.evaluations) == (start.best, 5.0, 0)


def test_search_beats_random_guessing():
    problem = sample(60, 6)
    guessed = score(problem, Mapping.random(problem, 3000, rng())).cost
    assert GSharp(3000).solve(problem, rng()).cost < 0.8 * guessed


def test_the_best_of_all_generations_is_returned():
    """An optimiser that forgets: the best mapping was in its first population."""

    class Forgets:
        told = 0

        def ask(self):
            return Mapping.random(problem, 10, rng(self.told))

        def tell(self, mappings, makespans):
            self.told += 1

    problem = sample()
    every = [makespans(problem, Mapping.random(problem, 10, rng(n))) for n in range(5)]
    found = drive(problem, Forgets(), 45)
    assert found.evaluations == 45
    assert found.cost == min(min(e) for e in [*every[:4], every[4][:5]])


TABLE = MappingProblem(np.array([[4.0, 9], [2, 3], [6, 5], [1, 1]]), np.ones((4, 2)), 100.0)


@pytest.mark.parametrize(
    ("order", "rule", "places"),
    [
        ("fcfs", "olb", [0, 1, 1, 0]),
        ("fcfs", "met", [0, 0, 1, 1]),
        ("fcfs", "rr", [0, 1, 0, 1]),
        ("sjf", "olb", [1, 1, 0, 0]),
        ("sjf", "rr", [1, 1, 0, 0]),
        ("longest", "eft", [0, 0, 1, 1]),
    ],
)
def test_rules_by_hand(order, rule, places):
    assert List(order, rule).solve(TABLE, rng()).best.accelerator.tolist() == places


@pytest.mark.slow
def test_rules_skip_where_a_job_cannot_run():
    latency = np.array([[np.inf, 5.0, np.inf], [3.0, np.inf, np.inf]])
    problem = MappingProblem(latency, np.where(np.isfinite(latency), 1.0, 0.0), 1.0)
    for name in ALGORITHMS:
        assert ALGORITHMS[name](10).solve(problem, rng()).best.accelerator.tolist() == [1, 0]


def test_each_job_has_a_reason():
    latency = np.array([[5.0, np.inf], [4, 8], [4, 4], [4, 8]])
    bandwidth = np.array([[30.0, 0], [9, 9], [1, 1], [9, 1]])
    problem = MappingProblem(latency, bandwidth, 20.0)
    mapping = Mapping(np.array([0, 1, 0, 1]), np.arange(4.0))
    why = explain(problem, mapping, timeline(problem, mapping))
    assert [e.reason for e in why] == ["only-choice", "spread-out", "fastest", "less-bandwidth"]
    assert "stalls 4.75 cycles" in why[0].sentence
