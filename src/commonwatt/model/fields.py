"""Fields of files and results, each declared with its unit and meaning.

Each field is declared once, here in code; the JSON Schema (``commonwatt schema NAME``), the data dictionary
(``commonwatt schema --dictionary``) and the reference pages are generated from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, main
from pydantic_core import PydanticUndefined

from commonwatt import __version__
from commonwatt.model.errors import FieldError
from commonwatt.model.plugins import NAME

__all__ = [
    "AnswerModel",
    "DictionaryRow",
    "FileModel",
    "FileVersion",
    "PluginName",
    "ResultModel",
    "dictionary_rows",
    "digest",
    "quantity",
    "stamp",
]


def _check_version(value: Any) -> Any:  # noqa: ANN401
    if value != 1 or isinstance(value, bool):
        raise FieldError("1, the only version", value=value)
    return value


FileVersion = Annotated[Literal[1], BeforeValidator(_check_version)]
"""Version of a file's format."""


PluginName = Annotated[str, WithJsonSchema({"type": "string", "pattern": NAME})]
"""A name in a file that may be a plugin's."""


_DEFERS = hasattr(main, "_rebuild_lock")
"""Whether schemas are built when first used, which older versions of pydantic do not protect from other threads."""


class FileModel(BaseModel):
    """A file, or part of one, that a user writes: unknown keys, NaN and infinity are refused."""

    model_config = ConfigDict(
        extra="forbid",
        allow_inf_nan=False,
        frozen=True,
        populate_by_name=True,
        coerce_numbers_to_str=True,
        defer_build=_DEFERS,
    )


class ResultModel(BaseModel):
    """A result of a command. Unknown is ``None``, never 0."""

    model_config = ConfigDict(frozen=True, defer_build=_DEFERS)


def quantity(meaning: str, unit: str = "-", default: Any = ..., **constraints: Any) -> Any:  # noqa: ANN401
    """Declare a field: its meaning, its unit ("-" for none), default and limits (``ge``, ``gt``, ...)."""
    extra: dict[str, Any] = {"unit": unit}
    if callable(default):
        return Field(default_factory=default, description=meaning, json_schema_extra=extra, **constraints)
    return Field(default, description=meaning, json_schema_extra=extra, **constraints)


class AnswerModel(ResultModel):
    """A result with its provenance: version, seed and digest of the input."""

    version: str = quantity("version of commonwatt")
    seed: int = quantity("seed of all random numbers")
    input_digest: str = quantity("SHA-256 of the validated input")


def digest(document: BaseModel) -> str:
    """SHA-256 of a document as validated."""
    text = json.dumps(document.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def stamp(document: BaseModel, seed: int) -> dict[str, Any]:
    """Return the fields of ``AnswerModel`` for an answer to *document*."""
    return {"version": __version__, "seed": seed, "input_digest": digest(document)}


class DictionaryRow(NamedTuple):
    """One line of the data dictionary."""

    model: str
    name: str
    type: str
    unit: str
    default: str
    meaning: str


def dictionary_rows(root: type[BaseModel]) -> Iterator[DictionaryRow]:
    """Yield the fields of *root* and of every model below it, each model once, in order of appearance."""
    seen: set[type[BaseModel]] = set()
    queue = [root]
    while queue:
        model = queue.pop(0)
        if model in seen:
            continue
        seen.add(model)
        for name, info in model.model_fields.items():
            extra = info.json_schema_extra
            unit = str(extra.get("unit", "-")) if isinstance(extra, dict) else "-"
            yield DictionaryRow(
                model.__name__,
                info.alias or name,
                _type_name(info.annotation),
                unit,
                _default_text(info.default, info.default_factory),
                info.description or "",
            )
            queue.extend(_models_in(info.annotation))


def _models_in(annotation: Any) -> list[type[BaseModel]]:  # noqa: ANN401
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _type_name(annotation: Any) -> str:  # noqa: ANN401
    if annotation is type(None):
        return "null"
    if isinstance(annotation, type) and not get_args(annotation):
        names = {"str": "text", "int": "whole number", "float": "number", "bool": "true/false"}
        return names.get(annotation.__name__, annotation.__name__)
    return str(_bare(annotation)).replace("typing.", "").replace("commonwatt.model.", "").replace("NoneType", "null")


def _bare(annotation: Any) -> Any:  # noqa: ANN401
    """Return a type without its ``Annotated`` metadata."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _bare(args[0])
    bare = args if origin is Literal else tuple(_bare(part) for part in args)
    if bare == args:
        return annotation
    return origin[bare] if isinstance(origin, type) and origin in (tuple, dict, list) else reduce(or_, bare)


def _default_text(default: Any, factory: Any) -> str:  # noqa: ANN401
    if factory is not None:
        made = factory()
        return "" if isinstance(made, BaseModel) else str(made)
    if default is PydanticUndefined or default is ...:
        return "required"
    return "" if default is None else str(default)
