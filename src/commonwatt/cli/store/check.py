"""``commonwatt store check``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import blamed_on, json_option, print_json
from commonwatt.cli.store.opened import opened

if TYPE_CHECKING:
    from commonwatt.model.store_results import StoreCheckResult

__all__ = ["check"]

_SHOWN = 20  # problems in the terminal; --json has all


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@json_option
def check(config: Path, *, as_json: bool) -> None:
    """Look for what must not be in the store of CONFIG; exit code 1 if there is any of it.

    Does the ledger add up to the meter, did every job end once, is every command's outcome known?

    \b
    Example:
      commonwatt store check site.yaml
    """
    from commonwatt import __version__
    from commonwatt.model.errors import StoreError
    from commonwatt.model.store_results import StoreCheckResult, StoreProblem

    with opened(config, existing=True) as database:
        from commonwatt.store.check import check as look

        with blamed_on(config):
            database.prepare()
        found = look(database)
    result = StoreCheckResult(
        version=__version__, store=str(database), revision=found.revision, controller=found.controller,
        rows=found.rows, jobs=found.jobs, ledger_exact=found.ledger_exact, open_intents=found.open_intents,
        problems=tuple(StoreProblem(table=p.table, job=p.job, problem=p.problem) for p in found.problems),
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
    for problem in result.problems[:_SHOWN]:
        job = "" if problem.job is None else f"job {problem.job}: "
        click.echo(f"  {problem.table}: {job}{problem.problem}")
    if len(result.problems) > _SHOWN:
        click.echo(f"  {len(result.problems) - _SHOWN} more (--json has all)")
    if not result.problems:
        click.echo("all is well")
