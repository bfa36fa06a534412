"""``commonwatt hold``."""

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
    """Keep jobs from being started until they are released. JOB is a number, as `commonwatt jobs` shows it.

    A job that runs goes on, and is not started again once it is off its nodes.

    \b
    Example:
      commonwatt hold 17 18
    """
    asked_of_jobs(url, jobs, lambda client, job: client.hold(job), "will be held", as_json=as_json)
