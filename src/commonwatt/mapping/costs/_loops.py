"""Layers as columns of numbers, so that closed forms work on all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from commonwatt.mapping.costs._layers import Layer
from commonwatt.model.arrays import Bools, Floats

__all__ = ["Loops", "times"]


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
