"""``commonwatt mode``."""

from __future__ import annotations

import click

from commonwatt.cli.output import json_option, print_json
from commonwatt.cli.remote import connected, server_option

__all__ = ["command"]


@click.command()
@click.argument("mode", type=click.Choice(["live", "dry-run"]), required=False)
@server_option
@json_option
def command(mode: str | None, *, url: str | None, as_json: bool) -> None:
    """Show whether decisions are carried out (live) or only written down (dry-run); with MODE, switch (operators).

    Jobs that run go on either way.

    \b
    Example:
      commonwatt mode dry-run
    """
    from commonwatt.model.live_results import ModeState

    with connected(url) as client:
        state = ModeState(mode=client.cluster().mode) if mode is None else client.set_mode(mode)
    if as_json:
        print_json(state)
    else:
        click.echo(f"mode {state.mode}" if mode is None else f"mode {state.mode} from the next tick on")
