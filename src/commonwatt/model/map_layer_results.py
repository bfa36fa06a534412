"""What ``commonwatt map layers`` and ``commonwatt map batch`` answer with."""

from __future__ import annotations

from commonwatt.model.fields import AnswerModel, ResultModel, quantity

__all__ = ["MapBatchResult", "MapLayer", "MapLayersResult", "MapNetwork", "MapNetworksResult"]


class MapLayer(ResultModel):
    """One layer; values, pixels and channels are counted."""

    name: str = quantity("what it is called")
    model: str = quantity("network it is from")
    kind: str = quantity("fc, conv, depthwise or gemm")
    k: int = quantity("output channels; 1 for depthwise, one filter for each of c")
    c: int = quantity("input channels")
    y: int = quantity("height of the input; of a gemm its rows")
    x: int = quantity("width of the input")
    r: int = quantity("height of the filter")
    s: int = quantity("width of the filter")
    stride: int = quantity("stride")
    padding: int = quantity("padding on each side")
    groups: int = quantity("groups it is cut into; of attention its heads")
    batch: int = quantity("inputs worked on at a time")
    macs: int = quantity("multiply-accumulates")


class MapLayersResult(AnswerModel):
    """Answer of ``commonwatt map layers MODEL``."""

    source: str = quantity("the file or the network")
    macs: int = quantity("multiply-accumulates of all layers")
    unsupported: dict[str, int] = quantity("operators counted as nothing as was asked, and how often they occur")
    approximated: tuple[str, ...] = quantity(
        "layers with unequal strides or with dilations, whose inputs are counted as if there were none"
    )
    layers: tuple[MapLayer, ...] = quantity("the layers, in order of execution")


class MapNetwork(ResultModel):
    """A network whose layers are shipped."""

    model: str = quantity("name for map layers")
    title: str = quantity("name in the paper")
    task: str = quantity("vision, language or recommendation")
    in_table_3: bool = quantity("whether Table 3 of the paper lists it")
    layers: int = quantity("number of layers")
    macs: int = quantity("multiply-accumulates of one input, of language 20 tokens")
    parameters: int = quantity("trained numbers; of recommendation without embedding tables")
    source: str = quantity("where it is defined")
    derived: str = quantity("how its layers were derived")


class MapNetworksResult(AnswerModel):
    """Answer of ``commonwatt map layers``."""

    networks: tuple[MapNetwork, ...] = quantity("the networks")


class MapBatchResult(AnswerModel):
    """Answer of ``commonwatt map batch``."""

    batch_class: str = quantity("vision, lang, recom, mix or random")
    distinct: int = quantity("number of distinct shapes")
    macs: int = quantity("multiply-accumulates of all layers")
    models: dict[str, int] = quantity("number of layers from each network")
    layers: tuple[MapLayer, ...] = quantity("the layers, in order")
