"""Contract tests for engines: what each must do. Needs pytest.

An engine's own test module inherits all of it::

    class TestMyEngine(EngineContract):
        @pytest.fixture
        def lab(self):
            return Lab(engine, clock, cluster, table, unit_s=0.1)

The lab has two nodes of one class with 2 GPUs each and the jobs of ``contract_jobs``, whose times are in ``unit_s``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import pytest

from commonwatt.control.engine import (
    Change,
    Clock,
    Engine,
    JobEnded,
    JobInterrupted,
    LiveEngine,
    Outcome,
    Reading,
    SetPower,
    Start,
    Stop,
)
from commonwatt.model.errors import EngineError
from commonwatt.model.jobs import Job, JobArrays
from commonwatt.model.nodes import Cluster, NodeSpec

__all__ = ["EngineContract", "Lab", "contract_cluster", "contract_jobs"]


def contract_cluster() -> Cluster:
    """Two nodes of one class with 2 GPUs each."""
    return Cluster.of([NodeSpec(name="n", count=2, gpu_type="V100", gpus=2, idle_w=100, gpu_w=50)])


def contract_jobs(unit_s: float) -> JobArrays:
    """Jobs of 10 epochs that take 10, 20 and 30 units on one GPU, and a gang of 4 GPUs."""
    jobs = [
        Job(f"j{k}", "t", 0.0, np.inf, 0.0, {"V100": {1: 10.0 * k * unit_s, 2: 6.0 * k * unit_s}}, epochs=10)
        for k in (1, 2, 3)
    ]
    gang = Job("gang", "t", 0.0, np.inf, 0.0, {"V100": {4: 8.0 * unit_s}}, epochs=4)
    return JobArrays.of([*jobs, gang])


@dataclass
class Lab:
    """An engine under test."""

    engine: Engine
    clock: Clock
    cluster: Cluster
    table: JobArrays
    unit_s: float

    def start(self, name: str, nodes: tuple[int, ...], gpus_per_node: int = 1) -> int:
        """Start a job of ``contract_jobs``; its handle is its row."""
        handle = self.table.names.index(name)
        self.engine.apply([Start(handle, name, nodes, gpus_per_node)])
        return handle

    def pass_time(self, units: float) -> list[Change]:
        """Let time pass; returns what changed, in order."""
        until_s = self.clock.now_s() + units * self.unit_s
        seen: list[Change] = []
        while self.clock.now_s() < until_s - 1e-9:
            self.clock.wait_until(until_s)
            seen += self.engine.poll()
        return seen

    def done(self, handle: int) -> float:
        """Epochs done by a job."""
        return float(self.engine.progress(np.array([handle])).done_epochs[0])


class EngineContract:
    """Tests that every engine inherits."""

    def test_a_new_engine_is_empty(self, lab: Lab) -> None:
        """All GPUs are usable, and nothing has happened."""
        assert lab.engine.nodes().usable_gpus.tolist() == [2, 2]
        assert list(lab.engine.poll()) == []
        assert lab.engine.progress(np.arange(4)).done_epochs.tolist() == [0, 0, 0, 0]

    def test_a_job_runs_to_its_end_and_ends_once(self, lab: Lab) -> None:
        """One change reports its end; none follows."""
        handle = lab.start("j1", (0,))
        changes = lab.pass_time(15)
        assert [(type(c), c.handle) for c in changes] == [(JobEnded, handle)]
        assert isinstance(changes[0], JobEnded)
        assert changes[0].outcome is Outcome.COMPLETED
        assert lab.pass_time(5) == []

    def test_progress_grows(self, lab: Lab) -> None:
        """Epochs done never decrease while a job runs, and end at the total."""
        handle = lab.start("j1", (0,))
        seen = [0.0]
        for _ in range(4):
            lab.pass_time(2)
            seen.append(lab.done(handle))
        assert seen == sorted(seen)
        assert seen[-1] > 0

    def test_more_gpus_end_earlier(self, lab: Lab) -> None:
        """The configuration decides the speed."""
        one, two = lab.start("j2", (0,), 1), lab.start("j3", (1,), 2)
        assert [c.handle for c in lab.pass_time(40)] == [two, one]

    @pytest.mark.parametrize(
        ("nodes", "gpus"), [((0,), 3), ((0, 1), 3)], ids=["more than the node has", "a gang that does not fit"]
    )
    def test_refuses_what_does_not_fit(self, lab: Lab, nodes: tuple[int, ...], gpus: int) -> None:
        """A refusal changes nothing."""
        with pytest.raises(EngineError):
            lab.start("j1", nodes, gpus)
        lab.start("gang", (0, 1), 2)  # everything is still free

    def test_refuses_to_share_a_gpu(self, lab: Lab) -> None:
        """A GPU is allocated to one job at a time."""
        lab.start("j1", (0,), 2)
        with pytest.raises(EngineError):
            lab.start("j2", (0,), 1)

    def test_refuses_to_start_twice_and_to_stop_what_does_not_run(self, lab: Lab) -> None:
        """Commands that make no sense are errors."""
        handle = lab.start("j1", (0,))
        with pytest.raises(EngineError):
            lab.start("j1", (1,))
        lab.engine.apply([Stop(handle)])
        with pytest.raises(EngineError):
            lab.engine.apply([Stop(handle)])

    def test_a_stopped_job_goes_on_from_its_last_snapshot(self, lab: Lab) -> None:
        """Work since the checkpoint is lost and reported; the job can continue on another node with other GPUs."""
        handle = lab.start("j1", (0,))
        lab.pass_time(4.5)
        before = lab.done(handle)
        (stopped,) = lab.engine.apply([Stop(handle)])
        kept = lab.done(handle)
        assert kept == np.floor(kept) <= before
        assert stopped.lost_s >= 0
        lab.pass_time(2)
        assert lab.done(handle) == kept
        lab.start("j1", (1,), 2)
        assert lab.done(handle) == kept
        assert [c.handle for c in lab.pass_time(15)] == [handle]

    def test_a_job_that_is_asked_to_stop_leaves_without_anybody_waiting_for_it(self, lab: Lab) -> None:
        """It keeps its GPUs until a poll reports, once, that it is gone; then it can continue from its checkpoint."""
        engine = cast("LiveEngine", lab.engine)
        if not engine.capabilities.deferred_stop:
            pytest.skip("this engine stops jobs at once, or waits for them")
        handle, other = lab.start("j2", (0,), 2), lab.table.names.index("j3")
        while not lab.done(handle):
            assert lab.pass_time(1) == []
        assert engine.has_room((1,), 2)
        assert not engine.has_room((0, 1), 1)
        assert list(engine.request_stop([handle, other])) == [handle]
        changes: list[Change] = []
        while not changes:
            changes = lab.pass_time(1)
        assert [(type(c), c.handle) for c in changes] == [(JobInterrupted, handle)]
        assert engine.has_room((0, 1), 2)
        assert list(engine.request_stop([handle])) == []
        lab.start("j2", (1,))
        assert lab.done(handle) == np.floor(lab.done(handle))

    def test_a_gang_has_all_its_nodes(self, lab: Lab) -> None:
        """It releases all of them at its end."""
        handle = lab.start("gang", (0, 1), 2)
        with pytest.raises(EngineError):
            lab.start("j1", (1,))
        assert [c.handle for c in lab.pass_time(12)] == [handle]
        lab.start("j1", (1,), 2)

    def test_readings_cover_all_time_once(self, lab: Lab) -> None:
        """For each node: no gap, no overlap, and the right holders."""
        began_s = lab.clock.now_s()
        lab.start("j1", (0,), 2)
        lab.pass_time(3)
        lab.start("j2", (1,), 1)
        lab.pass_time(10)
        readings = lab.engine.readings(up_to_now=True)
        for node in (0, 1):
            own = [r for r in readings if r.node == node]
            _assert_seamless(own, began_s, lab.clock.now_s())
        allocated = {(r.node, h.handle, h.gpus) for r in readings for h in r.holders}
        assert allocated == {(0, 0, 2), (1, 1, 1)}

    def test_energy_is_known_or_reported_as_unknown(self, lab: Lab) -> None:
        """Never 0 for a node that is on."""
        lab.start("j1", (0,), 2)
        lab.pass_time(3)
        for reading in lab.engine.readings(up_to_now=True):
            if not lab.engine.capabilities.energy:
                assert reading.energy_uj is None
            elif reading.holders:
                assert reading.energy_uj is not None
                assert reading.energy_uj > 0

    def test_nodes_sleep_and_wake_when_told(self, lab: Lab) -> None:
        """A node that is asleep says so, and runs a job once woken; repeated commands change nothing."""
        if not lab.engine.capabilities.power_states:
            pytest.skip("this engine leaves all nodes on")
        state = lab.cluster.classes[0].states[0]
        for _ in range(2):
            lab.engine.apply([SetPower(1, state.name)])
        lab.pass_time(3)
        view = lab.engine.nodes()
        assert view.power_state[1] == 0
        assert view.wait_s[1] == pytest.approx(state.wake_s, abs=3 * lab.unit_s)
        for _ in range(2):
            lab.engine.apply([SetPower(1, None)])
        assert lab.engine.nodes().power_state[1] == -1
        handle = lab.start("j1", (1,))
        assert [c.handle for c in lab.pass_time(15)] == [handle]
        _assert_seamless(
            [r for r in lab.engine.readings(up_to_now=True) if r.node == 1], lab.clock.now_s(), lab.clock.now_s()
        )

    def test_a_node_in_use_cannot_be_put_to_sleep(self, lab: Lab) -> None:
        """Nor can a node be put into a state it does not have."""
        if not lab.engine.capabilities.power_states:
            pytest.skip("this engine leaves all nodes on")
        lab.start("j1", (0,))
        with pytest.raises(EngineError):
            lab.engine.apply([SetPower(0, lab.cluster.classes[0].states[0].name)])
        with pytest.raises(ValueError, match="nowhere"):
            lab.engine.apply([SetPower(1, "nowhere")])


def _assert_seamless(readings: Sequence[Reading], from_s: float, to_s: float) -> None:
    assert readings
    assert readings[0].from_s <= from_s + 1e-9
    assert readings[-1].to_s == pytest.approx(to_s)
    for earlier, later in itertools.pairwise(readings):
        assert later.from_s == pytest.approx(earlier.to_s)
