"""``commonwatt login``, ``logout`` and ``whoami``: people of the site's identity provider at the control plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import json_option, print_json, print_message
from commonwatt.cli.remote import connected, given_ca, plain, server_option, when

if TYPE_CHECKING:
    from commonwatt.client.login import DeviceCode
    from commonwatt.model.live_results import WhoAmI

__all__ = ["login", "logout", "whoami"]


@click.command()
@click.option("--browser", is_flag=True, help="Sign in with the browser of this machine, instead of by a code.")
@server_option
@json_option
def login(*, browser: bool, url: str | None, as_json: bool) -> None:
    """Sign in with the site's identity provider; later commands use and renew that login.

    Shows an address and a code: open the address in any browser, on any machine, and confirm the code. The login is
    kept in ~/.config/commonwatt/logins.json, for this URL, until `commonwatt logout`.

    \b
    Example:
      commonwatt login --url https://gpus.example.org
    """
    import os
    from time import time

    from commonwatt.client.connection import find_settings, is_exposed, logins_of
    from commonwatt.client.login import sign_in_by_browser, sign_in_by_device
    from commonwatt.model.errors import InputError

    settings = find_settings(url, ca_file=given_ca())
    if exposed := [each for each in (settings.url, *settings.others) if is_exposed(each)]:
        raise InputError("a URL with https: a token would cross the network unencrypted", field="url", value=exposed[0])
    with connected(url) as client:
        offer = client.login_offer()
        print_message(f"{plain(settings.name)} asks you to sign in at {plain(offer.issuer)}")
        made = (
            sign_in_by_browser(offer, _open, ca_file=settings.ca_file)
            if browser
            else sign_in_by_device(offer, _tell, ca_file=settings.ca_file)
        )
    logins_of(settings).keep(settings.name, made)
    if os.environ.get("COMMONWATT_TOKEN"):
        print_message("warning: COMMONWATT_TOKEN is set, and used instead of this login: unset it")
    with connected(url) as client:
        identity = client.whoami()
    if as_json:
        print_json(identity)
        return
    until = "" if made.expires_s is None else f"; renewed at the latest {when(made.expires_s, time())}"
    click.echo(f"signed in as {_who(identity)}{until if made.refresh_token else ''}")


def _tell(code: DeviceCode) -> None:
    print_message(f"open {plain(code.address)} and type {plain(code.user_code)}")
    if code.complete is not None:
        print_message(f"or open {plain(str(code.complete))} and compare the code")


def _open(address: str) -> None:
    import webbrowser

    print_message(f"open {plain(address)}")
    webbrowser.open(address)


@click.command()
@server_option
@json_option
def logout(*, url: str | None, as_json: bool) -> None:
    """Forget the login for the control plane, and revoke it at the provider where that is possible.

    The last token is accepted until it expires.

    \b
    Example:
      commonwatt logout --url https://gpus.example.org
    """
    from commonwatt.client.connection import find_settings, logins_of

    settings = find_settings(url, ca_file=given_ca())
    signed_out = logins_of(settings).revoke(settings.name)
    if as_json:
        print_json({"url": settings.name, "signed_out": signed_out})
    else:
        click.echo(
            f"signed out of {plain(settings.name)}" if signed_out else f"not signed in to {plain(settings.name)}"
        )


@click.command()
@server_option
@json_option
def whoami(*, url: str | None, as_json: bool) -> None:
    """Show who you are to the control plane, and what you may do.

    \b
    Example:
      commonwatt whoami --json
    """
    with connected(url) as client:
        identity = client.whoami()
    if as_json:
        print_json(identity)
    else:
        click.echo(_who(identity))


def _who(identity: WhoAmI) -> str:
    by = {"token": f"token {identity.token}", "oidc": "the identity provider", "socket": "this machine"}[identity.via]
    if identity.tenant is not None:
        role = {"viewer": "a viewer of", "admin": "an admin of", None: "a member of"}[identity.role]
        what = f"{role} tenant {identity.tenant}"
    else:
        what = "a viewer of everything" if identity.role == "viewer" else "an operator"
    return plain(f"{identity.label}, {what} (by {by})")
