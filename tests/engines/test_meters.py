"""Meters of nodes: readings that are kept back, and amended once it is known who had the GPUs."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.control.engine import Holder
from commonwatt.engines.meters import DeclaredPower, Meters
from commonwatt.model.nodes import Cluster, NodeSpec

ONE = Cluster.of([NodeSpec(name="a", gpu_type="V100", gpus=8, idle_w=100, gpu_w=50, count=2)])
LATE = Holder(7, 2, 50.0, 0.0)
OTHER = Holder(8, 1, 50.0, 0.0)
MOMENTS = st.lists(st.integers(1, 100), min_size=1, max_size=6, unique=True).map(sorted)


def meters_at(clock, *, metered):
    return Meters(
        2, (lambda n: 300.0 * clock[0]) if metered else None, None if metered else DeclaredPower(ONE),
        now_s=lambda: clock[0], steady_s=lambda: clock[0],
    )  # fmt: skip


@pytest.mark.slow
@given(MOMENTS, st.floats(0, 110), st.floats(0, 110), st.booleans())
def test_an_amended_time_is_that_of_the_holder_and_nothing_else_changes(moments, since_s, until_s, metered):
    clock = [0.0]
    meters = meters_at(clock, metered=metered)
    for moment in moments:
        clock[0] = float(moment)
        meters.close(0, [OTHER])
    before = list(meters._readings)
    meters.amend(0, LATE, since_s, until_s)
    readings = meters.take()
    held = sum(r.to_s - r.from_s for r in readings if LATE in r.holders)
    assert held == pytest.approx(max(0.0, min(until_s, moments[-1]) - min(since_s, moments[-1])), abs=1e-9)
    assert sum(r.to_s - r.from_s for r in readings if OTHER in r.holders) == pytest.approx(moments[-1])
    assert all(one.to_s == two.from_s for one, two in pairwise(readings))
    more_uj = sum(r.energy_uj for r in readings) - sum(r.energy_uj for r in before)
    assert more_uj == 0 if metered else more_uj == pytest.approx(2 * 50 * 1e6 * held, abs=len(readings))


def test_what_is_kept_back_counts_as_not_read_yet():
    clock = [0.0]
    meters = meters_at(clock, metered=True)
    for moment in (10.0, 25.0):
        clock[0] = moment
        for n in (0, 1):
            meters.close(n, [])
    assert [(r.node, r.to_s) for r in meters.take({0})] == [(1, 10.0), (1, 25.0)]
    assert meters.mark(0)[:2] == (0.0, 0.0)
    assert meters.mark(1)[:2] == (25.0, 7500.0)
    assert [(r.node, r.to_s) for r in meters.take()] == [(0, 10.0), (0, 25.0)]
    assert meters.mark(0)[:2] == (25.0, 7500.0)
