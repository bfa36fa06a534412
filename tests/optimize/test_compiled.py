"""Cached code: symbols of two processes never clash, whatever each of them compiled before."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from numba.core import bytecode

import commonwatt
from commonwatt.optimize import njit

SOURCE = Path(commonwatt.__file__).parent

NEXT = """
from numba.core import bytecode
from commonwatt.optimize import njit
print(next(bytecode.FunctionIdentity._unique_ids))
"""


def number() -> int:
    return next(bytecode.FunctionIdentity._unique_ids)


@pytest.mark.slow
def test_each_process_counts_functions_from_a_number_of_its_own():
    others = [int(subprocess.check_output([sys.executable, "-c", NEXT], text=True)) for _ in range(2)]
    numbers = sorted([number(), *others])
    assert min(b - a for a, b in pairwise(numbers)) > 1_000_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_does_not_count_on_as_its_parent_does():
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, str(number()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert abs(int(pipe.read()) - number()) > 1_000_000


def test_functions_are_still_told_apart_within_a_process():
    @njit
    def one(x):
        return x + 1

    first = one

    @njit
    def one(x):
        return x + 2

    assert (first(1), one(1)) == (2, 3)
    assert number() + 1 == number()


def test_all_compiled_code_goes_through_it():
    direct = [
        str(path.relative_to(SOURCE))
        for path in sorted(SOURCE.rglob("*.py"))
        if path.name != "_compiled.py" and "import njit" in (text := path.read_text("utf-8"))
        and "from commonwatt.optimize import njit" not in text
    ]  # fmt: skip
    assert not direct, "import njit from commonwatt.optimize: " + ", ".join(direct)
