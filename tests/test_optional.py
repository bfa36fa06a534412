"""Without an extra, one line says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from commonwatt.simulation.runner import run_seeds
from tests.cli.console import run, scenario, write
from tests.simulation.made import prepared

LIVE = str(Path(__file__).parents[1] / "examples" / "live.yaml")


@pytest.fixture
def no_ray(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)  # importing it fails as if it were not there


@pytest.mark.parametrize("more", [(), ("--jobs", "1"), ("--policy", "fifo"), ("--jobs", "2", "--seeds", "2")])
def test_ray_without_ray(more, no_ray, tmp_path):
    file = write(tmp_path / "s.yaml", scenario())
    done = run("simulate", file, "--backend", "ray", "--out", tmp_path / "out", *more)
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines()[-1] == "error: ray is not installed; run: pip install 'commonwatt[ray]'"
    assert not (tmp_path / "out").exists()


def test_without_it_everything_else_works(no_ray):
    results, _ = run_seeds([prepared(scenario())])
    assert len(results[0].policies) == 2


WITHOUT_LIVE = """
import sys
for name in ("sqlalchemy", "alembic", "fastapi", "uvicorn", "httpx", "starlette"):
    sys.modules[name] = None
from commonwatt.cli import main
main()
"""


@pytest.mark.parametrize(
    "command",
    [
        ("serve", LIVE), ("check", LIVE), ("token", "list", "--config", LIVE), ("store", "check", LIVE), ("jobs",),
        ("submit", "--", "true"),
    ],
)  # fmt: skip
def test_the_control_plane_without_its_packages(command, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LIVE, *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert line.endswith("is not installed; run: pip install 'commonwatt[live]'")
    assert list(tmp_path.iterdir()) == []
