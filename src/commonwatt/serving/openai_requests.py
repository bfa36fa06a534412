"""Requests of OpenAI's API: what they may contain, and what is refused rather than ignored."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import ConfigDict, Field

from commonwatt.data.files import validate
from commonwatt.devices.language.base import Message
from commonwatt.model.errors import InputError
from commonwatt.model.fields import FileModel
from commonwatt.serving.backend import TextRequest
from commonwatt.serving.rejections import ParameterError

__all__ = ["OpenAIRequest", "parsed_chat", "parsed_completion"]

_IGNORED = frozenset({
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "parallel_tool_calls", "verbosity",
})  # fmt: skip
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "best_of": (1,), "echo": (False,), "frequency_penalty": (0,), "function_call": ("none", "auto"), "functions": ([],),
    "logit_bias": ({},), "logprobs": (False,), "modalities": (["text"],), "n": (1,), "presence_penalty": (0,),
    "reasoning_effort": ("none",), "response_format": ({"type": "text"},), "suffix": ("",),
    "tool_choice": ("none", "auto"), "tools": ([],), "top_logprobs": (), "audio": (), "prediction": (),
    "web_search_options": (), "moderation": (),
}  # fmt: skip
"""Parameters that are not supported, and the values, besides null, that ask for nothing."""

_UNIONS = frozenset({"str", "list[str]", "list[int]", "list[list[int]]", "list[_Part]"})
_EITHER = {
    "prompt": "a text, or a list of tokens", "stop": "a text, or up to 4 texts",
    "content": "a text, or a list of parts of type text",
}  # fmt: skip
"""What is expected where a value may be of several kinds; Pydantic names the kind in the path of the field."""


class _Strict(FileModel):
    model_config = ConfigDict(coerce_numbers_to_str=False)


class _StreamOptions(_Strict):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class _Sampling(_Strict):
    model: str
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), le=2**64 - 1)
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


class _Completion(_Sampling):
    prompt: str | list[str] | list[int] | list[list[int]]


class _Part(_Strict):
    type: Literal["text"]
    text: str


class _Spoken(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_Part]
    name: str | None = None


class _Chat(_Sampling):
    messages: list[_Spoken] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)


Asked = TypeVar("Asked", bound=_Sampling)


@dataclass(frozen=True)
class OpenAIRequest:
    """A request as it was understood."""

    model: str
    text: TextRequest
    stream: bool
    include_usage: bool


def parsed_completion(body: dict[str, Any]) -> OpenAIRequest:
    """Return a request to ``/v1/completions``; raises ``ParameterError`` naming the parameter."""
    asked = _checked(body, _Completion)
    prompt: Any = asked.prompt
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise ParameterError(f"prompt: got {len(prompt)} prompts, expected one in a request", "prompt")
        prompt = prompt[0]
    return _request(asked, prompt if isinstance(prompt, str) else tuple(prompt), asked.max_tokens)


def parsed_chat(body: dict[str, Any]) -> OpenAIRequest:
    """Return a request to ``/v1/chat/completions``; raises ``ParameterError`` naming the parameter."""
    asked = _checked(body, _Chat)
    messages: list[Message] = []
    for spoken in asked.messages:
        content = spoken.content if isinstance(spoken.content, str) else "".join(part.text for part in spoken.content)
        messages.append({"role": spoken.role, "content": content})
    most = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
    return _request(asked, tuple(messages), most)


def _checked(body: dict[str, Any], kind: type[Asked]) -> Asked:
    rest = {name: value for name, value in body.items() if name not in _IGNORED}
    for name, values in _NEUTRAL.items():
        if name not in rest or name in kind.model_fields:
            continue
        value = rest.pop(name)
        if value is not None and not any(
            value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in values
        ):
            wanted = " or ".join(json.dumps(neutral) for neutral in values) or "null"
            raise ParameterError(f"{name}: got {_shown(value)}, expected {wanted}, as it is not supported", name)
    try:
        json.dumps(rest, ensure_ascii=False).encode()
        return validate(rest, kind, strict=True, largest=math.inf)
    except UnicodeEncodeError:
        raise ParameterError("got half of a surrogate pair, expected text of whole characters", None) from None
    except InputError as error:
        parts = (error.field or "").split(".")
        named = [part for part in parts if part not in _UNIONS]
        field = ".".join(named) or None
        got, expected = _got(rest, named, error), error.expected
        many = {"prompt": 1, "stop": 1, "content": 3}  # steps to a value of several kinds: messages.0.content
        if got and named and many.get(named[-1]) == len(named) and named[0] in kind.model_fields:
            expected = _EITHER[named[-1]]
        if named[:1] == ["prompt"] and len(named) > 1:
            expected = "a token, which is a whole number, or a text"
        raise ParameterError(f"field '{field}': {got}expected {expected}", field) from None


def _got(body: object, path: Sequence[str], error: InputError) -> str:
    """Return what the body has at *path*; nothing where it has none."""
    for part in path:
        if isinstance(body, dict) and part in body:
            body = body[part]
        elif isinstance(body, list) and part.isdecimal() and int(part) < len(body):
            body = body[int(part)]
        else:
            return "" if error.value is None else f"got {_shown(str(error.value))}, "
    return f"got {_shown(body)}, "


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else text[:97] + "..."


def _request(asked: _Sampling, prompt: str | tuple[Any, ...], max_tokens: int | None) -> OpenAIRequest:
    stop = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    if len(stop) > 4 or not all(stop):
        raise ParameterError("stop: got an empty text or more than 4, expected up to 4 texts", "stop")
    text = TextRequest(
        prompt=prompt or "",
        max_tokens=max_tokens,
        temperature=1.0 if asked.temperature is None else asked.temperature,
        top_p=1.0 if asked.top_p is None else asked.top_p,
        seed=secrets.randbits(63) if asked.seed is None else asked.seed,
        stop=tuple(stop),
    )
    if asked.stream_options is not None and not asked.stream:
        raise ParameterError("stream_options: got a value, expected none without stream", "stream_options")
    usage = asked.stream_options is not None and bool(asked.stream_options.include_usage)
    return OpenAIRequest(asked.model, text, bool(asked.stream), usage)
