"""Cuts as first measured: every start cuts a model alike; torn and foreign records are reported."""

from __future__ import annotations

import itertools
import json
import logging

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from commonwatt.devices.local import CpuDevice
from commonwatt.devices.measured import MeasuredModels, MeasuredUnder
from commonwatt.devices.models import onnx_model
from commonwatt.devices.tiny_models import write_tiny_models
from commonwatt.model.timeslice_file import CpuDeviceSpec

LONG_S = 1e-5


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_tiny_models(tmp_path_factory.mktemp("models"), 0, kinds=("resnet",))["resnet"])


@pytest.fixture
def noisy(monkeypatch):
    """Every measurement differs from the one before."""
    count = itertools.count(1)

    def times(graph, runtime, inputs):
        n = next(count)
        return [1e-6 * (1 + (7 * place * n) % 13) for place in range(len(graph.nodes))]

    monkeypatch.setattr(onnx_model, "profiled_times", times)


def cuts(folder, path, **spec):
    device = CpuDevice(CpuDeviceSpec(kind="cpu", **{"segment_s": LONG_S} | spec), MeasuredModels(folder))
    loaded = device.load("m", path)
    device.close()
    return loaded.step_names, loaded.step_times_s


def record(folder):
    (path,) = folder.glob("*.json")
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("noisy")
def test_every_start_cuts_alike_whatever_is_measured(model, tmp_path, caplog):
    assert cuts(None, model)[0] != cuts(None, model)[0]
    first = cuts(tmp_path / "kept", model)
    assert all(cuts(tmp_path / "kept", model) == first for _ in range(3))
    assert record(tmp_path / "kept").name.startswith(
        json.loads(record(tmp_path / "kept").read_text())["model_digest"][:16]
    )
    assert not caplog.records


@pytest.mark.slow
@pytest.mark.usefixtures("noisy")
def test_two_models_of_one_server_are_cut_alike_without_a_folder(model):
    device = CpuDevice(CpuDeviceSpec(kind="cpu", segment_s=LONG_S), MeasuredModels(None))
    assert device.load("a", model).step_names == device.load("b", model).step_names
    device.close()


@pytest.mark.slow
def test_other_conditions_have_records_of_their_own(model, tmp_path):
    cuts(tmp_path, model)
    cuts(tmp_path, model, threads=2)
    cuts(tmp_path, model, segment_s=None)
    assert len(list(tmp_path.glob("*.json"))) == 3


def torn(text):
    return text[: len(text) // 2]


def of_another_device(text):
    return text.replace('"device": "', '"device": "another ')


def of_another_model(text):
    return json.dumps(json.loads(text) | {"model_digest": "0" * 64})


def with_other_segments(text):
    return json.dumps(json.loads(text) | {"cuts": [1]})


def with_a_wrong_time(text):
    return json.dumps(json.loads(text) | {"step_times_s": [0.1]})


def from_the_future(text):
    return json.dumps(json.loads(text) | {"version": 2})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoiled", "said"),
    [
        (torn, "cannot be read"), (lambda _: "", "cannot be read"), (lambda _: "[" * 10**5, "cannot be read"),
        (from_the_future, "version"), (of_another_device, "of another"), (of_another_model, "of another"),
        (with_a_wrong_time, "of another"), (with_other_segments, "segments are not those"),
    ],
)  # fmt: skip
def test_a_torn_or_foreign_record_is_told_and_measured_again(spoiled, said, model, tmp_path, caplog):
    first = cuts(tmp_path, model)
    text = record(tmp_path).read_text()
    record(tmp_path).write_text(spoiled(text))
    with caplog.at_level(logging.WARNING, "commonwatt.devices"):
        cuts(tmp_path, model)
    (told,) = [line.getMessage() for line in caplog.records]
    assert str(record(tmp_path)) in told
    assert said in told
    assert "measured again" in told
    caplog.clear()
    again = cuts(tmp_path, model)
    assert cuts(tmp_path, model) == again
    assert len(again[0]) > 1
    assert len(first[0]) > 1
    assert not caplog.records


def test_a_folder_that_cannot_be_written_is_told_once(model, tmp_path, caplog):
    (tmp_path / "file").write_text("no folder")
    kept = MeasuredModels(tmp_path / "file" / "below")
    device = CpuDevice(CpuDeviceSpec(kind="cpu", segment_s=LONG_S), kept)
    with caplog.at_level(logging.WARNING, "commonwatt.devices"):
        assert device.load("a", model).step_names == device.load("b", model).step_names
    device.close()
    (told,) = [line.getMessage() for line in caplog.records]
    assert "measured at each start" in told


@pytest.mark.slow
def test_rows_are_kept_beside_the_cuts(model, tmp_path):
    device = CpuDevice(CpuDeviceSpec(kind="cpu", segment_s=LONG_S), MeasuredModels(tmp_path))
    loaded = device.load("m", model)
    found = device.rows(loaded, 1e-4)
    assert found.divisible
    device.close()
    device = CpuDevice(CpuDeviceSpec(kind="cpu", segment_s=LONG_S), MeasuredModels(tmp_path))
    loaded = device.load("m", model)
    begun = []
    loaded.begin = begun.append
    assert device.rows(loaded, 1e-4) == found
    assert begun == []
    device.close()


def test_names_of_records_tell_conditions_apart():
    base = ("0" * 64, "cpu", "ort 1", 0.002)
    names = {MeasuredUnder(*base).file_name}
    for place, other in enumerate(("1" * 64, "gpu", "ort 2", None)):
        names.add(MeasuredUnder(*base[:place], other, *base[place + 1 :]).file_name)
    assert len(names) == 5
