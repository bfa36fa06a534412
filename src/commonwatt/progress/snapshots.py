"""Whether a snapshot, a file or a folder of files, has been written anew."""

from __future__ import annotations

import os

__all__ = ["state_of"]


def state_of(path: str | os.PathLike[str] | None) -> object:
    """Return what differs after a file, or a file of a folder, was replaced; ``None`` if there is none."""
    if path is None:
        return None
    try:
        known = os.stat(path)  # noqa: PTH116
        inner = [(entry.name, state_of(entry.path)) for entry in os.scandir(path)]
    except NotADirectoryError:
        return known.st_ino, known.st_mtime_ns, known.st_size
    except OSError:
        return None
    return sorted(inner, key=lambda pair: pair[0])
