"""What schedulers know of run times: the engine keeps the truth, and nothing of it leaks before it has happened."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commonwatt.control.job_registry import Status
from commonwatt.control.run_time_estimates import FIRST_LIMIT_S, RunTimeEstimates, relative_times, requested_rows
from commonwatt.model.scenario import Scenario
from commonwatt.simulation.run_setup import believed_table, run_policy, slowdowns
from tests.simulation.made import documents, node, prepared, run

QUICK = settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.too_slow])
UNKNOWN = ("user-limit", "predicted", "none")


@pytest.mark.slow
@pytest.mark.parametrize("knowledge", UNKNOWN)
@QUICK
@given(document=documents())
def test_every_job_ends_and_its_attained_work_is_its_run_time(knowledge, document):
    problem = prepared(document | {"knowledge": knowledge})
    done, _ = run(problem)
    registry, estimates = done.controller.registry, done.controller.estimates
    assert (registry.job("status") == Status.COMPLETED).all()
    table = problem.table
    factor = slowdowns(problem.scenario, len(table), problem.seed)
    true_s = table.config_time_s[requested_rows(table)] * (factor if len(factor) else 1.0)
    rows = [table.names.index(name) for name in registry.names]
    attained_s = estimates._all["attained_s"][: len(registry)]
    assert attained_s == pytest.approx(true_s[rows], rel=1e-6, abs=1e-3)


def week(knowledge: str, solver: str = "lookahead", **more: object) -> dict:
    return {
        "workload": {"source": "week", "jobs_per_day": 30, "days": 1, "tenants": 3},
        "nodes": [node("v", count=2, gpus=4), node("t", "T4", count=2, gpus=4)],
        "knowledge": knowledge, "policies": [{"solver": solver}], **more,
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("knowledge", UNKNOWN)
@pytest.mark.parametrize("solver", ["lookahead", *(pytest.param(s, marks=pytest.mark.slow) for s in ("srtf", "easy"))])
def test_how_long_running_jobs_will_take_changes_nothing_before_it_shows(knowledge, solver):
    problem = prepared(week(knowledge, solver))
    first, record = run(problem)
    at_s = float(np.quantile(record.jobs.submit_s, 0.5))
    ended = dict(zip(record.jobs.name, record.jobs.ended_s, strict=True))
    later = np.array([ended[name] > at_s for name in problem.table.names])
    table = problem.table
    # by a power of two: the length of epochs stays the same to the last bit
    longer = np.repeat(np.where(later, 4.0, 1.0), np.diff(table.start))
    changed = replace(table, config_time_s=table.config_time_s * longer, epochs=table.epochs * np.where(later, 4, 1))
    second = run_policy(problem.scenario, problem.scenario.policies[0], problem.cluster, changed, problem.seed)
    before, after = (
        [(e.time_s, e.kind, e.handle, e.nodes, e.gpus) for e in done.controller.log.since(0) if e.time_s <= at_s]
        for done in (first, second)
    )
    assert len(before) > 30
    assert before == after
    assert first.controller.log.since(0)[-1].time_s != second.controller.log.since(0)[-1].time_s


@pytest.mark.slow
def test_with_an_oracle_it_does_change_decisions():
    """The test above can fail: who knows run times uses them."""
    problem = prepared(week("oracle", "srtf"))
    first, _ = run(problem)
    table = problem.table
    longer = np.where(np.arange(len(table)) % 2 == 0, 9.0, 1.0)
    changed = replace(table, config_time_s=table.config_time_s * np.repeat(longer, np.diff(table.start)))
    second = run_policy(problem.scenario, problem.scenario.policies[0], problem.cluster, changed, problem.seed)
    until_s = float(table.submit_s[-1])
    one, two = ([e for e in done.controller.log.since(0) if e.time_s <= until_s] for done in (first, second))
    assert [(e.time_s, e.handle, e.nodes) for e in one] != [(e.time_s, e.handle, e.nodes) for e in two]


def test_a_table_without_run_times_has_none():
    problem = prepared(week("none"))
    seen = believed_table(problem.scenario, "none", problem.table, 0)
    twice = replace(problem.table, config_time_s=problem.table.config_time_s * 2)
    assert np.allclose(relative_times(twice).config_time_s, seen.config_time_s)
    assert np.allclose(seen.config_time_s[requested_rows(seen)], 1.0)
    assert (seen.epochs == 1).all()


def test_what_the_log_calls_a_job_tells_more_than_its_number():
    problem = prepared(week("predicted"))
    table = problem.table
    estimates = {}
    for name, series in (("told", ("a", "b") * len(table)), ("not told", ())):
        estimates[name] = RunTimeEstimates("predicted")
        estimates[name].submitted(replace(table, series=series[: len(table)]), np.arange(len(table)))
    own = {name: one._all["groups"][: len(table), -2] for name, one in estimates.items()}
    told = len({(t, k, j % 2) for j, (t, k) in enumerate(zip(table.tenant, table.kinds, strict=True))})
    assert len(np.unique(own["told"])) == told
    assert len(np.unique(own["not told"])) == len(set(zip(table.tenant, table.kinds, strict=True)))


def test_who_knows_all_sees_the_table_itself():
    problem = prepared(week("oracle"))
    assert believed_table(problem.scenario, "oracle", problem.table, 0) is problem.table


@pytest.mark.slow
def test_wrong_speeds_are_believed_and_not_true():
    problem = prepared(week("oracle", "fifo", speed_error=0.5))
    seen = believed_table(problem.scenario, "oracle", problem.table, problem.seed)
    asked = requested_rows(problem.table)
    others = np.setdiff1d(np.arange(len(seen.config_time_s)), asked)
    ratio = np.log(problem.table.config_time_s / seen.config_time_s)
    assert np.array_equal(seen.config_time_s[asked], problem.table.config_time_s[asked])
    assert ratio[others].std() == pytest.approx(0.5, rel=0.25)  # a hundred draws or so
    assert abs(ratio[others].mean()) < 0.15
    done, record = run(problem)
    fastest = np.minimum.reduceat(problem.table.config_time_s, problem.table.start[:-1])
    took_s = {name: end_s - began_s for name, began_s, end_s in zip(
        record.jobs.name, record.jobs.began_s, record.jobs.ended_s, strict=True)}  # fmt: skip
    assert all(took_s[name] >= fast_s * (1 - 1e-9) for name, fast_s in zip(problem.table.names, fastest, strict=True))
    assert (done.controller.registry.job("status") == Status.COMPLETED).all()


@pytest.mark.slow
def test_a_policy_may_know_more_than_another():
    document = week("none")
    document["policies"] = [{"solver": "srtf", "name": "all", "knowledge": "oracle"}, {"solver": "srtf"}]
    problem = prepared(document)
    one, two = (run(problem, k)[0].controller for k in range(2))
    assert one.estimates is None
    assert two.estimates.knowledge == "none"


def limited(limits: list[float | None]) -> dict:
    jobs = [
        {
            "name": f"j{i}",
            "submit_s": 10.0 * i,
            "times_s": {"V100": [500.0]},
            "requested_gpus": 1,
            "time_limit_s": limit,
        }
        for i, limit in enumerate(limits)
    ]
    return {
        "workload": {"source": "jobs", "jobs": jobs}, "nodes": [node("v", gpus=4)], "knowledge": "user-limit",
        "policies": [{"solver": "fifo"}],
    }  # fmt: skip


def test_without_a_limit_the_largest_declared_so_far_is_believed():
    problem = prepared(limited([None, 4000.0, 900.0]))
    done, _ = run(problem)
    estimates, engine = done.controller.estimates, done.controller.engine
    handles = np.arange(3)
    estimates._all["attained_s"][:3] = [100.0, 100.0, 0.0]
    left = estimates.remaining(handles, done.controller.engine.now_s, engine.progress(handles))
    assert left.now_s == pytest.approx([3900.0, 3900.0, 900.0])
    assert left.outcomes is None
    estimates.largest_limit_s = 0.0
    left = estimates.remaining(handles, engine.now_s, engine.progress(handles))
    assert left.now_s[0] == pytest.approx(FIRST_LIMIT_S - 100.0)


def test_a_job_beyond_its_limit_is_not_taken_to_end_at_once():
    problem = prepared(limited([100.0]))
    done, _ = run(problem)
    estimates, engine = done.controller.estimates, done.controller.engine
    left = estimates.remaining(np.arange(1), engine.now_s, engine.progress(np.arange(1)))
    assert left.now_s == pytest.approx([60.0])
    estimates._all["attained_s"][0] = 5000.0
    assert estimates.remaining(np.arange(1), engine.now_s, engine.progress(np.arange(1))).now_s == pytest.approx(
        [500.0]
    )


def test_what_is_believed_of_a_running_job_shrinks_between_revisions():
    problem = prepared(limited([None]) | {"knowledge": "none"})
    done, _ = run(problem)
    estimates, engine, one = done.controller.estimates, done.controller.engine, np.arange(1)
    progress = engine.progress(one)
    seen = []
    for attained_s in (300.0, 400.0, 500.0, 599.0, 601.0):
        estimates._all["attained_s"][0] = attained_s
        seen.append(float(estimates.remaining(one, engine.now_s, progress).now_s[0]))
    assert seen[0] > seen[1] > seen[2] > seen[3]
    assert seen[4] > seen[3]


@pytest.mark.long
@pytest.mark.slow
@QUICK
@given(document=documents(solvers=("lookahead", "local-search", "easy")), speed=st.sampled_from([0.0, 0.4]))
def test_the_same_scenario_gives_the_same_events(document, speed):
    problem = prepared(document | {"knowledge": "predicted", "speed_error": speed})
    one, two = (run(problem)[0].controller.log.since(0) for _ in range(2))
    assert one == two


def test_knowledge_has_four_values():
    with pytest.raises(ValueError, match="knowledge"):
        Scenario.model_validate(week("guess"))
