"""Published schedulers against cases worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.model.errors import InputError
from commonwatt.model.jobs import Received
from commonwatt.model.place_file import PlaceFile
from commonwatt.model.policies import RESIZING
from commonwatt.placement import POSTPONED, PlacementProblem
from commonwatt.placement._gavel import Gavel, shares
from commonwatt.placement._objective import check
from commonwatt.placement._peers import DominantShare, LeastAttainedService, Menu, ShortestService
from commonwatt.placement._solvers import PEERS, make_solver
from commonwatt.placement._themis import Auction, Themis

A, B = 0, 1  # classes: one GPU of type A, two of type B


def problem(jobs, *, a=1, b=2, idle_w=100, **more) -> PlacementProblem:
    node = {"idle_w": idle_w, "gpu_w": 100}
    nodes = [{"name": "a", "gpu_type": "A", "gpus": a, **node}, {"name": "b", "gpu_type": "B", "gpus": b, **node}]
    file = {"now_s": 0, "interval_s": 300, "nodes": nodes, "jobs": jobs}
    return replace(PlacementProblem.of(PlaceFile.model_validate(file)), **more)


def job(name, a_s, b_s, gpus=1, **more):
    times = {"A": {gpus: a_s}, "B": {gpus: b_s}}
    return {"name": name, "tardiness_weight": 0, "times_s": {t: row for t, row in times.items() if row[gpus]}, **more}


def chosen(found, of):
    """Class and nodes of each job that got some."""
    rows = {of.job_names[j]: int(of.klass[found.choice[j]]) for j in np.flatnonzero(found.choice != POSTPONED)}
    check(of, found)
    return rows


def solved(solver, of):
    return chosen(solver.solve(of, np.random.default_rng(0)).best, of)


TWO = [job("j1", 100, 200), job("j2", 100, 400)]


@pytest.mark.parametrize(
    ("objective", "on_a"),
    [
        # speeds over those on a third of A and two thirds of B: .75 + .75 a = 2 - 1.5 a
        ("max-min", (5 / 9, 4 / 9)),
        # both end at once: .005 + .005 a = .01 - .0075 a
        ("makespan", (0.4, 0.6)),
        # alone: 300 s to the next round, and 150 s or 200 s; (.005 + .005 a) 450 = (.01 - .0075 a) 500
        ("finish-time", (2.75 / 6, 3.25 / 6)),
        # 1 and 3 iterations/s on A, .5 and .75 on B
        ("max-sum", (0.0, 1.0)),
    ],
)
def test_shares_of_two_jobs_by_hand(objective, on_a):
    of = problem(TWO, iterations=np.array([100.0, 300.0]))
    x = shares(of, Menu.of(of), objective)
    assert x[:, A] == pytest.approx(on_a, abs=1e-3)
    assert x.sum(axis=1) == pytest.approx([1, 1], abs=1e-3)


def test_min_jct_is_near_the_optimum_by_hand():
    of = problem(TWO)
    x = shares(of, Menu.of(of), "min-jct")
    speed = (x / Menu.of(of).whole_s).sum(axis=1)
    a = (0.01 - 0.005 * 1.5**0.5) / (0.0075 + 0.005 * 1.5**0.5)  # where the derivative is 0
    best_s = 1 / (0.005 + 0.005 * a) + 1 / (0.01 - 0.0075 * a)
    assert best_s - 1e-3 <= (1 / speed).sum() <= 1.03 * best_s


def test_finish_time_counts_age_and_what_is_left():
    # the first job has waited 300 s longer: it needs more speed to end at the same multiple of its time alone
    jobs = [job("old", 1000, 1000, submit_s=0), job("new", 1000, 1000, submit_s=300)]
    of = replace(problem(jobs, a=1, b=1), now_s=300.0, node_gpus=np.array([1, 0]))
    x = shares(of, Menu.of(of), "finish-time")
    old, new = (x / 1000)[:, A]
    # alone: half the only GPU, after 300 s: 2300 s; (300 + 1/old) / 2300 = (1/new) / 2300, old + new = 1/1000
    assert 300 + 1 / old == pytest.approx(1 / new, rel=1e-3)
    assert old + new == pytest.approx(1e-3, rel=1e-3)


def test_a_round_goes_to_the_job_that_received_less_of_its_share():
    jobs = [job("j1", 100, None), job("j2", 100, None)]
    had = Received(np.array([[300.0, 0], [0.0, 0]]), np.array([300.0, 0]), np.array([300.0, 0]), 2)
    assert solved(Gavel("max-min"), problem(jobs)) == {"j1": A}
    assert solved(Gavel("max-min"), problem(jobs, received=had)) == {"j2": A}


def test_shares_beside_zero_are_still_used_for_free_gpus():
    # max-sum gives j1 no share of anything while j2 and j3 are worth more, but there is a GPU left
    jobs = [job("j1", 400, 400), job("j2", 100, 200)]
    of = problem(jobs, iterations=np.array([1.0, 100.0]))
    assert solved(Gavel("max-sum"), of) == {"j1": B, "j2": A}


def test_fifo_lets_nobody_pass_and_takes_the_fastest_type_anew():
    jobs = [job("j1", 200, 100, 2), job("j2", 100, 200, 2), job("j3", 100, 200)]
    assert solved(Gavel("fifo"), problem(jobs, a=1, b=2)) == {"j1": B}  # j3 would fit on A
    running = [job("j1", 100, 200, current={"nodes": ["b"], "gpus": 1, "remaining_s": 150})]
    assert solved(Gavel("fifo"), problem(running)) == {"j1": A}


def test_las_goes_by_queue_then_by_arrival():
    jobs = [job(name, 100, None, submit_s=s) for name, s in (("j1", 0), ("j2", 1), ("j3", 2))]
    had = Received(np.zeros((3, 2)), np.array([4000.0, 3599.0, 100.0]), np.zeros(2), 3)
    of = problem(jobs, a=1, received=had)
    assert solved(LeastAttainedService(), of) == {"j2": A}  # not j3, which had less but is in the same queue
    assert solved(LeastAttainedService((1000.0, 3700.0)), of) == {"j3": A}
    assert solved(LeastAttainedService((5000.0,)), of) == {"j1": A}


def test_las_stops_a_running_job_for_an_earlier_queue_and_leaves_others_where_they_are():
    jobs = [
        job("long", 100, None, submit_s=0, current={"nodes": ["a"], "gpus": 1, "remaining_s": 60}),
        job("stays", 100, 200, submit_s=0, current={"nodes": ["b"], "gpus": 1, "remaining_s": 90}),
        job("new", 100, None, submit_s=9),
    ]
    had = Received(np.zeros((3, 2)), np.array([9000.0, 0.0, 0.0]), np.zeros(2), 3)
    assert solved(LeastAttainedService(), problem(jobs, received=had)) == {"stays": B, "new": A}


def test_qssf_takes_the_least_gpu_time_first_stops_nobody_and_lets_nobody_pass():
    jobs = [
        job("runs", 100, None, submit_s=0, current={"nodes": ["a"], "gpus": 1, "remaining_s": 5000}),
        job("two", None, 90, 2, submit_s=1),  # 180 GPU-s
        job("one", None, 150, submit_s=2),  # 150 GPU-s
        job("tiny", 160, None, submit_s=3),  # 160 GPU-s, and its GPU is taken
        job("wide", None, 10, submit_s=4, requested_gpus=1),  # 10 GPU-s
    ]
    assert solved(ShortestService(), problem(jobs)) == {"runs": A, "wide": B, "one": B}
    assert solved(ShortestService(), problem(jobs[:4])) == {"runs": A, "one": B}  # two may not pass tiny


def shared(jobs, *, gpus=18, weights=(1, 1), cpus=9.0, memory=18.0, needs=None):
    """A node for jobs of the tenants a and b; *needs*: CPUs and memory of a job of each."""
    nodes = [{"name": "a", "gpu_type": "A", "gpus": gpus, "idle_w": 100, "gpu_w": 100}]
    tenants = [{"name": name, "weight": weight} for name, weight in zip("ab", weights, strict=True)]
    file = {"now_s": 100, "interval_s": 300, "nodes": nodes, "jobs": jobs, "tenants": tenants}
    of = PlacementProblem.of(PlaceFile.model_validate(file))
    if needs is None:
        return of
    each = [needs[of.tenant_names[of.tenant[j]]] for j in of.row_job]
    return replace(of, node_cpus_memory=np.array([[cpus, memory]]), cpus_memory=np.array(each, dtype=float))


def counts(of):
    """How many jobs each tenant runs."""
    found = DominantShare().solve(of, np.random.default_rng(0)).best
    check(of, found)
    runs = [of.tenant_names[of.tenant[j]] for j in np.flatnonzero(found.choice != POSTPONED)]
    return {name: runs.count(name) for name in "ab"}


def tasks(*, number=10, gpus=1):
    return [
        job(f"{tenant}{k}", 100, None, gpus, tenant=tenant, submit_s=k)
        for k in range(number)
        for tenant in "ba"
    ]  # fmt: skip


def test_dominant_shares_of_the_papers_example():
    """9 CPUs, 18 GB; <1 CPU, 4 GB> and <3 CPUs, 1 GB>: three tasks against two, both with two thirds (Fig. 3)."""
    assert counts(shared(tasks(), needs={"a": (1, 4), "b": (3, 1)})) == {"a": 3, "b": 2}


def test_dominant_shares_by_weight_and_of_gpus_alone():
    assert counts(shared(tasks(), gpus=9, weights=(2, 1))) == {"a": 6, "b": 3}
    # two GPUs against a third of the CPUs each: a's dominant resource is GPUs, b's CPUs
    jobs = [job(f"a{k}", 100, None, 2, tenant="a") for k in range(9)] + [
        job(f"b{k}", 100, None, 1, tenant="b") for k in range(9)
    ]
    assert counts(shared(jobs, gpus=12, needs={"a": (0, 0), "b": (1.5, 0)})) == {"a": 4, "b": 4}


def test_what_runs_counts_towards_the_dominant_share_and_is_not_stopped():
    runs = [
        job(f"r{k}", 100, None, tenant="a", current={"nodes": ["a"], "gpus": 1, "remaining_s": 50}) for k in range(6)
    ]
    of = shared([*runs, *tasks()], gpus=9)
    assert counts(of) == {"a": 6, "b": 3}


def test_a_job_that_does_not_fit_is_passed_within_its_tenant():
    runs = job("runs", 100, None, tenant="b", current={"nodes": ["a"], "gpus": 1, "remaining_s": 50})
    jobs = [runs, job("large", 100, None, 5, tenant="a"), job("small", 100, None, tenant="a")]
    assert counts(shared([*jobs, *tasks(number=2)], gpus=5)) == {"a": 3, "b": 2}


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_nobody_with_less_waits_where_its_job_would_fit(data):
    """At the end, no waiting job fits; and whoever was served last had no more than one who waits, before it."""
    number = data.draw(st.integers(2, 8))
    jobs = [
        job(f"j{k}", 100, None, data.draw(st.integers(1, 4)), tenant=data.draw(st.sampled_from("ab")), submit_s=k)
        for k in range(number)
    ]
    of = shared(jobs, gpus=data.draw(st.integers(4, 9)))
    found = DominantShare().solve(of, np.random.default_rng(0)).best
    size = Menu.of(of).gpus
    runs = found.choice != POSTPONED
    free = of.node_gpus.sum() - size[runs].sum()
    assert (size[~runs] > free).all()
    had = np.array([size[runs & (of.tenant == t)].sum() for t in range(len(of.tenant_names))])
    for t in range(len(had)):
        for other in range(len(had)):
            waits, last = ~runs & (of.tenant == t), runs & (of.tenant == other)
            if t != other and waits.any() and last.any():
                assert had[other] - size[last].max() <= had[t] or size[waits].min() > size[last].min()


@pytest.mark.parametrize("name", sorted(set(PEERS) - set(RESIZING)))
def test_malleable_jobs_that_ask_for_nothing_are_refused(name):
    of = problem([{"name": "j1", "tardiness_weight": 0, "times_s": {"B": [100, 60]}}])
    with pytest.raises(InputError, match=r"jobs.j1.requested_gpus.*does not resize"):
        make_solver(name).solve(of, np.random.default_rng(0))


def test_auction_pays_for_what_it_keeps_from_others_by_hand():
    # one GPU; both are 300 s old. j1: 400 s over 100 s with it, 460 s without (a round of 60 s); j2: 1300 s, 1360 s
    jobs = [job("j1", 100, None), job("j2", 1000, None)]
    of = replace(problem(jobs), now_s=300.0, interval_s=60.0)
    won = dict.fromkeys(("j1", "j2"), 0)
    for seed in range(200):
        found = Themis(0.0).solve(of, np.random.default_rng(seed)).best
        for name in chosen(found, of):
            won[name] += 1
    auction = Auction(np.log([[460 / 400], [1360 / 1300]]), np.array([1, 1]), np.array([1]))
    assert auction.winners().tolist() == [0, -1]
    # without j1 in the auction j2 would have bid 1000/1300, beside it has 1000/1360
    assert auction.kept(auction.winners()).tolist() == pytest.approx([1300 / 1360, 1])
    # j2 has it where j1 does not keep it and then comes second of the two losers: some 4 of 200 are expected
    assert won["j1"] + won["j2"] == 200
    assert 1 <= won["j2"] <= 16


def test_auction_offers_gpus_to_those_furthest_from_their_fair_finish():
    # an equal share is a third of A and two thirds of B: 300, 270 and 1500 s. Without GPUs in this round the jobs would
    # take 1000, 740 and 1610 s: only j1, the worst off, is offered any; j3 gets what is left, j2 finds nothing
    jobs = [job("j1", 100, None), job("j2", 90, None, submit_s=250), job("j3", None, 1000, submit_s=290)]
    of = replace(problem(jobs), now_s=300.0, interval_s=600.0)
    assert solved(Themis(0.8), of) == {"j1": A, "j3": B}


@pytest.mark.parametrize("seed", range(6))
def test_auction_finds_the_largest_product_of_bids(seed):
    rng = np.random.default_rng(seed)
    gpus, room = rng.integers(1, 4, 6), np.array([4, 3])
    worth = rng.normal(0.3, 0.4, (6, 2))
    auction = Auction(worth, gpus, room)

    def best(but):
        least = 0.0
        for won in product((-1, 0, 1), repeat=6):
            used = [sum(g for g, k in zip(gpus, won, strict=True) if k == c) for c in (0, 1)]
            if (but < 0 or won[but] < 0) and used[0] <= room[0] and used[1] <= room[1]:
                least = max(least, sum(worth[b, k] for b, k in enumerate(won) if k >= 0))
        return least

    won = auction.winners()
    assert auction.paid(won) == pytest.approx(best(-1), abs=1e-6)
    for b in np.flatnonzero(won >= 0):
        expected = np.exp(auction.paid(won, b) - best(int(b)))
        assert auction.kept(won)[b] == pytest.approx(expected, abs=1e-6)
        assert 0 < auction.kept(won)[b] <= 1


def test_max_sum_needs_iterations():
    of = problem(TWO, iterations=np.array([100.0, np.nan]))
    with pytest.raises(InputError, match=r"jobs.j2.iterations"):
        Gavel("max-sum").solve(of, np.random.default_rng(0))


@pytest.mark.parametrize("name", PEERS)
def test_gangs_that_do_not_fit_beside_each_other_wait(name):
    """GPUs are enough for the class, not on the nodes: 3 + 3 + 2 GPUs on two nodes of 4."""
    node = {"name": "n", "count": 2, "gpu_type": "A", "gpus": 4, "idle_w": 1, "gpu_w": 1}
    jobs = [job(f"j{i}", 100, None, gpus) for i, gpus in enumerate((3, 3, 2))]
    of = PlacementProblem.of(PlaceFile.model_validate({"nodes": [node], "jobs": jobs}))
    placed = solved(make_solver(name), of)
    assert len(placed) == 2


@pytest.mark.parametrize("name", sorted(PEERS))
def test_a_running_job_stays_where_another_finds_room_beside_it(name):
    """Of two equal nodes one is free: the larger job takes it, though larger ones choose first."""
    node = {"name": "n", "count": 2, "gpu_type": "A", "gpus": 8, "idle_w": 100, "gpu_w": 100}
    runs = {"current": {"nodes": ["n-1"], "gpus": 1, "remaining_s": 8000}}
    jobs = [job("runs", 9000, None, **runs), job("large", 1000, None, gpus=8)]
    of = PlacementProblem.of(PlaceFile.model_validate({"now_s": 0, "interval_s": 300, "nodes": [node], "jobs": jobs}))
    of = replace(of, iterations=np.array([1000.0, 1000.0]), round_s=360.0)
    found = make_solver(name).solve(of, np.random.default_rng(0)).best
    check(of, found)
    assert found.choice[0] == of.stay[0]
    assert found.choice[1] != POSTPONED


@pytest.mark.parametrize("name", sorted(PEERS))
def test_nothing_is_stopped_where_nothing_may_be(name):
    """Each of two nodes has a small job; the large one could start if they came together."""
    node = {"name": "n", "count": 2, "gpu_type": "A", "gpus": 8, "idle_w": 100, "gpu_w": 100}
    small = [job(f"s{k}", 9000, None, current={"nodes": [f"n-{k}"], "gpus": 1, "remaining_s": 8000}) for k in (1, 2)]
    file = {"now_s": 0, "interval_s": 300, "nodes": [node], "jobs": [*small, job("large", 1000, None, gpus=8)]}
    of = replace(PlacementProblem.of(PlaceFile.model_validate(file)), iterations=np.full(3, 1000.0), round_s=360.0)
    found = make_solver(name).solve(replace(of, locked=True), np.random.default_rng(0)).best
    check(of, found)
    assert found.choice.tolist() == [*of.stay[:2].tolist(), POSTPONED]
