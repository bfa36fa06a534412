"""``commonwatt drain``."""

from __future__ import annotations

import click

from commonwatt.cli.output import json_option
from commonwatt.cli.remote import asked_of_nodes, server_option

__all__ = ["command"]


@click.command()
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@server_option
@json_option
def command(nodes: tuple[str, ...], *, url: str | None, as_json: bool) -> None:
    """Give nodes no further jobs (operators); what runs there may stay.

    \b
    Example:
      commonwatt drain gpu-3
    """
    asked_of_nodes(url, nodes, lambda client, node: client.drain(node), "will be drained", as_json=as_json)
