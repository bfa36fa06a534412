"""How much a job file may hold when it comes in.

The model does not know these limits: what was accepted before they were there still has to be read from the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from commonwatt.model.errors import InputError
from commonwatt.model.job_file import MOST_GPUS, JobFile

__all__ = ["check_configurations", "check_limits"]

MOST_ARGUMENTS = 4096
MOST_CONFIGURATIONS = 1024
LONGEST_DUE = 64
SHORTEST_S, LONGEST_S = 1e-6, 1e12
_COUNTS = f"whole numbers from 1 to {MOST_GPUS}"


def check_limits(file: JobFile) -> None:
    """Refuse lists that could grow without end, and times nobody could calculate with; raises ``InputError``."""
    if len(file.command) > MOST_ARGUMENTS:
        raise InputError(f"{MOST_ARGUMENTS} arguments at most", field="command", value=f"{len(file.command)} arguments")
    if file.due is not None and len(file.due) > LONGEST_DUE:
        raise InputError(f"{LONGEST_DUE} characters at most", field="due", value=f"{len(file.due)} characters")
    _types_once("gpu_types", file.gpu_types or ())
    _types_once("times_s", file.times_s or ())
    _counts(file.gpu_counts or ())
    for gpu_type, row in (file.times_s or {}).items():
        _times(f"times_s.{gpu_type}", row)
    if file.time_limit_s is not None:
        _time("time_limit_s", file.time_limit_s)


def check_configurations(file: JobFile, found: int) -> None:
    """Refuse more configurations than anybody means: each is stored, and looked at in every decision."""
    if found > MOST_CONFIGURATIONS:
        field = "gpu_counts" if file.times_s is None else "times_s"
        expected = f"{MOST_CONFIGURATIONS} at most, of all GPU types together"
        raise InputError(expected, field=field, value=f"{found} configurations")


def _types_once(field: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.casefold() in seen:
            raise InputError("each GPU type once, in capital or small letters", field=field, value=name)
        seen.add(name.casefold())


def _counts(counts: Sequence[int]) -> None:
    seen: set[int] = set()
    for count in counts:
        if not 1 <= count <= MOST_GPUS:
            raise InputError(_COUNTS, field="gpu_counts", value=count)
        if count in seen:
            raise InputError("each GPU count once", field="gpu_counts", value=count)
        seen.add(count)


def _times(field: str, row: Sequence[float | None] | Mapping[int, float]) -> None:
    if not isinstance(row, Mapping) and len(row) > MOST_GPUS:
        raise InputError(f"times for 1 to {MOST_GPUS} GPUs", field=field, value=f"{len(row)} times")
    for count, seconds in row.items() if isinstance(row, Mapping) else enumerate(row, start=1):
        if not 1 <= count <= MOST_GPUS:
            raise InputError(f"GPU counts from 1 to {MOST_GPUS}", field=field, value=count)
        if seconds is not None:
            _time(f"{field}[{count} GPUs]", seconds)


def _time(field: str, seconds: float) -> None:
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise InputError(f"a number of seconds from {SHORTEST_S:g} to {LONGEST_S:g}", field=field, value=seconds)
