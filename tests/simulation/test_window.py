"""The interval that all policies have in common, and what is unfinished at its end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commonwatt.control.engine import Holder, Reading
from commonwatt.control.ledger import Account
from commonwatt.model.units import J_PER_KWH, MICRO, NANO
from commonwatt.simulation.reference import ReferenceRuns, reference_runs
from commonwatt.simulation.window import Window
from tests.simulation.made import documents, node, prepared, run

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
ALWAYS_ON = {"unused_nodes": {"state": None}}


def scenario(jobs, nodes=None, **more):
    return {
        "workload": {"source": "jobs", "jobs": jobs},
        "nodes": nodes or [node("v")],
        "electricity": {"price_per_kwh": 1.0, "pue": 1.0},
        "policies": [{"solver": "fifo"}],
        **ALWAYS_ON,
        **more,
    }


def job(name, submit_s, time_s, gpus=1, **more):
    return {"name": name, "submit_s": submit_s, "requested_gpus": gpus, "times_s": {"V100": {gpus: time_s}}, **more}


def test_by_hand():
    """One V100 node (150 W, 250 W a GPU): a runs 0 to 1000, b is submitted at 600 and waits for its two GPUs."""
    _, record = run(prepared(scenario([job("a", 0, 1000), job("b", 600, 500, gpus=2)])))
    result = record.result
    metered_j = 600 * (150 + 250)
    unfinished_j = 400 * (250 + 75) + 500 * 2 * (250 + 75)
    assert result.unfinished_energy_kwh == pytest.approx(unfinished_j / J_PER_KWH)
    assert result.window_energy_kwh == pytest.approx((metered_j + unfinished_j) / J_PER_KWH)
    assert result.window_cost == pytest.approx(result.window_energy_kwh)
    assert result.window_gpu_utilization == pytest.approx(0.5)
    assert result.tail_s == pytest.approx(900)
    assert result.tail_energy_kwh == pytest.approx((400 * 400 + 500 * 650) / J_PER_KWH)
    assert (result.longest_wait_s, result.p50_wait_s, result.mean_wait_s) == (400, 200, 200)
    assert result.slowdown_p99 == pytest.approx(np.percentile([1.0, 900 / 500], 99))
    assert result.most_starts == 1


def test_all_jobs_at_once_leave_a_window_without_length():
    result = run(prepared(scenario([job("a", 5, 1000), job("b", 5, 500)])))[1].result
    assert result.window_gpu_utilization is None
    assert result.window_energy_kwh == result.unfinished_energy_kwh == pytest.approx(1500 * 325 / J_PER_KWH)
    assert result.tail_s == 1000


@pytest.mark.long
@QUICK
@given(documents(), st.integers(0, 3))
def test_before_window_and_tail_sum_to_the_meter(document, seed):
    problem = prepared(document, seed)
    done, record = run(problem)
    window, meter = done.window, done.controller.ledger.meter
    for name in ("energy_uj", "cost_n", "carbon_ug"):
        parts = [getattr(part, name) for part in (window.before, window.inside, window.after)]
        whole = getattr(meter, name)
        assert (None if None in parts else sum(parts)) == whole
    assert window.closed
    assert ((window.left > -1e-9) & (window.left < 1 + 1e-9)).all()
    left = dict(zip(problem.table.names, window.left, strict=True))
    for name, ended_s in zip(record.jobs.name, record.jobs.ended_s, strict=True):
        assert (left[name] == 0) == (ended_s <= window.to_s)


readings = st.tuples(
    st.floats(0, 100), st.floats(0.001, 100), st.integers(0, 10**12), st.integers(0, 4), st.floats(0, 150),
    st.floats(0, 50),
)  # fmt: skip


@pytest.mark.slow
@given(readings)
def test_a_reading_is_split_in_proportion_to_time(values):
    from_s, length_s, energy_uj, gpus, window_from_s, window_s = values
    problem = prepared(scenario([job("a", 0, 1000)]))
    tariff = problem.scenario.electricity.tariff()
    zero = ReferenceRuns(np.ones(1), np.ones(1, dtype=np.int64), np.zeros(1))
    window = Window(window_from_s, window_from_s + window_s, tariff, zero)
    to_s = from_s + length_s
    mean_w = energy_uj / MICRO / length_s
    whole = Account(energy_uj, round(float(tariff.cost(mean_w, from_s, to_s)) * NANO), None, 0)
    window.metered(Reading(0, from_s, to_s, energy_uj, (Holder(0, gpus, 250.0, 0.0),) if gpus else ()), whole)
    parts = (window.before, window.inside, window.after)
    assert sum(part.energy_uj for part in parts) == energy_uj
    assert sum(part.cost_n for part in parts) == whole.cost_n
    overlap_s = max(0.0, min(to_s, window.to_s) - max(from_s, window.from_s))
    assert window.inside.energy_uj == pytest.approx(energy_uj * overlap_s / length_s, abs=3, rel=1e-9)
    assert window.inside.gpu_us == pytest.approx(gpus * overlap_s * MICRO, abs=3)
    assert all(part.energy_uj >= 0 for part in parts)


@pytest.mark.slow
@QUICK
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 40), st.sampled_from([1, 2])), min_size=2, max_size=8),
    st.sampled_from(["fifo", "edf", "priority", "easy", "fair-share", "srtf"]),
    st.booleans(),
)
def test_nothing_is_gained_by_leaving_work_undone(rows, solver, preempt):
    """Nodes always on, one configuration: whatever the policy, each second of undone work costs its idle share more."""
    jobs = [job(f"j{i}", 100 * at, 50 * length, gpus) for i, (at, length, gpus) in enumerate(rows)]
    given = {"policies": [{"solver": solver}], "preemption": {"allowed": preempt, "restart_s": 0, "lose_work": False}}
    problem = prepared(scenario(jobs, **given))
    done, record = run(problem)
    window, work_gpu_s = done.window, problem.table.config_time_s * problem.table.config_gpus
    all_done_j = 150 * window.length_s + 250 * work_gpu_s.sum()
    undone_j = (window.left * work_gpu_s).sum() * 150 / 2
    assert record.result.window_energy_kwh * J_PER_KWH == pytest.approx(all_done_j + undone_j, rel=1e-6)


@pytest.mark.long
@QUICK
@given(documents(plain=True, solvers=("fifo", "edf", "easy")), st.randoms(use_true_random=False))
def test_the_order_of_the_file_does_not_matter(document, random):
    jobs = list(document["workload"]["jobs"])
    random.shuffle(jobs)
    one = run(prepared(document))[1].result
    other = run(prepared(document | {"workload": {"source": "jobs", "jobs": jobs}}))[1].result
    names = (
        "window_energy_kwh", "window_cost", "window_gpu_utilization", "unfinished_energy_kwh", "tail_s",
        "tail_energy_kwh", "p50_wait_s", "p99_wait_s", "longest_wait_s", "mean_total_wait_s", "slowdown_p50",
        "slowdown_p99", "most_starts",
    )  # fmt: skip
    for name in names:
        assert getattr(one, name) == pytest.approx(getattr(other, name)), name
    assert one.finish_time_fairness.worst == pytest.approx(other.finish_time_fairness.worst)
    assert one.finish_time_fairness.mean == pytest.approx(other.finish_time_fairness.mean)


def test_the_reference_is_what_was_requested():
    nodes = [node("v", "V100", 2), node("t", "T4", 4)]
    times = {"V100": {1: 100.0, 2: 60.0}, "T4": {1: 200.0, 2: 110.0, 4: 70.0}}
    rows = [
        {"requested_gpus": 2, "requested_gpu_type": "T4"},
        {"requested_gpus": 2},  # the faster type
        {},  # the fewest GPUs
        {"requested_gpus": 4, "requested_gpu_type": "V100"},  # no node has 4 V100: the count comes first
    ]
    jobs = [{"name": f"j{i}", "submit_s": i, "times_s": times, **row} for i, row in enumerate(rows)]
    problem = prepared(scenario(jobs, nodes))
    found = reference_runs(None, problem.cluster, problem.table)
    assert found.run_s.tolist() == [110, 60, 100, 70]
    assert found.gpus.tolist() == [2, 2, 1, 4]
    assert found.energy_j.tolist() == pytest.approx(
        [110 * 2 * (70 + 30), 60 * 2 * (250 + 75), 100 * (250 + 75), 70 * 4 * (70 + 30)]
    )
    slower = reference_runs(None, problem.cluster, problem.table, np.full(4, 2.0))
    assert slower.run_s.tolist() == [220, 120, 200, 140]
