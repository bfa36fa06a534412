"""A ledger larger than 64 bits: exact to the last microjoule on all three databases."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")

import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commonwatt.model.errors import StoreDownError, StoreError
from commonwatt.store import tables
from commonwatt.store.check import check
from commonwatt.store.controller_store import Tick
from tests.store.made import file, spent

MOST = 10**38 - 1
COLUMNS = ("energy_uj", "cost_n", "carbon_ug", "gpu_us")
EDGES = [2**53, 10**17, 10**18, 2**63 - 1, 2**63, 2**64, 10**19, 10**36]
near = st.builds(
    lambda edge, more, sign: sign * (edge + more), st.sampled_from(EDGES), st.integers(-2, 2), st.sampled_from([1, -1])
)
amounts = st.one_of(st.none(), st.integers(-3, 3), near)
changes = st.fixed_dictionaries(
    {"energy_uj": amounts, "cost_n": near, "carbon_ug": amounts, "gpu_us": st.one_of(st.integers(0, 9), near)}
)


@pytest.mark.slow
def test_two_months_of_a_large_cluster(store, ticks):
    """1,000 nodes of 3.4 kW: at 64 bits the meter is full on the 32nd day."""
    day_uj = 1000 * 3400 * 86400 * 10**6 + 1
    for _ in range(62):
        half = spent(day_uj // 2, 0, None, 0), spent(day_uj - day_uj // 2, 0, 0, 0)
        whole = spent(day_uj, 0, None, 0)
        ticks.write(Tick(ledger={("meter", 0): whole, ("idle", 0): half[0], ("waking", 0): half[1]}))
    rows = {row["row"]: row for row in store.ledger()}
    assert rows["meter"]["energy_uj"] == 62 * day_uj
    assert type(rows["meter"]["energy_uj"]) is int
    assert rows["idle"]["energy_uj"] + rows["waking"]["energy_uj"] == 62 * day_uj
    assert rows["idle"]["carbon_ug"] is None
    assert check(store.database).problems == ()
    ticks.write(Tick(ledger={("meter", 0): spent(1, 0, 0, 0)}))
    (problem,) = check(store.database).problems
    assert problem.problem == f"energy_uj: the meter says {62 * day_uj + 1}, its rows {62 * day_uj}"


@pytest.mark.long
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(written=st.lists(st.dictionaries(st.integers(0, 3), changes, max_size=4), max_size=5))
def test_sums_are_exact_beyond_64_bits(backend, written, request):
    """Of each job over ticks, and of all jobs, short and long numbers together."""
    store, ticks = request.getfixturevalue("store"), request.getfixturevalue("ticks")
    with store.database.transaction() as c:
        for table in (tables.ledger, tables.totals, tables.requests, tables.jobs):
            c.execute(table.delete())
    jobs = [0, *(store.submit("ada", file(f"j{k}"), 1.0)[0].id for k in range(3))]
    sums: dict = {}
    for change in written:
        ticks.write(Tick(ledger={("job", jobs[k]): values for k, values in change.items()}))
        for k, values in change.items():
            before = sums.setdefault(jobs[k], dict.fromkeys(COLUMNS, 0))
            sums[jobs[k]] = {n: None if None in (before[n], values[n]) else before[n] + values[n] for n in COLUMNS}
    assert {job: store.account(job) for job in sums} == sums
    totals = {None: [v for job, v in sums.items() if not job], "ada": [v for job, v in sums.items() if job]}
    wanted = {
        tenant: {n: None if any(v[n] is None for v in values) else sum(v[n] for v in values) for n in COLUMNS}
        for tenant, values in totals.items()
        if values
    }
    assert {row["tenant"]: {n: row[n] for n in COLUMNS} for row in store.ledger()} == wanted


def test_many_rows_whose_sum_is_larger_than_each(store, ticks):
    """A sum overflows though no number of it does."""
    jobs = [store.submit("ada", file(f"j{k}"), 1.0)[0].id for k in range(30)]
    ticks.write(Tick(ledger={("job", job): spent(10**18 - job, 2**62 + job, -(10**17), MOST // 100) for job in jobs}))
    (row,) = store.ledger()
    assert row["energy_uj"] == sum(10**18 - job for job in jobs) > 2**63
    assert row["cost_n"] == sum(2**62 + job for job in jobs)
    assert (row["carbon_ug"], row["gpu_us"]) == (-30 * 10**17, 30 * (MOST // 100))


@pytest.mark.parametrize("number", [MOST, -MOST])
def test_the_largest_numbers_there_may_be(store, ticks, number):
    ticks.write(Tick(segments={1: spent(number, number, number, number)}))
    assert ticks.segments() == {1: spent(number, number, number, number)}
    with pytest.raises(StoreError, match="more than 38 digits") as caught:
        ticks.write(Tick(ledger={("segment", 1): dict.fromkeys(COLUMNS, number // abs(number))}))
    assert not isinstance(caught.value, StoreDownError)
    assert ticks.segments() == {1: spent(number, number, number, number)}


OVERFLOWS = {
    "sqlite": "SELECT sum(x) FROM (SELECT 9223372036854775807 AS x UNION ALL SELECT 1)",
    "mariadb": "SELECT 9223372036854775807 + 1",
    "postgresql": "SELECT CAST(9223372036854775807 AS bigint) + CAST(1 AS bigint)",
}


def test_what_comes_again_each_time_is_not_taken_for_passing(database, backend):
    """Else a tick would be tried again for ever."""
    with pytest.raises(StoreError, match=r"overflow|out of range") as caught, database.reading() as c:
        c.execute(sa.text(OVERFLOWS[backend])).all()
    assert not isinstance(caught.value, StoreDownError)


def test_a_ledger_somebody_wrote_into_is_told_of(store, backend):
    if backend != "sqlite":
        pytest.skip("servers hold that it is a number")
    with store.database.transaction() as c:
        c.exec_driver_sql("INSERT INTO ledger VALUES ('job', 1, 'twelve', '0', '0', '0')")
    with pytest.raises(StoreError, match="no whole number: 'twelve'"):
        store.account(1)
