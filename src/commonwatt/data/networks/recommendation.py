"""The recommendation networks of G#'s Table 3, and NCF of its Fig. 6: one user and one candidate at a time.

Embeddings are looked up on the host (2.1) and are not counted among the parameters, as the size of their tables is that
of a data set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from commonwatt.data.networks.drawing import Text

__all__ = ["RECOMMENDATION"]

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
