"""What the header of a model file says of a fitted network, or of fitted trees."""

from __future__ import annotations

from typing import Literal

from commonwatt.model.fields import FileModel, quantity

__all__ = [
    "FORMAT",
    "BlendModelHeader",
    "ForecastModelHeader",
    "NetworkFields",
    "NetworkRecipeFields",
    "NetworkSettingsFields",
    "TreesFields",
    "TreesModelHeader",
]

FORMAT = 2
"""Format of model files this version reads and writes."""


class NetworkRecipeFields(FileModel):
    """How each network was trained."""

    epochs: int = quantity("most epochs", ge=1)
    share: float = quantity("part of the examples an epoch takes", gt=0, le=1)
    batch: int = quantity("examples per step", ge=1)
    rate: float = quantity("highest learning rate", gt=0)
    decay: float = quantity("weight decay", ge=0)
    patience: int = quantity("epochs without a better held-out loss after which training ends", ge=1)
    smoothing: float = quantity("part of the averaged weights that a step leaves as it was", ge=0, lt=1)
    upper: float = quantity("weight of the loss at levels of .9 or above; 1 below", gt=0)


class NetworkSettingsFields(FileModel):
    """What was chosen about the networks."""

    members: int = quantity("networks to be trained", ge=1)
    hidden: int = quantity("size of the encoder's state", ge=1, le=4096)
    width: int = quantity("size of the context vector", ge=1, le=4096)
    dropout: float = quantity("share of activations dropped in training", ge=0, lt=1)
    ignored: float = quantity("share of inputs dropped in training", ge=0, lt=1)
    held_out: float = quantity("part of the examples that judges each epoch; 0 to keep the last", ge=0, lt=1)
    raw: bool = quantity("whether it works on levels, not changes")
    recipe: NetworkRecipeFields = quantity("how each was trained")


class NetworkFields(FileModel):
    """What is said of fitted networks."""

    kind: str = quantity("gru, bilstm or cnn")
    point: bool = quantity("whether it was trained on squared error")
    look_back: int = quantity("values seen before a forecast", ge=1, le=10**6)
    horizon: int = quantity("steps forecast", ge=1, le=10**5)
    settings: NetworkSettingsFields = quantity("what was chosen")
    members: int = quantity("networks in the file", ge=1)
    resolution: float = quantity("unit networks work in", "GPUs", gt=0)
    offset: float = quantity("mean level; 0 where they work on changes", "GPUs")
    whole: bool = quantity("whether demand came in whole GPUs only")
    start_s: float = quantity("instant of the first value it was fitted on", "s")
    step_s: float = quantity("time between two values", "s", gt=0)
    seen: int = quantity("values seen", ge=1)


class TreesFields(FileModel):
    """What is said of fitted trees."""

    kind: Literal["lightgbm"] = quantity("lightgbm")
    look_back: int = quantity("values seen before a forecast", ge=1, le=10**6)
    horizon: int = quantity("steps forecast", ge=1, le=10**5)
    trees: int = quantity("trees of each model", ge=1)
    steps: tuple[int, ...] = quantity("steps models were fitted for, the nearest first", min_length=1)
    levels: tuple[float, ...] = quantity("quantile levels they were fitted for, the lowest first", min_length=1)
    whole: bool = quantity("whether demand came in whole GPUs only")
    start_s: float = quantity("instant of the first value it was fitted on", "s")
    step_s: float = quantity("time between two values", "s", gt=0)
    seen: int = quantity("values seen", ge=1)


class _Written(FileModel):
    """What every header begins with."""

    format: int = quantity("format of the file")
    commonwatt: str = quantity("version that wrote it")
    seed: int = quantity("seed it was fitted with", ge=0)


class ForecastModelHeader(NetworkFields, _Written):
    """Header of a model file, whose arrays are the networks' weights and the last values seen."""


class TreesModelHeader(TreesFields, _Written):
    """Header of a model file whose arrays are LightGBM's trees and the last values seen."""


class BlendModelHeader(_Written):
    """Header of a model file with networks and trees whose forecasts are averaged."""

    kind: str = quantity("gru+lightgbm")
    network: NetworkFields = quantity("the networks, whose arrays' names begin with `network.`")
    trees: TreesFields = quantity("the trees, whose arrays' names begin with `trees.`")
