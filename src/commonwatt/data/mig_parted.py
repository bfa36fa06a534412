"""The configuration file of ``mig-parted``, which operators of GPUs with MIG own: read, checked, written.

It names configurations, each a list of entries that say for which GPUs (``all`` or their numbers, and maybe only those
with certain PCI ids) MIG is on, and how many instances of each profile they are cut into. It says nothing of places.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from commonwatt.data.file_kinds import called, is_result, other_kind, wrong_kind
from commonwatt.data.files import DuplicateKeyError, parse_yaml, validate, write_atomic
from commonwatt.data.text import read_text
from commonwatt.model.errors import InputError
from commonwatt.model.names import one_of
from commonwatt.model.partition_results import MigAnswer, MigResult

__all__ = ["Entry", "MigParted", "parted_of", "read_mig_parted", "read_present", "text_of", "write_mig_parted"]


@dataclass(frozen=True)
class Entry:
    """What one entry of a configuration says."""

    devices: tuple[int, ...] | Literal["all"]
    enabled: bool
    instances: Mapping[str, int]  # by the profile's name
    device_filter: tuple[str, ...] | None = None


@dataclass(frozen=True)
class MigParted:
    """Configurations by name."""

    configs: Mapping[str, tuple[Entry, ...]]

    def instances(self, name: str, device: int, file: object = None) -> dict[str, int] | None:
        """Return the instances of GPU number *device* under configuration *name*; none where MIG is off.

        ``None`` if no entry without a device filter is for it. Raises ``InputError`` if there is no such configuration.
        """
        if name not in self.configs:
            raise InputError(one_of(self.configs, name), file=file, field="mig-configs", value=name)
        for entry in self.configs[name]:
            if entry.device_filter is None and (entry.devices == "all" or device in entry.devices):
                return dict(entry.instances)
        return None


def read_mig_parted(path: str | Path) -> MigParted:
    """Read a file. Raises one ``InputError`` naming configuration, entry and value."""
    return _checked(_parsed(path), path)


def read_present(path: str | Path) -> MigParted | MigResult:
    """Read what GPUs have now: a file of mig-parted, or the result of ``partition mig --json``.

    Raises one ``InputError`` naming the file and what is wrong in it.
    """
    raw = _parsed(path)
    try:
        return validate(raw, MigResult, path) if isinstance(raw, dict) and is_result(raw) else _checked(raw, path)
    except InputError as error:
        other = wrong_kind(raw, MigResult, path)
        if not isinstance(raw, dict):
            other = other_kind(path, read_text(path), str(called(MigResult)))
        raise (other or error) from None


def _parsed(path: str | Path) -> Any:  # noqa: ANN401
    try:
        return parse_yaml(read_text(path))
    except DuplicateKeyError as error:
        raise InputError("each key once", file=path, field=str(error.key)) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError("valid YAML", file=path, value=getattr(error, "problem", None) or error) from None


def _checked(raw: Any, path: str | Path) -> MigParted:  # noqa: ANN401
    try:
        return _document(raw)
    except InputError as error:
        raise error.within(path) from None


def _document(raw: Any) -> MigParted:  # noqa: ANN401
    if not isinstance(raw, dict):
        raise InputError("version and mig-configs at the top", value=raw)
    if raw.get("version") != "v1":
        raise InputError("v1", field="version", value=raw.get("version", "nothing"))
    _check_fields(raw, {"version", "mig-configs"}, "")
    configs = raw.get("mig-configs")
    if not isinstance(configs, dict) or not configs:
        raise InputError("a mapping of names to lists of entries", field="mig-configs", value=configs or "nothing")
    configurations = {}
    for name, entries in configs.items():
        field = f"mig-configs.{name}"
        if not isinstance(entries, list) or not entries:
            raise InputError("a list of entries", field=field, value=entries or "nothing")
        configurations[str(name)] = tuple(_entry(entry, f"{field}.{place}") for place, entry in enumerate(entries))
    return MigParted(configurations)


def _check_fields(raw: Mapping[Any, Any], fields: set[str], place: str) -> None:
    for key in raw:
        if key not in fields:
            where = f"{place}.{key}" if place else str(key)
            raise InputError(f"one of the fields {', '.join(sorted(fields))}", field=where)


def _entry(raw: Any, field: str) -> Entry:  # noqa: ANN401
    if not isinstance(raw, dict):
        raise InputError("a mapping of fields", field=field, value=raw)
    _check_fields(raw, {"devices", "device-filter", "mig-enabled", "mig-devices"}, field)
    for name in ("devices", "mig-enabled"):
        if name not in raw:
            raise InputError("this field to be given", field=f"{field}.{name}")
    enabled, instances = raw["mig-enabled"], raw.get("mig-devices")
    if not isinstance(enabled, bool):
        raise InputError("true or false", field=f"{field}.mig-enabled", value=enabled)
    if enabled and not isinstance(instances, dict):
        raise InputError("a mapping of profiles to counts, as MIG is on", field=f"{field}.mig-devices", value=instances)
    if not enabled and instances:
        raise InputError("nothing, as MIG is off", field=f"{field}.mig-devices", value=instances)
    for name, count in (instances or {}).items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InputError("a whole number, 0 or more", field=f"{field}.mig-devices.{name}", value=count)
    return Entry(
        _devices(raw["devices"], f"{field}.devices"),
        enabled,
        {str(name): count for name, count in (instances or {}).items() if count},
        _filter(raw.get("device-filter"), f"{field}.device-filter"),
    )


def _devices(raw: Any, field: str) -> tuple[int, ...] | Literal["all"]:  # noqa: ANN401
    if raw == "all":
        return "all"
    whole = isinstance(raw, list) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in raw)
    if not whole:
        raise InputError("all or a list of numbers of GPUs", field=field, value=raw)
    return tuple(raw)


def _filter(raw: Any, field: str) -> tuple[str, ...] | None:  # noqa: ANN401
    if raw is None:
        return None
    words = [raw] if isinstance(raw, str) else raw
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InputError("text or a list of texts", field=field, value=raw)
    return tuple(words)


class _Flow(list[Any]):
    """A list written on one line."""


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)  # noqa: FBT003


_Dumper.add_representer(
    _Flow, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)
)


def text_of(document: MigParted) -> str:
    """Return *document* as ``mig-parted`` reads it."""
    configs: dict[str, Sequence[dict[str, Any]]] = {}
    for name, entries in document.configs.items():
        configs[_quoted(name)] = [_raw(entry) for entry in entries]
    return yaml.dump({"version": "v1", "mig-configs": configs}, Dumper=_Dumper, sort_keys=False, width=120)


class _Quoted(str):
    """Text that stands in quotes, as a reader of YAML might take it for a number."""

    __slots__ = ()


_Dumper.add_representer(
    _Quoted, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style='"')
)


def _quoted(text: str) -> str:
    """Quote what YAML 1.1 writes plainly but YAML 1.2 reads as a number, as ``0E0``."""
    return _Quoted(text) if re.fullmatch(r"[-+.\d].*", text) else text


def _raw(entry: Entry) -> dict[str, Any]:
    raw: dict[str, Any] = {"devices": "all" if entry.devices == "all" else _Flow(entry.devices)}
    if entry.device_filter is not None:
        few = len(entry.device_filter) == 1
        raw = {
            "device-filter": _quoted(entry.device_filter[0]) if few else _Flow(map(_quoted, entry.device_filter))
        } | raw
    raw["mig-enabled"] = entry.enabled
    if entry.enabled:
        raw["mig-devices"] = dict(entry.instances)
    return raw


def parted_of(answer: MigAnswer) -> MigParted:
    """Return the layouts of *answer* as a configuration called ``commonwatt``; GPUs are numbered as in the problem."""
    alike: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for place, gpu in enumerate(answer.gpus):
        counts = Counter(instance.profile for instance in gpu.instances)
        alike.setdefault(tuple(counts.items()), []).append(place)
    entries = tuple(Entry(tuple(places), enabled=True, instances=dict(c)) for c, places in alike.items())
    return MigParted({"commonwatt": entries})


def write_mig_parted(document: MigParted, path: str | Path) -> None:
    """Write *document* to *path*, whole or not at all."""
    write_atomic(path, text_of(document))
