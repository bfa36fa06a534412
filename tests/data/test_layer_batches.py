"""Batches drawn by class and seed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from commonwatt.data import locate
from commonwatt.data.layer_batches import CLASSES, batch_of, pool_of, sample_batch
from commonwatt.data.layer_files import read_layers
from commonwatt.data.networks import networks
from commonwatt.model.errors import InputError
from commonwatt.model.map_platform import BatchSpec


@pytest.mark.parametrize("batch_class", CLASSES)
def test_a_seed_gives_one_batch(batch_class):
    first = sample_batch(batch_class, 200, 3)
    assert len(first) == 200
    assert first == sample_batch(batch_class, 200, 3) != sample_batch(batch_class, 200, 4)
    assert sample_batch(batch_class, 50, 3) == first[:50] or batch_class != "random"


def test_what_a_seed_gives_stays():
    assert [f"{layer.model}/{layer.name}" for layer in sample_batch("mix", 4, 0)] == [
        "transformer-xl/layer7.self.query_key_value",
        "mobilebert/layer1.self.value",
        "gpt2/layer2.ffn1",
        "bart/decoder3.cross.query",
    ]


def test_classes_are_of_their_networks():
    tasks = {"vision": {"vision"}, "lang": {"language"}, "recom": {"recommendation"}}
    for batch_class, expected in tasks.items():
        assert {layer.task for layer in sample_batch(batch_class, 300, 0)} == expected
    assert {layer.task for layer in sample_batch("mix", 300, 0)} == {"vision", "language", "recommendation"}
    assert {layer.kind for layer in sample_batch("random", 100, 0)} == {"fc", "conv", "depthwise", "gemm"}


def test_products_only_if_asked():
    everything = sum(found.layers for found in networks())
    assert len(pool_of("mix", products=True)) == everything
    with_products, without = Counter(pool_of("mix", products=True)), Counter(pool_of("mix"))
    left_out = with_products - without
    assert len(without) + len(left_out) == everything
    names = {layer.name.rpartition(".")[2] for layer in left_out}
    assert names == {"scores", "context", "position_scores", "interaction", "pooling"}
    assert all(layer.groups == 1 or layer.kind == "conv" for layer in without)


def test_each_layer_with_the_same_chance():
    """Of 40,000 draws no network has a share that is not within five standard deviations of its share of layers."""
    pool = Counter(layer.model for layer in pool_of("mix"))
    drawn = Counter(layer.model for layer in sample_batch("mix", 40_000, 1))
    for model, layers in pool.items():
        share = layers / pool.total()
        assert abs(drawn[model] - 40_000 * share) < 5 * np.sqrt(40_000 * share * (1 - share))


def test_batches_as_a_problem_asks_for_them():
    assert batch_of(BatchSpec.model_validate({"class": "lang", "count": 7, "seed": 2})) == sample_batch("lang", 7, 2)
    whole = batch_of(BatchSpec(networks=("ResNet18", "bert"), tokens=30))
    assert Counter(layer.model for layer in whole) == {"resnet18": 21, "bert": 97}
    assert {layer.y for layer in whole if layer.model == "bert" and layer.kind == "gemm"} == {30}


@pytest.mark.parametrize(("batch_class", "count", "says"), [("all", 1, "class"), ("mix", 0, "count")])
def test_bad_batches(batch_class, count, says):
    with pytest.raises(InputError, match=says):
        sample_batch(batch_class, count, 0)


@pytest.mark.data
def test_the_published_mix_draws_from_all_layers_alike():
    """Kinds in the published mix are within 9 percentage points of those in our pool, fc and gemm taken together.

    There layers of width 1024 are fully connected with one row; here they have 20.
    """
    traces = locate.folder()
    files = sorted(traces.parent.glob("mapping/instances/batch_mix/*.csv")) if traces is not None else []
    if not files:
        pytest.skip(f"no reference batches: set {locate.VARIABLE}")

    def shares(layers):
        counts = Counter({"fc": "dense", "gemm": "dense"}.get(layer.kind, layer.kind) for layer in layers)
        return {kind: count / counts.total() for kind, count in counts.items()}

    theirs, ours = shares(layer for file in files for layer in read_layers(file)), shares(pool_of("mix"))
    assert theirs == pytest.approx(ours, abs=0.09)
