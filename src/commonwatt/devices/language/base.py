"""A loaded language model: a network that continues sequences, and a coder between text and tokens.

A step computes tokens of several sequences at once: some of a prompt, or the next of an answer. Their tokens lie one
behind the other, so everything but attention is one product with the weights; attention is computed sequence by
sequence, to keys and values in a cache of its own. So no sequence is padded, and none sees another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from commonwatt.devices.base import StepWork, Tensor, TensorSpec
from commonwatt.devices.models.base import Foreign
from commonwatt.devices.models.torch_model import TorchRuntime
from commonwatt.devices.rows import MOST_ROWS, RowPoint, RowProfile
from commonwatt.model.errors import InputError, MissingExtraError
from commonwatt.model.timeslice_file import LanguageSpec

__all__ = [
    "LanguageModel",
    "LanguageNetwork",
    "Message",
    "SequenceCache",
    "SequencePart",
    "TextStream",
    "TokenCoder",
    "attend",
    "packed",
    "torch",
]

Message = dict[str, str]
"""A message of a chat: ``role`` and ``content``."""


def torch() -> Foreign:
    """Import PyTorch; raises ``MissingExtraError`` if it is not installed."""
    try:
        import torch as module
    except ImportError as error:
        raise MissingExtraError("torch", "torch") from error
    return module


class SequenceCache:
    """Keys and values of one sequence; a layer takes memory for *capacity* tokens when it first writes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0  # tokens whose keys and values all layers have written
        self._layers: dict[int, Foreign] = {}  # [2, heads, capacity, width]

    @property
    def bytes_per_token(self) -> float:
        """Memory of a token in all layers."""
        return sum(store.numel() * store.element_size() for store in self._layers.values()) / self.capacity

    def extend(self, layer: int, keys: Foreign, values: Foreign) -> tuple[Foreign, Foreign]:
        """Write *keys* and *values* ([heads, n, width]) behind the tokens there are; returns those of all tokens."""
        store = self._layers.get(layer)
        if store is None:
            heads, _, width = keys.shape
            store = self._layers[layer] = keys.new_empty((2, heads, self.capacity, width))
        end = self.length + keys.shape[1]
        store[0, :, self.length : end], store[1, :, self.length : end] = keys, values
        return store[0, :, :end], store[1, :, :end]


@dataclass(frozen=True)
class SequencePart:
    """Consecutive tokens of a sequence, behind those in its cache."""

    cache: SequenceCache
    tokens: Sequence[int]


def attend(
    pieces: Sequence[SequencePart], layer: int, queries: Foreign, keys: Foreign, values: Foreign, *,
    scale: float | None = None, window: int | None = None,
) -> Foreign:  # fmt: skip
    """Return causal attention of *pieces*, each to its own tokens; what was computed for each token stands in a row.

    Parameters
    ----------
    queries
        [heads, tokens, width] of all pieces, one behind the other; keys and values have as many heads or a divisor.
    window
        Tokens that a token sees, itself included; ``None``: all before it.

    Returns
    -------
    Foreign
        [tokens, heads, width].
    """
    kit = torch()
    seen, at = [], 0
    for piece in pieces:
        end, before = at + len(piece.tokens), piece.cache.length
        all_keys, all_values = piece.cache.extend(layer, keys[:, at:end], values[:, at:end])
        whole = before + end - at
        mask = None
        if (before and end - at > 1) or (window is not None and whole > window):
            own = kit.arange(before, whole, device=queries.device)[:, None]
            others = kit.arange(whole, device=queries.device)[None, :]
            mask = (others <= own) if window is None else (others <= own) & (others > own - window)
        out = kit.nn.functional.scaled_dot_product_attention(
            queries[None, :, at:end], all_keys[None], all_values[None], attn_mask=mask, scale=scale,
            is_causal=mask is None and end - at > 1, enable_gqa=queries.shape[0] != keys.shape[0],
        )  # fmt: skip
        seen.append(out[0].transpose(0, 1))
        at = end
    return kit.cat(seen)


class TextStream(Protocol):
    """Text of tokens that come one by one; characters are held back until they are whole."""

    def push(self, token: int) -> str:
        """Return the text that is certain with *token*."""
        ...

    def end(self) -> str:
        """Return what was held back."""
        ...


class TokenCoder(Protocol):
    """Text to tokens and back."""

    ends: frozenset[int]  # tokens that end an answer
    vocabulary: int  # tokens are below it

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a prompt."""
        ...

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens of a chat up to where the answer begins; raises ``InputError`` if it has no template."""
        ...

    def stream(self) -> TextStream:
        """Return a new stream of text."""
        ...


class LanguageNetwork(Protocol):
    """The part of a language model that computes."""

    context_tokens: int
    parameters: int
    bytes_moved: float  # of its weights, in a step
    flops_per_attended: float  # for each pair of a token and one that it sees, in all layers

    def logits(self, pieces: Sequence[SequencePart]) -> Tensor:
        """Return the logits behind the last token of each piece, [pieces, vocabulary], and extend their caches."""
        ...


class LanguageModel:
    """A network and its coder on a device, measured. As a ``LoadedModel`` it has one step: a token of one sequence."""

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    step_names: tuple[str, ...] = ("token",)

    def __init__(
        self, name: str, digest: str, runtime: TorchRuntime, network: LanguageNetwork, coder: TokenCoder
    ) -> None:
        self.name, self.digest, self.coder = name, digest, coder
        self.context_tokens = network.context_tokens
        self._runtime = runtime
        self._network: LanguageNetwork | None = network
        cache = SequenceCache(2)
        self.step([SequencePart(cache, [0])])
        self.cache_bytes_per_token = cache.bytes_per_token
        self.profile = RowProfile(divisible=True, points=(self._measured(1),))
        self.step_times_s: tuple[float, ...] = (self.profile.points[0].time_s,)
        self.work: tuple[StepWork, ...] = (self.work_of(1, 1),)

    def begin(self, inputs: dict[str, Tensor]) -> NoReturn:  # noqa: ARG002
        """Refuse: it generates text, and computes no tensors."""
        raise InputError(f"a request to /v1/completions or /v1/chat/completions, as {self.name} is a language model")

    def step(self, pieces: Sequence[SequencePart]) -> Tensor:
        """Compute *pieces* and extend their caches.

        Returns
        -------
        Tensor
            Logits behind the last token of each piece. Shape [pieces, vocabulary].

        Raises
        ------
        DeviceError
            If the device fails, or has no memory left.
        InputError
            If the model cannot compute them.
        """
        network = self._network
        if network is None:
            raise RuntimeError(f"model {self.name} is closed")
        with self._runtime.running(self.name), torch().inference_mode():
            logits = network.logits(pieces)
        for piece in pieces:
            piece.cache.length += len(piece.tokens)
        return logits

    def work_of(self, tokens: int, attended: int) -> StepWork:
        """Return the work of a step: *tokens* it computes, and how many they see, summed over them."""
        network = self._network
        assert network is not None
        flops = 2.0 * network.parameters * tokens + network.flops_per_attended * attended
        return StepWork(flops, network.bytes_moved + self.cache_bytes_per_token * attended)

    def measure(self, until_s: float) -> None:
        """Measure steps of 1, 2, 4, ... tokens until one takes *until_s*."""
        points = list(self.profile.points)
        while points[-1].time_s <= until_s and 2 * points[-1].rows <= min(MOST_ROWS, self.context_tokens):
            points.append(self._measured(2 * points[-1].rows))
        self.profile = RowProfile(divisible=True, points=tuple(points))

    def check(self, settings: LanguageSpec) -> None:
        """Raise ``InputError`` for sizes that the model, or the memory of its device, does not have."""
        context, steps = self.context_tokens, settings.max_sequences * self.context_tokens
        gigabytes = self._memory_bytes / 1e9
        room = max(2, int(self._memory_bytes / max(1.0, self.cache_bytes_per_token)))
        for name, most, why in (
            ("context_tokens", context, "the context of the model"),
            ("kv_cache_tokens", room, f"what {gigabytes:,.0f} GB of memory hold"),
            ("prefill_tokens", steps, "max_sequences times the context of the model"),
            ("default_max_tokens", context - 1, "the context of the model without a prompt of one"),
        ):
            value = getattr(settings, name)
            if name in settings.model_fields_set and value is not None and value > most:
                raise InputError(f"at most {most:,} tokens, {why}", field=f"language.{name}", value=value)

    @property
    def _memory_bytes(self) -> float:
        index = self._runtime.cuda_index
        if index is None:
            return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        return float(torch().cuda.get_device_properties(index).total_memory)

    def close(self) -> None:
        """Free its memory."""
        self._network = None

    def _measured(self, tokens: int) -> RowPoint:
        least = min(_timed(lambda: self.step([SequencePart(SequenceCache(tokens), [0] * tokens)])) for _ in range(4))
        return RowPoint(rows=tokens, time_s=least, longest_step_s=least)


def _timed(call: Callable[[], object]) -> float:
    before = perf_counter()
    call()
    return max(1e-9, perf_counter() - before)


def packed(pieces: Sequence[SequencePart]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return tokens and their positions, one piece behind the other, and where each piece's last token stands."""
    tokens = np.concatenate([np.asarray(piece.tokens, np.int64) for piece in pieces])
    positions = [np.arange(p.cache.length, p.cache.length + len(p.tokens)) for p in pieces]
    last = np.cumsum([len(piece.tokens) for piece in pieces]) - 1
    return tokens, np.concatenate(positions), last
