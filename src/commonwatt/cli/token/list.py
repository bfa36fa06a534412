"""``commonwatt token list``."""

from __future__ import annotations

from pathlib import Path

import click

from commonwatt.cli.output import json_option, print_json
from commonwatt.cli.remote import connected, server_option, show, when
from commonwatt.cli.token._store import config_option, opened

__all__ = ["list_"]


@click.command("list")
@config_option
@server_option
@json_option
def list_(*, config: Path | None, url: str | None, as_json: bool) -> None:
    """List tokens, without their secrets.

    \b
    Example:
      commonwatt token list
    """
    from time import time

    from commonwatt.model.live_results import TokenEntry, TokenPage

    if config is None:
        with connected(url) as client:
            page = client.tokens()
    else:
        with opened(config) as store:
            page = TokenPage(tokens=tuple(TokenEntry.model_validate(row) for row in store.tokens()))
    if as_json:
        print_json(page)
        return
    now_s = time()
    rows = [
        (str(t.id), t.tenant or "(operator)", t.label, when(t.created_s, now_s), when(t.revoked_s, now_s))
        for t in page.tokens
    ]
    show(f"{len(rows)} tokens", ("id", "tenant", "label", "made", "revoked"), rows, right=("id",))
