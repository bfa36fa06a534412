"""The simulated engine: the contract, and exact traces of tiny scenarios."""

import math

import numpy as np
import pytest

from commonwatt.control.engine import JobEnded, JobInterrupted, SetPower, Start, Stop
from commonwatt.engines.clocks import VirtualClock
from commonwatt.engines.simulated.engine import Outage, SimulatedEngine, World
from commonwatt.engines.simulated.events import EventQueue, Priority
from commonwatt.model.errors import EngineError
from commonwatt.model.jobs import Job, JobArrays
from commonwatt.model.nodes import Cluster, NodeSpec, PowerState
from commonwatt.testing.engine_contract import EngineContract, Lab, contract_cluster, contract_jobs


def lab_of(world: World, unit_s: float = 100.0) -> Lab:
    cluster, table = contract_cluster(), contract_jobs(unit_s)
    engine = SimulatedEngine(cluster, table, world)
    return Lab(engine, VirtualClock(engine), cluster, table, unit_s)


class TestContract(EngineContract):
    @pytest.fixture
    def lab(self) -> Lab:
        return lab_of(World())


class TestContractWithSleepingNodes(EngineContract):
    @pytest.fixture
    def lab(self) -> Lab:
        return lab_of(World(unused_state="off", unused_after_s=50.0))


class TestContractAlwaysOn(EngineContract):
    @pytest.fixture
    def lab(self) -> Lab:
        return lab_of(World(unused_state=None))


def test_events_at_one_time_go_by_priority_then_by_sequence():
    queue = EventQueue()
    queue.push(5.0, Priority.NODE_DOWN, 1)
    queue.push(5.0, Priority.JOB_END, 2)
    queue.push(5.0, Priority.JOB_END, 3)
    queue.push(4.0, Priority.POWER, 4)
    assert [queue.pop().subject for _ in range(4)] == [4, 2, 3, 1]


def test_the_view_of_the_nodes_is_of_this_moment_whatever_was_asked_before():
    """Nodes go to sleep and wake, each of which takes a while; one engine is asked all the time, one only now."""
    sleep = PowerState(name="sleep", power_w=5, enter_s=30, wake_s=70)
    spec = NodeSpec(name="n", count=4, gpu_type="V100", gpus=2, idle_w=100, gpu_w=100, states=(sleep,))
    cluster = Cluster.of([spec])
    table = JobArrays.of([Job(f"j{j}", "t", 0.0, math.inf, 0.0, {"V100": {1: 90.0 + j}}) for j in range(4)])
    outages = (Outage(3, 150, 400),)

    def seen(moments, upto_s):
        engine = SimulatedEngine(cluster, table, World(unused_state="sleep", unused_after_s=20.0, outages=outages))
        for time_s in range(0, upto_s + 1, 10):
            engine.advance(float(time_s))
            engine.poll()
            if time_s in (60, 200):
                engine.apply([Start(time_s // 100, f"j{time_s // 100}", (time_s // 100,), 1)])
            if time_s in moments or time_s == upto_s:
                view = engine.nodes()
        return view

    for upto_s in range(0, 500, 10):
        often, once = seen(range(0, 500, 10), upto_s), seen((), upto_s)
        for name, values in vars(often).items():
            assert values is None or values.tolist() == vars(once)[name].tolist(), (name, upto_s)


def test_trace_of_a_preemption():
    """10 epochs of 100 s; stopped at 450 s: 50 s lost; restart takes 30 s; six epochs of 60 s remain on 2 GPUs."""
    lab = lab_of(World(restart_s=30.0))
    lab.start("j1", (0,))
    lab.pass_time(4.5)
    (stopped,) = lab.engine.apply([Stop(0)])
    assert stopped.lost_s == pytest.approx(50.0)
    assert lab.done(0) == 4
    lab.start("j1", (1,), 2)
    (ended,) = lab.pass_time(20)
    assert isinstance(ended, JobEnded)
    assert ended.at_s == pytest.approx(450 + 30 + 6 * 60)


def test_without_losses_a_restart_costs_nothing():
    lab = lab_of(World(lose_work=False))
    lab.start("j1", (0,))
    lab.pass_time(4.5)
    (stopped,) = lab.engine.apply([Stop(0)])
    assert stopped.lost_s == 0
    lab.start("j1", (1,))
    (ended,) = lab.pass_time(20)
    assert ended.at_s == pytest.approx(1000)


def test_progress_while_a_restart_is_under_way():
    lab = lab_of(World(restart_s=200.0))
    lab.start("j1", (0,))
    lab.pass_time(3)
    lab.engine.apply([Stop(0)])
    lab.start("j1", (0,))
    lab.pass_time(1)
    now = lab.engine.progress(np.array([0]))
    assert now.done_epochs[0] == now.kept_epochs[0] == 3
    assert now.until_work_s[0] == pytest.approx(100)


def test_power_and_energy_by_hand():
    lab = lab_of(World(unused_state="off"))
    lab.start("j1", (0,), 2)  # 600 s at 100 + 2 * 50 W
    assert lab.engine.power_w() == 100 + 2 * 50 + 100  # the other node is on until the first moment has passed
    lab.pass_time(10)
    readings = lab.engine.readings(up_to_now=True)
    energy = {n: sum(r.energy_uj for r in readings if r.node == n) for n in (0, 1)}
    assert energy == {0: 600 * 200 * 10**6, 1: 0}


def test_own_gpu_power_of_a_job():
    cluster = contract_cluster()
    table = JobArrays.of([Job("a", "t", 0, np.inf, 0, {"V100": {1: 100.0}}, gpu_w={"V100": 17.0})])
    engine = SimulatedEngine(cluster, table, World())
    engine.apply([Start(0, "a", (0,), 1)])
    engine.advance(0.0)
    assert engine.power_w() == 117


def test_unused_nodes_sleep_after_a_while_and_take_time_to_wake():
    sleep = PowerState(name="sleep", power_w=10, wake_s=40)
    cluster = Cluster.of([NodeSpec(name="n", gpu_type="V100", gpus=1, idle_w=100, gpu_w=50, states=(sleep,))])
    table = JobArrays.of([Job("a", "t", 0, np.inf, 0, {"V100": {1: 100.0}})])
    engine = SimulatedEngine(cluster, table, World(unused_state="sleep", unused_after_s=60))
    engine.advance(59.0)
    assert engine.power_w() == 100
    assert engine.nodes().wait_s.tolist() == [0]
    engine.advance(200.0)
    assert engine.power_w() == 10
    assert engine.nodes().wait_s.tolist() == [40]
    engine.apply([Start(0, "a", (0,), 1)])
    assert engine.power_w() == 150
    engine.advance(1000.0)
    (ended,) = engine.poll()
    assert ended.at_s == pytest.approx(200 + 40 + 100)
    engine.advance(1000.0)
    energy_j = sum(r.energy_uj for r in engine.readings(up_to_now=True)) / 1e6
    assert energy_j == pytest.approx(60 * 100 + 140 * 10 + 140 * 150 + 60 * 100 + (1000 - 400) * 10)


def test_a_node_used_again_in_time_does_not_sleep():
    lab = lab_of(World(unused_state="off", unused_after_s=500.0))
    lab.start("j1", (0,))
    lab.pass_time(10)
    lab.start("j2", (0,))
    lab.pass_time(10)
    assert lab.engine.power_w() == 150


def test_outage_interrupts_jobs_and_takes_the_node_away_until_it_ends():
    lab = lab_of(World(outages=(Outage(node=0, from_s=450.0, to_s=2000.0),)))
    lab.start("j1", (0,))
    lab.start("j2", (1,))
    (down,) = lab.pass_time(5)
    assert isinstance(down, JobInterrupted)
    assert (down.handle, down.at_s) == (0, 450.0)
    assert down.lost_s == pytest.approx(50)
    assert down.cause == "node n-1 went down"
    assert lab.engine.nodes().usable_gpus.tolist() == [0, 2]
    assert lab.done(0) == 4
    lab.pass_time(20)
    assert lab.engine.nodes().usable_gpus.tolist() == [2, 2]
    lab.start("j1", (0,))


def test_a_job_that_ends_when_its_node_fails_has_ended():
    lab = lab_of(World(outages=(Outage(node=0, from_s=1000.0, to_s=2000.0),)))
    lab.start("j1", (0,))
    (ended,) = lab.pass_time(11)
    assert isinstance(ended, JobEnded)


def test_true_run_time_can_differ_from_the_table():
    cluster, table = contract_cluster(), contract_jobs(100.0)
    engine = SimulatedEngine(cluster, table, World(slowdown=np.array([1.5, 1, 1, 1])))
    engine.apply([Start(0, "j1", (0,), 1)])
    engine.advance(5000.0)
    assert engine.poll()[0].at_s == pytest.approx(1500)


def test_going_to_sleep_takes_a_while_at_idle_power_and_cannot_be_broken_off():
    sleep = PowerState(name="sleep", power_w=10, enter_s=30, wake_s=40)
    cluster = Cluster.of([NodeSpec(name="n", gpu_type="V100", gpus=1, idle_w=100, gpu_w=50, states=(sleep,))])
    table = JobArrays.of([Job("a", "t", 0, np.inf, 0, {"V100": {1: 100.0}})])
    engine = SimulatedEngine(cluster, table, World(unused_state="sleep", unused_after_s=60))
    engine.advance(70.0)
    assert (engine.power_w(), engine.nodes().wait_s.tolist()) == (100, [20 + 40])
    engine.apply([Start(0, "a", (0,), 1)])
    engine.advance(1000.0)
    assert engine.poll()[0].at_s == pytest.approx(90 + 40 + 100)
    engine.advance(1000.0)
    asleep_s = 1000 - (230 + 60 + 30)
    energy_j = sum(r.energy_uj for r in engine.readings(up_to_now=True)) / 1e6
    assert energy_j == pytest.approx(70 * 100 + 160 * 150 + 90 * 100 + asleep_s * 10)


def test_a_node_is_back_when_the_last_of_its_outages_ends():
    outages = (Outage(0, 100.0, 300.0), Outage(0, 200.0, 600.0), Outage(0, 600.0, 700.0))
    lab = lab_of(World(outages=outages))
    usable = []
    for _ in range(8):
        lab.pass_time(1)
        usable.append(int(lab.engine.nodes().usable_gpus[0]))
    assert usable == [0, 0, 0, 0, 0, 0, 2, 2]


def test_a_node_that_fails_while_it_wakes_has_woken_when_it_is_back():
    sleep = PowerState(name="sleep", power_w=10, wake_s=500)
    cluster = Cluster.of([NodeSpec(name="n", gpu_type="V100", gpus=1, idle_w=100, gpu_w=50, states=(sleep,))])
    table = JobArrays.of([Job("a", "t", 0, np.inf, 0, {"V100": {1: 100.0}})])
    engine = SimulatedEngine(
        cluster, table, World(unused_state="sleep", unused_after_s=10, outages=(Outage(0, 150.0, 200.0),))
    )
    engine.advance(100.0)
    engine.apply([Start(0, "a", (0,), 1)])
    engine.advance(1000.0)
    assert isinstance(engine.poll()[0], JobInterrupted)
    engine.advance(200.0)
    engine.apply([Start(0, "a", (0,), 1)])
    engine.advance(1000.0)
    assert engine.poll()[0].at_s == pytest.approx(300)


def test_a_node_used_again_at_the_very_moment_it_is_left_need_not_wake():
    sleep = PowerState(name="sleep", power_w=10, enter_s=30, wake_s=40)
    cluster = Cluster.of([NodeSpec(name="n", gpu_type="V100", gpus=1, idle_w=100, gpu_w=50, states=(sleep,))])
    table = JobArrays.of([Job(name, "t", 0, np.inf, 0, {"V100": {1: 100.0}}) for name in ("a", "b")])
    engine = SimulatedEngine(cluster, table, World(unused_state="sleep"))
    engine.advance(0.0)
    assert engine.nodes().wait_s.tolist() == [0]
    engine.apply([Start(0, "a", (0,), 1)])
    engine.advance(500.0)
    assert [change.at_s for change in engine.poll()] == [100]
    assert engine.nodes().wait_s.tolist() == [0]
    engine.apply([Start(1, "b", (0,), 1)])
    engine.advance(500.0)
    assert [change.at_s for change in engine.poll()] == [200]


def sleepy_cluster() -> Cluster:
    deep = PowerState(name="sleep", power_w=30, enter_s=20, wake_s=90, wake_j=500)
    return Cluster.of([NodeSpec(name="n", count=2, gpu_type="V100", gpus=2, idle_w=100, gpu_w=50, states=(deep,))])


def sleepy_engine() -> SimulatedEngine:
    return SimulatedEngine(sleepy_cluster(), contract_jobs(100.0), World(unused_state=None))


def test_energy_of_a_night_is_exact():
    """100 s on, 20 s going to sleep, 380 s asleep, 90 s waking with 500 J besides, 10 s on."""
    engine = sleepy_engine()
    engine.advance(100.0)
    engine.apply([SetPower(0, "sleep")])
    assert engine.nodes().wait_s[0] == 0  # it could still be had at once
    engine.advance(110.0)
    assert engine.nodes().wait_s[0] == 100
    engine.advance(500.0)
    assert engine.nodes().wait_s[0] == 90
    engine.apply([SetPower(0, None)])
    engine.advance(530.0)
    assert engine.nodes().wait_s[0] == 60
    engine.advance(600.0)
    assert engine.nodes().wait_s[0] == 0
    own = [r for r in engine.readings(up_to_now=True) if r.node == 0]
    assert [(r.from_s, r.to_s, r.energy_uj // 10**6, r.waking, r.asleep) for r in own] == [
        (0, 100, 10_000, False, False),
        (100, 120, 2_000, True, False),
        (120, 500, 11_400, False, True),
        (500, 590, 9_500, True, False),
        (590, 600, 1_000, False, False),
    ]


def test_a_job_on_a_waking_node_starts_when_it_is_awake():
    engine = sleepy_engine()
    engine.apply([SetPower(0, "sleep")])
    engine.advance(50.0)
    engine.apply([SetPower(0, None)])
    engine.advance(100.0)
    engine.apply([Start(0, "j1", (0,), 1)])
    engine.advance(5_000.0)
    (ended,) = engine.poll()
    assert ended.at_s == pytest.approx(50 + 90 + 1_000)


def test_sleep_and_wake_at_one_moment_change_nothing():
    engine = sleepy_engine()
    engine.advance(10.0)
    engine.apply([SetPower(0, "sleep"), SetPower(0, None)])
    assert engine.nodes().wait_s[0] == 0
    engine.advance(200.0)
    assert sum(r.energy_uj for r in engine.readings(up_to_now=True)) == 2 * 200 * 100 * 10**6


def test_a_node_that_is_down_cannot_be_put_to_sleep_and_comes_back_on():
    engine = SimulatedEngine(
        sleepy_cluster(), contract_jobs(100.0), World(unused_state=None, outages=(Outage(0, 50.0, 80.0),))
    )
    engine.apply([SetPower(0, "sleep")])
    engine.advance(60.0)
    with pytest.raises(EngineError, match="down"):
        engine.apply([SetPower(0, "sleep")])
    engine.advance(100.0)
    assert engine.nodes().power_state.tolist() == [-1, -1]
    engine.apply([Start(0, "j1", (0,), 1)])
