"""``commonwatt store``: one file per subcommand."""

from __future__ import annotations

import click

from commonwatt.cli.store.backup import backup
from commonwatt.cli.store.check import check
from commonwatt.cli.store.restore import restore
from commonwatt.cli.store.upgrade import upgrade

__all__ = ["command"]


@click.group()
def command() -> None:
    """Look after the store of the live control plane: SQLite, MariaDB or PostgreSQL.

    \b
    Examples:
      commonwatt store backup site.yaml monday.jsonl.gz
      commonwatt store check site.yaml --json
    """


for _sub in (backup, check, restore, upgrade):
    command.add_command(_sub)
