"""Programs the tests of operations need; CI installs them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

OPS = Path(__file__).parents[2] / "ops"
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is missing (Debian: prometheus)")


def promtool(*arguments: object, given: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *map(str, arguments)], input=given, capture_output=True, text=True, check=False, timeout=120
    )
