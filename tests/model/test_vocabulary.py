"""Nodes, jobs, errors and the data dictionary."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.model.errors import CommonwattError, InputError, JobNeverFitsError, MissingExtraError
from commonwatt.model.jobs import Job, JobArrays, read_times
from commonwatt.model.nodes import Cluster, NodeSpec
from commonwatt.model.schemas import SCHEMAS, dictionary


def spec(name="n", **more):
    return NodeSpec(**{"name": name, "gpu_type": "V100", "gpus": 8, "idle_w": 100, "gpu_w": 200, **more})


def test_counts_expand_with_leading_zeros():
    cluster = Cluster.of([spec(count=10), spec("x", gpus=4)])
    assert cluster.names[0] == "n-01"
    assert cluster.names[-2:] == ("n-10", "x")
    assert cluster.total_gpus == 84
    assert cluster.class_sizes().tolist() == [10, 1]


def test_alike_nodes_are_one_class_however_they_are_written():
    assert len(Cluster.of([spec("a"), spec("b"), spec("c", idle_w=99)]).classes) == 2


def test_duplicate_and_missing_nodes_are_refused():
    with pytest.raises(InputError, match=r"field 'nodes.name': got 'a', expected distinct node names"):
        Cluster.of([spec("a"), spec("a")])
    with pytest.raises(InputError, match="at least one node"):
        Cluster.of([])


@pytest.mark.parametrize(
    ("gpus", "shapes"),
    [
        (1, [(0, 1, 1), (1, 1, 1)]),
        (4, [(0, 1, 4), (1, 1, 4)]),
        (8, [(0, 1, 8), (1, 2, 4)]),
        (12, [(0, 2, 6), (1, 3, 4)]),
        (16, [(0, 2, 8)]),
        (24, [(0, 3, 8)]),
        (32, []),
        (7, [(0, 1, 7)]),
        (11, []),
    ],
)
def test_shapes_of_gangs(gpus, shapes):
    """One node, or the fewest nodes alike with equally many GPUs; there are three of each class here."""
    cluster = Cluster.of([spec("a", count=3), spec("b", count=3, gpus=4)])
    assert cluster.shapes("V100", gpus) == shapes


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 9)), min_size=1, max_size=4), st.integers(0, 120))
def test_shapes_are_those_found_by_trying_every_number_of_nodes(classes, gpus):
    cluster = Cluster.of([spec(f"n{i}", gpus=size, count=count) for i, (size, count) in enumerate(classes)])
    expected = []
    for index, kind in enumerate(cluster.classes):
        nodes = next((k for k in range(1, gpus + 1) if gpus % k == 0 and gpus // k <= kind.gpus), 0)
        if 0 < nodes <= cluster.class_sizes()[index]:
            expected.append((index, nodes, gpus // nodes))
    assert cluster.shapes("V100", gpus) == expected


def test_shapes_of_a_count_no_cluster_has_are_not_looked_for():
    class Tried(int):
        times = 0

        def __mod__(self, other):
            Tried.times += 1
            return int(self) % other

    cluster = Cluster.of([spec("a", count=300)])
    assert cluster.shapes("V100", Tried(100_003)) == []
    assert Tried.times == 0
    assert cluster.shapes("V100", Tried(2_399)) == []
    assert Tried.times == 1  # 300 nodes, which is the fewest and the most


def test_power_states_by_name():
    kind = Cluster.of([spec()]).classes[0]
    assert kind.state("off").power_w == 0
    with pytest.raises(InputError, match=r"unused_nodes.state.*got 'nap', expected a power state of its nodes \(off\)"):
        kind.state("nap")


def test_times_as_lists_and_maps():
    assert read_times({"V100": [10, None, 5]}, "j") == {"V100": {1: 10.0, 3: 5.0}}
    assert read_times({"V100": {16: 7}}, "j") == {"V100": {16: 7.0}}


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ({"V100": [10, -1]}, r"j.times_s.V100\[2 GPUs\]': got '-1', expected a number of seconds above 0"),
        ({"V100": [math.nan]}, "got 'nan'"),
        ({"V100": [math.inf]}, "got 'inf'"),
        ({"V100": {0: 10}}, "a GPU count of 1 or more"),
        ({"V100": [None]}, "a time for at least one GPU type"),
        ({}, "a time for at least one GPU type"),
    ],
)
def test_bad_times(times, message):
    with pytest.raises(InputError, match=message):
        read_times(times, "j")


def job(name="a", **more):
    return Job(**{
        "name": name, "tenant": "t", "submit_s": 5.0, "due_s": 10.0, "tardiness_weight": 1.0,
        "times_s": {"V100": {1: 3.0}}, **more
    })  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"due_s": 4.0}, r"a.due_s': got '4.0', expected a time not before submission \(5 s\)"),
        ({"submit_s": -1.0}, "a.submit_s"),
        ({"submit_s": math.nan}, "a.submit_s"),
        ({"tardiness_weight": -1.0}, "a.tardiness_weight"),
        ({"epochs": 0}, "a.epochs"),
    ],
)
def test_bad_jobs(wrong, message):
    with pytest.raises(InputError, match=message):
        job(**wrong)


def test_table_holds_what_the_jobs_hold():
    table = JobArrays.of([job(), job("b", tenant="u", times_s={"T4": {2: 9.0}, "V100": {1: 4.0}}, gpu_w={"T4": 50.0})])
    assert table.names == ("a", "b")
    assert table.tenants == ("t", "u")
    assert table.gpu_types == ("V100", "T4")
    assert table.start.tolist() == [0, 1, 3]
    assert table.config_time_s[table.configs(1)].tolist() == [9.0, 4.0]
    assert table.config_gpu_w[1] == 50
    assert math.isnan(table.config_gpu_w[0])
    with pytest.raises(InputError, match="distinct job names"):
        JobArrays.of([job(), job()])


def test_error_tree():
    assert issubclass(InputError, CommonwattError)
    assert issubclass(InputError, ValueError)
    assert issubclass(JobNeverFitsError, InputError)
    assert issubclass(MissingExtraError, ImportError)
    assert "pip install 'commonwatt[slurm]'" in str(MissingExtraError("pyslurm", "slurm"))


def test_an_input_error_is_one_line_and_names_all_it_knows():
    error = InputError("a whole number", file="jobs.csv", field="gpus", value="x\ny")
    assert str(error) == "jobs.csv: field 'gpus': got 'x\\ny', expected a whole number"
    assert str(InputError("a file").within("a.yaml")) == "a.yaml: expected a file"
    assert error.within("other.csv") is error
    assert len(str(InputError("less", value="z" * 500))) < 120


def test_every_field_of_every_file_has_a_meaning_and_a_unit():
    rows = list(dictionary())
    assert len(rows) > 80
    for row in rows:
        assert row.meaning, row
        assert row.unit, row
    assert len({(row.model, row.name) for row in rows}) == len(rows)


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_schemas_export_units(name):
    schema = SCHEMAS[name].model_json_schema()
    assert schema["properties"]
    assert "unit" in str(schema)


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 8), st.integers(1, 6))
def test_so_many_gpus_on_each_node_take_as_many_nodes_as_there_must_be(gpus, each, size, nodes):
    cluster = Cluster.of([NodeSpec(name="n", count=nodes, gpu_type="V100", gpus=size, idle_w=1, gpu_w=1)])
    fits = gpus % each == 0 and each <= size and gpus // each <= nodes
    assert cluster.shapes("V100", gpus, width=-each) == ([(0, gpus // each, each)] if fits else [])
