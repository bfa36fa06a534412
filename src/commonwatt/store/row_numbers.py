"""Numbers that databases give to rows: which was the last, and to go on after it in another database.

Those who watch events or requests ask for what comes after the last number they saw. So a number is never given
again, although the row that had it may be pruned by the time a backup is made.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from commonwatt.store.database import Database
from commonwatt.store.tables import metadata

__all__ = ["give_on", "last_given", "last_given_before"]

_NUMBERED = tuple(table for table in metadata.sorted_tables if "id" in table.c)


def last_given(c: sa.Connection) -> dict[str, int]:
    """Return the last number given in each table that has them; 0: none yet."""
    if c.dialect.name == "postgresql":
        return {table.name: _last_of_sequence(c, table) for table in _NUMBERED}
    if c.dialect.name == "sqlite":
        found = {row[0]: int(row[1]) for row in c.exec_driver_sql("SELECT name, seq FROM sqlite_sequence")}
    else:
        text = "SELECT table_name, auto_increment - 1 FROM information_schema.tables WHERE table_schema = database()"
        found = {row[0]: int(row[1] or 0) for row in c.execute(sa.text(text))}
    return {table.name: found.get(table.name, 0) for table in _NUMBERED}


def last_given_before(database: Database, last: Mapping[str, int]) -> None:
    """Where this cannot be part of a transaction (MariaDB), go on after *last* from now on."""
    if database.backend != "mariadb":
        return
    with database.transaction(what="row numbers") as c:
        now = last_given(c)
        for table in _NUMBERED:
            wanted = last.get(table.name, 0)
            if wanted > now[table.name]:
                c.execute(sa.text(f"ALTER TABLE {table.name} AUTO_INCREMENT = {int(wanted) + 1}"))


def give_on(c: sa.Connection, last: Mapping[str, int]) -> None:
    """Go on after *last*, and after all rows that are there."""
    for table in _NUMBERED:
        there = int(c.scalar(sa.select(sa.func.coalesce(sa.func.max(table.c.id), 0))) or 0)
        wanted = max(there, last.get(table.name, 0))
        if c.dialect.name == "postgresql" and wanted > _last_of_sequence(c, table):
            c.execute(sa.select(sa.func.setval(sa.func.pg_get_serial_sequence(table.name, "id"), wanted)))
        elif c.dialect.name == "sqlite":
            sequence = sa.table("sqlite_sequence", sa.column("name"), sa.column("seq"))
            own = sequence.c.name == table.name
            before = c.scalar(sa.select(sequence.c.seq).where(own))
            if before is None:
                c.execute(sequence.insert().values(name=table.name, seq=wanted))
            elif before < wanted:
                c.execute(sequence.update().where(own).values(seq=wanted))


def _last_of_sequence(c: sa.Connection, table: sa.Table) -> int:
    name = c.scalar(sa.select(sa.func.pg_get_serial_sequence(table.name, "id")))
    row = c.exec_driver_sql(f"SELECT last_value, is_called FROM {name}").one()  # noqa: S608  # quoted by the server
    return int(row[0]) if row[1] else 0
