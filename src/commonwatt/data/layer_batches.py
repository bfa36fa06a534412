"""Batches of independent layers, drawn by class and seed (G#, 5.1.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from commonwatt import __version__
from commonwatt.data.layer_files import digest_of, rows_of
from commonwatt.data.networks import network, network_layers, task_layers
from commonwatt.mapping.costs import Kind, Layer, TaskClass
from commonwatt.model.errors import InputError
from commonwatt.model.map_file import BatchSpec
from commonwatt.model.map_results import MapBatchResult
from commonwatt.model.names import one_of

__all__ = ["CLASSES", "BatchClass", "as_published", "batch_of", "draw_batch", "pool_of", "sample_batch"]

BatchClass = Literal["vision", "lang", "recom", "mix", "random"]
CLASSES: tuple[BatchClass, ...] = get_args(BatchClass)

_TASKS: dict[str, tuple[TaskClass, ...]] = {
    "vision": ("vision",),
    "lang": ("language",),
    "recom": ("recommendation",),
    "mix": ("vision", "language", "recommendation"),
}
_MOST = 100_000
_WIDEST, _LARGEST = 4096, 224


def pool_of(batch_class: BatchClass, *, products: bool = False) -> tuple[Layer, ...]:
    """Return the layers from which a batch of this class is drawn: all of its networks, as often as they occur.

    Parameters
    ----------
    products
        Whether products of two activations are among them (attention, interactions of features). The published batches
        have none: the paper models attention as fully connected layers (2.1).
    """
    layers = (layer for task in _TASKS[batch_class] for layer in task_layers(task))
    return tuple(layer for layer in layers if products or not _is_product(layer))


def sample_batch(batch_class: BatchClass, count: int, seed: int, *, products: bool = False) -> tuple[Layer, ...]:
    """Draw *count* layers, each independently and with equal probability from :func:`pool_of`.

    So are the published batches: shares of networks there agree with their numbers of layers. ``random`` is ours: each
    kind with the same chance, channels to 4096 and sides to 224 log-uniform, filters of 1, 3, 5 or 7, strides 1 or 2.

    Raises
    ------
    InputError
        For a class that is none, or a count below 1 or above 100,000.
    """
    if batch_class not in CLASSES:
        raise InputError(one_of(CLASSES, batch_class), field="class", value=batch_class)
    if not 1 <= count <= _MOST:
        raise InputError(f"a whole number from 1 to {_MOST}", field="count", value=count)
    rng = np.random.default_rng(seed)
    if batch_class == "random":
        return tuple(_random_layer(rng, place) for place in range(count))
    pool = pool_of(batch_class, products=products)
    return tuple(pool[place] for place in rng.integers(len(pool), size=count))


def draw_batch(
    batch_class: BatchClass, count: int = 100, seed: int = 0, *, products: bool = False
) -> tuple[tuple[Layer, ...], MapBatchResult]:
    """Draw a batch as ``sample_batch``; return its layers, and the document of ``commonwatt map batch``."""
    drawn = sample_batch(batch_class, count, seed, products=products)
    result = MapBatchResult(
        version=__version__,
        seed=seed,
        input_digest=digest_of((batch_class, count, products)),
        batch_class=batch_class,
        distinct=len({replace(layer, name="", model="", task=None) for layer in drawn}),
        macs=sum(layer.macs for layer in drawn),
        models=dict(Counter(layer.model for layer in drawn if layer.model).most_common()),
        layers=rows_of(drawn),
    )
    return drawn, result


def as_published(layers: Iterable[Layer]) -> tuple[Layer, ...]:
    """Return *layers* in the form of the published code, for comparisons.

    Convolutions have neither stride nor padding (so a layer with stride 2 is four times as large), networks of vision
    have no fully connected layers, and there are no products of activations. With it the published cost model gives six
    of the nine networks of Fig. 6 to the digits printed.
    """
    kept = (layer for layer in layers if not _is_product(layer) and (layer.task, layer.kind) != ("vision", "fc"))
    return tuple(replace(layer, stride=1, padding=0) for layer in kept)


def batch_of(spec: BatchSpec) -> tuple[Layer, ...]:
    """Return the batch of a problem file; raises ``InputError`` on an unknown network."""
    if spec.batch_class is not None:
        return sample_batch(spec.batch_class, spec.count, spec.seed, products=spec.products)
    layers: list[Layer] = []
    for name in spec.networks or ():
        tokens = spec.tokens if network(name).task == "language" else None
        layers += network_layers(name, tokens)
    return tuple(layers)


def _is_product(layer: Layer) -> bool:
    last = layer.name.rpartition(".")[2]
    return last in {"scores", "context", "position_scores", "interaction", "pooling"}


def _random_layer(rng: np.random.Generator, place: int) -> Layer:
    kind: Kind = ("fc", "conv", "depthwise", "gemm")[rng.integers(4)]
    k, c = (int(size) for size in _WIDEST ** rng.random(2))
    side, taps, stride = int(_LARGEST ** rng.random()), int(rng.choice([1, 3, 5, 7])), int(rng.integers(1, 3))
    name = f"random{place}"
    if kind == "fc":
        return Layer(kind, k, c, name=name)
    if kind == "gemm":
        return Layer(kind, k, c, y=side, name=name)
    outputs = 1 if kind == "depthwise" else k
    return Layer(kind, outputs, c, side, side, taps, taps, stride, taps // 2, name=name)
