"""Every test that asks for a ``database`` runs on SQLite, and on real servers of MariaDB and PostgreSQL."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.machine import lacking
from tests.store.servers import MariaDB, PostgreSQL

with suppress(ModuleNotFoundError):  # the tests skip themselves then
    from commonwatt.store.api_store import ApiStore
    from commonwatt.store.controller_store import ControllerStore
    from commonwatt.store.database import Database, address
    from commonwatt.store.migrate import prepare
    from commonwatt.store.tables import metadata


def _running(kind, driver):
    pytest.importorskip(driver)
    if (reason := kind.missing()) is not None:
        lacking("database", reason)
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
    """Stores that were prepared once, by server, as addresses and opened: statements are then compiled once."""
    made = {}
    yield made
    for _, database in made.values():
        database.close()


@pytest.fixture
def usual(server, backend, prepared, tmp_path_factory):
    """A store with nothing in it, used by one test after the other: its address, and opened."""
    if backend not in prepared:
        folder = tmp_path_factory.mktemp("store")
        where = str(folder / "store.db") if server is None else server.database()
        prepared[backend] = where, Database(address(where, folder))
        prepare(prepared[backend][1])
    yield prepared[backend]
    if server is not None and server.process is None:
        server.start()
    with prepared[backend][1].transaction() as c:
        for table in reversed(metadata.sorted_tables):
            c.execute(table.delete())


@pytest.fixture
def place(usual):
    """The address of the store."""
    return usual[0]


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
def database(usual):
    return usual[1]


@pytest.fixture
def store(database):
    found = ApiStore(database)
    found.add_tenant("ada", 1.0, 0.0)
    return found


@pytest.fixture
def ticks(database):
    return ControllerStore(database)
