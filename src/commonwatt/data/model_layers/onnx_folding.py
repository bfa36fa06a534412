"""Shapes of an ONNX graph that follow only from values: what computes with sizes is computed once inputs are fixed.

Exported models take shapes apart and put them together again (Shape, Gather, Concat, Reshape). ONNX's own inference
follows some of that; here such operators are run and become constants, and inference goes on from there.
"""

from __future__ import annotations

from math import prod

import numpy as np

from commonwatt.data.model_layers.collecting import Foreign

__all__ = ["LARGEST_SIZES", "inferred"]

_FOLDED = {
    "Abs", "Add", "And", "Cast", "Ceil", "Concat", "ConstantOfShape", "Div", "Equal", "Expand", "Flatten", "Floor",
    "Gather", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg",
    "NonZero", "Not", "Or", "Range", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceSum", "Reshape", "Round",
    "ScatterND", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where",
}  # fmt: skip
LARGEST_SIZES = 65_536
"""Elements of a tensor; what is larger holds no sizes."""
_ROUNDS = 500


def inferred(model: Foreign) -> Foreign:
    """Return the model with all shapes that can be known; raises whatever ONNX raises on sizes that do not fit."""
    from onnx import shape_inference

    for _ in range(_ROUNDS):
        del model.graph.value_info[:]  # a size once unknown would stay so
        model = shape_inference.infer_shapes(model, data_prop=True)
        if not _fold(model):
            break
    return model


def _fold(model: Foreign) -> bool:
    """Put constants in the place of operators whose results are known; return whether there were any."""
    from onnx import numpy_helper

    graph = model.graph
    shapes = {value.name: _shape(value) for value in (*graph.input, *graph.value_info)}
    shapes |= {weight.name: tuple(weight.dims) for weight in graph.initializer}
    values = {weight.name: weight for weight in graph.initializer if _is_small(weight)}
    known: dict[str, Foreign] = {}
    left: list[Foreign] = []
    needed = {value.name for value in graph.output}
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    for node in graph.node:
        made = _run(node, shapes, values, known, opsets)
        if made is None or needed & set(node.output):
            left.append(node)
        else:
            known |= made
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in known.items())
    folded = len(left) < len(graph.node)
    kept = [_copy(node) for node in left]
    del graph.node[:]
    graph.node.extend(kept)
    return folded


def _run(
    node: Foreign, shapes: dict[str, tuple[int, ...] | None], values: dict[str, Foreign], known: dict[str, Foreign],
    opsets: dict[str, int],
) -> dict[str, Foreign] | None:  # fmt: skip
    """Return what a node computes, by name; ``None`` if that is not known or nothing that sizes are made of."""
    from onnx import numpy_helper

    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "Constant":
        tensors = [attribute.t for attribute in node.attribute if attribute.name == "value"]
        return {node.output[0]: numpy_helper.to_array(tensors[0])} if tensors and _is_small(tensors[0]) else None
    if node.op_type in ("Shape", "Size"):
        shape = shapes.get(node.input[0])
        if shape is None and node.input[0] in known:
            shape = known[node.input[0]].shape
        if shape is None:
            return None
        limits = {attribute.name: attribute.i for attribute in node.attribute}
        part = shape[limits.get("start", 0) : limits.get("end", len(shape))]
        return {node.output[0]: np.array(prod(shape) if node.op_type == "Size" else part, dtype=np.int64)}
    if node.op_type not in _FOLDED:
        return None
    given: dict[str, Foreign] = {}
    for name in filter(None, node.input):
        if name in known:
            given[name] = known[name]
        elif name in values:
            given[name] = numpy_helper.to_array(values[name])
        else:
            return None
    if all(value.dtype.kind == "f" and value.size > 1 for value in given.values()):
        return None  # weights being prepared, not sizes
    return _computed(node, given, opsets)


def _computed(node: Foreign, given: dict[str, Foreign], opsets: dict[str, int]) -> dict[str, Foreign] | None:
    from onnx.reference import ReferenceEvaluator

    try:
        results = ReferenceEvaluator(node, opsets=opsets).run(None, given)
    except Exception:  # it stays as it is, and shapes behind it may stay unknown
        return None
    found = {name: np.asarray(value) for name, value in zip(node.output, results, strict=False) if name}
    return found if all(value.size <= LARGEST_SIZES for value in found.values()) else None


def _shape(value: Foreign) -> tuple[int, ...] | None:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        return None
    sizes = kind.shape.dim
    return tuple(size.dim_value for size in sizes) if all(size.HasField("dim_value") for size in sizes) else None


def _is_small(tensor: Foreign) -> bool:
    return prod(tensor.dims) <= LARGEST_SIZES and not tensor.external_data


def _copy(node: Foreign) -> Foreign:
    made = type(node)()
    made.CopyFrom(node)
    return made
