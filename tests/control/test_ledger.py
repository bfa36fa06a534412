"""The ledger divides every joule and loses none."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.control.engine import Holder, Reading
from commonwatt.control.job_registry import Rules
from commonwatt.control.ledger import Account, Ledger
from commonwatt.engines.simulated.engine import Outage, World
from commonwatt.model.electricity import Electricity, ElectricityPoint
from tests.control.worlds import cluster_of, random_jobs, simulate


def ledger_of(**electricity) -> Ledger:
    return Ledger(cluster_of(nodes=1, gpus=4), Electricity(**electricity).tariff())


def test_shares_by_hand():
    """4 GPUs, 100 W idle, 100 W a GPU; one job on 1 GPU, one on 2, one GPU free, for 100 s."""
    ledger = ledger_of(price_per_kwh=0.36, pue=1.0, carbon_g_per_kwh=360)
    holders = (Holder(0, 1, 100, 0.0), Holder(1, 2, 100, 0.0))
    ledger.charge([Reading(0, 0.0, 100.0, 40_000 * 10**6, holders)])
    assert ledger.account(0).energy_uj == 12_500 * 10**6
    assert ledger.account(1).energy_uj == 25_000 * 10**6
    assert ledger.idle.energy_uj == 2_500 * 10**6
    assert (ledger.account(0).gpu_us, ledger.account(1).gpu_us, ledger.idle.gpu_us) == (10**8, 2 * 10**8, 10**8)
    assert ledger.account(0).cost_n == pytest.approx(12_500 / 3.6e6 * 0.36 * 1e9, abs=2)
    assert ledger.account(0).carbon_ug == pytest.approx(12_500 / 3.6e6 * 360 * 1e6, abs=2)
    assert ledger.total() == ledger.meter


def test_time_before_work_begins_is_overhead():
    ledger = ledger_of()
    ledger.charge([Reading(0, 0.0, 100.0, 1000, (Holder(0, 4, 100, 25.0),))])
    assert ledger.overhead["starting"].energy_uj == 250
    assert ledger.account(0).energy_uj == 750
    assert ledger.total() == ledger.meter


def test_lost_work_moves_to_overhead():
    ledger = ledger_of()
    ledger.began(0)
    ledger.charge([Reading(0, 0.0, 100.0, 1000, (Holder(0, 4, 100, 0.0),))])
    ledger.lost(0, lost_gpu_s=4 * 30)
    assert ledger.overhead["lost work"].energy_uj == 300
    assert ledger.account(0).energy_uj == 700
    assert ledger.total() == ledger.meter


def test_waking_of_an_unused_node_is_overhead_and_sleep_is_idle():
    ledger = ledger_of()
    ledger.charge([Reading(0, 0.0, 1.0, 7, (), waking=True), Reading(0, 1.0, 2.0, 5, ())])
    assert (ledger.overhead["waking"].energy_uj, ledger.idle.energy_uj) == (7, 5)


def test_unknown_energy_stays_unknown_and_is_not_zero():
    ledger = ledger_of()
    ledger.charge([Reading(0, 0.0, 100.0, None, (Holder(0, 4, 100, 0.0),)), Reading(0, 100.0, 200.0, 50, ())])
    assert ledger.account(0).energy_uj is None
    assert ledger.account(0).gpu_us == 4 * 10**8
    assert ledger.total() == ledger.meter
    assert ledger.meter.energy_uj is None


def test_unknown_carbon_does_not_make_energy_unknown():
    ledger = ledger_of()
    ledger.charge([Reading(0, 0.0, 100.0, 1000, (Holder(0, 4, 100, 0.0),))])
    assert ledger.account(0).carbon_ug is None
    assert ledger.account(0).energy_uj == 1000


def test_amounts_are_whole_numbers_and_none_is_lost_however_large_they_get():
    """From 2.5 MWh on, 2**53 microjoules, a float has no room for one more."""
    ledger = ledger_of(price_per_kwh=0.3, carbon_g_per_kwh=300)
    ledger.began(0)
    for k, energy_uj in enumerate((2**53, 1, 1)):
        ledger.charge([Reading(0, float(k), k + 1.0, energy_uj, (Holder(0, 4, 100, 0.0),))])
    ledger.lost(0, lost_gpu_s=1.0)
    for k, energy_uj in enumerate((2**53, 1, 1), 3):
        ledger.charge([Reading(0, float(k), k + 1.0, energy_uj, ())])
    assert ledger.idle.energy_uj == 2**53 + 2
    assert ledger.account(0).energy_uj + ledger.overhead["lost work"].energy_uj == 2**53 + 2
    assert ledger.total().energy_uj == ledger.meter.energy_uj == 2**54 + 4
    rows = (ledger.account(0), ledger.idle, *ledger.overhead.values(), ledger.meter)
    assert {type(amount) for row in rows for amount in vars(row).values()} == {int}


def test_two_jobs_with_the_same_gpus_by_hand():
    """4 GPUs, 100 W idle; two jobs have three of them, and draw 75 and 25 W on each, for a microsecond and for 100 s.

    Of 100 + 300 W each has its power and half of 75 W idle power: 262.5 and 112.5 W. Three GPU-microseconds are split.
    """
    ledger = ledger_of(price_per_kwh=0.36, pue=1.0)
    pair = (Holder(4, 3, 75.0, 0.0, beside=2), Holder(2, 3, 25.0, 0.0, beside=4))
    ledger.charge([Reading(0, 0.0, 100.0, 40_000 * 10**6, pair)])
    assert ledger.account(4).energy_uj == 26_250 * 10**6
    assert ledger.account(2).energy_uj == pytest.approx(11_250 * 10**6, abs=2)
    assert (ledger.account(4).gpu_us, ledger.account(2).gpu_us, ledger.idle.gpu_us) == (150 * 10**6,) * 2 + (10**8,)
    ledger.charge([Reading(0, 0.0, 1e-6, 401, pair)])
    assert (ledger.account(4).gpu_us, ledger.account(2).gpu_us) == (150 * 10**6 + 1, 150 * 10**6 + 2)
    assert ledger.idle.gpu_us == 10**8 + 1
    assert ledger.total() == ledger.meter


def test_a_reading_across_a_change_of_price_pays_each_part_at_its_own():
    points = (ElectricityPoint(from_s=0, price_per_kwh=0.1), ElectricityPoint(from_s=60, price_per_kwh=0.4))
    ledger = ledger_of(series=points, pue=1.0)
    ledger.charge([Reading(0, 0.0, 100.0, 3_600_000 * 10**6, ())])  # 1 kWh in 100 s
    assert ledger.idle.cost_n == pytest.approx((0.6 * 0.1 + 0.4 * 0.4) * 1e9, abs=2)


holders = st.lists(st.tuples(st.integers(1, 2), st.floats(0, 300), st.floats(-10, 30)), max_size=2)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.floats(0.001, 20), st.integers(0, 10**15), holders, st.booleans()), min_size=1, max_size=8),
    st.lists(st.floats(0, 50), max_size=4),
)
def test_rows_sum_to_the_meter_exactly(readings, losses):
    ledger = ledger_of(carbon_g_per_kwh=300)
    now = 0.0
    for k, (length, energy, held, waking) in enumerate(readings):
        for handle, _ in enumerate(held):
            if k % 2 == 0:
                ledger.began(handle)
        there = tuple(Holder(h, gpus, w, now + late) for h, (gpus, w, late) in enumerate(held))
        ledger.charge([Reading(0, now, now + length, energy, there, waking)])
        now += length
        if k < len(losses):
            ledger.lost(k % 2, losses[k])
    assert ledger.total() == ledger.meter


@pytest.mark.slow
@settings(deadline=None, max_examples=12)
@given(
    seed=st.integers(0, 1000),
    solver=st.sampled_from(["random-greedy", "lookahead", "fifo", "easy", "srtf"]),
    restart_s=st.sampled_from([0.0, 45.5]),
    after_s=st.sampled_from([0.0, 333.3]),
)
def test_rows_sum_to_the_meter_in_simulations(seed, solver, restart_s, after_s):
    world = World(restart_s=restart_s, unused_after_s=after_s, outages=(Outage(0, 500.0, 900.0),))
    done = simulate(
        cluster_of(), random_jobs(12, seed), solver, rules=Rules(restart_s=restart_s), world=world, seed=seed
    )
    assert done.ledger.total() == done.ledger.meter


def test_the_meter_equals_the_integral_of_power():
    """Samples of the engine's power, taken after every tick, integrate to the metered energy."""
    done = simulate(cluster_of(), random_jobs(30, 3), "fifo")
    times = np.array([s.time_s for s in done.samples])
    watts = np.array([s.power_w for s in done.samples])
    energy_j = float(np.sum(watts[:-1] * np.diff(times)))
    assert done.ledger.meter.energy_uj / 1e6 == pytest.approx(energy_j, rel=1e-9)


def test_gpu_time_of_a_job_alone_is_its_run_time():
    done = simulate(cluster_of(), random_jobs(1, 5), "fifo")
    ran_s = float(done.registry.job("ended_s")[0] - done.registry.job("began_s")[0])
    gpus = done.ledger.account(0).gpu_us / 1e6 / ran_s
    assert gpus == pytest.approx(round(gpus), rel=1e-9)


def test_taking_and_adding_back_restores_an_account():
    account = Account(10, 7, None, 3)
    part = account.take(0.37)
    account.add(part)
    assert account == Account(10, 7, None, 3)
