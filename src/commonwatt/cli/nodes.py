"""``commonwatt nodes``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import json_option, print_json
from commonwatt.cli.remote import connected, server_option, show

if TYPE_CHECKING:
    from commonwatt.model.live_results import NodeState

__all__ = ["command"]


@click.command()
@server_option
@json_option
def command(*, url: str | None, as_json: bool) -> None:
    """Show all nodes: their GPUs, who uses them, their power.

    \b
    Example:
      commonwatt nodes --json
    """
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
    show(f"{len(page.nodes)} nodes, {held} of {total} GPUs held", headings, rows, right=("GPUs held", "power, W"))


def _state(node: NodeState) -> str:
    """How a node is, and how many of its GPUs our jobs may have where that is not all of them."""
    if node.drained:
        return f"{node.state}, drained"
    few = node.state == "on" and node.usable_gpus < node.gpus
    return f"{node.state}, {node.usable_gpus} usable" if few else node.state
