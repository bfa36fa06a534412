"""What operators see of the capacity plan."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from commonwatt.control.capacity import PoolNow, PowerNow
from commonwatt.model.capacity import CapacitySpec
from commonwatt.service.serializers import capacity_state
from commonwatt.store.controller_store import Tick
from commonwatt.store.records import SampleRow

POOLS = (
    PoolNow("V100", 8, 4, 3, 4, kept=True, sentence=""),
    PoolNow("T4", 1, 0, 1, 1, kept=False, sentence="too few jobs"),
)


def sample(time_s: float, on: int, wanted: int) -> SampleRow:
    return SampleRow(time_s, 0, None, 0, 0, on, wanted, 0.01)


def test_figures_are_means_over_time_and_demand_ends_at_the_cluster(service):
    samples = [sample(1000.0, 9, 20), sample(1100.0, 4, 2), sample(1400.0, 1, 3)]
    state = capacity_state(service.now, CapacitySpec(policy="last-value"), samples, 1500.0)
    assert (state.policy, state.target, state.pools, state.budget) == ("last-value", None, (), None)
    assert (state.period_s, state.total_gpus) == (500.0, 9)
    assert state.mean_on_gpus == pytest.approx((100 * 9 + 300 * 4 + 100 * 1) / 500)
    assert state.mean_wanted_gpus == pytest.approx((100 * 9 + 300 * 2 + 100 * 3) / 500)
    assert state.served_share == pytest.approx(0.8)


def test_a_gap_longer_than_an_hour_is_not_known(service):
    samples = [sample(0.0, 4, 2), sample(90_000.0, 1, 2)]
    state = capacity_state(service.now, CapacitySpec(policy="cuff"), samples, 93_600.0)
    assert (state.period_s, state.served_share, state.target) == (7200.0, 0.5, "0.98")


def test_nothing_is_known_before_the_first_sample(service):
    state = capacity_state(service.now, None, [], 10.0)
    assert (state.policy, state.mean_on_gpus, state.mean_wanted_gpus, state.served_share) == (None, None, None, None)


def test_pools_and_budget(service):
    now = replace(service.now, pools=POOLS, power=PowerNow(math.inf, 900.0, 2))
    state = capacity_state(now, CapacitySpec(policy="cuff", delay_price=1.0), [], 10.0)
    assert [(pool.name, pool.kept, pool.sentence) for pool in state.pools] == [
        ("V100", True, None), ("T4", False, "too few jobs"),
    ]  # fmt: skip
    assert state.budget is not None
    assert (state.budget.limit_w, state.budget.counted_w, state.budget.nodes_off) == (None, 900.0, 2)
    assert state.target is None  # chosen by price
    alone = capacity_state(replace(now, pools=POOLS[:1], power=None), CapacitySpec(), [], 10.0)
    assert [pool.name for pool in alone.pools] == [None]


@pytest.mark.slow
def test_the_route_looks_back_as_far_as_asked(service, as_):
    tick = Tick(sample=sample(service.now.time_s - 7000.0, 9, 1))
    service.ticks.write(tick)
    service.ticks.write(Tick(sample=sample(service.now.time_s - 1800.0, 0, 1)))
    near, far = (as_("operator").get(f"/capacity?hours={hours}").json() for hours in (1, 4))
    assert (near["served_share"], near["period_s"]) == (0.0, pytest.approx(1800.0, abs=600))
    assert 0.5 < far["served_share"] < 0.75
    assert as_("operator").get("/capacity?hours=0").status_code == 422
    assert as_("ada").get("/capacity").status_code == 403
