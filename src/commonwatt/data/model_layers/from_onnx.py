"""Layers of an ONNX model, from the shapes of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path

from commonwatt.data.model_layers.collecting import Collection, Foreign, SlidingWindow
from commonwatt.data.model_layers.onnx_shapes import Shaped, load_shaped
from commonwatt.model.errors import InputError

__all__ = ["collect_onnx"]

Shape = tuple[int, ...]

_UNSUPPORTED = {
    "DeformConv", "DFT", "STFT", "If", "Loop", "Scan", "SequenceMap", "GridSample", "RoiAlign", "MaxRoiPool", "Det",
    "AffineGrid",
}  # fmt: skip
"""Standard operators with subgraphs, or with products that no layer represents."""
_LIKE_MOVES = {"com.microsoft": {
    "Gelu", "FastGelu", "BiasGelu", "QuickGelu", "LayerNormalization", "SkipLayerNormalization", "RotaryEmbedding",
    "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "EmbedLayerNormalization", "QuantizeLinear",
    "DequantizeLinear",
}}  # fmt: skip


def collect_onnx(path: str | Path, dims: Mapping[str, int]) -> Collection:
    """Read the layers of an ONNX file, with *dims* for its dynamic dimensions.

    Raises
    ------
    InputError
        As :func:`~commonwatt.data.model_layers.onnx_shapes.load_shaped` does, and for an operator whose shapes do not
        follow from those of the inputs; it names the file.
    MissingExtraError
        Without the package onnx.
    """
    try:
        shaped = load_shaped(path, dims)
        collection = Collection(Path(path).stem)
        for place, node in enumerate(shaped.graph.node):
            _Node(node, node.name or f"{node.op_type}_{place}", shaped, collection).collect()
    except InputError as error:
        raise error.within(path) from None
    return collection


class _Node:
    """One operator."""

    def __init__(self, node: Foreign, name: str, shaped: Shaped, collection: Collection) -> None:
        self.node, self.name, self.shaped, self.collection = node, name, shaped, collection
        self.values = {attribute.name: attribute for attribute in node.attribute}

    def collect(self) -> None:
        """Add its layers, if any."""
        own = self.node.domain in ("", "ai.onnx")
        handler = _HANDLERS.get(self.node.op_type) if own or self.node.domain == "com.microsoft" else None
        if handler is not None:
            handler(self)
        elif self.node.op_type in _UNSUPPORTED or not (
            own or self.node.op_type in _LIKE_MOVES.get(self.node.domain, set())
        ):
            self.collection.unsupported[self.node.op_type if own else f"{self.node.domain}::{self.node.op_type}"] += 1

    def whole(self, name: str, default: int) -> int:
        """Return an attribute that is a number."""
        return int(self.values[name].i) if name in self.values else default

    def many(self, name: str, default: Sequence[int]) -> Shape:
        """Return an attribute that is a list of numbers."""
        return tuple(self.values[name].ints) if name in self.values else tuple(default)

    def text(self, name: str, default: str) -> str:
        """Return an attribute that is text."""
        return str(self.values[name].s.decode()) if name in self.values else default

    def shape(self, place: int, *, output: bool = False) -> Shape:
        """Return the shape of an input or output; raises ``InputError`` if it is unknown."""
        names = self.node.output if output else self.node.input
        name = names[place] if place < len(names) else ""
        if name not in self.shaped.shapes:
            kind = f"{self.node.op_type} {self.name}"
            raise InputError(
                "shapes that follow from those of the inputs; a model simplified or optimised first may have them",
                field=name or f"input {place}",
                value=f"an unknown shape at {kind}",
            )
        return self.shaped.shapes[name]

    def stored(self, place: int) -> bool:
        """Return whether an input is stored in the file."""
        return self.node.input[place] in self.shaped.weights


def _conv(node: _Node, x_at: int = 0, weight_at: int = 1) -> None:
    x, weight, out = node.shape(x_at), node.shape(weight_at), node.shape(0, output=True)
    directions = len(x) - 2
    strides, dilations = (node.many(name, [1] * directions) for name in ("strides", "dilations"))
    pads = node.many("pads", [0] * 2 * directions)
    before, after = pads[:directions], pads[directions:]
    automatic = node.text("auto_pad", "NOTSET")
    if automatic == "VALID":
        before = after = (0,) * directions
    elif automatic.startswith("SAME"):
        reach = ((taps - 1) * dilation + 1 for taps, dilation in zip(weight[2:], dilations, strict=True))
        sides = zip(x[2:], out[2:], strides, reach, strict=True)
        both = [max(0, (made - 1) * stride + taps - side) for side, made, stride, taps in sides]
        less, more = tuple(pad // 2 for pad in both), tuple(pad - pad // 2 for pad in both)
        before, after = (less, more) if automatic == "SAME_UPPER" else (more, less)
    window = SlidingWindow(strides, before, after, dilations, node.whole("group", 1))
    node.collection.convolution(node.name, x, weight, out, window)


def _conv_transpose(node: _Node) -> None:
    node.collection.transposed(node.name, node.shape(0), node.shape(1), node.whole("group", 1))


def _gemm(node: _Node) -> None:
    a, b = node.shape(0), node.shape(1)
    a = a[::-1] if node.whole("transA", 0) else a
    b = b[::-1] if node.whole("transB", 0) else b
    node.collection.matmul(node.name, a, b)


def _matmul(node: _Node, b_at: int = 1) -> None:
    a, b = node.shape(0), node.shape(b_at)
    a = (1, *a) if len(a) == 1 else a
    b = (*b, 1) if len(b) == 1 else b
    a = (*a[:-2], a[-1], a[-2]) if node.whole("transA", 0) else a
    b = (*b[:-2], b[-1], b[-2]) if node.whole("transB", 0) else b
    if node.stored(0) and not node.stored(b_at) and len(a) == 2:  # weights on the left
        a, b = (prod(b[:-2]) * b[-1], b[-2]), (a[1], a[0])
    node.collection.matmul(node.name, a, b)


def _einsum(node: _Node) -> None:
    """Two operands without an ellipsis: labels of both that are kept are groups, those that are not are summed over."""
    left, arrow, out = node.text("equation", "").replace(" ", "").partition("->")
    operands = left.split(",")
    labels = "".join(operands)
    if len(operands) != 2 or not arrow or "." in labels or any(len(set(one)) < len(one) for one in operands):
        node.collection.unsupported[f"Einsum {node.text('equation', '')}"] += 1
        return
    size: dict[str, int] = {}
    for place, operand in enumerate(operands):
        size |= dict(zip(operand, node.shape(place), strict=True))
    first, second, kept = (set(one) for one in (*operands, out))
    summed = first & second - kept
    if not summed:
        return  # nothing is accumulated
    groups, m, n, k = (
        prod(size[label] for label in some)
        for some in (first & second & kept, (first & kept) - second, (second & kept) - first, summed)
    )
    shared = (m, k), (k, n)
    node.collection.matmul(node.name, *(shared if groups == 1 else ((groups, m, k), (groups, k, n))))


def _recurrent(node: _Node) -> None:
    """RNN, GRU and LSTM: input and state of every step times their weights, for each direction."""
    first, second = node.shape(0)[:2]
    for part, place in (("input", 1), ("state", 2)):
        directions, k, c = node.shape(place)
        for direction in range(directions):
            suffix = f".{direction}" if directions > 1 else ""
            node.collection.matmul(f"{node.name}.{part}{suffix}", (first * second, c), (c, k))


def _attention(node: _Node) -> None:
    """Attention of ONNX 23: queries, keys and values in heads (four dimensions), or to be cut into them (three)."""
    query, key, value = (node.shape(place) for place in range(3))
    if len(query) == 3:
        heads = node.whole("q_num_heads", 1), node.whole("kv_num_heads", 1)
        query, key, value = (
            (one[0], many, one[1], one[2] // many)
            for one, many in zip((query, key, value), (heads[0], heads[1], heads[1]), strict=True)
        )
    batch, heads_of_queries, rows, _ = query
    columns, both = key[2], (batch, heads_of_queries)
    node.collection.matmul(f"{node.name}.scores", query, (*both, query[3], columns))
    node.collection.matmul(f"{node.name}.context", (*both, rows, columns), (*both, columns, value[3]))


def _own_attention(node: _Node) -> None:
    if node.node.domain == "com.microsoft":
        node.collection.unsupported["com.microsoft::Attention"] += 1
    else:
        _attention(node)


_HANDLERS: dict[str, Callable[[_Node], None]] = {
    "Conv": _conv,
    "FusedConv": _conv,
    "ConvInteger": _conv,
    "QLinearConv": lambda node: _conv(node, 0, 3),
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "FusedGemm": _gemm,
    "MatMul": _matmul,
    "FusedMatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": lambda node: _matmul(node, 3),
    "Einsum": _einsum,
    "RNN": _recurrent,
    "GRU": _recurrent,
    "LSTM": _recurrent,
    "Attention": _own_attention,
}
