"""Layer tables of networks against published totals, and against the shapes another cost model ships."""

from __future__ import annotations

import csv
from collections import Counter
from importlib import resources

import pytest

from commonwatt.data import third_party
from commonwatt.data.layer_files import read_layers
from commonwatt.data.networks import network, network_layers, networks, task_layers
from commonwatt.data.networks.build import tables
from commonwatt.model.errors import InputError

# Trained parameters, 10**9 multiply-accumulates as published in the metadata of torchvision's pretrained weights
# (num_params, _ops), and the same unrounded, counted by torch's flop counter on torchvision 0.28.
TORCHVISION = {
    "alexnet": (61_100_840, 0.714, 714_188_480),
    "densenet161": (28_681_000, 7.728, 7_727_907_072),
    "googlenet": (6_624_904, 1.498, 1_498_376_192),
    "mnasnet": (4_383_312, 0.314, 314_415_872),
    "mobilenet-v2": (3_504_872, 0.301, 300_774_272),
    "resnet18": (11_689_512, 1.814, 1_814_073_344),
    "resnet50": (25_557_032, 4.089, 4_089_184_256),
    "resnext50": (25_028_904, 4.23, 4_230_479_872),
    "shufflenet-v2": (2_278_604, 0.145, 144_907_992),
    "squeezenet": (1_248_424, 0.819, 818_924_576),
    "vgg16": (138_357_544, 15.47, 15_470_264_320),
    "wideresnet50": (68_883_240, 11.398, 11_398_021_120),
}
# Parameters of the bare model, and MACs of one text of 20 tokens by torch's flop counter, with transformers 4.57.6 and
# default configurations. Some of these parameters are well known: BERT's 109,482,240, GPT-2's 124,439,808.
TRANSFORMERS = {
    "albert": (222_595_584, 48_384_966_656),
    "bart": (406_291_456, 7_075_921_920),
    "bert": (109_482_240, 1_706_655_744),
    "camembert": (109_482_240, 1_706_655_744),
    "ctrl": (1_637_718_016, 26_473_267_200),
    "distilbert": (66_362_880, 853_032_960),
    "electra": (13_483_008, 191_856_640),
    "flaubert": (667_088_896, 12_099_256_320),
    "gpt": (116_534_784, 1_706_065_920),
    "gpt2": (124_439_808, 1_706_065_920),
    "longformer": (130_743_552, 49_526_931_456),
    "marianmt": (414_307_328, 7_075_921_920),
    "mobilebert": (24_844_544, 407_732_224),
    "reformer": (5_811_712, 117_719_040),
    "retribert": (81_327_360, 1_138_065_408),
    "roberta": (124_644_864, 1_706_655_744),
    "t5": (60_506_624, 888_176_640),
    "xlm": (667_088_896, 12_099_256_320),
    "xlm-roberta": (109_482_240, 1_706_655_744),
    "xlnet": (360_268_800, 7_085_752_320),
}
# MiB of weights and biases at 4 bytes, as exchanged in training: Kalamkar et al. 2020, Table 2, and a check of Table 1.
ALL_REDUCE_MIB = {"dlrm-small": 9.5, "dlrm-large": 1047, "dlrm-mlperf": 9.0}


def test_all_of_table_3():
    named = [found for found in networks() if found.in_table_3]
    assert len(named) == 40  # the text says 42: with the two below, of which the published batches and Fig. 6 tell
    assert Counter(found.task for found in named) == {"vision": 11, "language": 21, "recommendation": 8}
    assert [found.model for found in networks() if not found.in_table_3] == ["shufflenet-v2", "ncf"]


@pytest.mark.parametrize("name", TORCHVISION)
def test_vision_against_torchvision(name):
    parameters, giga, macs = TORCHVISION[name]
    found = network(name)
    assert (found.parameters, found.macs) == (parameters, macs)
    assert found.macs / 1e9 == pytest.approx(giga, abs=0.00051)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_language_against_transformers(name):
    found = network(name)
    assert (found.parameters, found.macs) == TRANSFORMERS[name]


@pytest.mark.parametrize("name", ALL_REDUCE_MIB)
def test_dlrm_against_what_its_training_exchanges(name):
    digits = 0 if ALL_REDUCE_MIB[name] > 100 else 1
    assert round(network(name).parameters * 4 / 2**20, digits) == ALL_REDUCE_MIB[name]


def test_tables_are_what_the_definitions_give():
    """After a change of a definition: ``python -m commonwatt.data.networks.build``."""
    home = resources.files("commonwatt.data.networks")
    for name, text in tables().items():
        assert home.joinpath(name).read_text(encoding="utf-8") == text


def test_index_agrees_with_layers():
    for found in networks():
        layers = network_layers(found.model)
        assert (len(layers), sum(layer.macs for layer in layers)) == (found.layers, found.macs)
        assert {layer.task for layer in layers} == {found.task}
        assert len({layer.name for layer in layers}) == len(layers)
        assert found.source
        assert found.derived
    assert sum(len(task_layers(task)) for task in ("vision", "language", "recommendation")) == sum(
        found.layers for found in networks()
    )


def test_longer_texts():
    """BERT base at 128 tokens: 11.2e9 MACs in the products (Devlin's model; 22.5 GFLOPs in later papers)."""
    macs = sum(layer.macs for layer in network_layers("BERT", tokens=128))
    assert macs == 12 * (128 * (4 * 768**2 + 2 * 768 * 3072) + 2 * 128 * 128 * 768) + 768**2
    assert macs / 1e9 == pytest.approx(11.2, abs=0.05)
    assert network_layers("bert", tokens=20) == network_layers("bert")
    assert {layer.y for layer in network_layers("longformer", tokens=600) if layer.name.endswith("ffn1")} == {1024}


@pytest.mark.parametrize(
    ("name", "tokens", "says"),
    [
        ("resnet5", None, ["'network'", "'resnet5'", "resnet50"]),
        ("resnet50", 20, ["'tokens'", "no number of tokens for resnet50"]),
        ("bert", 0, ["'tokens'", "'0'"]),
        ("reformer", 65, ["'tokens'", "64 or fewer"]),
    ],
)
def test_bad_names_and_tokens(name, tokens, says):
    with pytest.raises(InputError) as caught:
        network_layers(name, tokens)
    assert [part for part in says if part not in str(caught.value)] == []


@pytest.fixture(scope="module")
def home():
    traces = third_party.folder()
    found = traces.parent / "mapping" if traces is not None else None
    if found is None or not (found / "maestro_model_layers.csv").is_file():
        pytest.skip(f"no reference layers: set {third_party.VARIABLE}")
    return found


@pytest.mark.data
@pytest.mark.parametrize(
    ("file", "name", "theirs_alone"),
    [("mnasnet_model.m", "mnasnet", 0), ("squeezenet1_0_model.m", "squeezenet", 0), ("vgg16_model.m", "vgg16", 0),
     ("googlenet_model.m", "googlenet", 6)],
)  # fmt: skip
def test_shapes_that_maestro_ships(home, file, name, theirs_alone):
    """MAESTRO's GoogLeNet has its two auxiliary outputs besides; its VGG16 has no fully connected layers.

    Its MobileNet-V2, ResNet50 and ResNeXt50 have 1 x 1 or missing filters where the networks have others, and its
    AlexNet is the one of two columns: these do not agree.
    """
    with (home / "maestro_model_layers.csv").open() as rows:
        theirs = Counter(
            tuple(int(row[d]) for d in ("K", "C", "R", "S", "stride"))
            for row in csv.DictReader(rows)
            if row["model_file"] == file
        )
    ours = Counter(
        (layer.k, layer.c, layer.r, layer.s, layer.stride)
        for layer in network_layers(name)
        if name != "vgg16" or layer.kind != "fc"
    )
    assert ours - theirs == Counter()
    assert (theirs - ours).total() == theirs_alone


@pytest.mark.data
@pytest.mark.parametrize(
    ("batch", "task", "least"), [("conv", "vision", 1.0), ("lang", "language", 1.0), ("recom", "recommendation", 0.86)]
)
def test_published_jobs_are_layers_of_these_networks(home, batch, task, least):
    """By channels and filters; of recommendation seven shapes are of no network here (512 to 1024, 64 to 128...)."""
    ours = {(layer.k, layer.c, layer.r, layer.s) for layer in task_layers(task)}
    jobs = [
        job for place in range(5) for job in read_layers(home / "instances" / f"batch_{batch}" / f"insts{place}.csv")
    ]
    known = sum((job.k, job.c, job.r, job.s) in ours for job in jobs)
    assert known / len(jobs) >= least
