"""Writes the tables of this package: ``python -m commonwatt.data.networks.build [FOLDER]``.

The index contains each network's name in G#'s Table 3, its source, and the derivation of its table.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from commonwatt.data.files import write_atomic
from commonwatt.data.layer_files import layers_text
from commonwatt.data.networks.drawing import Drawing, Text
from commonwatt.data.networks.language import LANGUAGE, TOKENS
from commonwatt.data.networks.vision import VISION

__all__ = ["ENTRIES", "INDEX", "RECOMMENDATION", "NetworkEntry", "draw_all", "tables"]

_HISTORY = 100  # clicks, ``maxlen`` of the authors' code of DIEN


def _perceptron(net: Text, name: str, widths: Sequence[int]) -> None:
    for place, (c, k) in enumerate(pairwise(widths), start=1):
        net.fc(f"{name}{place}", c, k)


def _dlrm(
    model: str, bottom: Sequence[int], top: Sequence[int], tables: int, *, size: int, products: bool = True
) -> Text:
    """DLRM (Naumov et al. 2019): dense features through *bottom*, then what it and *tables* embeddings of *size* give.

    Either the products of all pairs beside the dense vector go into *top*, or all vectors one after another.
    """
    net = Text(model, "recommendation")
    _perceptron(net, "bottom", (*bottom, size))
    vectors = tables + 1
    if products:
        net.product("interaction", 1, vectors, size, vectors)
    _perceptron(net, "top", (vectors * (vectors - 1) // 2 + size if products else vectors * size, *top))
    return net


def wide_deep() -> Text:
    """Wide & Deep (Cheng et al. 2016, Fig. 4): about 1,200 dense features and embeddings, then 1024, 512, 256.

    The wide part is a sum over sparse crosses.
    """
    net = Text("wide-deep", "recommendation")
    _perceptron(net, "deep", (1200, 1024, 512, 256, 1))
    return net


def ncf() -> Text:
    """NeuMF (He et al. 2017) as in MLPerf: 64 factors, and 256, 256, 128, 64."""
    net = Text("ncf", "recommendation")
    _perceptron(net, "mlp", (256, 256, 128, 64))
    net.fc("output", 128, 1)
    return net


def _attend(net: Text, name: str) -> None:
    """Score every click against the candidate: both vectors of 36, their difference and product, through 80 and 40."""
    for place, (c, k) in enumerate([(4 * 36, 80), (80, 40), (40, 1)], start=1):
        net.linear(f"{name}{place}", c, k)


def din() -> Text:
    """DIN (Zhou et al. 2018), sizes of the code of DIEN's authors: item and category of 18 each, 100 clicks."""
    net = Text("din", "recommendation", tokens=_HISTORY)
    _attend(net, "attention")
    net.product("pooling", 1, 1, _HISTORY, 36)
    _perceptron(net, "output", (18 + 3 * 36, 200, 80, 2))
    return net


def dien() -> Text:
    """DIEN (Zhou et al. 2019), sizes of its authors' code: two GRUs of 36 over 100 clicks, attention between them."""
    net = Text("dien", "recommendation", tokens=_HISTORY)
    _gru(net, "gru1")
    net.fc("query", 36, 36)
    _attend(net, "attention")
    _gru(net, "gru2")
    _perceptron(net, "output", (18 + 3 * 36, 200, 80, 2))
    return net


def _gru(net: Text, name: str) -> None:
    """Two gates and the candidate state, each from input and state; the steps are the rows."""
    net.linear(f"{name}.gates", 72, 72)
    net.linear(f"{name}.candidate", 72, 36)


RECOMMENDATION: tuple[Callable[[], Text], ...] = (
    din,
    dien,
    partial(_dlrm, "dlrm-mlperf", (13, 512, 256), (1024, 1024, 512, 256, 1), 26, size=128),
    partial(_dlrm, "dlrm-large", (2048,) * 8, (4096,) * 15 + (1,), 64, size=256),
    partial(_dlrm, "dlrm-small", (512, 512), (1024, 1024, 1024, 1), 8, size=64),
    wide_deep,
    partial(_dlrm, "dlrm-rmc1", (256, 128), (256, 64, 1), 10, size=32, products=False),
    partial(_dlrm, "dlrm-rmc2", (256, 128), (512, 128, 1), 40, size=32, products=False),
    ncf,
)


class NetworkEntry(NamedTuple):
    """A network: its name here and in the paper, its source, and the derivation of its layers."""

    model: str
    title: str
    source: str
    derived: str
    in_table_3: bool = True


_TORCHVISION = "own shape arithmetic; equal to torchvision 0.28 layer by layer"
_TRANSFORMERS = "default configuration of transformers 4.57, bare model"

ENTRIES: tuple[NetworkEntry, ...] = (
    NetworkEntry("alexnet", "AlexNet", "Krizhevsky 2014, arXiv:1404.5997", _TORCHVISION),
    NetworkEntry(
        "densenet161",
        "DenseNet",
        "Huang et al. 2016, arXiv:1608.06993, Table 1",
        f"{_TORCHVISION}; of the sizes the one whose layers the published batches hold",
    ),
    NetworkEntry(
        "googlenet",
        "GoogleNet",
        "Szegedy et al. 2014, arXiv:1409.4842, Table 1",
        f"{_TORCHVISION}, so 3 x 3 where the paper has 5 x 5, batch norm, no auxiliary outputs",
    ),
    NetworkEntry("mnasnet", "MnasNet", "Tan et al. 2018, arXiv:1807.11626", f"{_TORCHVISION} (mnasnet1_0, B1)"),
    NetworkEntry("mobilenet-v2", "MobileNet-V2", "Sandler et al. 2018, arXiv:1801.04381, Table 2", _TORCHVISION),
    NetworkEntry(
        "resnet50",
        "ResNet50",
        "He et al. 2015, arXiv:1512.03385, Table 1",
        f"{_TORCHVISION}; the stride of a block is in its 3 x 3 filter",
    ),
    NetworkEntry("resnext50", "ResNext50", "Xie et al. 2016, arXiv:1611.05431, Table 1", f"{_TORCHVISION} (32 x 4d)"),
    NetworkEntry("resnet18", "ResNet18", "He et al. 2015, arXiv:1512.03385, Table 1", _TORCHVISION),
    NetworkEntry(
        "wideresnet50",
        "WideResNet50",
        "Zagoruyko and Komodakis 2016, arXiv:1605.07146",
        f"{_TORCHVISION} (wide_resnet50_2)",
    ),
    NetworkEntry("squeezenet", "SqueezeNet", "Iandola et al. 2016, arXiv:1602.07360, Table 1", f"{_TORCHVISION} (1.0)"),
    NetworkEntry("vgg16", "VGG16", "Simonyan and Zisserman 2014, arXiv:1409.1556, Table 1 D", _TORCHVISION),
    NetworkEntry(
        "shufflenet-v2",
        "ShuffleNet-V2",
        "Ma et al. 2018, arXiv:1807.11164, Table 5",
        f"{_TORCHVISION} (x1_0); not in Table 3, but the published batches hold its layers",
        in_table_3=False,
    ),
    NetworkEntry("albert", "ALBERT", "Lan et al. 2019, arXiv:1909.11942", f"{_TRANSFORMERS} (the xxlarge size)"),
    NetworkEntry("bart", "Bart", "Lewis et al. 2019, arXiv:1910.13461", f"{_TRANSFORMERS} (the large size)"),
    NetworkEntry(
        "bert", "BERT", "Devlin et al. 2018, arXiv:1810.04805", f"{_TRANSFORMERS} (the base size), with pooler"
    ),
    NetworkEntry("camembert", "CamemBERT", "Martin et al. 2019, arXiv:1911.03894", f"{_TRANSFORMERS}, with pooler"),
    NetworkEntry("ctrl", "CTRL", "Keskar et al. 2019, arXiv:1909.05858", _TRANSFORMERS),
    NetworkEntry("distilbert", "DistilBERT", "Sanh et al. 2019, arXiv:1910.01108", _TRANSFORMERS),
    NetworkEntry("electra", "ELECTRA", "Clark et al. 2020, arXiv:2003.10555", f"{_TRANSFORMERS} (the small size)"),
    NetworkEntry("flaubert", "FlauBERT", "Le et al. 2019, arXiv:1912.05372", f"{_TRANSFORMERS} (that of XLM)"),
    NetworkEntry("gpt2", "GPT2", "Radford et al. 2019", f"{_TRANSFORMERS} (the small size)"),
    NetworkEntry("gpt", "GPT", "Radford et al. 2018", _TRANSFORMERS),
    NetworkEntry(
        "longformer",
        "LongFormer",
        "Beltagy et al. 2020, arXiv:2004.05150",
        f"{_TRANSFORMERS}; filled up to a window of 512 tokens; no token attends globally",
    ),
    NetworkEntry("marianmt", "MarianNMT", "Junczys-Dowmunt et al. 2018, arXiv:1804.00344", _TRANSFORMERS),
    NetworkEntry("mobilebert", "MobileBERT", "Sun et al. 2020, arXiv:2004.02984", f"{_TRANSFORMERS}, with pooler"),
    NetworkEntry(
        "reformer",
        "Reformer",
        "Kitaev et al. 2020, arXiv:2001.04451",
        f"{_TRANSFORMERS}; up to 64 tokens, which it does not hash",
    ),
    NetworkEntry(
        "retribert", "RetriBERT", "transformers 4, models/retribert", f"{_TRANSFORMERS}, embedding of a question"
    ),
    NetworkEntry("roberta", "RoBERTa", "Liu et al. 2019, arXiv:1907.11692", f"{_TRANSFORMERS}, with pooler"),
    NetworkEntry("t5", "T5", "Raffel et al. 2019, arXiv:1910.10683", f"{_TRANSFORMERS} (the small size)"),
    NetworkEntry(
        "transformer-xl",
        "TransformerXL",
        "Dai et al. 2019, arXiv:1901.02860",
        f"{_TRANSFORMERS}; an empty memory; projections of embeddings are taken for look-ups",
    ),
    NetworkEntry("xlm", "XLM", "Lample and Conneau 2019, arXiv:1901.07291", _TRANSFORMERS),
    NetworkEntry(
        "xlm-roberta", "XLM-RoBERTa", "Conneau et al. 2019, arXiv:1911.02116", f"{_TRANSFORMERS}, with pooler"
    ),
    NetworkEntry(
        "xlnet", "XLNet", "Yang et al. 2019, arXiv:1906.08237", f"{_TRANSFORMERS} (the large size); an empty memory"
    ),
    NetworkEntry(
        "din",
        "DIN",
        "Zhou et al. 2018, arXiv:1706.06978; sizes: github.com/mouna99/dien",
        "attention over 100 clicks as products of 100 rows",
    ),
    NetworkEntry(
        "dien",
        "DIEN",
        "Zhou et al. 2019, arXiv:1809.03672; sizes: github.com/mouna99/dien",
        "without the auxiliary loss; the 100 steps of a GRU as rows of one product",
    ),
    NetworkEntry(
        "dlrm-mlperf",
        "DLRM-MLPerf",
        "MLPerf training 0.7, DLRM on Criteo Terabyte",
        "26 tables of 128; products of all pairs of vectors as one 27 x 27 product",
    ),
    NetworkEntry(
        "dlrm-large",
        "DLRM-large",
        "Kalamkar et al. 2020, arXiv:2005.04680, Table 1",
        "64 tables of 256; bottom 2048 x 7 and 256, top 4096 x 15 and 1",
    ),
    NetworkEntry(
        "dlrm-small",
        "DLRM-small",
        "Kalamkar et al. 2020, arXiv:2005.04680, Table 1",
        "8 tables of 64; bottom 512 and 64, top 1024 x 3 and 1; Table 3 cites Naumov et al. 2019 for it",
    ),
    NetworkEntry(
        "wide-deep", "WideDeep", "Cheng et al. 2016, arXiv:1606.07792, Fig. 4", "the deep part, of 1,200 inputs"
    ),
    NetworkEntry(
        "dlrm-rmc1", "DLRM-RMC1", "Gupta et al. 2020, arXiv:2001.02772, Table 1", "10 tables of 32, concatenated"
    ),
    NetworkEntry(
        "dlrm-rmc2", "DLRM-RMC2", "Gupta et al. 2020, arXiv:2001.02772, Table 1", "40 tables of 32, concatenated"
    ),
    NetworkEntry(
        "ncf",
        "NCF",
        "He et al. 2017, arXiv:1708.05031; sizes: MLPerf training 0.5",
        "not in Table 3, but in Fig. 6",
        in_table_3=False,
    ),
)


INDEX = ("model", "title", "task", "in_table_3", "layers", "macs", "parameters", "source", "derived")


def draw_all(tokens: int = TOKENS) -> Iterator[Drawing]:
    """Draw every network, those of language over *tokens* tokens."""
    yield from (make() for make in VISION)
    yield from (make(tokens) for make in LANGUAGE)
    yield from (make() for make in RECOMMENDATION)


def tables() -> dict[str, str]:
    """Return the files of this package: layers by task, and an index of the networks."""
    nets = {net.model: net for net in draw_all()}
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(INDEX)
    for entry in ENTRIES:
        net = nets[entry.model]
        macs = sum(layer.macs for layer in net.layers)
        named = "yes" if entry.in_table_3 else "no"
        counts = (len(net.layers), macs, net.parameters)
        writer.writerow((entry.model, entry.title, net.task, named, *counts, entry.source, entry.derived))
    files = {"index.csv": out.getvalue()}
    for task in ("vision", "language", "recommendation"):
        files[f"{task}.csv"] = layers_text(layer for net in nets.values() if net.task == task for layer in net.layers)
    return files


def main(folder: Path) -> None:
    """Write the tables into *folder*."""
    for name, text in tables().items():
        write_atomic(folder / name, text)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
