"""Demand of job logs against a count by hand, and the published series from the published jobs."""

from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.data.demand import demand_of
from commonwatt.data.generators.week import DemandSpec, generate_demand
from commonwatt.data.log import JobLog
from commonwatt.data.readers import read_log
from commonwatt.data.series_files import read_series
from commonwatt.model.errors import InputError

JOB = st.tuples(st.integers(0, 600), st.integers(0, 200), st.integers(1, 400), st.integers(1, 8))
JOBS = st.lists(JOB, min_size=1, max_size=12)  # submission, wait, run time, GPUs


def log_of(jobs, starts=True, origin=None):
    submit, wait, run, gpus = (np.array(column, dtype=float) for column in zip(*jobs, strict=True))
    names = [f"j{i}" for i in range(len(jobs))]
    return JobLog.of(
        "made", job=names, tenant=names, submit_s=submit, duration_s=run, gpus=gpus,
        start_s=submit + wait if starts else None, origin=origin,
    )  # fmt: skip


@pytest.mark.slow
@given(JOBS, st.sampled_from([7.0, 60.0]))
def test_running_and_wanted_by_hand(jobs, step_s):
    found = demand_of(log_of(jobs), step_s, 0.0, 1200.0)
    for t, running, wanted in zip(np.arange(0, 1200, step_s), found.running.gpus, found.wanted.gpus, strict=True):
        assert running == sum(g for s, w, r, g in jobs if s + w <= t < s + w + r)
        assert wanted == sum(g for s, w, r, g in jobs if s <= t < s + w + r)


@pytest.mark.slow
@given(JOBS)
def test_without_starts_jobs_count_from_their_submission(jobs):
    found = demand_of(log_of(jobs, starts=False), 60.0, 0.0, 1200.0)
    assert not found.from_starts
    assert (found.running.gpus == found.wanted.gpus).all()
    assert found.running.gpus.tolist() == [sum(g for s, _, r, g in jobs if s <= t < s + r) for t in range(0, 1200, 60)]


@pytest.mark.slow
@given(JOBS)
def test_every_job_that_shows_is_served_if_all_is_on(jobs):
    found = demand_of(log_of(jobs), 60.0, 0.0, 1200.0)
    shown = [any(s + w <= t < s + w + r for t in range(0, 1200, 60)) for s, w, r, _ in jobs]
    begun = [s + w > -60 for s, w, _, _ in jobs]
    assert len(found.started) == sum(a and b for a, b in zip(shown, begun, strict=True))
    assert (found.running.gpus[found.started.index] >= found.started.met_gpus).all()
    assert (found.started.met_gpus >= found.started.gpus).all()


def test_samples_lie_on_whole_steps_of_the_clock():
    origin = datetime(2024, 1, 1, 0, 0, 20, tzinfo=UTC)
    found = demand_of(log_of([(0, 0, 300, 2), (200, 0, 60, 1)], origin=origin))
    assert found.running.start_s == datetime(2024, 1, 1, 0, 1, tzinfo=UTC).timestamp()
    assert found.running.gpus.tolist() == [2, 2, 2]  # until the last submission


def test_a_period_without_an_instant():
    with pytest.raises(InputError, match="a period of"):
        demand_of(log_of([(5, 0, 300, 2)]))


@pytest.mark.slow
@pytest.mark.data
def test_philly_comes_out_of_its_jobs_exactly(traces):
    published = read_series(traces / "philly_demand_1min.csv.gz").series
    log = read_log("philly", traces / "philly_jobs.csv.gz")
    since = log.origin.timestamp()
    found = demand_of(log, 60.0, published.start_s - since, published.end_s - since)
    assert len(published) == 70_560
    assert (found.running.gpus == published.gpus).all()
    assert not found.from_starts


@pytest.mark.data
def test_alibaba_comes_out_of_its_pods_exactly(traces):
    published = read_series(traces / "alibaba_demand_1min.csv.gz", "gpus_whole").series
    log = read_log("alibaba", traces / "alibaba_jobs.csv.gz")
    found = demand_of(log, 60.0, published.start_s, published.end_s)
    assert (found.running.gpus == published.gpus).all()
    assert found.from_starts


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "column", "step_s", "length"),
    [("earth_demand_1min", "running_gpus", 60, 31_248), ("venus_demand_10min", "running_gpus", 600, 18_144)],
)
def test_published_series_are_whole(traces, name, column, step_s, length):
    found = read_series(traces / f"{name}.csv.gz", column)
    assert (found.series.step_s, len(found.series), found.holes) == (step_s, length, 0)


@pytest.mark.slow
@pytest.mark.data
def test_one_virtual_cluster_of_earth(traces):
    whole = read_series(traces / "earth_demand_1min.csv.gz", "running_gpus").series
    one = read_series(traces / "earth_vc_demand_1min.csv.gz", "running_gpus", where={"virtual_cluster": "vc3sl"}).series
    assert len(one) == len(whole)
    assert (one.gpus <= whole.gpus).all()


def test_generated_series_have_what_real_ones_have():
    spec = DemandSpec(days=10)
    series = generate_demand(spec, np.random.default_rng(0))
    again = generate_demand(spec, np.random.default_rng(0))
    assert np.array_equal(series.gpus, again.gpus, equal_nan=True)
    assert len(series) == 14_400
    known = series.gpus[series.has_value]
    assert (known == np.rint(known)).all()
    assert 0 < (~series.has_value).sum() <= 3 * 60
    down = series.gpus[6480:6840]  # six hours after 45% of the time
    assert not down[~np.isnan(down)].any()
    changes = np.abs(np.diff(series.gpus[:6000]))
    assert np.nanmax(changes) >= 16  # jumps
    assert np.nanmean(series.gpus[-1440:]) > 1.15 * np.nanmean(series.gpus[:1440])  # drift


@pytest.mark.parametrize("wrong", [{"days": 0}, {"step_s": -1}, {"drift": float("nan")}])
def test_specs_are_checked(wrong):
    with pytest.raises(InputError):
        DemandSpec(**wrong)
