"""``commonwatt explain``."""

from __future__ import annotations

import click

from commonwatt.cli.output import json_option, print_json
from commonwatt.cli.remote import JOB, connected, plain, server_option, when

__all__ = ["command"]

_SHOWN = 20  # events in the terminal; --json has all


@click.command()
@click.argument("job", type=JOB)
@server_option
@json_option
def command(job: int, *, url: str | None, as_json: bool) -> None:
    """Say why JOB runs where it does, or waits; when it is expected to start and to end; what happened to it.

    \b
    Example:
      commonwatt explain 17
    """
    from datetime import UTC, datetime
    from time import time

    with connected(url) as client:
        told = client.explain(job)
    if as_json:
        print_json(told)
        return
    now_s = time()
    begins_s = told.expected_start_s
    if begins_s is not None and told.status == "waiting":
        begins_s = max(begins_s, now_s)  # it was worked out some seconds ago
    click.echo(plain(f"job {told.job} ({told.name}) is {told.status}: {told.sentence} [{told.reason}]"))
    for what, moment in (
        ("expected start", begins_s), ("expected end", told.expected_end_s), ("due", told.due_s),
    ):  # fmt: skip
        if moment is not None:
            click.echo(f"  {what:<15} {when(moment, now_s)}")
    if told.configurations:
        ways = ", ".join(
            f"{c.gpus} x {c.gpu_type}: {c.time_s:,.0f} s ({c.source})" for c in told.configurations[:_SHOWN]
        )
        click.echo(f"  may run on      {ways}")
    for event in told.history[-_SHOWN:]:
        at = datetime.fromtimestamp(event.time_s, UTC).isoformat(sep=" ", timespec="seconds")
        click.echo(plain(f"  {at[:19]}Z  {event.kind:<11} {event.sentence}"))
