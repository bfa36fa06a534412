"""Slurm's lists of hosts: ``gpu[01-03,7],login1``."""

from __future__ import annotations

import re
from itertools import product

__all__ = ["host_names"]

_PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
MOST_HOSTS = 100_000


def host_names(text: str) -> tuple[str, ...]:
    """Return the hosts of a list; one that cannot be read, or is longer than ``MOST_HOSTS``, names none.

    >>> host_names("gpu[01-03,7],login1")
    ('gpu01', 'gpu02', 'gpu03', 'gpu7', 'login1')
    """
    names: list[str] = []
    for part in _PART.findall(text):
        pieces = [_numbers(bracket) if bracket else [plain] for bracket, plain in _PIECE.findall(part)]
        size = 1
        for piece in pieces:
            size *= len(piece)
        if not size or size + len(names) > MOST_HOSTS:
            return ()
        names += ["".join(combination) for combination in product(*pieces)]
    return tuple(names)


def _numbers(bracket: str) -> list[str]:
    """Return the numbers of ``01-03,7`` as written; none if they cannot be read."""
    found: list[str] = []
    for span in bracket.split(","):
        first, _, last = (part.strip() for part in span.partition("-"))
        last = last or first
        if not (first.isdecimal() and last.isdecimal()) or not 0 <= int(last) - int(first) < MOST_HOSTS:
            return []
        found += [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
    return found
