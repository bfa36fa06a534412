"""Power commands the engine refuses: told once, and neither the plan nor anybody's job waits for them."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.control.engine import SetPower
from commonwatt.controlplane.pending_commands import PowerCommands
from commonwatt.engines.simulated.live import VirtualWork
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.store.records import JobStatus
from tests.controlplane.bench import Bench
from tests.controlplane.test_capacity import NODES, PLAN, go_on


class Refusing(VirtualWork):
    """Refuses to put some nodes to sleep."""

    refused = frozenset({1})
    asked = 0

    def apply(self, commands):
        for command in commands:
            if isinstance(command, SetPower) and command.node in self.refused:
                self.asked += 1
                raise EngineError("scontrol: Invalid node state specified")
        return super().apply(commands)


class Refused(Bench):
    work = Refusing


@pytest.mark.slow
def test_a_refused_command_is_told_once_and_the_others_are_carried_out(tmp_path):
    b = Refused(tmp_path, nodes=NODES, capacity={**PLAN, "policy": "last-value", "floor_gpus": 0})
    try:
        running = b.submit(10_000.0, gpus=2)  # on the first node
        b.settle()
        go_on(b, 1800)
        assert b.engine.nodes().power_state.tolist() == [-1, -1, 0]
        assert b.engine.asked == 4  # every ten minutes
        (event,) = (event for event in b.live.store.events() if event.job is None)
        assert (event.kind, event.nodes, event.job) == ("not-powered", ("n-2",), None)
        assert event.sentence.endswith(": scontrol: Invalid node state specified")
        job = b.submit(500.0, gpus=2)
        b.settle()
        assert {b.status(running), b.status(job)} == {JobStatus.RUNNING}
    finally:
        b.close()


class Engine:
    def __init__(self, *causes):
        self.causes, self.given = list(causes), []

    def apply(self, commands):
        (command,) = commands
        self.given.append((command.node, command.state))
        if self.causes and (cause := self.causes.pop(0)):
            raise cause
        return []


def told(powers):
    return [(row.nodes, row.sentence.rpartition(": ")[2]) for row in powers.take(("a", "b", "c"))]


def test_each_node_and_cause_is_told_once_until_it_obeys():
    now = [0.0]
    busy, down = EngineError("busy"), EngineError("down")
    powers = PowerCommands(engine := Engine(busy, busy, None, down, busy, None, busy), lambda: now[0])
    off = [SetPower(n, "off") for n in range(3)]
    powers.give(off)
    assert told(powers) == [(("a", "b"), "busy")]
    powers.give(off[:2])
    assert told(powers) == []
    assert engine.given == [(0, "off"), (1, "off"), (2, "off")]
    for cause in ("down", "busy", None):
        now[0] += 600.0
        powers.give(off[:1])
        assert told(powers) == ([(("a",), "down")] if cause == "down" else [])
    now[0] += 600.0
    powers.give(off[:1])
    assert told(powers) == [(("a",), "busy")]


def test_waking_is_tried_again_at_once():
    powers = PowerCommands(engine := Engine(EngineError("x"), EngineError("x")), lambda: 0.0)
    for _ in range(2):
        powers.give([SetPower(0, None)])
    assert engine.given == [(0, None)] * 2
    assert len(told(powers)) == 1


def test_an_engine_that_is_away_is_no_refusal():
    powers = PowerCommands(Engine(EngineDownError("x")), lambda: 0.0)
    with pytest.raises(EngineDownError):
        powers.give([SetPower(0, "off")])
    assert told(powers) == []
