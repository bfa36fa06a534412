"""ONNX models made for the tests, and how to run them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from commonwatt.devices.base import example_inputs

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name, kind=FLOAT, shape=("batch", 4)):
    return helper.make_tensor_value_info(name, kind, shape)


def weight(name, values, dtype=np.float32):
    return numpy_helper.from_array(np.asarray(values, dtype), name)


def model_of(nodes, inputs, outputs, weights=(), opset=17):
    graph = helper.make_graph(nodes, "made", inputs, outputs, list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def saved(model, path):
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    return path


def run(model, inputs):
    """Run a loaded model step by step."""
    execution = model.begin(inputs)
    for _ in model.step_names:
        execution.step()
    return execution.outputs()


def run_plainly(path, inputs):
    """What ONNX Runtime computes, without this package."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def inputs_of(model, batch=3, seed=0):
    rng = np.random.default_rng(seed)
    given = example_inputs(model.inputs, rng)
    dynamic = {spec.name for spec in model.inputs if spec.shape and spec.shape[0] == -1}
    return {name: np.concatenate([x] * batch) * 1 if name in dynamic else x for name, x in given.items()}


def same(found, expected, exactly=True):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        assert found[name].shape == values.shape
        if exactly:
            assert np.array_equal(found[name], values), name
        else:
            assert np.allclose(found[name], values, rtol=1e-4, atol=1e-5), name


def long_lived():
    """A tensor used at the start and at the end, an output made early, an input used late, and a weight used twice."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("Tanh", ["a"], ["early"], name="early"),
        helper.make_node("Sigmoid", ["early"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["c"]),
        helper.make_node("Softmax", ["c"], ["d"]),
        helper.make_node("Sub", ["d", "a"], ["e"]),
        helper.make_node("Mul", ["e", "late"], ["y"], name="last"),
    ]
    weights = [weight("w", np.random.default_rng(1).standard_normal((4, 4)))]
    return model_of(nodes, [info("x"), info("late")], [info("early"), info("y")], weights)


def branching():
    """An If whose branches capture a computed value, an input and a weight, between other nodes."""

    def branch(op, name):
        out = info(f"{name}_out")
        inner = [
            helper.make_node(op, ["a", "late"], [f"{name}_1"]),
            helper.make_node("Mul", [f"{name}_1", "w"], [out.name]),
        ]
        return helper.make_graph(inner, name, [], [out])

    nodes = [
        helper.make_node("Tanh", ["x"], ["a"]),
        helper.make_node("Sigmoid", ["a"], ["b"]),
        helper.make_node("Softmax", ["b"], ["c"]),
        helper.make_node("If", ["yes"], ["d"], then_branch=branch("Add", "t"), else_branch=branch("Sub", "e")),
        helper.make_node("Add", ["c", "d"], ["y"]),
    ]
    return model_of(nodes, [info("x"), info("late"), info("yes", BOOL, ())], [info("y")], [weight("w", [1, 2, 3, 4])])


def looping():
    """A Loop that runs three times and captures a computed value."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_out"]),
            helper.make_node("Add", ["state", "a"], ["state_1"]),
            helper.make_node("Tanh", ["state_1"], ["state_out"]),
        ],
        "body",
        [info("i", INT64, ()), info("go", BOOL, ()), info("state")],
        [info("go_out", BOOL, ()), info("state_out")],
    )
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["a"]),
        helper.make_node("Softmax", ["a"], ["start"]),
        helper.make_node("Loop", ["times", "", "start"], ["b"], body=body),
        helper.make_node("Sub", ["b", "a"], ["y"]),
    ]
    return model_of(nodes, [info("x")], [info("y")], [weight("times", 3, np.int64)])


def with_sequence():
    """A sequence of tensors lives between the nodes: there it cannot be cut."""
    nodes = [
        helper.make_node("Tanh", ["x"], ["a"]),
        helper.make_node("SequenceConstruct", ["a", "x"], ["s"]),
        helper.make_node("ConcatFromSequence", ["s"], ["b"], axis=1),
        helper.make_node("Sigmoid", ["b"], ["y"]),
    ]
    return model_of(nodes, [info("x")], [info("y", shape=("batch", 8))])


def quantised():
    """Quantised convolutions, which are fused; what lives between them are bytes."""

    def pair(name):
        first = helper.make_node("QuantizeLinear", [name, "s", "z"], [f"{name}_q"])
        return [first, helper.make_node("DequantizeLinear", [f"{name}_q", "s", "z"], [f"{name}_d"])]

    nodes = pair("x")
    for n, source in enumerate(("x_d", "a_d")):
        nodes.append(helper.make_node("DequantizeLinear", [f"w{n}", "s", "zw"], [f"w{n}_d"]))
        nodes.append(helper.make_node("Conv", [source, f"w{n}_d"], ["ay"[n]], pads=[1] * 4))
        nodes += pair("ay"[n])
    nodes.append(helper.make_node("Relu", ["y_d"], ["out"]))
    rng = np.random.default_rng(0)
    weights = [weight(f"w{n}", rng.integers(-9, 9, (3, 3, 3, 3)), np.int8) for n in range(2)]
    weights += [weight("s", 0.05), weight("z", 128, np.uint8), weight("zw", 0, np.int8)]
    shape = ("batch", 3, 8, 8)
    return model_of(nodes, [info("x", shape=shape)], [info("out", shape=shape)], weights)


def old():
    """An old model, which lists its weights as inputs; of two that are the same, optimising leaves one."""
    nodes = [
        helper.make_node("ConstantOfShape", ["size"], ["ones"], value=weight("one", [1.0])),
        helper.make_node("ConstantOfShape", ["size2"], ["ones2"], value=weight("one", [1.0])),
        helper.make_node("Add", ["x", "ones"], ["a0"]),
        helper.make_node("Tanh", ["a0"], ["a"]),
        helper.make_node("Mul", ["a", "ones2"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    weights = [weight("size", [4], np.int64), weight("size2", [4], np.int64)]
    weights += [weight("w", np.random.default_rng(1).standard_normal((4, 4)))]
    inputs = [info("x"), info("size", INT64, (1,)), info("size2", INT64, (1,)), info("w", shape=(4, 4))]
    model = model_of(nodes, inputs, [info("y")], weights, opset=9)
    model.ir_version = 3
    return model


MADE = {
    "long lived": long_lived,
    "branching": branching,
    "looping": looping,
    "with a sequence": with_sequence,
    "quantised": quantised,
    "old": old,
}
