"""``commonwatt store restore``."""

from __future__ import annotations

from pathlib import Path

import click

from commonwatt.cli.output import blamed_on, json_option, print_json
from commonwatt.cli.remote import plain
from commonwatt.cli.store.opened import opened

__all__ = ["restore"]


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--overwrite", is_flag=True, help="Delete what is in the store now.")
@json_option
def restore(config: Path, file: Path, *, overwrite: bool, as_json: bool) -> None:
    """Fill the store of CONFIG, new or empty, from the backup FILE. All or nothing; `serve` must not run.

    Tokens revoked in the store before stay revoked; those valid afterwards are shown.

    \b
    Example:
      commonwatt store restore elsewhere.yaml monday.jsonl.gz
    """
    from commonwatt import __version__
    from commonwatt.model.live_results import TokenEntry
    from commonwatt.model.store_results import StoreRestoreResult

    with opened(config, existing=False) as database:
        from commonwatt.store.backup import check_backup
        from commonwatt.store.backup import restore as put_back
        from commonwatt.store.migrate import head
        from commonwatt.store.store import Store

        check_backup(file)
        with blamed_on(config):
            database.prepare()
            rows = put_back(database, file, overwrite=overwrite)
        valid = tuple(TokenEntry.model_validate(t) for t in Store(database).tokens() if t["revoked_s"] is None)
    result = StoreRestoreResult(
        version=__version__, store=str(database), file=str(file), revision=head(), rows=rows, valid_tokens=valid
    )
    if as_json:
        print_json(result)
        return
    click.echo(f"{database}: {sum(rows.values()):,} rows ({rows['jobs']:,} jobs) from {file}")
    kept = "; what was revoked in the store before still is" if overwrite else ""
    click.echo(f"tokens valid now: {len(valid)}{kept}")
    for token in valid:
        click.echo(plain(f"  {token.id}  {token.tenant or '(operator)'}  {token.label}"))
    if valid:
        command = f"commonwatt token revoke NUMBER --config {config}"
        click.echo(f"revoke again what was revoked since the backup in a store that is gone: {command}")
