"""What ``commonwatt nodes`` says of nodes."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from commonwatt.cli import cluster
from commonwatt.model.live_results import NodePage, NodeState


@pytest.mark.parametrize(
    ("state", "usable", "drained", "said"),
    [
        ("on", 4, False, "on"),
        ("on", 1, False, "on, 1 usable"),
        ("on", 0, False, "on, 0 usable"),
        ("on", 0, True, "on, drained"),
        ("down", 0, False, "down"),
        ("asleep", 4, False, "asleep"),
    ],
)
def test_a_node_of_which_others_hold_gpus_says_how_many_are_left(monkeypatch, state, usable, drained, said):
    node = NodeState(
        name="n", gpu_type="T4", gpus=4, usable_gpus=usable, held_gpus=0, state=state, drained=drained, jobs=(),
        power_w=100.0,
    )  # fmt: skip

    @contextmanager
    def connected(url):
        yield SimpleNamespace(nodes=lambda: NodePage(nodes=(node,)))

    monkeypatch.setattr(cluster, "connected", connected)
    shown = CliRunner().invoke(cluster.nodes).output
    assert f" {said}  " in shown.splitlines()[-1].replace(f"{node.power_w:,.0f}", "")
