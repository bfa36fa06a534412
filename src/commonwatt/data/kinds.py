"""What a document is, by the names of its fields: a file that a command reads, or the result of one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from commonwatt.model.errors import InputError
from commonwatt.model.map_file import MappingFile, MapTable
from commonwatt.model.timeslice_file import ModelProfile
from commonwatt.model.training_profile import TrainingProfile

__all__ = ["Kind", "is_result", "kind_of", "no_log", "no_table", "of_result", "wrong_kind"]


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
