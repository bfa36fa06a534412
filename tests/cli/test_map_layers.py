"""``commonwatt map layers`` and ``map batch`` as a user runs them, and batches in problem files."""

from __future__ import annotations

import sys
import warnings

import pytest

from commonwatt.data.layer_files import read_layers
from tests.cli.console import run, write
from tests.data.onnx_made import saved


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    helper = pytest.importorskip("onnx").helper
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="map")
    odd = helper.make_node("Strange", ["x"], ["z"], domain="mine")
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    return saved(path, [node, odd], {"x": ["batch", 4]}, {"y": None}, {"w": (4, 6)})


def test_a_model_file_becomes_a_list_of_jobs(model, tmp_path):
    out = tmp_path / "layers.csv"
    done = run("map", "layers", model, "--dim", "batch=3", "--ignore-unsupported", "--out", out, "--json")
    assert (done.code, done.err) == (0, f"written: {out}\n")
    answer = done.document
    assert (answer["macs"], answer["unsupported"], answer["approximated"]) == (72, {"mine::Strange": 1}, [])
    assert [(one["name"], one["kind"], one["k"], one["c"], one["y"]) for one in answer["layers"]] == [
        ("map", "gemm", 6, 4, 3)
    ]
    assert [layer.macs for layer in read_layers(out)] == [72]
    problem = write(tmp_path / "p.yaml", {"system_bandwidth_gbs": 1, "platform": "S2", "jobs": "layers.csv"})
    assert run("map", problem, "--budget", 50, "--json").document["makespan_cycles"] > 0
    assert run("map", "layers", out, "--json").document["macs"] == 72


def test_the_networks():
    rows = run("map", "layers", "--json").document["networks"]
    assert sum(row["in_table_3"] for row in rows) == 40
    assert run("map", "layers").code == 0
    answer = run("map", "layers", "ResNet50", "--json").document
    assert (len(answer["layers"]), answer["macs"]) == (54, 4_089_184_256)
    assert run("map", "layers", "gpt2", "--tokens", 1, "--json").document["layers"][0]["kind"] == "gemm"
    shown = run("map", "layers", "bert")
    assert "768 x 240; 20 rows; 12 groups" in shown.out
    assert "57 more" in shown.err


def test_a_batch(tmp_path):
    out = tmp_path / "batch.csv"
    done = run("map", "batch", "--class", "mix", "--jobs", 30, "--seed", 4, "--out", out, "--json")
    answer = done.document
    assert (answer["batch_class"], answer["seed"], len(answer["layers"])) == ("mix", 4, 30)
    assert sum(answer["models"].values()) == 30
    assert sum(layer.macs for layer in read_layers(out)) == answer["macs"]
    inline = write(
        tmp_path / "inline.yaml",
        {"system_bandwidth_gbs": 4, "platform": "S4", "jobs": {"class": "mix", "count": 30, "seed": 4}},
    )
    by_file = write(tmp_path / "file.yaml", {"system_bandwidth_gbs": 4, "platform": "S4", "jobs": "batch.csv"})
    tables = [run("map", "table", problem, "--json").document for problem in (inline, by_file)]
    assert tables[0]["latency_cycles"] == tables[1]["latency_cycles"]
    assert run("map", "batch", "--class", "random", "--jobs", 2).code == 0


def test_whole_networks_in_a_problem(tmp_path):
    problem = {"system_bandwidth_gbs": 4, "platform": "S4", "jobs": {"networks": ["resnet18", "gpt"], "tokens": 8}}
    answer = run("map", "table", write(tmp_path / "p.yaml", problem), "--json").document
    assert len(answer["jobs"]) == 21 + 72


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["MODEL"], ["m.onnx", "'shape'", "give a size to batch (x[0]), as in --dim batch=1"]),
        (["MODEL", "--dim", "batch=3"], ["m.onnx", "mine::Strange (1)", "--ignore-unsupported"]),
        (["MODEL", "--dim", "bach=3"], ["m.onnx", "'dim'", "'bach'", "one of batch"]),
        (["MODEL", "--dim", "batch=0"], ["'--dim'", "'batch=0'", "NAME=SIZE"]),
        (["MODEL", "--dim", "batch"], ["'--dim'", "'batch'", "NAME=SIZE"]),
        (["MODEL", "--tokens", "3"], ["'--tokens'", "a network of the paper"]),
        (["none.onnx"], ["none.onnx", "an existing file"]),
        (["none.csv"], ["none.csv", "an existing file"]),
        (["resnet5"], ["'MODEL'", "'resnet5'", "resnet50"]),
        (["resnet50", "--tokens", "3"], ["'--tokens'", "no number of tokens"]),
        (["resnet50", "--dim", "batch=3"], ["'--dim'", "a model file"]),
        (["resnet50", "--out", "none/layers.csv"], ["none/layers.csv", "a file that can be written"]),
        (["--tokens", "3"], ["'--tokens'", "a MODEL with it"]),
        (["bad.csv"], ["bad.csv, line 3", "'k'", "'0'", "a whole number, 1 or more"]),
        (["short.csv"], ["short.csv", "'r'", "a column of this name"]),
    ],
)
def test_bad_input(arguments, says, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.csv").write_text("kind,k,c\nfc,2,3\nfc,0,3\n")
    (tmp_path / "short.csv").write_text("kind,k,c,y,x\nconv,2,3,4,4\n")
    given = [request.getfixturevalue("model") if one == "MODEL" else one for one in arguments]
    done = run("map", "layers", *given)
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert [part for part in says if part not in done.err] == []
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.parametrize(
    ("jobs", "says"),
    [
        ({"class": "all"}, ["'jobs.class'", "'all'", "one of 'vision'"]),
        ({}, ["'jobs.class'", "a class or networks"]),
        ({"class": "mix", "networks": ["bert"]}, ["'jobs.class'", "not both"]),
        ({"class": "mix", "tokens": 3}, ["'jobs.tokens'", "networks as well"]),
        ({"class": "mix", "count": 0}, ["'jobs.count'", "'0'"]),
        ({"class": "mix", "cont": 5}, ["'jobs.cont'", "did you mean count?"]),
        ({"networks": []}, ["'jobs.networks'", "at least 1 entry"]),
        ({"networks": ["resnet5"]}, ["p.yaml", "'resnet5'", "resnet50"]),
        ("bad.csv", ["bad.csv, line 2", "'c'", "'nothing'"]),
    ],
)
def test_bad_batches_in_problems(jobs, says, tmp_path):
    (tmp_path / "bad.csv").write_text("kind,k,c\nfc,2,\n")
    problem = write(tmp_path / "p.yaml", {"system_bandwidth_gbs": 1, "platform": "S2", "jobs": jobs})
    done = run("map", problem)
    assert (done.code, done.out) == (2, "")
    assert [part for part in says if part not in done.err] == []


@pytest.mark.parametrize("arguments", [[], ["--class", "all"], ["--class", "mix", "--jobs", "0"]])
def test_bad_options_of_batch(arguments):
    assert run("map", "batch", *arguments).code == 2


@pytest.mark.parametrize(("package", "suffix"), [("onnx", ".onnx"), ("torch", ".pt2")])
def test_without_its_extra_one_line_says_what_to_install(package, suffix, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # importing it fails as if it were not there
    (tmp_path / f"m{suffix}").write_bytes(b"anything")
    done = run("map", "layers", tmp_path / f"m{suffix}")
    assert (done.code, done.out) == (2, "")
    assert done.err == f"error: {package} is not installed; run: pip install 'commonwatt[{package}]'\n"


@pytest.mark.long
def test_an_exported_program(tmp_path):
    torch = pytest.importorskip("torch")
    file, batch = tmp_path / "p.pt2", torch.export.Dim("batch", min=2, max=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.nn.Linear(4, 6)
        torch.export.save(torch.export.export(module, (torch.zeros(2, 4),), dynamic_shapes=({0: batch},)), file)
    refused = run("map", "layers", file)
    assert (refused.code, refused.out) == (2, "")
    assert "p.pt2: field 'shape'" in refused.err
    name = refused.err.rpartition("--dim ")[2].partition("=")[0]
    assert run("map", "layers", file, "--dim", f"{name}=5", "--json").document["macs"] == 5 * 24
