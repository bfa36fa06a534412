"""How much a node of an ONNX graph computes and moves, counted from the shapes of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from commonwatt.devices.base import Work
from commonwatt.devices.models.foreign import Foreign

__all__ = ["Value", "work_of", "work_together"]

_MATMULS = {"MatMul", "FusedMatMul", "FusedMatMulActivation", "MatMulInteger", "QLinearMatMul", "MatMulIntegerToFloat",
            "DynamicQuantizeMatMul", "MatMulNBits", "TransposeMatMul"}  # fmt: skip
_GEMMS = {"Gemm", "FusedGemm", "GemmFastGelu", "QGemm", "GemmFloat8"}
_CONVS = {"Conv", "FusedConv", "NhwcConv", "NhwcFusedConv", "ConvInteger", "QLinearConv"}


@dataclass(frozen=True)
class Value:
    """Shape and element size of a tensor as it was in one inference."""

    shape: tuple[int, ...]
    itemsize: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)


def work_of(node: Foreign, values: Mapping[str, Value]) -> Work:
    """Return the work of *node*; what is not a product of matrices takes one operation for each element it writes.

    Values that are not known count nothing. A node with graphs inside (If, Loop) counts as one that is not a product.
    """
    names = {name for name in (*node.input, *node.output) if name in values}
    moved = sum(values[name].size * values[name].itemsize for name in names)
    plain = sum(values[name].size for name in node.output if name in values)
    return Work(_products(node, values) or float(plain), float(moved))


def work_together(parts: Sequence[Work]) -> Work:
    """Return the work of nodes that run one after another."""
    return Work(sum(part.flops for part in parts), sum(part.bytes_moved for part in parts))


def _products(node: Foreign, values: Mapping[str, Value]) -> float:
    """Operations of a node that multiplies matrices; 0 for any other, and where shapes are missing."""
    inputs = [values.get(name, Value((), 0)) for name in node.input]
    out = values.get(node.output[0], Value((), 0)) if node.output else Value((), 0)
    ranks = [len(value.shape) for value in inputs[:5]]
    quantised = node.op_type in {"QLinearConv", "QLinearMatMul"}
    if node.op_type in _CONVS and len(ranks) > 1:
        weight = inputs[3 if quantised else 1]
        return 2.0 * out.size * prod(weight.shape[1:]) if len(weight.shape) > 2 else 0.0
    if node.op_type == "ConvTranspose" and ranks[1] > 2:
        return 2.0 * inputs[0].size * prod(inputs[1].shape[1:])
    if node.op_type in _GEMMS and ranks[0] == 2:
        return 2.0 * out.size * inputs[0].shape[0 if _flag(node, "transA") else 1]
    if node.op_type in _MATMULS and ranks[0] > 0:
        across = ranks[0] > 1 and _flag(node, "transA")
        return 2.0 * out.size * inputs[0].shape[-2 if across else -1]
    return _attention(node, inputs)


def _attention(node: Foreign, inputs: Sequence[Value]) -> float:
    """Operations of ONNX Runtime's fused attentions: projections, where they are inside, and the two products."""
    if node.op_type == "Attention" and len(inputs[0].shape) == 3:
        batch, length, size = inputs[0].shape
        projected = inputs[1].shape[-1] if inputs[1].shape else 3 * size
        return 2.0 * batch * length * size * projected + 4.0 * batch * length * length * (projected // 3)
    if node.op_type == "MultiHeadAttention" and len(inputs[0].shape) == 3 and len(inputs) > 1:
        batch, length, size = inputs[0].shape
        others = inputs[1].shape[1] if len(inputs[1].shape) == 3 else length
        return 4.0 * batch * length * others * size
    return 0.0


def _flag(node: Foreign, name: str) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == name), 0)
