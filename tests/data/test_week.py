import numpy as np
import pytest

from commonwatt.data.generators.week import PHILLY, generate_week
from commonwatt.data.generators.week_fit import fit_week, mixture, philly_weeks
from commonwatt.model.errors import InputError
from commonwatt.model.scenario import WeekWorkload
from commonwatt.model.units import DAY_S, HOUR_S


def week(seed=0, **more):
    return generate_week(WeekWorkload(source="week", **more), np.random.default_rng(seed))


@pytest.fixture(scope="module")
def years():
    """Long enough for every share to show: 100 weeks."""
    return week(5, days=700, jobs_per_day=1000, tenants=12)


def test_the_same_seed_gives_the_same_week():
    one, again, other = week(3), week(3), week(4)
    assert one.job == again.job
    assert one.tenant == again.tenant
    for column in ("submit_s", "duration_s", "gpus"):
        assert np.array_equal(getattr(one, column), getattr(again, column))
    assert not np.array_equal(one.submit_s[:50], other.submit_s[:50])


def test_pinned():
    """What seed 0 returns today; a change of it changes every result made from it."""
    log = week(0, jobs_per_day=50, tenants=3)
    assert (len(log), log.gpus.sum(), log.duration_s.sum()) == (408, 535, 7354621.0)


def test_a_week_is_a_week():
    log = week(jobs_per_day=300, days=2.5, tenants=3)
    assert log.submit_s.min() >= 0
    assert log.submit_s.max() < 2.5 * DAY_S
    assert (np.diff(log.submit_s) >= 0).all()
    assert (log.duration_s >= 1).all()
    assert set(log.gpus) <= {1, 2, 4, 8, 16, 32}
    assert set(log.tenant) == {"tenant-1", "tenant-2", "tenant-3"}
    assert len(set(log.job)) == len(log)
    assert log.source == f"generated, similar to Philly: {len(log)} jobs in 2.5 days"


def test_one_tenant():
    assert set(week(tenants=1).tenant) == {"tenant-1"}


def test_too_short_for_a_job():
    with pytest.raises(InputError) as caught:
        week(jobs_per_day=1e-6)
    assert (
        str(caught.value)
        == "field 'workload.jobs_per_day': got '1e-06', expected enough jobs a day and days for one job"
    )


@pytest.mark.slow
def test_mean_number_of_jobs(years):
    assert len(years) / 700 == pytest.approx(1000, rel=0.05)


@pytest.mark.slow
def test_shares_of_the_figures_show(years):
    shares = {g: (years.gpus == g).mean() for g in PHILLY.gpus}
    assert shares == pytest.approx(PHILLY.gpus, abs=0.001)
    one = np.array(years.tenant)[years.gpus == 1]
    ranked = np.array([(one == f"tenant-{k:02}").mean() for k in range(1, 13)])
    assert (np.diff(ranked) < 0).all()
    assert ranked[0] / ranked[1] == pytest.approx(2**PHILLY.zipf_one, rel=0.03)
    larger = np.sort([np.mean(np.array(years.tenant)[years.gpus > 1] == f"tenant-{k:02}") for k in range(1, 13)])
    assert larger[-1] / larger[-2] == pytest.approx(2**PHILLY.zipf_several, rel=0.05)


@pytest.mark.slow
def test_hours_days_and_bursts_show(years):
    hourly = np.bincount((years.submit_s // HOUR_S).astype(int), minlength=700 * 24).reshape(100, 7, 24)
    by_day = hourly.sum(axis=(0, 2)) / hourly.sum() * 7
    assert by_day == pytest.approx(np.array(PHILLY.day), rel=0.15)
    by_hour = hourly.sum(axis=(0, 1)) / hourly.sum() * 24
    assert by_hour == pytest.approx(np.array(PHILLY.hour), rel=0.25)
    variation = hourly.std() / hourly.mean()
    assert 1.5 < variation < 2.0  # Poisson alone would give 0.5


def test_run_times_show(years):
    one = np.log(years.duration_s[years.gpus == 1])
    share, mean, deviation = np.array(PHILLY.run_time[1]).T
    expected = (share * mean).sum()
    assert one.mean() == pytest.approx(expected, abs=0.02)
    assert one.std() == pytest.approx(np.sqrt((share * (deviation**2 + (mean - expected) ** 2)).sum()), rel=0.02)
    assert np.median(years.duration_s[years.gpus >= 8]) > 10 * np.median(years.duration_s[years.gpus == 1])
    assert years.duration_s.max() <= 60 * DAY_S


@pytest.mark.slow
def test_mixture_finds_what_was_mixed():
    rng = np.random.default_rng(0)
    logs = np.concatenate((rng.normal(2, 0.5, 3000), rng.normal(8, 1.0, 7000)))
    (w1, m1, s1), (w2, m2, s2) = mixture(logs, 2)
    assert (w1, m1, s1) == pytest.approx((0.3, 2, 0.5), abs=0.03)
    assert (w2, m2, s2) == pytest.approx((0.7, 8, 1.0), abs=0.03)


@pytest.fixture(scope="module")
def philly(traces):
    return philly_weeks()


@pytest.mark.long
@pytest.mark.data
def test_the_typed_in_figures_are_what_the_fit_gives(philly):
    again = fit_week(philly)
    assert len(philly) == 56_266
    assert again.hour == pytest.approx(PHILLY.hour, abs=0.0051)
    assert again.day == pytest.approx(PHILLY.day, abs=0.0051)
    assert again.burst_shape == pytest.approx(PHILLY.burst_shape, abs=0.0051)
    assert again.gpus == pytest.approx(PHILLY.gpus, abs=0.000051)
    assert (again.zipf_one, again.zipf_several) == pytest.approx((PHILLY.zipf_one, PHILLY.zipf_several), abs=0.0051)
    assert again.run_time.keys() == PHILLY.run_time.keys()
    for low, parts in PHILLY.run_time.items():
        for ours, theirs in zip(parts, again.run_time[low], strict=True):
            assert ours == pytest.approx(theirs, abs=0.0051)


@pytest.mark.slow
@pytest.mark.data
def test_the_likeness(philly):
    """Quantiles of run time, GPU time and hourly submissions of the generator against the log's."""
    log = generate_week(WeekWorkload(source="week", days=420, jobs_per_day=len(philly) / 42), np.random.default_rng(1))
    levels = (0.05, 0.25, 0.5, 0.75, 0.95)
    for low, high, most in ((1, 1, 0.25), (2, 2, 0.25), (4, 4, 0.25), (8, 32, 0.25)):
        ours, theirs = (
            np.log(np.quantile(x.duration_s[(x.gpus >= low) & (x.gpus <= high)], levels)) for x in (log, philly)
        )
        assert np.abs(ours - theirs).max() < most, (low, ours, theirs)
    held = [(x.duration_s * x.gpus).sum() / days / DAY_S for x, days in ((log, 420), (philly, 42))]
    assert held[0] == pytest.approx(held[1], rel=0.1)
    hourly = [
        np.bincount((x.submit_s // HOUR_S).astype(int), minlength=days * 24) for x, days in ((log, 420), (philly, 42))
    ]
    assert np.median(hourly[0]) == pytest.approx(np.median(hourly[1]), rel=0.5)
    assert np.quantile(hourly[0], 0.9) == pytest.approx(np.quantile(hourly[1], 0.9), rel=0.25)
