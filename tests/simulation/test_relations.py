"""What must not change a result, and what must change it by just so much."""

from __future__ import annotations

import copy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulation.made import SOLVERS, documents, node, prepared, run

SOME = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
BLIND = ("fifo", "edf", "priority", "srtf", "easy", "fair-share")  # to the price of energy


def numbers(document: dict, seed: int = 0) -> dict:
    _, record = run(prepared(document, seed))
    result = record.result.model_dump()
    result["tenants"] = sorted(result["tenants"], key=lambda tenant: tenant["tenant"])
    bound = pytest.approx(result.pop("lower_bound_cost"))
    return result | {"bound": bound, "scheduler_s": None}


def close(result: dict) -> dict:
    """Up to rounding, as tenants of other names or jobs in another order are summed in another order."""
    plain = {name: pytest.approx(value) for name, value in result.items() if isinstance(value, float)}
    tenants = [{k: pytest.approx(v) if isinstance(v, float) else v for k, v in t.items()} for t in result["tenants"]]
    return result | plain | {"tenants": tenants}


@pytest.mark.long
@SOME
@given(documents(plain=True), st.randoms(use_true_random=False))
def test_the_order_of_jobs_in_the_file_does_not_matter(document, random):
    turned = copy.deepcopy(document)
    random.shuffle(turned["workload"]["jobs"])
    first, second = numbers(document), numbers(turned)
    assert first["bound"] == second.pop("bound").expected
    first.pop("bound")
    assert second == close(first)


@pytest.mark.long
@SOME
@given(documents())
def test_names_do_not_matter(document):
    renamed = copy.deepcopy(document)
    for i, job in enumerate(renamed["workload"]["jobs"]):
        job["name"] = f"{'zyxwvut'[i % 7]}-{i}"
    for i, one in enumerate(renamed["nodes"]):
        new = f"{9 - i}-node"
        for outage in renamed["outages"]:
            outage["node"] = new if outage["node"] == one["name"] else outage["node"]
        one["name"] = new
    first, second = numbers(document), numbers(renamed)
    assert first.pop("bound") == second.pop("bound").expected
    assert first == second


def scaled(document: dict, price: float, weight: float) -> dict:
    changed = copy.deepcopy(document)
    site = changed["electricity"]
    for point in site.get("series", [site]):
        point["price_per_kwh"] = price * point.get("price_per_kwh", 0.172)
    for job in changed["workload"]["jobs"]:
        job["tardiness_weight"] *= weight
    return changed


@pytest.mark.long
@SOME
@given(documents(solvers=BLIND))
def test_twice_the_price_is_twice_the_cost_of_the_same_energy(document):
    """Under policies that do not look at the price."""
    once, twice = numbers(document), numbers(scaled(document, 2, 1))
    assert once["energy_cost"] > 0
    assert twice["energy_cost"] == pytest.approx(2 * once["energy_cost"], rel=1e-6, abs=1e-7)
    for same in ("energy_kwh", "tardiness_cost", "late_jobs", "mean_jct_s", "preemptions", "migrations"):
        assert twice[same] == once[same]


@pytest.mark.long
@SOME
@given(documents(solvers=SOLVERS))
def test_in_another_currency_every_policy_decides_the_same(document):
    """Price and weights in a currency worth a quarter: nothing but money changes, and it does by four."""
    here, there = numbers(document), numbers(scaled(document, 4, 4))
    for money in ("energy_cost", "tardiness_cost", "total_cost"):
        assert there[money] == pytest.approx(4 * here[money], rel=1e-6, abs=1e-7)
    assert there["bound"].expected == pytest.approx(4 * here["bound"].expected, rel=1e-6, abs=1e-7)
    for same in ("energy_kwh", "late_jobs", "mean_jct_s", "preemptions", "migrations", "decisions"):
        assert there[same] == here[same]


@pytest.mark.long
@SOME
@given(documents(solvers=("lookahead", "random-greedy", "fifo")))
def test_a_node_that_cannot_run_any_job_only_adds_its_idle_power(document):
    more = copy.deepcopy(document)
    more["unused_nodes"] = {"state": None}
    alone = numbers(more)
    more["nodes"].append(node("spare") | {"gpu_type": "A100"})
    beside = numbers(more)
    until_s = alone["makespan_s"] + float(prepared(more).table.submit_s.min())
    assert beside["mean_jct_s"] == alone["mean_jct_s"]
    assert beside["energy_kwh"] == pytest.approx(alone["energy_kwh"] + 150 * until_s / 3.6e6, rel=1e-5)
