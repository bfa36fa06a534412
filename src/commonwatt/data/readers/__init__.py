"""Readers of job logs; each gives a ``JobLog``.

- ``published``: Philly, Alibaba and Helios, public traces, as their publishers keep them or as tidied tables.
- ``slurm``: ``sacct --json`` and ``sacct --parsable2``.
- ``swf``: the Standard Workload Format.
- ``plain``: any table with a submission, a run time and a GPU count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from commonwatt.data.log import JobLog
from commonwatt.data.readers import plain, slurm, swf
from commonwatt.data.readers.published import read_alibaba, read_helios, read_philly
from commonwatt.model.errors import InputError
from commonwatt.model.names import one_of

__all__ = ["READERS", "read_log"]

READERS: dict[str, Callable[[Path], JobLog]] = {
    "philly": read_philly,
    "alibaba": read_alibaba,
    "helios": read_helios,
    "slurm": slurm.read,
    "swf": swf.read,
    "csv": plain.read,
}


def read_log(source: str, path: str | Path, columns: Mapping[str, str] | None = None) -> JobLog:
    """Read a log of the format *source*; *columns* renames the columns of a plain CSV.

    Raises ``InputError`` on an unknown format, columns where the format fixes them, and whatever is wrong in the file.
    """
    if source not in READERS:
        raise InputError(one_of(READERS, source), field="source", value=source)
    if not columns:
        return READERS[source](Path(path))
    if source != "csv":
        raise InputError("no columns, as the format fixes them", field="columns", value=dict(columns))
    return plain.read(Path(path), columns)
