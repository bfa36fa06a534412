"""What a file is, by the names of its fields or columns: what a command reads, or the result of one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel

from commonwatt.model.demand import TIME_COLUMNS
from commonwatt.model.errors import InputError

__all__ = [
    "DEMAND",
    "Kind",
    "called",
    "is_document",
    "is_result",
    "kind_of",
    "kind_of_text",
    "of_result",
    "other_kind",
    "wrong_kind",
]


class Kind(NamedTuple):
    """A kind of file: its model's name in ``commonwatt schema``, what people call it, and the command that reads it."""

    schema: str
    what: str
    command: str
    signs: frozenset[str] = frozenset()  # of these fields one must be there, where none is needed
    advice: str = ""  # what to do with it, where no command reads it by itself

    @property
    def sentence(self) -> str:
        """What it is, and what to do with it."""
        advice = self.advice or (f"use `{self.command}`" if self.command else "")
        return f"this is {self.what}{': ' if advice else ''}{advice}"


_IN_PROBLEM = "name it as `{}` of a mapping problem"
KINDS = (
    Kind("place", "a placement problem", "commonwatt place"),
    Kind("map", "a mapping problem", "commonwatt map"),
    Kind("mapping", "a mapping", "commonwatt map evaluate PROBLEM"),
    Kind(
        "map-schedule-result", "a schedule, as `commonwatt map --schedule` writes it", "commonwatt map PROBLEM --after"
    ),
    Kind(
        "partition-mig-result",
        "layouts: a file of mig-parted, or a result of `commonwatt partition mig --json`",
        "commonwatt partition mig PROBLEM --present",
    ),
    Kind("map-table", "a job table", "", advice=_IN_PROBLEM.format("table")),
    Kind("map-transfer", "what `commonwatt map --save-transfer` wrote", "commonwatt map PROBLEM --transfer"),
    Kind("partition", "a partitioning problem", "commonwatt partition"),
    Kind("partition-mig", "a MIG problem", "commonwatt partition mig"),
    Kind("timeslice-plan", "a quantum to divide", "commonwatt timeslice plan"),
    Kind(
        "timeslice",
        "a device that tenants share",
        "commonwatt timeslice run",
        advice="use `commonwatt timeslice run` or `commonwatt timeslice serve`",
    ),
    Kind("timeslice-profile", "a profile of a model", "commonwatt timeslice run, where a tenant's model names it"),
    Kind(
        "study", "a study", "commonwatt study", frozenset({"baseline", "alternatives", "ours", "steps", "switched_off"})
    ),
    Kind("profile", "a profile of a training", "commonwatt submit --profile, or a scenario that names it"),
    Kind("job", "a job", "commonwatt submit"),
    Kind("scenario", "a scenario", "commonwatt simulate", frozenset({"workload", "policies", "engine", "live"})),
)
DEMAND = Kind("", "a demand series", "commonwatt forecast plan")
_PLAIN: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (
        re.compile(r"\s*NodeName=\S"),
        Kind(
            "",
            "what `scontrol show node` prints",
            "",
            advice="use `commonwatt init --from`, or `commonwatt study LOG --nodes`",
        ),
    ),
    (
        re.compile(r"(?:#!\S*[ /]python|(?:\s*#[^\n]*\n|\s*\n)*(?:import \w|from [\w.]+ import |\"\"\"))"),
        Kind("", "a Python program", "", advice="run it as a job: `commonwatt submit --gpus 1 -- python FILE`"),
    ),
)
"""Text that is neither a document nor a table, by how it begins."""
TABLES: tuple[tuple[set[str], set[str], Kind], ...] = (
    ({"kind", "k", "c"}, set(), Kind("", "a list of layers", "", advice=_IN_PROBLEM.format("jobs"))),
    (
        {"from_s", "price_per_kwh"},
        set(),
        Kind("", "prices over time", "", advice="name it as `series_file` of a scenario's `electricity`"),
    ),
    ({"gpus"}, set(TIME_COLUMNS), DEMAND),
)
"""Columns that a table of each kind has: all of the first, and one of the second unless it is empty."""
RESULTS = {
    "MappingFile": "map",
    "MapTable": "map table",
    "ModelProfile": "timeslice profile",
    "TrainingProfile": "profile",
}
"""Models, by name, that the command named here answers with under ``--json``, among other fields."""
_ADVICE = {
    "map-table-result": _IN_PROBLEM.format("table"),
    "map-layers-result": _IN_PROBLEM.format("jobs"),
    "map-batch-result": _IN_PROBLEM.format("jobs"),
    "map-result": "use `commonwatt map evaluate PROBLEM FILE`",
    "partition-mig-result": "use `commonwatt partition mig PROBLEM --present FILE`",
}
_FIELD = re.compile(r"(?:\s*(?:#[^\n]*|---)?\n)*[A-Za-z_][\w-]*:(?:\s|$)")
_SPOKEN = {"map-schedule": "map --schedule", "simulation": "simulate", "sweep": "simulate --seeds"}


def is_result(raw: Mapping[str, Any]) -> bool:
    """Whether *raw* is what a command printed under ``--json``."""
    return "input_digest" in raw and isinstance(raw.get("version"), str)


def of_result(raw: Mapping[str, Any], model: type[BaseModel]) -> Mapping[str, Any]:
    """Return the part of *raw* that is a *model*, if a command that answers with one printed it; else *raw*."""
    if model.__name__ not in RESULTS or not is_result(raw):
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
        return None if name is None else _result(name)
    fitting = (kind for kind in KINDS if _fits(raw, SCHEMAS[kind.schema]))
    return next((kind for kind in fitting if not kind.signs or kind.signs & raw.keys()), None)


def wrong_kind(raw: object, model: type[BaseModel], path: str | Path) -> InputError | None:
    """Return the error for a file of another kind than *model*; ``None`` if it is no file we know, or of this kind."""
    from commonwatt.model.schemas import SCHEMAS

    kind = kind_of(raw)
    if kind is None or SCHEMAS[kind.schema] is model:
        return None
    wanted = called(model)
    return None if wanted is None else InputError(f"{wanted}; {kind.sentence}", file=path)


def called(model: type[BaseModel]) -> str | None:
    """Return what people call a file of *model*, a result included; ``None`` if it is no file of its own."""
    from commonwatt.model.schemas import SCHEMAS

    own = (kind.what for kind in KINDS if SCHEMAS[kind.schema] is model)
    results = (_result(name).what for name in SCHEMAS if name.endswith("-result") and SCHEMAS[name] is model)
    return next(own, next(results, None))


def _result(schema: str) -> Kind:
    """Return the kind of a result by its model's name in ``commonwatt schema``."""
    command = schema.removesuffix("-result")
    spoken = _SPOKEN.get(command, command.replace("-", " "))
    return Kind(schema, f"the result of `commonwatt {spoken}`", "", advice=_ADVICE.get(schema, ""))


def kind_of_text(text: str) -> Kind | None:
    """Return what a file with *text* is, a document or a table; ``None`` if it is nothing we know."""
    document = _document(text)
    if document is not None:
        return kind_of(document)
    plain = next((kind for begins, kind in _PLAIN if begins.match(text)), None)
    if plain is not None:
        return plain
    columns = {name.strip() for name in re.split(r"[,;\t|]", text.strip().split("\n", 1)[0])}
    return next((kind for all_, one, kind in TABLES if all_ <= columns and (not one or one & columns)), None)


def other_kind(path: object, text: str, wanted: str) -> InputError | None:
    """Return the error for a file with *text* that we know where *wanted* is read; ``None`` for any other."""
    kind, document = kind_of_text(text), _document(text)
    if kind is None:
        return None
    plain = not kind.command and not kind.advice and isinstance(document, Mapping) and "out" in document
    written = ": use the file that its --out wrote" if plain else ""
    return InputError(f"{wanted}; {kind.sentence}{written}", file=path)


def is_document(text: str) -> bool:
    """Whether *text* begins as JSON does, or YAML with fields."""
    return text.lstrip().startswith("{") or bool(_FIELD.match(text))


def _document(text: str) -> object:
    if not is_document(text):
        return None
    try:
        if text.lstrip().startswith("{"):
            return json.loads(text)
        return yaml.load(text, yaml.BaseLoader)  # noqa: S506 - which makes strings only
    except (json.JSONDecodeError, yaml.YAMLError, RecursionError, ValueError):
        return None


def _fits(raw: Mapping[str, Any], model: type[BaseModel]) -> bool:
    needed, allowed = _fields(model)
    return needed <= raw.keys() <= allowed


def _fields(model: type[BaseModel]) -> tuple[set[str], set[str]]:
    """Names of the fields that must be there, and of all."""
    fields = {info.alias or name: info.is_required() for name, info in model.model_fields.items()}
    return {name for name, needed in fields.items() if needed}, set(fields)
