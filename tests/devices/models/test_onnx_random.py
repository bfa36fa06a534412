"""Random small graphs, cut at random, compute what they compute whole."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import numpy as np  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from onnx import helper  # noqa: E402

from commonwatt.devices.models.onnx_model import load_onnx  # noqa: E402
from commonwatt.devices.models.onnx_runtime import OnnxRuntime  # noqa: E402
from tests.devices.models.graphs import info, inputs_of, model_of, run, run_plainly, same, saved, weight  # noqa: E402

ONE, TWO = ("Relu", "Tanh", "Sigmoid", "Softmax", "Neg"), ("Add", "Mul", "Sub", "Max")


@st.composite
def graphs(draw):
    """Nodes over tensors of (batch, 4) with skip connections; any of them, and inputs, may be outputs."""
    known = [f"in{i}" for i in range(draw(st.integers(1, 3)))]
    inputs, nodes = [info(name) for name in known], []
    for n in range(draw(st.integers(1, 12))):
        left, right = draw(st.sampled_from(known)), draw(st.sampled_from(known))
        op = draw(st.sampled_from((*ONE, *TWO, "MatMul", "Gemm", "Split", "BatchNormalization")))
        match op:
            case "MatMul" | "Gemm":
                nodes.append(helper.make_node(op, [left, draw(st.sampled_from(["w0", "w1"]))], [f"v{n}"]))
            case "Split":
                nodes.append(helper.make_node(op, [left, "halves"], [f"v{n}a", f"v{n}b"], axis=1))
                nodes.append(helper.make_node("Concat", [f"v{n}b", f"v{n}a"], [f"v{n}"], axis=1))
            case "BatchNormalization":
                nodes.append(helper.make_node(op, [left, "one", "zero", "zero", "one"], [f"v{n}"]))
            case _:
                nodes.append(helper.make_node(op, [left, right] if op in TWO else [left], [f"v{n}"]))
        known.append(f"v{n}")
    outputs = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    weights = [weight(f"w{i}", rng.standard_normal((4, 4))) for i in range(2)]
    weights += [weight("halves", [2, 2], np.int64), weight("one", np.ones(4)), weight("zero", np.zeros(4))]
    return model_of(nodes, inputs, [info(name) for name in outputs], weights)


@pytest.mark.slow
@settings(max_examples=60)
@given(graphs(), st.sets(st.integers(0, 16)), st.integers(1, 3))
def test_cut_or_not_it_is_the_same(graph, cuts, batch):
    with tempfile.TemporaryDirectory() as folder:
        path = saved(graph, Path(folder) / "m.onnx")
        whole = load_onnx("m", path, OnnxRuntime("cpu"), None)
        cut = load_onnx("m", path, OnnxRuntime("cpu"), None, cuts=sorted(cuts))
        inputs = inputs_of(whole, batch)
        found = run(cut, inputs)
        same(found, run(whole, inputs))
        same(found, run_plainly(path, inputs), exactly=False)
        assert sum(w.flops for w in cut.work) == whole.work[0].flops
        assert sum(w.bytes_moved for w in cut.work) == whole.work[0].bytes_moved
