"""Jobs of several nodes get nodes near each other, against brute force, and nothing else about a schedule changes."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple, replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.model.place_file import PlaceFile
from commonwatt.placement import solve_file
from commonwatt.placement._needless_moves import filled
from commonwatt.placement._objective import check, objective
from commonwatt.placement._problem import POSTPONED, PlacementProblem, Schedule
from commonwatt.placement._solvers import SOLVERS, make_solver
from commonwatt.placement.guarantees import Reservation, in_few_domains, within_cpus_memory

NODE = {"gpu_type": "A100", "gpus": 4, "idle_w": 100, "gpu_w": 300}


def nodes(domains):
    return [
        {"name": f"n{i}", **NODE, **({} if domain is None else {"domain": domain})} for i, domain in enumerate(domains)
    ]


def job(name, *gpus, current=None, time_s=1000.0, **fields):
    return {
        "name": name, "times_s": {"A100": dict.fromkeys(gpus, time_s)}, "due_s": 1100.0, "tardiness_weight": 1.0,
        **({} if current is None else {"current": current}), **fields,
    }  # fmt: skip


def problem(domains, jobs, **columns):
    p = PlacementProblem.of(PlaceFile.model_validate({"nodes": nodes(domains), "jobs": jobs}))
    return replace(p, **columns)


def started(p):
    """All jobs that fit, each where it fits best, and then near each other."""
    before = filled(p, Schedule.unchanged(p))
    return before, in_few_domains(p, before)


def of(p, schedule, name):
    return sorted(p.node_names[n] for n in schedule.nodes_of(p, p.job_names.index(name)))


def domains_of(p, nodes):
    """How many domains of each level *nodes* are in."""
    return np.array([len(np.unique(level)) for level in p.node_domain[nodes].T])


def test_a_job_takes_the_domain_that_has_all_its_nodes_and_the_least_to_spare():
    p = problem(["a", "b", "b", "b", "c", "c"], [job("gang", 8)])
    before, after = started(p)
    assert of(p, before, "gang") == ["n0", "n1"]
    assert of(p, after, "gang") == ["n4", "n5"]


def test_one_that_no_domain_holds_takes_the_largest_and_then_the_one_that_just_holds_the_rest():
    p = problem(["a", "b", "b", "b", "c", "c", "c", "c"], [job("gang", 20)])
    assert of(p, started(p)[1], "gang") == ["n0", "n4", "n5", "n6", "n7"]


def test_the_narrowest_domain_that_has_room_counts_first():
    """Block x has as many nodes as the job, in two racks; block y has them in one rack."""
    p = problem(["x/1", "x/2", "y/1", "y/1", "y/2"], [job("gang", 8)])
    assert of(p, started(p)[1], "gang") == ["n2", "n3"]


def test_of_racks_those_of_one_block_come_first():
    p = problem(["x/1", "y/1", "y/2", "x/2", "x/3"], [job("gang", 8)])
    assert of(p, started(p)[1], "gang") == ["n1", "n2"]


def test_nodes_of_no_known_domain_are_near_nothing():
    p = problem([None, None, "a", "a"], [job("gang", 8)])
    assert of(p, started(p)[1], "gang") == ["n2", "n3"]


def test_wide_jobs_choose_first():
    p = problem(["b", "a", "a", "b", "b"], [job("two", 8), job("three", 12)])
    _, after = started(p)
    assert (of(p, after, "two"), of(p, after, "three")) == (["n1", "n2"], ["n0", "n3", "n4"])


def test_jobs_of_one_node_go_where_the_fewest_empty_nodes_are_left():
    p = problem(["a", "a", "a", "b", "b"], [job("one", 4), job("half", 2)])
    _, after = started(p)
    assert of(p, after, "one") + of(p, after, "half") == ["n3", "n4"]


def test_what_runs_stays_and_nobody_gets_its_gpus():
    running = {"nodes": ["n1", "n4"], "gpus": 8, "remaining_s": 500.0}
    p = problem(["a", "a", "a", "b", "b", "b"], [job("runs", 8, current=running), job("gang", 8)])
    _, after = started(p)
    assert of(p, after, "runs") == ["n1", "n4"]
    assert of(p, after, "gang") in (["n0", "n2"], ["n3", "n5"])


def test_a_reserved_node_is_exchanged_with_no_other():
    p = problem(["a", "b", "b", "a"], [job("gang", 8), job("later", 16)])
    before = filled(p, Schedule.unchanged(p), among=np.array([True, False]))
    kept = Reservation(1, np.array([0, 1, 2, 3]), 4, 2000.0, 2000.0)
    assert of(p, in_few_domains(p, replace(before, reservation=kept)), "gang") == ["n0", "n1"]
    assert of(p, in_few_domains(p, before), "gang") == ["n0", "n3"]


def test_a_node_that_wakes_is_not_taken_for_one_that_is_on():
    p = problem(["a", "b", "a"], [job("gang", 8)], node_wait_s=np.array([0.0, 0.0, 60.0]))
    assert of(p, started(p)[1], "gang") == ["n0", "n1"]


def test_place_says_the_nodes_that_are_near():
    file = PlaceFile.model_validate({"nodes": nodes(["a", "b", "b"]), "jobs": [job("gang", 8)]})
    (given_to,) = solve_file(file, clock=lambda: 0.0).assignments
    assert given_to.nodes == ("n1", "n2")


@settings(deadline=None, max_examples=300)
@given(
    rack=st.lists(st.sampled_from("abcd"), min_size=2, max_size=9),
    busy=st.sets(st.integers(0, 8), max_size=4), data=st.data(),
)  # fmt: skip
def test_no_choice_of_free_nodes_is_in_fewer_domains(rack, busy, data):
    free = [n for n in range(len(rack)) if n not in busy]
    width = data.draw(st.integers(1, max(1, len(free))))
    runs = [job(f"r{n}", 4, current={"nodes": [f"n{n}"], "gpus": 4, "remaining_s": 9.0}) for n in busy if n < len(rack)]
    if not free:
        return
    p = problem(rack, [*runs, job("gang", 4 * width)])
    chosen = started(p)[1].nodes_of(p, len(runs))
    assert len(chosen) == width
    best = min(len({rack[n] for n in nodes}) for nodes in combinations(free, width))
    assert domains_of(p, chosen).tolist() == [best]


@st.composite
def busy_problems(draw):
    """Nodes in two levels of domains, some jobs that run, and jobs of one to four nodes."""
    count = draw(st.integers(3, 9))
    domains = draw(st.lists(st.sampled_from(["x/1", "x/2", "y/1", "y/2", "z", None]), min_size=count, max_size=count))
    free, jobs = dict.fromkeys(range(count), 4), []
    for i in range(draw(st.integers(0, 4))):
        gpus, width = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        room = [n for n in free if free[n] >= gpus]
        if len(room) < width:
            continue
        there = draw(st.permutations(room))[:width]
        for n in there:
            free[n] -= gpus
        current = {
            "nodes": [f"n{n}" for n in there], "gpus": gpus * width,
            "remaining_s": draw(st.sampled_from([100.0, 900.0])),
        }  # fmt: skip
        jobs.append(job(f"r{i}", gpus * width, current=current))
    for i in range(draw(st.integers(1, 6))):
        gpus = draw(st.sampled_from([1, 2, 4, 8, 12, 16]))
        jobs.append(job(f"w{i}", min(gpus, 4 * count), time_s=draw(st.sampled_from([50.0, 1000.0]))))
    if not any(domains):
        domains[0] = "z"
    return domains, jobs


@settings(deadline=None, max_examples=300)
@given(busy_problems(), st.integers(0, 3))
def test_costs_starts_and_what_runs_are_as_the_solver_decided(case, seed):
    p = problem(*case)
    rng = np.random.default_rng(seed)
    solver = make_solver(str(rng.choice(["easy", "fifo", "random-greedy", "srtf"])), iterations=5)
    before = solver.solve(p, rng).best
    after = in_few_domains(p, before)
    check(p, after)
    assert np.array_equal(before.choice, after.choice)
    assert astuple(objective(p, after)) == pytest.approx(astuple(objective(p, before)))
    for j in np.flatnonzero((p.stay >= 0) & (before.choice == p.stay)):
        assert np.array_equal(before.nodes_of(p, j), after.nodes_of(p, j))
    assert Counter(before.free_gpus(p).tolist()) == Counter(after.free_gpus(p).tolist())
    assert np.array_equal(in_few_domains(p, after).nodes, after.nodes) or wide_ties(p, after)


def wide_ties(p, schedule):
    """Whether doing it again only exchanges what is equally good."""
    again = in_few_domains(p, schedule)
    starts = np.flatnonzero((schedule.choice != POSTPONED) & (p.width[schedule.choice] > 1))
    return all(
        domains_of(p, again.nodes_of(p, j)).tolist() == domains_of(p, schedule.nodes_of(p, j)).tolist() for j in starts
    )


@settings(deadline=None, max_examples=200)
@given(busy_problems(), st.lists(st.sampled_from([4.0, 8.0, 16.0]), min_size=9, max_size=9), st.integers(0, 99))
def test_no_node_is_given_more_cpus_than_it_has(case, cpus, seed):
    p = problem(*case)
    need = np.random.default_rng(seed).choice([1.0, 2.0, 4.0], len(p.klass))
    p = replace(
        p, node_cpus_memory=np.array(cpus[: len(p.node_gpus)])[:, None] + 12.0,
        cpus_memory=(need * p.per_node)[:, None],
    )  # fmt: skip
    unchanged = Schedule.unchanged(p)
    used, _ = unchanged.occupancy(p)
    rows = np.repeat(unchanged.choice[unchanged.choice >= 0], p.width[unchanged.choice[unchanged.choice >= 0]])
    held = np.bincount(used, p.cpus_memory[rows, 0], len(p.node_gpus))
    p = replace(p, node_cpus_memory=np.maximum(p.node_cpus_memory, held[:, None]))
    after = in_few_domains(p, within_cpus_memory(p, filled(p, unchanged)))
    used, _ = after.occupancy(p)
    rows = after.choice[after.choice != POSTPONED]
    taken = np.bincount(used, np.repeat(p.cpus_memory[rows, 0], p.width[rows]), len(p.node_gpus))
    assert (taken <= p.node_cpus_memory[:, 0] + 1e-6).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SOLVERS))
def test_it_holds_for_every_solver(name):
    p = problem(["a", "b"] * 4, [job(f"j{i}", 16) for i in range(2)])
    before = make_solver(name, iterations=20).solve(p, np.random.default_rng(0)).best
    after = in_few_domains(p, before)
    assert [domains_of(p, after.nodes_of(p, j)).tolist() for j in range(2)] == [[1], [1]]
