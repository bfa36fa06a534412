"""Model repositories in Triton's layout: what is served, what is checked, refused and ignored."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("onnxruntime")
pytest.importorskip("starlette")
grpcclient = pytest.importorskip("tritonclient.grpc")
from google.protobuf import text_format  # noqa: E402
from tritonclient.grpc.model_config_pb2 import ModelConfig  # noqa: E402

from commonwatt.devices.session import open_session  # noqa: E402
from commonwatt.devices.tiny_models import write_tiny_models  # noqa: E402
from commonwatt.model.errors import InputError  # noqa: E402
from commonwatt.model.timeslice_file import TimesliceConfig  # noqa: E402
from commonwatt.serving.triton_documents import HONOURED, IGNORED, read_repositories  # noqa: E402
from tests.cli.console import run  # noqa: E402
from tests.serving.test_sharing import running  # noqa: E402

RESNET = """
name: "resnet"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "image", data_type: TYPE_FP32, dims: [ 3, 32, 32 ] } ]  # without the batch
output [ { name: "logits" data_type: TYPE_FP32 dims: [ 10 ] } ]
"""


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("networks")
    write_tiny_models(folder, 0)
    return folder


class Repository:
    """A repository with ``resnet`` (versions 1, 2 and 10; 2 is another network) in a folder."""

    def __init__(self, folder, networks):
        self.folder, self.models = folder, folder / "models"
        for version, network in ((1, "resnet"), (2, "mobilenet"), (10, "resnet")):
            path = self.models / "resnet" / str(version)
            path.mkdir(parents=True)
            shutil.copy(networks / f"{network}.onnx", path / "model.onnx")
        for other in ("0", "01", "new", ".git"):  # no versions
            (self.models / "resnet" / other).mkdir()
        (self.models / ".git").mkdir()
        (self.models / "README.md").write_text("no model")

    def stated(self, text):
        (self.models / "resnet" / "config.pbtxt").write_text(text)
        return self

    def config(self, device=None, **tenant):
        first = {"name": "vision", "key": "vision-secret", "repository": "models"} | tenant
        server = {"rest_port": 0, "grpc_port": 0, "operator_key": "operator-secret"}
        document = {"device": device or {"kind": "cpu"}, "tenants": [first], "server": server, "quantum_s": 0.05}
        return TimesliceConfig.model_validate(document)

    def read(self, **tenant):
        config, checks, ignored = read_repositories(self.config(**tenant), self.folder)
        return config.tenants[0].models, checks, ignored

    def versions(self, **tenant):
        return [model.version for model in self.read(**tenant)[0]]

    def open(self, **tenant):
        config, checks, _ = read_repositories(self.config(**tenant), self.folder)
        open_session(config, self.folder, checks).close()

    def refused(self, text, **tenant):
        """Return the error for a config.pbtxt, found when it is read or when the model is loaded."""
        self.stated(text)
        with pytest.raises(InputError) as error:
            self.open(**tenant)
        assert str(error.value.file).endswith("resnet/config.pbtxt")
        assert "\n" not in str(error.value)
        return error.value


@pytest.fixture
def repository(tmp_path, networks):
    return Repository(tmp_path, networks)


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        ("", [10]), ("version_policy { latest { num_versions: 1 } }", [10]), ("version_policy { all {} }", [1, 2, 10]),
        ("version_policy: { latest { num_versions: 2 } }", [2, 10]),
        ("version_policy { latest { num_versions: 9 } }", [1, 2, 10]),
        ("version_policy { specific { versions: [2, 1, 2] } }", [1, 2]),
    ],
)  # fmt: skip
def test_versions_are_chosen_by_the_policy(repository, policy, versions):
    if not policy:
        assert repository.versions() == versions  # without a file, too
    assert repository.stated(policy).versions() == versions
    models, _, _ = repository.read()
    assert [model.path for model in models] == [f"models/resnet/{version}/model.onnx" for version in versions]


@pytest.mark.parametrize(
    ("text", "size", "together"),
    [
        ("", None, True), ('name: "resnet"', None, True), ("max_batch_size: 4", 4, False),
        ("max_batch_size: 4 dynamic_batching {}", 4, True),
        ('input { name: "image" dims: [-1, 3, 32, 32] }', 0, False),
    ],
)  # fmt: skip
def test_batches_are_those_of_triton(repository, text, size, together):
    (model,), _, ignored = repository.stated(text).read()
    assert (model.max_batch_size, model.dynamic_batching is not None, ignored) == (size, together, ())
    delay = "dynamic_batching { max_queue_delay_microseconds: 700 preserve_ordering: true }"
    (model,), _, _ = repository.stated("max_batch_size: 4 " + delay).read()
    assert model.dynamic_batching.max_queue_delay_microseconds == 700


@pytest.mark.slow
def test_a_repository_is_served_and_charged_to_its_tenant(repository, networks):
    import onnxruntime

    repository.stated(RESNET + "version_policy { specific { versions: [1, 2] } }")
    shutil.copytree(repository.models / "resnet" / "1", repository.models / "other" / "7")
    config, checks, ignored = read_repositories(repository.config(), repository.folder)
    assert ignored == ()
    x = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)
    with running(config, repository.folder, checks) as server:
        client, headers = server.client(), {"authorization": "Bearer vision-secret"}
        tensor = grpcclient.InferInput("image", list(x.shape), "FP32")
        tensor.set_data_from_numpy(x)
        for name, asked, file in (("resnet", "1", "resnet"), ("resnet", "", "mobilenet"), ("other", "7", "resnet")):
            alone = onnxruntime.InferenceSession(networks / f"{file}.onnx").run(None, {"image": x})[0]
            answer = client.infer(name, [tensor], model_version=asked, headers=headers)
            assert answer.as_numpy("logits") == pytest.approx(alone, rel=1e-4, abs=1e-5)
        with pytest.raises(grpcclient.InferenceServerException, match="no version '10', only 1, 2"):
            client.infer("resnet", [tensor], model_version="10", headers=headers)
        told = client.get_model_config("resnet", headers=headers).config
        assert (told.max_batch_size, list(told.input[0].dims)) == (8, [3, 32, 32])
        assert not told.HasField("dynamic_batching")
        assert server.status()["tenants"]["vision"]["requests"]["ok"] == 3


@pytest.mark.parametrize(
    ("text", "field", "expected"),
    [
        (RESNET.replace("resnet", "other"), "name", "the name of the folder"),
        (RESNET.replace('"onnxruntime_onnx"', '"tensorrt_plan"'), "platform", "onnxruntime_onnx, or none"),
        ('backend: "python"', "backend", "onnxruntime, or none"),
        ('default_model_filename: "../model.onnx"', "default_model_filename", "ends in .onnx"),
        ("max_batch_size: -1", "max_batch_size", "0 or more"),
        ("version_policy { latest {} }", "version_policy.latest.num_versions", "1 or more"),
        ("version_policy { specific { versions: 3 } }", "version_policy.specific", "versions there are: 1, 2, 10"),
        ("version_policy { specific {} }", "version_policy.specific", "one version or more"),
        ("instance_group { kind: KIND_GPU }", "instance_group.kind", "KIND_CPU or KIND_AUTO"),
        ("instance_group { kind: KIND_MODEL }", "instance_group.kind", "KIND_CPU or KIND_AUTO"),
        ("instance_group { kind: KIND_CPU gpus: 1 }", "instance_group.gpus", "not supported"),
        ("instance_group { passive: true }", "instance_group.passive", "not supported"),
        ("dynamic_batching { priority_levels: 2 }", "dynamic_batching.priority_levels", "not supported"),
        ("dynamic_batching { max_queue_delay_microseconds: 99000000 }",
         "dynamic_batching.max_queue_delay_microseconds", "at most 10000000"),
        ("model_transaction_policy { decoupled: true }", "model_transaction_policy.decoupled", "one response"),
        ('input { name: "image" optional: true }', "input 'image'.optional", "not supported"),
        ('output { name: "logits" reshape { shape: 1 } }', "output 'logits'.reshape", "not supported"),
        ('input { data_type: TYPE_FP32 }', "input", "a name"),
        ('input { name: "image" data_type: 99 }', "input 'image'.data_type", "TYPE_FP32"),
        ('input { name: "image" dims: [ 0, 3 ] }', "input 'image'.dims", "sizes from 1 on"),
        ('input { name: "image" } input { name: "image" }', "input", "at most once: image"),
        ("instance_group { kind: 99 }", "instance_group.kind", "KIND_CPU or KIND_AUTO"),
        ("instance_group { count: -1 }", "instance_group.count", "1 or more"),
        ('default_model_filename: "\x1b[31m.onnx"', "default_model_filename", "ends in .onnx"),
        (RESNET.replace('"image"', '"img"'), "input", "inputs of the model at most once: image"),
        (RESNET.replace('"logits"', '"classes"'), "output", "outputs of the model at most once: logits"),
        (RESNET.replace("TYPE_FP32", "TYPE_FP16"), "input 'image'.data_type", "TYPE_FP32"),
        (RESNET.replace("[ 10 ]", "[ 11 ]"), "output 'logits'.dims", "without the batch: [10]"),
        (RESNET.replace("[ 10 ]", "[ 1, 10 ]"), "output 'logits'.dims", "without the batch: [10]"),
        (RESNET.replace("[ 10 ]", "[ -1 ]"), "output 'logits'.dims", "without the batch: [10]"),
        (RESNET.replace("max_batch_size: 8", ""), "input 'image'.dims", "the model's: [-1, 3, 32, 32]"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(repository, text, field, expected):
    error = repository.refused(text)
    assert error.field == field
    assert expected in error.expected


def test_ordering_needs_one_queue(repository):
    error = repository.refused("dynamic_batching { preserve_ordering: true }", queues=2)
    assert error.field == "dynamic_batching.preserve_ordering"


def test_a_gpu_is_the_device_of_the_file(repository):
    def read(text):
        repository.stated(f"instance_group {{ {text} }}")
        config = repository.config({"kind": "cuda", "index": 1})
        return read_repositories(config, repository.folder)[2]

    assert [read(text) for text in ("kind: KIND_GPU", "kind: KIND_GPU gpus: 1", "gpus: 1", "count: 1")] == [()] * 4
    for text, field in (("kind: KIND_CPU", "kind"), ("kind: KIND_GPU gpus: [0, 1]", "gpus"), ("gpus: 0", "gpus")):
        with pytest.raises(InputError) as error:
            read(text)
        assert error.value.field == f"instance_group.{field}"


def test_text_that_is_no_configuration_is_refused_with_its_place(repository):
    for text, place in (('name: "resnet"\nfoo: 3', "2:"), ('max_batch_size: "x"', "1:17"), ("name", "1:"),
                        ("version_policy { all {} latest {} }", "1:"), ("\x00", "1:")):  # fmt: skip
        assert f"({place}" in repository.refused(text).expected
    assert repository.refused('name: "\x1b[31m').expected.isprintable()
    file = repository.models / "resnet" / "config.pbtxt"
    file.write_bytes(b"\xff")
    with pytest.raises(InputError, match="UTF-8"):
        repository.read()
    file.unlink()
    for strange in (lambda: file.symlink_to("nowhere"), lambda: os.mkfifo(file), file.mkdir):
        strange()
        with pytest.raises(InputError, match="a file that can be read, or none"):
            repository.read()
        file.rmdir() if file.is_dir() else file.unlink()
    (repository.models / "resnet" / str(10**18)).mkdir()
    with pytest.raises(InputError, match="versions up to"):
        repository.read()


@pytest.mark.parametrize("name", [field.name for field in ModelConfig.DESCRIPTOR.fields])
def test_no_field_of_triton_passes_unseen(repository, name):
    """Each is honoured, ignored with a word, or refused."""
    if name in HONOURED:
        return
    stated, field = ModelConfig(), ModelConfig.DESCRIPTOR.fields_by_name[name]
    value = getattr(stated, name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = value["x"]
        if hasattr(entry, "SetInParent"):
            entry.SetInParent()
        elif isinstance(entry, str):
            value["x"] = "y"
    elif hasattr(value, "add"):
        value.add()
    elif hasattr(value, "append"):
        value.append("x")
    elif hasattr(value, "SetInParent"):
        value.SetInParent()
    else:
        setattr(stated, name, "x")
    text = text_format.MessageToString(stated)
    assert name in text
    if name in IGNORED:
        (one,) = repository.stated(text).read()[2]
        assert (one.tenant, one.model, one.field, bool(one.reason)) == ("vision", "resnet", name, True)
    else:
        error = repository.refused(text)
        assert (error.field, error.expected) == (name, "none, as it is not supported")


@pytest.mark.slow
def test_what_changes_speed_alone_is_ignored_and_told(repository):
    text = RESNET + "instance_group [ { kind: KIND_CPU count: 4 } ] dynamic_batching { preferred_batch_size: [2, 4] }"
    fields = [one.field for one in repository.stated(text).read()[2]]
    assert fields == ["instance_group.count", "dynamic_batching.preferred_batch_size"]
    file = repository.folder / "shared.yaml"
    file.write_text("device: {kind: cpu}\ntenants: [{name: vision, repository: models}]\n")
    done = run("timeslice", "serve", file, "--check")
    assert done.code == 0, done.err
    assert "vision, resnet: instance_group.count of config.pbtxt is ignored: one instance" in done.err
    document = json.loads(run("timeslice", "serve", file, "--check", "--json").out)
    assert [(m["model"], m["version"]) for m in document["models"]] == [("resnet", 10)]
    assert [row["field"] for row in document["ignored"]] == fields
    ran = run("timeslice", "run", file)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "only `timeslice serve` reads repositories" in ran.err


def test_folders_that_are_no_repository(repository, tmp_path):
    for change, expected in (
        ((repository.models / "empty").mkdir, "a folder for each version"),
        ((repository.models / "empty" / "1").mkdir, "a file model.onnx"),
        (lambda: (repository.models / "empty").rename(repository.models / "a b"), "names of models"),
    ):
        change()
        with pytest.raises(InputError, match=expected):
            repository.read()
    with pytest.raises(InputError, match="can be read") as error:
        repository.read(repository="none")
    assert error.value.field == "tenants.vision.repository"
    (tmp_path / "void").mkdir()
    with pytest.raises(InputError, match="a folder with models"):
        repository.read(repository="void")
    (repository.models / "a b").rename(tmp_path / "gone")
    with pytest.raises(InputError, match="not listed in `models`"):
        repository.read(models=[{"name": "resnet", "path": "a.onnx"}])
    both, _, _ = repository.read(models=[{"name": "own", "path": "a.onnx"}])
    assert [model.name for model in both] == ["own", "resnet"]
    with pytest.raises(ValueError, match="expected at least one, or a repository"):
        repository.config(repository=None)


@pytest.mark.slow
@given(
    st.integers(0, 64), st.lists(st.sampled_from([1, 2, 10]), min_size=1), st.integers(0, 10_000_000), st.booleans(),
    st.booleans(),
)  # fmt: skip
def test_what_triton_writes_is_read_as_it_was_meant(shared, size, versions, delay_us, together, short):
    stated = ModelConfig(name="resnet", max_batch_size=size)
    stated.version_policy.specific.versions.extend(versions)
    stated.input.add(name="image", dims=[3, 32, 32])
    if together:
        stated.dynamic_batching.max_queue_delay_microseconds = delay_us
    models, checks, ignored = shared.stated(text_format.MessageToString(stated, as_one_line=short)).read()
    assert [model.version for model in models] == sorted(set(versions))
    assert set(checks) == {("vision", model.key) for model in models}
    assert ignored == ()
    for model in models:
        assert model.max_batch_size == size
        found = model.dynamic_batching
        assert (None if found is None else found.max_queue_delay_microseconds) \
            == (delay_us if together and size else None)  # fmt: skip


@pytest.mark.slow
@given(st.text(max_size=60) | st.text("{}[]<>:,;#\"' \nname12-dims.latest_/", max_size=60))
def test_any_text_is_read_or_refused_in_a_line(shared, text):
    shared.stated("")
    (shared.models / "resnet" / "config.pbtxt").write_text(text, errors="surrogatepass")
    said = ""
    try:
        shared.read()
    except InputError as error:
        said = str(error)
    assert "\n" not in said


@pytest.fixture(scope="module")
def shared(tmp_path_factory, networks):
    return Repository(tmp_path_factory.mktemp("shared"), networks)
