"""The power budget of a plan: what nodes count for, and which of them go without."""

from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.capacity import CapacityPlanner, NodePowers, PoolDemand
from commonwatt.capacity._budget import NodePowerBudget
from commonwatt.capacity._demand_forecasters import LastValueForecaster
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.electricity import StepIntegral
from commonwatt.model.errors import InputError
from commonwatt.model.nodes import Cluster, NodeSpec, PowerState

SLEEP = PowerState(name="sleep", power_w=20, enter_s=60, wake_s=60, wake_j=6_000)
CLUSTER = Cluster.of([NodeSpec(name="n", count=4, gpu_type="V100", gpus=2, idle_w=100, gpu_w=100, states=(SLEEP,))])
ON, ASLEEP = -1, 0


def nodes(states, busy=(), wait_s=None):
    used = np.isin(np.arange(len(states)), list(busy))
    waits = [60.0 if state == ASLEEP else 0.0 for state in states] if wait_s is None else wait_s
    return NodePowers(np.full(len(states), 2), np.array(states), np.array(waits), used)


def plan(power_kw, now, wanted, held=0, claimed=(), cap_w=None, now_s=0.0):
    spec = CapacitySpec(policy="last-value", power_kw=power_kw)
    planner = CapacityPlanner(CLUSTER, LastValueForecaster(8), spec, cap_w)
    return planner.plan(now_s, now, [PoolDemand(held, wanted)], claimed)


def test_what_nodes_count_for():
    """A node that is on counts with both GPUs busy, 300 W; asleep with 20 W; entering with its idle power, 100 W."""
    budget = NodePowerBudget(CLUSTER, [(SLEEP,)], np.inf, None)
    assert budget.counted_w(nodes([ON, ASLEEP, ASLEEP, ON], wait_s=[0, 60, 90, 30])).tolist() == [300, 20, 100, 300]
    hungry = SLEEP.model_copy(update={"wake_j": 60_000})  # 1,000 W beyond idle power while it wakes
    cluster = Cluster.of([NodeSpec(name="n", gpu_type="V100", gpus=2, idle_w=100, gpu_w=100, states=(hungry,))])
    assert NodePowerBudget(cluster, [(hungry,)], np.inf, None).counted_w(nodes([ON])).tolist() == [1_100]


def test_no_more_nodes_wake_than_power_allows():
    """4 nodes asleep, 8 GPUs wanted; 700 W are two nodes on and two asleep (640 W), not three (920 W)."""
    found = plan(0.7, nodes([ASLEEP] * 4), 8)
    assert found.changes == ((0, None), (1, None))
    assert found.power.off.tolist() == [2, 3]
    assert (found.power.limit_w, found.power.counted_w) == (700.0, 80.0)


def test_nodes_fall_asleep_before_others_wake():
    """Nodes 0 to 2 are on and unused, and node 3 sleeps, which a job needs. One on and three asleep are 360 W.

    But while three enter their state they draw idle power, 600 W with node 3: so it wakes when they are asleep.
    """
    first = plan(0.55, nodes([ON, ON, ON, ASLEEP]), 2, claimed={3})
    assert first.changes == ((0, "sleep"), (1, "sleep"), (2, "sleep"))
    assert first.power.off.tolist() == [3]
    entering = nodes([ASLEEP] * 4, wait_s=[90, 90, 90, 60])
    assert plan(0.55, entering, 2, claimed={3}).changes == ()
    assert plan(0.55, nodes([ASLEEP] * 4), 2, claimed={3}).changes == ((3, None),)


def test_what_runs_goes_on_below_a_budget_and_wakes_nothing():
    found = plan(0.5, nodes([ON, ON, ON, ASLEEP], busy=(0, 1)), 8, held=4)
    assert found.changes == ((2, "sleep"),)
    assert found.power.off.tolist() == [2, 3]
    assert found.power.counted_w == 920.0


def test_a_node_that_wakes_goes_on_waking():
    """Node 1 wakes, and cannot be stopped: below the budget node 2, the most needed that is on, sleeps instead."""
    found = plan(0.5, nodes([ON, ON, ON, ASLEEP], busy=(0,), wait_s=[0, 30, 0, 60]), 4, held=2)
    assert found.changes == ((2, "sleep"),)


def test_the_least_limit_until_nodes_sleep_counts():
    """The limit falls at 150 s: the plan of 60 s holds till 120 s, and what it puts to sleep then sleeps at 180 s."""
    cap_w = StepIntegral.of([0.0, 150.0], [1_200.0, 400.0])
    budget = NodePowerBudget(CLUSTER, [(SLEEP,)], 1_000.0, cap_w)
    assert [budget.at(now_s, 60.0) for now_s in (0.0, 60.0, 200.0)] == [1_000.0, 400.0, 400.0]


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    states=st.lists(st.sampled_from([ON, ASLEEP]), min_size=4, max_size=4), busy=st.sets(st.integers(0, 3)),
    wanted=st.integers(0, 12), claimed=st.sets(st.integers(0, 3)), power_kw=st.floats(0.08, 1.3),
)  # fmt: skip
def test_the_budget_holds_and_one_that_never_binds_changes_nothing(states, busy, wanted, claimed, power_kw):
    now = nodes([ON if n in busy else state for n, state in enumerate(states)], busy)
    free, ample = plan(None, now, wanted, claimed=claimed), plan(1.2, now, wanted, claimed=claimed)
    assert free.changes == ample.changes
    assert free.power is None
    found = plan(power_kw, now, wanted, claimed=claimed)
    after = now.power_state.copy()
    for n, state in found.changes:
        assert not now.busy[n]
        after[n] = ON if state is None else ASLEEP
    counted_w = np.where(after == ON, 300.0, 20.0)
    assert counted_w.sum() <= max(1_000 * power_kw, np.where(now.busy, 300.0, 20.0).sum()) + 1e-6
    woken = [n for n, state in found.changes if state is None]
    if woken:
        entering = [n for n, state in found.changes if state == "sleep"]
        assert counted_w.sum() + 80.0 * len(entering) <= 1_000 * power_kw + 1e-6
    assert bool(len(found.power.off)) == (found.changes != free.changes)


def test_less_than_the_nodes_draw_asleep_is_refused():
    with pytest.raises(InputError, match=r"0\.08 kW or more"):
        plan(0.079, nodes([ON] * 4), 0)
    always_on = Cluster.of([NodeSpec(name="n", count=2, gpu_type="V100", gpus=2, idle_w=100, gpu_w=100, states=())])
    for power_kw, refused in ((0.6, False), (0.59, True)):
        spec = CapacitySpec(policy="last-value", power_kw=power_kw)
        with pytest.raises(InputError, match=r"0\.6 kW or more") if refused else nullcontext():
            CapacityPlanner(always_on, LastValueForecaster(4), spec)
