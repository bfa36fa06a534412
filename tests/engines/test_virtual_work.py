"""Simulated work in real time: the contract, and being found again."""

from __future__ import annotations

import pytest

from commonwatt.control.engine import JobEnded, JobInterrupted, RecordedRun, Start, Stop
from commonwatt.engines.simulated.engine import World
from commonwatt.engines.simulated.live import VirtualWork
from commonwatt.testing.engine_contract import EngineContract, Lab, contract_cluster, contract_jobs

UNIT_S = 10.0


class Hand:
    """A clock moved by hand, in small steps as time passes."""

    def __init__(self) -> None:
        self.time_s, self.engine = 1000.0, None

    def now_s(self) -> float:
        return self.time_s

    def wait_until(self, time_s: float) -> None:
        upcoming_s = self.engine.next_s()
        until_s = time_s if upcoming_s is None else min(time_s, upcoming_s)
        if not self.engine._changes:
            self.time_s = max(self.time_s + 1e-6, until_s)


def virtual(**world) -> tuple[VirtualWork, Hand]:
    hand = Hand()
    engine = hand.engine = VirtualWork(contract_cluster(), World(unused_state=None, **world), hand.now_s)
    table = contract_jobs(UNIT_S)
    engine.add(table, len(table))
    return engine, hand


class TestVirtualWork(EngineContract):
    @pytest.fixture
    def lab(self):
        engine, hand = virtual()
        return Lab(engine, hand, contract_cluster(), contract_jobs(UNIT_S), UNIT_S)


def test_what_was_started_is_found_and_ends_are_told_again():
    engine, hand = virtual()
    engine.apply([Start(0, "j1", (0,), 1), Start(1, "j2", (1,), 1), Start(2, "j3", (1,), 1)])
    hand.time_s += 120.0
    assert [type(change) for change in engine.poll()] == [JobEnded]
    engine.apply([Stop(2)])
    assert engine.poll() == []
    assert engine.recorded_runs() == [RecordedRun(0, 1, (), 0), RecordedRun(1, 1, (1,), 1), RecordedRun(2, 1, (), 0)]
    again = engine.poll()
    assert [(type(change), change.handle) for change in again] == [(JobEnded, 0), (JobInterrupted, 2)]
    engine.apply([Start(2, "j3", (0,), 1)])
    assert engine.recorded_runs()[2] == RecordedRun(2, 2, (0,), 1)
    assert engine.prunable() == [0]
    engine.prune([0, 1])
    assert [found.handle for found in engine.recorded_runs()] == [1, 2]


def test_many_ends_at_once_are_told_in_order_and_time_is_caught_up():
    engine, hand = virtual()
    engine.apply([Start(k, f"j{k + 1}", (k % 2,), 1) for k in range(3)])
    hand.time_s += 10_000.0
    changes = engine.poll()
    assert [(change.handle, change.at_s - 1000.0) for change in changes] == [(0, 100.0), (1, 200.0), (2, 300.0)]
    assert engine.now_s == hand.time_s


def test_what_has_just_ended_is_neither_stopped_nor_started():
    engine, hand = virtual()
    engine.apply([Start(0, "j1", (0,), 1)])
    hand.time_s += 101.0
    (stopped,) = engine.apply([Stop(0), Start(0, "j1", (1,), 1)])
    assert stopped.lost_s == 0.0
    assert [type(change) for change in engine.poll()] == [JobEnded]
    assert engine.recorded_runs() == [RecordedRun(0, 1, (), 0)]


def test_a_clock_that_stands_or_goes_back_changes_nothing():
    engine, hand = virtual()
    engine.apply([Start(0, "j1", (0,), 1)])
    for time_s in (1050.0, 1050.0, 900.0, 1050.0):
        hand.time_s = time_s
        assert engine.poll() == []
    readings = engine.readings(up_to_now=True)
    assert all(reading.to_s > reading.from_s for reading in readings)
