"""Paths of third-party data, under ``COMMONWATT_DATA`` or in ``../shared/data`` beside the current folder."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["VARIABLE", "find", "folder", "market_folder", "peer_folder"]

VARIABLE = "COMMONWATT_DATA"
_BESIDE = Path("..") / "shared" / "data"


def folder() -> Path | None:
    """Return the folder of traces, or ``None`` if there is none.

    ``COMMONWATT_DATA`` may name the folder of traces or one that holds it as ``traces``. If it is set, nothing
    else is looked at, so that a wrong setting shows instead of being papered over.
    """
    named = os.environ.get(VARIABLE)
    root = Path(named) if named else _BESIDE
    for candidate in (root / "traces", root):
        if candidate.is_dir() and (named or candidate.name == "traces"):
            return candidate
    return None


def find(name: str) -> Path | None:
    """Return the file called *name* in the folder of traces, or ``None`` if there is none."""
    root = folder()
    if root is None:
        return None
    path = root / name
    return path if path.is_file() else None


def market_folder() -> Path | None:
    """Return the folder ``market`` beside that of traces, or ``None`` if there is none."""
    return _beside("market")


def peer_folder(name: str) -> Path | None:
    """Return the folder ``peers/NAME`` beside that of traces, or ``None`` if there is none."""
    return _beside(f"peers/{name}")


def _beside(name: str) -> Path | None:
    traces = folder()
    if traces is None:
        return None
    for beside in (traces.parent, traces):
        if (beside / name).is_dir():
            return beside / name
    return None
