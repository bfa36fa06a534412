"""Every test that asks for a ``database`` runs on SQLite, and on real servers of MariaDB and PostgreSQL."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.store.servers import MariaDB, PostgreSQL

with suppress(ModuleNotFoundError):  # the tests skip themselves then
    from commonwatt.store.database import Database, address
    from commonwatt.store.store import Store
    from commonwatt.store.tables import metadata
    from commonwatt.store.ticks import TickStore


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


@pytest.fixture(scope="session")
def prepared():
    """Addresses of databases that were prepared once, by server."""
    return {}


@pytest.fixture
def place(server, backend, prepared, tmp_path):
    """Address of a store with nothing in it; a server's is used by one test after the other."""
    if server is None:
        yield str(tmp_path / "store.db")
        return
    if backend not in prepared:
        prepared[backend] = server.database()
        made = Database(address(prepared[backend], tmp_path))
        made.prepare()
        made.close()
    yield prepared[backend]
    if server.process is None:
        server.start()
    made = Database(address(prepared[backend], tmp_path))
    with made.transaction() as c:
        for table in reversed(metadata.sorted_tables):
            c.execute(table.delete())
    made.close()


def _opening(where, folder):
    made = []

    def open_it(**options) -> Database:
        made.append(Database(address(where, folder), **options))
        return made[-1]

    yield open_it
    for database in made:
        database.close()


@pytest.fixture
def opened(empty, tmp_path):
    """Opens the new database, as often as one likes."""
    yield from _opening(empty, tmp_path)


@pytest.fixture
def again(place, tmp_path):
    """Opens the store once more."""
    yield from _opening(place, tmp_path)


@pytest.fixture
def database(again):
    found = again()
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
