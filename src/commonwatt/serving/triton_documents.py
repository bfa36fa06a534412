"""Triton's formats: a model's configuration and statistics as its tools read them, and model repositories.

Documents are JSON of Triton's protocol buffers. Its configuration has the dimensions of a tensor without the batch, if
the model has one. Statistics are counted since the server started; times are in nanoseconds.

A repository is a folder ``<model>/<version>/model.onnx`` with an optional ``<model>/config.pbtxt``. A field of that
file is honoured, refused, or, where it changes speed alone, ignored and listed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commonwatt.data.text import read_text
from commonwatt.devices.base import LoadedModel, TensorSpec
from commonwatt.model.errors import InputError
from commonwatt.model.timeslice_file import DynamicBatchingSpec, ServedModel, SharingTenant, TimesliceConfig
from commonwatt.model.timeslice_results import IgnoredField
from commonwatt.serving import Foreign, import_extra

if TYPE_CHECKING:
    from commonwatt.devices.session import Checks

__all__ = [
    "ModelCounts",
    "ModelSettings",
    "RequestTimes",
    "model_config",
    "model_stats",
    "read_repositories",
]


_LATEST = {"latest": {"num_versions": 1}}


@dataclass(frozen=True)
class ModelSettings:
    """How requests to a model are divided and put together."""

    max_batch_size: int = 0  # 0: its first axes do not count rows, or rows stay together
    preferred_batch_size: int | None = None  # rows up to which requests are put together; None: each runs alone
    max_queue_delay_microseconds: int = 0


@dataclass
class RequestTimes:
    """A number of requests, and their time together."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        """Count one more."""
        self.count += 1
        self.ns += ns


@dataclass
class ModelCounts:
    """What a model has done for its tenant."""

    success: RequestTimes = field(default_factory=RequestTimes)  # from arrival to outputs
    fail: RequestTimes = field(default_factory=RequestTimes)
    queue: RequestTimes = field(default_factory=RequestTimes)  # of requests that succeeded, until they began
    compute: RequestTimes = field(default_factory=RequestTimes)  # from then on, turns of other tenants included
    rows: int = 0
    batches: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # number and time in ns, by rows
    last_ms: int = 0  # when the last request ended, in ms since 1970


def model_config(
    name: str, platform: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], settings: ModelSettings,
    versions: tuple[int, ...] = (1,),
) -> dict[str, Any]:  # fmt: skip
    """Return the configuration of a model of which *versions* are served."""
    batched = settings.max_batch_size > 0
    document: dict[str, Any] = {
        "name": name,
        "platform": platform,
        "backend": {"pytorch_pt2": "pytorch"}.get(platform, "onnxruntime"),
        "version_policy": {"specific": {"versions": list(versions)}} if len(versions) > 1 else _LATEST,
        "max_batch_size": settings.max_batch_size,
        "input": [_tensor(spec, batched=batched) for spec in inputs],
        "output": [_tensor(spec, batched=batched) for spec in outputs],
        "instance_group": [{"name": name, "kind": "KIND_AUTO", "count": 1}],
    }
    if batched and settings.preferred_batch_size is not None:
        document["dynamic_batching"] = {
            "preferred_batch_size": [settings.preferred_batch_size],
            "max_queue_delay_microseconds": settings.max_queue_delay_microseconds,
            "preserve_ordering": True,
        }
    return document


def _tensor(spec: TensorSpec, *, batched: bool) -> dict[str, Any]:
    kind = "STRING" if spec.datatype == "BYTES" else spec.datatype
    return {"name": spec.name, "data_type": f"TYPE_{kind}", "dims": list(spec.shape[1:] if batched else spec.shape)}


def model_stats(name: str, version: str, counts: ModelCounts) -> dict[str, Any]:
    """Return the statistics of a model.

    Times of copying inputs and outputs are part of the time of computing, and are 0 here.
    """
    nothing = {"count": counts.success.count, "ns": 0}
    return {
        "name": name,
        "version": version,
        "last_inference": counts.last_ms,
        "inference_count": counts.rows,
        "execution_count": sum(count for count, _ in counts.batches.values()),
        "inference_stats": {
            "success": _timed(counts.success),
            "fail": _timed(counts.fail),
            "queue": _timed(counts.queue),
            "compute_input": nothing,
            "compute_infer": _timed(counts.compute),
            "compute_output": nothing,
            "cache_hit": _timed(RequestTimes()),
            "cache_miss": _timed(RequestTimes()),
        },
        "batch_stats": [
            {
                "batch_size": rows,
                "compute_input": {"count": count, "ns": 0},
                "compute_infer": {"count": count, "ns": time_ns},
                "compute_output": {"count": count, "ns": 0},
            }
            for rows, (count, time_ns) in sorted(counts.batches.items())
        ],
        "memory_usage": [],
        "response_stats": {},
    }


def _timed(timed: RequestTimes) -> dict[str, int]:
    return {"count": timed.count, "ns": timed.ns}


# -- model repositories

IGNORED = {
    "optimization": "the runtime's own defaults are used",
    "parameters": "the runtime's own defaults, and the threads of the device, are used",
    "model_warmup": "models are run when they are loaded",
    "response_cache": "every request is computed",
    "metric_tags": "metrics are of tenants",
    "model_metrics": "metrics are of tenants",
}
"""Fields that change speed or metrics alone, and what is done instead."""
HONOURED = {
    "name", "platform", "backend", "default_model_filename", "version_policy", "max_batch_size", "input", "output",
    "dynamic_batching", "instance_group", "model_transaction_policy",
}  # fmt: skip
LONGEST_DELAY_US = 10_000_000
_VERSION = re.compile(r"[1-9][0-9]*")
_LARGEST_VERSION = 10**15
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def read_repositories(
    config: TimesliceConfig, folder: Path
) -> tuple[TimesliceConfig, Checks, tuple[IgnoredField, ...]]:
    """Return *config* with the models found in its tenants' repositories, beside those it lists.

    Also returns checks of the tensors that a ``config.pbtxt`` states, for when the models are loaded, and the fields
    that are ignored. Paths are relative to *folder*. Raises ``InputError``, naming the file and field, for a folder
    that is no repository and for what cannot be honoured.
    """
    checks: dict[tuple[str, str], Any] = {}
    ignored: list[IgnoredField] = []
    tenants = []
    for tenant in config.tenants:
        where = f"tenants.{tenant.name}.repository"
        if tenant.repository is not None and config.policy == "vtc":
            raise InputError("none, as policy vtc counts tokens", field=where, value=tenant.repository)
        models = list(tenant.models)
        if tenant.repository is not None:
            shown = Path(tenant.repository)
            for one in _models_of(folder / shown, where, tenant):
                model = _RepositoryModel(config, tenant, one, shown / one.name, ignored, checks)
                try:
                    models += model.versions()
                except OSError as error:
                    raise InputError(f"a file that can be read ({error.strerror})", file=error.filename) from None
        tenants.append(tenant.model_copy(update={"models": tuple(models), "repository": None}))
    return config.model_copy(update={"tenants": tuple(tenants)}), checks, tuple(ignored)


def _models_of(path: Path, where: str, tenant: SharingTenant) -> list[Path]:
    """Return the folders of models in a repository; hidden ones are none."""
    try:
        folders = sorted(one for one in path.iterdir() if one.is_dir() and not one.name.startswith("."))
    except OSError as error:
        raise InputError(f"a folder that can be read ({error.strerror})", field=where, value=path) from None
    if not folders:
        raise InputError("a folder with models, as MODEL/1/model.onnx", field=where, value=path)
    listed = {model.name for model in tenant.models}
    for one in folders:
        if not _NAME.fullmatch(one.name):
            raise InputError("names of models of letters, digits, '.', '_' and '-'", field=where, value=one)
        if one.name in listed:
            raise InputError("models that are not listed in `models`, too", field=where, value=one)
    return folders


@dataclass
class _RepositoryModel:
    """One model of a repository, in the folder *path*."""

    config: TimesliceConfig
    tenant: SharingTenant
    path: Path
    shown: Path  # the same, relative to the file
    ignored: list[IgnoredField]
    checks: dict[tuple[str, str], Any]

    def versions(self) -> list[ServedModel]:
        """Return the versions that are served."""
        file = self.path / "config.pbtxt"
        stated = _parsed(file) if os.path.lexists(file) else None
        filename, together = "model.onnx", {}
        policy = None
        if stated is not None:
            self._check_fields(stated)
            filename, policy = stated.default_model_filename or filename, stated.version_policy
            together = self._batching(stated)
        served = []
        for version in self._chosen(policy):
            path = self.path / str(version) / filename
            if not path.is_file():
                raise InputError(f"a file {filename} in each version's folder", file=path)
            model = ServedModel(
                name=self.path.name, version=version, path=str(self.shown / str(version) / filename), **together
            )
            if stated is not None and (stated.input or stated.output or stated.max_batch_size):
                self.checks[self.tenant.name, model.key] = partial(_check_tensors, file, stated)
            served.append(model)
        return served

    def _chosen(self, policy: Foreign) -> list[int]:
        versions = sorted(int(one.name) for one in self.path.iterdir() if one.is_dir() and _VERSION.fullmatch(one.name))
        if not versions:
            raise InputError("a folder for each version, named by a number from 1 on", file=self.path)
        if versions[-1] > _LARGEST_VERSION:
            raise InputError(f"versions up to {_LARGEST_VERSION}", file=self.path, field="version", value=versions[-1])
        match None if policy is None else policy.WhichOneof("policy_choice"):
            case "all":
                return versions
            case "latest":
                if policy.latest.num_versions < 1:
                    raise self._refused("version_policy.latest.num_versions", 0, "1 or more")
                return versions[-policy.latest.num_versions :]
            case "specific":
                for version in policy.specific.versions:
                    if version not in versions:
                        choices = ", ".join(map(str, versions))
                        raise self._refused("version_policy.specific", version, f"versions there are: {choices}")
                if not policy.specific.versions:
                    raise self._refused("version_policy.specific", None, "one version or more")
                return sorted(set(policy.specific.versions))
        return versions[-1:]  # Triton's default

    def _refused(self, name: str, value: object, expected: str) -> InputError:
        return InputError(expected, file=self.path / "config.pbtxt", field=name, value=value)

    def _ignore(self, name: str, why: str) -> None:
        self.ignored.append(IgnoredField(tenant=self.tenant.name, model=self.path.name, field=name, reason=why))

    def _check_fields(self, stated: Foreign) -> None:
        for one, _ in stated.ListFields():
            if one.name in IGNORED:
                self._ignore(one.name, IGNORED[one.name])
            elif one.name not in HONOURED:
                raise self._refused(one.name, None, "none, as it is not supported")
        if stated.name not in {"", self.path.name}:
            raise self._refused("name", stated.name, f"the name of the folder, {self.path.name}, or none")
        for name, expected in (("platform", "onnxruntime_onnx"), ("backend", "onnxruntime")):
            if getattr(stated, name) not in {"", expected}:
                raise self._refused(name, getattr(stated, name), f"{expected}, or none")
        name = stated.default_model_filename
        if not (re.fullmatch(r"([^/\\]+\.onnx)?", name) and (not name or name.isprintable())):
            raise self._refused("default_model_filename", name, "a file name, without folders, that ends in .onnx")
        if stated.max_batch_size < 0:
            raise self._refused("max_batch_size", stated.max_batch_size, "0 or more")
        if stated.model_transaction_policy.decoupled:
            raise self._refused("model_transaction_policy.decoupled", "true", "false: each request has one response")
        for group in stated.instance_group:
            self._check_group(group)
        for tensor in stated.input:
            self._check_tensor(tensor, f"input {tensor.name!r}", {"name", "data_type", "dims"}, "format")
        for tensor in stated.output:
            self._check_tensor(tensor, f"output {tensor.name!r}", {"name", "data_type", "dims"}, "label_filename")

    def _check_group(self, group: Foreign) -> None:
        kind = _word(group, "kind")
        if group.count < 0:
            raise self._refused("instance_group.count", group.count, "1 or more, or none")
        device = self.config.device
        here = {"cpu": "KIND_CPU", "cuda": "KIND_GPU"}.get(device.kind)
        if kind not in {"KIND_AUTO", here}:
            raise self._refused("instance_group.kind", kind, f"{here} or KIND_AUTO, as the device is {device.kind}")
        if device.kind == "cuda" and set(group.gpus) - {device.index}:
            raise self._refused("instance_group.gpus", list(group.gpus), f"the device's, [{device.index}], or none")
        for one, _ in group.ListFields():
            if one.name == "count":
                if group.count > 1:
                    self._ignore("instance_group.count", "one instance takes turns on the device with other models")
            elif one.name not in {"kind", "name"} and not (one.name == "gpus" and device.kind == "cuda"):
                raise self._refused(f"instance_group.{one.name}", None, "none, as it is not supported")

    def _check_tensor(self, tensor: Foreign, where: str, fields: set[str], idle: str) -> None:
        if not tensor.name:
            raise self._refused(where.partition(" ")[0], None, "a name for each tensor")
        if any(size == 0 or size < -1 for size in tensor.dims):
            raise self._refused(f"{where}.dims", list(tensor.dims), "sizes from 1 on, and -1 where any will do")
        for one, _ in tensor.ListFields():
            if one.name == idle:
                self._ignore(f"{where}.{idle}", "it changes no tensor")
            elif one.name not in fields:
                raise self._refused(f"{where}.{one.name}", None, "none, as it is not supported")

    def _batching(self, stated: Foreign) -> dict[str, Any]:
        """Return the fields of a served model that say how its requests run together.

        Without a batch size and tensors Triton completes the configuration from the model, and so do we.
        """
        given = {one.name for one, _ in stated.dynamic_batching.ListFields()}
        for name in sorted(given - {"preferred_batch_size", "max_queue_delay_microseconds", "preserve_ordering"}):
            raise self._refused(f"dynamic_batching.{name}", None, "none, as it is not supported")
        if "preferred_batch_size" in given:
            self._ignore("dynamic_batching.preferred_batch_size", "sizes are chosen by the model's measured times")
        if stated.dynamic_batching.preserve_ordering and self.tenant.queues > 1:
            raise self._refused(
                "dynamic_batching.preserve_ordering", "true", f"false, as the tenant has {self.tenant.queues} queues"
            )
        delay_us = stated.dynamic_batching.max_queue_delay_microseconds
        if delay_us > LONGEST_DELAY_US:
            raise self._refused(
                "dynamic_batching.max_queue_delay_microseconds", delay_us, f"at most {LONGEST_DELAY_US}"
            )
        if not (stated.max_batch_size or stated.input or stated.output):
            return {"dynamic_batching": DynamicBatchingSpec(max_queue_delay_microseconds=delay_us)}
        together = stated.HasField("dynamic_batching") and stated.max_batch_size > 0
        return {
            "max_batch_size": stated.max_batch_size,
            "dynamic_batching": DynamicBatchingSpec(max_queue_delay_microseconds=delay_us) if together else None,
        }


def _parsed(file: Path) -> Foreign:
    """Return the configuration in *file*; raises ``InputError`` with line and column for what is none."""
    if not file.is_file():
        raise InputError("a file that can be read, or none", file=file)
    text_format = import_extra("google.protobuf.text_format")
    message = import_extra("tritonclient.grpc.model_config_pb2").ModelConfig()
    if file.stat().st_size == 0:
        return message
    try:
        text_format.Parse(read_text(file), message)
    except text_format.ParseError as error:
        why = "".join(letter if letter.isprintable() else " " for letter in str(error))
        raise InputError(f"Triton's model configuration as text ({why[:300]})", file=file) from None
    except RecursionError:
        raise InputError("Triton's model configuration as text, not so deep", file=file) from None
    return message


def _check_tensors(file: Path, stated: Foreign, model: LoadedModel) -> None:
    """Raise ``InputError`` if *stated* has other tensors than *model*; outputs may be left out."""
    if stated.max_batch_size:
        for spec in model.inputs:
            _check_batched(file, f"input {spec.name!r}", spec)
    for kind, tensors, specs in (("input", stated.input, model.inputs), ("output", stated.output, model.outputs)):
        by_name = {spec.name: spec for spec in specs}
        for tensor in tensors:
            if tensor.name not in by_name:
                expected = f"each of the {kind}s of the model at most once: {', '.join(spec.name for spec in specs)}"
                raise InputError(expected, file=file, field=kind, value=tensor.name)
            _check_one(file, f"{kind} {tensor.name!r}", tensor, by_name.pop(tensor.name), stated.max_batch_size > 0)
        if kind == "input" and tensors and by_name:
            raise InputError(f"all inputs of the model, also {', '.join(by_name)}", file=file, field=kind)


def _word(message: Foreign, name: str) -> str:
    """Return the name of an enumeration's value; its number if the schema has none."""
    number = getattr(message, name)
    value = message.DESCRIPTOR.fields_by_name[name].enum_type.values_by_number.get(number)
    return str(number) if value is None else str(value.name)


def _check_batched(file: Path, where: str, spec: TensorSpec) -> None:
    if not spec.shape or spec.shape[0] >= 0:
        expected = f"0, as {where} of the model has no free first axis: {list(spec.shape)}"
        raise InputError(expected, file=file, field="max_batch_size")


def _check_one(file: Path, where: str, tensor: Foreign, spec: TensorSpec, batched: bool) -> None:
    kind = _word(tensor, "data_type")
    expected = "TYPE_STRING" if spec.datatype == "BYTES" else f"TYPE_{spec.datatype}"
    if tensor.data_type and kind != expected:
        raise InputError(expected, file=file, field=f"{where}.data_type", value=kind)
    if batched:
        _check_batched(file, where, spec)
    shape = tuple(spec.shape[1:] if batched else spec.shape)
    dims = tuple(tensor.dims)
    if dims and (
        len(dims) != len(shape) or any(has >= 0 and has != said for said, has in zip(dims, shape, strict=True))
    ):
        without = " without the batch" if batched else ""
        raise InputError(f"the model's{without}: {list(shape)}", file=file, field=f"{where}.dims", value=list(dims))
