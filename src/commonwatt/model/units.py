"""Constants of conversion, and counts in words. The package computes in seconds, watts, joules and GPUs."""

__all__ = ["DAY_S", "HOUR_S", "J_PER_KWH", "MICRO", "NANO", "WEEK_S", "plural"]

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
WEEK_S = 7 * DAY_S
J_PER_KWH = 3.6e6
MICRO = 1_000_000
NANO = 1_000_000_000


def plural(number: int, noun: str) -> str:
    """Return ``1 node``, ``2 nodes``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
