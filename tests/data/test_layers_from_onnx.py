"""Layers of ONNX models: counted by hand, and against what the operators compute when they are run."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.data.model_layers.from_onnx import collect_onnx
from commonwatt.mapping.costs._layers import Layer
from commonwatt.model.errors import InputError
from tests.data.onnx_made import FLOAT, saved

onnx = pytest.importorskip("onnx")
helper = onnx.helper


def single(path, op, shapes, stored=(), **attributes):
    """A model of one operator on inputs of these shapes; those in *stored* are weights."""
    names = [f"i{place}" for place in range(len(shapes))]
    given = dict(zip(names, shapes, strict=True))
    node = helper.make_node(op, names, ["out"], name="node", **attributes)
    weights = {name: given.pop(name) for place, name in enumerate(names) if place in stored}
    return saved(path, [node], given, {"out": None}, weights)


def one(path, *args, **attributes):
    (layer,) = collect_onnx(single(path / "m.onnx", *args, **attributes), {}).layers
    return layer


def test_a_network_counted_by_hand(tmp_path):
    """Convolution with its two ends padded differently, depth-wise, product with weights, attention-like product."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="stem", strides=[2, 2], pads=[0, 0, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["c"], name="apart", group=8, auto_pad="SAME_UPPER"),
        helper.make_node("Reshape", ["c", "shape"], ["d"]),
        helper.make_node("MatMul", ["d", "w3"], ["e"], name="map"),
        helper.make_node("Transpose", ["e"], ["f"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["e", "f"], ["out"], name="scores"),
    ]
    weights = {"w1": (8, 3, 3, 3), "w2": (8, 1, 3, 3), "shape": np.array([0, 8, -1]), "w3": (25, 6)}
    path = saved(tmp_path / "net.onnx", nodes, {"x": ["batch", 3, 10, 10]}, {"out": None}, weights)
    found = collect_onnx(path, {"batch": 2})
    assert found.layers == [
        Layer("conv", 8, 3, 11, 11, 3, 3, 2, 0, 1, 2, "stem", "net"),
        Layer("depthwise", 1, 8, 5, 5, 3, 3, 1, 1, 1, 2, "apart", "net"),
        Layer("gemm", 6, 25, 16, name="map", model="net"),
        Layer("gemm", 16, 12, 8, groups=2, name="scores", model="net"),
    ]
    assert [layer.macs for layer in found.layers] == [2 * 25 * 8 * 27, 2 * 25 * 8 * 9, 16 * 25 * 6, 2 * 8 * 6 * 8]
    assert not found.unsupported
    assert not found.approximated


@pytest.mark.parametrize("name", ["resnet", "mobilenet", "transformer"])
def test_small_networks_against_the_count_of_the_profiler(name, tmp_path):
    """The profiler of devices counts operations of products itself, from shapes seen while a model runs."""
    pytest.importorskip("onnxruntime")
    from commonwatt.devices.models.onnx_graph import Value, work_of
    from commonwatt.devices.tiny_models import write_tiny_models

    path = write_tiny_models(tmp_path, kinds=(name,))[name]
    found = collect_onnx(path, {"batch": 3})
    model = onnx.load(str(path))
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = 3
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    values = {weight.name: Value(tuple(weight.dims), 4) for weight in model.graph.initializer}
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        values[value.name] = Value(tuple(size.dim_value for size in value.type.tensor_type.shape.dim), 4)
    products = [node for node in model.graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]
    assert [2 * layer.macs for layer in found.layers] == [work_of(node, values).flops for node in products]


@st.composite
def convolutions(draw):
    directions = draw(st.integers(1, 2))
    sizes, groups = st.integers(1, 3), draw(st.integers(1, 3))
    taps, strides, dilations = (draw(st.tuples(*[sizes] * directions)) for _ in range(3))
    attributes = {"kernel_shape": taps, "strides": strides, "dilations": dilations, "group": groups}
    automatic = draw(st.sampled_from(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    if automatic == "NOTSET":
        attributes["pads"] = draw(st.tuples(*[st.integers(0, 2)] * 2 * directions))
    elif automatic.startswith("SAME"):
        attributes["dilations"] = (1,) * directions  # not every runtime agrees on both
    c, k = groups * draw(sizes), groups * draw(sizes)
    x = (draw(sizes), c, *draw(st.tuples(*[st.integers(7, 12)] * directions)))
    return x, (k, c // groups, *taps), attributes | {"auto_pad": automatic}


@pytest.mark.slow
@settings(max_examples=60)
@given(convolutions())
def test_convolutions_against_the_reference_implementation(tmp_path_factory, case):
    """With ones for weights and inputs, each output counts the products it is a sum of, but for those with padding."""
    from onnx.reference import ReferenceEvaluator

    x, weight, attributes = case
    path = single(tmp_path_factory.mktemp("conv") / "m.onnx", "Conv", [x, weight], stored=[1], **attributes)
    found = collect_onnx(path, {})
    (layer,) = found.layers
    (out,) = ReferenceEvaluator(str(path)).run(None, {"i0": np.zeros(x, dtype=np.float32)})
    assert layer.outputs == out.size
    assert layer.weights == prod(weight)
    assert layer.macs == out.size * prod(weight[1:])
    same = len(set(attributes["strides"])) == 1 and set(attributes["dilations"]) == {1}
    assert bool(found.approximated) != same


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "expected"),
    [
        ("MatMul", [(4, 5), (5, 6)], {}, ("gemm", 6, 5, 4, 1)),
        ("MatMul", [(1, 5), (5, 6)], {}, ("fc", 6, 5, 1, 1)),
        ("MatMul", [(5,), (5, 6)], {}, ("fc", 6, 5, 1, 1)),
        ("MatMul", [(2, 3, 4, 5), (5, 6)], {}, ("gemm", 6, 5, 24, 1)),
        ("MatMul", [(2, 3, 4, 5), (2, 3, 5, 6)], {}, ("gemm", 36, 30, 4, 6)),
        ("MatMul", [(2, 3, 4, 5), (3, 5, 6)], {}, ("gemm", 18, 15, 8, 3)),
        ("MatMul", [(4, 5), (2, 5, 6)], {}, ("gemm", 12, 10, 4, 2)),
        ("Gemm", [(4, 5), (6, 5)], {"transB": 1}, ("gemm", 6, 5, 4, 1)),
        ("Gemm", [(5, 4), (5, 6)], {"transA": 1}, ("gemm", 6, 5, 4, 1)),
        ("Einsum", [(2, 4, 5), (2, 6, 5)], {"equation": "bik, bjk -> bij"}, ("gemm", 12, 10, 4, 2)),
        ("Einsum", [(2, 4, 5), (5, 6)], {"equation": "bik,kj->bij"}, ("gemm", 6, 5, 8, 1)),
        ("ConvTranspose", [(2, 4, 3, 5), (4, 6, 2, 3)], {"strides": [2, 2]}, ("conv", 36, 4, 3, 1)),
    ],
)  # fmt: skip
def test_products(tmp_path, op, shapes, attributes, expected):
    layer = one(tmp_path, op, shapes, **attributes)
    assert (layer.kind, layer.k, layer.c, layer.y, layer.groups) == expected


def test_weights_on_the_left(tmp_path):
    """``W @ x`` is one matrix of weights for all columns, not a product for each."""
    layer = one(tmp_path, "MatMul", [(6, 5), (2, 5, 4)], [0])
    assert (layer.k, layer.c, layer.y, layer.groups) == (6, 5, 8, 1)


def test_recurrent_networks(tmp_path):
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=20, direction="bidirectional", name="lstm")
    weights = {"w": (2, 80, 10), "r": (2, 80, 20)}
    path = saved(tmp_path / "m.onnx", [node], {"x": (5, 3, 10)}, {"y": None}, weights)
    found = collect_onnx(path, {}).layers
    assert [layer.name for layer in found] == ["lstm.input.0", "lstm.input.1", "lstm.state.0", "lstm.state.1"]
    assert sum(layer.macs for layer in found) == 2 * 80 * (10 + 20) * 15


@pytest.mark.parametrize("rank", [3, 4])
def test_the_operator_attention(tmp_path, rank):
    shapes = {3: [(2, 7, 24), (2, 9, 12), (2, 9, 12)], 4: [(2, 4, 7, 6), (2, 2, 9, 6), (2, 2, 9, 6)]}[rank]
    heads = {"q_num_heads": 4, "kv_num_heads": 2} if rank == 3 else {}
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], name="a", **heads)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(n, FLOAT, s) for n, s in zip("qkv", shapes, strict=True)],
        [helper.make_tensor_value_info("y", FLOAT, None)],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)]), str(tmp_path / "m.onnx"))
    scores, context = collect_onnx(tmp_path / "m.onnx", {}).layers
    assert (scores.macs, context.macs) == (2 * 4 * 7 * 9 * 6, 2 * 4 * 7 * 9 * 6)
    assert (scores.groups, context.groups) == (8, 8)


def test_functions_of_the_model_are_written_out(tmp_path):
    twice = helper.make_function(
        "mine", "Twice", ["x", "w"], ["y"],
        [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("MatMul", ["a", "w"], ["y"])],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    node = helper.make_node("Twice", ["x", "w"], ["y"], domain="mine")
    path = saved(tmp_path / "m.onnx", [node], {"x": (3, 4)}, {"y": None}, {"w": (4, 4)}, functions=[twice])
    assert [layer.macs for layer in collect_onnx(path, {}).layers] == [48, 48]


def test_what_is_not_supported_is_listed(tmp_path):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="map"),
        helper.make_node("Strange", ["x"], ["b"], domain="mine"),
        helper.make_node("Strange", ["x"], ["c"], domain="mine"),
        helper.make_node("Einsum", ["x", "x", "x"], ["d"], equation="ij,jk,kl->il"),
    ]
    found = collect_onnx(saved(tmp_path / "m.onnx", nodes, {"x": (4, 4)}, {"a": None}, {"w": (4, 4)}), {})
    assert found.unsupported == {"mine::Strange": 2, "Einsum ij,jk,kl->il": 1}
    with pytest.raises(InputError, match=r"m\.onnx.*mine::Strange \(2\)"):
        found.checked("m.onnx", ignore_unsupported=False)
    assert [layer.macs for layer in found.checked(ignore_unsupported=True)] == [64]


@pytest.mark.parametrize(
    ("shape", "dims", "says"),
    [
        (["batch", 4], {}, ["'shape'", "batch (x[0])", "--dim batch=1"]),
        ([None, "n"], {"n": 3}, ["'shape'", "x[0]", "--dim x[0]=1"]),
        ([3, 4], {"n": 3}, ["'dim'", "'n'", "no dynamic dimensions"]),
        (["n", 5], {"n": 3}, ["sizes that go together"]),
        (None, {}, ["'x'", "an input with a shape"]),
    ],
)
def test_shapes_that_are_not_fixed(tmp_path, shape, dims, says):
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    path = saved(tmp_path / "m.onnx", [node], {"x": shape}, {"y": None}, {"w": (4, 6)})
    with pytest.raises(InputError) as caught:
        collect_onnx(path, dims).checked(ignore_unsupported=False)
    assert [part for part in ["m.onnx", *says] if part not in str(caught.value)] == []


def test_a_dimension_without_a_name_is_called_by_its_place(tmp_path):
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    path = saved(tmp_path / "m.onnx", [node], {"x": [None, 4]}, {"y": None}, {"w": (4, 6)})
    assert collect_onnx(path, {"x[0]": 5}).layers[0].macs == 5 * 24


def test_shapes_behind_an_unknown_operator(tmp_path):
    nodes = [
        helper.make_node("Strange", ["x"], ["a"], domain="mine"),
        helper.make_node("MatMul", ["a", "w"], ["y"], name="map"),
    ]
    path = saved(tmp_path / "m.onnx", nodes, {"x": (4, 4)}, {"y": None}, {"w": (4, 4)})
    with pytest.raises(InputError, match=r"m\.onnx.*'a'.*unknown shape at MatMul map"):
        collect_onnx(path, {})


@pytest.mark.parametrize("content", [b"bad", b""])
def test_files_that_are_no_models(tmp_path, content):
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(InputError, match=r"m\.onnx.*an ONNX model"):
        collect_onnx(tmp_path / "m.onnx", {})
    with pytest.raises(InputError, match="an existing file"):
        collect_onnx(tmp_path / "none.onnx", {})


def test_sizes_that_a_model_computes_itself(tmp_path):
    """As exporters write them: half of the channels by Shape, Gather, Div and Slice, then rows by Shape and Concat."""

    def constant(name, values):
        return helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(np.array(values), name))

    nodes = [
        *(constant(name, values) for name, values in [("one", 1), ("two", 2), ("ends", [0]), ("axis", [1])]),
        helper.make_node("Shape", ["x"], ["size"]),
        helper.make_node("Gather", ["size", "one"], ["channels"]),
        helper.make_node("Div", ["channels", "two"], ["half"]),
        helper.make_node("Unsqueeze", ["half", "ends"], ["halves"]),
        helper.make_node("Slice", ["x", "ends", "halves", "axis"], ["first"]),
        helper.make_node("Conv", ["first", "w1"], ["y"], name="conv"),
        helper.make_node("Shape", ["y"], ["shape"], start=0, end=2),
        helper.make_node("Concat", ["shape", "rest"], ["flat"], axis=0),
        helper.make_node("Reshape", ["y", "flat"], ["z"]),
        helper.make_node("MatMul", ["z", "w2"], ["out"], name="map"),
    ]  # fmt: skip
    weights = {"w1": (6, 2, 1, 1), "w2": (20, 3), "rest": np.array([-1])}
    path = saved(tmp_path / "m.onnx", nodes, {"x": ["n", 4, 4, 5]}, {"out": None}, weights)
    assert [layer.macs for layer in collect_onnx(path, {"n": 2}).layers] == [2 * 6 * 2 * 20, 2 * 6 * 20 * 3]


def test_large_weights_are_not_carried_along(tmp_path):
    """Only their shapes count, also where they are prepared by other operators before use."""
    nodes = [
        helper.make_node("Transpose", ["w"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "turned"], ["out"], name="map"),
    ]
    path = saved(tmp_path / "m.onnx", nodes, {"x": (3, 400)}, {"out": None}, {"w": (300, 400)})
    (layer,) = collect_onnx(path, {}).layers
    assert (layer.k, layer.c, layer.y, layer.macs) == (300, 400, 3, 3 * 300 * 400)
