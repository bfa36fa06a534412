"""``commonwatt store upgrade``."""

from __future__ import annotations

from pathlib import Path

import click

from commonwatt.cli.output import blamed_on, json_option, print_json
from commonwatt.cli.store.opened import opened

__all__ = ["upgrade"]


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@json_option
def upgrade(config: Path, *, as_json: bool) -> None:
    """Bring the store of CONFIG to this version of commonwatt. Stop `serve` and make a backup first.

    \b
    Example:
      commonwatt store upgrade site.yaml
    """
    from commonwatt import __version__
    from commonwatt.model.store_results import StoreUpgradeResult

    with opened(config, existing=True) as database, blamed_on(config):
        before, after = database.upgrade()
    result = StoreUpgradeResult(version=__version__, store=str(database), before=before, after=after)
    if as_json:
        print_json(result)
    elif before == after:
        click.echo(f"{database} is at revision {after} already")
    else:
        click.echo(f"{database}: {f'revision {before}' if before else 'empty'} -> revision {after}")
