"""Spellings of GPU types in logs and files."""

from __future__ import annotations

import re
from collections.abc import Mapping

from commonwatt.model.errors import InputError
from commonwatt.model.names import did_you_mean

__all__ = ["GPU_TYPES", "canonical", "known_gpu_type", "type_in"]

GPU_TYPES = ("K80", "P100", "V100", "T4", "RTX2080Ti", "RTX6000", "A40", "A100")

_BY_TOKEN = {name.upper(): name for name in GPU_TYPES}
_OTHER = {"ADA"}  # RTX 6000 Ada is another GPU than RTX 6000


def canonical(name: str) -> str | None:
    """Return the one of ``GPU_TYPES`` that *name* means, or ``None``; see ``type_in``."""
    return None if _OTHER.intersection(_words(name)) else type_in(name, _BY_TOKEN)


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
