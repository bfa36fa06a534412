import math
from datetime import UTC, datetime

import pytest

from commonwatt.data.catalog import guess_format
from commonwatt.data.log import eligible_s
from commonwatt.data.readers import read_log
from commonwatt.model.errors import InputError

SWF = """; Version: 2.2
; UnixStartTime: 1500000000
;
  1  0   5  100   4 -1 -1  8 200 -1 1  3 1 -1 -1 -1 -1 -1
  2  9  -1   50  -1 -1 -1  2  -1 -1 1 -1 1 -1 -1 -1 -1 -1 ; a comment
  3 10   0   -1   4 -1 -1  4 200 -1 5  3 1 -1 -1 -1 -1 -1
  4 10   0   10   0 -1 -1 -1 200 -1 1  3 1 -1 -1 -1 -1 -1
  5 10   0   10   1 -1 -1 -1 200 -1 3  3 1 -1 -1 -1 -1 -1
"""


def fails(source, path, columns=None) -> str:
    with pytest.raises(InputError) as caught:
        read_log(source, path, columns)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_swf(write):
    path = write("log.swf", SWF, zipped=True)
    log = read_log("swf", path)
    assert log.job == ("1", "2")
    assert log.gpus.tolist() == [4, 2]  # allocated; else requested
    assert log.duration_s.tolist() == [100, 50]
    assert log.submit_s.tolist() == [0, 9]
    assert log.start_s[0] == 5
    assert math.isnan(log.start_s[1])
    assert log.time_limit_s[0] == 200
    assert math.isnan(log.time_limit_s[1])
    assert log.tenant == ("user-3", "unknown")
    assert log.origin == datetime(2017, 7, 14, 2, 40, tzinfo=UTC)
    assert log.dropped == {"parts of a checkpointed job": 1, "without a processor": 1, "without run time": 1}
    assert "processors read as GPUs" in log.source


def test_swf_jobs_wait_for_their_preceding_job(write):
    lines = ["1 0 0 100 4", "2 10 95 50 2", "3 20 -1 10 1", "4 30 -1 10 1", "4 31 -1 10 1", "5 40 -1 10 1"]
    rest, preceding = "-1 -1 1 200 -1 1 3 1 -1 -1 -1", (-1, 1, 9, 5, -1, 4)
    text = "".join(f"{line} {rest} {other} 5\n" for line, other in zip(lines, preceding, strict=True))
    text = text.replace("4 31 -1 10 1 -1 -1 1 200 -1 1", "4 31 -1 10 1 -1 -1 1 200 -1 3")  # a part of job 4
    log = read_log("swf", write("log.swf", text))
    assert log.job == ("1", "2", "3", "4", "5")
    assert log.after == ({}, {"1": "afterany"}, {}, {}, {})  # not for one unknown, later, or of several lines
    (counted,) = [mask for how, mask in log.treated.items() if "not in the log" in how]
    assert counted.tolist() == [False, False, True, True, True]
    assert eligible_s(log)[0].tolist() == [0, 100, 20, 30, 40]


def test_swf_without_a_header_has_no_dates(write):
    assert read_log("swf", write("log.swf", SWF.split(";\n")[1])).origin is None


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("100   4", "soon  4", ", line 4: field 'run time': got 'soon', expected a number (-1: unknown)"),
        ("100   4", "nan   4", ", line 4: field 'run time': got 'nan', expected a number (-1: unknown)"),
        (
            "100   4",
            "100 1e30",
            ", line 4: field 'allocated processors': got '1e30', expected a whole number (-1: unknown)",
        ),
        (
            "100   4",
            "100 4.5",
            ", line 4: field 'allocated processors': got '4.5', expected a whole number (-1: unknown)",
        ),
        (
            "  1  0   5",
            "  1 -7   5",
            ", line 4: field 'submit time': got '-7', expected a number of seconds, 0 or more",
        ),
        (" 3 1 -1 -1 -1 -1 -1\n", "\n", ", line 4: got '11 fields', expected 18 fields"),
        ("  2  9", "  1  9", ": field 'job': got '1', expected distinct job names"),
    ],
)
def test_bad_swf(write, old, new, line):
    assert old in SWF
    path = write("log.swf", SWF.replace(old, new, 1))
    assert fails("swf", path) == f"{path}{line}"


def test_swf_of_comments_only(write):
    path = write("log.swf", "; nothing\n")
    assert fails("swf", path) == f"{path}: got 'none', expected at least one job"


PLAIN = "job,tenant,submit_s,duration_s,gpus,gpu_type,time_limit_s\nb,x,20,5,2,v100,60\na,,10,7,1,,\nc,y,30,0,1,,\n"


def test_csv(write):
    log = read_log("csv", write("jobs.csv", PLAIN))
    assert log.job == ("a", "b")
    assert log.tenant == ("default", "x")
    assert log.submit_s.tolist() == [10, 20]
    assert log.gpu_type == ("", "v100")
    assert math.isnan(log.time_limit_s[0])
    assert log.time_limit_s[1] == 60
    assert log.origin is None
    assert log.dropped == {"without run time": 1}
    assert log.source == "job log jobs.csv"


def test_csv_needs_three_columns_only(write):
    log = read_log("csv", write("jobs.csv", "submit_s,duration_s,gpus\n3,1,1\n2,1,1\n"))
    assert log.job == ("row-2", "row-1")
    assert log.tenant == ("default", "default")


def test_csv_with_moments_and_names_of_its_own(write):
    text = "when;took;n;who\n2020-01-01T00:01:00Z;5;1;ann\n2020-01-01T01:00:00+01:00;6;2;bob\n"
    columns = {"submit_s": "when", "duration_s": "took", "gpus": "n", "tenant": "who"}
    log = read_log("csv", write("jobs.csv", text), columns)
    assert log.tenant == ("bob", "ann")
    assert log.submit_s.tolist() == [0, 60]
    assert log.origin == datetime(2020, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ({"sumbit_s": "a"}, "field 'columns': got 'sumbit_s', expected one of job, tenant, submit_s"),
        ({"job": "name"}, "{path}: field 'name': expected a column of this name; the file has job, tenant"),
        ({"tenant": "name"}, "{path}: field 'name': expected a column of this name; the file has job, tenant"),
    ],
)
def test_csv_columns_that_are_not_there(write, columns, line):
    path = write("jobs.csv", PLAIN)
    assert fails("csv", path, columns).startswith(line.format(path=path))


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("gpus", "cores", ": field 'gpus': expected a column of this name; the file has job, tenant"),
        ("20,5", "-20,5", ", line 2: field 'submit_s': got '-20', expected a number of seconds, 0 or more"),
        ("20,5", "nan,5", ", line 2: field 'submit_s': got 'nan', expected a number of seconds, 0 or more"),
        ("20,5", "20,-5", ", line 2: field 'duration_s': got '-5', expected a number of seconds, 0 or more"),
        ("20,5,2", "20,5,-2", ", line 2: field 'gpus': got '-2', expected a whole number, 0 or more"),
        ("20,5,2", "20,5,x", ", line 2: field 'gpus': got 'x', expected a whole number, 0 or more"),
        ("v100,60", "v100,soon", ", line 2: field 'time_limit_s': got 'soon', expected a number of seconds, 0 or more"),
        (
            "a,,10",
            "a,,2020-01-01",
            ", line 3: field 'submit_s': got '2020-01-01', expected a number of seconds, 0 or more",
        ),
        ("\na,", "\nb,", ": field 'job': got 'b', expected distinct job names"),
    ],
)
def test_bad_csv(write, old, new, line):
    path = write("jobs.csv", PLAIN.replace(old, new, 1))
    told = fails("csv", path)
    assert told == f"{path}{line}" or told.startswith(f"{path}{line},")


MOMENTS = """\
job,submit_time,start_time,end_time,gpus
a,2024-01-01T00:00:00,2024-01-01T00:10:00,2024-01-01T01:10:00,2
b,2024-01-01T00:30:00,2024-01-01T00:30:00,,1
c,2024-01-01T00:40:00,,,1
d,2024-01-01T02:00:00,2024-01-01T02:30:00,2024-01-01T03:00:00,4
"""


def test_starts_and_ends_stand_for_run_times(write):
    path = write("jobs.csv", MOMENTS)
    assert guess_format(path) == "csv"
    log = read_log("csv", path)
    assert log.job == ("a", "b", "d")
    assert log.submit_s.tolist() == [0, 1800, 7200]
    assert log.start_s.tolist() == [600, 1800, 9000]
    assert log.duration_s.tolist() == [3600, 9000, 1800]  # b was running at the last moment there is
    assert log.censored.tolist() == [False, True, False]
    assert log.dropped == {"never started": 1}
    assert log.origin == datetime(2024, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "header", ["submit,start,end,gpus", "submit_s,start,end_time,gpus", "submit_time,start_time,end_time,num_gpus"]
)
def test_the_names_of_moments_need_no_unit(header, write):
    path = write("jobs.csv", f"{header}\n2024-01-01T00:00:00,2024-01-01T00:01:00,2024-01-01T01:01:00,2\n")
    log = read_log("csv", path)
    assert (log.submit_s.tolist(), log.start_s.tolist(), log.duration_s.tolist()) == ([0], [60], [3600])


def test_start_and_end_without_a_unit_are_recognised(write):
    assert guess_format(write("jobs.csv", "start,end,gpus\n100,160,1\n")) == "csv"
    assert guess_format(write("jobs.csv", "start,end,num_gpus\n100,160,1\n")) == "csv"


def test_starts_and_ends_in_seconds_and_under_other_names(write):
    log = read_log("csv", write("a.csv", "start_s,end_s,gpus\n100,160,1\n130,150,2\n"))
    assert (log.submit_s.tolist(), log.duration_s.tolist(), log.origin) == ([100, 130], [60, 20], None)
    renamed = write("b.csv", "begun,over,n\n100,160,1\n130,150,2\n")
    same = read_log("csv", renamed, {"start_s": "begun", "end_s": "over", "gpus": "n"})
    assert (same.submit_s.tolist(), same.duration_s.tolist()) == ([100, 130], [60, 20])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("start_s,end_s,gpus\n100,90,1\n", "line 2: field 'end_s': got '90', expected no earlier moment"),
        ("submit_s,start_s,end_s,gpus\n50,40,90,1\n", "line 2: field 'start_s': got '40', expected no earlier moment"),
        ("start_time,end_time,gpus\n2024-01-01,soon,1\n", "line 2: field 'end_time': got 'soon', expected a moment"),
        ("start_s,end_s,gpus\n,,1\n", "at least one GPU job (left out: 1 never started)"),
        ("submit_s,start_s,gpus\n0,1,1\n", "field 'duration_s': expected a column of this name"),
    ],
)
def test_starts_and_ends_that_cannot_be(text, says, write):
    assert says in fails("csv", write("bad.csv", text))
