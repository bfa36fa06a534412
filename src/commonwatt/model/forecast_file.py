"""The header of a model file: the facts of a fitted network, or of fitted trees."""

from __future__ import annotations

from typing import Literal, TypeAlias

from commonwatt.model.fields import FileModel, quantity

__all__ = [
    "FORMAT",
    "TREES",
    "TREES_TOO",
    "BlendModelHeader",
    "ForecastModelHeader",
    "ModelHeader",
    "NetworkFields",
    "NetworkRecipeFields",
    "NetworkSettingsFields",
    "TreesFields",
    "TreesModelHeader",
    "header_type",
]

FORMAT = 2
"""Format of model files this version reads and writes."""

TREES = "lightgbm"
"""Kind of fitted trees alone."""

TREES_TOO = f"+{TREES}"
"""End of the kind of a network and trees."""


class NetworkRecipeFields(FileModel):
    """How each network was trained."""

    epochs: int = quantity("most epochs", ge=1)
    share: float = quantity("part of the examples an epoch takes", gt=0, le=1)
    batch: int = quantity("examples per step", ge=1)
    rate: float = quantity("highest learning rate", gt=0)
    decay: float = quantity("weight decay", ge=0)
    patience: int = quantity("epochs without a better validation loss after which training ends", ge=1)
    smoothing: float = quantity("part of the averaged weights that a step keeps", ge=0, lt=1)
    upper: float = quantity("weight of the loss at levels of .9 or above; 1 below", gt=0)


class NetworkSettingsFields(FileModel):
    """Settings of the networks."""

    members: int = quantity("networks to be trained", ge=1)
    hidden: int = quantity("size of the encoder's state", ge=1, le=4096)
    width: int = quantity("size of the context vector", ge=1, le=4096)
    dropout: float = quantity("share of activations dropped in training", ge=0, lt=1)
    ignored: float = quantity("share of inputs dropped in training", ge=0, lt=1)
    held_out: float = quantity("part of the examples that validates each epoch; 0 to keep the last", ge=0, lt=1)
    raw: bool = quantity("whether it works on levels, not changes")
    recipe: NetworkRecipeFields = quantity("how each was trained")


class NetworkFields(FileModel):
    """Facts of fitted networks."""

    kind: str = quantity("gru, bilstm or cnn")
    point: bool = quantity("whether it was trained on squared error")
    look_back: int = quantity("values used for a forecast", ge=1, le=10**6)
    horizon: int = quantity("steps forecast", ge=1, le=10**5)
    settings: NetworkSettingsFields = quantity("settings")
    members: int = quantity("networks in the file", ge=1)
    resolution: float = quantity("unit networks work in", "GPUs", gt=0)
    offset: float = quantity("mean level; 0 where they work on changes", "GPUs")
    whole: bool = quantity("whether demand came in whole GPUs only")
    start_s: float = quantity("instant of the first value it was fitted on", "s")
    step_s: float = quantity("time between two values", "s", gt=0)
    seen: int = quantity("values observed", ge=1)


class TreesFields(FileModel):
    """Facts of fitted trees."""

    kind: Literal["lightgbm"] = quantity("lightgbm")
    look_back: int = quantity("values used for a forecast", ge=1, le=10**6)
    horizon: int = quantity("steps forecast", ge=1, le=10**5)
    trees: int = quantity("trees of each model", ge=1)
    steps: tuple[int, ...] = quantity("steps models were fitted for, the nearest first", min_length=1)
    levels: tuple[float, ...] = quantity("quantile levels they were fitted for, the lowest first", min_length=1)
    features: tuple[str, ...] = quantity("columns beside demand that a forecast needs", default=())
    shares: tuple[float, ...] = quantity("share of last-value in the forecast of each of the steps", default=())
    whole: bool = quantity("whether demand came in whole GPUs only")
    start_s: float = quantity("instant of the first value it was fitted on", "s")
    step_s: float = quantity("time between two values", "s", gt=0)
    seen: int = quantity("values observed", ge=1)


class _Written(FileModel):
    """The first fields of every header."""

    format: int = quantity("format of the file")
    commonwatt: str = quantity("version that wrote it")
    seed: int = quantity("seed it was fitted with", ge=0)


class ForecastModelHeader(NetworkFields, _Written):
    """Header of a model file, whose arrays are the networks' weights and the last values observed."""


class TreesModelHeader(TreesFields, _Written):
    """Header of a model file whose arrays are LightGBM's trees and the last values observed."""


class BlendModelHeader(_Written):
    """Header of a model file with networks and trees whose forecasts are averaged."""

    kind: str = quantity("gru+lightgbm")
    network: NetworkFields = quantity("the networks, whose arrays' names begin with `network.`")
    trees: TreesFields = quantity("the trees, whose arrays' names begin with `trees.`")


ModelHeader: TypeAlias = ForecastModelHeader | TreesModelHeader | BlendModelHeader


def header_type(kind: object) -> type[ModelHeader]:
    """Return the class of the header of a model of *kind*."""
    if kind == TREES:
        return TreesModelHeader
    return BlendModelHeader if isinstance(kind, str) and kind.endswith(TREES_TOO) else ForecastModelHeader
