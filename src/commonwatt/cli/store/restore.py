"""``commonwatt store restore``."""

from __future__ import annotations

from pathlib import Path

import click

from commonwatt.cli.output import blamed_on, json_option, print_json
from commonwatt.cli.store.opened import opened

__all__ = ["restore"]


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--overwrite", is_flag=True, help="Delete what is in the store now.")
@json_option
def restore(config: Path, file: Path, *, overwrite: bool, as_json: bool) -> None:
    """Fill the store of CONFIG, new or empty, from the backup FILE. All or nothing; `serve` must not run.

    \b
    Example:
      commonwatt store restore elsewhere.yaml monday.jsonl.gz
    """
    from commonwatt import __version__
    from commonwatt.model.store_results import StoreRestoreResult

    with opened(config, existing=False) as database:
        from commonwatt.store.backup import check_backup
        from commonwatt.store.backup import restore as put_back
        from commonwatt.store.migrate import head

        check_backup(file)
        with blamed_on(config):
            database.prepare()
            rows = put_back(database, file, overwrite=overwrite)
    result = StoreRestoreResult(version=__version__, store=str(database), file=str(file), revision=head(), rows=rows)
    if as_json:
        print_json(result)
    else:
        click.echo(f"{database}: {sum(rows.values()):,} rows ({rows['jobs']:,} jobs) from {file}")
