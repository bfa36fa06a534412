"""Reference pages of every file and result, from the Pydantic models."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from markup import cell
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from commonwatt.model.fields import FileModel, dictionary_rows
from commonwatt.model.schemas import SCHEMAS

SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", Any: "anything"}
LIMITS = (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))


def file_pages() -> dict[str, str]:
    """Return the pages of the files a user writes."""
    return _section("files", "Files", "Files that you write, YAML or JSON unless a page says otherwise.", files=True)


def result_pages() -> dict[str, str]:
    """Return the pages of what commands print with ``--json`` and what the REST API returns."""
    intro = "What commands print with `--json`, what files of results hold, and what the REST API returns."
    return _section("results", "Results", intro, files=False)


def _section(folder: str, title: str, intro: str, *, files: bool) -> dict[str, str]:
    models = {name: model for name, model in sorted(SCHEMAS.items()) if issubclass(model, FileModel) is files}
    rows = [f"| [`{name}`]({name}.md) | {_sentence(model)} |" for name, model in models.items()]
    schema = "`commonwatt schema NAME` prints the JSON Schema of each, `commonwatt schema --dictionary` every field."
    lines = [f"# {title}", intro, schema, "| name | what it is |\n| --- | --- |\n" + "\n".join(rows)]
    index = "\n\n".join(lines) + "\n"
    base = f"reference/{folder}"
    return {f"{base}/index.md": index} | {f"{base}/{name}.md": _page(name, model) for name, model in models.items()}


def _page(name: str, root: type[BaseModel]) -> str:
    parts = [f"# {name}", _description(root), f"JSON Schema: `commonwatt schema {name}`.", _table(root)]
    for model in _below(root):
        parts += [f"## {model.__name__}", _description(model), _table(model)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _below(root: type[BaseModel]) -> list[type[BaseModel]]:
    """Return the models that fields of *root* hold, directly or further down, in order of appearance."""
    found: list[type[BaseModel]] = [root]
    for model in found:
        for info in model.model_fields.values():
            found += [part for part in _models_in(info.annotation) if part not in found]
    return found[1:]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:  # noqa: ANN401
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _description(model: type[BaseModel]) -> str:
    return cell((model.__doc__ or "").split("\n\n")[0]) if "__doc__" in vars(model) else ""


def _sentence(model: type[BaseModel]) -> str:
    return _description(model) or model.__name__


def _table(model: type[BaseModel]) -> str:
    texts = {row.name: row for row in dictionary_rows(model) if row.model == model.__name__}
    lines = ["| field | type | unit | default | meaning |", "| --- | --- | --- | --- | --- |"]
    for name, info in model.model_fields.items():
        row = texts[info.alias or name]
        kind = _type(info.annotation) + _limits(info.metadata)
        unit = "" if row.unit == "-" else cell(row.unit)
        lines.append(f"| `{row.name}` | {kind} | {unit} | {_default(info)} | {cell(row.meaning)} |")
    return "\n".join(lines)


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True)
    if value is None or isinstance(value, BaseModel):
        return ""
    written = json.dumps(to_jsonable_python(value), ensure_ascii=False)
    return f"`{written.replace('|', chr(92) + '|')}`"


def _type(annotation: Any) -> str:  # noqa: ANN401
    if annotation in SCALARS:
        return SCALARS[annotation]
    origin, args = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    if origin is Annotated:
        return _type(args[0]) + _limits(args[1:])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in args)
    if origin in (Union, types.UnionType):
        return " or ".join(_type(part) for part in args)
    if origin in (tuple, list) and (len(args) == 1 or args[-1] is Ellipsis):
        return f"list of {_type(args[0])}"
    if origin is tuple:
        return "[" + ", ".join(_type(part) for part in args) + "]"
    if origin is dict:
        return f"map of {_type(args[0])} to {_type(args[1])}"
    return getattr(annotation, "__name__", None) or str(annotation).replace("|", "\\|")


def _limits(metadata: Any) -> str:  # noqa: ANN401
    found = [f"{sign} {getattr(part, name):g}" for part in metadata for name, sign in LIMITS if hasattr(part, name)]
    return f" ({', '.join(found)})" if found else ""
