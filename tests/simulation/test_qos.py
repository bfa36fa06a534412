"""Limits and priority of a quality of service, under every solver."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.control.quotas import AccountingTracker, Quota, Use
from commonwatt.data.files import validate
from commonwatt.model.errors import InputError
from commonwatt.model.scenario import Scenario
from tests.simulation.made import documents, node, prepared, run


def job(name: str, submit_s: float = 0, gpus: int = 1, **more: object) -> dict:
    times = {"V100": {gpus: 100.0}}
    return {"name": name, "submit_s": submit_s, "times_s": times, "requested_gpus": gpus, **more}


def begins(jobs: list[dict], qos: list[dict], gpus: int = 4, **policy: object) -> dict[str, float]:
    """Return when each job of 100 s starts on one node, under fair share."""
    document = {
        "workload": {"source": "jobs", "jobs": jobs},
        "nodes": [node("n", gpus=gpus)],
        "qos": qos,
        "unused_nodes": {"state": None},
        "policies": [{"solver": "fair-share", "fair_share_weight": 0, **policy}],
    }
    _, record = run(prepared(document))
    return dict(zip(record.jobs.name, record.jobs.began_s.tolist(), strict=True))


def test_jobs_of_a_user_wait_for_each_other():
    mine = [job(name, user="ann", qos="normal") for name in ("a1", "a2", "a3")]
    others = [job("b1", user="bob", qos="normal"), job("free", user="ann")]
    found = begins([*mine, *others], [{"name": "normal", "max_jobs_per_user": 1}])
    assert found == {"a1": 0, "a2": 100, "a3": 200, "b1": 0, "free": 0}


def test_jobs_of_an_account_wait_for_each_other():
    jobs = [job("a1", tenant="a", qos="q"), job("a2", tenant="a", qos="q"), job("b1", tenant="b", qos="q")]
    assert begins(jobs, [{"name": "q", "max_jobs_per_account": 1}]) == {"a1": 0, "a2": 100, "b1": 0}


def test_a_job_for_which_a_limit_leaves_room_passes_one_for_which_it_does_not():
    jobs = [job("first", gpus=2, qos="q"), job("second", gpus=2, qos="q"), job("third", gpus=1, qos="q")]
    found = begins([*jobs, job("other", gpus=1)], [{"name": "q", "max_gpus": 3}])
    assert found == {"first": 0, "second": 100, "third": 0, "other": 0}


def test_a_job_that_a_limit_keeps_back_gets_no_reservation():
    jobs = [job("runs", gpus=1, qos="q"), job("kept", gpus=1, qos="q"), job("later", 10, gpus=3, time_limit_s=1000)]
    assert begins(jobs, [{"name": "q", "max_jobs": 1}])["later"] == 10


def test_priority_of_a_qos_goes_before_age():
    jobs = [job("runs", gpus=1), job("low", 10, qos="low"), job("high", 20, qos="high")]
    qos = [{"name": "low", "priority": 1}, {"name": "high", "priority": 10}]
    assert begins(jobs, qos, gpus=1, qos_weight=1) == {"runs": 0, "low": 200, "high": 100}
    assert begins(jobs, qos, gpus=1) == {"runs": 0, "low": 100, "high": 200}


def test_a_job_that_asks_for_more_than_a_limit_is_without_it_and_counted():
    jobs = [job("large", gpus=4, qos="q"), job("small", gpus=1, qos="q"), job("unknown", qos="other")]
    document = {
        "workload": {"source": "jobs", "jobs": jobs},
        "nodes": [node("n", gpus=4)],
        "qos": [{"name": "q", "max_gpus": 2, "max_jobs_per_user": 1}],
    }
    assert prepared(document).treatments == {
        "of a QOS that is not declared: without limits": 1,
        "asked for more than a limit of their QOS: without that limit": 1,
        "whose user is not known: without limits per user": 2,
    }
    assert begins(jobs[:2], [{"name": "q", "max_gpus": 2}]) == {"large": 0, "small": 100}


def test_two_qos_of_one_name_are_refused():
    document = {
        "workload": {"source": "jobs", "jobs": [job("a")]},
        "nodes": [node("n")],
        "qos": [{"name": "q"}, {"name": "q"}],
    }
    with pytest.raises(InputError, match=r"qos.*'q' twice"):
        validate(document, Scenario)


@st.composite
def limited(draw: st.DrawFn) -> dict:
    """A scenario whose jobs have qualities of service with limits."""
    document = draw(documents(solvers=("easy", "fair-share", "lookahead", "srtf")))
    limit = st.sampled_from([None, 1, 2, 3])
    names = [
        f"max_{what}{whose}" for what in ("jobs", "gpus") for whose in ("", "_per_account", "_per_user")
    ]  # fmt: skip
    document["qos"] = [{"name": name, **{field: draw(limit) for field in names}} for name in ("p", "q")]
    for one in document["workload"]["jobs"]:
        one["qos"] = draw(st.sampled_from(["", "p", "q"]))
        one["user"] = draw(st.sampled_from(["ann", "bob"]))
    return document


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(limited())
def test_no_solver_exceeds_a_limit_and_every_job_ends(document: dict) -> None:
    problem = prepared(document)
    done, record = run(problem)
    assert (record.jobs.ended_s >= record.jobs.submit_s).all()
    tracker = AccountingTracker(done.controller.registry, problem.table, problem.scenario.qos)
    parts = list(
        zip(*(getattr(record.segments, name).tolist() for name in ("job", "gpus", "from_s", "to_s")), strict=True)
    )
    handles = {name: handle for handle, name in enumerate(done.controller.registry.names)}
    for at, until in pairwise(sorted({edge for _, _, a, b in parts for edge in (a, b)})):
        has: dict[int, int] = {}
        for j, gpus, from_s, to_s in parts:
            if from_s <= at and to_s >= until:
                handle = handles[record.jobs.name[j]]
                has[handle] = has.get(handle, 0) + gpus
        use = tracker.use(has)
        for key, quota in (pair for handle in has for pair in tracker.quotas(handle, -1)):
            assert quota.jobs is None or use[key].jobs <= quota.jobs
            assert quota.gpus is None or use[key].gpus <= quota.gpus


def test_use_leaves_room_up_to_the_limit_itself():
    qos = [{"name": "q", "max_gpus": 4, "max_jobs": 2}]
    problem = prepared({
        "workload": {"source": "jobs", "jobs": [job("a", gpus=2, qos="q"), job("b", gpus=2, qos="q")]},
        "nodes": [node("n", gpus=4)],
        "qos": qos,
    })  # fmt: skip
    done, _ = run(problem)
    tracker = AccountingTracker(done.controller.registry, problem.table, problem.scenario.qos)
    quota = Quota(jobs=2, gpus=4)
    handle = done.controller.registry.names.index("a")
    assert [own for _, own in tracker.quotas(handle, 0)] == [Quota(jobs=2), Quota(gpus=4)]
    assert Use(1, 2).leaves(quota, 2)
    assert not Use(1, 2).leaves(quota, 3)
    assert not Use(2, 2).leaves(quota, 1)
