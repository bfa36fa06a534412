"""What onlookers read."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.store.controller_store import Tick
from commonwatt.store.queries import ended_lately, last_ended
from tests.store.made import file


def ended(store, ticks, *ends_s):
    """Submit a job of ada for each of *ends_s*, and end it then; events are pruned."""
    numbers = [store.submit("ada", file(), 0.0)[0].id for _ in ends_s]
    tick = Tick()
    for number, end_s in zip(numbers, ends_s, strict=True):
        if end_s is not None:
            tick.change(number, status="completed", ended_s=end_s)
    ticks.write(tick)
    return numbers


def test_the_jobs_that_ended_last_are_found_also_without_their_events(database, store, ticks):
    a, b, c, _, e = ended(store, ticks, 5.0, 9.0, 7.0, None, 7.0)
    assert [row.id for row in ended_lately(database, None, limit=10)] == [b, e, c, a]
    assert [row.id for row in ended_lately(database, "ada", limit=3)] == [b, e, c]
    assert ended_lately(database, "bob", limit=3) == []


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("tenant", "index"), [(None, "ix_jobs_ended_s_id"), ("ada", "ix_jobs_tenant_ended_s_id")])
def test_which_they_are_is_found_in_an_index_without_looking_at_all_that_ended(database, store, ticks, tenant, index):
    ended(store, ticks, *range(20))
    with database.transaction() as c:
        c.exec_driver_sql("ANALYZE")
        query = last_ended(tenant, 5).compile(c.engine, compile_kwargs={"literal_binds": True})
        steps = [row.detail for row in c.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}")]
    assert f"COVERING INDEX {index}" in steps[1]
    few = next(k for k, step in enumerate(steps) if "anon_1" in step and k)
    assert not [step for step in steps[:few] if "B-TREE" in step]  # what is sorted are the few found
    assert "PRIMARY KEY" in steps[few + 1]
