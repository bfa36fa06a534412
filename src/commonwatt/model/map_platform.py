"""What stands in a problem of ``map`` for a job table: sub-accelerators, and layers to be costed on them."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from commonwatt.model.fields import FileModel, quantity

__all__ = ["AcceleratorSpec", "BatchSpec", "LayerSpec"]

_LARGEST = 10**9  # no dimension beyond this is meant
_NEEDED = {"fc": "kc", "gemm": "kcy", "conv": "kcyxrs", "depthwise": "cyxrs"}


class AcceleratorSpec(FileModel):
    """One or several equal sub-accelerators."""

    name: str = quantity("what it is called; of several, a number is added", "-", "")
    dataflow: Literal["HB", "LB", "SHI"] = quantity(
        "what is spread over the array: channels (HB), rows of the output (LB), rows and columns of it (SHI)"
    )
    pe_rows: int = quantity("rows of processing elements", "-", ge=1, le=100_000)
    pe_cols: int = quantity("columns of processing elements", "-", 64, ge=1, le=100_000)
    sg_kib: float | None = quantity(
        "global scratchpad, both halves of the double buffer; null: as large as it takes", "KiB", None, gt=0
    )
    sl_bytes: float | None = quantity(
        "scratchpad of a processing element, both halves; null: as large as it takes", "B", None, gt=0
    )
    flexible: bool = quantity("whether the shape is chosen for each layer, within rows times columns", default=False)
    count: int = quantity("how many of them", "-", 1, ge=1, le=4096)


class LayerSpec(FileModel):
    """One or several equal layers; unit: values, pixels or channels."""

    name: str = quantity("what it is called", "-", "")
    model: str = quantity("network it is from", "-", "")
    task: Literal["vision", "language", "recommendation"] | None = quantity("class of the network", "-", None)
    kind: Literal["fc", "conv", "depthwise", "gemm"] = quantity("kind of layer")
    k: int = quantity("output channels; 1 for depthwise, one filter for each of c", "-", 1, ge=1, le=_LARGEST)
    c: int = quantity("input channels", "-", ge=1, le=_LARGEST)
    y: int = quantity("height of the input; of a gemm its rows", "-", 1, ge=1, le=_LARGEST)
    x: int = quantity("width of the input", "-", 1, ge=1, le=_LARGEST)
    r: int = quantity("height of the filter", "-", 1, ge=1, le=_LARGEST)
    s: int = quantity("width of the filter", "-", 1, ge=1, le=_LARGEST)
    stride: int = quantity("stride", "-", 1, ge=1, le=_LARGEST)
    padding: int = quantity("padding on each side", "-", 0, ge=0, le=_LARGEST)
    groups: int = quantity("groups a convolution is cut into", "-", 1, ge=1, le=_LARGEST)
    batch: int = quantity("inputs worked on at a time", "-", 1, ge=1, le=_LARGEST)
    repeat: int = quantity("how many jobs are such a layer", "-", 1, ge=1, le=100_000)

    @model_validator(mode="after")
    def _check_form(self) -> LayerSpec:
        for name in _NEEDED[self.kind]:
            if name not in self.model_fields_set:
                msg = f"{name}: expected this field to be given, as the layer is of kind {self.kind}"
                raise ValueError(msg)
        return self


class BatchSpec(FileModel):
    """Layers drawn from the networks of a class, or all layers of some networks, one after another."""

    batch_class: Literal["vision", "lang", "recom", "mix", "random"] | None = quantity(
        "which networks to draw from, each layer with the same chance", "-", None, alias="class"
    )
    count: int = quantity("how many layers are drawn", "-", 100, ge=1, le=100_000)
    seed: int = quantity("seed of the draw", "-", 0, ge=0)
    products: bool = quantity("whether products of activations are drawn too (attention, interactions)", default=False)
    networks: tuple[str, ...] | None = quantity("networks as map layers names them", "-", None, min_length=1)
    tokens: int | None = quantity("length of the text of language networks; null: 20", "tokens", None, ge=1)

    @model_validator(mode="after")
    def _check_form(self) -> BatchSpec:
        if (self.batch_class is None) == (self.networks is None):
            msg = "class: expected a class or networks" + (", not both" if self.networks else "")
            raise ValueError(msg)
        if self.tokens is not None and self.networks is None:
            msg = "tokens: expected networks beside it; what is drawn by class has 20"
            raise ValueError(msg)
        return self
