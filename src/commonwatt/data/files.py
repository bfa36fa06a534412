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
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import yaml
from pydantic import BaseModel, ValidationError

from commonwatt.data._explain import explain, numbers_in
from commonwatt.data.table import read_table
from commonwatt.data.text import read_text
from commonwatt.model.electricity import Electricity
from commonwatt.model.errors import InputError
from commonwatt.model.map_file import MappingFile, MapTable
from commonwatt.model.timeslice_file import ModelProfile
from commonwatt.model.training_profile import TrainingProfile

__all__ = [
    "DuplicateKeyError",
    "Kind",
    "is_result",
    "kind_of",
    "load_yaml",
    "no_log",
    "no_table",
    "of_result",
    "parse_yaml",
    "read_series",
    "validate",
    "write_atomic",
    "wrong_kind",
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
    raw = _parse(path)
    try:
        loaded = validate(of_result(raw, model), model, path)
    except InputError as error:
        raise (wrong_kind(raw, model, path) or error) from None
    electricity = getattr(loaded, "electricity", None)
    if isinstance(electricity, Electricity) and electricity.series_file:
        return loaded.model_copy(update={"electricity": read_series(electricity, path.parent)})
    return loaded


def validate(raw: object, model: type[Model], file: object = None, *, strict: bool = False) -> Model:
    """Validate the content of a file or request body; raises one ``InputError`` naming *file*.

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
        raise _no_fields(path, raw)
    return raw


def _no_fields(path: Path, raw: object) -> InputError:
    """Return the error for a document without fields; it names the format of a job log."""
    from commonwatt.data.catalog import guess_format

    try:
        source = guess_format(path)
    except InputError:
        return InputError("a mapping of fields at the top", file=path, value=raw)
    use = f"`commonwatt data check {path}`, which prints what a scenario says of it"
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


class Kind(NamedTuple):
    """A kind of file: its model's name in ``commonwatt schema``, what people call it, and the command that reads it."""

    schema: str
    what: str
    command: str
    signs: frozenset[str] = frozenset()  # of these fields one must be there, where none is needed


KINDS = (
    Kind("place", "a placement problem", "commonwatt place"),
    Kind("map", "a mapping problem", "commonwatt map"),
    Kind("mapping", "a mapping", "commonwatt map evaluate PROBLEM"),
    Kind("map-transfer", "what `commonwatt map --save-transfer` wrote", "commonwatt map PROBLEM --transfer"),
    Kind("partition", "a partitioning problem", "commonwatt partition"),
    Kind("partition-mig", "a MIG problem", "commonwatt partition mig"),
    Kind("timeslice-plan", "a quantum to divide", "commonwatt timeslice plan"),
    Kind("timeslice", "a device that tenants share", "commonwatt timeslice run"),
    Kind("timeslice-profile", "a profile of a model", "commonwatt timeslice run, where a tenant's model names it"),
    Kind(
        "study", "a study", "commonwatt study", frozenset({"baseline", "alternatives", "ours", "steps", "switched_off"})
    ),
    Kind("profile", "a profile of a training", "commonwatt submit --profile, or a scenario that names it"),
    Kind("job", "a job", "commonwatt submit"),
    Kind("scenario", "a scenario", "commonwatt simulate", frozenset({"workload", "policies", "engine", "live"})),
)
RESULTS: dict[type[BaseModel], str] = {
    MappingFile: "map",
    MapTable: "map table",
    ModelProfile: "timeslice profile",
    TrainingProfile: "profile",
}
"""Files that the command named here answers with under ``--json``, among other fields."""
_SPOKEN = {"map-schedule": "map --schedule", "simulation": "simulate", "sweep": "simulate --seeds"}


def is_result(raw: Mapping[str, Any]) -> bool:
    """Whether *raw* is what a command printed under ``--json``."""
    return "input_digest" in raw and isinstance(raw.get("version"), str)


def of_result(raw: Mapping[str, Any], model: type[BaseModel]) -> Mapping[str, Any]:
    """Return the part of *raw* that is a *model*, if a command that answers with one printed it; else *raw*."""
    if model not in RESULTS or not is_result(raw):
        return raw
    needed, allowed = _fields(model)
    for part in (raw, *raw.values()):
        if isinstance(part, Mapping) and needed <= part.keys():
            return {name: value for name, value in part.items() if name in allowed}
    return raw


def kind_of(raw: object) -> Kind | None:
    """Return what *raw* is by the names of its fields; ``None`` if it is nothing we know."""
    from commonwatt.model.schemas import SCHEMAS

    if not isinstance(raw, Mapping) or not raw:
        return None
    if is_result(raw):
        named = (name for name in SCHEMAS if name.endswith("-result") and _fits(raw, SCHEMAS[name]))
        name = next(named, None)
        if name is None:
            return None
        command = name.removesuffix("-result")
        spoken = _SPOKEN.get(command, command.replace("-", " "))
        return Kind(name, f"the result of `commonwatt {spoken}`", "")
    fitting = (kind for kind in KINDS if _fits(raw, SCHEMAS[kind.schema]))
    return next((kind for kind in fitting if not kind.signs or kind.signs & raw.keys()), None)


def wrong_kind(raw: object, model: type[BaseModel], path: Path) -> InputError | None:
    """Return the error for a file of another kind than *model*; ``None`` if it is no file we know, or of this kind."""
    from commonwatt.model.schemas import SCHEMAS

    kind = kind_of(raw)
    if kind is None or SCHEMAS[kind.schema] is model:
        return None
    wanted = next((known.what for known in KINDS if SCHEMAS[known.schema] is model), None)
    if wanted is None:
        return None
    use = f": use `{kind.command}`" if kind.command else ""
    return InputError(f"{wanted}; this is {kind.what}{use}", file=path)


def no_table(path: Path, text: str) -> InputError:
    """Return the error for a JSON document *text* where a table is read; it says what the document is, if known."""
    wanted = "a table with a header line"
    return _other_document(path, text, wanted) or InputError(wanted, file=path, value="a JSON document")


def no_log(path: Path, text: str) -> InputError | None:
    """Return the error for a JSON document *text* that we know where a job log is read; ``None`` for any other."""
    return _other_document(path, text, "a job log")


def _other_document(path: Path, text: str, wanted: str) -> InputError | None:
    try:
        document = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return None
    kind = kind_of(document)
    if kind is None:
        return None
    written = ": use the file that its --out wrote" if "out" in document else ""
    use = f": use `{kind.command}`" if kind.command else written
    return InputError(f"{wanted}; this is {kind.what}{use}", file=path)


def _fits(raw: Mapping[str, Any], model: type[BaseModel]) -> bool:
    needed, allowed = _fields(model)
    return needed <= raw.keys() <= allowed


def _fields(model: type[BaseModel]) -> tuple[set[str], set[str]]:
    """Names of the fields that must be there, and of all."""
    fields = {info.alias or name: info.is_required() for name, info in model.model_fields.items()}
    return {name for name, needed in fields.items() if needed}, set(fields)
