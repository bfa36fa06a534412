"""Profiles of models: found by name or file, and looked up by clock."""

from __future__ import annotations

from pathlib import Path

from commonwatt.data.files import load_yaml
from commonwatt.data.tx2 import TX2_MODELS, tx2_profile
from commonwatt.model.errors import InputError
from commonwatt.model.timeslice_profile import ModelProfile, ProfilePoint

__all__ = ["KNOWN", "check_fits", "load_profile", "point_at"]

KNOWN = {f"tx2-{model}": model for model in TX2_MODELS}

NEAR_MHZ = 2.0
"""Clocks this close are the same: papers write 1300 MHz for 1300.5."""


def load_profile(name: str) -> ModelProfile:
    """Return the profile known as *name*, or stored in that file; raises ``InputError``."""
    if name in KNOWN:
        return tx2_profile(KNOWN[name])
    if not Path(name).exists() and not name.endswith((".json", ".yaml", ".yml", ".gz")):
        raise InputError(f"a profile file, or one of {', '.join(KNOWN)}", field="profile", value=name)
    return load_yaml(name, ModelProfile)


def point_at(profile: ModelProfile, clock_mhz: float | None) -> ProfilePoint:
    """Return what *profile* says of *clock_mhz*; ``None``: the point without a clock, else the highest clock.

    Raises ``InputError`` naming the clocks there are.
    """
    if clock_mhz is None:
        plain = [point for point in profile.points if point.clock_mhz is None]
        return plain[0] if plain else max(profile.points, key=lambda point: point.clock_mhz or 0.0)
    for point in profile.points:
        if point.clock_mhz is not None and abs(point.clock_mhz - clock_mhz) <= NEAR_MHZ:
            return point
    there = ", ".join(f"{point.clock_mhz:g}" for point in profile.points if point.clock_mhz is not None)
    raise InputError(
        f"a clock the profile of {profile.model} has ({there or 'none'}), in MHz", field="clock_mhz", value=clock_mhz
    )


def check_fits(profile: ModelProfile, file: str, model_digest: str, device: str) -> None:
    """Refuse a profile of another model or device; raises ``InputError`` naming *file*."""
    if profile.model_digest is not None and profile.model_digest != model_digest:
        raise InputError(
            f"a profile of this very model (SHA-256 {model_digest[:12]}...)",
            file=file, field="model_digest", value=profile.model_digest[:12] + "...",
        )  # fmt: skip
    if profile.device != device:
        raise InputError(f"a profile made on {device!r}", file=file, field="device", value=profile.device)
