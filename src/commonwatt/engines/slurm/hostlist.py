"""Lists of node names as Slurm writes them, such as ``n-[001-003,7],big``."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import product

__all__ = ["host_names"]

_WORD = re.compile(r"(?:[^,\[\]]|\[[^\]]*\])+")
_PIECE = re.compile(r"\[([^\]]*)\]|([^\[\]]+)")


@lru_cache(maxsize=16_384)
def host_names(text: str) -> tuple[str, ...]:
    """Return the names that *text* stands for; raises ``ValueError`` if it is no such list."""
    if "[" not in text:
        return tuple(name for name in text.split(",") if name)
    names: list[str] = []
    for word in _WORD.findall(text):
        pieces = [[plain] if plain else _numbers(ranges) for ranges, plain in _PIECE.findall(word)]
        names += map("".join, product(*pieces))
    return tuple(names)


def _numbers(ranges: str) -> list[str]:
    """Return the numbers of ``1-3,07``, each as wide as the first of its range is written."""
    found: list[str] = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        found += (f"{number:0{len(first)}d}" for number in range(int(first), int(last or first) + 1))
    return found
