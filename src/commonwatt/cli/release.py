"""``commonwatt release``."""

from __future__ import annotations

import click

from commonwatt.cli.output import json_option
from commonwatt.cli.remote import JOB, asked_of_jobs, server_option

__all__ = ["command"]


@click.command()
@click.argument("jobs", metavar="JOB...", type=JOB, nargs=-1, required=True)
@server_option
@json_option
def command(jobs: tuple[int, ...], *, url: str | None, as_json: bool) -> None:
    """Let jobs that are held be started again. JOB is a number, as `commonwatt jobs` shows it.

    \b
    Example:
      commonwatt release 17 18
    """
    asked_of_jobs(url, jobs, lambda client, job: client.release(job), "will be released", as_json=as_json)
