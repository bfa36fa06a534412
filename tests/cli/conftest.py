import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from commonwatt.cli import root


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on standard output; fails if there is anything beside it."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.err.splitlines()


@pytest.fixture
def run(capsys, monkeypatch):
    """Run `commonwatt ...` in this process, as its entry point does."""

    def go(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["commonwatt", *map(str, arguments)])
        code = 0
        try:
            root.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        seen = capsys.readouterr()
        return Done(code, seen.out, seen.err)

    return go


@pytest.fixture(scope="session")
def installed():
    """Run the installed `commonwatt` in a process of its own."""
    command = Path(sys.executable).with_name("commonwatt")

    def go(*arguments: object) -> Done:
        done = subprocess.run([command, *map(str, arguments)], capture_output=True, text=True, check=False)
        return Done(done.returncode, done.stdout, done.stderr)

    return go


@pytest.fixture(scope="session")
def modules_after():
    """Names of the modules loaded after `commonwatt ...`."""

    def go(*arguments: str) -> set[str]:
        code = (
            "import sys; from commonwatt.cli.root import root\n"
            "try: root(sys.argv[1:])\nexcept SystemExit: pass\n"
            "print('\\n@@' + ' '.join(sys.modules))"
        )
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        return set(done.stdout.rpartition("@@")[2].split())

    return go
