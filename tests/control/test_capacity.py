"""Nodes on and off by a plan: what runs is never touched, what waits is never forgotten, energy adds up."""

import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.capacity import CapacityPlanner, DemandForecaster, ExpectedDemand
from commonwatt.capacity._demand_forecasters import (
    AlwaysOnForecaster,
    CalibratedForecaster,
    ForesightForecaster,
    LastValueForecaster,
    ThresholdForecaster,
)
from commonwatt.capacity._promise import Calibrator
from commonwatt.control.capacity import Capacity, only_on
from commonwatt.control.controller import Controller
from commonwatt.control.engine import Capabilities, NodeView
from commonwatt.control.job_registry import Rules
from commonwatt.control.policy import Policy
from commonwatt.engines.clocks import VirtualClock, run
from commonwatt.engines.simulated.engine import SimulatedEngine, World
from commonwatt.forecasting._predictors import make_predictor
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.demand import DemandSeries
from commonwatt.model.electricity import Electricity
from commonwatt.model.errors import EngineError, InputError
from commonwatt.model.jobs import JobArrays
from commonwatt.model.nodes import Cluster, PowerState
from commonwatt.model.scenario import PeerName, PolicySpec, PriceWait
from commonwatt.planning.capacity import demand_of_run
from commonwatt.simulation.run_setup import TableSource
from tests.control.test_guarantees import QUICK
from tests.control.worlds import cluster_of, job, random_jobs, trace
from tests.forecasting.made import walk

SLEEP = PowerState(name="sleep", power_w=20, enter_s=10, wake_s=60, wake_j=500)
OFF = PowerState(name="off", power_w=0, enter_s=60, wake_s=120, wake_j=4000)


def capacity_of(cluster: Cluster, forecaster: DemandForecaster, spec: CapacitySpec | None = None) -> Capacity:
    return Capacity(CapacityPlanner(cluster, forecaster, spec or CapacitySpec()))


def controlled(
    table: JobArrays, forecaster: DemandForecaster, spec: CapacitySpec | None = None, *, nodes: int = 3,
    solver: str = "easy", cluster: Cluster | None = None, electricity: Electricity | None = None,
    rules: Rules | None = None, **policy,
) -> Controller:  # fmt: skip
    cluster = cluster or cluster_of(nodes, states=(SLEEP, OFF))
    engine = SimulatedEngine(cluster, table, World(unused_state=None))
    controller = Controller(
        cluster=cluster, engine=engine, policy=Policy.of(PolicySpec(solver=solver, **policy)), rules=rules or Rules(),
        tariff=(electricity or Electricity()).tariff(), rng=np.random.default_rng(0),
        capacity=capacity_of(cluster, forecaster, spec),
    )  # fmt: skip
    run(controller, VirtualClock(engine), TableSource(table))
    return controller


def test_a_job_nobody_expected_wakes_a_node_and_counts_as_delayed() -> None:
    """All three nodes go off at 0 but for the one the first job is on; the second needs a whole one."""
    table = JobArrays.of([job("a", 0.0, 2_000.0), job("b", 600.0, 500.0, gpus=2)])
    controller = controlled(table, LastValueForecaster(6))
    assert trace(controller) == [
        (0, "submitted", "a", ()), (0, "started", "a", (0,)), (600, "submitted", "b", ()),
        (600, "started", "b", (1,)), (1_220, "completed", "b", (1,)), (2_000, "completed", "a", (0,)),
    ]  # fmt: skip
    assert controller.capacity is not None
    counters = controller.capacity.counters
    assert counters.delays_s == {1: pytest.approx(120.0)}  # from off
    assert counters.wakes == 1


def test_with_foresight_the_node_is_awake_in_time() -> None:
    table = JobArrays.of([job("a", 0.0, 2_000.0), job("b", 600.0, 500.0, gpus=2)])
    always = controlled(table, AlwaysOnForecaster(6))
    known = demand_of_run(always.samples, 60.0)
    assert known.gpus[[0, 9, 10, 18, 19]].tolist() == [1, 1, 3, 3, 1]
    controller = controlled(table, ForesightForecaster(known, 6), CapacitySpec(target=0.999))
    assert controller.capacity is not None
    assert controller.capacity.counters.delays_s == {}
    assert trace(controller)[-2][0] == 1_100
    assert controller.ledger.meter.energy_uj < always.ledger.meter.energy_uj


def test_always_on_draws_what_it_draws() -> None:
    table = JobArrays.of([job("a", 0.0, 1_000.0)])
    controller = controlled(table, AlwaysOnForecaster(6))
    assert controller.ledger.meter.energy_uj == (3 * 100 + 100) * 1_000 * 10**6
    assert controller.ledger.slept_uj == 0


def test_energy_of_sleep_is_exact_and_adds_up() -> None:
    """Two nodes enter "off" for 60 s at 100 W, then draw nothing; one is on with its job."""
    controller = controlled(JobArrays.of([job("a", 0.0, 1_000.0)]), LastValueForecaster(6))
    ledger = controller.ledger
    assert ledger.overhead["waking"].energy_uj == 2 * 60 * 100 * 10**6
    assert ledger.overhead["asleep"].energy_uj == 0
    assert ledger.slept_uj == 2 * 940 * 100 * 10**6
    assert ledger.total().energy_uj == ledger.meter.energy_uj == (200 * 1_000 + 2 * 60 * 100) * 10**6


def test_the_floor_is_kept_and_a_promise_is_held() -> None:
    table = JobArrays.of([job("a", 0.0, 300.0, gpus=2), job("b", 0.0, 300.0, gpus=2), job("c", 0.0, 3_000.0)])
    held = controlled(table, LastValueForecaster(6), CapacitySpec(hold_s=1_200.0))
    plain = controlled(table, LastValueForecaster(6))
    floor = controlled(table, LastValueForecaster(6), CapacitySpec(floor_gpus=4))

    def on_at(controller: Controller, time_s: float) -> int:
        return [sample for sample in controller.samples if sample.time_s <= time_s][-1].on_gpus

    assert [on_at(c, 1_000.0) for c in (held, plain, floor)] == [6, 2, 4]
    assert [on_at(c, 2_500.0) for c in (held, plain, floor)] == [2, 2, 4]


@pytest.mark.long
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 500), solver=st.sampled_from(["easy", "fifo", "lookahead", "random-greedy"]),
    expects=st.sampled_from(["last", "nothing", "random"]), hold_s=st.sampled_from([0.0, 300.0]),
)  # fmt: skip
def test_every_job_ends_and_every_microjoule_is_accounted_for(
    seed: int, solver: str, expects: str, hold_s: float
) -> None:
    class Odd:
        steps = 5

        def ahead(self, wanted_gpus: float, now_s: float, arrivals=None, due=None) -> ExpectedDemand:
            rng = np.random.default_rng([seed, int(now_s)])
            gpus = rng.integers(0, 7, 5) if expects == "random" else np.zeros(5, dtype=np.int64)
            return ExpectedDemand(gpus)

        def missed(self, steps: int) -> None:
            raise AssertionError

    table = random_jobs(12, seed)
    forecaster = LastValueForecaster(6) if expects == "last" else Odd()
    controller = controlled(table, forecaster, CapacitySpec(hold_s=hold_s), solver=solver)
    assert not controller.registry.active
    ledger = controller.ledger
    assert ledger.total() == ledger.meter
    assert all(sample.busy_gpus <= sample.on_gpus for sample in controller.samples)
    end_s = controller.samples[-1].time_s
    assert ledger.meter.gpu_us == pytest.approx(6 * end_s * 1e6, abs=10)
    assert ledger.slept_uj is not None
    assert ledger.slept_uj + ledger.meter.energy_uj >= 3 * 100 * end_s * 1e6 - 1e6


def test_placement_sees_only_nodes_that_are_on_or_waking() -> None:
    view = NodeView(np.array([2, 2, 2]), np.array([0.0, 60.0, 30.0]), np.array([-1, 0, -1]))
    assert only_on(view).usable_gpus.tolist() == [2, 0, 2]


def test_a_node_others_use_is_not_put_to_sleep() -> None:
    class Shared(SimulatedEngine):
        def nodes(self) -> NodeView:
            return replace(super().nodes(), in_use=np.array([False, True, False]))

    cluster = cluster_of(3, states=(SLEEP,))
    engine = Shared(cluster, random_jobs(1, 0), World(unused_state=None))
    controller = Controller(
        cluster=cluster, engine=engine, policy=Policy.of(PolicySpec(solver="easy")), rules=Rules(),
        tariff=Electricity().tariff(), rng=np.random.default_rng(0),
        capacity=capacity_of(cluster, LastValueForecaster(6)),
    )  # fmt: skip
    controller.tick(0.0)
    assert engine.nodes().power_state.tolist() == [0, -1, 0]


def test_refused() -> None:
    cluster = cluster_of(2, states=(PowerState(name="slow", enter_s=100, wake_s=201),))
    with pytest.raises(InputError, match="slow"):
        capacity_of(cluster, LastValueForecaster(4))
    with pytest.raises(InputError, match="states"):
        capacity_of(cluster_of(2), LastValueForecaster(4), CapacitySpec(states=("nap",)))

    class Plain(SimulatedEngine):
        def __init__(self) -> None:
            super().__init__(cluster_of(2), random_jobs(1, 0), World())
            self.capabilities = Capabilities(preempt=True, gangs=True, energy=True)

    with pytest.raises(EngineError, match="sleep"):
        Controller(
            cluster=cluster_of(2), engine=Plain(), policy=Policy.of(PolicySpec(solver="easy")), rules=Rules(),
            tariff=Electricity().tariff(), rng=np.random.default_rng(0),
            capacity=capacity_of(cluster_of(2), LastValueForecaster(4)),
        )  # fmt: skip


def test_foresight_beyond_its_end_expects_nothing_but_what_is_there() -> None:
    forecaster = ForesightForecaster(DemandSeries(0.0, 60.0, np.array([1.0, 5.0])), 8).ahead(3.0, 60.0)
    assert forecaster.promised_gpus.tolist() == [5, 0, 0, 0, 0]
    assert ForesightForecaster(DemandSeries(0.0, 60.0, np.array([1.0])), 8).ahead(3.0, 600.0).promised_gpus[0] == 3


def calibrated(series: DemandSeries) -> CalibratedForecaster:
    predictor = make_predictor("last-value")
    predictor.fit(series.between(0, 200), np.random.default_rng(0))
    made = CalibratedForecaster(predictor, Calibrator(0.9, whole_gpus=300))
    made.warm(series, 200)
    return made


@pytest.mark.parametrize(("missed", "late_s"), [(0, 0.0), (0, 59.0), (1, 0.0), (3, 20.0)])
def test_of_steps_without_a_plan_it_is_heard_that_their_demand_is_unknown(missed: int, late_s: float) -> None:
    """What was forecast before is for those steps, not for the one after them."""
    series, cluster = walk(500), cluster_of(3, states=(SLEEP,))
    ahead, by_hand = calibrated(series), calibrated(series)
    capacity = capacity_of(cluster, ahead, CapacitySpec(step_s=60.0))
    view = NodeView(np.array([2, 2, 2]), np.zeros(3), np.full(3, -1))
    for now_s, wanted in ((0.0, 5), (60.0 * (1 + missed) + late_s, 6)):
        capacity.plan(now_s, view, np.zeros(3, dtype=bool), 0, wanted)
    by_hand.ahead(5.0, 0.0)
    for _ in range(missed):
        by_hand.ahead(math.nan, 0.0)
    by_hand.ahead(6.0, 0.0)
    expected, found = by_hand.ahead(7.0, 0.0), ahead.ahead(7.0, 0.0)
    assert (found.promised_gpus == expected.promised_gpus).all()
    assert np.array_equal(found.quantiles, expected.quantiles)
    assert capacity.next_s == 60.0 * (2 + missed)


@pytest.mark.slow
def test_after_many_steps_without_a_plan_nothing_is_promised() -> None:
    series = walk(500)
    ahead = calibrated(series)
    assert ahead.ahead(60.0, 0.0).kept
    ahead.missed(10**9)
    after = ahead.ahead(60.0, 0.0)
    assert not after.kept
    assert "unknown at 119 of the last 120" in after.sentence
    threshold = ThresholdForecaster(make_predictor("last-value"), 0.05, 300)
    threshold._predictor.fit(series, np.random.default_rng(0))
    threshold.missed(10**9)
    assert threshold.ahead(60.0, 0.0).promised_gpus[0] == 63


# -- jobs that placement defers


NIGHTS = Electricity(daily={"00:00": 0.05, "07:00": 0.50, "22:00": 0.05}, pue=1.0)
HOUR = 3600.0


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["easy", "fifo", "lookahead"])
def test_a_job_deferred_to_a_lower_price_wakes_nothing_before_and_finds_its_node_awake(solver) -> None:
    """It comes at 9:00, when all nodes are off, and is deferred to 22:00; the plan has a node awake by then."""
    table = JobArrays.of([job("a", 9 * HOUR, HOUR, due_s=33 * HOUR)])
    eager = controlled(table, LastValueForecaster(6), solver=solver, electricity=NIGHTS)
    controller = controlled(
        table, LastValueForecaster(6), solver=solver, electricity=NIGHTS, wait_for_price=PriceWait()
    )
    assert controller.registry.job("began_s").tolist() == [22 * HOUR]
    assert controller.registry.job("ended_s").tolist() == [23 * HOUR]
    assert controller.capacity is not None
    assert controller.capacity.counters.delays_s == {}
    off = [s.on_gpus for s in controller.samples if 9.5 * HOUR < s.time_s < 21.9 * HOUR]
    assert off
    assert set(off) == {0}
    assert controller.ledger.meter.cost_n < eager.ledger.meter.cost_n


def test_a_deferred_job_is_expected_until_it_is_cancelled() -> None:
    table, cluster = JobArrays.of([job("a", 9 * HOUR, HOUR, due_s=33 * HOUR)]), cluster_of(2, states=(SLEEP, OFF))
    capacity = capacity_of(cluster, LastValueForecaster(6))
    controller = Controller(
        cluster=cluster, engine=SimulatedEngine(cluster, table, World(unused_state=None)), rules=Rules(),
        policy=Policy.of(PolicySpec(solver="easy", wait_for_price=PriceWait())), tariff=NIGHTS.tariff(),
        rng=np.random.default_rng(0), now_s=9 * HOUR, capacity=capacity,
    )  # fmt: skip
    controller.submit(table, np.array([0]))
    controller.tick(9 * HOUR)
    assert capacity.planned_s == {0: 22 * HOUR}
    controller.cancel({0: None}, 9 * HOUR)
    controller.tick(9 * HOUR + 60)
    assert capacity.planned_s == {}


@pytest.mark.slow
@pytest.mark.parametrize("solver", [*QUICK, *get_args(PeerName)])
def test_every_solver_starts_a_job_that_comes_while_all_nodes_are_asleep(solver) -> None:
    table = JobArrays.of([job("a", 0.0, 100.0), job("b", 2_000.0, 500.0), job("c", 2_100.0, 500.0, gpus=2)])
    rules = Rules(round_s=60.0 if solver in get_args(PeerName) else None)
    controller = controlled(table, LastValueForecaster(6), CapacitySpec(step_s=300.0), solver=solver, rules=rules)
    on = {sample.time_s: sample.on_gpus for sample in controller.samples}
    assert max(gpus for time_s, gpus in on.items() if 1_000.0 < time_s < 2_000.0) == 0
    assert controller.registry.job("ended_s").max() < 4_000.0
