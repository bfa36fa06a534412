"""The estimate of what a policy saves."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.controlplane.jobs import JobMaker, TimeFigure
from commonwatt.controlplane.savings import Estimator, baseline_of, estimate, jobs_for_estimate, past_of
from commonwatt.model.errors import JobNeverFitsError, SolverError
from commonwatt.model.nodes import Cluster
from commonwatt.model.scenario import PolicySpec
from commonwatt.store.controller_store import Tick
from commonwatt.store.records import RequestKind, SampleRow
from tests.controlplane.bench import Bench, node

DAY_S, HOUR_S = 86_400.0, 3600.0


@pytest.fixture
def bench(tmp_path, opened):
    def make(**changes) -> Bench:
        return opened(Bench(tmp_path, **changes))

    return make


def week(b: Bench, count: int = 40) -> None:
    """Jobs over a week, of two GPU counts, some due soon."""
    rng = np.random.default_rng(7)
    for gap_s in rng.exponential(6 * DAY_S / count, count):
        b.advance(float(gap_s))
        alone_s = float(rng.uniform(0.1, 1.0) * DAY_S)
        b.submit(
            times_s={"V100": {1: alone_s, 2: 0.6 * alone_s}}, epochs=20, tenant=str(rng.choice(["a", "b"])),
            due_in_s=float(alone_s * rng.uniform(1.2, 3.0)), tardiness_weight=1e-4,
        )  # fmt: skip


def found(b: Bench, policies: list[PolicySpec] | None = None) -> dict:
    """The estimate; with other policies, if they are given."""
    config = b.live.config.model_copy(update={"policies": tuple(policies)} if policies else {})
    maker = JobMaker(Cluster.of(config.nodes), 1.0)
    jobs, period_s = jobs_for_estimate(b.live.store.jobs(limit=1000), maker, b.clock())
    return estimate(config, jobs, period_s, 0)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["fifo", "random-greedy"])
def test_a_policy_saves_nothing_against_itself(bench, solver):
    b = bench(
        policies=[{"solver": solver, "iterations": 5}, {"solver": solver, "iterations": 5, "name": "again"}],
        interval_s=HOUR_S,
    )
    week(b)
    saved = found(b)
    assert (saved["energy_kwh"], saved["cost"], saved["tardiness_cost"]) == (0.0, 0.0, 0.0)
    assert saved["jobs"] == 40
    assert saved["baseline_energy_kwh"] > 0


@pytest.mark.slow
def test_what_is_saved_is_the_difference_of_two_simulations(bench):
    b = bench(policies=[{"solver": "random-greedy", "iterations": 20}], interval_s=HOUR_S)
    week(b)
    saved = found(b)
    assert baseline_of(b.live.config).solver == "fifo"
    assert saved["baseline"] == "fifo"
    assert saved["tardiness_cost"] > 0  # FIFO knows no due dates
    ours = found(b, [*b.live.config.policies, b.live.config.policies[0].model_copy(update={"name": "again"})])
    assert ours["baseline"] == "again"
    for name in ("energy_kwh", "cost"):  # more of it saved is more of it left
        assert saved[name] == saved[f"baseline_{name}"] - ours[f"baseline_{name}"] != 0.0


@pytest.mark.slow
def test_cancelled_jobs_old_ones_and_those_of_another_cluster_are_left_out(bench):
    b = bench()
    b.submit()
    b.advance(8 * DAY_S)
    gone, kept = b.submit(), b.submit(50.0)
    b.ask(RequestKind.CANCEL, job=gone)
    b.look()
    maker = JobMaker(Cluster.of(b.live.config.nodes), 1.0)
    b.advance(100.0)
    jobs, period_s = jobs_for_estimate(b.live.store.jobs(limit=10), maker, b.clock())
    assert [job.name for job in jobs] == [f"{kept}-j"]
    assert (jobs[0].submit_s, period_s) == (0.0, 100.0)
    assert jobs_for_estimate([], maker, b.clock()) == ([], 0.0)


@pytest.mark.long
def test_the_estimate_comes_from_a_process_of_its_own_and_stops_with_it(bench, caplog):
    caplog.set_level("INFO", "commonwatt.savings")
    b = bench(policies=[{"solver": "fifo"}])
    assert b.live.estimator.look() is None
    b.submit()
    b.advance(1000.0)
    made = (b.live.config, b.live.store, b.live.maker, b.clock)
    estimator = Estimator(*made, first_s=0.01, every_s=0.01)
    assert estimator.saved() is None
    estimator.start()
    end_s = time.monotonic() + 120
    while (saved := estimator.saved()) is None:
        assert time.monotonic() < end_s
        time.sleep(0.05)
    assert saved["cost"] == 0.0
    while b.live.store.setting("saved") is None:
        assert time.monotonic() < end_s
        time.sleep(0.05)
    said = [record for record in caplog.records if record.message == "estimated savings"]
    assert (said[0].energy_kwh, said[0].baseline) == (saved["energy_kwh"], "fifo")
    assert Estimator(*made).saved() == saved  # after a restart
    other = b.live.config.model_copy(update={"policies": (b.live.config.policies[0], PolicySpec(solver="edf"))})
    assert Estimator(other, *made[1:]).saved() is None  # it was against another baseline
    estimator.stop()
    end_s = time.monotonic() + 60
    while any(thread.name == "savings" and thread is estimator._thread for thread in threading.enumerate()):
        assert time.monotonic() < end_s
        time.sleep(0.02)


GONE = {"gpu_type": "K80", "gpus": 1, "time_s": 100.0, "gpu_w": None, "source": "declared"}
LEFT = GONE | {"gpu_type": "V100"}


def test_gpus_that_have_gone_since_leave_the_rest_to_be_estimated(bench):
    """What an ended job was known to take stays in the store as it was, whatever the cluster is by now."""
    b = bench()
    first, second, third = (b.submit() for _ in range(3))
    b.look()
    times = {first: [GONE], second: [GONE, LEFT], third: [LEFT | {"gpus": 64}]}
    rows = [replace(row, times=times[row.id]) for row in b.live.store.jobs(limit=10)]
    jobs, period_s = jobs_for_estimate(rows, b.live.maker, b.clock() + 1000.0)
    assert [(job.name, dict(job.times_s)) for job in jobs] == [(f"{second}-j", {"V100": {1: 100.0}})]
    assert estimate(b.live.config, jobs, period_s, 0)["jobs"] == 1


@pytest.mark.long
@pytest.mark.parametrize("wrong", ["a job that never fits", "no job at all"])
def test_what_fails_in_the_other_process_is_told_in_this_one(bench, monkeypatch, capfd, wrong):
    b = bench()
    b.submit(times_s={"V100": {64: 100.0}})
    (row,) = b.live.store.jobs(limit=1)
    never = b.live.maker.make(replace(row, submit_s=0.0), [TimeFigure(**GONE)])
    given = {"a job that never fits": never, "no job at all": "no job"}[wrong]
    expected = {"a job that never fits": JobNeverFitsError, "no job at all": SolverError}[wrong]
    monkeypatch.setattr("commonwatt.controlplane.savings.jobs_for_estimate", lambda *_: ([given], 10.0))
    with pytest.raises(expected):
        b.live.estimator.look()
    assert capfd.readouterr().err == ""


SLEEPY = node("n", count=3, states=[{"name": "off", "power_w": 5, "enter_s": 10, "wake_s": 30}])
PLAN = {"policy": "last-value", "step_s": 60}
PLANS = {
    "its own": {"policies": [{"solver": "easy", "capacity": PLAN}, {"solver": "easy", "name": "on"}]},
    "of all": {"policies": [{"solver": "easy"}, {"solver": "easy", "name": "on"}], "capacity": PLAN},
    "of both": {
        "policies": [
            {"solver": "easy", "capacity": PLAN},
            {"solver": "easy", "name": "on", "capacity": {**PLAN, "policy": "always-on"}},
        ]
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("which", PLANS)
def test_what_sleeping_nodes_save_is_in_the_estimate(bench, which):
    """A plan and nothing else differs: what was metered under it is what is left of the baseline."""
    b = bench(nodes=[SLEEPY], interval_s=60, **PLANS[which])
    for _ in range(2):
        b.submit(1000.0)
        b.settle()
        for _ in range(40):
            b.advance(90.0)
            b.look()
    saved = found(b)
    assert (saved["capacity"], saved["no_forecast"]) == ("last-value", None)
    assert saved["baseline_capacity"] == ("always-on" if which == "of both" else None)
    always_on_j = 2 * 1000.0 * 200 + 2 * HOUR_S * 300
    assert saved["baseline_energy_kwh"] == pytest.approx(always_on_j / 3.6e6)
    metered_kwh = sum(row["energy_uj"] for row in b.live.store.ledger() if row["row"] == "meter") / 3.6e12
    assert saved["baseline_energy_kwh"] - saved["energy_kwh"] == pytest.approx(metered_kwh, rel=0.05)
    assert 0.5 < saved["energy_kwh"] / saved["baseline_energy_kwh"] < 0.9


def test_nodes_draw_power_until_now_and_not_only_until_the_last_job(bench):
    b = bench(policies=[{"solver": "fifo"}])
    b.submit(100.0)
    b.settle()
    b.advance(1000.0)
    idle_w = sum(spec.count * spec.idle_w for spec in b.live.config.nodes)
    gpu_w = b.live.config.nodes[0].gpu_w
    assert found(b)["baseline_energy_kwh"] == pytest.approx((1000.0 * idle_w + 100.0 * gpu_w) / 3.6e6)


@pytest.mark.long
def test_prices_are_those_of_the_time_it_was(bench):
    """By the hour of the day, the estimate's clock begins with the first job, which is submitted at 8:30."""
    points = [{"from_s": 0, "price_per_kwh": 1}, {"from_s": 9 * HOUR_S, "price_per_kwh": 3}]
    b = bench(policies=[{"solver": "fifo"}], electricity={"series": points, "repeat_s": DAY_S, "pue": 1})
    b.advance(1800.0)
    assert b.clock() % DAY_S == 8.5 * HOUR_S
    b.settle()
    (before,) = (row["cost_n"] for row in b.live.store.ledger() if row["row"] == "meter")
    b.submit(HOUR_S)
    b.settle()
    b.advance(2 * HOUR_S)
    b.reconciler.recorder.hurry()
    b.settle()
    (after,) = (row["cost_n"] for row in b.live.store.ledger() if row["row"] == "meter")
    saved = b.live.estimator.look()
    assert saved["baseline_cost"] == pytest.approx((after - before) / 1e9)
    assert found(b)["baseline_cost"] < 0.7 * saved["baseline_cost"]  # from midnight on


CUFF = {"policy": "cuff", "forecaster": "last-value", "step_s": 60}


@pytest.mark.long
def test_a_forecaster_is_fitted_to_what_was_wanted_before(bench):
    b = bench(nodes=[SLEEPY], interval_s=60, policies=[{"solver": "easy", "capacity": CUFF}])
    began_s = b.clock()
    for k in range(600):
        sample = SampleRow(began_s + 60.0 * k, 1, None, 1, 0, 6, 1 + k % 2, 0.01)
        b.supervisor._write(Tick(sample=sample))
    b.advance(60.0 * 600)
    b.submit(1000.0)
    b.settle()
    b.advance(HOUR_S)
    past = past_of(b.live.config, b.live.store, b.folder, b.clock() - HOUR_S)
    demand = past.demands[60.0, 21.0]
    assert demand.end_s == pytest.approx(b.clock() - HOUR_S, abs=120.0)
    assert set(demand.gpus) == {1.0, 2.0}
    (row,) = b.live.store.jobs(limit=10)
    jobs, period_s = jobs_for_estimate([row], b.live.maker, b.clock())
    with_it = estimate(b.live.config, jobs, period_s, 0, past)
    assert (with_it["capacity"], with_it["no_forecast"]) == ("cuff", None)
    without = estimate(b.live.config, jobs, period_s, 0)
    assert without["capacity"] == "last-value"
    assert "easy: field 'capacity.forecaster': got '0 steps'" in without["no_forecast"]
    assert b.live.estimator.look() == with_it


def test_a_plan_that_promises_all_gpus_does_so_for_those_left_for_work(bench):
    """GPUs set aside for profiling are not in the estimate, and cannot be asked to stay on."""
    plan = {**CUFF, "floor_gpus": 6}
    b = bench(nodes=[SLEEPY], policies=[{"solver": "easy"}], capacity=plan, live={"profiling": {"nodes": ["n-1"]}})
    b.submit(100.0)
    b.settle()
    b.advance(1000.0)
    saved = found(b)
    assert saved["energy_kwh"] == pytest.approx(0.0)
    assert "0 steps" in saved["no_forecast"]


@pytest.mark.long
def test_nodes_set_aside_for_profiling_count_for_nothing(bench):
    b = bench(live={"profiling": {"nodes": ["n-2"]}, "default_time_limit_s": 5})
    week(b, 10)
    config = b.live.config
    cluster = Cluster.of(config.nodes)
    maker = JobMaker(cluster.without(["n-2"]), 1.0)
    jobs, period_s = jobs_for_estimate(b.live.store.jobs(limit=1000), maker, b.clock())
    everywhere = config.model_copy(update={"live": config.live.model_copy(update={"profiling": None})})
    alone = everywhere.model_copy(update={"nodes": [config.nodes[0].model_copy(update={"count": 1, "name": "n-1"})]})
    saved = estimate(config, jobs, period_s, 0)
    assert saved == estimate(alone, jobs, period_s, 0)
    assert saved["baseline_energy_kwh"] < estimate(everywhere, jobs, period_s, 0)["baseline_energy_kwh"]
