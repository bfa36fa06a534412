"""Slurm's words, as fields of a job file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from commonwatt.model.errors import InputError

__all__ = ["asked_gpus", "environment", "gpus", "gres", "seconds"]

_COUNT = re.compile(r"[1-9][0-9]{0,5}")
_NUMBERS = re.compile(r"(?:(?P<days>\d{1,5})-)?(?P<clock>\d{1,6}(?::\d{1,4}){0,2})", re.ASCII)


def seconds(text: str) -> float:
    """Return a time of ``sbatch --time``: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S."""
    expected = "a time above 0 as Slurm writes it: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS"
    found = _NUMBERS.fullmatch(text)
    if found is None:
        raise InputError(expected, field="--time", value=text)
    parts = [int(part) for part in found["clock"].split(":")]
    if found["days"] is not None:
        hours, minutes, rest = (*parts, 0, 0)[:3]
        total = int(found["days"]) * 86400 + hours * 3600 + minutes * 60 + rest
    elif len(parts) == 3:
        total = parts[0] * 3600 + parts[1] * 60 + parts[2]
    else:
        minutes, rest = (*parts, 0)[:2]
        total = minutes * 60 + rest
    if total <= 0:
        raise InputError(expected, field="--time", value=text)
    return float(total)


def gpus(text: str, flag: str = "--gpus") -> dict[str, Any]:
    """Return what ``--gpus`` says: a count, or TYPE:COUNT."""
    kind, colon, count = text.rpartition(":")
    if not _COUNT.fullmatch(count) or (colon and not kind) or ":" in kind:
        raise InputError("a number of GPUs, or TYPE:NUMBER", field=flag, value=text)
    return {"gpus": int(count)} | ({"gpu_type": kind} if kind else {})


def gres(text: str) -> dict[str, Any]:
    """Return what ``--gres`` says: ``gpu``, ``gpu:2`` or ``gpu:v100:2``."""
    name, colon, rest = text.partition(":")
    if name != "gpu" or (colon and not rest) or "," in text:
        raise InputError("GPUs only, such as gpu:2 or gpu:v100:2", field="--gres", value=text)
    if not rest:
        return {"gpus": 1}
    return gpus(rest if _COUNT.fullmatch(rest) or ":" in rest else f"{rest}:1", "--gres")


def asked_gpus(count: str | None, resources: str | None, gpu_type: str | None) -> dict[str, Any]:
    """Return what ``--gpus``, ``--gres`` and ``--gpu-type`` say together.

    Raises ``InputError`` if they contradict each other.
    """
    told = {"--gpu-type": {} if gpu_type is None else {"gpu_type": gpu_type}}
    told["--gpus"] = {} if count is None else gpus(count)
    told["--gres"] = {} if resources is None else gres(resources)
    found: dict[str, Any] = {}
    said_by: dict[str, str] = {}
    for flag, fields in told.items():
        for field, value in fields.items():
            before = found.setdefault(field, value)
            first = said_by.setdefault(field, flag)
            if str(before).casefold() != str(value).casefold():
                what = "the number of GPUs" if field == "gpus" else "the GPU type"
                raise InputError(f"{what} that {first} says ({before}), or only one of them", field=flag, value=value)
    return found


def environment(text: str, own: Mapping[str, str]) -> dict[str, str]:
    """Return what ``--export`` says: NONE, or names (taken from *own*) and NAME=VALUE, with commas between."""
    if text == "NONE":
        return {}
    found = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if name == "ALL" and not equals:
            raise InputError(
                "names, or NAME=VALUE: not everything, as that holds secrets", field="--export", value=text
            )
        if not name or (not equals and name not in own):
            raise InputError("NONE, NAME=VALUE, or names that are set here", field="--export", value=name or text)
        found[name] = value if equals else own[name]
    return found
