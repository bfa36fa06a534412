"""A file of another kind than the command wants, and the results of commands as files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commonwatt.data.files import load_yaml
from commonwatt.data.kinds import kind_of
from commonwatt.data.layer_files import read_layers
from commonwatt.data.map_problem import read_job_table
from commonwatt.model.errors import InputError
from commonwatt.model.map_file import MapFile, MappingFile
from commonwatt.model.place_file import PlaceFile
from commonwatt.model.scenario import Scenario
from commonwatt.model.timeslice_file import ModelProfile

EXAMPLES = Path(__file__).parents[2] / "examples"
RESULT = {"version": "0.1.0", "seed": 0, "input_digest": "0" * 64}


def refusal(path, model) -> str:
    with pytest.raises(InputError) as caught:
        load_yaml(path, model)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "model", "says"),
    [
        ("map.yaml", PlaceFile, "a placement problem; this is a mapping problem: use `commonwatt map`"),
        ("place.yaml", MapFile, "a mapping problem; this is a placement problem: use `commonwatt place`"),
        ("place.yaml", Scenario, "a scenario; this is a placement problem: use `commonwatt place`"),
        ("week.yaml", PlaceFile, "a placement problem; this is a scenario: use `commonwatt simulate`"),
        ("mig.yaml", Scenario, "a scenario; this is a MIG problem: use `commonwatt partition mig`"),
        ("partition.yaml", MapFile, "a mapping problem; this is a partitioning problem: use `commonwatt partition`"),
        ("edge.yaml", Scenario, "a scenario; this is a device that tenants share: use `commonwatt timeslice run`"),
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
