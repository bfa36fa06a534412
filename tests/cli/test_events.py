"""What ``commonwatt events`` says of events."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from commonwatt.cli import events
from commonwatt.model.live_results import EventEntry

MANY = tuple(f"n-{k}" for k in range(100))


@pytest.mark.parametrize(
    ("nodes", "sentence", "said"),
    [
        (("n-1", "n-2"), "it would put 2 nodes to sleep (off)", "it would put 2 nodes to sleep (off) (n-1, n-2)"),
        (("n-1",), "it would have 1 node woken", "it would have 1 node woken (n-1)"),
        (("n-1",), "j runs on n-1 with 2 GPUs", "j runs on n-1 with 2 GPUs"),
        (("n-1", "n-2"), "j runs on n-1, n-2: there.", "j runs on n-1, n-2: there."),
        (("n-1",), "it left n-10.", "it left n-10. (n-1)"),
        (("n-1",), "it left n-1.", "it left n-1."),
        ((), "it waits", "it waits"),
        (MANY, "", f"capacity-plan ({', '.join(MANY[:20])} and 80 more)"),
    ],
)
def test_nodes_are_named_that_the_sentence_does_not_name(monkeypatch, nodes, sentence, said):
    event = EventEntry(
        id=1, time_s=0.0, kind="would-sleep", job=None, nodes=nodes, gpus=0, reason="capacity-plan", sentence=sentence
    )

    @contextmanager
    def connected(url):
        yield SimpleNamespace(events=lambda **_: iter([event]))

    monkeypatch.setattr(events, "connected", connected)
    shown = CliRunner().invoke(events.command).output
    assert shown.endswith(f"would-sleep   {said}\n")
