"""Which format a file has, where its content leaves no doubt."""

from __future__ import annotations

import re
from pathlib import Path

from commonwatt.data.catalog import CATALOG, FORMATS
from commonwatt.data.readers.slurm import is_for_people
from commonwatt.data.text import read_text
from commonwatt.model.errors import InputError

__all__ = ["guess_format"]

_HEADERS = {  # columns that only this format has together
    "philly": ({"job_id", "submit_time", "duration_s", "num_gpus", "virtual_cluster"},),
    "alibaba": (
        {"name", "num_gpu", "creation_time", "deletion_time"},
        {"job_id", "num_gpu", "submit_s", "scheduled_s", "deletion_s"},
    ),
    "helios": ({"job_id", "gpu_num", "submit_time", "start_time", "duration"},),
    "slurm": ({"JobID", "Submit", "State"},),
    "gavel": ({"model", "gpu_type", "num_gpus", "consolidated", "steps_per_s"},),
    "zeus": (
        {"model", "gpu_type", "power_limit_w", "time_per_epoch_s"},
        {"network", "power_limit", "time_per_epoch"},
    ),
    "csv": (
        {"submit_s", "duration_s", "gpus"},
        {"start_s", "end_s", "gpus"},
        {"start_time", "end_time", "gpus"},
    ),
}
_HEAD = 4000  # characters that are looked at


def guess_format(path: Path) -> str:
    """Return the format *path* has by its content.

    Raises ``InputError`` if the file cannot be read, or if the formats it could have are none or several.
    """
    head = read_text(path)[:_HEAD].lstrip()
    found = _by_brackets(head) if head[0] in "[{" else _by_lines(head)
    if len(found) != 1:
        known = ", ".join(dict.fromkeys([*(entry.name for entry in CATALOG), *FORMATS]))
        what = f"a format: it could be {' or '.join(found)}" if found else f"one of {known}, as the file does not tell"
        raise InputError(what, file=path, field="--format")
    return found[0]


def _by_brackets(head: str) -> list[str]:
    if head[0] == "[":
        return ["philly"] if '"vc"' in head and '"jobid"' in head else []
    if re.match(r'\{\s*"\w+"\s*:\s*\{\s*"\(\'', head):
        return ["gavel"]
    slurm = '"job_id"' in head or '"slurm"' in head.casefold() or re.search(r'"jobs"\s*:', head)
    return ["slurm"] if slurm else []


def _by_lines(head: str) -> list[str]:
    lines = head.splitlines()
    numbers = next((line.split() for line in lines if line.strip() and not line.startswith(";")), [])
    if len(numbers) >= 18 and all(re.fullmatch(r"-?\d+(\.\d+)?", cell) for cell in numbers):
        return ["swf"]
    if head.startswith(";"):
        return ["swf"] if not numbers else []
    if is_for_people(head):
        return ["slurm"]
    columns = {cell.strip().strip('"') for cell in re.split(r"[,;\t|]", lines[0])}
    return [name for name, sets in _HEADERS.items() if any(wanted <= columns for wanted in sets)]
