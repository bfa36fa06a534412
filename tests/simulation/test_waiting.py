"""Waiting, slowdown and finish-time fairness."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.simulation.reference import ReferenceRuns
from commonwatt.simulation.waiting import mean_active, time_in_own_part_s
from tests.simulation.made import node, prepared, run
from tests.simulation.test_window import job, scenario

TENANTS = np.array([0, 0, 1])


def reference(run_s, gpus):
    return ReferenceRuns(np.array(run_s, dtype=float), np.array(gpus, dtype=np.int64), np.zeros(len(run_s)))


def test_active_tenants():
    submit_s, run_s = np.array([0.0, 5, 20]), np.array([10.0, 10, 10])
    assert mean_active(TENANTS, submit_s, run_s) == pytest.approx(25 / 25)  # 0 to 15, then 20 to 30
    submit_s[2] = 0.0
    assert mean_active(TENANTS, submit_s, run_s) == pytest.approx((15 + 10) / 15)


def test_own_part():
    """Tenant 0 has two GPUs: its second job waits for the first, its third is wider than the part."""
    tenant = np.array([0, 0, 0, 1])
    submit_s = np.array([0.0, 1, 1, 1])
    found = time_in_own_part_s(tenant, submit_s, reference([10, 10, 10, 7], [2, 1, 4, 1]), 2)
    assert found.tolist() == [10, 19, 39, 7]  # the third: 20 to 40, on two GPUs instead of four


def slowly(submit_s, run_s, width, gpus):
    """One tenant's jobs in order, by trying every end as a start."""
    starts: list[float] = []
    for j, at_s in enumerate(submit_s):
        ends = [s + r for s, r in zip(starts, run_s, strict=False)]
        for time_s in sorted({at_s, *starts, *ends}):
            if time_s < at_s or (starts and time_s < starts[-1]):
                continue
            used = sum(w for s, e, w in zip(starts, ends, width, strict=False) if s <= time_s < e)
            if used + width[j] <= gpus:
                starts.append(time_s)
                break
    return [s + r - a for s, r, a in zip(starts, run_s, submit_s, strict=True)]


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 10), st.integers(1, 10), st.integers(1, 6)), min_size=1, max_size=10),
    st.integers(1, 6),
)
def test_own_part_against_trying_every_moment(rows, gpus):
    rows.sort(key=lambda row: row[0])
    submit_s, run_s, wants = (list(column) for column in zip(*rows, strict=True))
    found = time_in_own_part_s(
        np.zeros(len(rows), dtype=np.int64), np.array(submit_s, dtype=float), reference(run_s, wants), gpus
    )
    width = [min(w, gpus) for w in wants]
    longer_s = [r * w / n for r, w, n in zip(run_s, wants, width, strict=True)]
    assert found.tolist() == pytest.approx(slowly([float(s) for s in submit_s], longer_s, width, gpus))


def test_alone_on_its_part_everybody_is_treated_as_promised():
    """Two tenants, a GPU each: rho is 1. With both GPUs taken by one of them, the other's rho is its slowdown."""
    fair = run(prepared(scenario([job("a", 0, 1000), job("b", 0, 1000, tenant="b"), job("c", 1, 500)])))[1].result
    assert fair.finish_time_fairness.gpus_of_each == 1
    assert fair.finish_time_fairness.worst == pytest.approx(1.0)
    jobs = [job("a", 0, 1000), job("a2", 0, 1000), job("b", 0, 1000, tenant="b")]
    unfair = run(prepared(scenario(jobs)))[1].result
    assert unfair.finish_time_fairness.active_tenants == 2
    assert unfair.finish_time_fairness.worst == pytest.approx(2.0)
    assert unfair.finish_time_fairness.mean == pytest.approx((1 + 0.5 + 2) / 3)


def test_waiting_after_a_preemption_counts():
    """A short job pushes a long one aside; each epoch is kept. The long one waits then, not before its start."""
    jobs = [job("long", 0, 10_000, gpus=2, epochs=100), job("short", 100, 100, gpus=2)]
    problem = prepared(scenario(jobs, policies=[{"solver": "srtf"}], preemption={"restart_s": 0}))
    _, record = run(problem)
    assert record.result.preemptions == 1
    assert record.result.longest_wait_s == 0
    assert record.result.longest_total_wait_s == pytest.approx(100)
    assert record.result.mean_total_wait_s == pytest.approx(50)
    assert record.result.most_starts == 2


def test_waits_of_tenants_and_gangs():
    """A job on two nodes has its GPUs once, not twice."""
    jobs = [job("gang", 0, 1000, gpus=4), *(job(f"b{i}", 0, 100, tenant="b") for i in range(3))]
    _, record = run(prepared(scenario(jobs, nodes=[node("v", count=2)])))
    assert record.result.longest_total_wait_s == record.result.longest_wait_s == 1000
    of_b = next(tenant for tenant in record.result.tenants if tenant.tenant == "b")
    assert (of_b.p50_wait_s, of_b.p95_wait_s, of_b.p99_wait_s, of_b.longest_wait_s) == (1000, 1000, 1000, 1000)
    assert record.result.mean_total_wait_s == 750


def test_a_tiny_job_counts_as_ten_seconds():
    result = run(prepared(scenario([job("a", 0, 100, gpus=2), job("b", 0, 1, gpus=2)])))[1].result
    assert result.slowdown_p50 == pytest.approx(np.median([1.0, 10.1]))
