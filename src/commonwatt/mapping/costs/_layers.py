"""A layer of a neural network as the cost models see it: seven loops; and layers as columns of numbers.

In columns, closed forms work on all layers at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from commonwatt.model.arrays import Bools, Floats
from commonwatt.model.errors import InputError

__all__ = ["Kind", "Layer", "Loops", "TaskClass", "times"]

Kind = Literal["fc", "conv", "depthwise", "gemm"]
TaskClass = Literal["vision", "language", "recommendation"]


@dataclass(frozen=True)
class Layer:
    """One layer (G#, section 2.2), as a convolution.

    A fully connected layer is (k, c, 1, 1, 1, 1), a product of m x c by c x k ("gemm") is (k, c, m, 1, 1, 1), a
    depth-wise convolution has k = 1 and one filter for each of its c channels.

    Parameters
    ----------
    kind
        ``fc``, ``conv``, ``depthwise`` or ``gemm``.
    k, c
        Output and input channels; of a grouped convolution all of them.
    y, x
        Height and width of the input, without padding.
    r, s
        Height and width of the filter.
    stride, padding
        Of both directions; padding on each side.
    groups
        Groups a convolution is cut into, 1 for none; c and k are multiples of it.
    batch
        Inputs worked on at a time.
    name, model, task
        What it is called, the network it is from, and the class of that.

    Raises
    ------
    InputError
        For a dimension below 1, a padding below 0, a filter larger than its padded input, or a kind that contradicts
        the dimensions.
    """

    kind: Kind
    k: int
    c: int
    y: int = 1
    x: int = 1
    r: int = 1
    s: int = 1
    stride: int = 1
    padding: int = 0
    groups: int = 1
    batch: int = 1
    name: str = ""
    model: str = ""
    task: TaskClass | None = None

    def __post_init__(self) -> None:
        for dimension in ("k", "c", "y", "x", "r", "s", "stride", "groups", "batch"):
            if getattr(self, dimension) < 1:
                raise InputError("a whole number above 0", field=dimension, value=getattr(self, dimension))
        if self.padding < 0:
            raise InputError("0 or more", field="padding", value=self.padding)
        for size, taps in (("y", "r"), ("x", "s")):
            if getattr(self, taps) > getattr(self, size) + 2 * self.padding:
                raise InputError(
                    f"a filter no larger than its input of {getattr(self, size)} with padding {self.padding}",
                    field=taps,
                    value=getattr(self, taps),
                )
        if self.kind == "depthwise" and self.k != 1:
            raise InputError(
                "1, as a depth-wise layer has one filter for each of its c channels", field="k", value=self.k
            )
        if self.c % self.groups or (self.kind != "depthwise" and self.k % self.groups):
            raise InputError("a divisor of k and c", field="groups", value=self.groups)
        single = {"fc": ("y", "x", "r", "s"), "gemm": ("x", "r", "s")}.get(self.kind, ())
        for dimension in single:
            if getattr(self, dimension) != 1:
                raise InputError(f"1 in a layer of kind {self.kind}", field=dimension, value=getattr(self, dimension))

    @property
    def out_y(self) -> int:
        """Height of the output."""
        return (self.y + 2 * self.padding - self.r) // self.stride + 1

    @property
    def out_x(self) -> int:
        """Width of the output."""
        return (self.x + 2 * self.padding - self.s) // self.stride + 1

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        filters = self.c if self.kind == "depthwise" else self.k * self.c // self.groups
        return self.batch * filters * self.out_y * self.out_x * self.r * self.s

    @property
    def weights(self) -> int:
        """Number of weights."""
        filters = self.c if self.kind == "depthwise" else self.k * self.c // self.groups
        return filters * self.r * self.s

    @property
    def inputs(self) -> int:
        """Number of input values."""
        return self.batch * self.c * self.y * self.x

    @property
    def outputs(self) -> int:
        """Number of output values."""
        return self.batch * (self.c if self.kind == "depthwise" else self.k) * self.out_y * self.out_x


@dataclass(frozen=True)
class Loops:
    """Columns of layers, all of one shape; whole numbers as floats, as their products may be large.

    ``k``, ``c``, ``y``, ``x``, ``r``, ``s``, ``stride``, ``padding``, ``groups`` and ``batch`` are as in ``Layer``;
    ``out_y``, ``out_x`` height and width of the output. A depth-wise layer has ``c`` groups of one channel each.
    """

    depthwise: Bools
    k: Floats
    c: Floats
    y: Floats
    x: Floats
    r: Floats
    s: Floats
    stride: Floats
    padding: Floats
    groups: Floats
    batch: Floats
    out_y: Floats
    out_x: Floats

    @classmethod
    def of(cls, layers: Sequence[Layer]) -> Loops:
        """Return the columns of *layers*, [L]."""
        numbers = {
            name: np.array([getattr(layer, name) for layer in layers], dtype=np.float64)
            for name in (field.name for field in fields(cls))
            if name != "depthwise"
        }
        depthwise = np.array([layer.kind == "depthwise" for layer in layers], dtype=np.bool_)
        numbers["groups"] = np.where(depthwise, numbers["c"], numbers["groups"])
        return cls(depthwise, **numbers)

    def __getitem__(self, chosen: slice | Bools) -> Loops:
        return Loops(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def __len__(self) -> int:
        return len(self.k)

    @property
    def k_group(self) -> Floats:
        """Output channels of one group."""
        return np.where(self.depthwise, 1.0, self.k / self.groups)

    @property
    def c_group(self) -> Floats:
        """Input channels of one group."""
        return self.c / self.groups

    @property
    def macs(self) -> Floats:
        """Multiply-accumulates."""
        return self.batch * self.weights * self.out_y * self.out_x

    @property
    def weights(self) -> Floats:
        """Number of weights."""
        return self.groups * self.k_group * self.c_group * self.r * self.s

    @property
    def inputs(self) -> Floats:
        """Number of input values."""
        return self.batch * self.c * self.y * self.x

    @property
    def outputs(self) -> Floats:
        """Number of output values."""
        return self.batch * self.groups * self.k_group * self.out_y * self.out_x

    @property
    def least_bytes(self) -> Floats:
        """What must be moved at least: weights, inputs and outputs once, one byte each."""
        return self.weights + self.inputs + self.outputs


def times(size: Floats | float, tile: Floats | float) -> Floats:
    """Return how many tiles cover *size*, rounded up."""
    return np.asarray(-(-np.asarray(size) // tile), dtype=np.float64)
