"""``commonwatt timeslice`` as a user runs it."""

from __future__ import annotations

import json
import pickle
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from commonwatt.model.timeslice_file import TimesliceConfig
from tests.cli.console import SCRIPT, run, spawn, write

EXAMPLES = Path(__file__).parents[2] / "examples"


def problem(**more):
    tenants = [{"name": "A", "power_w": 2}, {"name": "B", "power_w": 3}, {"name": "C", "power_w": 8, "demand": 12}]
    return {"quantum": 30, "unit_s": 1.0, "phi": 0.7, "tenants": tenants} | more


def edge(**more):
    tenants = [
        {"name": name, "clock_mhz": clock, "models": [{"name": "m", "profile": "tx2-resnet50"}]}
        for name, clock in (("A", 1300), ("B", 114))
    ]
    return {"device": {"kind": "simulated"}, "duration_s": 5, "tenants": tenants} | more


@pytest.mark.slow
def test_plan_answers_with_the_keys_of_the_contract(tmp_path):
    done = run("timeslice", "plan", write(tmp_path / "p.yaml", problem()), "--json")
    assert done.code == 0
    assert all(line.startswith("compil") for line in done.err.splitlines())
    answer = done.document
    assert [t["time"] for t in answer["tenants"]] == [14, 9, 7]
    assert [t["energy_j"] for t in answer["tenants"]] == [28, 27, 56]
    assert [t["reason"] for t in answer["tenants"]] == ["evened-out", "evened-out", "guarantee-only"]
    assert (answer["policy"], answer["phi"], answer["quantum"], answer["unused"]) == ("etf", 0.7, 30, 0)
    assert answer["phi_fair"] == pytest.approx(3 / (8 * (1 / 2 + 1 / 3 + 1 / 8)))
    fair = (answer["time_fairness"], answer["energy_fairness"], answer["system_fairness"])
    assert fair == (0.5, pytest.approx(27 / 56), pytest.approx(27 / 56))
    assert {"version", "seed", "input_digest", "enforcement"} <= answer.keys()


@pytest.mark.parametrize(
    ("options", "times"),
    [
        (["--policy", "tf"], [10, 10, 10]),
        (["--policy", "ef"], [16, 10, 4]),
        (["--phi", "0"], [16, 10, 4]),
        (["--policy", "etf-energy", "--phi", "1"], [15, 10, 5]),
    ],
)
def test_policies(options, times, tmp_path):
    done = run("timeslice", "plan", write(tmp_path / "p.yaml", problem()), "--json", *options)
    assert [t["time"] for t in done.document["tenants"]] == times


def test_demand_of_zero_gets_nothing_and_what_nobody_wants_is_unused(tmp_path):
    tenants = [{"name": "A", "power_w": 2, "demand": 0}, {"name": "B", "power_w": 3, "demand": 4}]
    done = run("timeslice", "plan", write(tmp_path / "p.yaml", problem(tenants=tenants)), "--json")
    assert [(t["time"], t["reason"]) for t in done.document["tenants"]] == [(0, "no-demand"), (4, "demand-met")]
    assert (done.document["unused"], done.document["system_fairness"]) == (26, None)
    told = run("timeslice", "plan", write(tmp_path / "p.yaml", problem(tenants=tenants)))
    assert "It has no demand" in " ".join(told.out.replace("│", " ").split())
    assert "26 units not used" in told.err


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"phi": 1.2}, "field 'phi': got '1.2', expected a number, 1 or less"),
        ({"phi": -0.1}, "field 'phi'"),
        ({"quantum": 0}, "field 'quantum'"),
        ({"quantum": 1.5}, "field 'quantum'"),
        ({"tenants": []}, "field 'tenants': got '[]', expected at least 1 entry"),
        ({"tenants": [{"name": "A", "power_w": 0}]}, "field 'tenants.A.power_w': got '0', expected a number above 0"),
        ({"tenants": [{"name": "A", "power_w": -3}]}, "tenants.A.power_w"),
        ({"tenants": [{"name": "A", "power_w": 1, "weight": 0}]}, "tenants.A.weight"),
        ({"tenants": [{"name": "A", "power_w": 1, "demand": -1}]}, "tenants.A.demand"),
        ({"tenants": [{"name": "A", "power_w": 1}, {"name": "A", "power_w": 1}]}, "expected each name once"),
        ({"tenants": [{"name": "A", "power": 1}]}, "power"),
    ],
)
def test_a_wrong_problem_is_one_line(wrong, said, tmp_path):
    file = write(tmp_path / "p.yaml", problem(**wrong))
    done = run("timeslice", "plan", file)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert str(file) in done.err
    assert done.err.count("\n") == 1


def test_phi_on_the_command_line_is_checked_too(tmp_path):
    done = run("timeslice", "plan", write(tmp_path / "p.yaml", problem()), "--phi", "7")
    assert (done.code, "0<=x<=1" in done.err) == (2, True)


@pytest.mark.long
def test_pictures(tmp_path):
    for what, example in (("plan", "quantum.yaml"), ("run", "edge.yaml")):
        picture = tmp_path / f"{what}.svg"
        done = run("timeslice", what, EXAMPLES / example, "--plot", picture, "--json")
        assert done.code == 0
        assert done.err.endswith(f"written: {picture}\n")  # the first on a machine says that it compiles
        assert picture.read_text().lstrip().startswith("<?xml")
        assert run("timeslice", what, EXAMPLES / example, "--plot", tmp_path / "x.txt").code == 2


@pytest.mark.long
def test_a_run_of_the_example_is_fig_9():
    done = run("timeslice", "run", EXAMPLES / "edge.yaml", "--json")
    a1, a2, a3 = done.document["tenants"]
    assert a1["time_share"] == pytest.approx(a1["planned_time_share"], abs=0.01)
    assert a3["power_w"] == 1.717
    assert done.document["idle"]["time_s"] == pytest.approx(0, abs=1e-6)
    assert done.document["meter_j"] == pytest.approx(sum(t["energy_j"] for t in (a1, a2, a3)))


def test_the_same_seed_gives_the_same_run(tmp_path):
    file = write(tmp_path / "r.yaml", edge())
    one, two = (run("timeslice", "run", file, "--json", "--seed", "3").out for _ in range(2))
    assert one == two


def test_a_run_tells_who_got_what(tmp_path):
    done = run("timeslice", "run", write(tmp_path / "r.yaml", edge()), "--policy", "tf", "--duration", "20")
    assert done.code == 0
    assert re.search(r"tf, phi 0.7, 20[.\d]* s on simulated", done.out)
    assert "energy is profile-measured; shares are kept by: simulated" in done.err


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"device": {"kind": "abacus"}}, "device.kind"),
        ({"tenants": [{"name": "A", "models": [{"name": "m", "profile": "tx2-vgg"}]}]}, "tenants.A.models.m.profile"),
        ({"tenants": [{"name": "A", "models": [{"name": "m"}]}]}, "models.m.profile': got 'none', expected a profile"),
        ({"device": {"kind": "cpu"}}, "expected a file name that ends in .onnx or .pt2"),
        ({"duration_s": 0}, "duration_s"),
        ({"phi": 3}, "field 'phi'"),
        (
            {"tenants": [{"name": "A", "clock_mhz": 5, "models": [{"name": "m", "profile": "tx2-resnet50"}]}]},
            "clock_mhz': got '5.0', expected a clock in the profile of resnet50 (114.75",
        ),
    ],
)
def test_a_wrong_configuration_is_one_line(wrong, said, tmp_path):
    file = write(tmp_path / "r.yaml", edge(**wrong))
    done = run("timeslice", "run", file)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert str(file) in done.err


def test_a_key_that_is_wrong_is_not_repeated(tmp_path):
    document = edge()
    document["tenants"][0]["key"] = "tiny"
    done = run("timeslice", "run", write(tmp_path / "r.yaml", document))
    assert done.code == 2
    assert "tiny" not in done.err


# ---- with real models


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from commonwatt.devices.tiny_models import write_tiny_models

    folder = tmp_path_factory.mktemp("models")
    write_tiny_models(folder, 0)
    return folder


def served(**more):
    tenants = [
        {"name": "a", "key": "a-secret-key", "power_w": 30, "models": [{"name": "resnet", "path": "resnet.onnx"}]},
        {"name": "b", "key": "b-secret-key", "power_w": 10, "models": [{"name": "text", "path": "transformer.onnx"}]},
    ]
    return {"device": {"kind": "cpu"}, "duration_s": 2, "quantum_s": 0.02, "tenants": tenants} | more


@pytest.mark.long
def test_a_run_on_the_cpu_keeps_the_plan(models):
    done = run("timeslice", "run", write(models / "r.yaml", served()), "--json")
    for tenant in done.document["tenants"]:
        assert tenant["time_share"] == pytest.approx(tenant["planned_time_share"], abs=0.05)
        assert (tenant["requests"] > 20, tenant["power_source"]) == (True, "stated")
    assert done.document["meter_j"] is None
    assert 0 < done.document["scheduling_share"] < 1
    assert done.document["enforcement"] == "cooperative at segment boundaries"


@pytest.mark.slow
def test_profiling_a_model_and_using_the_profile(models):
    file = models / "resnet.profile.json"
    done = run(
        "timeslice", "profile", models / "resnet.onnx", "--seconds", "0.5", "--variation", "1", "--out", file, "--json"
    )  # fmt: skip
    assert done.code == 0
    written = json.loads(file.read_text())
    assert written == done.document["profile"]
    (point,) = written["points"]
    assert (point["power_source"], point["clock_mhz"]) == ("modelled", None)
    config = served()
    config["tenants"] = [{"name": "a", "models": [{"name": "m", "path": "resnet.onnx", "profile": file.name}]}]
    used = run("timeslice", "run", write(models / "r.yaml", config), "--duration", "0.3", "--json")
    assert used.document["tenants"][0]["power_source"] == "profile-modelled"
    config["tenants"][0]["models"][0]["path"] = "mobilenet.onnx"
    other = run("timeslice", "run", write(models / "r.yaml", config), "--duration", "0.3")
    assert (other.code, "expected a profile of this model" in other.err) == (2, True)
    simulated = edge(tenants=[{"name": "a", "models": [{"name": "m", "profile": file.name}]}])
    assert run("timeslice", "run", write(models / "s.yaml", simulated), "--json").code == 0


@pytest.mark.slow
def test_a_profile_that_does_not_settle(models):
    done = run(
        "timeslice", "profile", models / "resnet.onnx", "--seconds", "0.25", "--tries", "1", "--variation", "1e-9"
    )
    assert done.code == 1
    assert "in 1 tries" in done.err


@pytest.mark.parametrize("arguments", [["--device", "cuda"], []])
def test_a_file_that_is_no_model_or_a_device_that_is_not_there(arguments, models):
    path = models / "not.onnx"
    path.write_text("hello")
    done = run("timeslice", "profile", path, *arguments)
    assert done.code in {1, 2}
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1


def with_language(tmp_path, **changed):
    """A server's file with one language model, changed."""
    model = {"name": "m", "path": "tiny.npz", "language": {}} | changed.pop("model", {})
    tenants = [{"name": "ann", "models": [model, *changed.pop("others", [])]}]
    path = tmp_path / "llm.json"
    path.write_text(json.dumps({"device": {"kind": "cpu"}, "tenants": tenants} | changed))
    return path


ONNX = {"name": "n", "path": "n.onnx"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": {"path": "tiny.onnx"}}, "field 'tenants.ann.models.m.path': got 'tiny.onnx', expected a decoder"),
        ({"model": {"path": None}}, "'tenants.ann.models.m.path': got 'None', expected a decoder (.npz)"),
        ({"model": {"max_batch_size": 3}}, "'tenants.ann.models.m.max_batch_size': got 'a value', expected none"),
        (
            {"model": {"language": {"kv_cache_tokens": 1}}},
            "models.m.language.kv_cache_tokens': got '1', expected a number, 2 or more",
        ),
        ({"model": {"language": {"cache": 1}}}, "language.cache"),
        (
            {"device": {"kind": "simulated"}},
            "'tenants.ann.models.m.language': got 'a language model', expected none on",
        ),
        (
            {"policy": "vtc", "others": [ONNX]},
            "'tenants.ann.models.n.language': got 'none', expected language models only",
        ),
        ({}, "tiny.npz: expected a decoder"),
        ({"model": {"path": "nowhere"}}, "nowhere: got 'no folder', expected a folder of transformers"),
        ({"model": {"path": "llm.json"}}, "llm.json: got 'no folder'"),
    ],
)
def test_a_wrong_language_model_is_one_line(changed, said, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("tritonclient")
    done = run("timeslice", "serve", with_language(tmp_path, **changed), "--check")
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert said in done.err


def test_a_file_that_is_no_decoder(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("tritonclient")
    for content in (b"", b"PK\x03\x04 torn", b"x" * 1000, pickle.dumps([1])):
        (tmp_path / "tiny.npz").write_bytes(content)
        done = run("timeslice", "serve", with_language(tmp_path), "--check")
        assert (done.code, done.err.count("\n")) == (2, 1)
        said = "a broken one" if content else "an empty file"
        assert "tiny.npz: got '" in done.err
        assert f"{said}', expected a decoder" in done.err


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("context_tokens", 1025, "at most 1,024 tokens, the context of the model"),
        ("default_max_tokens", 1024, "at most 1,023 tokens, the context of the model without"),
        ("prefill_tokens", 2049, "at most 2,048 tokens, max_sequences times the context"),
        ("kv_cache_tokens", 10**12, "GB of memory hold"),
    ],
)
def test_sizes_that_cannot_be_are_refused(field, value, expected, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("tritonclient")
    from commonwatt.devices.language.decoder import write_decoder

    write_decoder(tmp_path / "tiny.npz", layers=1)
    path = with_language(tmp_path, model={"language": {"max_sequences": 2, field: value}})
    done = run("timeslice", "serve", path, "--check")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert f"llm.json: field 'tenants.ann.models.m.language.{field}': got '{value}', expected at most" in done.err
    assert expected in done.err
    if value < 10**12:
        path = with_language(tmp_path, model={"language": {"max_sequences": 2, field: value - 1}})
        assert run("timeslice", "serve", path, "--check").code == 0


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (
            {"rest_port": 9000, "grpc_port": 9000},
            "'server.grpc_port': got '9000', expected another port than rest_port",
        ),
        (
            {"host": "999.1.1.1"},
            "field 'server.host': got '999.1.1.1', expected a host name or address of this machine",
        ),
        (
            {"host": "192.0.2.1"},
            "field 'server.host': got '192.0.2.1', expected a host name or address of this machine",
        ),
        ({"operator_key": "short"}, "'server.operator_key': got '(hidden)', expected text of at least 8 characters"),
    ],
)
def test_an_address_that_cannot_be_is_refused_by_the_check(server, said, models):
    pytest.importorskip("starlette")
    done = run("timeslice", "serve", write(models / "s.yaml", served(server=server)), "--check")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err
    for fine in ({"rest_port": 0, "grpc_port": 0}, {"host": "localhost", "rest_port": 8001, "grpc_port": None}):
        file = TimesliceConfig.model_validate(served(server=fine))
        assert file.server.rest_port == fine["rest_port"]


def test_serve_shows_language_models_and_run_refuses_them(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("tritonclient")
    from commonwatt.devices.language.decoder import write_decoder

    write_decoder(tmp_path / "tiny.npz", layers=1)
    path = with_language(tmp_path, model={"language": {"kv_cache_tokens": 500, "prefill_tokens": 8}}, policy="vtc")
    (model,) = run("timeslice", "serve", path, "--check", "--json").document["models"]
    assert model["language"] | {"kv_cache_mb": 0} == {
        "most_tokens": 500, "kv_cache_tokens": 500, "kv_cache_mb": 0, "max_sequences": 16, "step_tokens": 8,
    }  # fmt: skip
    assert model["language"]["kv_cache_mb"] == pytest.approx(500 * 2 * 32 * 4 / 1e6)
    done = run("timeslice", "run", path)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "tenants.ann.models.m.language" in done.err


@pytest.mark.slow
def test_serve_checks_everything_without_serving(models):
    pytest.importorskip("starlette")
    done = run("timeslice", "serve", write(models / "s.yaml", served()), "--check", "--json")
    assert done.code == 0
    assert [m["model"] for m in done.document["models"]] == ["resnet", "text"]
    assert done.document["rest"] is None
    wrong = served(tenants=[{"name": n, "models": [{"name": "m", "path": "resnet.onnx"}]} for n in "ab"])
    refused = run("timeslice", "serve", write(models / "s.yaml", wrong), "--check")
    assert (refused.code, "tenants.a.key" in refused.err) == (2, True)
    simulated = run("timeslice", "serve", EXAMPLES / "edge.yaml")
    assert (simulated.code, "device.kind" in simulated.err) == (2, True)


@pytest.mark.long
@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT]])
def test_the_command_serves_until_it_is_told_to_stop(signals, models):
    pytest.importorskip("starlette")
    grpcclient = pytest.importorskip("tritonclient.grpc")
    config = served(server={"rest_port": 0, "grpc_port": 0})
    command = [SCRIPT, "timeslice", "serve", write(models / "s.yaml", config), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        text = ""
        while not text.endswith("\n}\n"):
            text += server.stdout.readline() or pytest.fail(server.stderr.read())
        where = json.loads(text)
        client = grpcclient.InferenceServerClient(where["grpc"])
        assert client.is_server_ready()
        for number in signals:
            server.send_signal(number)
        out, err = server.communicate(timeout=120)
    assert (server.returncode, out) == (0, "")
    assert err == "stopped: every request that was accepted has been answered or refused\n"


def test_serve_without_the_extra(monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.split(".")[0] == "starlette"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette", None)
    done = run("timeslice", "serve", write(tmp_path / "s.yaml", served()))
    assert (done.code, done.out) == (2, "")
    assert done.err == "error: starlette is not installed; run: pip install 'commonwatt[serve]'\n"


def test_help_is_quick_and_has_examples():
    for sub in ("plan", "run", "profile", "serve"):
        done = run("timeslice", sub, "--help")
        assert f"commonwatt timeslice {sub} " in done.out
    assert spawn("timeslice", "--help").code == 0
