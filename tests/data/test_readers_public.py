"""Philly, Alibaba, Helios: hand-written rows in the shape of the public files."""

import json
from datetime import UTC, datetime

import numpy as np
import pytest

from commonwatt.data.readers import READERS, read_log
from commonwatt.model.errors import InputError

PHILLY = """job_id,submit_time,duration_s,num_gpus,virtual_cluster,censored
p1,2017-10-02T00:01:00Z,100,8,vc1,0
p0,2017-10-02T00:00:00Z,50,1,vc2,1
p2,2017-10-02T00:02:00Z,0,1,vc2,0
p3,2017-10-02T00:02:00Z,10,0,vc2,0
"""


def fails(source, path) -> str:
    with pytest.raises(InputError) as caught:
        read_log(source, path)
    return str(caught.value)


@pytest.mark.parametrize("zipped", [False, True])
def test_philly_tidied(write, zipped):
    log = read_log("philly", write("p.csv", PHILLY, zipped))
    assert log.job == ("p0", "p1")
    assert log.tenant == ("vc2", "vc1")
    assert log.submit_s.tolist() == [0, 60]
    assert log.duration_s.tolist() == [50, 100]
    assert log.gpus.tolist() == [1, 8]
    assert log.censored.tolist() == [True, False]
    assert log.origin == datetime(2017, 10, 2, tzinfo=UTC)
    assert log.dropped == {"without a GPU": 1, "without run time": 1}


def attempt(start, end, *gpus):
    places = [{"ip": f"m{i}", "gpus": [f"gpu{k}" for k in range(n)]} for i, n in enumerate(gpus)]
    return {"start_time": start, "end_time": end, "detail": places}


def published(name, submitted, *attempts):
    return {
        "status": "Pass", "vc": "v", "jobid": name, "attempts": list(attempts), "submitted_time": submitted,
    }  # fmt: skip


def test_philly_as_published(write):
    records = [
        published("two", "2017-10-07 01:00:00", attempt("2017-10-07 01:00:10", "2017-10-07 01:00:40", 8),
                  attempt("2017-10-07 02:00:00", "2017-10-07 02:01:00", 8, 8)),
        published("first", "2017-10-07 00:59:00", attempt("2017-10-07 00:59:30", "2017-10-07 00:59:31", 1)),
        published("none", "2017-10-07 01:00:00"),
        published("running", "2017-10-07 01:00:00", attempt("2017-10-07 01:00:10", None, 1)),
        published("lost", "None", attempt("2017-10-07 01:00:10", "2017-10-07 01:00:11", 1)),
        published("cpu", "2017-10-07 01:00:00", attempt("2017-10-07 01:00:10", "2017-10-07 01:00:11")),
        published("instant", "2017-10-07 01:00:00", attempt("2017-10-07 01:00:10", "2017-10-07 01:00:10", 1)),
    ]  # fmt: skip
    log = read_log("philly", write("cluster_job_log", json.dumps(records)))
    assert log.job == ("first", "two")
    assert log.submit_s.tolist() == [0, 60]
    assert log.duration_s.tolist() == [1, 90]  # over both attempts
    assert log.start_s.tolist() == [30, 70]
    assert log.gpus.tolist() == [1, 16]  # of the last
    assert log.dropped == {
        "without a submission time": 1,
        "without a complete attempt, or still running": 2,
        "without a GPU": 1,
        "without run time": 1,
    }


def test_philly_as_published_bad(write):
    path = write("log.json", '[{"jobid": "a"}]')
    assert fails("philly", path).startswith(
        f"{path}: field '[0]': got \"KeyError('vc')\", expected a job with jobid, vc"
    )
    path = write("log.json", "[1]")
    assert fails("philly", path).startswith(f"{path}: field '[0]': got ")
    path = write("log.json", '[\n{"jobid": ]')
    assert fails("philly", path) == f"{path}, line 2: got 'Expecting value', expected valid JSON"
    path = write(
        "log.json", json.dumps([published("a", "soon", attempt("2017-10-07 01:00:10", "2017-10-07 01:00:11", 1))])
    )
    assert "expected a moment (ISO 8601)" in fails("philly", path)
    back = attempt("2017-10-07 01:00:10", "2017-10-07 01:00:00", 1)
    path = write("log.json", json.dumps([published("a", "2017-10-07 01:00:00", back)]))
    assert fails("philly", path) == f"{path}: field '[0].attempts': got '-10 s', expected an end after the start"
    path = write("log.json", "[]")
    assert fails("philly", path) == f"{path}: got 'none', expected at least one GPU job"


ALIBABA = """job_id,submit_s,scheduled_s,deletion_s,num_gpu,gpu_milli,gpus,qos,pod_phase,censored
a0,0,10,110,1,460,0.46,LS,Succeeded,0
a1,5,,300,1,1000,1.0,LS,Failed,0
a2,20,20,,8,1000,8.0,BE,Running,1
a3,30,30,50,0,0,0.0,BE,Succeeded,0
a4,40,40,40,1,1000,1.0,BE,Succeeded,0
a5,50,60,260,2,1000,2.0,Burstable,Running,1
"""


def test_alibaba_tidied(write):
    log = read_log("alibaba", write("a.csv", ALIBABA))
    assert log.job == ("a0", "a2", "a5")
    assert log.gpus.tolist() == [1, 8, 2]  # a fraction counts as a whole GPU
    assert log.submit_s.tolist() == [0, 20, 50]
    assert log.start_s.tolist() == [10, 20, 60]
    assert log.duration_s.tolist() == [100, 280, 200]  # a2 until the last moment in the file, 300
    assert log.censored.tolist() == [False, True, True]
    assert log.tenant == ("LS", "BE", "Burstable")
    assert log.origin is None
    assert log.dropped == {"without a GPU": 1, "never scheduled": 1, "without run time": 1}


def test_alibaba_as_published(write):
    text = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "b0,1,1,1,220,,BE,Running,100,200,110\n"
        "b1,1,1,4,1000,V100M16|V100M32,LS,Pending,120,150,\n"
    )
    log = read_log("alibaba", write("openb.csv", text))
    assert log.job == ("b0",)
    assert log.duration_s.tolist() == [90]
    assert log.gpu_type == ("",)  # added to the list afterwards, so not read
    assert log.dropped == {"never scheduled": 1}
    assert not log.censored[0]


HELIOS = """job_id,user,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
7,ua,4,16,1,COMPLETED,2020-04-01 00:00:10,2020-04-01 00:01:10,2020-04-01 01:01:10,3600,60
6,ub,1,4,1,FAILED,2020-04-01 00:00:00,2020-04-01 00:00:00,2020-04-01 00:00:09,9,0
8,ub,0,4,1,COMPLETED,2020-04-01 00:00:20,2020-04-01 00:00:20,2020-04-01 00:00:29,9,0
9,ub,1,4,1,CANCELLED,2020-04-01 00:00:20,,2020-04-01 00:00:29,0,9
10,ub,1,4,1,CANCELLED,2020-04-01 00:00:20,None,2020-04-01 00:00:29,0,9
11,ub,1,4,1,CANCELLED,2020-04-01 00:00:20,2020-04-01 00:00:29,2020-04-01 00:00:29,0,9
"""


def test_helios(write):
    log = read_log("helios", write("cluster_log.csv", HELIOS))
    assert log.job == ("6", "7")
    assert log.tenant == ("ub", "ua")
    assert log.submit_s.tolist() == [0, 10]
    assert log.start_s.tolist() == [0, 70]
    assert log.duration_s.tolist() == [9, 3600]
    assert log.gpus.tolist() == [1, 4]
    assert log.cpus.tolist() == [4, 16]
    assert log.origin == datetime(2020, 4, 1, tzinfo=UTC)
    assert log.dropped == {"without a GPU": 1, "never started": 2, "without run time": 1}


def test_helios_virtual_clusters_are_the_tenants_where_they_are_named(write):
    text = "job_id,user,vc,gpu_num,submit_time,start_time,duration\n1,u,vcX,1,2020-04-01,2020-04-01,5\n"
    assert read_log("helios", write("c.csv", text)).tenant == ("vcX",)


@pytest.mark.parametrize(
    ("source", "text", "line"),
    [
        (
            "philly",
            PHILLY.replace("num_gpus", "gpus"),
            "field 'num_gpus': expected a column of this name; the file has",
        ),
        (
            "philly",
            PHILLY.replace(",100,8", ",-5,8"),
            "line 2: field 'duration_s': got '-5', expected a number of seconds",
        ),
        ("philly", PHILLY.replace(",100,8", ",nan,8"), "line 2: field 'duration_s': got 'nan', expected a number of"),
        (
            "philly",
            PHILLY.replace("p1,2017-10-02T00:01:00Z", "p1,x"),
            "line 2: field 'submit_time': got 'x', expected a",
        ),
        ("philly", PHILLY.replace("p1", "p0"), "field 'job': got 'p0', expected distinct job names"),
        ("philly", PHILLY.split("\n")[0], "got 'none', expected at least one row below the header"),
        (
            "alibaba",
            ALIBABA.replace("a0,0", "a0,-1"),
            "line 2: field 'submit_s': got '-1', expected a number of seconds",
        ),
        ("alibaba", ALIBABA.replace("110,1,", "110,x,"), "line 2: field 'num_gpu': got 'x', expected a whole number"),
        (
            "helios",
            HELIOS.replace("duration", "time"),
            "field 'duration': expected a column of this name; the file has",
        ),
        (
            "helios",
            HELIOS.replace("\n7,ua,4", "\n7,ua,1.5"),
            "line 2: field 'gpu_num': got '1.5', expected a whole number",
        ),
    ],
)
def test_bad_input(write, source, text, line):
    path = write("log.csv", text)
    told = fails(source, path)
    assert told.startswith(f"{path}{', ' if line.startswith('line') else ': '}{line}")
    assert "\n" not in told


def test_unknown_source_and_columns_where_they_are_fixed(write):
    with pytest.raises(InputError) as caught:
        read_log("borg", "x")
    assert str(caught.value) == f"field 'source': got 'borg', expected one of {', '.join(READERS)}"
    with pytest.raises(InputError, match=r"field 'columns': .* expected no columns, as the format fixes them"):
        read_log("philly", write("p.csv", PHILLY), {"job": "id"})


@pytest.mark.slow
@pytest.mark.data
def test_the_real_philly_table(traces):
    log = read_log("philly", traces / "philly_jobs.csv.gz")
    assert len(log) == 67_905
    assert log.censored.sum() == 72
    assert log.moment(log.span_s[1]) == "2017-11-18T23:52:12Z"
    assert np.bincount(log.gpus)[[1, 2, 4, 8, 16, 32]].tolist() == [63694, 1279, 1538, 1235, 114, 34]
    assert log.dropped == {}


@pytest.mark.slow
@pytest.mark.data
def test_philly_load_is_the_published_demand(traces):
    """The demand series beside the table was made from the same jobs: sums at whole minutes must agree."""
    from commonwatt.data.table import read_table

    log = read_log("philly", traces / "philly_jobs.csv.gz")
    series = read_table(traces / "philly_demand_1min.csv.gz")
    names = list(series.columns)
    times = series.moments(names[0])[::997] - log.origin.timestamp()
    held = [(log.gpus * ((log.submit_s <= t) & (t < log.submit_s + log.duration_s))).sum() for t in times]
    assert held == series.numbers("gpus")[::997].tolist()


@pytest.mark.data
def test_the_real_alibaba_table(traces):
    log = read_log("alibaba", traces / "alibaba_jobs.csv.gz")
    assert len(log) + sum(log.dropped.values()) == 5166
    assert log.dropped["without a GPU"] == 740
    assert (log.duration_s > 0).all()
    assert set(log.tenant) == {"LS", "BE", "Burstable", "Guaranteed"}
