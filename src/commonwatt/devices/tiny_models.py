"""Tiny networks with random weights, as ONNX files: to try a device without downloading anything.

``python -m commonwatt.devices.tiny_models FOLDER`` writes all three. ``--width`` and ``--depth`` multiply the channels
and blocks, so that a benchmark can choose the length of an inference.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commonwatt.devices.models.base import Foreign
from commonwatt.model.errors import InputError, MissingExtraError
from commonwatt.model.names import one_of

__all__ = ["TINY_MODELS", "tiny_model", "write_tiny_models"]

_CLASSES, _TOKENS, _LENGTH, _IMAGE = 10, 128, 32, 32


class _Graph:
    """A graph that grows node by node; every method that adds one returns the name of its output."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def node(self, op: str, *inputs: str, **attributes: Foreign) -> str:
        from onnx import helper

        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def weight(self, values: NDArray[Any]) -> str:
        from onnx import numpy_helper

        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def random(self, *shape: int, fan: int = 1, gain: float = 1.0) -> str:
        """Random weights that preserve the variance of their input, so that outputs do not vanish."""
        return self.weight((self.rng.standard_normal(shape) * np.sqrt(gain / fan)).astype(np.float32))

    def conv(
        self, x: str, c_in: int, c_out: int, size: int, *, stride: int = 1, group: int = 1, gain: float = 2.0
    ) -> str:
        fan = c_in // group * size * size
        weight = self.random(c_out, c_in // group, size, size, fan=fan, gain=gain)
        bias = self.random(c_out, gain=0.01)
        pads = [size // 2] * 4
        return self.node("Conv", x, weight, bias, kernel_shape=[size] * 2, strides=[stride] * 2, pads=pads, group=group)

    def batch_norm(self, x: str, channels: int) -> str:
        parts = [1 + 0.1 * self.rng.random(channels), 0.1 * self.rng.random(channels), 0.1 * self.rng.random(channels)]
        names = [self.weight(part.astype(np.float32)) for part in (*parts, 1 + self.rng.random(channels))]
        return self.node("BatchNormalization", x, *names)

    def dense(self, x: str, c_in: int, c_out: int) -> str:
        return self.node("Gemm", x, self.random(c_in, c_out, fan=c_in), self.random(c_out, gain=0.01))

    def linear(self, x: str, c_in: int, c_out: int) -> str:
        product = self.node("MatMul", x, self.random(c_in, c_out, fan=c_in))
        return self.node("Add", product, self.random(c_out, gain=0.01))

    def classify(self, x: str, channels: int) -> str:
        return self.dense(self.node("Flatten", self.node("GlobalAveragePool", x)), channels, _CLASSES)


def _resnet(graph: _Graph, width: int, depth: int) -> str:
    """Residual blocks of two convolutions each; the first with batch normalisation, the second with it folded in."""
    c_in = 16 * width
    x = graph.node("Relu", graph.conv("image", 3, c_in, 3))
    for stage, c_out in enumerate((16 * width, 32 * width, 64 * width)):
        for block in range(depth):
            stride = 2 if stage and not block else 1
            y = graph.batch_norm(graph.conv(x, c_in, c_out, 3, stride=stride), c_out)
            y = graph.conv(graph.node("Relu", y), c_out, c_out, 3, gain=0.4)
            skip = x if c_in == c_out else graph.conv(x, c_in, c_out, 1, stride=stride)
            x = graph.node("Relu", graph.node("Add", y, skip))
            c_in = c_out
    return graph.classify(x, c_in)


def _mobilenet(graph: _Graph, width: int, depth: int) -> str:
    """Inverted residuals: widen by 1x1, filter each channel by itself, narrow by 1x1."""
    low, high = graph.weight(np.array(0, np.float32)), graph.weight(np.array(6, np.float32))
    c_in = 8 * width
    x = graph.node("Clip", graph.conv("image", 3, c_in, 3), low, high)
    for stage, c_out in enumerate((8 * width, 16 * width, 32 * width)):
        for block in range(depth + 1):
            stride, middle = (2 if stage and not block else 1), 4 * c_in
            y = graph.node("Clip", graph.conv(x, c_in, middle, 1), low, high)
            y = graph.node("Clip", graph.conv(y, middle, middle, 3, stride=stride, group=middle), low, high)
            y = graph.conv(y, middle, c_out, 1)
            x = graph.node("Add", x, y) if c_in == c_out and stride == 1 else y
            c_in = c_out
    return graph.classify(x, c_in)


def _norm(graph: _Graph, x: str, size: int) -> str:
    ones, zeros = graph.weight(np.ones(size, np.float32)), graph.weight(np.zeros(size, np.float32))
    return graph.node("LayerNormalization", x, ones, zeros, axis=-1)


def _attention(graph: _Graph, x: str, size: int, heads: int) -> str:
    split = graph.weight(np.array([0, 0, heads, size // heads], np.int64))
    join = graph.weight(np.array([0, 0, size], np.int64))
    q, k, v = (graph.node("Reshape", graph.linear(x, size, size), split) for _ in range(3))
    q, v = (graph.node("Transpose", part, perm=[0, 2, 1, 3]) for part in (q, v))
    scores = graph.node("MatMul", q, graph.node("Transpose", k, perm=[0, 2, 3, 1]))
    scale = graph.weight(np.array(np.sqrt(size / heads), np.float32))
    shares = graph.node("Softmax", graph.node("Div", scores, scale), axis=-1)
    mixed = graph.node("Transpose", graph.node("MatMul", shares, v), perm=[0, 2, 1, 3])
    return graph.linear(graph.node("Reshape", mixed, join), size, size)


def _gelu(graph: _Graph, x: str) -> str:
    root, one, half = (graph.weight(np.array(value, np.float32)) for value in (np.sqrt(2), 1, 0.5))
    bell = graph.node("Add", graph.node("Erf", graph.node("Div", x, root)), one)
    return graph.node("Mul", graph.node("Mul", x, bell), half)


def _transformer(graph: _Graph, width: int, depth: int) -> str:
    """Blocks of attention and a two-layer perceptron, both after a layer norm and beside a skip connection."""
    size, heads = 64 * width, 4
    x = graph.node("Gather", graph.random(_TOKENS, size), "tokens")
    x = graph.node("Add", x, graph.random(_LENGTH, size, gain=0.1))
    for _ in range(2 * depth):
        x = graph.node("Add", x, _attention(graph, _norm(graph, x, size), size, heads))
        y = _gelu(graph, graph.linear(_norm(graph, x, size), size, 4 * size))
        x = graph.node("Add", x, graph.linear(y, 4 * size, size))
    return graph.linear(_norm(graph, x, size), size, _TOKENS)


TINY_MODELS: dict[str, Callable[[_Graph, int, int], str]] = {
    "resnet": _resnet,
    "mobilenet": _mobilenet,
    "transformer": _transformer,
}


def tiny_model(kind: str, *, seed: int = 0, width: int = 1, depth: int = 1) -> Foreign:
    """Return one of :data:`TINY_MODELS` as an ``onnx.ModelProto`` with a free batch size.

    Parameters
    ----------
    kind
        ``resnet`` and ``mobilenet`` take images (FP32), ``transformer`` tokens (INT64).
    seed
        Of the random weights.
    width, depth
        Multiples of the channels and blocks of the smallest network.
    """
    try:
        import onnx
        from onnx import TensorProto, helper
    except ImportError as error:
        raise MissingExtraError("onnx", "onnx") from error
    if kind not in TINY_MODELS:
        raise InputError(one_of(TINY_MODELS, kind), field="kind", value=kind)
    graph = _Graph(seed)
    TINY_MODELS[kind](graph, width, depth)
    graph.nodes[-1].output[0] = "logits"
    if kind == "transformer":
        source = helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", _LENGTH])
        shape: list[Any] = ["batch", _LENGTH, _TOKENS]
    else:
        source = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, _IMAGE, _IMAGE])
        shape = ["batch", _CLASSES]
    result = helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)
    made = helper.make_graph(graph.nodes, kind, [source], [result], graph.weights)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def write_tiny_models(
    folder: str | Path, seed: int = 0, *, width: int = 1, depth: int = 1, kinds: Sequence[str] = tuple(TINY_MODELS)
) -> dict[str, Path]:
    """Write *kinds* into *folder* as ``KIND.onnx`` and return their paths by kind."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {kind: folder / f"{kind}.onnx" for kind in kinds}
    for kind, path in paths.items():
        path.write_bytes(tiny_model(kind, seed=seed, width=width, depth=depth).SerializeToString())
    return paths


def _main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m commonwatt.devices.tiny_models", description="Write tiny ONNX models.")
    parser.add_argument("folder", type=Path, help="folder to write the models to")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights")
    parser.add_argument("--width", type=int, default=1, help="multiple of the number of channels")
    parser.add_argument("--depth", type=int, default=1, help="multiple of the number of blocks")
    parser.add_argument("--kind", action="append", choices=list(TINY_MODELS), help="only this one; may be repeated")
    given = parser.parse_args(arguments)
    kinds = given.kind or tuple(TINY_MODELS)
    write_tiny_models(given.folder, given.seed, width=given.width, depth=given.depth, kinds=kinds)


if __name__ == "__main__":
    _main()
