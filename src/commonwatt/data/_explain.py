"""Pydantic's errors as one line: field, value, expectation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from commonwatt.model.errors import FieldError, InputError
from commonwatt.model.names import did_you_mean

__all__ = ["explain", "numbers_in"]

_LIMITS = {
    "greater_than": ("gt", "a number above {}"),
    "greater_than_equal": ("ge", "a number, {} or more"),
    "less_than": ("lt", "a number below {}"),
    "less_than_equal": ("le", "a number, {} or less"),
    "literal_error": ("expected", "one of {}"),
    "too_short": ("min_length", "at least {} entries"),
    "too_long": ("max_length", "at most {} entries"),
    "string_pattern_mismatch": ("pattern", "text of the form {}"),
    "string_too_short": ("min_length", "text of at least {} characters"),
}
_SECRET = {"key", "operator_key"}  # fields whose values are not repeated
_KINDS = {
    "finite_number": "a finite number",
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "string": "text",
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping of names to values",
    "model": "a mapping of fields",
}


def explain(error: ValidationError, raw: object, model: type[BaseModel], file: object) -> InputError:
    """Return the first error of *raw* as an ``InputError``."""
    first = _telling(error.errors(include_url=False), raw)
    field = ".".join(_place(first["loc"], raw))
    kind, context = first["type"], first.get("ctx", {})
    if kind == "value_error":
        return _ours(context["error"], field, file)
    if kind == "missing":
        return InputError("this field to be given", file=file, field=field)
    if kind == "union_tag_invalid":
        tag = str(context["discriminator"]).strip("'")
        expected = f"one of {context['expected_tags']}{_meant(context['tag'], context['expected_tags'])}"
        return InputError(expected, file=file, field=f"{field}.{tag}", value=context["tag"])
    if kind == "union_tag_not_found":
        tag = str(context["discriminator"]).strip("'")
        return InputError("this field to be given", file=file, field=f"{field}.{tag}" if field else tag)
    if kind == "extra_forbidden":
        return InputError(_possible_fields(model, first["loc"]), file=file, field=field)
    value = "(hidden)" if field.rpartition(".")[2] in _SECRET else first["input"]
    expected = _expectation(kind, context, first["msg"])
    if kind == "literal_error":
        expected += _meant(value, context["expected"])
    return InputError(expected, file=file, field=field or None, value=value)


def _meant(value: object, quoted: str) -> str:
    """Return which of the names *quoted*, as Pydantic lists them, *value* probably meant."""
    return did_you_mean(value, re.findall("'([^']*)'", quoted))


def _telling(errors: Sequence[ErrorDetails], raw: object) -> ErrorDetails:
    """Pick the error to report: the first; but a misspelt field rather than the one it leaves missing, and, where a
    value may be of several kinds, the error of the kind that got furthest.
    """  # noqa: D205
    first = errors[0]
    beside = [e for e in errors if e["type"] == "extra_forbidden" and e["loc"][:-1] == first["loc"][:-1]]
    if first["type"] == "missing" and beside:
        return beside[0]
    place = _place(first["loc"], raw)
    same = [e for e in errors if _place(e["loc"], raw)[: len(place)] == place]
    return max(same, key=lambda e: len(_place(e["loc"], raw)))


def _expectation(kind: str, context: Mapping[str, Any], message: str) -> str:
    if kind in _LIMITS:
        name, phrase = _LIMITS[kind]
        value = context[name]
        if value == 1:
            phrase = phrase.replace("entries", "entry").replace("characters", "character")
        return phrase.format(f"{value:g}" if isinstance(value, float) else value)
    for prefix, phrase in _KINDS.items():
        if kind.startswith(prefix):
            return phrase
    return message.removeprefix("Input should be ").lower()


def _ours(error: Exception, field: str, file: object) -> InputError:
    if isinstance(error, FieldError):
        return InputError(error.expected, file=file, field=error.below(field).field, value=error.value)
    if isinstance(error, InputError):
        return error.within(file)
    return InputError(str(error), file=file, field=field or None)


def _place(location: Sequence[int | str], raw: object) -> list[str]:
    """Return the path to the invalid value; entries of a list are named by their ``name`` if they have one.

    Pydantic puts the chosen member of a union in the way as if it were a key: what is not in *raw* is skipped,
    except at the end, where it is the missing field.
    """
    parts: list[str] = []
    for step, part in enumerate(location):
        last = step == len(location) - 1
        if isinstance(raw, Mapping) and (key := _key(raw, part)) is not None:
            raw = raw[key]
            parts.append(str(part))
        elif isinstance(raw, Sequence) and not isinstance(raw, str) and isinstance(part, int) and part < len(raw):
            raw = raw[part]
            name = raw.get("name") if isinstance(raw, Mapping) else None
            parts.append(name if isinstance(name, str) and name else str(part))
        elif last and isinstance(raw, Mapping) and isinstance(part, str) and part.isidentifier():
            parts.append(part)
    return parts


def numbers_in(raw: object, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield every number in a document with its path; list entries go by their ``name`` if they have one."""
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        yield place, raw
    elif isinstance(raw, Mapping):
        for key, value in raw.items():
            yield from numbers_in(value, (*place, str(key)))
    elif isinstance(raw, Sequence) and not isinstance(raw, str):
        for i, value in enumerate(raw):
            name = value.get("name") if isinstance(value, Mapping) else None
            yield from numbers_in(value, (*place, name if isinstance(name, str) and name else str(i)))


def _key(raw: Mapping[Any, Any], part: int | str) -> object | None:
    if part in raw:
        return part
    return next((key for key in raw if str(key) == str(part)), None)


def _possible_fields(model: type[BaseModel], location: Sequence[int | str]) -> str:
    """Return the possible fields in place of the unknown one at *location*."""
    candidates = [model]
    for part in location[:-1]:
        chosen = [m for m in candidates if isinstance(part, str) and part in m.model_fields]
        if chosen:
            candidates = [below for m in chosen for below in _models(m.model_fields[str(part)].annotation)]
        elif len(candidates) > 1:
            candidates = [m for m in candidates if _has_tag(m, part)] or candidates
    names = list(dict.fromkeys(info.alias or name for m in candidates for name, info in m.model_fields.items()))
    return f"one of the fields {', '.join(names)}{did_you_mean(location[-1], names)}" if names else "no such field"


def _models(annotation: Any) -> list[type[BaseModel]]:  # noqa: ANN401
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _has_tag(model: type[BaseModel], tag: object) -> bool:
    source = model.model_fields.get("source")
    return source is not None and tag in get_args(source.annotation)
