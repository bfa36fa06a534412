"""The sums of the ledger that are kept: always those of its rows, whatever is charged, restored or upgraded."""

from __future__ import annotations

import random

import pytest
import sqlalchemy as sa

pytest.importorskip("alembic")

from commonwatt.model.job_file import JobFile
from commonwatt.store import tables
from commonwatt.store.api_store import ApiStore
from commonwatt.store.check import check
from commonwatt.store.controller_store import ControllerStore, Tick
from commonwatt.store.migrate import later_steps, prepare

COLUMNS = ("energy_uj", "cost_n", "carbon_ug", "gpu_us")


@pytest.mark.slow
def test_whatever_is_charged_the_sums_are_those_of_the_rows(opened):
    database, rng = opened(), random.Random(1)
    prepare(database)
    store, ticks = ApiStore(database), ControllerStore(database)
    for name in ("ada", "bob"):
        store.add_tenant(name, 1.0, 0.0)
    jobs = [store.submit(rng.choice(("ada", "bob")), JobFile(name="j", command=("x",)), 1.0)[0].id for _ in range(6)]
    wanted: dict[tuple[str, str | None], list[int | None]] = {}
    owner = {job: store.job(job).tenant for job in jobs}
    for _ in range(40):
        tick = Tick()
        for _ in range(rng.randint(0, 4)):
            job = rng.choice([0, *jobs])
            row = rng.choice(("job", "lost work")) if job else rng.choice(("idle", "meter"))
            amounts = {name: rng.choice((None, 0, 5, 2**62, 10**25)) if rng.random() < 0.1 else rng.randint(0, 9)
                       for name in COLUMNS[:3]}  # fmt: skip
            amounts["gpu_us"] = rng.randint(0, 2**40)
            tick.charge((row, job), amounts)
            sums = wanted.setdefault((row, owner.get(job)), [0, 0, 0, 0])
            for k, name in enumerate(COLUMNS):
                sums[k] = None if sums[k] is None or amounts[name] is None else sums[k] + amounts[name]
        tick.segments[rng.choice(jobs)] = rng.choice((None, dict.fromkeys(COLUMNS, 3)))
        before = store.ledger_version()
        ticks.write(tick)
        ticks.write(tick)  # its answer was lost: nothing is added twice
        assert store.ledger_version() != before
    said = {(row["row"], row["tenant"]): [row[name] for name in COLUMNS] for row in store.ledger()}
    assert {key: value for key, value in said.items() if key[0] != "segment"} == wanted
    assert not [defect for defect in check(database).problems if defect.table == "totals"]
    with database.transaction() as c:
        later_steps("0003")[0].fill(c)  # as an upgrade does
    assert {(row["row"], row["tenant"]): [row[name] for name in COLUMNS] for row in store.ledger()} == said


def test_a_sum_that_is_wrong_is_found(opened):
    database = opened()
    prepare(database)
    tick = Tick()
    tick.charge(("idle", 0), dict.fromkeys(COLUMNS, 7))
    tick.charge(("meter", 0), dict.fromkeys(COLUMNS, 7))
    ControllerStore(database).write(tick)
    assert check(database).problems == ()
    with database.transaction() as c:
        c.execute(tables.totals.update().where(tables.totals.c.row == "idle").values(cost_n=8))
    (defect,) = check(database).problems
    assert (defect.table, defect.problem) == ("totals", "cost_n of row 'idle': the sum kept is 8, that of the rows 7")


def test_rows_of_ended_jobs_are_not_read_for_the_sums(opened):
    database = opened()
    prepare(database)
    asked: list[str] = []
    sa.event.listen(database.engine, "before_cursor_execute", lambda _c, _k, text, *_: asked.append(text))
    ApiStore(database).ledger()
    touching = [text for text in asked if "FROM ledger" in text]
    assert len(touching) == 1
    assert "WHERE ledger.row" in touching[0].rpartition("FROM ledger")[2].replace('"', "")  # by the key
