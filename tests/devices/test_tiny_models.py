from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from commonwatt.devices.tiny_models import TINY_MODELS, tiny_model, write_tiny_models
from commonwatt.model.errors import InputError
from tests.devices.models.graphs import run_plainly


def given(kind, batch=2, seed=0):
    rng = np.random.default_rng(seed)
    if kind == "transformer":
        return {"tokens": rng.integers(0, 128, (batch, 32))}
    return {"image": rng.standard_normal((batch, 3, 32, 32)).astype(np.float32)}


@pytest.mark.parametrize("kind", TINY_MODELS)
@pytest.mark.parametrize(("width", "depth"), [(1, 1), (2, 1), (1, 4)])
def test_they_compute_something_that_depends_on_their_inputs(kind, width, depth, tmp_path):
    path = write_tiny_models(tmp_path, width=width, depth=depth, kinds=[kind])[kind]
    (logits,) = run_plainly(path, given(kind)).values()
    (others,) = run_plainly(path, given(kind, seed=1)).values()
    assert logits.shape == ((2, 32, 128) if kind == "transformer" else (2, 10))
    assert logits.dtype == np.float32
    assert 0.1 < logits.std() < 100
    assert np.abs(logits - others).mean() > 0.01


def test_they_are_small_and_the_seed_makes_them(tmp_path):
    paths = write_tiny_models(tmp_path / "a", seed=3)
    assert list(paths) == ["resnet", "mobilenet", "transformer"]
    assert all(path.stat().st_size < 1_000_000 for path in paths.values())
    again, other = write_tiny_models(tmp_path / "b", seed=3), write_tiny_models(tmp_path / "c", seed=4)
    for kind, path in paths.items():
        assert path.read_bytes() == again[kind].read_bytes() != other[kind].read_bytes()


def test_wider_and_deeper_is_more():
    sizes = [len(tiny_model("mobilenet", width=w, depth=d).SerializeToString()) for w, d in [(1, 1), (1, 2), (2, 2)]]
    assert sizes == sorted(set(sizes))


def test_a_kind_there_is_not():
    with pytest.raises(InputError, match="field 'kind': got 'vgg', expected one of resnet, mobilenet, transformer"):
        tiny_model("vgg")


@pytest.mark.slow
def test_as_a_command(tmp_path):
    command = [sys.executable, "-m", "commonwatt.devices.tiny_models", tmp_path / "out", "--kind", "mobilenet"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mobilenet.onnx"]
