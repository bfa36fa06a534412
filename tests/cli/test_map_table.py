"""``commonwatt map table``, and problems of layers on a platform, as a user runs them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.console import run, write
from tests.cli.test_any_value import changed, places
from tests.cli.test_map import ODD

EXAMPLE = Path(__file__).parents[2] / "examples" / "map_layers.yaml"
HEADER = "job,accelerator,latency_cycles,bandwidth_gbs\n"
LAYERS = "model,layer,kind,k,c,y,x,r,s,stride,padding\n"


def problem(**more):
    return {
        "system_bandwidth_gbs": 10,
        "platform": [{"dataflow": "HB", "pe_rows": 32}, {"dataflow": "LB", "pe_rows": 32, "sg_kib": 110}],
        "jobs": [
            {"name": "a", "kind": "conv", "k": 8, "c": 8, "y": 14, "x": 14, "r": 3, "s": 3},
            {"name": "b", "kind": "fc", "k": 64, "c": 64, "repeat": 2},
        ],
    } | more


def with_table(name, text, folder):
    (folder / name).write_text(text, encoding="utf-8")
    return write(folder / "p.yaml", {"system_bandwidth_gbs": 10, "table": name})


def test_a_table_is_made_of_layers_and_a_platform(tmp_path):
    done = run("map", "table", write(tmp_path / "p.yaml", problem()), "--json")
    assert (done.code, done.err) == (0, "")
    answer = done.document
    assert answer["cost_model"] == "maestro"
    assert answer["jobs"] == ["a", "b#1", "b#2"]
    assert answer["accelerators"] == ["HB32", "LB32"]
    small = [2 * 2 + 1, 64 * 64 * 2 + 1]
    assert answer["latency_cycles"] == [[144 * 10 + 1, 64 * 4 * 10 + 1], small, small]
    assert answer["macs"] == [8 * 8 * 144 * 9, 4096, 4096]
    assert all(nj > 0 for row in answer["energy_nj"] for nj in row)
    assert {"version", "seed", "input_digest"} <= answer.keys()


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_what_is_written_is_a_table_again(tmp_path, suffix):
    file = write(tmp_path / "p.yaml", problem(cost_model="roofline"))
    out = tmp_path / f"t.{suffix}"
    first = run("map", "table", file, "--out", out, "--json").document
    again = run("map", "table", write(tmp_path / "q.yaml", {"system_bandwidth_gbs": 10, "table": out.name}), "--json")
    for key in ("latency_cycles", "bandwidth_gbs", "energy_nj"):
        assert again.document[key] == first[key]
    assert again.document["cost_model"] is None
    assert again.document["sg_bytes"] is None
    if suffix == "csv":
        assert again.document["jobs"] == first["jobs"]
    a, b = (run("map", path, "--json", "--budget", 100).document for path in (file, tmp_path / "q.yaml"))
    assert a["makespan_cycles"] == b["makespan_cycles"]


def test_the_cost_model_can_be_changed():
    answers = {
        name: run("map", "table", EXAMPLE, "--cost-model", name, "--json").document
        for name in ("maestro", "shi", "roofline")
    }
    assert answers["maestro"]["latency_cycles"] != answers["roofline"]["latency_cycles"]
    assert {name: answer["cost_model"] for name, answer in answers.items()} == {n: n for n in answers}
    told = run("map", "table", EXAMPLE)
    assert "cost model: roofline" in told.out
    assert "big0, big1" in " ".join(told.out.split())


def test_a_setting_of_the_paper_and_a_batch_from_a_file(tmp_path):
    (tmp_path / "batch.csv").write_text(f"{LAYERS}net,x,gemm,128,128,20,1,1,1,1,0\nnet,y,fc,64,64,,,,,,\n")
    file = write(tmp_path / "p.yaml", problem(platform="S2", jobs="batch.csv"))
    answer = run("map", "table", file, "--json").document
    assert answer["jobs"] == ["net/x", "net/y"]
    assert answer["accelerators"] == ["HB32#1", "HB32#2", "HB32#3", "LB32"]
    assert answer["latency_cycles"][0] == [321] * 3 + [32769]
    (tmp_path / "batch.csv").write_text("1,1,20,128,128,1,1,1,3\n1,1,64,64,1,1,1,1,0\n")
    assert run("map", "table", file, "--json").document["latency_cycles"] == answer["latency_cycles"]


def test_a_table_from_elsewhere(tmp_path):
    rows = "x,big,1000,2\nx,small,4000,0.5\ny,big,500,16\n"
    answer = run("map", "table", with_table("t.csv", HEADER + rows, tmp_path), "--json").document
    assert (answer["jobs"], answer["accelerators"]) == (["x", "y"], ["big", "small"])
    assert answer["latency_cycles"] == [[1000, 4000], [500, None]]
    assert answer["bandwidth_gbs"] == [[2, 0.5], [16, None]]
    moved = "job,accelerator,latency_cycles,bytes,energy_nj\n1,0,1000,2000,7\n0,0,10,0,8\n0,1,,,\n"
    answer = run("map", "table", with_table("t.csv", moved, tmp_path), "--json").document
    assert (answer["jobs"], answer["latency_cycles"]) == (["0", "1"], [[10, None], [1000, None]])
    assert answer["bandwidth_gbs"] == [[0, None], [2, None]]
    assert answer["energy_nj"] == [[8, None], [7, None]]


def test_jobs_are_known_by_the_names_of_their_layers(tmp_path):
    layers = [{"model": "net", "name": name, "kind": "fc", "k": 640, "c": 64} for name in ("first", "second")]
    file = problem(jobs=layers, after={"net/first": ["net/second"]})
    answer = run("map", write(tmp_path / "p.yaml", file), "--json").document
    first, second = answer["jobs"]
    assert first["start_cycles"] >= second["end_cycles"]
    late = run("map", write(tmp_path / "p.yaml", problem(jobs=layers, after="tenant")), "--json").document
    assert late["jobs"][1]["start_cycles"] >= late["jobs"][0]["end_cycles"]
    text = HEADER + "x,big,10,2\ny,big,5,16\n"
    with_table("t.csv", text, tmp_path)
    file = {"system_bandwidth_gbs": 10, "table": "t.csv", "after": {"x": ["y"]}}
    assert run("map", write(tmp_path / "p.yaml", file), "--json").document["jobs"][0]["start_cycles"] > 0


def test_names_stay_apart(tmp_path):
    layers = [{"name": name, "kind": "fc", "k": 8, "c": 8} for name in ("a", "a#1", "a", "b")]
    answer = run("map", "table", write(tmp_path / "p.yaml", problem(jobs=layers)), "--json").document
    assert answer["jobs"] == ["a#2", "a#1", "a#3", "b"]


def test_many_jobs_are_cut_off_on_the_terminal(tmp_path):
    done = run("map", "table", write(tmp_path / "p.yaml", problem(jobs=[{"kind": "fc", "k": 8, "c": 8, "repeat": 50}])))
    assert "and 30 more" in done.err


LAYER = {"kind": "conv", "k": 8, "c": 8, "y": 14, "x": 14, "r": 3, "s": 3}
PROBLEMS = [
    (problem(platform="S9"), "field 'platform': got 'S9', expected one of S1, S2"),
    (problem(platform=[]), "field 'platform': got '[]', expected at least 1 entry"),
    (problem(platform=[{"dataflow": "XY", "pe_rows": 4}]), "field 'platform.0.dataflow': got 'XY', expected one of"),
    (problem(platform=[{"dataflow": "HB"}]), "field 'platform.0.pe_rows': expected this field to be given"),
    (problem(platform=[{"dataflow": "HB", "pe_rows": 0}]), "field 'platform.0.pe_rows': got '0', expected a number, 1"),
    (problem(platform=[{"dataflow": "HB", "pe_rows": 4, "sg_kib": 0}]), "field 'platform.0.sg_kib': got '0'"),
    (problem(jobs=[]), "field 'jobs': got 'none', expected at least one layer"),
    (problem(jobs=[LAYER | {"c": 0}]), "field 'jobs.0.c': got '0', expected a number, 1 or more"),
    (problem(jobs=[{"kind": "conv", "k": 8}]), "field 'jobs.0.c': expected this field to be given"),
    (problem(jobs=[LAYER | {"name": "z", "r": 15}]), "field 'jobs.z.r': got '15', expected a filter no larger than"),
    (
        problem(jobs=[{"kind": "fc", "c": 8}]),
        "field 'jobs.0.k': expected this field to be given, as the layer is of kind fc",
    ),
    (problem(jobs=[{"kind": "gemm", "k": 8, "c": 8}]), "field 'jobs.0.y': expected this field to be given"),
    (problem(jobs=[{"kind": "depthwise", "c": 8, "y": 8, "x": 8}]), "field 'jobs.0.r': expected this field"),
    (problem(jobs=[LAYER | {"kind": "pool"}]), "field 'jobs.0.kind': got 'pool', expected one of"),
    (problem(jobs="nowhere.csv"), "nowhere.csv: expected an existing file"),
    (problem(cost_model="magic"), "field 'cost_model': got 'magic'"),
    (problem(cost_model=None), "field 'cost_model'"),
    ({"system_bandwidth_gbs": 1, "platform": "S2"}, "field 'jobs': expected this field to be given beside platform"),
    ({"system_bandwidth_gbs": 1, "jobs": "a.csv"}, "field 'platform': expected this field to be given beside jobs"),
    (
        problem(platform=[{"dataflow": "HB", "pe_rows": 4, "sg_kib": 0.01}], cost_model="roofline"),
        "field 'jobs.0 (a)': got '",
    ),
    ({"system_bandwidth_gbs": 1, "table": "nowhere.csv"}, "nowhere.csv: expected an existing file"),
]
TABLES = [
    (HEADER + "a,x,1,1\na,x,2,1\n", "line 3: field 'accelerator': got 'x', expected one row for job a there"),
    (HEADER + "a,x,nan,1\n", "line 2: field 'latency_cycles': got 'nan', expected a finite number"),
    (HEADER + "a,x,0,1\n", "line 2: field 'latency_cycles': got '0', expected a number above 0"),
    (HEADER + "a,x,5,\n", "line 2: field 'bandwidth_gbs': got 'nothing', expected a number, 0 or more"),
    (HEADER + "a,x,5,-1\n", "line 2: field 'bandwidth_gbs': got '-1', expected a number, 0 or more"),
    (HEADER + "a,x,,\n", "field 'table.latency_cycles.0': got 'none', expected a latency on at least one"),
    (HEADER + ",x,1,1\n", "line 2: field 'job': got 'nothing', expected a name or number"),
    (HEADER, "expected at least one row below the header"),
    ("job,accelerator,latency_cycles\na,x,1\n", "field 'bandwidth_gbs': expected a column of this name"),
    ("job,accelerator,latency_cycles,bytes,bandwidth_gbs\na,x,1,1,1\n", "field 'bytes': expected bandwidth_gbs or"),
    ('{"latency_cycles": [[1]]}', "field 'bandwidth_gbs': expected this field to be given"),
    ('{"latency_cycles": [[1, 2], [1]], "bandwidth_gbs": [[1, 1], [1]]}', "field 'table.latency_cycles.1'"),
    ("", "expected some content"),
]


@pytest.mark.parametrize(("wrong", "said"), PROBLEMS)
def test_a_wrong_problem_is_one_line(wrong, said, tmp_path):
    file = write(tmp_path / "p.yaml", wrong)
    for arguments in ((file,), ("table", file)):
        done = run("map", *arguments, "--json")
        assert (done.code, done.out) == (2, "")
        assert said in done.err
        assert done.err.count("\n") == 1


@pytest.mark.parametrize(("text", "said"), TABLES)
def test_a_wrong_table_is_one_line(text, said, tmp_path):
    done = run("map", "table", with_table("t.csv", text, tmp_path), "--json")
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{LAYERS}n,a,fc,0,5,,,,,,\n", "batch.csv, line 2: field 'k': got '0'"),
        (f"{LAYERS}n,a,conv,5,5,3,,1,1,,\n", "batch.csv, line 2: field 'x'"),
        ("1,1,20,128,0,1,1,1,3\n", "batch.csv, line 1: field 'd3': got '0'"),
        (LAYERS, "batch.csv: got 'none', expected at least one row"),
        ("", "batch.csv: got 'an empty file'"),
    ],
)
def test_a_wrong_batch_names_file_line_and_field(text, said, tmp_path):
    (tmp_path / "batch.csv").write_text(text)
    done = run("map", write(tmp_path / "p.yaml", problem(jobs="batch.csv")), "--json")
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_nothing_is_written_where_nothing_can_be(tmp_path):
    file = write(tmp_path / "p.yaml", problem())
    assert run("map", "table", file, "--out", tmp_path / "t.txt").code == 2
    assert run("map", "table", file, "--out", tmp_path / "no" / "t.csv").code == 2
    assert run("map", "table", file, "--cost-model", "magic").code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["p.yaml"]


def test_csv_has_a_row_for_each_pair(tmp_path):
    out = tmp_path / "t.csv"
    run("map", "table", write(tmp_path / "p.yaml", problem()), "--out", out)
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert len(rows) == 6
    assert list(rows[0]) == ["job", "accelerator", "latency_cycles", "bandwidth_gbs", "energy_nj"]


@pytest.mark.slow
@settings(max_examples=100)
@given(path=st.sampled_from(places(problem())), value=ODD)
def test_any_value_anywhere(path, value, tmp_path_factory):
    """It is used, or refused in one line; never a traceback, never NaN in an answer."""
    file = tmp_path_factory.mktemp("any") / "p.json"
    file.write_text(json.dumps(changed(problem(cost_model="roofline"), path, value)))
    done = run("map", "table", file, "--json")
    if done.code == 2:
        assert done.out == ""
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 1
    else:
        assert done.code == 0
        assert all(cycles > 0 for row in done.document["latency_cycles"] for cycles in row if cycles is not None)
