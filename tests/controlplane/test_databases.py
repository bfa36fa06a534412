"""Nothing lost, nothing twice: the database is killed and started again while jobs come in and run."""

from __future__ import annotations

import time

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.model.errors import StoreDownError
from commonwatt.store.check import check
from tests.controlplane.chaos import ROUNDS, config_in, problems, running, store_of, until_all_end, witness
from tests.store.conftest import mariadb, postgresql

__all__ = ["mariadb", "postgresql"]


def submit(store, tenant, file, key):
    """Submit as a person does: again and again with the same key, until the answer comes."""
    end_s = time.monotonic() + 120
    while True:
        try:
            return store.submit(tenant, file, time.time(), key=key)[0].id
        except StoreDownError:
            assert time.monotonic() < end_s
            time.sleep(0.1)


def until_it_begins(store):
    """Wait for the controller: one that finds no database when it starts says so and ends."""
    end_s = time.monotonic() + 120
    while store.setting("controller") is None:
        assert time.monotonic() < end_s
        time.sleep(0.05)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "rounds"),
    [
        ("postgresql", 2),
        pytest.param("postgresql", ROUNDS, marks=pytest.mark.long),
        pytest.param("mariadb", ROUNDS, marks=pytest.mark.long),
    ],
)
def test_every_job_ends_exactly_once_however_often_the_database_is_killed(kind, rounds, request, tmp_path):
    server = request.getfixturevalue(kind)
    url = server.database()
    path = config_in(tmp_path, live={"local": {"grace_s": 2}, "default_time_limit_s": 5, "store": url})
    store = store_of(path, url)
    for name in "ab":
        store.add_tenant(name, 1.0, 0.0)
    rng = np.random.default_rng(rounds)
    jobs = []
    with running(path):
        until_it_begins(store)
        for k in range(rounds):
            for n in range(3):
                seconds, epochs = float(rng.uniform(0.05, 0.6)), int(rng.integers(1, 4))
                file = witness(f"j{k}-{n}", tmp_path, seconds, epochs=epochs, gpus=int(rng.integers(1, 3)))
                jobs.append(submit(store, "ab"[n % 2], file, f"{k}-{n}"))
            time.sleep(float(rng.uniform(0.0, 1.0)))
            server.stop(hard=bool(k % 2 == 0))
            time.sleep(float(rng.uniform(0.0, 0.5)))
            server.start()
        until_all_end(store, jobs)
        assert check(store.database).problems == ()
    assert problems(store, tmp_path, jobs) == []
    store.database.close()
    server.drop(url)
