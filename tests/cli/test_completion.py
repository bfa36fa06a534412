"""Completion in the shell, asked for as the scripts ask."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.console import SCRIPT, run

EXAMPLES = Path(__file__).parents[2] / "examples"


def completed(*words: str) -> list[str]:
    """What bash is offered for the last of *words*."""
    typed = {"COMP_WORDS": " ".join(("commonwatt", *words)), "COMP_CWORD": str(len(words))}
    asked = typed | {"_COMMONWATT_COMPLETE": "bash_complete"}
    done = subprocess.run([SCRIPT], env=os.environ | asked, capture_output=True, text=True, check=True)
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("simu",), ["simulate"]), (("place", "p.yaml", "--solver", "lo"), ["local-search", "lookahead"]),
        (("map", "la"), ["layers"]), (("map", "--algo"), ["--algorithm"]),
        (("map", "p.yaml", "--objective", "e"), ["energy", "edp"]),
        (("simulate", str(EXAMPLES / "demo.yaml"), "--policy", "f"), ["fair-share", "fifo"]),
        (("schema", "map-t"), ["map-table", "map-table-result", "map-transfer"]),
        (("data", "check", "phi"), ["philly"]),
        (("reproduce", "andreas-table"), ["andreas-table-3"]), (("place", "exa"), ["exa"]),
    ],
)  # fmt: skip
def test_names_are_completed(words, offered):
    assert completed(*words) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_names_the_command(shell):
    done = run("completion", shell)
    assert (done.code, done.err) == (0, "")
    assert "_COMMONWATT_COMPLETE" in done.out
    if path := shutil.which(shell):
        subprocess.run([path, "-n"], input=done.out, text=True, check=True)


def test_another_shell():
    assert "'bush' is not one of 'bash', 'zsh', 'fish'" in run("completion", "bush").err
