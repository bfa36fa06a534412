"""What ``commonwatt events`` says of events."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from commonwatt.cli import cluster
from commonwatt.model.live_results import EventEntry

MANY = tuple(f"n-{k}" for k in range(100))


@pytest.mark.parametrize(
    ("kind", "nodes", "sentence", "said"),
    [
        ("would-sleep", ("n-1", "n-2"), "2 nodes would sleep (off)", "2 nodes would sleep (off) (n-1, n-2)"),
        ("would-wake", ("n-1",), "1 node would wake", "1 node would wake (n-1)"),
        ("started", ("n-1",), "j runs on n-1 with 2 GPUs", "j runs on n-1 with 2 GPUs"),
        ("interrupted", ("n-1",), "it was interrupted", "it was interrupted (n-1)"),
        ("waits", (), "it waits", "it waits"),
        ("would-sleep", MANY, "", f"capacity-plan ({', '.join(MANY[:20])} and 80 more)"),
    ],
)
def test_nodes_are_listed_where_the_sentence_does_not_name_them(monkeypatch, kind, nodes, sentence, said):
    event = EventEntry(
        id=1, time_s=0.0, kind=kind, job=None, nodes=nodes, gpus=0, reason="capacity-plan", sentence=sentence
    )

    @contextmanager
    def connected(url):
        yield SimpleNamespace(events=lambda **_: iter([event]))

    monkeypatch.setattr(cluster, "connected", connected)
    shown = CliRunner().invoke(cluster.events).output
    assert shown.endswith(f"  {kind:<13} {said}\n")
