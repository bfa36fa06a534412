"""Nothing lost, nothing twice: the controller is killed with SIGKILL while jobs come in and run."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.store.check import check
from commonwatt.store.records import JobStatus
from tests.controlplane.chaos import ROUNDS, config_in, problems, restless, running, store_of, stream, until_all_end


@pytest.mark.slow
@pytest.mark.parametrize(
    "rounds", [6, pytest.param(100, marks=pytest.mark.long)], ids=["a few times", "a hundred times"]
)
def test_every_accepted_job_ends_exactly_once_however_often_the_controller_is_killed(tmp_path, rounds):
    path = config_in(tmp_path)
    store = store_of(path)
    for name in "ab":
        store.add_tenant(name, 1.0, 0.0)
    jobs = stream(path, store, tmp_path, rounds, seed=rounds)
    with running(path):
        until_all_end(store, jobs)
    assert problems(store, tmp_path, jobs) == []


@pytest.mark.long
@pytest.mark.parametrize(
    "rounds", [5, pytest.param(max(12, ROUNDS), marks=pytest.mark.long)], ids=["a few times", "often"]
)
def test_jobs_that_are_moved_preempted_and_cancelled_meanwhile_end_exactly_once_too(tmp_path, rounds):
    path = config_in(tmp_path)
    store = store_of(path)
    for name in "ab":
        store.add_tenant(name, 1.0, 0.0)
    jobs, cancelled = restless(path, store, tmp_path, rounds, seed=rounds)
    with running(path):
        until_all_end(store, jobs)
    given_up = {job for job in cancelled if store.job(job).status is JobStatus.CANCELLED}
    assert problems(store, tmp_path, [job for job in jobs if job not in given_up]) == []
    for job in given_up:
        kinds = [event.kind for event in store.events(job=job)]
        assert (kinds.count("cancelled"), kinds[-1]) == (1, "cancelled")
        log = (tmp_path / store.job(job).name).with_suffix(".log")
        assert "twice" not in (log.read_text() if log.exists() else "")
    assert check(store.database).problems == ()
    stopped = [event.kind for job in jobs for event in store.events(job=job)]
    assert rounds < 12 or {"preempted", "resized"} & set(stopped)
