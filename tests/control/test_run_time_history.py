"""What ended jobs tell about a job that declares no time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.controlplane.run_times import EndedRun, RunTimeHistory
from commonwatt.runtimes import JobFeatures


def history(*runs: tuple[JobFeatures, float]) -> RunTimeHistory:
    made = RunTimeHistory()
    for job, time_s in runs:
        made.learn(EndedRun(job, time_s))
    return made


def test_too_few_jobs_tell_nothing():
    job = JobFeatures("t", "train-1")
    assert history().expected(job) is None
    assert history(*[(job, 100.0)] * 2).expected(job) is None
    assert history(*[(job, 100.0)] * 3).expected(JobFeatures("u", "train-1")) is None  # of another tenant


def test_jobs_of_the_name_come_before_those_of_the_tenant():
    known = history(*[(JobFeatures("t", f"short-{k}"), 600.0) for k in range(50)],
                    *[(JobFeatures("t", f"long-{k}"), 36_000.0) for k in range(50)])  # fmt: skip
    short, long, other = (known.expected(JobFeatures("t", name)) for name in ("short-99", "long-99", "other"))
    assert (short.jobs, short.alike, long.alike) == (50, "name", "name")
    assert (other.jobs, other.alike) == (100, "tenant")
    assert short.time_s < other.time_s < long.time_s


@pytest.mark.slow
@given(
    times=st.lists(st.floats(1.0, 1e6), min_size=3, max_size=20), age_s=st.floats(0.0, 1e6), limit_s=st.floats(1.0, 1e6)
)
def test_what_is_expected_lies_beyond_the_age_and_within_the_limit(times, age_s, limit_s):
    job = JobFeatures("t", "n", limit_s=limit_s)
    expected = history(*[(job, time_s) for time_s in times]).expected(job, age_s)
    assert age_s <= expected.time_s <= max(limit_s, 1.1 * age_s) + 1e-6


def test_a_job_that_outlives_its_series_is_expected_to_take_longer():
    job = JobFeatures("t", "n")
    known = history(*[(job, 600.0)] * 100)
    assert known.expected(job, 3000.0).time_s > 3000.0 > known.expected(job).time_s
    assert known.expected(job, 300.0).time_s == pytest.approx(known.expected(job).time_s, rel=0.5)


def test_outcomes_are_equally_likely_and_end_at_the_limit():
    job = JobFeatures("t", "n", limit_s=7200.0)
    expected = history(*[(job, time_s) for time_s in (60.0, 600.0, 6000.0, 60_000.0) for _ in range(25)]).expected(job)
    assert expected.time_s == pytest.approx(sum(expected.outcomes_s) / 10)
    assert list(expected.outcomes_s) == sorted(expected.outcomes_s)
    assert expected.outcomes_s[-2:] == (7200.0, 7200.0)  # a quarter of those before took longer
    assert expected.outcomes_s[0] < 120
