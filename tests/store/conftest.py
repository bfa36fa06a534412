"""Every test that asks for a ``database`` runs on SQLite, and on real servers of MariaDB and PostgreSQL."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")

from commonwatt.store.database import Database, address
from commonwatt.store.store import Store
from commonwatt.store.ticks import TickStore
from tests.store.servers import MariaDB, PostgreSQL


def _running(kind, driver):
    pytest.importorskip(driver)
    if (reason := kind.missing()) is not None:
        pytest.skip(reason)
    server = kind()
    yield server
    server.close()


@pytest.fixture(scope="session")
def mariadb():
    yield from _running(MariaDB, "pymysql")


@pytest.fixture(scope="session")
def postgresql():
    yield from _running(PostgreSQL, "psycopg")


@pytest.fixture(params=["sqlite", "mariadb", "postgresql"])
def backend(request):
    return request.param


@pytest.fixture
def server(backend, request):
    """The server, where there is one."""
    return None if backend == "sqlite" else request.getfixturevalue(backend)


@pytest.fixture
def empty(server, tmp_path):
    """Address of a new database."""
    if server is None:
        yield str(tmp_path / "store.db")
        return
    made = server.database()
    yield made
    if server.process is not None:
        server.drop(made)


@pytest.fixture
def opened(empty, tmp_path):
    """Opens the database once more."""
    made = []

    def open_it(**options) -> Database:
        made.append(Database(address(empty, tmp_path), **options))
        return made[-1]

    yield open_it
    for database in made:
        database.close()


@pytest.fixture
def database(opened):
    found = opened()
    found.prepare()
    return found


@pytest.fixture
def store(database):
    found = Store(database)
    found.add_tenant("ada", 1.0, 0.0)
    return found


@pytest.fixture
def ticks(database):
    return TickStore(database)
