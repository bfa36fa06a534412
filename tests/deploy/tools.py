"""Programs the tests of operations need; CI installs them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.machine import which

DEPLOY = Path(__file__).parents[2] / "deploy"
needs_promtool = pytest.mark.skipif(
    which("prometheus", "promtool") is None, reason="promtool is missing (Debian: prometheus)"
)


def promtool(*arguments: object, given: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *map(str, arguments)], input=given, capture_output=True, text=True, check=False, timeout=120
    )
