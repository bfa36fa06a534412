"""A whole store in one file, and back: the same file for SQLite, MariaDB and PostgreSQL.

The file is gzipped text, a JSON document a line: a head; for each table a line that names it and its columns, then its
rows; a foot with the number of rows of each table and the SHA-256 of all lines before. It is read in one snapshot while
the store is in use, and is there whole or not at all. It holds what is secret (environments of jobs), so only its owner
may read it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import secrets
import zlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from commonwatt.model.errors import InputError
from commonwatt.store import tables
from commonwatt.store.database import Database
from commonwatt.store.migrate import head, revision
from commonwatt.store.row_numbers import give_on, last_given, last_given_before

__all__ = ["OWN_SETTINGS", "back_up", "check_backup", "restore"]

FORMAT = 1
OWN_SETTINGS = ("claim", "tick")  # of the controller that runs just now
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
    ``InputError`` if the store is not empty (unless *overwrite*: what was in it is then deleted), or if the file is no
    backup, not whole, or of another revision of the tables.
    """
    check_backup(path)
    lines = _lines(path)
    line = next(lines, b"")
    numbers = _numbers(path, _head(path, line))
    with database.claim():
        last_given_before(database, numbers)
        with database.transaction(what="restore") as c:
            if not overwrite:
                _hold_empty(database, c)
            revoked = _revoked(c)
            for table in reversed(tables.metadata.sorted_tables):
                c.execute(table.delete())
            rows = _read(c, path, lines)
            _revoke(c, revoked)
            give_on(c, numbers)
    return rows


def check_backup(path: Path) -> None:
    """Raise ``InputError`` if *path* is no whole backup of this revision of the tables."""
    lines = _lines(path)
    line = next(lines, b"")
    _numbers(path, _head(path, line))
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
            with c.execute(query, execution_options={"yield_per": _PAGE}) as found:
                for row in found:
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
    return InputError("a whole file that `commonwatt store backup` wrote", file=path)


def _parse(path: Path, line: bytes) -> Any:  # noqa: ANN401
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise _broken(path) from None


def _head(path: Path, line: bytes) -> dict[str, Any]:
    first = _parse(path, line)
    if not isinstance(first, dict) or first.get("commonwatt store") is None:
        raise _broken(path)
    if first["commonwatt store"] != FORMAT or first.get("revision") != head():
        raise InputError(
            f"a backup of revision {head()} of the tables, as this version of commonwatt writes them", file=path,
            field="revision", value=f"{first.get('revision')} of commonwatt {first.get('version')}",
        )  # fmt: skip
    return first


def _numbers(path: Path, first: dict[str, Any]) -> dict[str, int]:
    numbers = first.get("numbers")
    if not isinstance(numbers, dict) or not all(
        name in tables.metadata.tables and type(last) is int and 0 <= last < 2**62 for name, last in numbers.items()
    ):
        raise _broken(path)
    return numbers


def _hold_empty(database: Database, c: sa.Connection) -> None:
    for table in tables.metadata.sorted_tables:
        query = sa.select(sa.literal(1)).select_from(table)
        if table is tables.settings:
            query = query.where(table.c.name.not_in(OWN_SETTINGS))
        if c.execute(query.limit(1)).first() is not None:
            raise InputError(
                "a store with nothing in it (or --overwrite, which deletes what is)",
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


def _read(c: sa.Connection, path: Path, lines: Iterator[bytes]) -> dict[str, int]:
    left = list(tables.metadata.sorted_tables)
    rows: dict[str, int] = {}
    table: sa.Table | None = None
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
            if table is None or document != {"table": table.name, "columns": [c.name for c in table.columns]}:
                raise _broken(path)
            rows[table.name] = 0
        elif table is None or not isinstance(document, list) or len(document) != len(table.columns):
            raise _broken(path)
        else:
            waiting.append(dict(zip(table.columns.keys(), document, strict=True)))
            rows[table.name] += 1
            if len(waiting) == _PAGE:
                flush()
    raise _broken(path)
