"""Nothing lost, nothing twice: the controller is killed with SIGKILL while jobs come in and run."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy")

from tests.live.chaos import config_in, problems, running, store_of, stream, until_all_end


@pytest.mark.parametrize(
    "rounds", [6, pytest.param(100, marks=pytest.mark.slow)], ids=["a few times", "a hundred times"]
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
