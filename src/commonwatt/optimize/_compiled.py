"""Numba's ``njit``, with cached code that any processes may share.

Numba tells functions of one name apart by a number, which is part of the symbols in cached code and counts from 1 in
each process. So code of two processes can have one symbol for different functions (those within ``np.sort`` and
``np.argsort`` share their names): where both are loaded, one silently runs in place of the other, or the process
crashes (Numba's issue 10486). Here each process counts from a random number on. Results do not depend on it.
"""

import os
from itertools import count
from secrets import randbits
from typing import Any

import numba
from numba.core import bytecode

__all__ = ["njit"]


def _count_afresh() -> None:
    bytecode.FunctionIdentity._unique_ids = count(randbits(62))  # noqa: SLF001


if hasattr(bytecode, "FunctionIdentity"):
    _count_afresh()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_count_afresh)


def njit(*function: Any, **options: Any) -> Any:  # noqa: ANN401 - whatever Numba takes
    """Compile a function as ``numba.njit`` does, or return the decorator that does so with *options*."""
    return numba.njit(*function, **options)
