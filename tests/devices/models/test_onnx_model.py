"""Models in ONNX Runtime: cut or not, they compute the same."""

from __future__ import annotations

import time

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import helper  # noqa: E402

from commonwatt.devices.models.onnx_model import load_onnx  # noqa: E402
from commonwatt.devices.models.onnx_runtime import OnnxRuntime  # noqa: E402
from commonwatt.devices.tiny_models import TINY_MODELS, write_tiny_models  # noqa: E402
from commonwatt.model.errors import DeviceError, InputError  # noqa: E402
from tests.devices.models.graphs import (  # noqa: E402
    MADE,
    info,
    inputs_of,
    long_lived,
    model_of,
    run,
    run_plainly,
    same,
    saved,
    weight,
    with_sequence,
)  # fmt: skip

CPU = OnnxRuntime("this CPU")
EVERYWHERE = range(1000)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_models(tmp_path_factory.mktemp("tiny"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", TINY_MODELS)
@pytest.mark.parametrize("cuts", [EVERYWHERE, range(0, 1000, 3), [1], [10, 11]], ids=str)
def test_tiny_networks_compute_the_same_cut_and_whole(kind, cuts, tiny):
    whole = load_onnx(kind, tiny[kind], CPU, None)
    cut = load_onnx(kind, tiny[kind], CPU, None, cuts=cuts)
    assert len(whole.step_names) == 1 < len(cut.step_names)
    for batch in (1, 4):
        given = inputs_of(whole, batch)
        found = run(cut, given)
        same(found, run(whole, given))
        same(found, run_plainly(tiny[kind], given), exactly=False)
    assert sum(work.flops for work in cut.work) == pytest.approx(whole.work[0].flops)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TINY_MODELS)
def test_it_is_cut_by_time(kind, tiny):
    model = load_onnx(kind, tiny[kind], CPU, 5e-5)
    assert 2 <= len(model.step_names) == len(model.step_times_s) == len(model.work) <= 30
    assert all(took > 0 for took in model.step_times_s)
    assert all(work.flops > 0 and work.bytes_moved > 0 for work in model.work)
    same(run(model, inputs_of(model)), run(load_onnx(kind, tiny[kind], CPU, None), inputs_of(model)))
    assert len(load_onnx(kind, tiny[kind], CPU, 10.0).step_names) == 1


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("cuts", [EVERYWHERE, [2], [3]], ids=str)
def test_made_graphs_compute_the_same_cut_and_whole(kind, cuts, tmp_path):
    path = saved(MADE[kind](), tmp_path / "m.onnx")
    whole, cut = (load_onnx("m", path, CPU, None, cuts=at) for at in (None, cuts))
    for yes in (True, False):
        given = {n: np.array(yes) if x.dtype == bool else x for n, x in inputs_of(whole).items()}
        same(run(cut, given), run(whole, given))
        same(run(cut, given), run_plainly(path, given), exactly=False)
    assert len(cut.step_names) > 1 or cuts != EVERYWHERE


def test_values_are_freed_as_soon_as_nobody_needs_them(tmp_path):
    model = load_onnx("m", saved(long_lived(), tmp_path / "m.onnx"), CPU, None, cuts=EVERYWHERE)
    execution, held = model.begin(inputs_of(model)), []
    for _ in model.step_names:
        execution.step()
        held.append(set(execution._values))
    assert held[-1] == {"early", "y"}
    assert all("early" in names for names in held[1:])
    assert "x" not in held[0]
    assert "late" in held[-2]
    assert max(len(names) for names in held) == 4  # late, early, a and what the last step made


def test_two_inferences_of_a_model_may_take_turns(tiny):
    model = load_onnx("m", tiny["mobilenet"], CPU, None, cuts=EVERYWHERE)
    given = [inputs_of(model, batch, seed) for batch, seed in ((1, 1), (2, 2))]
    expected = [run(model, inputs) for inputs in given]
    both = [model.begin(inputs) for inputs in given]
    for _ in model.step_names:
        for execution in both:
            execution.step()
    for execution, outputs in zip(both, expected, strict=True):
        same(execution.outputs(), outputs)


@pytest.mark.parametrize("kind", TINY_MODELS)
def test_fusions_are_kept(kind, tiny):
    cut = load_onnx("m", tiny[kind], CPU, None, cuts=EVERYWHERE)
    assert len(cut.step_names) < len(onnx.load(str(tiny[kind])).graph.node)


def test_a_closed_model_begins_nothing_but_what_is_under_way_ends(tiny):
    model = load_onnx("m", tiny["mobilenet"], CPU, None, cuts=EVERYWHERE)
    execution, steps = model.begin(inputs_of(model)), len(model.step_names)
    execution.step()
    model.close()
    for _ in range(steps - 1):
        execution.step()
    assert execution.outputs()["logits"].shape == (3, 10)
    with pytest.raises(RuntimeError, match="model m is closed"):
        model.begin({})


def test_a_model_that_does_not_show_its_values_stays_whole(tiny, caplog):
    class Hiding(OnnxRuntime):
        def session(self, model, options):
            if str(model).endswith("showing.onnx"):
                raise ValueError("no")
            return super().session(model, options)

    model = load_onnx("m", tiny["resnet"], Hiding("this CPU"), 1e-5)
    assert len(model.step_names) == 1
    assert "it is not cut" in caplog.text
    same(run(model, inputs_of(model)), run_plainly(tiny["resnet"], inputs_of(model)), exactly=False)


def test_it_is_not_cut_where_a_sequence_lives(tmp_path):
    model = load_onnx("m", saved(with_sequence(), tmp_path / "m.onnx"), CPU, None, cuts=EVERYWHERE)
    assert len(model.step_names) == 3


def test_a_graph_of_one_node_and_one_whose_output_is_its_input(tmp_path):
    one = model_of([helper.make_node("Tanh", ["x"], ["y"])], [info("x")], [info("y")])
    through = model_of([helper.make_node("Tanh", ["x"], ["y"])], [info("x")], [info("y"), info("x")])
    constant = model_of([helper.make_node("Tanh", ["w"], ["z"]), helper.make_node("Add", ["x", "w"], ["y"])],
                        [info("x")], [info("y"), info("z", shape=(4,))], [weight("w", [1, 2, 3, 4])])  # fmt: skip
    nothing = model_of([helper.make_node("Identity", ["x"], ["y"])], [info("x")], [info("y")])
    for made in (one, through, constant, nothing):
        path = saved(made, tmp_path / "m.onnx")
        model = load_onnx("m", path, CPU, 1e-9)
        same(run(model, inputs_of(model)), run_plainly(path, inputs_of(model)), exactly=False)


def test_outputs_are_there_only_at_the_end(tiny):
    model = load_onnx("m", tiny["resnet"], CPU, None, cuts=EVERYWHERE)
    execution = model.begin(inputs_of(model))
    execution.step()
    with pytest.raises(RuntimeError, match="steps not run yet"):
        execution.outputs()


def test_what_it_says_of_itself(tiny):
    model = load_onnx("net", tiny["transformer"], CPU, None)
    assert model.name == "net"
    assert len(model.digest) == 64
    assert [(s.name, s.datatype, s.shape) for s in model.inputs] == [("tokens", "INT64", (-1, 32))]
    assert [(s.name, s.datatype, s.shape) for s in model.outputs] == [("logits", "FP32", (-1, 32, 128))]
    model.close()
    assert model.steps == ()


def test_weights_in_files_beside_the_model(tiny, tmp_path):
    model = onnx.load(str(tiny["resnet"]))
    onnx.save_model(model, str(tmp_path / "m.onnx"), save_as_external_data=True, location="w.bin", size_threshold=64)
    assert (tmp_path / "m.onnx").stat().st_size < 20_000
    cut = load_onnx("m", tmp_path / "m.onnx", CPU, None, cuts=EVERYWHERE)
    same(run(cut, inputs_of(cut)), run(load_onnx("m", tiny["resnet"], CPU, None), inputs_of(cut)))
    (tmp_path / "w.bin").unlink()
    with pytest.raises(InputError, match=r"m\.onnx: got .* expected an ONNX model"):
        load_onnx("m", tmp_path / "m.onnx", CPU, None)


@pytest.mark.parametrize(
    ("content", "value"),
    [(b"", "an empty file"), (b"\x00\x01 no model", "InvalidProtobuf"), (None, None), ("", "a directory")],
)
def test_what_is_no_model(content, value, tmp_path):
    path = tmp_path / "m.onnx"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.mkdir()
    with pytest.raises(InputError) as caught:
        load_onnx("m", path, CPU, 0.002)
    assert (caught.value.file, caught.value.value) == (path, value)
    got = "" if value is None else f"got '{value}', "
    assert str(caught.value).startswith(f"{path}: {got}expected an ONNX model")
    assert ("there is no such file" in str(caught.value)) == (value is None)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_a_truncated_model(part, tiny, tmp_path):
    content = tiny["mobilenet"].read_bytes()
    (tmp_path / "m.onnx").write_bytes(content[: int(part * len(content))])
    with pytest.raises(InputError, match=r"m\.onnx: got .* expected an ONNX model"):
        load_onnx("m", tmp_path / "m.onnx", CPU, 0.002)


def test_an_opset_from_the_future_and_an_operator_there_is_not(tmp_path):
    future = model_of([helper.make_node("Tanh", ["x"], ["y"])], [info("x")], [info("y")], opset=999)
    unknown = model_of([helper.make_node("Tankh", ["x"], ["y"])], [info("x")], [info("y")])
    for model, said in ((future, "opset"), (unknown, "Tankh")):
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(InputError, match=said) as caught:
            load_onnx("m", tmp_path / "m.onnx", CPU, 0.002)
        assert caught.value.file == tmp_path / "m.onnx"


def test_inputs_that_are_not_numbers(tmp_path):
    words = helper.make_tensor_value_info("x", onnx.TensorProto.STRING, [2])
    model = model_of([helper.make_node("Identity", ["x"], ["y"])], [words],
                     [helper.make_tensor_value_info("y", onnx.TensorProto.STRING, [2])])  # fmt: skip
    with pytest.raises(InputError, match=r"field 'x': got 'tensor\(string\)', expected numeric tensors only"):
        load_onnx("m", saved(model, tmp_path / "m.onnx"), CPU, 0.002)


def test_inputs_that_do_not_go_together(tmp_path):
    nodes = [helper.make_node("Tanh", ["x"], ["a"]), helper.make_node("Add", ["a", "z"], ["y"])]
    model = model_of(nodes, [info("x"), info("z", shape=("other", 4))], [info("y")])
    loaded = load_onnx("m", saved(model, tmp_path / "m.onnx"), CPU, None, cuts=[1])
    execution = loaded.begin({"x": np.ones((2, 4), np.float32), "z": np.ones((3, 4), np.float32)})
    execution.step()
    with pytest.raises(InputError, match="expected inputs that model m can compute"):
        execution.step()


@pytest.mark.parametrize("words", ["CUDA failure 999: unknown error", "CUDNN_STATUS_EXECUTION_FAILED"])
def test_a_gpu_that_is_gone(words):
    with pytest.raises(DeviceError, match="a GPU: CUD"), OnnxRuntime("a GPU").running("m"):
        raise RuntimeError(words)


@pytest.mark.slow
def test_idle_sessions_burn_no_cpu(tiny):
    model = load_onnx("m", tiny["resnet"], OnnxRuntime("this CPU", threads=2), None, cuts=EVERYWHERE)
    run(model, inputs_of(model))
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_scalars_keep_their_shape(shape, tmp_path):
    nodes = [helper.make_node("Tanh", ["x"], ["a"]), helper.make_node("Sigmoid", ["a"], ["y"])]
    model = model_of(nodes, [info("x", shape=shape)], [info("y", shape=shape)])
    loaded = load_onnx("m", saved(model, tmp_path / "m.onnx"), CPU, None, cuts=[1])
    assert run(loaded, {"x": np.full(shape, 0.5, np.float32)})["y"].shape == shape


def test_inputs_need_not_be_contiguous_nor_writable(tiny):
    model = load_onnx("m", tiny["mobilenet"], CPU, None)
    image = np.random.default_rng(0).standard_normal((1, 32, 32, 3)).astype(np.float32).transpose(0, 3, 1, 2)
    frozen = np.frombuffer(np.ascontiguousarray(image).tobytes(), np.float32).reshape(image.shape)
    same(run(model, {"image": image}), run(model, {"image": frozen}))
