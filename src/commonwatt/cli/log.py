"""``commonwatt log``."""

from __future__ import annotations

import click

from commonwatt.cli.output import json_option, print_json
from commonwatt.cli.remote import JOB, connected, plain, server_option

__all__ = ["command"]


@click.command()
@click.argument("job", type=JOB)
@click.option(
    "--last-bytes", type=click.IntRange(1, 1_000_000), default=65_536, show_default=True,
    help="How much of the end to show.",
)  # fmt: skip
@server_option
@json_option
def command(job: int, *, last_bytes: int, url: str | None, as_json: bool) -> None:
    """Show the end of what JOB printed in its present or last run (engines local and slurm).

    \b
    Example:
      commonwatt log 17
    """
    from commonwatt.model.live_results import JobLog

    with connected(url) as client:
        text = client.log(job, last_bytes=last_bytes)
    if as_json:
        print_json(JobLog(job=job, text=text))
    else:
        click.echo(plain(text, keep="\n\t"), nl=not text.endswith("\n"))
