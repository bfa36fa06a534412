"""``commonwatt token revoke``."""

from __future__ import annotations

from pathlib import Path

import click

from commonwatt.cli.output import json_option, print_json
from commonwatt.cli.remote import JOB, connected, server_option
from commonwatt.cli.token._store import config_option, noted, opened

__all__ = ["revoke"]


@click.command()
@click.argument("token", metavar="ID", type=JOB)
@config_option
@server_option
@json_option
def revoke(token: int, *, config: Path | None, url: str | None, as_json: bool) -> None:
    """Make the token with number ID worthless. A running server takes it for 5 s more at most.

    \b
    Example:
      commonwatt token revoke 3
    """
    from time import time

    from commonwatt.model.errors import InputError

    if config is None:
        with connected(url) as client:
            client.revoke(token)
    else:
        with opened(config) as store:
            if not store.revoke(token, time()):
                raise InputError("the number of a token that is not revoked", field="ID", value=token)
            noted(store, "revoke", f"token {token}")
    if as_json:
        print_json({"revoked": token})
    else:
        click.echo(f"token {token} is revoked")
