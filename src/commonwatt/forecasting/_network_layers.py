"""Encoder-decoders in PyTorch: GRU, Bi-LSTM and CNN (CUFF, section III-B and Fig. 2).

The encoder reads the sequence, patch by patch; its final state and the context inputs form the context vector; the
decoder unrolls that over the horizon, all steps at once (direct multi-horizon, without feedback). The contribution of
the sequence starts at zero and grows as far as it helps. Each step has outputs of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from commonwatt.forecasting._network_inputs import PATCH
from commonwatt.model.arrays import Floats
from commonwatt.model.demand import LEVELS

__all__ = ["KINDS", "Layers", "NetworkShape", "build", "forward"]

Layers: TypeAlias = Any
"""A ``torch.nn.ModuleDict``; torch may not be installed."""

_MEDIAN = int(np.argmin(np.abs(LEVELS - 0.5)))
_KNOTS = (0, 2, 4, 6, 8, 12, 15, 17)  # outputs between whose stretch factors those of the others lie
_MOST_STRETCH = 3.0  # natural logarithm of
_LEAST = 0.02  # resolutions: usual distance of quantiles that are usually the same
KINDS = ("gru", "bilstm", "cnn")


@dataclass(frozen=True)
class NetworkShape:
    """Sizes of a network.

    Parameters
    ----------
    kind
        One of ``KINDS``.
    channels
        Numbers per value of the sequence: 3, or 1 for raw levels.
    context
        Context inputs; 0 for none.
    horizon
        Steps forecast.
    outputs
        Quantiles per step, or 1.
    hidden
        Size of the encoder's state.
    width
        Size of the context vector and of the decoder's state.
    dropout
        Share of activations dropped in training.
    ignored
        Share of inputs dropped in training.
    """

    kind: str
    channels: int
    context: int
    horizon: int
    outputs: int
    hidden: int
    width: int
    dropout: float
    ignored: float


def build(shape: NetworkShape, start: Floats) -> Layers:
    """Make a network with random weights, from torch's generator, whose forecast is *start* for every input.

    Parameters
    ----------
    shape
        Its sizes.
    start
        Not falling along outputs. Shape [m, outputs], resolutions.
    """
    import torch
    from torch import nn

    size, hidden, width = shape.channels * PATCH, shape.hidden, shape.width
    if shape.kind == "gru":
        encoder: Any = nn.GRU(size, hidden, batch_first=True)
        decoder: Any = nn.GRU(width, width, batch_first=True)
    elif shape.kind == "bilstm":
        encoder = nn.LSTM(size, hidden // 2, batch_first=True, bidirectional=True)
        decoder = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)
    else:
        encoder = nn.Sequential(
            nn.Conv1d(size, hidden, 3, padding=1), nn.SiLU(), nn.Conv1d(hidden, hidden, 3, padding=1, stride=2),
            nn.SiLU(), nn.Conv1d(hidden, hidden, 3, padding=1, stride=2), nn.SiLU(),
        )  # fmt: skip
        decoder = nn.Sequential(nn.Conv1d(2 * width, width, 3, padding=1), nn.SiLU())
    read = 2 * hidden if shape.kind == "cnn" else hidden
    middle = min(_MEDIAN, shape.outputs - 1)
    distances = np.log(np.maximum(np.diff(start, axis=1), _LEAST))
    layers = {
        "encoder": encoder,
        "join": nn.Linear(read + (width if shape.context else 0), width),
        "decoder": decoder,
        "head": nn.ParameterDict({
            "weight": nn.Parameter(torch.zeros(shape.horizon, width, 1 + len(_spread(shape.outputs)))),
            "bias": nn.Parameter(torch.zeros(shape.horizon, 1, 1 + len(_spread(shape.outputs)))),
        }),
        "usual": nn.ParameterDict({
            "middle": nn.Parameter(torch.tensor(start[:, middle], dtype=torch.float32)),
            "distances": nn.Parameter(torch.tensor(distances, dtype=torch.float32)),
        }),
        "ignore": nn.Dropout(shape.ignored),
        "drop": nn.Dropout(shape.dropout),
    }  # fmt: skip
    if shape.context:
        layers["context"] = nn.Linear(shape.context, width)
        nn.init.zeros_(layers["join"].weight)
        nn.init.zeros_(layers["join"].bias)
    if shape.kind == "cnn":
        layers["place"] = nn.Linear(1, width)
    return nn.ModuleDict(layers)


@cache
def _spread(outputs: int) -> Floats:
    """Return how much of each stretch factor a distance between two neighbouring quantiles gets. Shape [F, outputs-1].

    There are fewer factors than distances, each shared by neighbours: the far tail, which is rarely observed, moves
    with nearer levels.
    """
    knots = np.unique(np.minimum(_KNOTS, outputs - 1))
    at = np.arange(outputs - 1) + 0.5
    return np.array([np.interp(at, knots, one) for one in np.eye(len(knots))]) if outputs > 1 else np.zeros((0, 0))


def forward(shape: NetworkShape, layers: Layers, sequence: Any, context: Any) -> Any:  # noqa: ANN401
    """Return the forecast, which rises along outputs.

    The median is shifted; the usual distances between neighbouring quantiles, which are above 0, are stretched by
    positive factors and summed from the median outwards. Quantiles therefore cannot cross.

    Shapes: *sequence* [B, n / PATCH, channels * PATCH], *context* [B, C]; returns [B, m, outputs], resolutions.
    """
    import torch
    from torch.nn import functional

    read = layers["drop"](_encode(shape, layers, layers["ignore"](sequence)))
    if shape.context:
        covariates = functional.silu(layers["context"](layers["ignore"](context)))
        vector = covariates + functional.silu(layers["join"](torch.cat((read, covariates), 1)))
    else:
        vector = functional.silu(layers["join"](read))
    vector = layers["drop"](vector)
    steps = (vector[:, None, :] + _decode(shape, layers, vector)).transpose(0, 1)
    free = torch.baddbmm(layers["head"]["bias"], steps, layers["head"]["weight"]).transpose(0, 1)
    middle = (layers["usual"]["middle"] + free[..., 0])[..., None]
    if shape.outputs == 1:
        return middle
    stretch = free[..., 1:] @ torch.tensor(_spread(shape.outputs), dtype=free.dtype)
    distances = torch.exp(layers["usual"]["distances"] + _MOST_STRETCH * torch.tanh(stretch / _MOST_STRETCH))
    below = distances[..., :_MEDIAN].flip(2).cumsum(2).flip(2)
    return torch.cat((middle - below, middle, middle + distances[..., _MEDIAN:].cumsum(2)), 2)


def _encode(shape: NetworkShape, layers: Layers, sequence: Any) -> Any:  # noqa: ANN401
    import torch

    if shape.kind == "gru":
        return layers["encoder"](sequence)[1][0]
    if shape.kind == "bilstm":
        _, (last, _) = layers["encoder"](sequence)
        return torch.cat((last[0], last[1]), 1)
    seen = layers["encoder"](sequence.transpose(1, 2))
    return torch.cat((seen.mean(2), seen[..., -1]), 1)


def _decode(shape: NetworkShape, layers: Layers, vector: Any) -> Any:  # noqa: ANN401
    import torch

    repeated = vector[:, None, :].expand(-1, shape.horizon, -1)
    if shape.kind != "cnn":
        return layers["decoder"](repeated)[0]
    place = torch.linspace(-1.0, 1.0, shape.horizon)[:, None]
    where = torch.tanh(layers["place"](place)).expand(len(vector), -1, -1)
    return layers["decoder"](torch.cat((repeated, where), 2).transpose(1, 2)).transpose(1, 2)
