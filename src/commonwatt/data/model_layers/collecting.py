"""Layers from the shapes of an operator's tensors, for all formats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

from commonwatt import __version__
from commonwatt.data.layer_files import digest_of, rows_of
from commonwatt.mapping.costs import Kind, Layer
from commonwatt.model.errors import InputError
from commonwatt.model.map_results import MapLayersResult

__all__ = ["Collection", "Foreign", "SlidingWindow"]

Foreign: TypeAlias = Any
"""An object of ONNX or PyTorch, which may not be installed."""

Shape = Sequence[int]


@dataclass(frozen=True)
class SlidingWindow:
    """How a filter moves: strides, padding before and after, and dilations, one for each direction."""

    strides: Shape
    before: Shape
    after: Shape
    dilations: Shape
    groups: int


@dataclass
class Collection:
    """Layers collected so far.

    Parameters
    ----------
    model
        Name of the model, given to every layer.
    layers
        In order of execution; names that come again get a number.
    unsupported
        How often operators were met that compute more than copies and element-wise functions, but are no layer here.
    approximated
        Names of layers whose inputs a layer can only hold in part: strides or dilations that differ. Their
        multiply-accumulates, weights and outputs are exact.
    """

    model: str
    layers: list[Layer] = field(default_factory=list)
    unsupported: Counter[str] = field(default_factory=Counter)
    approximated: list[str] = field(default_factory=list)
    _names: Counter[str] = field(default_factory=Counter)

    def result(self, model: str, layers: Sequence[Layer]) -> MapLayersResult:
        """Return the document of ``commonwatt map layers`` for the *layers* of *model*, a file or a name."""
        return MapLayersResult(
            version=__version__,
            seed=0,
            input_digest=digest_of(layers),
            source=model,
            macs=sum(layer.macs for layer in layers),
            unsupported=dict(sorted(self.unsupported.items())),
            approximated=tuple(self.approximated),
            layers=rows_of(layers),
        )

    def matmul(self, name: str, a: Shape, b: Shape, *, shared: bool = False) -> None:
        """Add the product of *a*, (..., m, k), and *b*, (..., k, n), whose leading dimensions are broadcast.

        A right side without leading dimensions is one matrix for all rows, as are weights; so it is if *shared*.
        Otherwise every matrix is a group of its own, as in attention.
        """
        if a[-1] != b[-2]:
            raise InputError("sizes that go together", field=name, value=f"{_sizes(a)} by {_sizes(b)}")
        matrices = 1 if shared else prod(b[:-2])
        rows = a[-2] * prod(_broadcast(a[:-2], b[:-2])) // matrices
        if 0 in (rows, matrices, a[-1], b[-1]):
            return  # an empty product
        k, c = matrices * b[-1], matrices * a[-1]
        kind: Kind = "fc" if rows == 1 and matrices == 1 else "gemm"
        self.layers.append(Layer(kind, k, c, y=rows, groups=matrices, name=self._name(name), model=self.model))

    def convolution(self, name: str, x: Shape, weight: Shape, out: Shape, window: SlidingWindow) -> None:
        """Add a convolution of *x*, (batch, c, ...), with *weight*, (k, c / groups, ...), to *out*, (batch, k, ...).

        One direction is a picture of height 1. A third direction and more make the operator unsupported.
        """
        directions = len(x) - 2
        if directions > 2:
            self.unsupported[f"convolution in {directions} directions"] += 1
            return
        if x[1] != weight[1] * window.groups:
            raise InputError("sizes that go together", field=name, value=f"{_sizes(x)} by {_sizes(weight)}")
        if 0 in (*x, *out):
            return
        name = self._name(name)
        y, wide, r, s, stride, padding = self._sizes(name, x[2:], weight[2:], out[2:], window)
        batch, c, k = x[0], x[1], weight[0]
        apart = window.groups == c == k and c > 1
        kind: Kind = "depthwise" if apart else "conv"
        groups = 1 if apart else window.groups
        self.layers.append(
            Layer(kind, 1 if apart else k, c, y, wide, r, s, stride, padding, groups, batch, name, self.model)
        )

    def transposed(self, name: str, x: Shape, weight: Shape, groups: int) -> None:
        """Add a transposed convolution of *x*, (batch, c, ...), with *weight*, (c, k / groups, ...).

        As a 1 x 1 convolution to one channel for every output channel and tap, whose outputs overlap and are summed.
        """
        if len(x) > 4:
            self.unsupported[f"transposed convolution in {len(x) - 2} directions"] += 1
            return
        if 0 in x:
            return
        y, wide = (1, *x[2:])[-2:]
        k = weight[1] * groups * prod(weight[2:])
        self.layers.append(
            Layer("conv", k, x[1], y, wide, groups=groups, batch=x[0], name=self._name(name), model=self.model)
        )

    def _sizes(self, name: str, x: Shape, taps: Shape, out: Shape, window: SlidingWindow) -> tuple[int, ...]:
        """Return y, x, r, s, stride and padding of a convolution as a layer has them, the same in both directions."""
        if len(x) == 1:
            x, taps, out = (1, *x), (1, *taps), (1, *out)
            window = SlidingWindow(
                (window.strides[0],) * 2, (0, *window.before), (0, *window.after), (1, *window.dilations), window.groups
            )
        pads = (*window.before, *window.after)
        stride = max(window.strides)
        if set(window.dilations) == {1} and len(set(window.strides)) == 1:
            if len(set(pads)) == 1:
                return (*x, *taps, stride, pads[0])
            padded = (side + before + after for side, before, after in zip(x, window.before, window.after, strict=True))
            return (*padded, *taps, stride, 0)
        self.approximated.append(name)
        return (*((size - 1) * stride + tap for size, tap in zip(out, taps, strict=True)), *taps, stride, 0)

    def _name(self, name: str) -> str:
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name}#{self._names[name]}"

    def checked(self, file: object = None, *, ignore_unsupported: bool) -> tuple[Layer, ...]:
        """Return the layers; errors name *file*.

        Raises
        ------
        InputError
            For operators that are not supported, unless these are to be counted as nothing, and if there is no layer.
        """
        if self.unsupported and not ignore_unsupported:
            listed = ", ".join(f"{name} ({count})" for name, count in sorted(self.unsupported.items()))
            raise InputError(
                "only supported operators, or --ignore-unsupported to ignore these: " + listed,
                file=file,
                field="operators",
            )
        if not self.layers:
            raise InputError("at least one product of matrices or convolution", file=file, value="none")
        return tuple(self.layers)


def _broadcast(a: Shape, b: Shape) -> tuple[int, ...]:
    length = max(len(a), len(b))
    pairs = zip((1,) * (length - len(a)) + tuple(a), (1,) * (length - len(b)) + tuple(b), strict=True)
    return tuple(y if x == 1 else x for x, y in pairs)


def _sizes(shape: Shape) -> str:
    return " x ".join(map(str, shape))
