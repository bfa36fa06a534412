"""Power commands the engine refuses: told once, and neither the plan nor anybody's job waits for them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.cli.cluster import _state
from commonwatt.control.engine import NodeView, SetPower
from commonwatt.controlplane.capacity import PowerCommands
from commonwatt.engines.kubernetes.user_requests import LateError
from commonwatt.engines.simulated.live import VirtualWork
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.model.live_results import NodeState
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
        (event,) = (event for event in b.live.store.events() if event.job is None and event.kind != "put-to-sleep")
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
    rows = [row for row in powers.take(("a", "b", "c")) if row.kind == "not-powered"]
    return [(row.nodes, row.sentence.rpartition(": ")[2]) for row in rows]


def test_what_is_ordered_is_told():
    class Obeys:
        def apply(self, commands):
            pass

    powers = PowerCommands(Obeys(), lambda: 5.0)
    powers.give([SetPower(2, "off"), SetPower(0, "off"), SetPower(1, None)])
    rows = [(row.kind, row.nodes, row.sentence) for row in powers.take(("a", "b", "c"))]
    assert rows == [
        ("put-to-sleep", ("a", "c"), "2 nodes are put to sleep (off)"), ("woken", ("b",), "1 node is woken"),
    ]  # fmt: skip
    assert powers.take(("a", "b", "c")) == []


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


def view(states, wait_s=None, usable=None):
    states = np.array(states)
    wait_s = np.where(states >= 0, 30.0, 0.0) if wait_s is None else np.array(wait_s, dtype=float)
    usable = np.full(len(states), 2) if usable is None else np.array(usable)
    return NodeView(usable, wait_s, states, np.zeros(len(states), bool), np.ones(len(states), bool))


def shown(seen):
    """Usable GPUs, states, and which nodes are up."""
    return seen.usable_gpus.tolist(), seen.power_state.tolist(), seen.up.tolist()


class Sleepers(Engine):
    """Nodes that sleep."""

    def __init__(self, *causes):
        super().__init__(*causes)
        self.view = view([0, 0, 0])

    def nodes(self):
        return self.view


ALL = [2, 2, 2], [0, 0, 0], [True] * 3
BUT_A = [0, 2, 2], [-1, 0, 0], [False, True, True]
NO = EngineError("node a did not wake: its hook exited with 3")


def test_a_node_that_did_not_wake_is_down_for_a_while_longer_each_time():
    now = [0.0]
    powers = PowerCommands(engine := Sleepers(*[NO] * 9), lambda: now[0])
    assert shown(powers.offered(engine.view)) == ALL
    for pause_s in (60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0):
        powers.give([SetPower(0, None)])
        assert powers.unwoken == {0: str(NO)}
        now[0] += pause_s - 1.0
        assert shown(powers.offered(engine.view)) == BUT_A
        now[0] += 1.0
        assert shown(powers.offered(engine.view)) == ALL
        assert powers.unwoken == {}
    (row,) = (row for row in powers.take(("a", "b", "c")) if row.kind == "not-powered")
    assert (row.nodes, row.sentence) == (("a",), f"a power command failed: {NO}")


def test_one_that_is_on_after_all_is_offered_at_once_and_what_was_is_forgotten():
    now = [0.0]
    powers = PowerCommands(engine := Sleepers(NO, None, NO), lambda: now[0])
    powers.give([SetPower(0, None)])
    on = view([-1, 0, 0])
    assert powers.offered(on) is on
    powers.give([SetPower(0, "off"), SetPower(0, None)])
    now[0] += 59.0
    assert shown(powers.offered(engine.view)) == BUT_A
    now[0] += 1.0
    assert shown(powers.offered(engine.view)) == ALL


def test_that_one_did_not_wake_is_seen_when_it_sleeps_again():
    now = [0.0]
    powers = PowerCommands(engine := Sleepers(None, NO, None, None, EngineDownError("x")), lambda: now[0])
    powers.give([SetPower(0, None)])
    engine.view = view([-1, 0, 0], [30.0, 30.0, 30.0])
    powers.look()
    assert len(engine.given) == 1  # it is waking
    engine.view = view([0, 0, 0])
    powers.look()
    powers.look()
    assert (engine.given, powers.unwoken) == ([(0, None)] * 2, {0: str(NO)})
    powers.give([SetPower(1, None)])
    engine.view = view([0, -1, 0])
    powers.look()
    assert len(engine.given) == 3  # it has woken
    powers.give([SetPower(2, None)])
    powers.look()
    assert len(engine.given) == 5  # nobody answered
    assert list(powers.unwoken) == [0]


def test_an_answer_that_is_late_is_no_failure():
    powers = PowerCommands(engine := Sleepers(LateError(503, "", "not answered yet")), lambda: 0.0)
    powers.give([SetPower(0, None)])
    assert (shown(powers.offered(engine.view)), powers.unwoken) == (ALL, {})


def test_in_a_dry_run_nobody_asks_why_a_node_does_not_wake():
    powers = PowerCommands(engine := Sleepers(), lambda: 0.0)
    powers.give([SetPower(0, None)])
    powers.forget_orders()
    powers.look()
    assert len(engine.given) == 1


def test_nodes_are_listed_with_why_they_are_down():
    figures = {"gpu_type": "V100", "gpus": 2, "usable_gpus": 0, "held_gpus": 0, "jobs": (), "power_w": None}
    node = NodeState(name="a", state="down", drained=True, cause=str(NO), **figures)
    assert _state(node) == "down, drained: node a did not wake: its hook exited with 3"


class Stuck(VirtualWork):
    """The first node does not wake, which is reported when it is ordered to; a run there ends."""

    tries = 0

    def apply(self, commands):
        if SetPower(0, None) in commands and self.nodes().power_state[0] >= 0:
            self.tries += 1
            raise NO
        return super().apply(commands)


class Starving(Bench):
    work = Stuck


@pytest.mark.slow
def test_a_job_turns_to_the_next_node_and_the_one_that_did_not_wake_says_why(tmp_path):
    b = Starving(tmp_path, nodes=NODES, interval_s=3000, capacity={**PLAN, "policy": "last-value", "floor_gpus": 0})
    try:
        b.settle()
        go_on(b, 1800)
        assert b.engine.nodes().power_state.tolist() == [0, 0, 0]
        job = b.submit(500.0, gpus=2)
        go_on(b, 50, 5.0)
        assert b.row(job).nodes == ("n-2",)
        assert b.engine.tries == 1
        node = b.snapshot().nodes[0]
        assert (node.state, node.usable_gpus, node.cause) == ("down", 0, str(NO))
        (event,) = (event for event in b.live.store.events() if event.kind == "not-powered")
        assert (event.nodes, event.sentence) == (("n-1",), f"a power command failed: {NO}")
        go_on(b, 70)
        assert (b.snapshot().nodes[0].state, b.snapshot().nodes[0].cause) == ("asleep", "")
    finally:
        b.close()
