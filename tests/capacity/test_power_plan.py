"""The plan of power states: equal to trying every path, second by second."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.capacity._power_plan import (
    ON,
    PROMISED,
    Need,
    NodesNow,
    check_states,
    delay_w,
    exceedance,
    plan_states,
)
from commonwatt.model.errors import InputError
from commonwatt.model.nodes import NodeClass, PowerState

CLOCKS = PowerState(name="clocks", power_w=350)
SLEEP = PowerState(name="sleep", power_w=150, enter_s=20, wake_s=90, wake_j=3000)
OFF = PowerState(name="off", power_w=0, enter_s=60, wake_s=180, wake_j=9000)


def walked(idle_w, states, state, busy_s, wishes, probability, promised, step_s, price_w):
    """Cost of a path, by walking through it second by second; None if it cannot be walked."""
    joules, waking = 0.0, state == ON and busy_s > 0
    for wish, p, must in zip(wishes, probability, promised, strict=True):
        if busy_s > 0:
            if wish != state:
                return None
        elif wish != state:
            if state != ON and wish != ON:
                return None
            waking = wish == ON
            busy_s = states[state].wake_s if waking else states[wish].enter_s
            joules += states[state].wake_j if waking else 0.0
            state = wish
        for _ in range(step_s):
            there = state == ON and busy_s <= 0
            joules += idle_w if state == ON or busy_s > 0 else states[state].power_w
            joules += 0.0 if there else (PROMISED if must else price_w * p)
            busy_s = max(0.0, busy_s - 1)
    after_s, p = step_s * len(wishes), probability[-1]
    if state == ON:
        return joules + sum(idle_w + (p * price_w if s < busy_s else 0.0) for s in range(after_s))
    calm = sum(idle_w if s < busy_s else states[state].power_w for s in range(after_s))
    late_s = busy_s + states[state].wake_s
    woken = sum(idle_w + (price_w if s < late_s else 0.0) for s in range(after_s)) + states[state].wake_j
    return joules + (1 - p) * calm + p * woken


seconds = st.integers(0, 12).map(lambda k: 10.0 * k)
power_states = st.builds(
    PowerState, name=st.just("s"), power_w=st.integers(0, 300), enter_s=seconds, wake_s=seconds,
    wake_j=st.sampled_from([0.0, 2000.0]),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(data=st.data(), states=st.lists(power_states, min_size=1, max_size=2), steps=st.integers(1, 4))
def test_equal_to_trying_every_path(data: st.DataObject, states: list[PowerState], steps: int) -> None:
    state = data.draw(st.integers(ON, len(states) - 1))
    busy_s = data.draw(st.sampled_from([0.0, 10.0, 30.0, 50.0]))
    probability = data.draw(st.lists(st.sampled_from([0.0, 0.01, 0.3, 1.0]), min_size=steps, max_size=steps))
    promised = data.draw(st.lists(st.booleans(), min_size=steps, max_size=steps))
    price_w = data.draw(st.sampled_from([0.0, 500.0, 20_000.0]))
    every = {
        wishes: cost
        for wishes in itertools.product(range(ON, len(states)), repeat=steps)
        if (cost := walked(300.0, states, state, busy_s, wishes, probability, promised, 30, price_w)) is not None
    }
    kind = NodeClass("V100", 8, 300.0, 200.0)
    now = NodesNow(np.array([state]), np.array([busy_s]))
    need = Need(np.array([probability]), np.array([promised]))
    choice, cost = plan_states(kind, states, now, need, 30.0, price_w)
    assert cost[0] == pytest.approx(min(every.values()))
    firsts = {wishes[0] for wishes, value in every.items() if value <= min(every.values()) * (1 + 1e-9) + 1e-6}
    assert int(choice[0]) in firsts


def first(probability: list[float], state: int = ON, *, target: float = 0.98, promised: bool = False) -> int:
    kind = NodeClass("V100", 8, 400.0, 200.0)
    states = [CLOCKS, SLEEP, OFF]
    now = NodesNow(np.array([state]), np.array([0.0]))
    need = Need(np.array([probability]), np.full((1, len(probability)), promised))
    return int(plan_states(kind, states, now, need, 60.0, delay_w(400.0, states, target))[0][0])


def test_what_is_never_needed_goes_off_and_what_is_needed_stays() -> None:
    assert first([0.0] * 5) == 2
    assert first([1.0] * 5) == ON
    assert first([0.0] * 5, promised=True) == ON


def test_a_short_gap_is_spent_at_low_clocks_and_a_long_one_deeper() -> None:
    assert first([0.0, 1.0, 1.0, 1.0, 1.0]) == 0
    assert first([0.0, 0.0, 0.0, 0.0, 1.0]) == 1  # deeper, and back in time


def test_a_sleeping_node_is_woken_early_enough() -> None:
    assert first([0.0, 0.0, 1.0, 1.0, 1.0], 1) == ON  # 90 s to wake: it must begin by now
    assert first([0.0, 0.0, 0.0, 1.0, 1.0], 1) == 1


def test_the_threshold_is_the_target_where_changing_costs_nothing() -> None:
    """The newsvendor's critical fractile: kept on where it is needed with more than 1 - target."""
    free = [PowerState(name="off")]
    kind = NodeClass("V100", 8, 400.0, 200.0)
    for target in (0.5, 0.9, 0.98):
        p = np.array([1 - target - 0.001, 1 - target + 0.001])
        # asleep it saves (1 - p) of the idle power; needed, it is woken within no time, having cost one step of delay
        need = Need(np.repeat(p[:, None], 1, axis=1), np.zeros((2, 1), dtype=bool))
        now = NodesNow(np.array([ON, ON]), np.zeros(2))
        saved = 400.0 * 60
        cost_off = p * delay_w(400.0, free, target) * 60
        expected = cost_off < saved * (1 - p)
        assert expected.tolist() == [True, False]
        choice, _ = plan_states(kind, free, now, need, 60.0, delay_w(400.0, free, target))
        assert choice[0] == 0


def test_a_horizon_shorter_than_the_way_back_is_refused() -> None:
    check_states([CLOCKS, SLEEP, OFF], 300.0)
    with pytest.raises(InputError, match="horizon of 120 s"):
        check_states([CLOCKS, SLEEP, OFF], 120.0)


def test_exceedance_falls_with_the_gpus_there_are() -> None:
    levels, row = np.array([0.1, 0.5, 0.9, 0.99]), np.array([[10.0, 20.0, 20.0, 40.0]])
    p = exceedance(levels, row, np.array([0.0, 9.0, 10.0, 20.0, 30.0, 40.0, 61.0]))[:, 0]
    assert p == pytest.approx([1.0, 1.0, 0.9, 0.1, 0.055, 0.01, 0.0], abs=1e-6)
    assert (np.diff(p) <= 1e-12).all()
