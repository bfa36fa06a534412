"""Energy-time fairness over a cluster: entitlements by hand and by properties, and schedules that keep them."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.data.files import validate
from commonwatt.model.explanation import PlacementExplanation, Reason
from commonwatt.model.place_file import PlaceFile
from commonwatt.model.scenario import Scenario
from commonwatt.placement import POSTPONED, PlacementProblem, Schedule, TenantFairness, make_solver
from commonwatt.placement._entitlement import entitlements, fair_schedule, protected, water_fill
from commonwatt.placement._explain import Explainer
from commonwatt.placement._objective import objective
from commonwatt.placement.guarantees import schedule_with_guarantees
from commonwatt.simulation.run_setup import run_policy
from commonwatt.simulation.runner import run_seeds
from commonwatt.simulation.workload import prepare
from commonwatt.timeslicing import Etf, QuantumProblem

HOUR_S = 3600.0
SOLVERS = ("lookahead", "random-greedy", "local-search", "exact", "easy", "fifo", "srtf")


def problem(jobs: list[dict], gpus: int = 4, tenants: list[dict] | None = None, count: int = 1) -> PlacementProblem:
    file = PlaceFile.model_validate(
        {
            "nodes": [{"name": "n", "count": count, "gpu_type": "A", "gpus": gpus, "idle_w": 100, "gpu_w": 100}],
            "jobs": jobs, "tenants": tenants or [],
        }
    )  # fmt: skip
    return PlacementProblem.of(file)


def job(name: str, tenant: str, gpus: int = 1, **more: object) -> dict:
    usual = {"due_s": 5000, "tardiness_weight": 0.001, "times_s": {"A": {gpus: 1000.0}}, "requested_gpus": gpus}
    return {"name": name, "tenant": tenant, **usual, **more}


def two(a: int, b: int) -> list[dict]:
    return [*(job(f"a{i}", "a") for i in range(a)), *(job(f"b{i}", "b") for i in range(b))]


def fair(p: PlacementProblem, name: str) -> Schedule:
    solver = make_solver(name, iterations=50)
    return schedule_with_guarantees(p, solver, np.random.default_rng(0), fairness=TenantFairness(1.0, HOUR_S))


def held(p: PlacementProblem, schedule: Schedule) -> list[int]:
    """GPUs of each tenant."""
    found = [0] * len(p.tenant_names)
    for j, row in enumerate(schedule.choice):
        if row != POSTPONED:
            found[int(p.tenant[j])] += p.gpus_of(int(row))
    return found


class TestEntitlements:
    def test_backlogged_tenants_share_by_weight(self):
        p = problem(two(9, 9), gpus=6, tenants=[{"name": "a", "weight": 2}, {"name": "b"}])
        assert entitlements(p, TenantFairness(1.0, HOUR_S)).tolist() == pytest.approx([4, 2])

    def test_what_one_does_not_ask_for_is_the_others(self):
        assert entitlements(problem(two(1, 9), gpus=6), TenantFairness(1.0, HOUR_S)).tolist() == pytest.approx([1, 5])

    def test_past_use_counts_as_gpus_over_the_half_life(self):
        # 1 GPU for ever decays to half-life / ln 2 GPU-seconds: a has used 2 GPUs on average, b none
        used = 2 * HOUR_S / np.log(2)
        p = problem(two(9, 9), gpus=6, tenants=[{"name": "a", "usage_gpu_s": used}, {"name": "b"}])
        assert entitlements(p, TenantFairness(1.0, HOUR_S)).tolist() == pytest.approx([2, 4])
        assert entitlements(p, TenantFairness(1.0, HOUR_S, memory=0.0)).tolist() == pytest.approx([3, 3])

    @pytest.mark.parametrize("phi", [0.0, 0.3, 0.7, 1.0])
    def test_one_quantum_without_a_past_is_etf(self, phi):
        jobs = [*(job(f"a{i}", "a", gpu_w={"A": 50.0}) for i in range(60)),
                *(job(f"b{i}", "b", gpu_w={"A": 200.0}) for i in range(60))]  # fmt: skip
        p = problem(jobs, gpus=50)
        # busy power of a GPU is what a tenant's energy is counted by
        etf = Etf(phi).slices(QuantumProblem.make(50, [1, 1], [50, 200]))
        assert np.abs(entitlements(p, TenantFairness(phi, HOUR_S)) - etf).max() <= 1

    def test_gpus_count_by_the_weight_of_their_type(self):
        # 4 GPUs that count as 3 each and 6 that count as 1: 18, of which 9 are due to each tenant
        jobs = [*(job(f"a{i}", "a", times_s={"A": {1: 1000.0}}) for i in range(9)),
                *(job(f"b{i}", "b", times_s={"B": {1: 1000.0}}) for i in range(9))]  # fmt: skip
        nodes = [{"name": n, "gpu_type": n, "gpus": gpus, "idle_w": 100, "gpu_w": 100, "share_weight": weight}
                 for n, gpus, weight in (("A", 4, 3.0), ("B", 6, 1.0))]  # fmt: skip
        p = PlacementProblem.of(PlaceFile.model_validate({"nodes": nodes, "jobs": jobs}))
        fairness = TenantFairness(1.0, HOUR_S)
        assert entitlements(p, fairness).tolist() == pytest.approx([9, 9])
        assert protected(p, entitlements(p, fairness)).tolist() == [True] * 3 + [False] * 6 + [True] * 9
        few = PlacementProblem.of(PlaceFile.model_validate({"nodes": nodes, "jobs": jobs[:11]}))
        assert entitlements(few, fairness).tolist() == pytest.approx([16, 2])  # b asks for no more

    def test_a_job_that_could_have_several_types_asks_for_the_lightest(self):
        both = {"A": {2: 500.0}, "B": {2: 1000.0}}
        nodes = [{"name": n, "gpu_type": n, "gpus": 2, "idle_w": 100, "gpu_w": 100, "share_weight": weight}
                 for n, weight in (("A", 3.0), ("B", 0.5))]  # fmt: skip
        jobs = [job("a", "a", 2, times_s=both), job("b", "b", 2, times_s={"A": {2: 500.0}})]
        p = PlacementProblem.of(PlaceFile.model_validate({"nodes": nodes, "jobs": jobs}))
        assert entitlements(p, TenantFairness(1.0, HOUR_S)).tolist() == pytest.approx([1, 6])

    @pytest.mark.slow
    @given(st.floats(0.1, 10), st.integers(0, 9), st.integers(1, 9), st.floats(0, 4), st.sampled_from([0.0, 0.4, 1.0]))
    def test_one_weight_for_all_is_another_unit(self, weight, a, b, used, phi):
        def with_weight(weight):
            nodes = [{"name": "n", "gpu_type": "A", "gpus": 6, "idle_w": 100, "gpu_w": 100, "share_weight": weight}]
            usage = [{"name": "a", "usage_gpu_s": used * HOUR_S * weight}, {"name": "b"}]
            file = PlaceFile.model_validate({"nodes": nodes, "jobs": two(a, b), "tenants": usage})
            return PlacementProblem.of(file)

        fairness = TenantFairness(phi, HOUR_S)
        found = entitlements(with_weight(weight), fairness)
        assert found.tolist() == pytest.approx((weight * entitlements(with_weight(1.0), fairness)).tolist(), abs=1e-6)

    @pytest.mark.slow
    @given(
        st.integers(1, 40),
        st.lists(st.tuples(st.floats(0.1, 9), st.integers(0, 30), st.floats(0, 20)), min_size=1, max_size=6),
    )
    def test_water_is_level(self, total, drawn):
        rates, limits, before = (np.array(column, dtype=float) for column in zip(*drawn, strict=True))
        x = water_fill(float(total), rates, limits, before)
        assert x.sum() == pytest.approx(min(total, limits.sum()), abs=1e-6)
        assert (x >= 0).all()
        assert (x <= limits + 1e-9).all()
        level = (before + x) / rates
        for i, k in product(range(len(x)), repeat=2):  # nobody below the level while another, above it, has something
            if x[i] > 1e-9 and x[k] < limits[k] - 1e-9:
                assert level[i] <= level[k] + 1e-6 * max(1.0, level[i])

    @pytest.mark.slow
    @given(st.lists(st.integers(0, 12), min_size=2, max_size=4), st.integers(1, 12))
    def test_asking_for_more_gives_nobody_else_more(self, demands, extra):
        limits = np.array(demands, dtype=float)
        more = limits.copy()
        more[0] += extra
        ones, none = np.ones(len(limits)), np.zeros(len(limits))
        assert (water_fill(8.0, ones, more, none)[1:] <= water_fill(8.0, ones, limits, none)[1:] + 1e-6).all()
        # and what it gets, it could have had by asking for just that: no gain by asking for more than it uses
        fair = 8.0 / len(limits)
        assert water_fill(8.0, ones, more, none)[1:].min(initial=fair) >= min(fair, limits[1:].min(initial=fair)) - 1e-6


@pytest.mark.parametrize("name", SOLVERS)
class TestSchedules:
    def test_each_tenant_has_its_share_whatever_others_declare(self, name):
        jobs = [
            *(job(f"attack{i}", "attacker", due_s=1, tardiness_weight=1e9) for i in range(5)),
            *(job(f"work{i}", "victim", due_s=1e6, tardiness_weight=1e-6) for i in range(4)),
        ]
        p = problem(jobs)
        assert held(p, fair(p, name)) == [2, 2]

    def test_idle_shares_are_borrowed(self, name):
        p = problem([*(job(f"a{i}", "a", due_s=100, tardiness_weight=1.0) for i in range(5)), job("b0", "b")])
        schedule = fair(p, name)
        assert held(p, schedule) == [3, 1]

    def test_what_was_borrowed_is_reclaimed_and_no_more(self, name):
        running = [
            job(f"a{i}", "a", due_s=5000, tardiness_weight=1.0, current={"nodes": ["n"], "gpus": 1, "remaining_s": 900})
            for i in range(4)
        ]
        p = problem([*running, *(job(f"b{i}", "b", due_s=5000, tardiness_weight=1.0) for i in range(4))])
        schedule = fair(p, name)
        kept = sum(schedule.choice[j] == p.stay[j] for j in range(4))
        if name in ("easy", "fifo"):  # these stop nothing in one step; the entitled jobs are placed first even so
            assert held(p, schedule)[1] >= 2
        else:
            assert held(p, schedule) == [2, 2]
            assert kept == 2


@pytest.mark.slow
@settings(deadline=None, max_examples=12)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.floats(0, 1), st.booleans()), min_size=2, max_size=6
    ),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_any_fair_schedule_fits_and_no_protected_job_waits_for_another(drawn, phi):
    jobs = [job(f"j{i}", t, g, tardiness_weight=w, due_s=500) for i, (t, g, w, _) in enumerate(drawn)]
    free = 4
    for made, (_, g, _, runs) in zip(jobs, drawn, strict=True):
        if runs and g <= free:
            free -= g
            made["current"] = {"nodes": ["n"], "gpus": g, "remaining_s": 700.0}
    p = problem(jobs)
    exact = make_solver("exact", time_limit_s=10.0)
    fairness = TenantFairness(phi, HOUR_S)
    schedule = fair_schedule(p, fairness, lambda part: exact.solve(part, np.random.default_rng(0)).best)
    assert (schedule.free_gpus(p) >= 0).all()
    objective(p, schedule)  # raises if a job is not where it says
    first = protected(p, entitlements(p, fairness))
    # the oracle: the best schedule of the protected jobs alone; the fair one costs them no more
    if first.any() and not first.all() and len(p.tenant_names) > 1:
        alone = p.without(~first, p.node_gpus, None)
        best = exact.solve(alone, np.random.default_rng(0)).best
        rows = np.flatnonzero(first[p.row_job])
        ours = [int(r) for r in schedule.choice[first]]
        assert ours == [-1 if r < 0 else int(rows[r]) for r in best.choice]


def attack(fairness: dict | None, solver: str = "lookahead") -> dict[str, float]:
    """GPU-seconds of both tenants in the first hour, in which both ask for more than there is."""
    jobs = [
        *({"name": f"attack{i}", "tenant": "attacker", "submit_s": 0, "due_s": 1, "tardiness_weight": 1e9,
           "times_s": {"V100": [600]}, "requested_gpus": 1} for i in range(30)),
        *({"name": f"work{i}", "tenant": "victim", "submit_s": 0, "due_s": 36000, "tardiness_weight": 1e-4,
           "times_s": {"V100": [600]}, "requested_gpus": 1} for i in range(30)),
    ]  # fmt: skip
    document = {
        "workload": {"source": "jobs", "jobs": jobs},
        "nodes": [{"name": "n", "gpu_type": "V100", "gpus": 4, "idle_w": 100, "gpu_w": 250}],
        "policies": [{"solver": solver, "iterations": 50, "fairness": fairness, "limits": None}],
    }
    p = prepare(validate(document, Scenario), Path(), 0)
    done = run_policy(p.scenario, p.scenario.policies[0], p.cluster, p.table, 0, until_s=3600.0)
    registry, found = done.controller.registry, {"attacker": 0.0, "victim": 0.0}
    for handle, account in done.controller.ledger.jobs.items():
        found[registry.tenants[registry.job("tenant")[handle]]] += account.gpu_us / 1e6
    for handle, account in done.controller.ledger._segments.items():  # of jobs that still run
        found[registry.tenants[registry.job("tenant")[handle]]] += account.gpu_us / 1e6
    return found


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["lookahead", "random-greedy"])
def test_thirty_jobs_of_huge_declared_urgency_get_their_share_and_no_more(solver):
    without = attack(None, solver)
    assert without["attacker"] > 100 * max(1.0, without["victim"])
    fair = attack({"phi": 1.0}, solver)
    assert fair["attacker"] == pytest.approx(fair["victim"], rel=0.1)
    assert fair["attacker"] + fair["victim"] == pytest.approx(4 * 3600, rel=0.01)


def test_what_was_received_is_set_against_what_was_due():
    """Two GPUs: first come, first served gives them to a for 1000 s; b is due one of them, and gets none till then."""
    jobs = [
        *({"name": f"a{i}", "tenant": "a", "submit_s": 0, "times_s": {"V100": [1000]}} for i in range(2)),
        {"name": "b", "tenant": "b", "submit_s": 0, "times_s": {"V100": [500]}},
    ]
    document = {
        "workload": {"source": "jobs", "jobs": jobs},
        "nodes": [{"name": "n", "gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 250}],
        "policies": [{"solver": "fifo"}, {"name": "fair", "solver": "fifo", "fairness": {}}],
    }
    p = prepare(validate(document, Scenario), Path(), 0)
    (result,), _ = run_seeds([p])
    first, fair = (policy.fairness for policy in result.policies)
    assert first is not None
    assert fair is not None
    by_tenant = {tenant.tenant: tenant for tenant in first.tenants}
    # b is due one GPU from 0 to 1500 s, and has one from 1000 s on
    assert by_tenant["b"].entitled_gpu_hours == pytest.approx(1500 / 3600)
    assert by_tenant["b"].kept_share == pytest.approx(500 / 1500)
    assert by_tenant["a"].kept_share == pytest.approx(1.0)
    assert first.worst_share == pytest.approx(1 / 3)
    assert fair.worst_share == pytest.approx(1.0)
    assert "fairness" not in result.policies[0].model_copy(update={"fairness": None}).model_dump()


@pytest.mark.parametrize(("weight", "due_s", "kept"), [(1.0, 1200, 600 / 1200), (3.0, 3000, 1800 / 3000)])
def test_what_was_received_counts_by_the_weight_of_the_type(weight, due_s, kept):
    """Two jobs want the one A100, for 600 s each; the T4 is idle. The second is due half of all, then what it wants."""
    jobs = [{"name": name, "tenant": name, "submit_s": 0, "times_s": {"A100": [600]}} for name in ("a", "b")]
    nodes = [
        {"name": kind, "gpu_type": kind, "gpus": 1, "idle_w": 100, "gpu_w": 250, "share_weight": each}
        for kind, each in (("A100", weight), ("T4", 1.0))
    ]
    document = {
        "workload": {"source": "jobs", "jobs": jobs}, "nodes": nodes,
        "policies": [{"solver": "fifo"}, {"name": "fair", "solver": "fifo", "fairness": {}}],
    }  # fmt: skip
    (result,), _ = run_seeds([prepare(validate(document, Scenario), Path(), 0)])
    fairness = result.policies[0].fairness
    assert fairness is not None
    a, b = sorted(fairness.tenants, key=lambda tenant: tenant.tenant)
    assert (a.received_gpu_hours, b.received_gpu_hours) == pytest.approx((weight / 6, weight / 6))
    assert b.entitled_gpu_hours == pytest.approx(due_s / 3600)
    assert b.kept_share == pytest.approx(kept)
    assert a.kept_share == pytest.approx(1.0)


class TestWords:
    def test_a_job_beyond_the_share_of_its_tenant_says_so(self):
        """Of 4 GPUs each of two tenants with 4 jobs is entitled to 2."""
        p = problem(two(4, 4))
        explainer = Explainer(p, fair(p, "lookahead"))
        waiting = [j for j, row in enumerate(explainer.schedule.choice) if row == POSTPONED]
        assert len(waiting) == 4
        for why in map(explainer.explain, waiting):
            assert why.reason is Reason.OVER_SHARE
            assert (why.received_gpus, why.entitled_gpus, why.used_share) == (2, pytest.approx(2.0), 1.0)
            assert why.sentence == (
                f"{why.job} waits: too few GPUs are free, it needs at least 1 GPU, and it is beyond its tenant's "
                f"share: {why.tenant} has 2 GPUs, and is entitled to 2"
            )
            assert PlacementExplanation.of(asdict(why)) == why

    def test_past_use_is_told_where_it_is_above_the_share(self):
        used = [{"name": "a", "usage_gpu_s": 3 * 14400.0}, {"name": "b", "usage_gpu_s": 14400.0}]
        p = problem(two(4, 4), tenants=used)
        explainer = Explainer(p, fair(p, "lookahead"))
        said = {explainer.explain(j).sentence for j in range(len(p)) if explainer.schedule.choice[j] == POSTPONED}
        assert any("as it has used 1.5 times its share (half-life 60 min)" in sentence for sentence in said)

    def test_a_job_within_its_share_waits_for_room_alone(self):
        p = problem([job("a0", "a", 4), job("b0", "b", 4)])
        explainer = Explainer(p, fair(p, "lookahead"))
        reasons = {explainer.explain(j).reason for j in range(2) if explainer.schedule.choice[j] == POSTPONED}
        assert reasons == {Reason.NO_ROOM}
        assert Explainer(p, replace(explainer.schedule, shares=None)).explain(0).entitled_gpus is None
