"""Without an extra, one line says what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
    assert (done.code, done.out) == (2, "")
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


@pytest.mark.long
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
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert line.endswith("is not installed; run: pip install 'commonwatt[live]'")
    assert list(tmp_path.iterdir()) == []


# What each extra promises, by itself: beside it and the core no other package can be imported.
PROMISES = {
    "callbacks": "import commonwatt.progress.keras, commonwatt.progress.lightning, commonwatt.progress.transformers",
    "chronos": "import chronos",
    "forecast": """
from commonwatt.forecasting._predictors import make_predictor
for name in ("gru", "lightgbm", "gru+lightgbm", "auto-ets"):
    make_predictor(name)
import safetensors.torch
""",
    "gpu": "import pynvml, zeus.monitor",
    "live": "import alembic, fastapi, httpx, prometheus_client, sqlalchemy, sse_starlette, uvicorn",
    "llm": """
from pathlib import Path
from commonwatt.devices.language.decoder import load_decoder, write_decoder
from commonwatt.devices.language.pretrained import _transformers
from commonwatt.devices.models.torch_model import TorchRuntime
load_decoder(write_decoder(Path("tiny.npz"), layers=1), TorchRuntime("CPU"))
_transformers().AutoModelForCausalLM, _transformers().AutoTokenizer
import jinja2, starlette, tritonclient.grpc, uvicorn
""",
    "mariadb": "import pymysql, sqlalchemy.dialects.mysql.pymysql",
    "oidc": "import commonwatt.service.oidc, commonwatt.client.login, joserfc.jwk, httpx, authlib",
    "onnx": "import onnx, onnxruntime",
    "peers": "import clarabel, cvxpy, neuralforecast, nevergrad, ortools, simpy, statsforecast",
    "postgresql": "import psycopg, sqlalchemy.dialects.postgresql.psycopg",
    "ray": "import ray.util.joblib",
    "rl": "import gymnasium, stable_baselines3",
    "search": "import cma, nevergrad",
    "serve": "import onnx, onnxruntime, prometheus_client, starlette, tritonclient.grpc, uvicorn",
    "torch": "import torch",
}
ALONE = """
import sys, warnings
from importlib.metadata import packages_distributions
warnings.simplefilter("ignore")
allowed = set(sys.argv[1].split(","))
canonical = lambda name: name.lower().replace("_", "-").replace(".", "-")
hidden = {p for p, owners in packages_distributions().items() if allowed.isdisjoint(map(canonical, owners))}
class Hide:
    def __init__(self, inner):
        self.inner = inner
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else self.inner.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.inner, name)
sys.meta_path[:] = [Hide(one) for one in sys.meta_path]
from importlib import metadata
found = metadata.distribution
def distribution(name):
    if canonical(name) not in allowed:
        raise metadata.PackageNotFoundError(name)
    return found(name)
metadata.distribution, metadata.version = distribution, lambda name: distribution(name).version
exec(sys.argv[2])
"""


def declared_by(extra: str) -> set[str]:
    """Distributions that ``commonwatt[extra]`` installs: what it requires, and what these require."""
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = [("commonwatt", frozenset({extra}))]
    while todo:
        name, extras = todo.pop()
        for text in metadata.requires(name) or ():
            required = Requirement(text)
            wanted = required.marker is None or any(required.marker.evaluate({"extra": e}) for e in {"", *extras})
            one = (canonicalize_name(required.name), frozenset(required.extras))
            if wanted and one not in seen:
                seen.add(one)
                todo.append(one)
    return {"commonwatt", *(name for name, _ in seen)}


def test_every_extra_has_its_promise():
    assert {*PROMISES, "dev", "test"} >= set(metadata.metadata("commonwatt").get_all("Provides-Extra")) - {"docs"}


@pytest.mark.long
@pytest.mark.parametrize("extra", PROMISES)
def test_an_extra_by_itself_keeps_its_promise(extra, tmp_path):
    try:
        allowed = declared_by(extra)
    except metadata.PackageNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")
    done = subprocess.run(
        [sys.executable, "-c", ALONE, ",".join(allowed), PROMISES[extra]], cwd=tmp_path, capture_output=True, text=True,
        check=False, env=os.environ | {"KERAS_BACKEND": "torch", "KERAS_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
