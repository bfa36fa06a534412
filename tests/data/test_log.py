from dataclasses import fields
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.data.fitting import only_rows
from commonwatt.data.log import JobLog, utc, window
from commonwatt.model.errors import InputError

DAY = 86400.0
ORIGIN = datetime(2020, 1, 1, tzinfo=UTC)


def log_of(rows, **more) -> JobLog:
    """Rows of (submit_s, duration_s) or (submit_s, duration_s, start_s)."""
    columns = list(zip(*[(*row, np.nan)[:3] for row in rows], strict=True)) or [(), (), ()]
    names = [f"j{i}" for i in range(len(rows))]
    fields = {"gpus": np.ones(len(rows)), "start_s": columns[2]} | more
    return JobLog.of("a log", job=names, tenant=["t"] * len(rows), submit_s=columns[0], duration_s=columns[1], **fields)


def test_of_sorts_and_counts_what_it_leaves_out():
    reasons = {"small": [True, False, False, False], "red": [True, True, False, False], "blue": [False] * 4}
    log = log_of([(5, 1), (4, 2), (3, 3), (1, 4)], reasons=reasons, dropped={"old": 2, "new": 0})
    assert log.job == ("j3", "j2")
    assert log.submit_s.tolist() == [1, 3]
    assert log.duration_s.tolist() == [4, 3]
    assert log.dropped == {"old": 2, "small": 1, "red": 1}  # each record under the first reason that applies
    assert log.gpu_type == ("", "")
    assert np.isnan(log.time_limit_s).all()
    assert not log.censored.any()


def test_equal_submissions_keep_their_order():
    assert log_of([(1, 1), (0, 1), (1, 2), (0, 2)]).job == ("j1", "j3", "j0", "j2")


@pytest.mark.parametrize("take", [lambda log: only_rows(log, [0, 2]), lambda log: window(log, None, 1.0)])
def test_some_jobs_of_a_log_have_all_its_columns(take):
    texts, numbers = ("gpu_type", "nodes", "series", "partition", "user", "qos"), ("gpu_milli", "cpus", "memory_gib")
    given = {name: ["x", "", "z"] for name in texts} | {name: [1, 2, 3] for name in numbers}
    log = log_of(
        [(0, 5), (10, 6), (2 * DAY, 7)], **given, time_limit_s=[7, 8, 9], energy_j=[1, 2, 3], censored=[1, 0, 0],
        known_s=[0, 5, DAY], treated={"how": np.array([True, False, True])},
        after=[{}, {"j0": "afterany"}, {"j0": "after"}],
    )  # fmt: skip
    columns = [
        f.name for f in fields(JobLog) if f.name not in ("source", "origin", "dropped", "path", "complete_from_s")
    ]
    assert {len(getattr(log, name)) for name in columns if name != "treated"} == {3}
    some = take(log)
    assert {len(getattr(some, name)) for name in columns if name != "treated"} == {2}
    assert len(some.treated["how"]) == 2


def test_of_nothing_says_why():
    with pytest.raises(InputError) as caught:
        log_of([(0, 1), (0, 2)], reasons={"without a GPU": [True, True]}, path="x.csv")
    assert str(caught.value) == "x.csv: got 'none', expected at least one GPU job (left out: 2 without a GPU)"
    with pytest.raises(InputError, match=r"got 'none', expected at least one GPU job$"):
        log_of([])


def test_duplicate_names():
    with pytest.raises(InputError) as caught:
        JobLog.of(
            "a",
            job=["a", "b", "a"],
            tenant=["t"] * 3,
            submit_s=[0, 1, 2],
            duration_s=[1, 1, 1],
            gpus=[1, 1, 1],
            path="f",
        )
    assert str(caught.value) == "f: field 'job': got 'a', expected distinct job names"


def test_a_window_of_a_dated_log():
    log = log_of([(0, 10), (DAY, 20), (2 * DAY, 30), (3 * DAY, 40)], origin=ORIGIN)
    chosen = window(log, "2020-01-02", 2)
    assert chosen.job == ("j1", "j2")
    assert chosen.submit_s.tolist() == [0, DAY]
    assert chosen.origin == datetime(2020, 1, 2, tzinfo=UTC)
    assert chosen.source == "a log, 2 days from 2020-01-02T00:00:00Z: 2 jobs submitted"
    assert window(log, "2020-01-02T12:00:00+00:00", 1).submit_s.tolist() == [DAY / 2]
    assert window(log, str(DAY), 1).job == ("j1",)
    assert window(log, None, 1.5).job == ("j0", "j1")


def test_carry_in_takes_what_is_left():
    rows = [
        (0, 100),  # done before 1000
        (0, 1500),  # 500 s left
        (900, 200),  # 100 s left
        (950, 50),  # ends exactly at 1000
        (1000, 7),
    ]
    log = log_of(rows, time_limit_s=[np.nan, 2000, np.inf, np.nan, 9])
    chosen = window(log, "1000", 1)
    assert chosen.job == ("j1", "j2", "j4")
    assert chosen.submit_s.tolist() == [0, 0, 0]
    assert chosen.duration_s.tolist() == [500, 100, 7]
    assert chosen.time_limit_s.tolist() == [1000, np.inf, 9]
    assert chosen.source == "a log, 1 day from 1000 s: 1 job submitted and 2 carried in from before"
    assert window(log, "1000", 1, carry_in=False).job == ("j4",)


def test_carry_in_with_start_times():
    rows = [
        (0, 100, 950),  # started at 950: 50 s left
        (0, 100, 2000),  # had not started: all of it left
        (0, 100, 800),  # done
        (1000, 5, 1200),
    ]
    chosen = window(log_of(rows), "1000", 1)
    assert chosen.job == ("j0", "j1", "j3")
    assert chosen.duration_s.tolist() == [50, 100, 5]
    assert chosen.start_s.tolist() == [-50, 1000, 200]


def test_a_declared_limit_is_never_below_what_is_left():
    chosen = window(log_of([(0, 100), (60, 1)], time_limit_s=[70, 1]), "50", 1)
    assert chosen.duration_s.tolist() == [50, 1]
    assert chosen.time_limit_s.tolist() == [50, 1]


@pytest.mark.parametrize("begin", ["2021-01-01", "2019-12-01", "-1e9", "1e12"])
def test_a_window_outside_the_log_names_its_span(begin):
    with pytest.raises(InputError) as caught:
        window(log_of([(0, 10), (DAY, 20)], origin=ORIGIN), begin, 7)
    line = str(caught.value)
    assert line.startswith("field 'workload.begin': got '7 days from ")
    assert line.endswith("the log, whose submissions are from 2020-01-01T00:00:00Z to 2020-01-02T00:00:00Z")


def test_a_window_with_running_jobs_only_is_outside():
    with pytest.raises(InputError, match="expected a period of the log"):
        window(log_of([(0, 10 * DAY), (9 * DAY, 1)]), str(DAY), 1)


def test_begin_that_is_no_moment():
    with pytest.raises(InputError) as caught:
        window(log_of([(0, 1)]), "monday", 1)
    assert str(caught.value) == (
        "field 'workload.begin': got 'monday', expected a day or moment (ISO 8601) or a number of seconds from the "
        "log's origin"
    )
    with pytest.raises(InputError, match="got 'nan', expected a day or moment"):
        window(log_of([(0, 1)]), "nan", 1)


def test_a_date_in_a_log_without_dates():
    with pytest.raises(InputError) as caught:
        window(log_of([(0, 1)]), "2020-01-01", 1)
    assert "got '2020-01-01', expected seconds from the log's origin, as this log has no dates" in str(caught.value)


def test_the_sentence_tells_of_missing_parts():
    log = log_of([(0, 10), (DAY, 20), (5 * DAY, 1)], complete_from_s=DAY)
    assert "(the log lacks jobs before 86400 s)" in window(log, "0", 1).source
    assert "lacks" not in window(log, str(DAY), 1).source
    assert "last submission" not in window(log, None, 5.5).source
    assert window(log, str(DAY), 7).source.endswith("(the log's last submission is at 432000 s)")


def test_moments_beyond_the_calendar():
    with pytest.raises(
        InputError, match=r"got '1\.7e\+12', expected a moment in seconds since 1970, before the year 10000"
    ):
        utc(1.7e12)  # milliseconds


jobs = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(1, 500), st.none() | st.integers(0, 300)), min_size=1, max_size=30
)


@pytest.mark.slow
@settings(deadline=None)
@given(jobs, st.integers(0, 1200), st.integers(1, 600))
def test_a_window_holds_exactly_the_work_of_its_period(rows, begin, length):
    """Jobs submitted in it whole; of earlier ones the part after its begin; nothing of later ones."""
    waits = [(s, d, np.nan if w is None else s + w) for s, d, w in rows]
    log = log_of(waits)
    fresh = {f"j{i}": d for i, (s, d, _) in enumerate(rows) if begin <= s < begin + length}
    if not fresh:
        with pytest.raises(InputError):
            window(log, str(begin), length / DAY)
        return
    left = dict(fresh)
    for i, (s, d, w) in enumerate(rows):
        remains = min(d, s + (w or 0) + d - begin)
        if s < begin and remains > 0:
            left[f"j{i}"] = remains
    chosen = window(log, str(begin), length / DAY)
    assert dict(zip(chosen.job, chosen.duration_s, strict=True)) == left
    assert (np.diff(chosen.submit_s) >= 0).all()
    assert chosen.submit_s.min() >= 0
    assert chosen.submit_s.max() < length
    assert set(window(log, str(begin), length / DAY, carry_in=False).job) == set(fresh)
