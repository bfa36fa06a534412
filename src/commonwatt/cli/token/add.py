"""``commonwatt token add``."""

from __future__ import annotations

from pathlib import Path

import click

from commonwatt.cli.output import json_option, print_json, say
from commonwatt.cli.remote import connected, server_option
from commonwatt.cli.token._store import config_option, noted, opened

__all__ = ["add"]


@click.command()
@click.option("--tenant", metavar="NAME", help="Tenant the token is for.")
@click.option("--operator", is_flag=True, help="For an operator, who may see and do everything.")
@click.option("--label", default="unnamed", show_default=True, metavar="TEXT", help="What it is for.")
@config_option
@server_option
@json_option
def add(*, tenant: str | None, operator: bool, label: str, config: Path | None, url: str | None, as_json: bool) -> None:
    """Make a token and show it, once: only a digest of it is kept.

    \b
    Example:
      commonwatt token add --tenant vision --label "Ann's laptop"
    """
    from time import time

    from commonwatt.data.files import validate
    from commonwatt.model.errors import InputError
    from commonwatt.model.live_results import NewToken, TokenOrder

    if operator == (tenant is not None):
        raise InputError("either --tenant NAME or --operator", field="--tenant")
    if config is None:
        with connected(url) as client:
            made = client.add_token(tenant, label)
    else:
        order = validate({"tenant": tenant, "label": label}, TokenOrder)
        with opened(config, adding=True) as store:
            token = store.add_token(order.tenant, order.label, time())
            owner = store.owner(token)
            assert owner is not None
            noted(store, "add_token", f"token {owner.token}")
        made = NewToken(id=owner.token, tenant=owner.tenant, label=owner.label, token=token)
    if as_json:
        print_json(made)
    else:
        who = "an operator" if made.tenant is None else f"tenant {made.tenant}"
        say(f"token {made.id}, of {who}; it is shown only now:")
        click.echo(made.token)
