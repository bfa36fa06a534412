"""Spellings of GPU types in logs and files, and of MIG slices of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from commonwatt.model.errors import InputError
from commonwatt.model.names import did_you_mean

__all__ = ["GPU_TYPES", "MIG_SLICES", "MigSlice", "canonical", "known_gpu_type", "mig_slice", "type_in"]

GPU_TYPES = ("K80", "P100", "V100", "T4", "RTX2080Ti", "RTX6000", "A40", "A100")

MIG_SLICES = 7
"""Compute slices of a GPU that can be cut up (NVIDIA MIG User Guide)."""

_BY_TOKEN = {name.upper(): name for name in GPU_TYPES}
_OTHER = {"ADA"}  # RTX 6000 Ada is another GPU than RTX 6000
_MIG = re.compile(r"(?P<whole>.*?)[-_ .:]*(?:\bMIG[-_ ]*)?(?P<slices>[1-7])g\.(?P<memory>\d+)gb(?P<more>\+\w+)?", re.I)


@dataclass(frozen=True)
class MigSlice:
    """An instance of a GPU that is cut up: ``A100-1g.5gb`` has 1 of the 7 compute slices of an A100."""

    whole: str  # as it was spelt; "" where the name says none
    slices: int
    profile: str  # NVIDIA's name, 1g.5gb


def mig_slice(name: str) -> MigSlice | None:
    """Return the MIG slice that *name* means, ``None`` if it is none.

    >>> mig_slice("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb")
    MigSlice(whole='NVIDIA-A100-SXM4-40GB', slices=1, profile='1g.5gb')
    """
    found = _MIG.fullmatch(name.strip())
    if found is None:
        return None
    profile = f"{found['slices']}g.{found['memory']}gb{found['more'] or ''}".lower()
    return MigSlice(found["whole"], int(found["slices"]), profile)


def canonical(name: str) -> str | None:
    """Return the one of ``GPU_TYPES`` that *name* means, or ``None``; see ``type_in``. A MIG slice is none of them."""
    return None if _OTHER.intersection(_words(name)) or mig_slice(name) else type_in(name, _BY_TOKEN)


def type_in(name: str, by_token: Mapping[str, str]) -> str | None:
    """Return the GPU type that *name* means, of those in *by_token* by their names in capitals, or ``None``.

    Case does not matter, and neither do words around it: ``tesla_v100-sxm2-32gb`` is V100, ``Quadro RTX 6000`` is
    RTX6000.
    """
    words = _words(name)
    joined = ["".join(words[i:j]) for i in range(len(words)) for j in range(len(words), i, -1)]
    return next((by_token[word] for word in joined if word in by_token), None)


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^A-Z0-9]+", name.upper()) if word]


def known_gpu_type(name: str, field: str | None = None, file: object = None) -> str:
    """Return ``canonical(name)``; raises ``InputError`` listing the known types if there is none."""
    found = canonical(name)
    if found is None:
        expected = f"a GPU type whose speed is known ({', '.join(GPU_TYPES)}){did_you_mean(name, GPU_TYPES)}"
        raise InputError(expected, file=file, field=field, value=name)
    return found
