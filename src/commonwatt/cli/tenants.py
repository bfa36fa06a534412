"""``commonwatt tenants``."""

from __future__ import annotations

import click

from commonwatt.cli.output import json_option, print_json
from commonwatt.cli.remote import connected, server_option, show

__all__ = ["command"]


@click.command()
@click.option("--set", "order", metavar="NAME=WEIGHT", help="Enter a tenant, or change its weight, first (operators).")
@server_option
@json_option
def command(*, order: str | None, url: str | None, as_json: bool) -> None:
    """Show tenants: what they are entitled to, and the time and energy they got. A tenant sees itself.

    \b
    Examples:
      commonwatt tenants
      commonwatt tenants --set vision=2.5
    """
    from commonwatt.report import format as fmt

    change = None if order is None else _order(order)
    with connected(url) as client:
        if change is not None:
            client.set_tenant(*change)
        page = client.tenants()
    if as_json:
        print_json(page)
        return
    energies = fmt.column(fmt.energy, [None if t.energy_j is None else t.energy_j / 3.6e6 for t in page.tenants])
    rows = [
        (
            t.name, f"{t.weight:g}", f"{t.entitlement:.1%}", _share(t.gpu_share), _share(t.energy_share),
            f"{t.gpu_s / 3600:,.1f}", energy,
            fmt.money(t.cost, page.currency), str(t.jobs.get("running", 0)), str(t.jobs.get("waiting", 0)),
        )
        for t, energy in zip(page.tenants, energies, strict=True)
    ]  # fmt: skip
    headings = (
        "tenant", "weight", "entitled to", "of GPU time", "of energy", "GPU hours", "energy", "cost", "running",
        "waiting",
    )  # fmt: skip
    show(f"{fmt.plural(len(rows), 'tenant')}", headings, rows, right=headings[1:])


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


def _order(text: str) -> tuple[str, float]:
    from commonwatt.model.errors import InputError

    name, _, number = text.rpartition("=")
    try:
        weight = float(number)
    except ValueError:
        weight = 0.0
    if not name or not 0 < weight <= 1e9:
        raise InputError("a name and a weight above 0, such as vision=2.5", field="--set", value=text)
    return name, weight
