"""Constants of conversion. Everything inside the package is seconds, watts, joules and GPUs."""

__all__ = ["DAY_S", "HOUR_S", "J_PER_KWH", "MICRO", "NANO", "WEEK_S"]

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
WEEK_S = 7 * DAY_S
J_PER_KWH = 3.6e6
MICRO = 1_000_000
NANO = 1_000_000_000
