"""A file of another kind than the command wants, and the results of commands as files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commonwatt.data.catalog import guess_format
from commonwatt.data.file_kinds import kind_of
from commonwatt.data.files import load_yaml
from commonwatt.data.forecast_model import read_model
from commonwatt.data.inventory import read_inventory
from commonwatt.data.layer_files import read_layers
from commonwatt.data.map_problem import read_job_table
from commonwatt.data.mig_parted import read_present
from commonwatt.model.errors import InputError
from commonwatt.model.map_file import MapFile, MappingFile
from commonwatt.model.map_results import MapSchedule
from commonwatt.model.place_file import PlaceFile
from commonwatt.model.scenario import Scenario
from commonwatt.model.timeslice_file import ModelProfile
from commonwatt.planning.series import job_log

EXAMPLES = Path(__file__).parents[2] / "examples"
RESULT = {"version": "0.1.0", "seed": 0, "input_digest": "0" * 64}


def refusal(path, model) -> str:
    with pytest.raises(InputError) as caught:
        load_yaml(path, model)
    return str(caught.value)


SHARED_DEVICE = "this is a device that tenants share: use `commonwatt timeslice run` or `commonwatt timeslice serve`"


@pytest.mark.parametrize(
    ("name", "model", "says"),
    [
        ("map.yaml", PlaceFile, "a placement problem; this is a mapping problem: use `commonwatt map`"),
        ("place.yaml", MapFile, "a mapping problem; this is a placement problem: use `commonwatt place`"),
        ("place.yaml", Scenario, "a scenario; this is a placement problem: use `commonwatt place`"),
        ("week.yaml", PlaceFile, "a placement problem; this is a scenario: use `commonwatt simulate`"),
        ("mig.yaml", Scenario, "a scenario; this is a MIG problem: use `commonwatt partition mig`"),
        ("partition.yaml", MapFile, "a mapping problem; this is a partitioning problem: use `commonwatt partition`"),
        (
            "edge.yaml",
            Scenario,
            f"a scenario; {SHARED_DEVICE}",
        ),
        ("quantum.yaml", Scenario, "a scenario; this is a quantum to divide: use `commonwatt timeslice plan`"),
    ],
)
def test_a_file_of_another_kind_is_sent_to_its_command(name, model, says):
    path = EXAMPLES / name
    assert refusal(path, model) == f"{path}: expected {says}"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_is_of_one_kind(path):
    import yaml

    kind = kind_of(yaml.safe_load(path.read_text()))
    assert kind is not None
    assert kind.command.startswith("commonwatt ")


DEMAND = "time,gpus\n2024-01-01T00:00:00Z,3\n2024-01-01T00:01:00Z,4\n"
LAYERS = "layer,kind,k,c\na,fc,10,20\n"
PRICES = "from_s;price_per_kwh\n0;0.2\n"
TABLE = {"latency_cycles": [[1.0]], "bandwidth_gbs": [[1.0]]}
NAMED = TABLE | {"cost_model": None, "jobs": ["a"], "accelerators": ["x"], "energy_nj": None, "macs": None,
                 "sg_bytes": None, "pe_rows": None, "pe_cols": None}  # fmt: skip
IS_DEMAND = "this is a demand series: use `commonwatt forecast plan`"
IN_JOBS = "this is a list of layers: name it as `jobs` of a mapping problem"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (DEMAND, IS_DEMAND),
        (LAYERS, IN_JOBS),
        (PRICES, "this is prices over time: name it as `series_file` of a scenario's `electricity`"),
        (json.dumps(TABLE), "this is a job table: name it as `table` of a mapping problem"),
        (
            json.dumps(RESULT | NAMED),
            "this is the result of `commonwatt map table`: name it as `table` of a mapping problem",
        ),
    ],
)
def test_a_table_where_a_problem_is_wanted_is_told_with_what_reads_it(text, says, write):
    path = write("x.csv", text)
    assert refusal(path, MapFile) == f"{path}: expected a mapping problem; {says}"
    assert refusal(path, Scenario) == f"{path}: expected a scenario; {says}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (DEMAND, IS_DEMAND),
        (LAYERS, IN_JOBS),
        ((EXAMPLES / "place.yaml").read_text(), "this is a placement problem: use `commonwatt place`"),
    ],
)
def test_what_is_no_log_is_told_with_what_reads_it(text, says, write):
    path = write("x", text)
    with pytest.raises(InputError) as caught:
        guess_format(path)
    assert str(caught.value) == f"{path}: expected a job log; {says}"
    with pytest.raises(InputError) as caught:
        read_inventory(text, lambda names: [names], file=path)
    assert str(caught.value).startswith(f"{path}: expected what `scontrol show node`, ")
    assert str(caught.value).endswith(f"; {says}")


def test_a_job_log_is_no_list_of_nodes(write):
    with pytest.raises(InputError, match=r"; this is a job log \(slurm\): use `commonwatt data check`, or `commonwatt"):
        read_inventory("JobID|State|AllocTRES\n1|COMPLETED|gres/gpu=1\n", lambda names: [names], file="x")


def test_what_is_no_series_is_told_and_a_series_is_read(write):
    assert job_log(write("demand.csv", DEMAND), None) is None
    with pytest.raises(InputError, match=f"expected a demand series or a job log; {IN_JOBS}$"):
        job_log(write("layers.csv", LAYERS), None)
    with pytest.raises(InputError, match=r"expected a demand series or a job log; this is a scenario"):
        job_log(EXAMPLES / "week.yaml", None)


def test_a_file_of_text_is_no_model(write):
    pytest.importorskip("safetensors")
    wanted = "expected a model file, as `commonwatt forecast fit` writes it"
    with pytest.raises(InputError, match=f"{wanted}; {IS_DEMAND}$"):
        read_model(write("demand.csv", DEMAND))
    with pytest.raises(InputError, match=f"got 'a file of text', {wanted}$"):
        read_model(write("x.txt", "some words\n"))


def test_what_is_no_layout_is_told(write):
    with pytest.raises(InputError, match=r"a file of mig-parted, or a result of .*; this is a placement problem: use"):
        read_present(EXAMPLES / "place.yaml")
    with pytest.raises(InputError, match=f"; {IS_DEMAND}$"):
        read_present(write("demand.csv", DEMAND))
    with pytest.raises(InputError, match=r"field 'version': got 'v2', expected v1"):
        read_present(write("parted.yaml", "version: v2\nmig-configs: {}\n"))


def test_the_result_of_map_is_no_schedule(write):
    said = refusal(EXAMPLES / "place.yaml", MapSchedule)
    assert "expected a schedule, as `commonwatt map --schedule` writes it; this is a placement problem" in said


def test_a_mistake_in_a_file_of_the_right_kind_is_still_told(write):
    path = write("p.yaml", "nodes: []\njobs: []\n")
    assert refusal(path, PlaceFile) == f"{path}: field 'nodes': got '[]', expected at least 1 entry"
    assert "did you mean" not in refusal(write("q.yaml", "zebra: 1\n"), PlaceFile)


def test_a_log_is_sent_to_data_check(write):
    path = write("jobs.csv", "submit_s,duration_s,gpus\n0,60,1\n")
    assert f"a log or table of format csv: use `commonwatt data check {path}`" in refusal(path, Scenario)


def test_a_result_where_a_problem_is_wanted(write):
    mapping = {"solver": "fifo", "objective": 1.0, "tardiness_cost": 1.0, "postponement_cost": 0.0,
               "first_ending_cost": 0.0, "assignments": [], "postponed": [], "decisions": [], "iterations": 1,
               "solve_s": 0.1, "optimal": None, "bound": None}  # fmt: skip
    path = write("r.json", json.dumps(RESULT | mapping))
    assert refusal(path, MapFile) == f"{path}: expected a mapping problem; this is the result of `commonwatt place`"


def test_the_mapping_in_a_result_is_read_and_what_else_is_there_is_not(write):
    own = {"accelerator": [0, 1], "priority": [0.5, 0.25]}
    for extra in ({}, {"makespan_cycles": 3.0, "jobs": [{"job": 0}]}):
        assert load_yaml(write("m.json", json.dumps(RESULT | own | extra)), MappingFile).accelerator == (0, 1)
    with_typo = write("t.json", json.dumps(own | {"makespan": 3}))
    assert "'makespan': expected one of the fields accelerator, priority" in refusal(with_typo, MappingFile)


def test_the_profile_in_a_result_is_read(write):
    profile = {
        "model": "resnet",
        "device": "cpu",
        "points": [{"time_s": 0.1, "power_w": 5.0, "power_source": "modelled"}],
    }
    path = write("p.json", json.dumps(RESULT | {"profile": profile, "written": None, "wall_s": 1.0}))
    assert load_yaml(path, ModelProfile) == ModelProfile.model_validate(profile)


def test_the_table_of_a_result_keeps_its_names(write):
    table = {"latency_cycles": [[1.0, None], [2.0, 3.0]], "bandwidth_gbs": [[1.0, None], [0.0, 3.0]], "energy_nj": None}
    named = {"cost_model": "maestro", "jobs": ["a", "b"], "accelerators": ["hb", "lb"], "macs": [1, 2]}
    found = read_job_table(write("t.json", json.dumps(RESULT | table | named)))
    assert (found.jobs, found.accelerators) == (("a", "b"), ("hb", "lb"))
    assert found.table.latency_cycles == ((1.0, None), (2.0, 3.0))
    plain = read_job_table(write("plain.json", json.dumps(table)))
    assert (plain.table, plain.jobs) == (found.table, ("0", "1"))


def test_layers_of_a_result(write):
    layer = {"name": "conv1", "model": "resnet50", "kind": "conv", "k": 64, "c": 3, "y": 224, "x": 224, "r": 7, "s": 7,
             "stride": 2, "padding": 3, "groups": 1, "batch": 1, "task": "vision", "macs": 118013952}  # fmt: skip
    (read,) = read_layers(write("l.json", json.dumps(RESULT | {"layers": [layer]}, indent=2)))
    assert (read.model, read.kind, read.k, read.stride, read.task, read.macs) == (
        "resnet50", "conv", 64, 2, "vision", 118013952,
    )  # fmt: skip
    for bad in ({"layers": []}, {"rows": [layer]}, {"layers": [layer | {"k": "many"}]}):
        with pytest.raises(InputError, match=r"l\.json"):
            read_layers(write("l.json", json.dumps(RESULT | bad)))
