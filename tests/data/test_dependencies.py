"""The column ``after`` of a job log, and the demand of such a log."""

import numpy as np
import pytest

from commonwatt.data.demand import demand_of
from commonwatt.data.log import part_of, window
from commonwatt.data.readers.plain import read
from commonwatt.model.errors import InputError

HEADER = "job,submit_s,duration_s,gpus,time_limit_s,after\n"


@pytest.fixture
def log(tmp_path):
    def log_of(rows: str, header: str = HEADER):
        (tmp_path / "jobs.csv").write_text(header + rows)
        return read(tmp_path / "jobs.csv")

    return log_of


def test_the_column_names_jobs_arrays_and_what_is_gone(log):
    rows = ["5_0,0,60,1,,", "5_1,0,60,1,,", '7,1,60,1,,"afterok:5,afternotok:5_0"', "8,2,60,1,,afterany:99:7",
            "cpu,0,900,0,,", "9,3,60,1,,afterok:cpu"]  # fmt: skip
    jobs = log("\n".join(rows) + "\n")
    assert dict(zip(jobs.job, jobs.after, strict=True)) == {
        "5_0": {}, "5_1": {}, "7": {"5_0": "afterany", "5_1": "afterok"}, "8": {"7": "afterany"}, "9": {}
    }  # fmt: skip
    assert jobs.submit_s[jobs.job.index("9")] == 900.0
    counts = jobs.treatments()
    assert counts["wait for jobs that are not in the log: not for these"] == 1
    assert counts["wait for jobs that are left out: from when those had ended in the log"] == 1
    assert counts["waited for a job to fail (afternotok): until it ends"] == 1


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("afterok", r"line 3.*'after'.*afterok.*expected after, afterany"),
        ("afterok:1?afterany:3", r"line 3.*'after'"),
        ("afterok:2", r"line 3.*'after'.*do not wait for each other \(2 -> 2\)"),
        ("afterok:3", r"line [34].*'after'.*do not wait for each other"),
    ],
)
def test_a_bad_cell_is_named(log, cell, message):
    with pytest.raises(InputError, match=message):
        log(f"1,0,60,1,,\n2,0,60,1,,{cell}\n3,0,60,1,,after:2\n")


def test_a_long_circle_looks_like_one(log):
    rows = "".join(f"x{k},{k},60,1,,afterok:x{(k - 1) % 3000}\n" for k in range(3000))
    with pytest.raises(InputError, match=r"\((\w+) -> \w+ -> \w+ -> \w+ -> … -> \1, 3,000 jobs\)"):
        log(rows)


def test_a_name_that_is_there_twice_is_no_circle(log):
    with pytest.raises(InputError, match="field 'job': got 'a', expected distinct job names"):
        log("a,0,60,1,,\na,1,60,1,,afterok:a\n")


def test_a_blank_column_is_none(log):
    rows = "1,0,60,1,100,\n2,0,60,1,100,\n"
    assert log(rows).after == ()
    plain = log(rows.replace(",\n", "\n"), HEADER.replace(",after", ""))
    assert [column for name, column in vars(log(rows)).items() if name == "treated"] == [plain.treated]


def test_demand_counts_from_when_a_job_may_start_and_knows_the_limit_not_the_end(log):
    """Job 2 waits for 1, which has a limit of 2 hours and ends after 1."""
    rows = "1,0,{},4,7200,\n2,60,{},6,,afterok:1\n3,0,40000,1,,\n4,30000,60,1,,\n"
    short, longer = (demand_of(log(rows.format(length, 600))) for length in (3600, 5400))
    assert short.wanted.gpus[[59, 60, 69, 70]].tolist() == [5.0, 7.0, 7.0, 1.0]
    origins = np.arange(400)
    due, later = (own.submitted.due(origins, 5) for own in (short, longer))
    assert due is None or not due.any()  # it ended long before its limit
    assert later is None or not later.any()
    ahead = demand_of(log(rows.format(7100, 600))).submitted.due(origins, 5)
    assert ahead is not None
    assert ahead[118].tolist() == [
        0.0,
        2.0,
        2.0,
        2.0,
        2.0,
    ]  # GPUs beyond those of job 1
    assert not ahead[119:].any()


def test_a_period_and_a_pool_keep_what_can_still_be_waited_for(log):
    jobs = log("1,0,3600,4,,\n2,60,600,6,,afterok:1\n3,90000,60,1,,afterok:2\n")
    day = window(jobs, "86400", 1.0)
    assert (day.job, day.after) == (("3",), ())
    first = window(jobs, "0", 0.5)
    assert first.after == ({}, {"1": "afterok"})
    part = part_of(jobs, np.array([False, True, True]), "of other pools")
    assert part.submit_s.tolist() == [3600.0, 90000.0]
