"""What Alembic runs for each command.

Ours come with a connection (``commonwatt.store.migrate``). To write the next version, from the repository root::

    alembic -x store=old.db revision --autogenerate -m "what changes" --rev-id 0003
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import context

from commonwatt.model.errors import InputError
from commonwatt.store.database import Database, address
from commonwatt.store.tables import metadata

__all__ = ["run"]


def run() -> None:
    """Migrate the database Alembic was called for."""
    connection = context.config.attributes.get("connection")
    if connection is not None:
        _run_on(connection)
        return
    store = context.get_x_argument(as_dictionary=True).get("store")
    if not isinstance(store, str):
        raise InputError("the address of a store", field="-x store=")
    database = Database(address(store, Path.cwd()))
    with database.transaction(what="migration") as connection:
        _run_on(connection)
    database.close()


def _run_on(connection: sa.Connection) -> None:
    from commonwatt.store.migrate import VERSION_TABLE

    context.configure(
        connection=connection,
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        transactional_ddl=connection.dialect.name != "mariadb",
        render_as_batch=connection.dialect.name == "sqlite",
    )
    with context.begin_transaction():
        context.run_migrations()


if hasattr(context, "config"):  # run by Alembic, not imported
    run()
