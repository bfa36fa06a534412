"""``commonwatt events``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import json_option, print_json
from commonwatt.cli.remote import JOB, connected, plain, server_option

if TYPE_CHECKING:
    from commonwatt.model.live_results import EventEntry

__all__ = ["command"]

_MOST = 20
"""Nodes that are named of an event; --json has all."""
_NAMES_NODES = frozenset({
    "started", "resumed", "resized", "migrated", "preempted", "would-start", "would-move", "would-preempt",
})  # fmt: skip
"""Kinds of events whose sentences say where the job is."""


@click.command()
@click.option("--job", type=JOB, help="Of this job only.")
@click.option("--after", type=click.IntRange(0, 2**53 - 1), default=0, help="Only those with a larger number.")
@click.option("--last", type=click.IntRange(1, 100_000), default=50, show_default=True, help="How many at most.")
@server_option
@json_option
def command(*, job: int | None, after: int, last: int, url: str | None, as_json: bool) -> None:
    """Show the last of what happened: to all jobs one may see, or to one; in a dry run, what would have been done.

    \b
    Examples:
      commonwatt events --job 17
      commonwatt events --after 4210 --json
    """
    from datetime import UTC, datetime
    from itertools import islice

    from commonwatt.model.live_results import EventPage

    with connected(url) as client:
        newest = client.events(job=job, after=after, newest_first=True, page=min(last, 500))
        found = tuple(islice(newest, last))[::-1]
    if as_json:
        print_json(EventPage(events=found, next_after=found[-1].id if found else after))
        return
    for event in found:
        at = datetime.fromtimestamp(event.time_s, UTC).isoformat(sep=" ", timespec="seconds")[:19]
        whose = "" if event.job is None else f"job {event.job}: "
        said = f"{whose}{event.sentence or event.reason}{_where(event)}"
        click.echo(plain(f"{event.id:>7}  {at}Z  {event.kind:<13} {said}"))


def _where(event: EventEntry) -> str:
    """Return the nodes of an event, some of them if they are many, unless its sentence names them."""
    if not event.nodes or (event.sentence and event.kind in _NAMES_NODES):
        return ""
    more = f" and {len(event.nodes) - _MOST} more" if len(event.nodes) > _MOST else ""
    return f" ({', '.join(event.nodes[:_MOST])}{more})"
