"""Waiting for what another system does in its own time."""

from __future__ import annotations

import time

__all__ = ["until"]


def until(true, limit_s=120.0, pause_s=0.05):
    end_s = time.monotonic() + limit_s
    while not (value := true()):
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(pause_s)
    return value
