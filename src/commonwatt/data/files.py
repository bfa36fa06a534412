"""Reads users' files into models, and writes files completely or not at all.

YAML as people mean it: the core schema of YAML 1.2, and no key twice. A document's keys tell its kind, so that an
error for a file of the wrong kind names the command that reads it.

PyYAML follows YAML 1.1, where ``off`` is false, ``1e-4`` is text, ``010`` is eight, ``12:30:00`` is 45000 and a date is
no text. Users write ``state: off`` and ``begin: 2017-10-16``.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import yaml
from pydantic import BaseModel, ValidationError

from commonwatt.data._explain import explain, numbers_in
from commonwatt.data.file_kinds import called, of_result, other_kind, wrong_kind
from commonwatt.data.table import read_table
from commonwatt.data.text import read_text
from commonwatt.model.electricity import Electricity
from commonwatt.model.errors import InputError

__all__ = [
    "DuplicateKeyError",
    "load_yaml",
    "parse_yaml",
    "read_series",
    "validate",
    "write_atomic",
]


class DuplicateKeyError(ValueError):
    """A mapping contains a key twice."""

    def __init__(self, key: object, line: int | None) -> None:
        super().__init__(f"{key!r} twice")
        self.key, self.line = key, line


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def construct_object(self, node: Any, deep: bool = False) -> Any:  # noqa: ANN401
        try:
            return super().construct_object(node, deep)
        except (KeyError, TypeError, AttributeError, ArithmeticError):  # PyYAML's own, on `!!bool foo`
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(None, None, f"what is no {kind}", node.start_mark) from None

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: ANN401
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag != "tag:yaml.org,2002:merge":
                key = self.construct_object(key_node)
                if not isinstance(key, Hashable):
                    break  # it is refused below
                if key in seen:
                    raise DuplicateKeyError(key, key_node.start_mark.line + 1)
                seen.add(key)
        return super().construct_mapping(node, deep)


def _add(tag: str, pattern: str, first: str) -> None:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), list(first) or [""])


_add("bool", "true|True|TRUE|false|False|FALSE", "tTfF")
_add("int", "[-+]?[0-9]+", "-+0123456789")
_add("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789")
_add("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+.")
_add("null", "~|null|Null|NULL", "~nN")
_add("null", "", "")
_add("merge", "<<", "<")


def _whole(loader: _Loader, node: Any) -> int:  # noqa: ANN401
    return int(loader.construct_scalar(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _whole)


def parse_yaml(text: str) -> Any:  # noqa: ANN401
    """Parse one document. Raises ``yaml.YAMLError``, ``DuplicateKeyError`` or ``RecursionError``."""
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader


Model = TypeVar("Model", bound=BaseModel)

LARGEST = 1e15
"""Largest number in a file: products stay finite, and a second still counts beside 30 million years."""


def load_yaml(path: str | Path, model: type[Model]) -> Model:
    """Read a YAML or JSON file (by content, gzipped or not) into *model*.

    A price series named by ``electricity.series_file`` is read too and stands in ``electricity.series`` afterwards.
    The result of a command that answers with a *model* (``RESULTS``) is read as one. Raises one ``InputError`` naming
    file, field, value and what was expected, or the command that reads a file of this kind.
    """
    path = Path(path)
    raw = _parse(path, model)
    try:
        loaded = validate(of_result(raw, model), model, path)
    except InputError as error:
        raise (wrong_kind(raw, model, path) or error) from None
    electricity = getattr(loaded, "electricity", None)
    if isinstance(electricity, Electricity) and electricity.series_file:
        return loaded.model_copy(update={"electricity": read_series(electricity, path.parent)})
    return loaded


def validate(
    raw: object, model: type[Model], file: object = None, *, strict: bool = False, largest: float = LARGEST
) -> Model:
    """Validate the content of a file or request body; raises one ``InputError`` naming *file*.

    With *strict*, values are of the types of JSON they are said to be: no numbers written as text. No number is larger
    than *largest*.
    """
    try:
        valid = model.model_validate_json(json.dumps(raw), strict=True) if strict else model.model_validate(raw)
    except ValidationError as error:
        raise explain(error, raw, model, file) from None
    for place, number in numbers_in(raw):
        if abs(number) > largest:
            raise InputError(f"a number up to {largest:g}", file=file, field=".".join(place), value=number)
    return valid


def read_series(electricity: Electricity, folder: Path) -> Electricity:
    """Read ``series_file``, relative to *folder*, into ``series``."""
    path = folder / str(electricity.series_file)
    table = read_table(path)
    points: dict[str, list[float | None]] = {
        "from_s": table.numbers("from_s").tolist(),
        "price_per_kwh": table.numbers("price_per_kwh").tolist(),
    }
    for name in ("carbon_g_per_kwh", "power_cap_w"):
        if name in table:
            values = table.numbers(name, blank=np.nan)
            points[name] = [None if np.isnan(value) else float(value) for value in values]
    rows = [dict(zip(points, row, strict=True)) for row in zip(*points.values(), strict=True)]
    fields = electricity.model_dump() | {"series": rows, "series_file": None}
    return validate(fields, Electricity, path)


def write_atomic(path: str | Path, content: str | bytes) -> None:
    """Write *content* to *path* so that readers see the old file or the whole new one.

    It goes to a temporary file in the same folder first. Raises ``InputError`` if the folder cannot be written to.
    """
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError("a file that can be written", file=path, value=error.strerror) from None


def _parse(path: Path, model: type[BaseModel]) -> Any:  # noqa: ANN401
    text = read_text(path)
    try:
        raw = json.loads(text, object_pairs_hook=_object) if text.lstrip().startswith("{") else parse_yaml(text)
    except json.JSONDecodeError:
        raw = _parse_flow(path, text)
    except DuplicateKeyError as error:
        raise _twice(path, error) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise (other_kind(path, text, _wanted(model)) or _syntax(path, error)) from None
    if not isinstance(raw, dict):
        raise other_kind(path, text, _wanted(model)) or _no_fields(path, raw)
    return raw


def _wanted(model: type[BaseModel]) -> str:
    return called(model) or "a YAML or JSON file of fields"


def _no_fields(path: Path, raw: object) -> InputError:
    """Return the error for a document without fields; it names the format of a job log."""
    from commonwatt.data.catalog import guess_format

    try:
        source = guess_format(path)
    except InputError:
        return InputError("a mapping of fields at the top", file=path, value=raw)
    use = f"`commonwatt data check {path}`, which prints what a scenario says of it, or `commonwatt study`"
    return InputError(f"a YAML or JSON file of fields; this is a log or table of format {source}: use {use}", file=path)


def _parse_flow(path: Path, text: str) -> Any:  # noqa: ANN401
    """Read YAML that begins with a brace but is not JSON."""
    try:
        return parse_yaml(text)
    except DuplicateKeyError as error:
        raise _twice(path, error) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise _syntax(path, error) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        keys = [key for key, _ in pairs]
        raise DuplicateKeyError(next(key for key in keys if keys.count(key) > 1), None)
    return fields


def _twice(path: Path, error: DuplicateKeyError) -> InputError:
    where = path if error.line is None else f"{path}, line {error.line}"
    return InputError("each key once", file=where, field=str(error.key))


def _syntax(path: Path, error: Exception) -> InputError:
    mark = getattr(error, "problem_mark", None)
    where = f"{path}, line {mark.line + 1}" if mark is not None else path
    problem = getattr(error, "problem", None) or str(error) or "too deeply nested"
    if "set_int_max_str_digits" in problem:
        problem = "a number of thousands of digits"
    return InputError("valid YAML or JSON", file=where, value=problem)
