"""Lucid's packing: who gets whose GPUs, case by case, and what holds of every decision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.model.jobs import Received
from commonwatt.model.packing import PackableJobs
from commonwatt.model.place_file import PlaceFile
from commonwatt.placement import POSTPONED, PlacementProblem, Schedule
from commonwatt.placement._lucid import Lucid, sharing_scores
from commonwatt.placement._objective import check

CALM, MIDDLE, LOUD = (0.1, 0.02, 2.0), (0.5, 0.2, 2.0), (0.9, 0.6, 4.0)  # utilization, of memory, GiB
UNKNOWN = (np.nan, np.nan, np.nan)


def job(name, whole_s, use=CALM, gpus=1, *, on="", beside="", submit_s=0.0):
    return {"name": name, "s": whole_s, "use": use, "gpus": gpus, "on": on, "beside": beside, "submit_s": submit_s}


def problem(*jobs, nodes=(("n", 2),), memory_gib=16.0) -> PlacementProblem:
    """Jobs that run are as old as they are far in front."""
    made = []
    for one in jobs:
        own = {"name": one["name"], "tardiness_weight": 0, "times_s": {"A": {one["gpus"]: one["s"]}}}
        if one["on"]:
            own["current"] = {"nodes": [one["on"]], "gpus": one["gpus"], "remaining_s": one["s"] / 2}
        made.append({**own, "submit_s": one["submit_s"]})
    file = {
        "now_s": 100, "interval_s": 300, "jobs": made,
        "nodes": [{"name": n, "gpu_type": "A", "gpus": g, "idle_w": 100, "gpu_w": 100} for n, g in nodes],
    }  # fmt: skip
    at = {one["name"]: j for j, one in enumerate(jobs)}
    use = np.array([one["use"] for one in jobs])
    of = PlacementProblem.of(PlaceFile.model_validate(file | {"nodes": _roomy(file["nodes"], jobs)}))
    had_s = np.array([1000.0 - j if one["on"] else 0.0 for j, one in enumerate(jobs)])
    return replace(
        of,
        node_gpus=np.array([g for _, g in nodes]),
        packable=PackableJobs(
            use[:, 0], use[:, 1], use[:, 2], np.full(len(of.class_gpus), memory_gib),
            np.array([at.get(one["beside"], -1) for one in jobs]),
        ),
        whole_s=np.array([jobs[j]["s"] for j in of.row_job], dtype=float),
        received=Received(had_s[:, None], had_s, had_s[:1], len(jobs)),
    )  # fmt: skip


def _roomy(nodes, jobs):
    """A problem file knows of no shared GPUs: nodes are as large as they have to be without."""
    return [{**node, "gpus": node["gpus"] + sum(one["gpus"] for one in jobs if one["beside"])} for node in nodes]


def decided(of: PlacementProblem) -> tuple[set[str], set[frozenset[str]]]:
    """Jobs that run, and those that share."""
    schedule = Lucid().solve(of, np.random.default_rng(0)).best
    check(of, schedule)
    assert schedule.beside is not None
    runs = {of.job_names[j] for j in np.flatnonzero(schedule.choice != POSTPONED)}
    pairs = {frozenset((of.job_names[j], of.job_names[schedule.beside[j]])) for j in np.flatnonzero(schedule.packed())}
    return runs, pairs


def pairs(*names):
    return {frozenset(name) for name in names}


def test_scores_by_the_tree():
    use = np.array([CALM, MIDDLE, LOUD, (0.1, 0.02, 12.0), UNKNOWN]).T
    of = PackableJobs(*use, gpu_memory_gib=np.zeros(1), beside=np.full(5, -1))
    np.testing.assert_array_equal(sharing_scores(of), [0, 1, 2, 2, np.nan])


def test_a_job_that_finds_no_gpus_gets_those_of_the_oldest_that_fits():
    of = problem(job("a", 100, on="n"), job("b", 100, on="n"), job("c", 100))
    assert decided(of) == ({"a", "b", "c"}, pairs("ac"))


@pytest.mark.parametrize(
    ("running", "waiting", "shares"),
    [
        (job("a", 100), job("c", 200), True),
        (job("a", 100), job("c", 200.5), False),  # a would be gone long before c
        (job("a", 100, MIDDLE), job("c", 100, MIDDLE), True),
        (job("a", 100, MIDDLE), job("c", 100, LOUD), False),  # 1 + 2
        (job("a", 100, CALM), job("c", 100, LOUD), True),
        (job("a", 100, (0.1, 0.02, 8.0)), job("c", 100, (0.1, 0.02, 8.0)), True),  # 16 GiB of 16
        (job("a", 100, (0.1, 0.02, 8.0)), job("c", 100, (0.1, 0.02, 8.1)), False),
        (job("a", 100, UNKNOWN), job("c", 100), False),
        (job("a", 100), job("c", 100, UNKNOWN), False),
        (job("a", 100, gpus=2), job("c", 100), False),  # not as many GPUs
        (job("a", 100, gpus=8), job("c", 100, gpus=8), True),
        (job("a", 100, gpus=9), job("c", 100, gpus=9), False),
    ],
)
def test_what_a_partner_has_to_be(running, waiting, shares):
    of = problem(running | {"on": "n"}, waiting, nodes=[("n", running["gpus"])])
    assert decided(of) == (({"a", "c"}, pairs("ac")) if shares else ({"a"}, set()))


def test_no_gpu_is_shared_whose_memory_is_unknown():
    assert decided(problem(job("a", 100, on="n"), job("c", 100), nodes=[("n", 1)], memory_gib=np.nan)) == ({"a"}, set())


def test_nobody_is_packed_without_figures():
    of = replace(problem(job("a", 100, on="n"), job("c", 100), nodes=[("n", 1)]), packable=None)
    assert decided(of) == ({"a"}, set())


def test_two_that_share_take_no_third():
    of = problem(job("a", 100, on="n", beside="b"), job("b", 100, on="n", beside="a"), job("c", 100), nodes=[("n", 1)])
    assert decided(of) == ({"a", "b"}, pairs("ab"))


def test_all_get_gpus_of_their_own_while_these_suffice():
    of = problem(job("a", 100, on="n"), job("b", 100), job("c", 100), nodes=[("n", 3)])
    assert decided(of) == ({"a", "b", "c"}, set())


def test_while_packing_is_off_nobody_passes():
    """Three GPUs are asked for, and three are free, on three nodes: the job of least GPU time cannot have two."""
    of = problem(
        job("a", 900, on="n"), job("b", 900, on="m"), job("two", 10, gpus=2), job("one", 100),
        nodes=[("n", 2), ("m", 2), ("k", 1)],
    )  # fmt: skip
    assert decided(of) == ({"a", "b"}, set())


def test_a_partner_comes_before_free_gpus():
    of = problem(
        job("a", 900, on="n"), job("one", 10), job("two", 100, gpus=2), nodes=[("n", 3)]
    )  # fmt: skip
    assert decided(of) == ({"a", "one", "two"}, pairs(("a", "one")))


def test_while_packing_is_on_those_that_do_not_fit_are_passed():
    """By GPU time two, c, d: two does not fit."""
    of = problem(job("a", 10, LOUD, on="n"), job("two", 30, LOUD, gpus=2), job("c", 100, LOUD), job("d", 110, LOUD))
    assert decided(of) == ({"a", "c"}, set())


def test_least_gpu_time_first():
    of = problem(job("a", 500, LOUD, on="n"), job("c", 100), job("d", 90), job("e", 80), nodes=[("n", 1)])
    assert decided(of) == ({"a", "e"}, pairs("ae"))


def test_a_job_that_just_got_gpus_may_be_a_partner():
    of = problem(job("c", 100), job("d", 90), job("e", 80), nodes=[("n", 1)])
    assert decided(of) == ({"d", "e"}, pairs("de"))


def test_a_schedule_of_a_job_beside_another_with_other_gpus_is_no_schedule():
    of = problem(job("a", 100, on="n"), job("b", 100, on="n", gpus=2), nodes=[("n", 3)])
    odd = replace(Schedule.unchanged(of), beside=np.array([1, 0]))
    with pytest.raises(Exception, match="the one other job"):
        check(of, odd)


@st.composite
def cases(draw):
    sizes = [2, 3]
    jobs, used = [], dict(zip("nm", sizes, strict=True))
    for i in range(draw(st.integers(1, 8))):
        gpus, use = draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from([CALM, MIDDLE, LOUD, UNKNOWN]))
        on = draw(st.sampled_from(["", "n", "m"]))
        if on and used[on] < gpus:
            on = ""
        if on:
            used[on] -= gpus
        # no two have the same time, GPU time or age
        jobs.append(job(f"j{i}", draw(st.integers(1, 50)) * 100 + 7 * i + 1, use, gpus, on=on))
    return jobs, draw(st.permutations(range(len(jobs)))), draw(st.sampled_from([3.0, 5.0, 16.0]))


@given(case=cases())
def test_every_decision_is_feasible_and_does_not_depend_on_the_order_of_jobs(case):
    jobs, order, memory_gib = case
    of = problem(*jobs, nodes=[("n", 2), ("m", 3)], memory_gib=memory_gib)
    runs, packed = decided(of)
    by_name = {one["name"]: one for one in jobs}
    assert {one["name"] for one in jobs if one["on"]} <= runs
    assert sum(len(pair) for pair in packed) == len(frozenset().union(*packed))
    for pair in packed:
        one, other = (by_name[name] for name in pair)
        scores = {CALM: 0, MIDDLE: 1, LOUD: 2}
        assert scores[one["use"]] + scores[other["use"]] <= 2
        assert one["use"][2] + other["use"][2] <= memory_gib
        assert one["gpus"] == other["gpus"]
        assert not (one["on"] and other["on"])
    had = {one["name"]: 1000.0 - j for j, one in enumerate(jobs)}
    shuffled = problem(*(jobs[j] for j in order), nodes=[("n", 2), ("m", 3)], memory_gib=memory_gib)
    had_s = np.array([had[jobs[j]["name"]] if jobs[j]["on"] else 0.0 for j in order])
    shuffled = replace(shuffled, received=Received(had_s[:, None], had_s, had_s[:1], len(jobs)))
    assert decided(shuffled) == (runs, packed)
