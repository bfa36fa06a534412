"""Published schedulers that resize jobs, against cases worked out by hand and against the best of all choices."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.placement import POSTPONED
from commonwatt.placement._objective import check
from commonwatt.placement._pollux import SMALL, Pollux, speedups
from commonwatt.placement._powerflow import PowerFlow
from commonwatt.placement._resizing import Open, Sia, restart_factor
from commonwatt.placement._solvers import make_solver
from tests.placement.test_peers import A, B, problem


def elastic(name, times, *, on=None, gpus=1, remaining_s=50, **more):
    """A job of several sizes, which runs *on* a node with so many *gpus*."""
    runs = {"current": {"nodes": [on], "gpus": gpus, "remaining_s": remaining_s}} if on else {}
    return {"name": name, "tardiness_weight": 0, "times_s": times, **runs, **more}


def shapes(found, of):
    """Class and number of GPUs of each job that got some."""
    check(of, found)
    rows = {of.job_names[j]: int(found.choice[j]) for j in np.flatnonzero(found.choice != POSTPONED)}
    return {name: (int(of.klass[row]), of.gpus_of(row)) for name, row in rows.items()}


# -- Sia


@pytest.mark.parametrize(
    ("now_s", "restart_s", "expected"),
    [
        # goodput of j1: 4 on two A, 2 on one A or two B, 1 on one B; of j2: 1.25 on two, 1 on one
        (1000.0, 0.0, {"j1": (A, 2), "j2": (B, 2)}),  # 4**-.5 + 1.25**-.5 = 1.394
        # what changes counts .909 as much: (.909 * 4)**-.5 + (.909 * 1.25)**-.5 = 1.462, staying 2
        (1000.0, 100.0, {"j1": (A, 2), "j2": (B, 2)}),
        # .333 as much: j2 on two B would be 1.549, more than the 1.1 of waiting; .866 + 1.1 = 1.966, staying 2
        (50.0, 100.0, {"j1": (A, 2)}),
        (10.0, 100.0, {"j1": (B, 1), "j2": (A, 1)}),  # .091 as much: 1.658 + 1.1 = 2.758, staying 2
    ],
)
def test_sia_weighs_goodput_against_restarts_by_hand(now_s, restart_s, expected):
    jobs = [
        elastic("j1", {"A": [100, 50], "B": [200, 100]}, on="b"),
        elastic("j2", {"A": [100, 80], "B": [100, 80]}, on="a"),
    ]
    of = problem(jobs, a=2, b=2)
    of = replace(of, now_s=now_s, restart_s=np.full(2, restart_s), starts=np.ones(2, dtype=np.int64))
    whole_s = of.time_s.copy()
    whole_s[of.stay] = [200, 100]
    assert shapes(Sia().solve(replace(of, whole_s=whole_s), np.random.default_rng(0)).best, of) == expected


def test_sia_starts_jobs_with_their_least_and_at_most_doubles_them():
    times = {"B": {1: 100, 2: 50, 4: 25}}
    waits, runs = elastic("waits", times), elastic("runs", times, on="b", gpus=1)
    sia = Sia()
    of = problem([waits], b=4)
    assert shapes(sia.solve(of, np.random.default_rng(0)).best, of) == {"waits": (B, 1)}
    of = problem([runs], b=4)
    whole_s = of.time_s.copy()
    whole_s[of.stay] = [100]
    of = replace(of, whole_s=whole_s, now_s=1e6)
    assert shapes(sia.solve(of, np.random.default_rng(0)).best, of) == {"runs": (B, 2)}


@pytest.mark.parametrize("seed", range(8))
def test_sia_finds_the_least_of_all_assignments(seed):
    rng = np.random.default_rng(seed)
    jobs = []
    for j in range(4):
        times = {t: {g: float(rng.uniform(50, 100)) * s / g**0.7 for g in (1, 2)} for t, s in (("A", 1), ("B", 2))}
        jobs.append(elastic(f"j{j}", times, on=("a", "b", None, None)[j]))
    of = problem(jobs, a=2, b=2)
    whole_s = of.time_s.copy()
    for j in (0, 1):
        alike = (of.row_job == j) & (of.klass == of.klass[of.stay[j]]) & (of.width * of.per_node == 1)
        whole_s[of.stay[j]] = whole_s[alike][0]
    starts = np.array([3, 1, 0, 0])
    of = replace(of, now_s=900.0, restart_s=np.full(4, 100.0), starts=starts, whole_s=whole_s)

    def cost(job, klass, gpus):
        if not gpus:
            return 1.1
        own = [(int(of.klass[r]), of.gpus_of(r), float(whole_s[r])) for r in np.flatnonzero(of.row_job == job)]
        if job > 1:
            own = [row for row in own if row[1] == 1]  # it starts with its least
        found = [time_s for k, g, time_s in own if (k, g) == (klass, gpus)]
        if not found:
            return np.inf
        worst_s = max(time_s for *_, time_s in own)
        same = job < 2 and (klass, gpus) == (int(of.klass[of.stay[job]]), 1)
        factor = (900 - (starts[job] - 1) * 100) / 1000 if job < 2 and not same else 1.0
        return (factor * worst_s / found[0]) ** -0.5

    menu = [(0, 0), (A, 1), (A, 2), (B, 1), (B, 2)]
    best = min(
        sum(cost(j, *one) for j, one in enumerate(all_))
        for all_ in product(menu, repeat=4)
        if all(sum(g for k, g in all_ if k == klass) <= 2 for klass in (A, B))
    )
    got = shapes(Sia().solve(of, np.random.default_rng(0)).best, of)
    assert sum(cost(j, *got.get(f"j{j}", (0, 0))) for j in range(4)) == pytest.approx(best, rel=2e-4)


# -- Pollux


def known(of, whole, **more):
    """*of* with the time of the whole job (s) in what each runs in."""
    whole_s = of.time_s.copy()
    for j, time_s in whole.items():
        whole_s[of.stay[j]] = time_s
    return replace(of, whole_s=whole_s, **more)


def every(of) -> Open:
    """All configurations, as a scheduler would see those it may pick from."""
    rows = np.arange(len(of.klass))
    size = of.width * of.per_node
    return Open(rows, of.row_job, of.klass, size, np.bincount(of.node_class, of.node_gpus).astype(np.int64))


def test_speedups_are_over_a_fair_share_by_hand():
    # 4 GPUs of one type, two jobs: two each
    jobs = [elastic("j1", {"B": {1: 100, 2: 50, 4: 25}}), elastic("j2", {"B": {1: 100, 2: 80, 4: 70}})]
    of = problem(jobs, a=1, b=4)
    among = replace(every(of), room=np.array([0, 4]))
    found = dict(zip(zip(of.row_job.tolist(), among.size.tolist(), strict=True), speedups(of, among), strict=True))
    assert found == pytest.approx({(0, 1): 0.5, (0, 2): 1, (0, 4): 2, (1, 1): 0.8, (1, 2): 1, (1, 4): 80 / 70})
    # one job that needs 4, with a share of 2 of 4: half its speed
    of = problem([elastic("j1", {"B": {4: 100}}), elastic("j2", {"B": {1: 100}})], a=1, b=4)
    among = replace(every(of), room=np.array([0, 4]))
    assert speedups(of, among) == pytest.approx([2.0, 1.0])


@pytest.mark.parametrize(
    ("now_s", "restart_s", "expected"),
    [
        # speed-ups: j1 has 1 on two GPUs, 2 on four; j2 .8 on one, 1 on two.
        # (2, 1): harmonic mean 2 / (1 + 1/.8) = .889; (2, 2): 1
        (1000.0, 0.0, {"j1": (B, 2), "j2": (B, 2)}),
        # j2 on two counts .9 of it: 2 / (1 + 1/.9) = .947, still more
        (900.0, 100.0, {"j1": (B, 2), "j2": (B, 2)}),
        # .333 of it: 2 / (1 + 3) = .5
        (50.0, 100.0, {"j1": (B, 2), "j2": (B, 1)}),
    ],
)
def test_pollux_weighs_speedups_against_restarts_by_hand(now_s, restart_s, expected):
    times = {"B": {1: 100, 2: 50, 4: 25}}, {"B": {1: 100, 2: 80, 4: 70}}
    jobs = [elastic("j1", times[0], on="b", gpus=2), elastic("j2", times[1], on="b", gpus=1)]
    of = replace(problem(jobs, a=1, b=4), node_gpus=np.array([0, 4]))
    of = known(of, {0: 50, 1: 100}, now_s=now_s, restart_s=np.full(2, restart_s), starts=np.ones(2, dtype=np.int64))
    assert shapes(Pollux().solve(of, np.random.default_rng(0)).best, of) == expected


def test_pollux_gives_a_free_gpu_to_the_job_that_gains_more():
    # one GPU is free, and one job gains more by it, whatever the power
    flat, linear = {"B": {1: 100, 2: 90}}, {"B": {1: 100, 2: 50}}
    jobs = [elastic("flat", flat, on="b"), elastic("linear", linear, on="b")]
    of = known(replace(problem(jobs, a=1, b=3), node_gpus=np.array([0, 3])), {0: 100, 1: 100}, now_s=1e6)
    for power in (-1.0, 1.0):
        found = Pollux(fairness_power=power).solve(of, np.random.default_rng(0)).best
        assert shapes(found, of) == {"flat": (B, 1), "linear": (B, 2)}


@pytest.mark.parametrize("seed", range(6))
def test_pollux_finds_the_best_of_all_choices(seed):
    rng = np.random.default_rng(seed)
    jobs = []
    for j in range(5):
        times = {t: {g: float(rng.uniform(50, 100)) * s / g**0.7 for g in (1, 2)} for t, s in (("A", 1), ("B", 2))}
        jobs.append(elastic(f"j{j}", times, on=("a", "b", "b", None, None)[j]))
    of = problem(jobs, a=3, b=4)
    size = of.width * of.per_node
    alike = [(of.row_job == j) & (of.klass == of.klass[of.stay[j]]) & (size == 1) for j in range(3)]
    of = known(of, {j: of.time_s[own][0] for j, own in enumerate(alike)}, now_s=900.0, restart_s=np.full(5, 100.0))
    of = replace(of, starts=np.array([3, 1, 2, 0, 0]))
    least = size == 1
    among = every(of)
    value = restart_factor(of, among, waiting=True) * speedups(of, among) + SMALL
    options = [[-1, *np.flatnonzero((of.row_job == j) & (least | (of.stay[j] >= 0)))] for j in range(5)]

    def cost(choice):
        used = np.zeros(2)
        for r in choice:
            if r >= 0:
                used[of.klass[r]] += among.size[r]
        return np.inf if (used > among.room).any() else sum(1 / (value[r] if r >= 0 else SMALL) for r in choice)

    best = min(cost(choice) for choice in product(*options))
    found = Pollux().solve(of, np.random.default_rng(seed)).best
    check(of, found)
    assert cost(found.choice) == pytest.approx(best, rel=1e-9)


# -- PowerFlow


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        # energy to the end, GPU s: j1 100 on one, 120 on two; j2 200 on either, sooner on two; 300 at least
        (1.0, {"j1": (B, 1), "j2": (B, 2)}),
        (1.06, {"j1": (B, 1), "j2": (B, 2)}),
        (1.07, {"j1": (B, 2), "j2": (B, 2)}),  # 320
    ],
)
def test_powerflow_starts_thriftily_and_speeds_up_within_its_budget_by_hand(budget, expected):
    jobs = [
        elastic("j1", {"B": {1: 100, 2: 60, 4: 40}}, on="b", gpus=1, remaining_s=100),
        elastic("j2", {"B": {1: 200, 2: 100, 4: 50}}, on="b", gpus=1, remaining_s=200),
    ]
    of = replace(problem(jobs, a=1, b=4, idle_w=0), node_gpus=np.array([0, 4]))
    assert shapes(PowerFlow(budget).solve(of, np.random.default_rng(0)).best, of) == expected


def test_powerflow_takes_what_shortens_most_for_each_joule():
    # one GPU is free: j1 would end 40 s sooner for 20 GPU s, j2 100 s for 200
    jobs = [
        elastic("j1", {"B": {1: 100, 2: 60}}, on="b", gpus=1, remaining_s=100),
        elastic("j2", {"B": {1: 400, 2: 300}}, on="b", gpus=1, remaining_s=400),
    ]
    of = replace(problem(jobs, a=1, b=3, idle_w=0), node_gpus=np.array([0, 3]))
    found = PowerFlow(2.0).solve(of, np.random.default_rng(0)).best
    assert shapes(found, of) == {"j1": (B, 2), "j2": (B, 1)}


def test_powerflow_limits_power_where_the_budget_is_short():
    # the same GPU at full power, or at half of it for 1.25 times as long, which takes .625 of the energy
    of = problem([elastic("j1", {"A": {1: 100}, "B": {1: 125}})], a=1, b=1, idle_w=0)
    assert of.klass.tolist() == [A, B]
    limited = replace(
        of, klass=np.array([A, A]), power_limit=np.array([1.0, 0.5]), node_cost=of.node_cost * [1, 0.5],
        node_gpus=np.array([1, 0]),
    )  # fmt: skip
    for budget, limit in ((1.0, 0.5), (1.59, 0.5), (1.61, 1.0)):
        found = PowerFlow(budget).solve(limited, np.random.default_rng(0)).best
        assert limited.limits[found.choice[0]] == limit


@settings(max_examples=40, deadline=None)
@given(data=st.data(), budget=st.floats(1.0, 2.0))
def test_powerflow_keeps_its_budget_and_every_resizing_scheduler_its_room(data, budget):
    count = data.draw(st.integers(1, 6))
    jobs = []
    for j in range(count):
        base, scaling = data.draw(st.floats(10, 1e4)), data.draw(st.floats(0.3, 1.0))
        times = {t: {g: base * s / g**scaling for g in (1, 2, 3, 4)} for t, s in (("A", 1), ("B", 2.5))}
        jobs.append(elastic(f"j{j}", times, on=data.draw(st.sampled_from(("a", None))) if j == 0 else None))
    of = problem(jobs, a=4, b=4, idle_w=data.draw(st.sampled_from((0, 200))))
    for name in ("sia", "pollux", "powerflow"):
        found = make_solver(name, energy_budget=budget).solve(of, np.random.default_rng(0)).best
        check(of, found)
        got = found.choice[found.choice >= 0]
        assert len(got)
        if name == "powerflow":
            energy = of.busy_cost + of.share_cost
            thrifty = PowerFlow(1.0).solve(of, np.random.default_rng(0)).best.choice
            assert (thrifty >= 0).sum() == len(got)
            assert energy[got].sum() <= budget * (1 + 1e-6) * energy[thrifty[thrifty >= 0]].sum()
