"""Progress a job reports: a small file that it replaces after each epoch, or more often.

Either a number, epochs done, of which the whole ones count as kept in a snapshot; or
``{"done_epochs": 3.4, "kept_epochs": 3}``. What cannot be read, or makes no sense, is as good as nothing.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

__all__ = ["read_progress"]


def read_progress(path: Path) -> tuple[float, float] | None:
    """Return epochs done and epochs a restart would begin from; ``None`` if the job has not said."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        done, kept = (said["done_epochs"], said["kept_epochs"]) if isinstance(said, dict) else (said, math.floor(said))
        done, kept = float(done), float(kept)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    return (done, kept) if 0 <= kept <= done < math.inf else None
