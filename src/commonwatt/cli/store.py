"""``commonwatt store``: back up, check, restore and upgrade the store a configuration names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import json_option, naming_file, needing, print_json
from commonwatt.cli.remote import plain
from commonwatt.cli.root import VerbGroup

if TYPE_CHECKING:
    from commonwatt.model.admin_results import StoreCheckResult
    from commonwatt.store.database import Database

__all__ = ["backup", "check", "command", "opened", "restore", "upgrade"]


@contextmanager
def opened(config: Path, *, existing: bool) -> Iterator[Database]:
    """Open the store of *config*; with *existing*, a missing SQLite file is an error."""
    from commonwatt.data.files import load_yaml
    from commonwatt.model.errors import InputError
    from commonwatt.model.scenario import Scenario

    file = load_yaml(config, Scenario)
    with needing("live"):
        from commonwatt.store.database import Database, address
        from commonwatt.store.migrate import head

        head()
    with naming_file(config):
        database = Database(address(file.live.store, config.parent.absolute()))
        path = database.url.database
        if existing and database.backend == "sqlite" and not Path(str(path)).is_file():
            raise InputError("a store that exists", field="live.store", value=path)
    try:
        yield database
    finally:
        database.close()


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@json_option
def backup(config: Path, file: Path, *, overwrite: bool, as_json: bool) -> None:
    """Back up the store of CONFIG to FILE, also while it is in use.

    FILE does not depend on the database: to move a store to another one, `restore` the backup there.

    \b
    Example:
      commonwatt store backup site.yaml monday.jsonl.gz
    """
    from commonwatt import __version__
    from commonwatt.model.admin_results import StoreBackupResult
    from commonwatt.model.units import plural

    with opened(config, existing=True) as database:
        from commonwatt.store.backup import back_up
        from commonwatt.store.migrate import head, prepare

        with naming_file(config):
            prepare(database)
        rows = back_up(database, file, __version__, overwrite=overwrite)
    result = StoreBackupResult(
        version=__version__, store=str(database), file=str(file), revision=head(), size_bytes=file.stat().st_size,
        rows=rows,
    )  # fmt: skip
    if as_json:
        print_json(result)
    else:
        total, jobs = plural(sum(rows.values()), "row"), plural(rows["jobs"], "job")
        click.echo(f"written: {file}, {total} ({jobs}), {result.size_bytes:,} bytes")


_SHOWN = 20  # problems in the terminal; --json has all


@click.command(short_help="Check a store for inconsistencies.")
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--sacct", type=click.Path(path_type=Path), metavar="FILE",
    help="Compare what ended jobs were charged with Slurm's accounts: what sacct printed, with JobName.",
)  # fmt: skip
@click.option(
    "--within", type=click.FloatRange(min=0), default=60.0, show_default=True, metavar="SECONDS",
    help="With --sacct: largest difference for each run and GPU.",
)  # fmt: skip
@json_option
def check(config: Path, *, sacct: Path | None, within: float, as_json: bool) -> None:
    """Check the store of CONFIG for inconsistencies; exit code 1 if there are any.

    The ledger must add up to the meter, every job must end once, and every command must have an outcome.

    \b
    Examples:
      commonwatt store check site.yaml
      commonwatt store check site.yaml --sacct jobs.txt
    """
    from commonwatt import __version__
    from commonwatt.model.admin_results import StoreAccounts, StoreCheckResult, StoreProblem
    from commonwatt.model.errors import StoreError
    from commonwatt.model.units import HOUR_S

    sums = None
    if sacct is not None:
        from commonwatt.data.readers.slurm import accounted

        sums = accounted(sacct)
    with opened(config, existing=True) as database:
        from commonwatt.store.check import accounts_beside
        from commonwatt.store.check import check as look
        from commonwatt.store.migrate import prepare

        with naming_file(config):
            prepare(database)
        report = look(database)
        beside = None if sums is None else accounts_beside(database, *sums, within)
    problems = (*report.problems, *(() if beside is None else beside.problems))
    result = StoreCheckResult(
        version=__version__, store=str(database), revision=report.revision, controller=report.controller,
        rows=report.rows, jobs=report.jobs, ledger_exact=report.ledger_exact, open_intents=report.open_intents,
        problems=tuple(StoreProblem(table=p.table, job=p.job, problem=p.problem) for p in problems),
        accounted_jobs=None if beside is None else beside.jobs,
        accounts=() if beside is None else tuple(
            StoreAccounts(tenant=tenant, ledger_gpu_h=own_s / HOUR_S, slurm_gpu_h=there_s / HOUR_S)
            for tenant, (own_s, there_s) in sorted(beside.gpu_s.items())
        ),
    )  # fmt: skip
    if as_json:
        print_json(result)
    else:
        _tell(result)
    if result.problems:
        raise StoreError(f"the store {result.store} has problems: {len(result.problems)}")


def _tell(result: StoreCheckResult) -> None:
    click.echo(f"{result.store}, revision {result.revision}")
    click.echo(f"controller: {'runs' if result.controller else 'none runs'}")
    click.echo("jobs: " + ", ".join(f"{count:,} {status}" for status, count in result.jobs.items()))
    click.echo(f"ledger: {'adds up to the meter' if result.ledger_exact else 'does not add up to the meter'}")
    click.echo(f"commands of unknown outcome: {result.open_intents}")
    if result.accounted_jobs is not None:
        click.echo(f"jobs compared with Slurm's accounts: {result.accounted_jobs:,}")
    for one in result.accounts:
        click.echo(f"  {one.tenant}: {one.ledger_gpu_h:,.2f} GPU h in the ledger, {one.slurm_gpu_h:,.2f} in Slurm")
    for problem in result.problems[:_SHOWN]:
        job = "" if problem.job is None else f"job {problem.job}: "
        click.echo(f"  {problem.table}: {job}{problem.problem}")
    if len(result.problems) > _SHOWN:
        click.echo(f"  {len(result.problems) - _SHOWN} more (--json has all)")
    if not result.problems:
        click.echo("all is well")


@click.command(short_help="Restore a backup into a new or empty store.")
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--overwrite", is_flag=True, help="Delete what is in the store now.")
@json_option
def restore(config: Path, file: Path, *, overwrite: bool, as_json: bool) -> None:
    """Restore the backup FILE into the new or empty store of CONFIG, all or nothing. Stop `serve` first.

    Tokens that were revoked in this store stay revoked. Prints the tokens that are valid afterwards.

    \b
    Example:
      commonwatt store restore elsewhere.yaml monday.jsonl.gz
    """
    from commonwatt import __version__
    from commonwatt.model.admin_results import StoreRestoreResult
    from commonwatt.model.live_results import TokenEntry
    from commonwatt.model.units import plural

    with opened(config, existing=False) as database:
        from commonwatt.store.api_store import ApiStore
        from commonwatt.store.backup import check_backup
        from commonwatt.store.backup import restore as put_back
        from commonwatt.store.migrate import head, prepare

        check_backup(file)
        with naming_file(config):
            prepare(database)
            rows = put_back(database, file, overwrite=overwrite)
        valid = tuple(TokenEntry.model_validate(t) for t in ApiStore(database).tokens() if t["revoked_s"] is None)
    result = StoreRestoreResult(
        version=__version__, store=str(database), file=str(file), revision=head(), rows=rows, valid_tokens=valid
    )
    if as_json:
        print_json(result)
        return
    click.echo(f"{database}: {plural(sum(rows.values()), 'row')} ({plural(rows['jobs'], 'job')}) from {file}")
    kept = "; what was revoked in the store before still is" if overwrite else ""
    click.echo(f"tokens valid now: {len(valid)}{kept}")
    for token in valid:
        click.echo(plain(f"  {token.id}  {token.tenant or '(operator)'}  {token.label}"))
    if valid:
        command = f"commonwatt token revoke NUMBER --config {config}"
        click.echo(f"revoke again what was revoked since the backup in a store that is gone: {command}")


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@json_option
def upgrade(config: Path, *, as_json: bool) -> None:
    """Upgrade the store of CONFIG to this version of commonwatt. Stop `serve` and make a backup first.

    \b
    Example:
      commonwatt store upgrade site.yaml
    """
    from commonwatt import __version__
    from commonwatt.model.admin_results import StoreUpgradeResult

    with opened(config, existing=True) as database, naming_file(config):
        from commonwatt.store.migrate import upgrade as upgrade_store

        before, after = upgrade_store(database)
    result = StoreUpgradeResult(version=__version__, store=str(database), before=before, after=after)
    if as_json:
        print_json(result)
    elif before == after:
        click.echo(f"{database} is at revision {after} already")
    else:
        click.echo(f"{database}: {f'revision {before}' if before else 'empty'} -> revision {after}")


@click.group(cls=VerbGroup)
def command() -> None:
    """Maintain the store of the control plane: SQLite, MariaDB or PostgreSQL.

    \b
    Examples:
      commonwatt store backup site.yaml monday.jsonl.gz
      commonwatt store check site.yaml --json
    """


for _sub in (backup, check, restore, upgrade):
    command.add_command(_sub)
