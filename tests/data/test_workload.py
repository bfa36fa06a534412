from pathlib import Path

import numpy as np
import pytest

from commonwatt.data.files import load_yaml
from commonwatt.data.generators.andreas import armida_scenario
from commonwatt.data.workload import make_workload
from commonwatt.model.errors import InputError
from commonwatt.model.nodes import Cluster
from commonwatt.model.scenario import Scenario

NODES = "nodes: [{name: n, gpu_type: V100, gpus: 8, idle_w: 100, gpu_w: 200}]\n"
PLAIN = "submit_s,duration_s,gpus\n0,100,1\n86400,100,2\n"


@pytest.fixture
def make(write, no_traces):
    def build(text, seed=0):
        path = write("s.yaml", text)
        return make_workload(load_yaml(path, Scenario), path.parent, np.random.default_rng(seed))

    return build


def fails(make, text) -> str:
    with pytest.raises(InputError) as caught:
        make(text)
    line = str(caught.value)
    assert "\n" not in line
    return line


def job(**more):
    fields = {"name": "j", "submit_s": 5, "times_s": "{V100: [10]}"} | more
    inner = ", ".join(f"{k}: {v}" for k, v in fields.items())
    return f"{NODES}workload: {{source: jobs, jobs: [{{{inner}}}]}}\n"


def test_a_log(make, write):
    write("log.csv", PLAIN)
    made = make(NODES + "workload: {source: csv, path: log.csv, days: 1}")
    assert made.table.names == ("row-1",)
    assert made.nodes[0].name == "n"
    assert made.sentence == (
        "job log log.csv, 1 day from 0 s: 1 job submitted; scaling laws fitted to Gavel's, Sia's and Zeus' measurements"
    )


def test_columns_of_a_csv(make, write):
    write("log.csv", PLAIN.replace("gpus", "n"))
    assert len(make(NODES + "workload: {source: csv, path: log.csv, columns: {gpus: n}}").table) == 2


def test_a_week(make):
    made = make(NODES + "workload: {source: week, jobs_per_day: 20}", seed=1)
    assert len(made.table) > 20
    assert made.sentence.startswith("generated, similar to Philly: ")
    again = make(NODES + "workload: {source: week, jobs_per_day: 20}", seed=1)
    assert np.array_equal(made.table.config_time_s, again.table.config_time_s)
    assert np.array_equal(made.table.due_s, again.table.due_s)


def test_andreas_brings_its_nodes(make):
    made = make("workload: {source: andreas, nodes: 4, load: 0.5}")
    assert len(Cluster.of(made.nodes)) == 4
    assert made.sentence == "generator of ANDREAS section V-B, scenario 1: 40 jobs on 4 nodes, offered load 0.5"


def test_jobs_written_out(make):
    text = job(due_s=100, times_s="{v100: {1: 10, 2: 6}, T4: [20]}", gpu_w="{v100: 150}", requested_gpus=2,
               requested_gpu_type="v100", time_limit_s=30, tenant="t", tardiness_weight=0.5, epochs=3)  # fmt: skip
    table = make(text).table
    assert table.gpu_types == ("V100", "T4")  # as the cluster spells it; a known type it lacks may stand
    assert table.config_time_s.tolist() == [10, 6, 20]
    assert table.config_gpu_w[:2].tolist() == [150, 150]
    assert np.isnan(table.config_gpu_w[2])
    assert (table.due_s[0], table.time_limit_s[0], table.epochs[0]) == (100, 30, 3)
    assert (table.requested_gpus[0], table.requested_type[0]) == (2, 0)
    plain = make(job()).table
    assert (plain.due_s[0], plain.time_limit_s[0], plain.requested_type[0]) == (np.inf, np.inf, -1)


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"due_s": 4}, "field 'workload.jobs.j.due_s': got '4.0', expected a time not before submission (5 s)"),
        (
            {"times_s": "{V100: [0]}"},
            "field 'workload.jobs.j.times_s.V100[1 GPU]': got '0.0', expected a number of seconds",
        ),
        ({"times_s": "{V100: [-1]}"}, "field 'workload.jobs.j.times_s.V100[1 GPU]': got '-1.0', expected a number of"),
        (
            {"times_s": "{V100: {0: 1}}"},
            "field 'workload.jobs.j.times_s.V100': got '0', expected a GPU count of 1 or more",
        ),
        ({"times_s": "{}"}, "field 'workload.jobs.j.times_s': got '{}', expected a time for at least one GPU type"),
        (
            {"times_s": "{V10O: [1]}"},
            "field 'workload.jobs.j.times_s': got 'V10O', expected a GPU type of the cluster (V100)",
        ),
        (
            {"requested_gpu_type": "X9"},
            "field 'workload.jobs.j.requested_gpu_type': got 'X9', expected a GPU type of the",
        ),
        (
            {"requested_gpu_type": "T4"},
            "field 'workload.jobs.j.requested_gpu_type': got 'T4', expected a GPU type the job",
        ),
        (
            {"gpu_w": "{V100: -5}"},
            "field 'workload.jobs.j.gpu_w.V100': got '-5.0', expected a number of watts, 0 or more",
        ),
    ],
)
def test_bad_jobs(make, more, line):
    assert fails(make, job(**more)).startswith(line)


def test_duplicate_jobs(make):
    text = job().replace("jobs: [", "jobs: [{name: j, submit_s: 1, times_s: {V100: [1]}}, ")
    assert fails(make, text) == "field 'jobs.name': got 'j', expected distinct job names"
    text = job(after="{j: afterok}").replace("jobs: [", "jobs: [{name: j, submit_s: 1, times_s: {V100: [1]}}, ")
    assert fails(make, text) == "field 'jobs.name': got 'j', expected distinct job names"


def test_logs_that_are_not_there(make):
    assert fails(make, NODES + "workload: {source: slurm}") == (
        "field 'workload.path': got 'none', expected the path of a log"
    )
    assert fails(make, NODES + "workload: {source: philly}") == (
        "field 'workload.path': got 'none', expected the path of a log, or philly_jobs.csv.gz in the folder "
        "COMMONWATT_DATA names"
    )
    assert fails(make, NODES + "workload: {source: csv, path: no.csv}").endswith("no.csv: expected an existing file")


def test_a_period_outside_the_log(make, write):
    write("log.csv", PLAIN)
    line = fails(make, NODES + "workload: {source: csv, path: log.csv, begin: 1000000}")
    assert "field 'workload.begin': got '7 days from 1000000 s', expected a period of log.csv, whose" in line


def test_unknown_gpu_type_of_a_node(make, write):
    write("log.csv", PLAIN)
    text = NODES.replace("V100", "X9") + "workload: {source: csv, path: log.csv, logged_gpu_type: V100}"
    assert fails(make, text).startswith(
        "field 'nodes.gpu_type': got 'X9', expected a GPU type whose speed is known (K80"
    )


def test_measured_profiles_without_the_table(make, write):
    write("log.csv", PLAIN)
    line = fails(make, NODES + "workload: {source: csv, path: log.csv, profiles: measured}")
    assert line.startswith("field 'profiles': got 'measured', expected gavel_throughputs.csv in the folder")


def test_armida(no_traces):
    made = make_workload(armida_scenario(), Path(), np.random.default_rng(0))
    assert len(made.table) == 8
    assert made.sentence == "8 jobs listed in the scenario"


@pytest.mark.slow
@pytest.mark.data
def test_a_week_of_philly(traces):
    scenario = Scenario.model_validate(
        {
            "workload": {"source": "philly", "begin": "2017-10-16", "profiles": "measured"},
            "nodes": [{"name": "n", "count": 50, "gpu_type": "V100", "gpus": 8, "idle_w": 100, "gpu_w": 200}],
        }
    )
    made = make_workload(scenario, Path(), np.random.default_rng(0))
    assert len(made.table) == 14_247
    assert "14185 jobs submitted and 62 carried in from before; speeds measured by Gavel" in made.sentence
    assert (made.table.config_time_s > 0).all()
    asked = [
        (made.table.config_gpus[made.table.configs(j)] == made.table.requested_gpus[j]).any() for j in range(14_247)
    ]
    assert all(asked)
