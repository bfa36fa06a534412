"""Tokens on the store itself, for whoever may read and write it: before the first operator has one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commonwatt.cli.output import blamed_on
from commonwatt.cli.store.opened import opened as opened_database

if TYPE_CHECKING:
    from commonwatt.store.store import Store

__all__ = ["config_option", "noted", "opened"]

F = TypeVar("F", bound=Callable[..., Any])


def config_option(command: F) -> F:
    """Add ``--config``."""
    return click.option(
        "--config", type=click.Path(path_type=Path), metavar="CONFIG",
        help="Work on the store CONFIG names, not by the control plane.",
    )(command)  # fmt: skip


@contextmanager
def opened(config: Path, *, adding: bool = False) -> Iterator[Store]:
    """Open the store of *config*; for *adding* to it, it is made if need be, and the tenants it names are entered."""
    from time import time

    from commonwatt.data.files import load_yaml
    from commonwatt.model.scenario import Scenario

    with opened_database(config, existing=not adding) as database:
        from commonwatt.store.entitlements import enter_tenants
        from commonwatt.store.store import Store

        with blamed_on(config):
            database.prepare()
        store = Store(database)
        if adding:
            named = {tenant.name: tenant.weight for tenant in load_yaml(config, Scenario).tenants}
            with blamed_on(config):
                enter_tenants(database, named, time(), only_new=True)
        yield store


def noted(store: Store, action: str, target: str) -> None:
    """Add to the audit log what was done on the store itself."""
    import getpass
    from time import time

    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = "somebody"
    store.note(time(), f"{user}, on the store", action, target, "done")
