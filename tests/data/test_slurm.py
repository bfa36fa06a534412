"""Slurm accounting in both forms; hand-written jobs."""

import json
import math

import pytest

from commonwatt.data.catalog import guess_format
from commonwatt.data.readers import read_log
from commonwatt.data.readers.slurm import ASK, duration_s, gpus_of
from commonwatt.model.errors import InputError

HEADER = "JobID|JobName|Account|User|Submit|Start|End|Elapsed|Timelimit|State|AllocTRES|ReqTRES"
ROWS = """
100|train "a|ml|ann|2024-05-01T08:00:00|2024-05-01T08:10:00|2024-05-01T09:10:00|01:00:00|1-00:00:00|COMPLETED|billing=8,cpu=8,gres/gpu:v100=4,gres/gpu=4,mem=64G,node=1|cpu=8,gres/gpu=4
100.batch|batch|ml||2024-05-01T08:10:00|2024-05-01T08:10:00|2024-05-01T09:10:00|01:00:00||COMPLETED|cpu=8,gres/gpu:v100=4,gres/gpu=4|
100.0|python|ml||2024-05-01T08:10:00|2024-05-01T08:10:00|2024-05-01T09:10:00|01:00:00||COMPLETED|cpu=8|
101_4|sweep||bob|2024-05-01T07:00:00|2024-05-01T07:00:05|Unknown|2-00:00:10|UNLIMITED|RUNNING|gres/gpu=2|gres/gpu=2
101_[5-9]|sweep||bob|2024-05-01T07:00:00|Unknown|Unknown|00:00:00|UNLIMITED|PENDING||gres/gpu=2
102|cpu|ml|ann|2024-05-01T08:00:00|2024-05-01T08:10:00|2024-05-01T09:10:00|01:00:00|Partition_Limit|COMPLETED|cpu=8,node=1|cpu=8
103|gone|ml|ann|2024-05-01T08:00:00|2024-05-01T08:10:00|2024-05-01T08:10:00|00:00:00|30:00|CANCELLED by 7|gres/gpu=1|gres/gpu=1
104|mix|ml|ann|2024-05-01T08:20:00|2024-05-01T08:20:00|2024-05-01T08:50:00|00:30:00|Partition_Limit|FAILED|gres/gpu:a100=2,gres/gpu:t4=1,gres/gpu=3|gres/gpu=3
105|again|ml|ann|2024-05-01T08:00:00|2024-05-01T08:01:00|2024-05-01T08:02:00|00:01:00|01:00:00|NODE_FAIL|gres/gpu=1|gres/gpu=1
105|again|ml|ann|2024-05-01T08:02:00|2024-05-01T08:03:00|2024-05-01T08:23:00|00:20:00|01:00:00|COMPLETED|gres/gpu=1|gres/gpu=1
""".strip()  # noqa: E501
TABLE = f"{HEADER}\n{ROWS}\n"


def fails(path) -> str:
    with pytest.raises(InputError) as caught:
        read_log("slurm", path)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_parsable2(write):
    log = read_log("slurm", write("sacct.txt", TABLE))
    assert log.job == ("101_4", "100", "105", "104")
    assert log.tenant == ("bob", "ml", "ml", "ml")
    assert log.submit_s.tolist() == [0, 3600, 3600, 4800]  # 105: its first submission
    assert log.start_s.tolist() == [5, 4200, 3780, 4800]
    assert log.duration_s.tolist() == [172810, 3600, 1200, 1800]  # 105: its last run
    assert log.gpus.tolist() == [2, 4, 1, 3]
    assert log.gpu_type == ("", "v100", "", "")  # 104 has two types
    assert log.series == ("bob/sweep", 'ann/train "a', "ann/again", "ann/mix")
    assert log.time_limit_s[:3].tolist() == [math.inf, 86400, 3600]
    assert math.isnan(log.time_limit_s[3])
    assert log.censored.tolist() == [True, False, False, False]
    assert log.moment(0) == "2024-05-01T07:00:00Z"
    assert log.dropped == {
        "earlier runs of requeued jobs": 1,
        "without a GPU": 1,
        "never started": 1,
        "without run time": 1,
    }


@pytest.mark.parametrize(
    ("cell", "cpus", "memory_gib"),
    [
        ("billing=9,cpu=8,gres/gpu=1,mem=64G,node=1", 8, 64), ("cpu=12,mem=512M,gres/gpu=1", 12, 0.5),
        ("mem=2T,gres/gpu=1", None, 2048), ("gres/gpu=1,cpu=3", 3, None), ("gres/gpu=1,mem=1.50G", None, 1.5),
        ("gres/gpu=1,xcpu=3,mem=7X", None, None),
    ],
)  # fmt: skip
def test_cpus_and_memory_of_rows(write, cell, cpus, memory_gib):
    start = "2024-05-01T08:00:00"
    log = read_log(
        "slurm",
        write("s.txt", f"JobID|Submit|Start|Elapsed|State|AllocTRES\n1|{start}|{start}|01:00|COMPLETED|{cell}\n"),
    )
    assert log.cpus.tolist() == ([] if cpus is None else [cpus])
    assert log.memory_gib.tolist() == ([] if memory_gib is None else [memory_gib])


def test_cpus_and_memory_of_json(write):
    memory = {"type": "mem", "name": "", "id": 2, "count": 65536}  # MiB
    log = read_jobs(write, job(1), job(2, tres__allocated=[gpu(1), memory]))
    assert log.cpus[0] == 8
    assert log.memory_gib[1] == 64
    assert math.isnan(log.cpus[1])
    assert math.isnan(log.memory_gib[0])


def test_raw_columns_and_no_account(write):
    text = (
        "JobID|User|Submit|Start|ElapsedRaw|TimelimitRaw|State|ReqTRES\n"
        "1|ann|2024-05-01T08:00:00|2024-05-01T08:10:00|77|60|COMPLETED|gres/gpu=1\n"
        "2||2024-05-01T08:00:00|2024-05-01T08:10:00|78|UNLIMITED|COMPLETED|gres/gpu:h200=1\n"
    )
    log = read_log("slurm", write("s.txt", text))
    assert log.duration_s.tolist() == [77, 78]
    assert log.time_limit_s.tolist() == [3600, math.inf]
    assert log.tenant == ("ann", "unknown")
    assert log.gpu_type == ("", "h200")


def job(number, **more):
    record = {
        "job_id": number, "account": "ml", "user": "ann", "array": {"job_id": 0, "task_id": None},
        "state": {"current": ["COMPLETED"], "reason": "None"},
        "time": {"submission": 1_000_000, "start": 1_000_060, "end": 1_003_660, "elapsed": 3600,
                 "limit": {"set": True, "infinite": False, "number": 120}},
        "tres": {"allocated": [{"type": "cpu", "name": "", "id": 1, "count": 8},
                               {"type": "gres", "name": "gpu", "id": 1001, "count": 4}],
                 "requested": []},
    }  # fmt: skip
    for path, value in more.items():
        *way, last = path.split("__")
        place = record
        for part in way:
            place = place[part]
        place[last] = value
    return record


def read_jobs(write, *records):
    return read_log("slurm", write("sacct.json", json.dumps({"meta": {}, "jobs": list(records), "errors": []})))


def gpu(count, name="gpu"):
    return {"type": "gres", "name": name, "id": 1001, "count": count}


def test_json(write):
    log = read_jobs(write, job(1) | {"user": "ann", "name": "train"}, job(2, time__submission=1_000_010))
    assert log.job == ("1", "2")
    assert log.series[0] == "ann/train"
    assert log.tenant == ("ml", "ml")
    assert log.submit_s.tolist() == [0, 10]
    assert log.start_s.tolist() == [60, 60]
    assert log.duration_s.tolist() == [3600, 3600]
    assert log.time_limit_s.tolist() == [7200, 7200]  # minutes in the file
    assert log.gpus.tolist() == [4, 4]
    assert log.origin.timestamp() == 1_000_000


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        (120, 7200),  # 21.08
        ({"set": True, "infinite": False, "number": 120}, 7200),  # 23.02 and later
        ({"set": False, "infinite": True, "number": 0}, math.inf),
        ({"number": 60}, 3600),
        ({"set": False, "infinite": False, "number": 0}, math.nan),
        (None, math.nan),
        (0, math.nan),
    ],
)
def test_json_limits(write, limit, seconds):
    assert read_jobs(write, job(1, time__limit=limit)).time_limit_s[0] == pytest.approx(seconds, nan_ok=True)


@pytest.mark.parametrize("state", ["RUNNING", {"current": "RUNNING"}, {"current": ["RUNNING"]}, ["RUNNING", "x"]])
def test_json_states(write, state):
    assert read_jobs(write, job(1, state=state), job(2)).censored.tolist() == [True, False]


def test_json_arrays_types_and_requeues(write):
    log = read_jobs(
        write,
        job(7, array={"job_id": 5, "task_id": 3}),
        job(8, array={"job_id": 5, "task_id": {"set": True, "infinite": False, "number": 4}}),
        job(9, array={"job_id": 0, "task_id": {"set": False, "infinite": False, "number": 0}}),
        job(10, tres__allocated=[gpu(2, "gpu:a100"), gpu(2)]),
        job(11, tres__allocated=[gpu(2, "gpu:a100")]),
        job(12, tres__allocated=None, tres__requested=[gpu(1)]),
        job(13, account="", association={"account": "physics"}),
        job(9, time__submission=1_000_500, time__start=1_000_600, time__elapsed=5),
    )
    assert sorted(log.job, key=len) == ["9", "10", "11", "12", "13", "5_3", "5_4"]
    at = {name: i for i, name in enumerate(log.job)}
    assert [log.gpus[at[n]] for n in ("10", "11", "12")] == [2, 2, 1]
    assert [log.gpu_type[at[n]] for n in ("9", "10", "11")] == ["", "a100", "a100"]
    assert log.tenant[at["13"]] == "physics"
    assert (log.submit_s[at["9"]], log.duration_s[at["9"]]) == (0, 5)
    assert log.dropped == {"earlier runs of requeued jobs": 1}


def test_json_jobs_left_out(write):
    log = read_jobs(
        write,
        job(1),
        job(2, time__start=0, time__elapsed=0, state={"current": ["PENDING"]}),
        job(3, tres__allocated=[]),
        job(4, time__elapsed=0),
    )
    assert log.job == ("1",)
    assert log.dropped == {"without a GPU": 1, "never started": 1, "without run time": 1}


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (job(1, time__submission=-5), "field 'jobs[0].time.submission': got '-5', expected seconds since 1970"),
        (job(1, time__submission=None), "field 'jobs[0].time.submission': expected seconds since 1970"),
        (job(1, time__elapsed=-1), "field 'jobs[0].time.elapsed': got '-1', expected a number of seconds, 0 or more"),
        (job(1, time__submission=math.inf), "field 'jobs[0].time.submission': got 'inf', expected seconds since 1970"),
        (
            job(1, time__start=math.inf),
            "field 'jobs[0].time.start': got 'inf', expected a number of seconds, 0 or more",
        ),
        (job(1, time__elapsed="x"), "field 'jobs[0]': got "),
        (job(1, time=None), "field 'jobs[0]': got "),
        ({"job_id": 1}, "field 'jobs[0]': got \"no 'time'\", expected a job with job_id, time and tres"),
        (3, "field 'jobs[0]': got "),
    ],
)
def test_bad_json(write, record, line):
    path = write("sacct.json", json.dumps({"jobs": [record]}))
    assert fails(path).startswith(f"{path}: {line}")


def test_json_that_is_something_else(write):
    path = write("sacct.json", '{"nodes": []}')
    assert fails(path) == f"{path}: field 'jobs': expected a list of jobs, as sacct --json prints"
    path = write("sacct.json", '{"jobs": [')
    assert fails(path) == f"{path}, line 1: got 'Expecting value', expected valid JSON"
    path = write("sacct.json", '{"jobs": []}')
    assert fails(path) == f"{path}: got 'none', expected at least one GPU job"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("Submit|", "Sent|", ": field 'Submit': expected this column; run: sacct --allusers"),
        ("Elapsed|", "Took|", ": field 'Elapsed': expected this column; run: sacct --allusers"),
        (
            "01:00:00|1-00",
            "an hour|1-00",
            ", line 2: field 'Elapsed': got 'an hour', expected a time such as 1-02:03:04",
        ),
        ("1-00:00:00", "a day", ", line 2: field 'Timelimit': got 'a day', expected a time such as 1-02:03:04 or"),
        ("08:00:00|2024", "08:61:00|2024", ", line 2: field 'Submit': got '2024-05-01T08:61:00', expected a moment"),
        ("gres/gpu=4,mem", "gres/gpu=four,mem", ", line 2: field 'AllocTRES': got 'billing=8,cpu=8,gres/gpu:v100=4,"),
        ('train "a|', "train|a|", ", line 2: got '13 cells', expected 12 cells, as in the header"),
    ],
)
def test_bad_table(write, old, new, line):
    assert old in TABLE
    path = write("sacct.txt", TABLE.replace(old, new, 1))
    assert fails(path).startswith(f"{path}{line}")


def test_table_without_resources(write):
    path = write("s.txt", "JobID|Submit|Start|Elapsed|State\n1|2024-05-01|2024-05-01|01:00|COMPLETED\n")
    assert fails(path).startswith(f"{path}: field 'AllocTRES': expected this column or ReqTRES; run: sacct --allusers")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("02:03", 123), ("01:02:03", 3723), ("1-02:03:04", 93784), ("10-00:00:00", 864000), ("00:01.500", 1)],
)
def test_durations(text, seconds):
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "12", "1:2:3:4", "-1:00", "1-02:03", "01:02:03:"])
def test_bad_durations(text):
    with pytest.raises(ValueError, match="a time such as"):
        duration_s(text)


@pytest.mark.parametrize("count", [-1, 10**30])
def test_counts_that_cannot_be(write, count):
    path = write("sacct.json", json.dumps({"jobs": [job(1, tres__allocated=[gpu(count)])]}))
    assert fails(path).startswith(f"{path}: field 'jobs[0]': got \"ValueError('gpu=")
    path = write("sacct.txt", TABLE.replace("gres/gpu=4,mem", f"gres/gpu={count},mem"))
    assert fails(path).startswith(f"{path}, line 2: field 'AllocTRES': got 'billing=8")


def test_gpus_of_typed_and_plain():
    assert gpus_of([("cpu", 8), ("gres/gpu", 3), ("gres/gpu:a", 2), ("gres/gpu:b", 1)]) == (3, "")
    assert gpus_of([("gres/gpu:a", 2), ("gres/gpu:b", 1)]) == (3, "")
    assert gpus_of([("gpu:a", 2), ("gpu:b", 0)]) == (2, "a")
    assert gpus_of([("gres/gpumem", 80), ("gres/gpuutil", 50), ("mem", 5)]) == (0, "")


PEOPLE = """\
JobID           Account              Submit               Start    Elapsed      State                      AllocTRES
------------ ---------- ------------------- ------------------- ---------- ---------- ------------------------------
100                  ml 2024-05-01T08:00:00 2024-05-01T08:10:00   01:00:00  COMPLETED  cpu=8,gres/gpu:v100=4,node=1
100.batch            ml 2024-05-01T08:10:00 2024-05-01T08:10:00   01:00:00  COMPLETED  cpu=8,gres/gpu:v100=4,node=1
101                  cv 2024-05-01T09:00:00 2024-05-01T09:05:00 1-02:00:00 CANCELLED+               cpu=8,gres/gpu=2
"""
DEFAULT = """\
JobID           JobName  Partition    Account  AllocCPUS      State ExitCode
------------ ---------- ---------- ---------- ---------- ---------- --------
100            train.sh        gpu         ml          8  COMPLETED      0:0
"""


def test_the_table_for_people(write):
    path = write("sacct.txt", PEOPLE)
    assert guess_format(path) == "slurm"
    log = read_log("slurm", path)
    assert (log.job, log.tenant, log.gpus.tolist()) == (("100", "101"), ("ml", "cv"), [4, 2])
    assert log.duration_s.tolist() == [3600, 26 * 3600]
    assert (log.start_s - log.submit_s).tolist() == [600, 300]
    assert log.gpu_type == ("v100", "")


def test_the_default_table_lacks_what_is_needed_and_names_the_command(write):
    path = write("sacct.txt", DEFAULT)
    assert guess_format(path) == "slurm"
    assert fails(path) == f"{path}: field 'Submit': expected this column; run: {ASK}"
    assert ASK.startswith("sacct --allusers")


def test_the_default_parsable_table_is_recognised_as_slurms(write):
    path = write("sacct.txt", "JobID|JobName|Partition|Account|AllocCPUS|State|ExitCode\n1|a|p|ml|2|COMPLETED|0:0\n")
    assert guess_format(path) == "slurm"
    assert fails(path) == f"{path}: field 'Submit': expected this column; run: {ASK}"


@pytest.mark.parametrize("cut", ["cpu=8,gres/gpu:v100=4,mem=64+", "cpu=8,gres/gpu:v100=4,mem=640G+"])
def test_a_table_with_cells_cut_off_is_refused(cut, write):
    path = write("sacct.txt", PEOPLE.replace("cpu=8,gres/gpu:v100=4,node=1", cut, 1))
    said = fails(path)
    assert said.startswith(f"{path}, line 3: field 'AllocTRES': got '")
    assert "but sacct has cut this off; run: sacct" in said


def parsable(*rows: str, columns: str = "JobID|Account|Submit|Eligible|Start|Elapsed|State|AllocTRES") -> str:
    return f"{columns}\n" + "\n".join(rows) + "\n"


def at(clock: str) -> str:
    return f"2024-05-01T{clock}"


def test_a_job_counts_from_when_it_was_eligible(write):
    rows = (
        f"1|a|{at('08:00:00')}|{at('10:00:00')}|{at('10:05:00')}|01:00:00|COMPLETED|gres/gpu=1",  # a dependency
        f"2|a|{at('08:00:00')}|{at('08:00:00')}|{at('08:30:00')}|01:00:00|COMPLETED|gres/gpu=1",
        f"3|a|{at('08:00:00')}|Unknown|{at('08:10:00')}|01:00:00|COMPLETED|gres/gpu=1",
        f"4|a|{at('08:00:00')}|{at('09:00:00')}|{at('08:20:00')}|01:00:00|COMPLETED|gres/gpu=1",  # not after its start
    )
    log = read_log("slurm", write("sacct.txt", parsable(*rows)))
    wait_s = dict(zip(log.job, (log.start_s - log.submit_s).tolist(), strict=True))
    assert wait_s == {"1": 300, "2": 1800, "3": 600, "4": 0}
    assert log.treatments() == {
        "kept back by a dependency, a hold or a begin time: as if submitted when they were eligible": 2
    }


def test_a_start_before_the_submission_is_counted(write):
    row = f"1|a|{at('08:00:00')}||{at('07:00:00')}|01:00:00|COMPLETED|gres/gpu=1"
    log = read_log("slurm", write("sacct.txt", parsable(row)))
    assert (log.start_s - log.submit_s).tolist() == [0]
    assert log.treatments() == {"started before they were submitted: at their submission": 1}


def test_dumps_that_overlap_have_a_run_twice(write):
    first = f"1|a|{at('08:00:00')}||{at('08:10:00')}|00:50:00|RUNNING|gres/gpu=1"
    second = f"1|a|{at('08:00:00')}||{at('08:10:00')}|02:00:00|COMPLETED|gres/gpu=1"
    for rows in ((first, second), (second, first)):
        log = read_log("slurm", write("sacct.txt", parsable(*rows)))
        assert log.dropped == {"runs that are there twice": 1}
        assert (log.duration_s.tolist(), log.censored.tolist()) == ([7200], [False])


def test_parts_of_a_heterogeneous_job_are_counted(write):
    rows = (f"7+{k}|a|{at('08:00:00')}||{at('08:10:00')}|00:50:00|COMPLETED|gres/gpu=1" for k in range(2))
    log = read_log("slurm", write("sacct.txt", parsable(*rows)))
    assert log.job == ("7+0", "7+1")
    assert log.treatments() == {"parts of heterogeneous jobs: each as a separate job": 2}


def test_seconds_since_1970(write):
    row = "1|a|1714550400|1714550400|1714550460|01:00:00|COMPLETED|gres/gpu=1"
    log = read_log("slurm", write("sacct.txt", parsable(row)))
    assert (log.moment(0), log.start_s.tolist()) == ("2024-05-01T08:00:00Z", [60])


def test_user_and_qos(write):
    columns = "JobID|Account|User|QOS|Submit|Start|Elapsed|State|AllocTRES"
    row = f"1|a|ann|high|{at('08:00:00')}|{at('08:10:00')}|00:50:00|COMPLETED|gres/gpu=1"
    log = read_log("slurm", write("sacct.txt", parsable(row, columns=columns)))
    assert (log.user, log.qos) == (("ann",), ("high",))
    without = read_log("slurm", write("plain.txt", parsable(row.replace("ann|high", "|"), columns=columns)))
    assert (without.user, without.qos) == ((), ())
