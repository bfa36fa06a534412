"""``commonwatt token``: by the control plane, or on its store before the first operator has a token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commonwatt.cli.output import FiniteRange, json_option, naming_file, print_json, print_message
from commonwatt.cli.remote import JOB, connected, server_option, show, when
from commonwatt.cli.root import VerbGroup
from commonwatt.cli.store import opened as opened_database
from commonwatt.model.units import DAY_S, plural

if TYPE_CHECKING:
    from commonwatt.model.live_results import TokenRole
    from commonwatt.store.api_store import ApiStore

__all__ = ["add", "command", "config_option", "list_", "noted", "opened", "revoke"]

F = TypeVar("F", bound=Callable[..., Any])


def config_option(command: F) -> F:
    """Add ``--config``."""
    return click.option(
        "--config", type=click.Path(path_type=Path), metavar="CONFIG",
        help="Work on the store of CONFIG, not through the control plane.",
    )(command)  # fmt: skip


@contextmanager
def opened(config: Path, *, adding: bool = False) -> Iterator[ApiStore]:
    """Open the store of *config*; for *adding* a token, create it if necessary, and enter its tenants."""
    from time import time

    from commonwatt.data.files import load_yaml
    from commonwatt.model.scenario import Scenario

    with opened_database(config, existing=not adding) as database:
        from commonwatt.store.api_store import ApiStore
        from commonwatt.store.migrate import prepare
        from commonwatt.store.settings import enter_tenants

        with naming_file(config):
            prepare(database)
        store = ApiStore(database)
        if adding:
            named = {tenant.name: tenant.weight for tenant in load_yaml(config, Scenario).tenants}
            with naming_file(config):
                enter_tenants(database, named, time(), only_new=True)
        yield store


def noted(store: ApiStore, action: str, target: str) -> None:
    """Record a change on the store itself in the audit log."""
    import getpass
    from time import time

    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = "somebody"
    store.note(time(), f"{user}, on the store", action, target, "done")


@click.command()
@click.option("--tenant", metavar="NAME", help="Tenant of the token.")
@click.option("--operator", is_flag=True, help="Create an operator's token, which may see and do everything.")
@click.option("--label", default="unnamed", show_default=True, metavar="TEXT", help="Description of the token.")
@click.option(
    "--role", type=click.Choice(["viewer", "admin"]),
    help="viewer: may only read; admin: may also manage the tenant's tokens.  [default: an ordinary token]",
)  # fmt: skip
@click.option(
    "--days", type=FiniteRange(min=0, min_open=True, max=100_000), help="Days until it expires.  [default: never]"
)
@config_option
@server_option
@json_option
def add(
    *, tenant: str | None, operator: bool, label: str, role: TokenRole | None, days: float | None, config: Path | None,
    url: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Create a token and show it once; only its digest is stored.

    \b
    Examples:
      commonwatt token add --tenant vision --label "Ann's laptop" --days 90
      commonwatt token add --operator --role viewer --label "wall display"
    """
    from time import time

    from commonwatt.data.files import validate
    from commonwatt.model.errors import InputError
    from commonwatt.model.live_results import NewToken, TokenOrder

    if operator == (tenant is not None):
        raise InputError("either --tenant NAME or --operator", field="--tenant")
    if config is None:
        with connected(url) as client:
            made = client.add_token(tenant, label, role=role, expires_in_s=None if days is None else days * DAY_S)
    else:
        wanted = {"tenant": tenant, "label": label, "role": role}
        order = validate(wanted | ({} if days is None else {"expires_in_s": days * DAY_S}), TokenOrder)
        expires_s = None if order.expires_in_s is None else time() + order.expires_in_s
        with opened(config, adding=True) as store:
            token = store.add_token(order.tenant, order.label, time(), role=order.role, expires_s=expires_s)
            owner = store.owner(token)
            assert owner is not None
            noted(store, "add_token", f"token {owner.token}")
        made = NewToken(
            id=owner.token, tenant=owner.tenant, label=owner.label, token=token, role=order.role, expires_s=expires_s
        )  # fmt: skip
    if as_json:
        print_json(made)
    else:
        who = "an operator" if made.tenant is None else f"tenant {made.tenant}"
        print_message(f"token {made.id}, of {who}; it is shown only now:")
        click.echo(made.token)


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
        (
            str(t.id),
            t.tenant or "(operator)",
            t.role or "",
            t.label,
            when(t.created_s, now_s),
            when(t.expires_s, now_s),
            when(t.revoked_s, now_s),
        )
        for t in page.tokens
    ]
    show(
        plural(len(rows), "token"),
        ("id", "tenant", "role", "label", "created", "expires", "revoked"),
        rows,
        right=("id",),
    )


@click.command()
@click.argument("token", metavar="ID", type=JOB)
@config_option
@server_option
@json_option
def revoke(token: int, *, config: Path | None, url: str | None, as_json: bool) -> None:
    """Revoke the token with number ID. A running server accepts it for at most 5 s more.

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


@click.group(cls=VerbGroup)
def command() -> None:
    """Create, list and revoke tokens: through the control plane (operators), or on its store (--config).

    \b
    Examples:
      commonwatt token add --operator --config live.yaml
      commonwatt token add --tenant vision --label "Ann's laptop"
      commonwatt token revoke 3
    """


for _sub in (add, list_, revoke):
    command.add_command(_sub)
