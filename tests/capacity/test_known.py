"""Jobs known before they come: added to the forecast, never earlier than they were known, and worth what they save."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.capacity import CapacityPlanner
from commonwatt.capacity._demand_forecasters import CalibratedForecaster, ThresholdForecaster
from commonwatt.capacity._waiting import WaitingCalibrator
from commonwatt.control.capacity import Capacity
from commonwatt.control.controller import Controller
from commonwatt.control.job_registry import Rules
from commonwatt.control.policy import Policy
from commonwatt.data.demand import demand_of
from commonwatt.data.readers.plain import read
from commonwatt.engines.clocks import VirtualClock, run
from commonwatt.engines.simulated.engine import SimulatedEngine, World
from commonwatt.forecasting import make_predictor
from commonwatt.model.capacity import CapacitySpec, WaitingTarget
from commonwatt.model.demand import Arrivals, DemandSeries
from commonwatt.model.electricity import Electricity
from commonwatt.model.errors import InputError
from commonwatt.model.jobs import JobArrays
from commonwatt.model.nodes import PowerState
from commonwatt.model.scenario import PolicySpec
from commonwatt.simulation.run_setup import TableSource
from tests.control.worlds import cluster_of, job


@pytest.mark.slow
@given(
    jobs=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(1, 9)), min_size=1, max_size=12),
    begin=st.integers(0, 20), steps=st.integers(1, 6),
)  # fmt: skip
def test_due_gpus_are_those_of_trying_every_job(jobs, begin, steps):
    jobs.sort()
    index = np.array([at for at, _, _ in jobs])
    known, gpus = index - [ahead for _, ahead, _ in jobs], np.array([float(size) for *_, size in jobs])
    arrivals, origins = Arrivals(index, gpus, gpus, known), np.arange(begin, begin + 8)
    tried = np.array([
        [sum(g for at, k, g in zip(index, known, gpus, strict=True) if k <= o < at <= o + h)
         for h in range(1, steps + 1)] for o in origins
    ])  # fmt: skip
    due = arrivals.due(origins, steps)
    assert (due is None) == (known == index).all()
    assert due is None or due.tolist() == tried.tolist()


@pytest.mark.parametrize(("known_s", "delays_s"), [(0.0, {}), (590.0, {1: 120.0}), (None, {1: 120.0})])
def test_a_node_is_awake_for_a_job_known_to_come_and_not_before_it_is_known(known_s, delays_s):
    """The second job needs a node that takes 120 s to wake. It is known at once, ten seconds before, or when it comes.

    Known ten seconds before, it is not known at the plan of 540 s, and the plan of 600 s sees it come.
    """
    table = JobArrays.of([job("a", 0.0, 2_000.0), job("b", 600.0, 500.0, gpus=2)])
    if known_s is not None:
        table = JobArrays(**{**vars(table), "known_s": np.array([np.nan, known_s])})
    off = PowerState(name="off", power_w=0, enter_s=60, wake_s=120, wake_j=4000)
    cluster = cluster_of(3, states=(off,))
    predictor = make_predictor("last-value")
    predictor.fit(DemandSeries(-18_000.0, 60.0, np.ones(300)), np.random.default_rng(0))
    engine = SimulatedEngine(cluster, table, World(unused_state=None))
    capacity = Capacity(CapacityPlanner(cluster, ThresholdForecaster(predictor, 0.0, 6), CapacitySpec()))
    controller = Controller(
        cluster=cluster, engine=engine, policy=Policy.of(PolicySpec(solver="easy")), rules=Rules(),
        tariff=Electricity().tariff(), rng=np.random.default_rng(0), capacity=capacity,
    )  # fmt: skip
    capacity.announced_jobs = source = TableSource(table)
    run(controller, VirtualClock(engine), source)
    assert capacity.counters.delays_s == pytest.approx(delays_s)
    slept_uj = controller.ledger.slept_uj
    assert slept_uj is not None
    assert slept_uj > 0


def test_a_source_tells_no_job_before_it_is_known():
    table = JobArrays.of([job("a", 0.0, 10.0), job("b", 600.0, 10.0, gpus=2), job("c", 660.0, 10.0)])
    source = TableSource(JobArrays(**{**vars(table), "known_s": np.array([np.nan, 300.0, np.nan])}))
    assert [source.coming(now_s, now_s + 600.0)[0].tolist() for now_s in (299.0, 300.0, 599.0, 600.0)] == [
        [], [600.0], [600.0], []
    ]  # fmt: skip
    assert source.coming(300.0, 900.0)[1].tolist() == [2]
    assert source.coming(300.0, 599.0)[1].tolist() == []


def test_a_forecaster_is_warmed_by_the_forecasts_it_makes_live():
    """Calibrating on a past with known jobs equals observing it value by value, with what was due at each."""
    rng = np.random.default_rng(3)
    series = DemandSeries(0.0, 60.0, rng.integers(5, 20, 700).astype(float))
    index = np.sort(rng.integers(0, 700, 300))
    arrivals = Arrivals.of(series, index, rng.integers(1, 4, 300), index - 5 * (rng.random(300) < 0.5))

    def forecaster() -> CalibratedForecaster:
        predictor = make_predictor("last-value")
        predictor.fit(series.between(0, 300), np.random.default_rng(0))
        return CalibratedForecaster(predictor, WaitingCalibrator(WaitingTarget(jobs=0.9), step_s=60.0, whole_gpus=40))

    warmed, live = forecaster(), forecaster()
    warmed.warm(series.between(0, 699), 300, arrivals.between(0, 699))
    for k in range(300, 699):
        due = arrivals.due(np.array([k]), 5)
        live.ahead(float(series.gpus[k]), 60.0 * k, arrivals.at(k), None if due is None else due[0])
    due = arrivals.due(np.array([699]), 5)
    ends = [o.ahead(float(series.gpus[699]), 0.0, arrivals.at(699), due[0]) for o in (warmed, live)]
    assert ends[0].promised_gpus.tolist() == ends[1].promised_gpus.tolist()
    assert ends[0].kept


def test_a_log_says_since_when_a_job_was_known(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text(
        "job,submit_s,duration_s,gpus,known_s\na,0,5000,1,\nb,600,600,2,120\nc,900,60,1,900\nd,3000,60,1,\n"
    )
    submitted = demand_of(read(path)).submitted
    assert submitted.notice_index is not None
    assert (submitted.index - submitted.notice_index).tolist() == [0, 8, 0]  # d comes with the end of the log
    path.write_text("submit_s,duration_s,gpus,known_s\n0,5000,1,\n600,600,2,700\n")
    with pytest.raises(InputError, match=r"line 3.*known_s.*no later than the submission"):
        read(path)
    dated = "submit_time,start_time,end_time,gpus,known_s\n"
    rows = "2024-01-01 00:00:00,2024-01-01 00:00:00,2024-01-01 02:00:00,1,\n"
    rows += "2024-01-01 01:00:00,2024-01-01 01:00:00,2024-01-01 02:00:00,1,2024-01-01 00:30:00\n"
    path.write_text(dated + rows)
    assert read(path).known_s.tolist() == [0.0, 1_800.0]
