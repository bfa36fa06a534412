"""Logs that are not as one would wish: what is done with them, and how many jobs that concerns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.data.files import validate
from commonwatt.data.log import EARLY, window
from commonwatt.data.readers import read_log
from commonwatt.data.workload import make_workload
from commonwatt.model.errors import InputError
from commonwatt.model.scenario import Scenario
from commonwatt.simulation.log_places import host_names
from commonwatt.simulation.workload import prepare

CARRIED = "carried in from before the period: with the run time they had left"
CUT = "still running at the end of the log: they end there"
DLRM = """job_id,app_name,num_gpu,cpus,submit_s,scheduled_s,deletion_s,censored
a,app_0,1,12,,,900,0
b,app_0,1,12,,,,1
c,app_1,1,12,100,130,5000,0
d,app_1,1,12,4000,4000,,1
"""


def scenario(workload, **more):
    nodes = [{"name": "v", "gpu_type": "V100", "gpus": 8, "idle_w": 150, "gpu_w": 250}]
    return validate({"workload": {"profiles": "law"} | workload, "nodes": nodes, **more}, Scenario)


def made(folder, text, **workload):
    (folder / "log.csv").write_text(text)
    return make_workload(scenario({"source": "csv", "path": "log.csv"} | workload), folder, np.random.default_rng(0))


def test_instances_that_ran_before_the_trace_begins(tmp_path):
    (tmp_path / "dlrm.csv").write_text(DLRM)
    log = read_log("alibaba", tmp_path / "dlrm.csv")
    assert log.job == ("a", "b", "c", "d")
    assert log.tenant == ("app_0", "app_0", "app_1", "app_1")
    assert log.submit_s.tolist() == [0, 0, 100, 4000]
    assert log.start_s.tolist() == [0, 0, 130, 4000]
    assert log.duration_s.tolist() == [900, 5000, 4870, 1000]
    assert log.treatments() == {EARLY: 2, CUT: 2}
    later = window(log, "200", 1)
    assert later.treatments() == {EARLY: 2, CUT: 2, CARRIED: 3}
    assert later.duration_s.tolist() == [700, 4800, 4800, 1000]


def test_a_pod_of_2023_without_a_submission_is_refused(tmp_path):
    text = DLRM.replace("app_name", "qos")
    (tmp_path / "pods.csv").write_text(text)
    with pytest.raises(InputError, match=r"line 2: field 'submit_s': got 'nothing'"):
        read_log("alibaba", tmp_path / "pods.csv")


def test_jobs_of_a_table_that_ran_before_it_begins(tmp_path):
    text = "job,submit_s,start_s,end_s,gpus\na,,,150,1\nb,50,60,160,1\nc,70,,,1\nd,80,90,,2\n"
    found = made(tmp_path, text, due_dates={"rule": "time-limit"}, other_types=False, logged_gpu_type="T4")
    assert found.log.job == ("a", "b", "d")
    assert found.log.submit_s.tolist() == [0, 0, 30]
    assert found.log.duration_s.tolist() == [100, 100, 70]
    assert found.treatments == {
        "left out of the log: never started": 1,
        EARLY: 1,
        CUT: 1,
        "ran on a GPU type the cluster lacks: on any type": 3,
        "without a time limit: no due date": 3,
    }


def test_declared_types_under_fixed_types(tmp_path):
    """A job stays on its type in whatever spelling; only what the cluster lacks is counted, and runs on any."""
    (tmp_path / "log.csv").write_text("submit_s,duration_s,gpus,gpu_type\n0,10,1,nvidia x9\n1,10,1,V100\n2,10,1,T4\n")
    nodes = [
        {"name": kind, "gpu_type": kind, "gpus": 8, "idle_w": 100, "gpu_w": 100} for kind in ("X9", "V100", "X9-1g.5gb")
    ]
    workload = {"source": "csv", "path": "log.csv", "profiles": "law", "malleable": False, "other_types": False}
    types = {"X9": {"speed": 2.0, "relative_to": "V100"}}
    document = {"workload": workload, "nodes": nodes, "gpu_types": types}
    found = make_workload(validate(document, Scenario), Path(tmp_path), np.random.default_rng(0))
    table = found.table
    own = [{table.gpu_types[t] for t in table.config_type[table.configs(j)]} for j in range(3)]
    assert own[:2] == [{"X9"}, {"V100"}]
    assert own[2] == {"X9", "V100", "X9-1g.5gb"}
    assert found.treatments == {"ran on a GPU type the cluster lacks: on any type": 1}


def test_a_log_without_ends(tmp_path):
    with pytest.raises(
        InputError, match=r"log\.csv: field 'workload\.path': got 'no ends', expected a log with the end"
    ):
        made(tmp_path, "start_s,end_s,gpus\n0,,1\n50,,2\n60,,1\n")


def test_a_period_without_jobs(tmp_path):
    with pytest.raises(InputError, match=r"field 'workload\.days': got '2 days from 86400 s', expected a period of"):
        made(tmp_path, "submit_s,duration_s,gpus\n0,90000,1\n400000,5,2\n", begin="86400", days=2)


def test_nodes_without_power(tmp_path):
    (tmp_path / "log.csv").write_text("submit_s,duration_s,gpus\n0,10,1\n")
    workload = {"source": "csv", "path": "log.csv", "profiles": "law"}
    v, w = ({"name": name, "gpu_type": "V100", "gpus": 8} for name in "vw")
    with pytest.raises(InputError, match=r"field 'nodes\.v\.idle_w': expected this field to be given"):
        validate({"workload": workload, "nodes": [v]}, Scenario)
    zero = [v | {"idle_w": 150, "gpu_w": 250}, w | {"idle_w": 0, "gpu_w": 0, "count": 3}]
    prepared = prepare(validate({"workload": workload, "nodes": zero}, Scenario), Path(tmp_path), 0)
    assert prepared.treatments == {"nodes of no power (idle_w and gpu_w are 0): cost nothing": 3}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("gpu1", ("gpu1",)),
        ("gpu[01-03,7],login1", ("gpu01", "gpu02", "gpu03", "gpu7", "login1")),
        ("r[1-2]n[1-2]-ib", ("r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib")),
        ("gpu[3-1]", ()),
        ("gpu[a-b]", ()),
        ("gpu[1-999999999]", ()),
        ("gpu[098-101]", ("gpu098", "gpu099", "gpu100", "gpu101")),
    ],
)
def test_lists_of_hosts(text, names):
    assert host_names(text) == names


@given(st.text(alphabet="n0123456789[],-", max_size=20))
def test_any_list_of_hosts_is_read_or_names_none(text):
    assert all(host_names(text)) or not host_names(text)


def test_sacct_names_nodes(tmp_path):
    text = (
        "JobID|Submit|Start|Elapsed|State|AllocTRES|NodeList\n"
        "1|2026-01-01T00:00:00|2026-01-01T00:00:10|00:01:00|COMPLETED|gres/gpu=4|gpu[1-2]\n"
        "2|2026-01-01T00:00:01|2026-01-01T00:00:10|00:01:00|CANCELLED|gres/gpu=1|None assigned\n"
    )
    (tmp_path / "jobs.txt").write_text(text)
    assert read_log("slurm", tmp_path / "jobs.txt").nodes == ("gpu[1-2]", "")
    (tmp_path / "jobs.txt").write_text(
        text.replace("|NodeList", "").replace("|gpu[1-2]", "").replace("|None assigned", "")
    )
    assert read_log("slurm", tmp_path / "jobs.txt").nodes == ()
