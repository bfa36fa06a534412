"""Servers and programs that tests need and a machine may lack.

``COMMONWATT_TEST_WITHOUT="slurm kubernetes database browser prometheus nginx"`` hides those that are named, so that a
machine that has them tests as one that does not. Where the variable ``CI`` is set, a missing one fails its test.
"""

from __future__ import annotations

import os
import shutil

import pytest

__all__ = ["hidden", "lacking", "which"]


def hidden(kind: str) -> bool:
    """Whether servers of this *kind* count as not installed."""
    return kind in os.environ.get("COMMONWATT_TEST_WITHOUT", "").replace(",", " ").split()


def which(kind: str, program: str, path: str | None = None) -> str | None:
    """Where a *program* of this *kind* is, as ``shutil.which``; ``None`` if it is hidden."""
    return None if hidden(kind) else shutil.which(program, path=path)


def lacking(kind: str, reason: str) -> None:
    """Skip the test that needs a server of this *kind*; in CI it fails."""
    if os.environ.get("CI") and not hidden(kind):
        pytest.fail(f"{reason}; in CI tests with the mark '{kind}' must run")
    pytest.skip(reason)
