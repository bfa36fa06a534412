"""The store a configuration names, opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from commonwatt.cli.output import blamed_on, needing

if TYPE_CHECKING:
    from commonwatt.store.database import Database

__all__ = ["opened"]


@contextmanager
def opened(config: Path, *, existing: bool) -> Iterator[Database]:
    """Open the store of *config*; with *existing*, a file of SQLite that is not there is refused, not made."""
    from commonwatt.data.files import load_yaml
    from commonwatt.model.errors import InputError
    from commonwatt.model.scenario import Scenario

    file = load_yaml(config, Scenario)
    with needing("live"):
        from commonwatt.store.database import Database, address
        from commonwatt.store.migrate import head

        head()
    with blamed_on(config):
        database = Database(address(file.live.store, config.parent.absolute()))
        path = database.url.database
        if existing and database.backend == "sqlite" and not Path(str(path)).is_file():
            raise InputError("a store that exists", field="live.store", value=path)
    try:
        yield database
    finally:
        database.close()
