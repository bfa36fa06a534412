"""An answer as it is made: choosing a token from logits, turning tokens into text, and stopping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from commonwatt.devices.base import Tensor
from commonwatt.devices.language.base import TokenCoder

__all__ = ["Answer", "Finish", "GenerationOrder", "StopSearch", "sample_token"]

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class GenerationOrder:
    """What to generate.

    Attributes
    ----------
    prompt
        Tokens, 1 or more.
    max_tokens
        Longest answer, 1 or more.
    temperature, top_p
        How tokens are drawn: logits over the temperature (0: the likeliest token), from the fewest tokens that have
        the probability *top_p* together.
    seed
        Of what is drawn.
    stop
        Texts before which the answer ends.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Most tokens of prompt and answer."""
        return len(self.prompt) + self.max_tokens


def sample_token(logits: Tensor, order: GenerationOrder, rng: np.random.Generator) -> int:
    """Return a token by its logits ([vocabulary]); raises ``ValueError`` if they are not numbers."""
    if not np.isfinite(logits.max()):
        raise ValueError("the model's logits are not numbers")
    if order.temperature == 0:
        return int(logits.argmax())
    scaled = (logits - logits.max()).astype(np.float64) / order.temperature
    chances = np.exp(scaled)
    chances /= chances.sum()
    ranked = np.argsort(-chances, kind="stable")
    if order.top_p < 1:
        sums = np.cumsum(chances[ranked])
        ranked = ranked[: int(np.searchsorted(sums, order.top_p * (1 - 1e-12))) + 1]
    sums = np.cumsum(chances[ranked])
    return int(ranked[min(len(ranked) - 1, int(np.searchsorted(sums, rng.random() * sums[-1], side="right")))])


class StopSearch:
    """Text up to the first of *stops*; what may be the beginning of one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._pending = ""
        self.has_stop = False

    def push(self, text: str) -> str:
        """Return what is certain with *text*; nothing comes behind a stop."""
        self._pending += text
        places = [place for stop in self._stops if (place := self._pending.find(stop)) >= 0]
        if places:
            self.has_stop = True
            return self._pending[: min(places)]
        keep = max((self._overlap(stop) for stop in self._stops), default=0)
        sure, self._pending = self._pending[: len(self._pending) - keep], self._pending[len(self._pending) - keep :]
        return sure

    def end(self) -> str:
        """Return what was held back."""
        return self._pending

    def _overlap(self, stop: str) -> int:
        """Length of the longest end of the text with which *stop* begins."""
        longest = min(len(stop) - 1, len(self._pending))
        return next((n for n in range(longest, 0, -1) if self._pending.endswith(stop[:n])), 0)


class Answer:
    """Text and tokens of an answer so far."""

    def __init__(self, order: GenerationOrder, coder: TokenCoder) -> None:
        self._order, self._coder = order, coder
        self._rng = np.random.default_rng(order.seed)
        self._stream, self._stops = coder.stream(), StopSearch(order.stop)
        self.tokens: list[int] = []
        self.finish: Finish | None = None

    def extend(self, logits: Tensor) -> str:
        """Choose the next token; returns the text that is certain with it."""
        token = sample_token(logits[: self._coder.vocabulary], self._order, self._rng)
        self.tokens.append(token)
        if token in self._coder.ends:
            return self._ended("stop")
        text = self._stops.push(self._stream.push(token))
        if self._stops.has_stop:
            self.finish = "stop"
            return text
        return text + self._ended("length") if len(self.tokens) >= self._order.max_tokens else text

    def _ended(self, why: Finish) -> str:
        text = self._stops.push(self._stream.end())
        self.finish = "stop" if self._stops.has_stop else why
        return text if self._stops.has_stop else text + self._stops.end()
