"""LayoutChoice of layouts: against trying everything, and what must hold of any choice."""

from dataclasses import replace

import numpy as np
import pytest

from commonwatt.model.errors import InputError
from commonwatt.model.partition_file import MigFile
from commonwatt.partitioning._comparison import welfare
from commonwatt.partitioning.mig._listing import (
    all_counts,
    approximate_equilibria,
    certified,
    gaps,
    highest,
    least_utilities,
    on_layout,
)
from commonwatt.partitioning.mig._modes import solve_integer, solve_market
from commonwatt.partitioning.mig._plan import gpu_sentence, plan_gpus
from commonwatt.partitioning.mig._problem import MigProblem
from tests.partitioning.mig_made import all_layouts, brute_force, document, drained, problem, random_problem, tenant


def made(**fields):
    return MigProblem.of(MigFile.model_validate(fields))


@pytest.mark.parametrize("kind", ["nash", "utilitarian", "egalitarian"])
@pytest.mark.parametrize("seed", range(6))
def test_whole_instances_are_the_best_of_everything(kind, seed):
    compiled = random_problem(np.random.default_rng(seed), 1, 1 + seed % 3)
    found = solve_integer(compiled, kind)
    assert found.optimal
    assert found.value == pytest.approx(brute_force(compiled, kind), abs=1e-8)


def test_whole_instances_with_limits_and_a_present_layout():
    fields = document(1, 3, drain_penalty=0.05)
    fields["gpus"][0]["present"] = ["4g@0", "1g@4"]
    fields["tenants"][2]["max_instances"] = 1
    compiled = made(**fields)
    assert solve_integer(compiled).value == pytest.approx(brute_force(compiled, "nash"), abs=1e-8)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nash", "utilitarian", "egalitarian"])
@pytest.mark.parametrize(("gpus", "tenants"), [(1, 1), (1, 4), (2, 3)])
def test_the_market_picks_the_best_of_all_layouts(kind, gpus, tenants):
    compiled = random_problem(np.random.default_rng(10 * gpus + tenants), gpus, tenants)
    found = solve_market(compiled, kind)
    best = -np.inf
    for picked in all_layouts(compiled):
        totals = compiled.totals(picked)
        if (compiled.rates[:, totals > 0] > 0).any(axis=1).all():
            best = max(best, welfare(kind, compiled.weights, on_layout(compiled, totals).utilities))
    assert found.optimal
    assert found.value == pytest.approx(best, abs=1e-6)
    assert found.market.residual < 1e-9


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["utilitarian", "egalitarian"])
@pytest.mark.parametrize("seed", range(4))
def test_other_welfares_with_limits_and_present_layouts(kind, seed):
    rng = np.random.default_rng(seed)
    fields = document(2, 3, drain_penalty=0.02)
    fields["gpus"][0]["present"] = ["4g@0", "1g@4"]
    for one in fields["tenants"]:
        one["weight"] = float(rng.uniform(0.5, 4))
        one["max_instances"] = int(rng.integers(1, 3)) if seed % 2 else None
    compiled = made(**fields)
    best = max(
        welfare(kind, compiled.weights, on_layout(compiled, compiled.totals(picked)).utilities)
        - compiled.penalty(picked)
        for picked in all_layouts(compiled)
    )
    found = solve_market(compiled, kind)
    assert found.optimal
    assert found.value == pytest.approx(best, abs=1e-7)
    assert found.value <= found.bound
    assert (compiled.totals(found.picked) == found.totals).all()


@pytest.mark.slow
def test_what_is_not_compared_in_time_has_a_bound():
    compiled = random_problem(np.random.default_rng(2), 4, 5)
    best = solve_market(compiled, "utilitarian")
    early = solve_market(compiled, "utilitarian", lambda: 0.0)
    assert best.optimal
    assert not early.optimal
    assert early.value <= best.value <= early.bound


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["utilitarian", "egalitarian"])
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_bounds_hold(kind, limited, seed):
    rng = np.random.default_rng(seed)
    compiled = random_problem(rng, 2, 4)
    if limited:
        compiled = replace(compiled, limits=rng.integers(1, 4, 4).astype(float))
    totals, _ = all_counts(compiled)
    least = least_utilities(compiled, totals)
    markets = [on_layout(compiled, row) for row in totals]
    utilities = np.array([market.utilities for market in markets])
    assert (least <= utilities * (1 + 1e-9)).all()
    real = np.array([welfare(kind, compiled.weights, u) for u in utilities])
    for market in markets[::5]:
        assert (highest(kind, compiled, market, totals, least) >= real * (1 - 1e-9)).all()
    if not limited:  # shares near an equilibrium, and what they say of it
        rates = compiled.rates * totals[:, None, :]
        shares, prices = approximate_equilibria(compiled.weights, rates, 1e-4)
        gap = gaps(compiled.weights, rates, shares, prices)
        assert (gap >= -1e-12).all()
        roof = certified(kind, compiled.weights, (rates * shares).sum(axis=2), gap)
        assert (roof >= real).all()
        assert np.isfinite(roof).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_time_shares_are_worth_no_less_than_whole_instances(seed):
    compiled = random_problem(np.random.default_rng(seed), 2, 3)
    assert solve_market(compiled).value >= solve_integer(compiled).value - 1e-7


def test_two_types_of_gpu_and_limits():
    tenants = [tenant("a", memory_gb=100), tenant("b", max_instances=1, gpu_speed={"A100-80GB": 0.5}), tenant("c")]
    gpus = [{"name": "x", "type": "H200-141GB"}, {"name": "y", "type": "A100-80GB"}]
    compiled = made(gpus=gpus, tenants=tenants)
    found = solve_market(compiled)
    assert found.optimal
    assert found.totals[4] == 1  # the whole H200 is the only instance with 100 GB
    assert found.market.shares[1].sum() <= 1 + 1e-9
    assert solve_integer(compiled).value <= found.value + 1e-6


def test_ties_go_to_the_layout_that_drains_least():
    fields = {"gpus": [{"name": "g", "type": "H100-80GB", "present": ["3g@0", "2g@4", "1g@6"]}]}
    compiled = made(**fields, tenants=[tenant("a", speed={"1g": 1, "2g": 2, "3g": 3})])
    found = solve_integer(compiled)
    assert found.utilities[0] == pytest.approx(7 / 3)
    compiled = made(**fields, tenants=[tenant("a", speed={"1g": 1, "2g": 1, "3g": 4})])
    assert drained(compiled, solve_integer(compiled).picked) == 2


def test_a_penalty_keeps_what_is_there():
    fields = document(1, 1)
    fields["gpus"][0]["present"] = ["7g@0"]
    assert drained(made(**fields), solve_market(made(**fields)).picked) == 1
    fields["drain_penalty"] = 2.0
    assert drained(made(**fields), solve_market(made(**fields)).picked) == 0


def test_a_plan_gives_each_what_it_was_promised():
    compiled = random_problem(np.random.default_rng(3), 3, 5)
    found = solve_market(compiled)
    given = np.zeros_like(compiled.rates)
    for plan in plan_gpus(compiled, found.picked, found.market.shares):
        for instance in plan.instances:
            assert sum(share for _, share in instance.users) <= 1 + 1e-4
            for i, share in instance.users:
                given[i, instance.type] += share
        assert gpu_sentence(plan)[0] == "new"
    assert given == pytest.approx(found.market.shares, abs=1e-4)


def test_who_does_not_fit_is_named():
    with pytest.raises(InputError, match=r"memory_gb.*largest instance, 7g.80gb with 80 GB"):
        problem(tenants=1, memory_reserve_gb=76)
    with pytest.raises(InputError, match="no layout of the 1 GPU has one when 7 other tenants"):
        solve_integer(problem(tenants=8))
    big = [tenant("big", memory_gb=80), tenant("small")]
    compiled = made(**(document() | {"tenants": big}))
    with pytest.raises(InputError, match=r"'tenants.small'.*when 1 other tenant has theirs"):
        solve_integer(compiled)
    assert solve_market(compiled).market.utilities == pytest.approx([0.5, 0.5])


@pytest.mark.long
def test_eight_gpus_and_twenty_tenants_are_solved_to_a_proof():
    compiled = random_problem(np.random.default_rng(1), 8, 20)
    for kind in ("nash", "utilitarian", "egalitarian"):
        assert solve_market(compiled, kind).optimal
    assert solve_integer(compiled).optimal


def fleet(seed, gpus, tenants):
    """A fleet, half of A100s on which everybody is slower, half of H100s."""
    rng = np.random.default_rng(seed)
    made = [
        tenant(
            f"t{i}", weight=float(rng.uniform(0.5, 4)), memory_gb=float(rng.choice([5, 15])),
            parallel_fraction=float(rng.uniform(0.9, 0.999)), gpu_speed={"A100-80GB": 0.6},
        )
        for i in range(tenants)
    ]  # fmt: skip
    kinds = ["A100-80GB" if g < gpus // 2 else "H100-80GB" for g in range(gpus)]
    given = {"gpus": [{"name": f"g{g}", "type": kind} for g, kind in enumerate(kinds)], "tenants": made}
    return MigProblem.of(MigFile.model_validate(given))


@pytest.mark.long
@pytest.mark.parametrize(("gpus", "tenants"), [(24, 12), pytest.param(100, 50, marks=pytest.mark.slow)])
def test_a_fleet_of_two_types_is_solved_to_a_proof(gpus, tenants):
    of = fleet(0, gpus, tenants)
    found = solve_market(of)
    assert found.optimal
    assert found.value <= found.bound <= found.value + 1e-7
    assert found.market.residual <= 1e-9
    assert [sum(numbers) for numbers in found.picked] == [gpus // 2, gpus // 2]
    rng = np.random.default_rng(1)
    for _ in range(5):  # other layouts are no better
        moved = [list(numbers) for numbers in found.picked]
        for numbers in moved:
            source, target = rng.choice(np.flatnonzero(numbers)), rng.integers(len(numbers))
            numbers[source] -= 1
            numbers[target] += 1
        market = on_layout(of, of.totals(moved))
        assert welfare("nash", of.weights, market.utilities) <= found.bound + 1e-9


def test_no_time_at_all_still_gives_layouts_and_a_bound():
    found = solve_market(fleet(0, 6, 4), "nash", lambda: 0.0)
    assert [sum(numbers) for numbers in found.picked] == [3, 3]
    assert found.value <= found.bound


@pytest.mark.long
@pytest.mark.parametrize("penalty", [0.0, 0.02])
def test_layouts_in_parts_are_rounded_to_as_many_gpus(penalty):
    present = {"present": ("3g@0", "3g@4")}
    given = document(gpus=3, tenants=3, drain_penalty=penalty)
    given["gpus"] = [gpu | (present if k < 2 else {}) for k, gpu in enumerate(given["gpus"])]
    of = MigProblem.of(MigFile.model_validate(given))
    found = solve_market(of)
    assert sorted(sum(numbers) for numbers in found.picked) == [1, 2]
    every = [
        welfare("nash", of.weights, on_layout(of, of.totals(picked)).utilities) - of.penalty(picked)
        for picked in all_layouts(of)
        if ((of.rates > 0) @ of.totals(picked) > 0).all()
    ]
    assert found.value == pytest.approx(max(every), abs=2e-7)
