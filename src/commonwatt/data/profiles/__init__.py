"""Speed against GPU type and count, and power, by kind of model.

- ``base``: ``Profiles``, the interface of profiles; names of GPU types and MIG slices.
- ``gavel``, ``zeus``: readers of the measured tables.
- ``declared``: types that a scenario declares, MIG slices, clusters of one type.
- ``measured``: profiles from the tables; ``law``: fitted scaling laws, estimates from data sheets.
- ``fit``: the fit of the laws, from these tables and Sia's.
"""

from __future__ import annotations

from commonwatt.data import locate
from commonwatt.data.profiles import gavel, zeus
from commonwatt.data.profiles.base import GPU_TYPES, Profiles, canonical, known_gpu_type
from commonwatt.data.profiles.declared import (
    DEFAULT_LOGGED,
    is_known,
    preferred,
    profiles_for,
    standard_name,
    taken_as_fast,
    type_name,
)
from commonwatt.data.profiles.law import LAW
from commonwatt.model.errors import InputError

__all__ = [
    "DEFAULT_LOGGED",
    "GPU_TYPES",
    "LAW",
    "Profiles",
    "canonical",
    "is_known",
    "known_gpu_type",
    "load_profiles",
    "preferred",
    "profiles_for",
    "standard_name",
    "taken_as_fast",
    "type_name",
]


def load_profiles(choice: str = "auto") -> Profiles:
    """Return the profiles of a workload: ``measured``, ``law``, or ``auto``: measured if the table is available.

    Raises ``InputError`` if ``measured`` is requested without Gavel's table.
    """
    if choice not in ("auto", "measured", "law"):
        raise InputError("one of auto, measured, law", field="profiles", value=choice)
    table = None if choice == "law" else locate.find(gavel.FILE)
    if table is not None:
        from commonwatt.data.profiles.measured import Measured

        return Measured.read(table, locate.find(zeus.FILE))
    if choice == "measured":
        expected = f"{gavel.FILE} in the folder {locate.VARIABLE} names"
        raise InputError(expected, field="profiles", value=choice)
    return LAW
