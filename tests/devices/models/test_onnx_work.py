from __future__ import annotations

import pytest

onnx = pytest.importorskip("onnx")

from onnx import helper  # noqa: E402

from commonwatt.devices.base import StepWork  # noqa: E402
from commonwatt.devices.models.onnx_graph import Value, work_of, work_together  # noqa: E402

CASES = {
    "conv": ("Conv", {}, [(2, 3, 8, 8), (16, 3, 3, 3), (16,)], (2, 16, 8, 8), 2 * (2 * 16 * 64) * 27),
    "depthwise": ("Conv", {"group": 16}, [(1, 16, 8, 8), (16, 1, 3, 3)], (1, 16, 4, 4), 2 * (16 * 16) * 9),
    "fused conv": ("FusedConv", {"activation": "Relu"}, [(1, 3, 8), (4, 3, 5)], (1, 4, 4), 2 * 16 * 15),
    "quantised conv": (
        "QLinearConv", {}, [(1, 3, 8, 8), (), (), (16, 3, 1, 1), (), (), (), ()], (1, 16, 8, 8), 2 * 1024 * 3,
    ),
    "transposed conv": ("ConvTranspose", {}, [(1, 8, 4, 4), (8, 2, 3, 3)], (1, 2, 6, 6), 2 * 128 * 18),
    "gemm": ("Gemm", {}, [(2, 5), (5, 7), (7,)], (2, 7), 2 * 14 * 5),
    "gemm, transposed": ("Gemm", {"transA": 1, "transB": 1}, [(5, 2), (7, 5)], (2, 7), 2 * 14 * 5),
    "matmul": ("MatMul", {}, [(3, 4, 2, 5), (5, 7)], (3, 4, 2, 7), 2 * (12 * 14) * 5),
    "fused matmul": ("FusedMatMul", {"transA": 1}, [(3, 5, 2), (3, 5, 7)], (3, 2, 7), 2 * 42 * 5),
    "attention": ("Attention", {"num_heads": 2}, [(1, 4, 6), (6, 18)], (1, 4, 6), 2 * 4 * 6 * 18 + 4 * 16 * 6),
    "several heads": ("MultiHeadAttention", {"num_heads": 2}, [(1, 4, 6), (1, 9, 6)], (1, 4, 6), 4 * 4 * 9 * 6),
    "anything else": ("Softmax", {}, [(2, 9)], (2, 9), 18),
    "nothing known": ("Conv", {}, [None, None], None, 0),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_operations_and_bytes(case):
    op, attributes, shapes, out, flops = CASES[case]
    names = [f"x{i}" for i in range(len(shapes))]
    node = helper.make_node(op, names, ["y"], **attributes)
    known = zip((*names, "y"), (*shapes, out), strict=True)
    values = {name: Value(shape, 4) for name, shape in known if shape is not None}
    assert work_of(node, values) == StepWork(flops, 4 * sum(value.size for value in values.values()))


def test_an_input_read_twice_is_moved_once_and_one_left_out_not_at_all():
    node = helper.make_node("Clip", ["x", "", "x"], ["y"])
    assert work_of(node, {"x": Value((5,), 2), "y": Value((5,), 2)}) == StepWork(5, 20)


def test_work_adds_up():
    assert work_together([StepWork(1, 2), StepWork(3, 4)]) == StepWork(4, 6)
    assert work_together([]) == StepWork(0, 0)
