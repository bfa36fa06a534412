"""Progress a job reports: a small file that it replaces after each epoch, or more often.

Either a number, epochs done, of which the whole ones count as kept in a snapshot; or
``{"done_epochs": 3.4, "kept_epochs": 3}``. What cannot be read, or makes no sense, is as good as nothing.
"""

from __future__ import annotations

import math
from pathlib import Path

from commonwatt.engines.files import read_json

__all__ = ["read_progress"]

_MOST_BYTES = 65_536


def read_progress(path: Path) -> tuple[float, float] | None:
    """Return epochs done and epochs a restart would begin from; ``None`` if the job has not said."""
    try:
        said = read_json(path, _MOST_BYTES)
        done, kept = (said["done_epochs"], said["kept_epochs"]) if isinstance(said, dict) else (said, math.floor(said))
        if isinstance(done, bool) or isinstance(kept, bool):  # which count as 0 and 1
            return None
        done, kept = float(done), float(kept)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    return (done, kept) if 0 <= kept <= done < math.inf else None
