"""Energy adds up to the meter, and what the meter teaches comes close to the truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.timeslicing._energy import IDLE, EnergyLedger, PowerCorrection

S = 10**9


def test_without_a_meter_the_model_stands():
    ledger = EnergyLedger(idle_w=10)
    ledger.book("a", S // 2, 20.0, 40.0)
    added, powers = ledger.settle(S, None)
    assert added == {"a": 0.0}
    assert powers == {"a": pytest.approx(40)}
    assert (ledger.idle_j, ledger.meter_j) == (pytest.approx(5), None)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(0, S), st.floats(0, 500)), max_size=3),
            st.integers(0, 3 * S),
            st.floats(0, 1e4),
        ),
        max_size=12,
    )
)
def test_tenants_and_idling_sum_to_the_meter(windows):
    ledger = EnergyLedger(idle_w=7.0)
    booked = dict.fromkeys("abc", 0.0)
    for used, idle_ns, meter_j in windows:
        for name, (time_ns, joules) in used.items():
            ledger.book(name, time_ns, joules, 50.0)
            booked[name] += joules
        added, _ = ledger.settle(sum(t for t, _ in used.values()) + idle_ns, meter_j)
        for name, joules in added.items():
            booked[name] += joules
    whole = sum(meter_j for _, _, meter_j in windows)
    assert sum(booked.values()) + ledger.idle_j == pytest.approx(whole, rel=1e-9, abs=1e-6)
    assert (ledger.meter_j or 0.0) == pytest.approx(whole)


def test_a_wrong_model_is_corrected_from_window_to_window():
    """Modelled 100 W each and 10 W idle; really 60, 180 and 15. The meter only ever sees the sum."""
    rng = np.random.default_rng(0)
    true = {"a": 60.0, "b": 180.0, IDLE: 15.0}
    ledger = EnergyLedger(idle_w=10)
    powers = {}
    energy = dict.fromkeys(true, 0.0)
    spent = dict.fromkeys(true, 0.0)
    for window in range(60):
        parts = rng.dirichlet([1, 1, 1])
        for name, part in zip("ab", parts, strict=False):
            ledger.book(name, round(part * S), 100.0 * part, 100.0)
        meter = sum(true[row] * part for row, part in zip(true, parts, strict=True)) * rng.normal(1, 0.01)
        added, learnt = ledger.settle(S, meter)
        powers |= learnt
        if window >= 20:
            for name, part in zip("ab", parts, strict=False):
                energy[name] += 100.0 * part + added[name]
                spent[name] += true[name] * part
    assert powers["a"] == pytest.approx(60, rel=0.05)
    assert powers["b"] == pytest.approx(180, rel=0.05)
    assert [energy[n] for n in "ab"] == pytest.approx([spent[n] for n in "ab"], rel=0.05)


def test_one_tenant_alone_is_known_at_once():
    ledger = EnergyLedger(idle_w=10)
    for _ in range(3):
        ledger.book("a", S, 100.0, 100.0)
        _, powers = ledger.settle(S, 42.0)
    assert powers["a"] == pytest.approx(42, rel=0.01)


def test_nothing_is_learnt_of_rows_that_never_ran():
    correction = PowerCorrection()
    correction.learn({"a": 1.0, IDLE: 0.0}, 2.0)
    assert correction.factor("b") == correction.factor(IDLE) == 1.0
    assert correction.factor("a") > 1.9
    correction.learn({}, 5.0)
    correction.learn({"a": 1.0}, 0.0)


def test_a_meter_that_saw_energy_nobody_modelled_calls_it_idling():
    ledger = EnergyLedger(idle_w=0)
    added, _ = ledger.settle(S, 3.0)
    assert (added, ledger.idle_j) == ({}, 3.0)
