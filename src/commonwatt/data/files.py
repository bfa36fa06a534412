"""Files users write, into their models; and files we write, all at once or not at all."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import yaml
from pydantic import ValidationError

from commonwatt.data._explain import explain, numbers_in
from commonwatt.data._yaml import DuplicateKeyError, parse_yaml
from commonwatt.data.table import read_table
from commonwatt.data.text import read_text
from commonwatt.model.electricity import Electricity
from commonwatt.model.errors import InputError
from commonwatt.model.fields import FileModel

__all__ = ["load_yaml", "read_series", "validate", "write_atomic"]

Model = TypeVar("Model", bound=FileModel)

LARGEST = 1e15
"""No number of a file is larger: products of them stay finite, and a second is still seen beside 30 million years."""


def load_yaml(path: str | Path, model: type[Model]) -> Model:
    """Read a YAML or JSON file (by content, gzipped or not) into *model*.

    A price series named by ``electricity.series_file`` is read too and stands in ``electricity.series`` afterwards.
    Raises one ``InputError`` naming file, field, value and what was expected.
    """
    path = Path(path)
    loaded = validate(_parse(path), model, path)
    electricity = getattr(loaded, "electricity", None)
    if isinstance(electricity, Electricity) and electricity.series_file:
        return loaded.model_copy(update={"electricity": read_series(electricity, path.parent)})
    return loaded


def validate(raw: object, model: type[Model], file: object = None, *, strict: bool = False) -> Model:
    """Validate what a file or request body holds; raises one ``InputError`` naming *file*.

    With *strict*, values are of the types of JSON they are said to be: no numbers written as text.
    """
    try:
        valid = model.model_validate_json(json.dumps(raw), strict=True) if strict else model.model_validate(raw)
    except ValidationError as error:
        raise explain(error, raw, model, file) from None
    for place, number in numbers_in(raw):
        if abs(number) > LARGEST:
            raise InputError(f"a number up to {LARGEST:g}", file=file, field=".".join(place), value=number)
    return valid


def read_series(electricity: Electricity, folder: Path) -> Electricity:
    """Read ``series_file``, relative to *folder*, into ``series``."""
    path = folder / str(electricity.series_file)
    table = read_table(path)
    points: dict[str, list[float | None]] = {
        "from_s": table.numbers("from_s").tolist(),
        "price_per_kwh": table.numbers("price_per_kwh").tolist(),
    }
    if "carbon_g_per_kwh" in table:
        grams = table.numbers("carbon_g_per_kwh", blank=np.nan)
        points["carbon_g_per_kwh"] = [None if np.isnan(g) else float(g) for g in grams]
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


def _parse(path: Path) -> Any:  # noqa: ANN401
    text = read_text(path)
    try:
        raw = json.loads(text, object_pairs_hook=_object) if text.lstrip().startswith("{") else parse_yaml(text)
    except json.JSONDecodeError:
        raw = _parse_flow(path, text)
    except DuplicateKeyError as error:
        raise _twice(path, error) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise _syntax(path, error) from None
    if not isinstance(raw, dict):
        raise InputError("a mapping of fields at the top", file=path, value=raw)
    return raw


def _parse_flow(path: Path, text: str) -> Any:  # noqa: ANN401
    """Read YAML that begins with a brace but is no JSON."""
    try:
        return parse_yaml(text)
    except DuplicateKeyError as error:
        raise _twice(path, error) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise _syntax(path, error) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise DuplicateKeyError(next(key for key in keys if keys.count(key) > 1), None)
    return found


def _twice(path: Path, error: DuplicateKeyError) -> InputError:
    where = path if error.line is None else f"{path}, line {error.line}"
    return InputError("each key once", file=where, field=str(error.key))


def _syntax(path: Path, error: Exception) -> InputError:
    mark = getattr(error, "problem_mark", None)
    where = f"{path}, line {mark.line + 1}" if mark is not None else path
    problem = getattr(error, "problem", None) or str(error) or "too deeply nested"
    return InputError("valid YAML or JSON", file=where, value=problem)
