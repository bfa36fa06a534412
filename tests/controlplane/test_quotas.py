"""What tenants may have at once, and use in a period: never exceeded, said with a typed reason, given back."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from commonwatt.controlplane.quotas import period_of
from commonwatt.store.records import JobStatus
from tests.controlplane.bench import Bench, node

POLICIES = [
    {"solver": "random-greedy", "iterations": 20},
    {"solver": "lookahead"},
    {"solver": "easy"},
    {"solver": "fair-share"},
]

TENANTS = [{"name": name} for name in "abc"]


@pytest.fixture
def bench(tmp_path):
    made = []

    def make(limits=None, own=None, **more) -> Bench:
        live = {"limits": limits or {}, "tenant_limits": own or {}, **more.pop("live", {})}
        nodes = more.pop("nodes", [node("n-1", gpus=4), node("n-2", gpus=4)])
        made.append(Bench(tmp_path, nodes=nodes, live=live, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


def running(b: Bench, tenant: str) -> tuple[int, int]:
    rows = [row for row in b.live.store.jobs(tenant=tenant, limit=1000) if row.status is JobStatus.RUNNING]
    return len(rows), sum(row.gpus for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy["solver"])
@pytest.mark.parametrize("limits", [{"running_jobs": 2}, {"gpus": 3}, {"gpus": 3, "running_jobs": 2}])
def test_no_tenant_ever_has_more_than_its_quota(bench, policy, limits):
    """The other tenant gets what is left; all jobs run in the end."""
    b = bench(own={"a": limits}, policies=[policy])
    sizes = [1, 2, 1, 3, 1, 1, 2, 1]
    mine = [b.submit(30.0, gpus=gpus, epochs=1) for gpus in sizes]
    others = [b.submit(30.0, tenant="b", epochs=1) for _ in range(6)]
    most = [0, 0, 0]
    for _ in range(120):
        b.look()
        jobs, gpus = running(b, "a")
        assert jobs <= limits.get("running_jobs", 99)
        assert gpus <= limits.get("gpus", 99)
        most = [max(most[0], jobs), max(most[1], gpus), max(most[2], running(b, "b")[0])]
        b.advance(5.0)
    assert {str(b.status(job)) for job in (*mine, *others)} == {"completed"}
    assert most[0] > 1  # the quota was used
    assert most[2] >= 4


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy["solver"])
def test_tenants_of_an_account_share_its_limits(bench, policy):
    """Beside those of each; a tenant of no account gets what is left, and all jobs run in the end."""
    lab = {"tenants": ["a", "b"], "gpus": 4, "running_jobs": 3}
    b = bench(own={"a": {"running_jobs": 2}}, policies=[policy], tenants=TENANTS, live={"accounts": {"lab": lab}})
    jobs = [b.submit(30.0, gpus=gpus, tenant=name, epochs=1) for gpus in (1, 2, 1, 1) for name in "ab"]
    jobs += [b.submit(30.0, tenant="c", epochs=1) for _ in range(6)]
    most = [0, 0, 0]
    for _ in range(120):
        b.look()
        (a_jobs, a_gpus), (b_jobs, b_gpus) = running(b, "a"), running(b, "b")
        assert a_jobs <= 2
        assert a_jobs + b_jobs <= 3
        assert a_gpus + b_gpus <= 4
        most = [max(most[0], a_jobs + b_jobs), max(most[1], a_gpus + b_gpus), max(most[2], running(b, "c")[0])]
        b.advance(5.0)
    assert {str(b.status(job)) for job in jobs} == {"completed"}
    assert most[:2] == [3, 4]
    assert most[2] >= 4


def test_who_waits_for_others_of_the_account_is_told(bench):
    b = bench(live={"accounts": {"lab": {"tenants": ["a", "b"], "running_jobs": 1}}})
    first = b.submit(100.0, tenant="b")
    b.settle()
    second = b.submit(100.0)
    b.settle()
    assert (b.status(first), b.status(second)) == (JobStatus.RUNNING, JobStatus.WAITING)
    said = "waits: account lab has 1 running job and may have 1; it can start when one of them ends"
    assert (b.row(second).reason, b.row(second).sentence.endswith(said)) == ("quota", True)


def test_a_budget_of_an_account_is_used_up_by_all_its_tenants(bench):
    lab = {"tenants": ["a", "b"], "gpu_hours": 1.0}
    b = bench(tenants=TENANTS, live={"budget_period": "day", "accounts": {"lab": lab}})
    b.hand.time_s = period_of(b.hand.time_s, "day")[1] + 60.0
    for tenant in "ab":
        b.submit(2000.0, tenant=tenant)
    b.settle()
    for _ in range(60):
        b.advance(50.0)
        b.look()
    late, other = b.submit(10.0), b.submit(10.0, tenant="c")
    b.settle()
    assert (b.row(late).reason, str(b.status(other))) == ("budget", "running")
    assert "account lab has used 1.1" in b.row(late).sentence
    b.hand.time_s = period_of(b.hand.time_s, "day")[1] + 1.0
    b.settle()
    assert b.status(late) is JobStatus.RUNNING


@pytest.mark.slow
def test_a_malleable_job_does_not_grow_beyond_the_quota(bench):
    b = bench(limits={"gpus": 2}, policies=[{"solver": "random-greedy", "iterations": 50}])
    jobs = [b.submit(times_s={"V100": {1: 1000.0, 2: 520.0, 4: 270.0}}, due_in_s=300.0, tardiness_weight=1.0)
            for _ in range(2)]  # fmt: skip
    for _ in range(40):
        b.look()
        assert running(b, "a")[1] <= 2
        b.advance(20.0)
    assert any(b.row(job).attempts for job in jobs)


def test_a_job_that_waits_for_a_quota_says_so_and_what_frees_it(bench):
    b = bench(limits={"running_jobs": 1})
    first, second = b.submit(100.0), b.submit(100.0)
    b.settle()
    assert (b.status(first), b.status(second)) == (JobStatus.RUNNING, JobStatus.WAITING)
    row = b.row(second)
    assert row.reason == "quota"
    assert row.sentence.endswith("waits: tenant a has 1 running job and may have 1; it can start when one of them ends")
    b.settle(10)
    said = [event.reason for event in b.live.store.events(job=second)]
    assert said.count("quota") == 1
    b.advance(200.0)
    b.settle()
    assert b.status(second) is JobStatus.RUNNING


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "unit"), [({"gpu_hours": 1.0}, "GPU h"), ({"energy_kwh": 0.2}, "kWh"), ({"cost": 0.05}, "electricity")]
)
def test_a_budget_that_is_used_up_lets_nothing_start_until_the_next_period(bench, budget, unit):
    b = bench(limits=budget, live={"budget_period": "day"}, nodes=[node("n-1", gpus=1)],
              electricity={"price_per_kwh": 0.25, "pue": 1.0})  # fmt: skip
    b.hand.time_s = period_of(b.hand.time_s, "day")[1] + 60.0
    jobs = [b.submit(3700.0) for _ in range(2)]
    b.settle()
    first = next(job for job in jobs if b.status(job) is JobStatus.RUNNING)
    second = next(job for job in jobs if job != first)
    for _ in range(80):
        b.advance(50.0)
        b.look()
    assert b.status(first) is JobStatus.COMPLETED  # what runs goes on
    other = b.submit(10.0, tenant="b")
    b.settle()
    assert b.status(other) is JobStatus.RUNNING  # its tenant has used nothing
    row = b.row(second)
    assert (row.status, row.reason) == (JobStatus.WAITING, "budget")
    assert unit in row.sentence
    assert "the next period begins on" in row.sentence
    b.begin()  # another controller knows it as well
    b.settle()
    assert b.row(second).reason == "budget"
    b.hand.time_s = period_of(b.hand.time_s, "day")[1] + 1.0
    b.settle()
    assert b.status(second) is JobStatus.RUNNING


def test_without_limits_nothing_is_asked_of_the_store(bench, monkeypatch):
    b = bench()
    monkeypatch.setattr(type(b.reconciler.store), "tenant_usage", lambda _: pytest.fail("asked"))
    b.submit(10.0)
    b.settle()
    assert running(b, "a") == (1, 1)


def test_periods_by_the_calendar():
    now_s = datetime(2026, 12, 30, 13, 5, tzinfo=UTC).timestamp()  # a Wednesday
    said = {
        kind: tuple(datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M") for at_s in period_of(now_s, kind))
        for kind in ("day", "week", "month")
    }
    assert said == {
        "day": ("2026-12-30 00:00", "2026-12-31 00:00"),
        "week": ("2026-12-28 00:00", "2027-01-04 00:00"),
        "month": ("2026-12-01 00:00", "2027-01-01 00:00"),
    }
