"""Builders of networks: they collect layers in order and count parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from commonwatt.mapping.costs import Kind, Layer, TaskClass

__all__ = ["Drawing", "Picture", "Text"]


@dataclass
class Drawing:
    """A network built layer by layer; layers get its name and task.

    Parameters
    ----------
    model, task
        Name of the network and its class.
    layers, parameters
        Layers so far; all trained numbers, those of biases, norms and embedding tables included.
    """

    model: str
    task: TaskClass
    layers: list[Layer] = field(default_factory=list)
    parameters: int = 0

    def add(
        self, kind: Kind, name: str, k: int, c: int, sizes: Mapping[str, int], *, trained: bool = True, extra: int = 0
    ) -> None:
        """Add a layer.

        Parameters
        ----------
        sizes
            Further dimensions of :class:`~commonwatt.mapping.costs._layers.Layer`.
        trained
            Whether its weights are parameters of its own, and not activations or those of an earlier layer.
        extra
            Parameters that come with it, such as biases.
        """
        layer = Layer(kind, k, c, **sizes, name=name, model=self.model, task=self.task)
        self.layers.append(layer)
        self.parameters += (layer.weights if trained else 0) + extra

    def fc(self, name: str, c: int, k: int, *, bias: bool = True) -> None:
        """Add a fully connected layer from *c* to *k*."""
        self.add("fc", name, k, c, {}, extra=k if bias else 0)


@dataclass
class Picture(Drawing):
    """A network of convolutions; *channels* and *side* are the current shape, which is square."""

    channels: int = 3
    side: int = 224

    def conv(
        self, name: str, k: int, r: int, *, stride: int = 1, padding: int | None = None, groups: int = 1,
        extra: int | None = None,
    ) -> None:  # fmt: skip
        """Add a convolution to *k* channels with an r x r filter.

        Parameters
        ----------
        padding
            ``None``: half the filter, so that the size is kept at stride 1.
        groups
            As many as there are channels make it depth-wise.
        extra
            Further parameters; ``None``: a batch norm after it, two for each output channel.
        """
        padding = r // 2 if padding is None else padding
        sizes = {"y": self.side, "x": self.side, "r": r, "s": r, "stride": stride, "padding": padding}
        extra = 2 * k if extra is None else extra
        if groups == self.channels == k:
            self.add("depthwise", name, 1, k, sizes, extra=extra)
        else:
            self.add("conv", name, k, self.channels, sizes | {"groups": groups}, extra=extra)
        self.channels, self.side = k, self.layers[-1].out_y

    def pool(self, r: int, stride: int, *, padding: int = 0, up: bool = False) -> None:
        """Shrink the image like a pooling layer; *up* rounds the new size up."""
        room = self.side + 2 * padding - r
        self.side = (-(-room // stride) if up else room // stride) + 1

    def at(self, channels: int, side: int) -> None:
        """Continue from another point of the network."""
        self.channels, self.side = channels, side


@dataclass
class Text(Drawing):
    """A network over *tokens* tokens at a time."""

    tokens: int = 20

    def linear(
        self, name: str, c: int, k: int, *, rows: int | None = None, bias: bool = True, trained: bool = True
    ) -> None:
        """Add a linear map from *c* to *k* of every token, or of *rows* of them."""
        sizes = {"y": self.tokens if rows is None else rows}
        self.add("gemm", name, k, c, sizes, trained=trained, extra=k * (bias and trained))

    def product(self, name: str, heads: int, rows: int, depth: int, columns: int) -> None:
        """Add *heads* products of rows x depth by depth x columns, as one layer in that many groups."""
        self.add("gemm", name, heads * columns, heads * depth, {"y": rows, "groups": heads}, trained=False)

    def attention(self, name: str, heads: int, size: int, keys: int | None = None) -> None:
        """Add the two products of attention with heads of *size*: queries by keys, and scores by values."""
        keys = self.tokens if keys is None else keys
        self.product(f"{name}.scores", heads, self.tokens, size, keys)
        self.product(f"{name}.context", heads, self.tokens, keys, size)
