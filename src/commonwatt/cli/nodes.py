"""Commands on nodes of the control plane: ``nodes``, ``drain``, ``undrain``, and its ``mode``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import json_option, print_json
from commonwatt.cli.remote import asked_of_nodes, connected, server_option, show

if TYPE_CHECKING:
    from commonwatt.model.live_results import NodeState

__all__ = ["drain", "mode", "nodes", "undrain"]


@click.command()
@server_option
@json_option
def nodes(*, url: str | None, as_json: bool) -> None:
    """Show all nodes: their GPUs, who uses them, their power.

    \b
    Example:
      commonwatt nodes --json
    """
    from commonwatt.report.format import plural

    with connected(url) as client:
        page = client.nodes()
    if as_json:
        print_json(page)
        return
    rows = [
        (
            node.name, node.gpu_type, f"{node.held_gpus}/{node.gpus}",
            _state(node),
            "unknown" if node.power_w is None else f"{node.power_w:,.0f}", " ".join(map(str, node.jobs)),
        )
        for node in page.nodes
    ]  # fmt: skip
    held, total = sum(n.held_gpus for n in page.nodes), sum(n.gpus for n in page.nodes)
    headings = ("node", "GPU type", "GPUs held", "state", "power, W", "jobs")
    show(
        f"{plural(len(page.nodes), 'node')}, {held} of {plural(total, 'GPU')} allocated",
        headings,
        rows,
        right=("GPUs held", "power, W"),
    )


def _state(node: NodeState) -> str:
    """How a node is, and how many of its GPUs our jobs may have where that is not all of them."""
    if node.drained:
        return f"{node.state}, drained"
    few = node.state == "on" and node.usable_gpus < node.gpus
    return f"{node.state}, {node.usable_gpus} usable" if few else node.state


@click.command()
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@server_option
@json_option
def drain(nodes: tuple[str, ...], *, url: str | None, as_json: bool) -> None:
    """Start no further jobs on nodes (operators). Running jobs stay.

    \b
    Example:
      commonwatt drain gpu-3
    """
    asked_of_nodes(url, nodes, lambda client, node: client.drain(node), "will be drained", as_json=as_json)


@click.command()
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@server_option
@json_option
def undrain(nodes: tuple[str, ...], *, url: str | None, as_json: bool) -> None:
    """Return drained nodes to service (operators).

    \b
    Example:
      commonwatt undrain gpu-3
    """
    asked_of_nodes(url, nodes, lambda client, node: client.undrain(node), "will have jobs again", as_json=as_json)


@click.command()
@click.argument("mode", type=click.Choice(["live", "dry-run"]), required=False)
@server_option
@json_option
def mode(mode: str | None, *, url: str | None, as_json: bool) -> None:
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
