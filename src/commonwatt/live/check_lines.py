"""Lines of ``commonwatt check``."""

from __future__ import annotations

import os
from pathlib import Path

from commonwatt.model.check_results import CheckLine

__all__ = ["failed", "fine", "warning", "writable"]


def fine(what: str, found: str, advice: str | None = None) -> CheckLine:
    """All is well."""
    return CheckLine(what=what, verdict="ok", found=found, advice=advice)


def warning(what: str, found: str, advice: str) -> CheckLine:
    """It will run, but."""
    return CheckLine(what=what, verdict="warning", found=found, advice=advice)


def failed(what: str, found: str, advice: str) -> CheckLine:
    """It will not run."""
    return CheckLine(what=what, verdict="failed", found=found, advice=advice)


def writable(what: str, folder: Path) -> CheckLine:
    """Whether files can be made in *folder*, or it can be made itself."""
    there = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
    if not there.is_dir():
        return failed(what, f"{there} is not a folder", f"move it away, or name another folder than {folder}")
    if not os.access(there, os.W_OK | os.X_OK):
        return failed(what, f"no permission to write in {there}", f"give the user of this process {folder}")
    return fine(what, f"{folder} can be written" if there == folder else f"{folder} will be made")
