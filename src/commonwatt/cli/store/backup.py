"""``commonwatt store backup``."""

from __future__ import annotations

from pathlib import Path

import click

from commonwatt.cli.output import blamed_on, json_option, print_json
from commonwatt.cli.store.opened import opened

__all__ = ["backup"]


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@json_option
def backup(config: Path, file: Path, *, overwrite: bool, as_json: bool) -> None:
    """Write all of the store of CONFIG to FILE, while it is in use.

    FILE is the same for all three databases, so a store is moved from one to another by a backup and `restore`.

    \b
    Example:
      commonwatt store backup site.yaml monday.jsonl.gz
    """
    from commonwatt import __version__
    from commonwatt.model.store_results import StoreBackupResult

    with opened(config, existing=True) as database:
        from commonwatt.store.backup import back_up
        from commonwatt.store.migrate import head

        with blamed_on(config):
            database.prepare()
        rows = back_up(database, file, __version__, overwrite=overwrite)
    result = StoreBackupResult(
        version=__version__, store=str(database), file=str(file), revision=head(), size_bytes=file.stat().st_size,
        rows=rows,
    )  # fmt: skip
    if as_json:
        print_json(result)
    else:
        click.echo(f"written: {file}, {sum(rows.values()):,} rows ({rows['jobs']:,} jobs), {result.size_bytes:,} bytes")
