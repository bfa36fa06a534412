"""Reasons and sentences say what is true of the schedule."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from commonwatt.model.place_file import PlaceFile
from commonwatt.model.units import money
from commonwatt.placement._explain import Explainer, Reason
from commonwatt.placement._problem import POSTPONED, PlacementProblem, Schedule
from commonwatt.placement._random_greedy import RandomGreedy
from commonwatt.placement._solve_file import solve_file
from tests.strategies import problems

V = {"gpu_type": "V100", "idle_w": 100, "gpu_w": 100}


def explained(nodes, jobs, schedule=None):
    p = PlacementProblem.of(PlaceFile.model_validate({"nodes": nodes, "jobs": jobs}))
    s = schedule(p) if schedule else RandomGreedy(iterations=1).solve(p, np.random.default_rng(0)).best
    why = Explainer(p, s)
    return {p.job_names[j]: why.explain(j) for j in range(len(p))}


def job(name, times, due_s=5000, **more):
    return {"name": name, "due_s": due_s, "tardiness_weight": 1e-3, "times_s": {"V100": times}, **more}


def test_cheapest_in_time():
    why = explained([{"name": "n", "gpus": 2, **V}], [job("a", [1000, 600])])["a"]
    assert why.reason is Reason.CHEAPEST_IN_TIME
    assert why.sentence.startswith("a runs on n with 2 GPUs: the cheapest configuration that meets its due date")
    assert why.sentence.endswith("it ends 73 min before its due date")


@pytest.mark.parametrize(("due_s", "told"), [(5000, "before its due date"), (None, "it has no due date")])
def test_a_dearer_way_is_told_as_one(due_s, told):
    def on_both(p):
        return Schedule(p.start[:-1] + 1, np.zeros(len(p), dtype=np.int64))

    why = explained([{"name": "n", "gpus": 2, **V}], [job("a", [1000, 990], due_s=due_s)], on_both)["a"]
    assert why.reason is Reason.IN_TIME
    assert ("it meets its due date there; " in why.sentence) == (due_s is not None)
    assert "a cheaper configuration (" in why.sentence
    assert why.sentence.endswith(told)


def test_nodes_that_are_not_to_be_had():
    p = PlacementProblem.of(
        PlaceFile.model_validate({"nodes": [{"name": "n", "gpus": 2, **V}], "jobs": [job("a", [1000])]})
    )
    p = replace(p, node_gpus=np.zeros(1, dtype=np.int64))
    why = Explainer(p, Schedule.empty(p)).explain(0)
    assert why.reason is Reason.NODES_DOWN
    assert why.sentence == "a waits: too many of its GPUs are down, drained or allocated to services"


def test_fastest_when_late_anyway():
    why = explained([{"name": "n", "gpus": 2, **V}], [job("a", [1000, 600], due_s=100)])["a"]
    assert why.reason is Reason.FASTEST
    assert "after its due date" in why.sentence


def test_how_late_is_not_told_where_it_is_not_known():
    """A due date before the submission counts as that moment: hours from then would not be true of it."""
    jobs = [job(name, [7200], due_s=50, submit_s=50) for name in "ab"]
    why = explained([{"name": "n", "gpus": 1, **V}], jobs)
    assert {told.reason for told in why.values()} == {Reason.FASTEST, Reason.NO_ROOM}
    for told in why.values():
        assert told.sentence.endswith("; it was submitted at its due date or later")


def test_no_room_names_what_it_needs():
    why = explained([{"name": "n", "gpus": 2, **V}], [job("a", [None, 600], due_s=700), job("b", [None, 900])])
    assert why["b"].reason is Reason.NO_ROOM
    assert "it needs at least 2 GPUs" in why["b"].sentence


def test_preempted_names_who_gets_the_gpus_and_what_it_costs():
    held = {"nodes": ["n"], "gpus": 1, "remaining_s": 500}
    jobs = [job("urgent", [300], due_s=10), job("old", [900], due_s=90000, current=held)]
    why = explained([{"name": "n", "gpus": 1, **V}], jobs)
    assert why["old"].reason is Reason.DISPLACED
    assert "its GPUs on n go to urgent" in why["old"].sentence
    assert "restarting from its last checkpoint takes at least 7 min more" in why["old"].sentence


def test_jobs_of_other_tenants_are_not_named():
    def for_the_others(p):
        rows = [POSTPONED, *p.start[1:-1].tolist()]
        return Schedule(np.array(rows), np.array([POSTPONED if row == POSTPONED else 0 for row in rows]))

    held = {"nodes": ["n"], "gpus": 4, "remaining_s": 500}
    old = job("old", [None, None, None, 700], tenant="a", current=held)
    new = [job(name, [300], tenant=tenant) for name, tenant in (("mine", "a"), ("secret", "b"), ("hidden", "b"))]
    told = {1: "mine", 2: "mine and a job of another tenant", 3: "mine and 2 jobs of other tenants"}
    for count, whom in told.items():
        why = explained([{"name": "n", "gpus": 4, **V}], [old, *new[:count]], for_the_others)["old"]
        assert why.reason is Reason.DISPLACED
        assert f"its GPUs on n go to {whom};" in why.sentence
    only = explained([{"name": "n", "gpus": 4, **V}], [old, new[1]], for_the_others)["old"]
    assert "its GPUs on n go to a job of another tenant;" in only.sentence


def test_kept():
    held = {"nodes": ["n"], "gpus": 1, "remaining_s": 500}
    assert explained([{"name": "n", "gpus": 1, **V}], [job("a", [900], current=held)])["a"].reason is Reason.KEPT


def test_held_back_when_there_is_room_and_others_want_it():
    why = explained([{"name": "n", "gpus": 1, **V}], [job("a", [900]), job("b", [900])], Schedule.empty)["a"]
    assert why.reason is Reason.HELD_BACK
    assert "although 1 GPU would fit: the room is kept for other jobs" in why.sentence


def test_nobody_else_is_named_where_nobody_else_wants_the_room():
    def alone(**more):
        return explained([{"name": "n", "gpus": 1, **V}], [job("a", [900], **more)], Schedule.empty)["a"]

    why = alone(due_s=None)
    assert why.reason is Reason.NOT_YET
    assert why.cost == pytest.approx(900 * 200 / 3.6e6 * 0.172 * 1.33)
    added = f"starting now adds {money(why.cost, 'EUR')} of energy to this decision"
    assert why.sentence == f"a waits although 1 GPU would fit: {added}, and at the next one it may still start"
    assert alone(due_s=5000).sentence.endswith("at the next one it would still be in time")
    assert "it will be late by" in alone(due_s=500).sentence


@pytest.mark.slow
@settings(deadline=None)
@given(problems(most_jobs=6, most_nodes=4))
def test_every_job_has_a_reason_that_fits_what_it_got(p):
    s = RandomGreedy(iterations=20).solve(p, np.random.default_rng(0)).best
    why = Explainer(p, s)
    waiting = {Reason.NO_ROOM, Reason.HELD_BACK, Reason.NOT_YET, Reason.DISPLACED, Reason.NODES_DOWN}
    for j in range(len(p)):
        told = why.explain(j)
        assert (s.choice[j] == POSTPONED) == (told.reason in waiting)
        assert (told.reason is Reason.KEPT) == (s.choice[j] == p.stay[j] and p.stay[j] >= 0)
        assert told.sentence.startswith(p.job_names[j])
        assert "\n" not in told.sentence


def backfilled(jobs: list[dict], nodes: list[dict] | None = None):
    cluster = nodes or [{"name": "n", "gpus": 4, "gpu_type": "V100", "idle_w": 100, "gpu_w": 100}]
    file = PlaceFile.model_validate(
        {"now_s": 100, "nodes": cluster, "jobs": [{"tardiness_weight": 0, **j} for j in jobs]}
    )
    found = solve_file(file, clock=lambda: 0.0, solver="easy")
    return found, {d.job: (d.reason, d.sentence) for d in found.decisions}


def test_backfill_says_what_it_did_and_not_what_other_solvers_weigh():
    times = {"V100": [2000, 1100, 800, 700]}
    held = {"nodes": ["n"], "gpus": 2, "remaining_s": 500}
    jobs = [
        {"name": "runs", "times_s": {"V100": {2: 500}}, "requested_gpus": 2, "current": held},
        {"name": "next", "submit_s": 1, "times_s": times, "requested_gpus": 4},
        {"name": "would-delay", "submit_s": 2, "times_s": times, "requested_gpus": 1},
        {"name": "short", "submit_s": 3, "times_s": {"V100": [400, 300]}, "requested_gpus": 1},
        {"name": "large", "submit_s": 4, "times_s": times, "requested_gpus": 3},
    ]
    _, why = backfilled(jobs)
    assert why["next"][0] == "next"
    assert "4 GPUs on n are reserved for it, the next in order; it starts within 9 min" in why["next"][1]
    assert why["would-delay"][0] == "held-back"
    assert why["short"] == ("as-requested", "short runs on n with 1 GPU, as its owner requested; it has no due date")
    # one GPU is free and it could run on one, but it gets the three it asked for
    assert why["large"][0] == "no-room"
    assert "at least 3 GPUs" in why["large"][1]


def test_place_lets_backfill_see_every_job():
    """More than a cluster's backfill looks at: the last of 1,200 is the only one that fits."""
    jobs = [
        {"name": f"j{i}", "submit_s": i / 100, "times_s": {"V100": {4: 100}}, "requested_gpus": 4} for i in range(1200)
    ]
    jobs[0] |= {"times_s": {"V100": {3: 1000}}, "requested_gpus": 3}
    jobs.append({"name": "last", "submit_s": 50, "times_s": {"V100": {1: 10}}, "requested_gpus": 1})
    found, _ = backfilled(jobs)
    assert {a.job for a in found.assignments} == {"j0", "last"}


@pytest.mark.slow
@given(problems())
@settings(max_examples=100, deadline=None)
def test_room_is_that_of_each_configuration(p):
    schedule = RandomGreedy(iterations=1).solve(p, np.random.default_rng(0)).best
    explainer = Explainer(p, schedule)
    for job in range(len(p)):
        free = schedule.free_gpus(p)  # and what the job has itself
        if schedule.choice[job] != POSTPONED:
            free[schedule.nodes_of(p, job)] += p.per_node[schedule.choice[job]]
        for row in range(p.start[job], p.start[job + 1]):
            if row != p.stay[job]:
                assert explainer.fits(row, job) == (len(p.room(row, free)) > 0)
            assert explainer._has_room(row, empty=True) == (len(p.room(row, p.node_gpus)) > 0)
