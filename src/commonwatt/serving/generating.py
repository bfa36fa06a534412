"""A request for text on its way to the device, and its answer on the way back, token by token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import cast

from commonwatt.devices.language.base import Message, TokenCoder
from commonwatt.devices.language.generation import Generation, LanguagePlan
from commonwatt.devices.language.text import GenerationOrder
from commonwatt.model.errors import DeviceError, InputError
from commonwatt.serving.backend import BackendError, TextPiece, TextRequest, UnavailableError
from commonwatt.serving.rejections import ParameterError
from commonwatt.serving.triton_documents import ModelCounts
from commonwatt.serving.worker import RequestCounts
from commonwatt.timeslicing import Task

__all__ = ["GenerationCall", "TextAnswer", "ordered"]

COMPLETION_TOKENS = 16
"""Longest answer to a prompt if the request does not say, as OpenAI has it."""


def ordered(request: TextRequest, coder: TokenCoder, plan: LanguagePlan) -> GenerationOrder:
    """Return what a model is to generate; raises ``ParameterError`` for a prompt or an answer that is too long."""
    prompt, where, default = _tokens(request.prompt, coder), "prompt", COMPLETION_TOKENS
    if isinstance(request.prompt, tuple) and isinstance(request.prompt[0], dict):
        where, default = "messages", plan.default_max_tokens
    if not prompt:
        raise ParameterError(f"{where}: got no tokens, expected 1 or more", where)
    room = plan.most_tokens - len(prompt)
    wanted = min(default, max(1, room)) if request.max_tokens is None else request.max_tokens
    if wanted > room:
        raise ParameterError(
            f"{where}: got {len(prompt)} tokens and max_tokens {wanted}, expected at most {plan.most_tokens} together, "
            "the limit of the model or of the tenant's cache",
            where,
            "context_length_exceeded",
        )
    return GenerationOrder(
        tuple(prompt), wanted, request.temperature, request.top_p, request.seed % 2**64, request.stop
    )


def _tokens(prompt: str | tuple[int, ...] | tuple[Message, ...], coder: TokenCoder) -> Sequence[int]:
    if isinstance(prompt, str):
        return coder.encode(prompt)
    if prompt and isinstance(prompt[0], dict):
        try:
            return coder.chat(prompt)
        except InputError as error:
            raise ParameterError(f"messages: expected {error.expected}", "messages") from None
    tokens = cast("tuple[int, ...]", prompt)
    wrong = next((token for token in tokens if not 0 <= token < coder.vocabulary), None)
    if wrong is not None:
        raise ParameterError(f"prompt: got token {wrong}, expected tokens from 0 to {coder.vocabulary - 1}", "prompt")
    return tokens


class GenerationCall:
    """What the device's thread tells of a request, for the event loop."""

    def __init__(self, counts: RequestCounts, of_model: ModelCounts) -> None:
        self._loop = asyncio.get_running_loop()
        self._counts, self._of_model = counts, of_model
        self._arrived_ns = self._last_ns = time.perf_counter_ns()
        self._tokens = 0
        self._done = False
        self.pieces: asyncio.Queue[str | BackendError | None] = asyncio.Queue()  # None: it is complete

    def pass_on(self, text: str) -> None:
        """Pass on the text of a token; called on the device's thread."""
        now_ns, counts = time.perf_counter_ns(), self._counts.tokens
        (counts.between if self._tokens else counts.first).observe((now_ns - self._last_ns) * 1e-9)
        self._last_ns = now_ns
        self._tokens += 1
        counts.answer += 1
        if text:
            self._put(text)

    def ended(self, task: Task) -> None:
        """Pass on the end of *task*; called on the device's thread, without a lock."""
        request: Generation = task.work
        took_ns = request.ended_ns - task.submitted_ns
        if self._tokens:
            self._counts.tokens.prompt += len(request.order.prompt)
        if request.answer.finish is not None:
            self._counts.requests["ok"] += 1
            self._counts.latency.observe(took_ns * 1e-9)
            began_ns, of_model = request.began_ns or task.submitted_ns, self._of_model
            of_model.success.add(took_ns)
            of_model.queue.add(began_ns - task.submitted_ns)
            of_model.compute.add(request.ended_ns - began_ns)
            of_model.rows += self._tokens
            of_model.last_ms = round(time.time() * 1e3)
            self._end(None)
        elif task.cancelled and request.error is None:
            self._counts.requests["cancelled"] += 1
        else:
            self._counts.requests["failed"] += 1
            self._of_model.fail.add(took_ns)
            gone = isinstance(request.error, DeviceError)
            self._end(
                UnavailableError(str(request.error)) if gone else BackendError(f"the model failed: {request.error}")
            )

    def done(self) -> bool:
        """Return whether it has ended."""
        return self._done

    def refuse(self, error: BackendError) -> None:
        """End with *error*, as a failure."""
        self._counts.requests["failed"] += 1
        self._end(error)

    def decline(self, error: BackendError) -> None:
        """End with *error*, which has been counted."""
        self._end(error)

    def _end(self, how: BackendError | None) -> None:
        self._done = True
        self._put(how)

    def _put(self, piece: str | BackendError | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self.pieces.put_nowait, piece)
        except RuntimeError:  # the loop is closed: nobody waits
            return


class TextAnswer:
    """An answer in the making; *over* is called once, when nobody waits for it any more."""

    def __init__(self, work: Generation, call: GenerationCall, over: Callable[[], None]) -> None:
        self.prompt_tokens = len(work.order.prompt)
        self._work, self._call = work, call
        self._over: Callable[[], None] | None = over

    @property
    def answer_tokens(self) -> int:
        """Tokens of the answer so far."""
        return len(self._work.answer.tokens)

    async def next(self) -> TextPiece:
        """Return the next piece; raises ``BackendError`` if there is none to come."""
        piece = await self._call.pieces.get()
        if isinstance(piece, BackendError):
            raise piece
        return TextPiece("", self._work.answer.finish) if piece is None else TextPiece(piece)

    def cancel(self) -> None:
        """Stop, unless it has ended, and free its cache."""
        over, self._over = self._over, None
        if over is not None:
            over()
