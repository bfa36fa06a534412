"""Names a user may choose from. Imports nothing, so that a command's help need not load the solvers."""

from __future__ import annotations

__all__ = ["MECHANISMS", "MIG_MODES", "WELFARES"]

MECHANISMS = ("fisher", "entitlement", "weighted-equal-speedup")
WELFARES = ("nash", "utilitarian", "egalitarian")
MIG_MODES = ("market", "integer")
