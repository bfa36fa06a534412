"""A whole store in one file, and back: the same file for SQLite, MariaDB and PostgreSQL.

The file is gzipped text, one JSON document per line: a head; for each table a line with its name and columns, then its
rows; a foot with the number of rows of each table and the SHA-256 of all lines before. The store is read in one
snapshot while it is in use; the file is complete or absent. It has secrets (environments of jobs), so only its owner
may read it.

A backup also has the last row number of each table. Readers of events and requests ask for what follows the last number
they saw, so no number may be given again, even if its row was pruned before the backup.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import secrets
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import sqlalchemy as sa

from commonwatt.model.errors import InputError
from commonwatt.store import tables
from commonwatt.store.claim import claim_store
from commonwatt.store.database import Database
from commonwatt.store.migrate import head, later_steps, revision
from commonwatt.store.tables import metadata

__all__ = [
    "OWN_SETTINGS",
    "back_up",
    "check_backup",
    "continue_row_numbers",
    "last_given",
    "last_given_before",
    "restore",
]

_NUMBERED = tuple(table for table in metadata.sorted_tables if "id" in table.c)


def last_given(c: sa.Connection) -> dict[str, int]:
    """Return the last number given to a row of each table that numbers them; 0: none yet."""
    if c.dialect.name == "postgresql":
        return {table.name: _last_of_sequence(c, table) for table in _NUMBERED}
    if c.dialect.name == "sqlite":
        numbers = {row[0]: int(row[1]) for row in c.exec_driver_sql("SELECT name, seq FROM sqlite_sequence")}
    else:
        text = "SELECT table_name, auto_increment - 1 FROM information_schema.tables WHERE table_schema = database()"
        numbers = {row[0]: int(row[1] or 0) for row in c.execute(sa.text(text))}
    return {table.name: numbers.get(table.name, 0) for table in _NUMBERED}


def last_given_before(database: Database, last: Mapping[str, int]) -> None:
    """Continue row numbers after *last* where that cannot be part of a transaction (MariaDB)."""
    if database.backend != "mariadb":
        return
    with database.transaction(what="row numbers") as c:
        now = last_given(c)
        for table in _NUMBERED:
            wanted = last.get(table.name, 0)
            if wanted > now[table.name]:
                c.execute(sa.text(f"ALTER TABLE {table.name} AUTO_INCREMENT = {int(wanted) + 1}"))


def continue_row_numbers(c: sa.Connection, last: Mapping[str, int]) -> None:
    """Continue row numbers after *last*, and after all existing rows."""
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


FORMAT = 1
OWN_SETTINGS = ("claim", "tick")  # of the running controller
_PAGE = 1000


def back_up(database: Database, path: Path, version: str, *, overwrite: bool = False) -> dict[str, int]:
    """Write all of *database* to *path*; returns the number of rows of each table.

    Raises ``InputError`` if *path* exists (unless *overwrite*) or cannot be written, ``StoreError``.
    """
    if path.exists() and not overwrite:
        raise InputError("a file that does not exist yet (or --overwrite)", file=path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "wb") as raw:
            with gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed:
                rows = _write(database, packed, version)
            raw.flush()
            os.fsync(raw.fileno())
        if overwrite:
            temporary.replace(path)
        else:
            path.hardlink_to(temporary)  # unlike a rename, this replaces nothing
    except OSError as error:
        raise InputError("a file that can be written", file=path, value=error.strerror) from None
    finally:
        temporary.unlink(missing_ok=True)
    return rows


def restore(database: Database, path: Path, *, overwrite: bool = False) -> dict[str, int]:
    """Fill *database*, prepared and empty, from the backup *path*; returns the number of rows of each table.

    All or nothing, while no controller runs on it. Tokens revoked in the store before stay revoked. Raises
    ``InputError`` if the store is not empty (unless *overwrite*: its rows are then deleted), or if the file is no
    backup, incomplete, or of a later revision of the tables.
    """
    check_backup(path)
    lines = _lines(path)
    first, steps = _head(path, next(lines, b""))
    numbers = _numbers(path, first)
    with claim_store(database):
        last_given_before(database, numbers)
        with database.transaction(what="restore") as c:
            if not overwrite:
                _check_empty(database, c)
            revoked = _revoked(c)
            for table in reversed(tables.metadata.sorted_tables):
                c.execute(table.delete())
            rows = _read(c, path, lines, steps)
            for step in steps:
                if hasattr(step, "fill"):
                    step.fill(c)
            _revoke(c, revoked)
            continue_row_numbers(c, numbers)
    return rows


def check_backup(path: Path) -> None:
    """Raise ``InputError`` unless *path* is a complete backup of a revision this version can read."""
    lines = _lines(path)
    line = next(lines, b"")
    _numbers(path, _head(path, line)[0])
    digest, last = hashlib.sha256(line), b""
    for line in lines:
        digest.update(last)
        last = line
    foot = _parse(path, last)
    if not isinstance(foot, dict) or foot.get("sha256") != digest.hexdigest():
        raise _broken(path)


def _write(database: Database, to: gzip.GzipFile, version: str) -> dict[str, int]:
    digest = hashlib.sha256()

    def put(document: object) -> None:
        line = json.dumps(document, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        digest.update(line)
        to.write(line)

    rows: dict[str, int] = {}
    with database.reading(what="backup", snapshot=True) as c:
        made = datetime.now(UTC).isoformat(timespec="seconds")
        put({
            "commonwatt store": FORMAT, "revision": revision(c), "version": version, "made": made,
            "from": database.backend, "numbers": last_given(c),
        })  # fmt: skip
        for table in tables.metadata.sorted_tables:
            put({"table": table.name, "columns": [column.name for column in table.columns]})
            query = sa.select(table).order_by(*table.primary_key.columns)
            if table is tables.settings:
                query = query.where(table.c.name.not_in(OWN_SETTINGS))
            rows[table.name] = 0
            with c.execute(query, execution_options={"yield_per": _PAGE}) as records:
                for row in records:
                    put(list(row))
                    rows[table.name] += 1
    put({"end": rows, "sha256": digest.hexdigest()})
    return rows


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path, "rb") as file:
            yield from file
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise _broken(path) from None
    except OSError as error:
        raise InputError("a file that can be read", file=path, value=error.strerror) from None


def _broken(path: Path) -> InputError:
    return InputError("a complete file that `commonwatt store backup` wrote", file=path)


def _parse(path: Path, line: bytes) -> Any:  # noqa: ANN401
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise _broken(path) from None


def _head(path: Path, line: bytes) -> tuple[dict[str, Any], list[ModuleType]]:
    """Return the head of a backup, and the migrations that are later than it."""
    first = _parse(path, line)
    if not isinstance(first, dict) or first.get("commonwatt store") is None:
        raise _broken(path)
    steps = later_steps(first.get("revision"))
    if first["commonwatt store"] != FORMAT or steps is None:
        raise InputError(
            f"a backup of this version of commonwatt, or an older one (newest known revision: {head()})", file=path,
            field="revision", value=f"{first.get('revision')} of commonwatt {first.get('version')}",
        )  # fmt: skip
    return first, steps


def _numbers(path: Path, first: dict[str, Any]) -> dict[str, int]:
    numbers = first.get("numbers")
    if not isinstance(numbers, dict) or not all(
        name in tables.metadata.tables and type(last) is int and 0 <= last < 2**62 for name, last in numbers.items()
    ):
        raise _broken(path)
    return numbers


def _check_empty(database: Database, c: sa.Connection) -> None:
    for table in tables.metadata.sorted_tables:
        query = sa.select(sa.literal(1)).select_from(table)
        if table is tables.settings:
            query = query.where(table.c.name.not_in(OWN_SETTINGS))
        if c.execute(query.limit(1)).first() is not None:
            raise InputError(
                "an empty store (or --overwrite, which deletes its rows)",
                field="live.store", value=f"{database} with rows in {table.name}",
            )  # fmt: skip


def _revoked(c: sa.Connection) -> dict[str, float]:
    """Return when each token was revoked that is, by its digest."""
    t = tables.tokens.c
    rows = c.execute(sa.select(t.digest, t.revoked_s).where(t.revoked_s.is_not(None)))
    return {row.digest: row.revoked_s for row in rows}


def _revoke(c: sa.Connection, revoked: Mapping[str, float]) -> None:
    t = tables.tokens
    valid = c.execute(sa.select(t.c.id, t.c.digest).where(t.c.revoked_s.is_(None))).all()
    for row in valid:
        if row.digest in revoked:
            c.execute(t.update().where(t.c.id == row.id).values(revoked_s=revoked[row.digest]))


def _read(c: sa.Connection, path: Path, lines: Iterator[bytes], steps: Sequence[ModuleType]) -> dict[str, int]:
    """Insert the rows of a backup, which lacks what *steps* added later; returns how many, by table."""
    later = {name for step in steps for name in getattr(step, "ADDED_TABLES", ())}
    left = [table for table in tables.metadata.sorted_tables if table.name not in later]
    rows: dict[str, int] = {}
    table: sa.Table | None = None
    columns: list[str] = []
    waiting: list[dict[str, Any]] = []

    def flush() -> None:
        if table is not None and waiting:
            c.execute(table.insert(), waiting)
            waiting.clear()

    for line in lines:
        document = _parse(path, line)
        if isinstance(document, dict) and "end" in document:
            flush()
            if left or document["end"] != rows or next(lines, None):
                raise _broken(path)
            return rows
        if isinstance(document, dict):
            flush()
            table = left.pop(0) if left else None
            if table is None:
                raise _broken(path)
            added = {name for step in steps for name in getattr(step, "ADDED", {}).get(table.name, ())}
            columns = [column.name for column in table.columns if column.name not in added]
            if document != {"table": table.name, "columns": columns}:
                raise _broken(path)
            rows[table.name] = 0
        elif table is None or not isinstance(document, list) or len(document) != len(columns):
            raise _broken(path)
        else:
            waiting.append(dict(zip(columns, document, strict=True)))
            rows[table.name] += 1
            if len(waiting) == _PAGE:
                flush()
    raise _broken(path)
