"""Files of the ``timeslice`` commands: a shared device and its tenants (``run``, ``serve``), one quantum to divide
(``plan``, ETF section 4.2), and the profile of a model on a device (ETF section 5).
"""  # noqa: D205

from __future__ import annotations

import re
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from commonwatt.model.errors import FieldError
from commonwatt.model.fields import FileModel, PluginName, quantity
from commonwatt.model.identity import TlsSpec
from commonwatt.model.plugins import valid_name

__all__ = [
    "POLICY_NAMES",
    "BackloggedLoad",
    "CpuDeviceSpec",
    "CudaDeviceSpec",
    "DeviceSpec",
    "DynamicBatchingSpec",
    "KernelProfile",
    "LanguageSpec",
    "Load",
    "ModelProfile",
    "ModelServerSpec",
    "PeriodicLoad",
    "PlanFile",
    "PlanTenant",
    "PoissonLoad",
    "PolicyChoice",
    "PolicyName",
    "PowerModelSpec",
    "ProfilePoint",
    "ServedModel",
    "SharingTenant",
    "SimulatedDeviceSpec",
    "TimesliceConfig",
    "TokenWeightsSpec",
]


class PlanTenant(FileModel):
    """A tenant of the device (an application in the paper)."""

    name: str = quantity("name of the tenant", "-", min_length=1)
    weight: float = quantity("weight relative to the other tenants (w)", "-", 1.0, gt=0)
    power_w: float = quantity("power of the device while it works for this tenant (P)", "W", gt=0)
    demand: int | None = quantity("usable time in a quantum (d); absent: backlogged", "time units", None, ge=0)


class PlanFile(FileModel):
    """A quantum to divide."""

    quantum: int = quantity("length of the quantum (T)", "time units", ge=1)
    unit_s: float = quantity("length of a time unit", "s", 1.0, gt=0)
    phi: float = quantity("time-fair factor: guaranteed fraction of the fair share", "-", 0.7, ge=0, le=1)
    tenants: tuple[PlanTenant, ...] = quantity("tenants of the device; their order breaks ties", "-", min_length=1)

    @model_validator(mode="after")
    def _check_names(self) -> PlanFile:
        names = [tenant.name for tenant in self.tenants]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise FieldError("each name once", field=f"tenants.{place}.name", value=f"{name!r} twice")
        return self


class KernelProfile(FileModel):
    """A kernel, or a segment that runs as one step."""

    name: str = quantity("name of the kernel", "-", min_length=1)
    time_s: float = quantity("mean service time", "s", gt=0)
    power_w: float | None = quantity("mean power while it runs; null: unknown", "W", None, gt=0)


class ProfilePoint(FileModel):
    """One inference at one clock."""

    clock_mhz: float | None = quantity("clock of the device; null: not locked", "MHz", None, gt=0)
    time_s: float = quantity("mean service time of an inference", "s", gt=0)
    power_w: float = quantity("mean power of the device during an inference", "W", gt=0)
    power_source: Literal["measured", "modelled"] = quantity("source of the power", "-")
    coefficient_of_variation: float | None = quantity(
        "standard deviation over mean of the service times; null: unknown", "-", None, ge=0
    )
    runs: int | None = quantity("measured inferences; null: unknown", "-", None, ge=1)
    kernels: tuple[KernelProfile, ...] = quantity("kernels in order of execution; empty: unknown", "-", ())


class ModelProfile(FileModel):
    """A model on a device."""

    model: str = quantity("name of the model", "-", min_length=1)
    model_digest: str | None = quantity("SHA-256 of the model file; null: unknown", "-", None)
    device: str = quantity("name of the device", "-", min_length=1)
    idle_w: float | None = quantity("power of the idle device; null: unknown", "W", None, ge=0)
    source: str = quantity("source of the figures", "-", "")
    points: tuple[ProfilePoint, ...] = quantity("figures for each clock", "-", min_length=1)


PolicyName = Literal["etf", "tf", "ef", "etf-energy", "fifo", "vtc"]
POLICY_NAMES: tuple[str, ...] = get_args(PolicyName)


def _installed(name: str) -> str:
    return valid_name("schedulers", name, POLICY_NAMES)


PolicyChoice = Annotated[PolicyName | PluginName, AfterValidator(_installed)]
"""A sharing policy of ours, or the name of a plugin that is installed."""


class PowerModelSpec(FileModel):
    """A power model for a device without a meter: idle power, and energy per unit of work."""

    idle_w: float = quantity("idle power", "W", 10.0, ge=0)
    busy_w: float = quantity("power added while anything runs", "W", 5.0, ge=0)
    joules_per_gflop: float = quantity("energy of 10^9 floating-point operations", "J", 0.1, ge=0)
    joules_per_gb: float = quantity("energy of moving 10^9 bytes of weights and activations", "J", 0.5, ge=0)


class SimulatedDeviceSpec(FileModel):
    """A device in virtual time; its kernels take the time and power in profiles."""

    kind: Literal["simulated"] = quantity("a simulated device", "-")
    idle_w: float = quantity("idle power", "W", 0.0, ge=0)
    kernel_level: bool = quantity(
        "run each kernel of a profile as a step, if it has kernels; false: a whole inference is one step",
        "-", default=True,
    )  # fmt: skip


class CpuDeviceSpec(FileModel):
    """The CPU of this machine, with ONNX Runtime or PyTorch."""

    kind: Literal["cpu"] = quantity("this machine's CPU", "-")
    threads: int = quantity("threads per request", "-", 1, ge=1, le=1024)
    segment_s: float | None = quantity(
        "length of the segments into which models are cut, between which tenants can be switched; null: not cut",
        "s", 0.002, gt=0,
    )  # fmt: skip
    power: PowerModelSpec = quantity("power model, as a CPU has no meter", "-", PowerModelSpec)


class CudaDeviceSpec(FileModel):
    """An NVIDIA GPU, with ONNX Runtime or PyTorch."""

    kind: Literal["cuda"] = quantity("an NVIDIA GPU", "-")
    index: int = quantity("index of the GPU", "-", 0, ge=0)
    segment_s: float | None = quantity(
        "length of the segments into which models are cut, between which tenants can be switched; null: not cut",
        "s", 0.002, gt=0,
    )  # fmt: skip
    power: PowerModelSpec = quantity("power model, used until the meter has been read", "-", PowerModelSpec)


DeviceSpec = Annotated[SimulatedDeviceSpec | CpuDeviceSpec | CudaDeviceSpec, Field(discriminator="kind")]


class BackloggedLoad(FileModel):
    """A constant number of requests in each queue: a finished one is replaced at once."""

    kind: Literal["backlogged"] = quantity("a constant number of requests", "-", "backlogged")
    depth: int = quantity("requests waiting or running in each queue", "-", 2, ge=1, le=10_000)


class PeriodicLoad(FileModel):
    """A request at each interval, whether or not the last one has ended."""

    kind: Literal["periodic"] = quantity("a request at each interval", "-")
    interval_s: float = quantity("time between requests", "s", gt=0)


class PoissonLoad(FileModel):
    """Requests of a Poisson process."""

    kind: Literal["poisson"] = quantity("requests of a Poisson process", "-")
    rate_per_s: float = quantity("mean requests a second", "1/s", gt=0)


Load = Annotated[BackloggedLoad | PeriodicLoad | PoissonLoad, Field(discriminator="kind")]


class DynamicBatchingSpec(FileModel):
    """Requests that run in one batch."""

    max_queue_delay_microseconds: int = quantity(
        "longest time a request waits for others to run with it; 0: it runs with those that already wait",
        "us", 0, ge=0, le=10_000_000,
    )  # fmt: skip
    across_tenants: bool = quantity(
        "let it run with requests of other tenants to the same model file, where they allow it too",
        "-", default=False,
    )  # fmt: skip


class LanguageSpec(FileModel):
    """How a model generates text."""

    context_tokens: int | None = quantity(
        "most tokens of a prompt and its answer; absent: as many as the model allows", "tokens", None, ge=2
    )
    kv_cache_tokens: int = quantity(
        "key-value cache of the tenant for this model: a request has room for its prompt and max_tokens there from "
        "its first step to its last, and waits until there is", "tokens", 4096, ge=2,
    )  # fmt: skip
    max_sequences: int = quantity("most requests that generate together", "-", 16, ge=1, le=1024)
    prefill_tokens: int | None = quantity(
        "most tokens in a step; absent: as many as keep it within longest_step of the quantum, as measured", "tokens",
        None, ge=1,
    )  # fmt: skip
    default_max_tokens: int = quantity("longest answer in a chat if the request does not say", "tokens", 256, ge=1)


class ServedModel(FileModel):
    """A model of a tenant."""

    name: str = quantity("name of the model in URLs", "-", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    version: int = quantity("its version; several of one name are served together (serve)", "-", 1, ge=1, le=10**15)
    path: str | None = quantity(
        "ONNX file (.onnx) or PyTorch program saved by torch.export (.pt2), relative to this file; with language: a "
        "decoder of tiny_models (.npz) or a folder of transformers; absent on a simulated device",
        "-", None,
    )  # fmt: skip
    profile: str | None = quantity(
        "profile file made by `timeslice profile`, relative to this file, or a built-in profile "
        "(tx2-resnet18, tx2-resnet50)",
        "-", None,
    )  # fmt: skip
    load_at_start: bool = quantity("load it when the server starts", "-", default=True)
    max_batch_size: int | None = quantity(
        "most rows that run in one batch; 0: requests are neither divided nor put together; absent: by its profile "
        "(serve)",
        "-", None, ge=0,
    )  # fmt: skip
    dynamic_batching: DynamicBatchingSpec | None = quantity(
        "how requests are put together in batches; null: each runs alone (serve)", "-", DynamicBatchingSpec
    )
    language: LanguageSpec | None = quantity(
        "the model generates text, served as OpenAI's API (serve); absent: it does not", "-", None
    )

    @property
    def key(self) -> str:
        """Its name among those of its tenant, with the version unless that is 1."""
        return self.name if self.version == 1 else f"{self.name}/{self.version}"


class SharingTenant(FileModel):
    """A tenant of the device."""

    name: str = quantity("name of the tenant", "-", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    weight: float = quantity("weight relative to the other tenants (w)", "-", 1.0, gt=0)
    models: tuple[ServedModel, ...] = quantity("its models", "-", ())
    repository: str | None = quantity(
        "folder with more of its models in Triton's layout, relative to this file (serve)", "-", None, min_length=1
    )
    clock_mhz: float | None = quantity("clock for the tenant's work; absent: not locked", "MHz", None, gt=0)
    power_w: float | None = quantity(
        "power of the device while it works for this tenant; absent: from the profile or the power model", "W",
        None, gt=0,
    )  # fmt: skip
    queues: int = quantity("number of queues, each first come, first served (like CUDA streams)", "-", 1, ge=1, le=64)
    queue_limit: int = quantity("longest queue; further requests are refused", "-", 64, ge=1)
    key: str | None = quantity("API key (serve)", "-", None, min_length=8)
    key_env: str | None = quantity("environment variable with the API key (serve)", "-", None, min_length=1)
    load: Load = quantity("load of the tenant (run)", "-", BackloggedLoad)
    from_s: float = quantity("start of the load (run)", "s", 0.0, ge=0)
    until_s: float | None = quantity("end of the load (run); absent: end of the run", "s", None, gt=0)

    @model_validator(mode="after")
    def _check(self) -> SharingTenant:
        if self.key is not None and self.key_env is not None:
            raise FieldError("either key or key_env, not both", field="key_env")
        if not self.models and self.repository is None:
            raise FieldError("at least one, or a repository", field="models", value="none")
        if self.until_s is not None and self.until_s <= self.from_s:
            raise FieldError(f"after from_s ({self.from_s:g})", field="until_s", value=f"{self.until_s:g}")
        return self


class ModelServerSpec(FileModel):
    """Addresses and limits of ``timeslice serve``."""

    host: str = quantity(
        "host or address to listen on; $NAME: as that environment variable says", "-", "127.0.0.1", min_length=1
    )
    rest_port: int = quantity("REST port; 0: any free port", "-", 8000, ge=0, le=65535)
    grpc_port: int | None = quantity("gRPC port; 0: any free port; null: no gRPC", "-", 8001, ge=0, le=65535)
    operator_key: str | None = quantity("key for metrics and settings", "-", None, min_length=8)
    operator_key_env: str | None = quantity("environment variable with the operator's key", "-", None, min_length=1)
    drain_s: float = quantity("longest time to finish accepted requests after a signal to stop", "s", 30.0, ge=0)
    largest_request_mb: float = quantity("largest accepted request", "MB", 64.0, gt=0)
    tls: TlsSpec | None = quantity("encryption of REST and gRPC; absent: neither is encrypted", "-", None)

    @model_validator(mode="after")
    def _check(self) -> ModelServerSpec:
        if self.rest_port == self.grpc_port != 0:
            raise FieldError("another port than rest_port", field="grpc_port", value=self.grpc_port)
        return self


class TokenWeightsSpec(FileModel):
    """What a token counts under the policy vtc."""

    prompt: float = quantity("weight of a token of a prompt (w_p)", "-", 1.0, ge=0)
    answer: float = quantity("weight of a token of an answer (w_q)", "-", 2.0, gt=0)


class TimesliceConfig(FileModel):
    """One shared device and its tenants."""

    device: DeviceSpec = quantity("the device", "-")
    policy: PolicyChoice = quantity(
        "etf, tf (time-fair), ef (energy-fair), etf-energy (guaranteed energy, then even time), fifo (no sharing), "
        "vtc (even tokens; language models only) or an installed plugin",
        "-", "etf",
    )  # fmt: skip
    phi: float = quantity("time-fair factor: guaranteed fraction of the fair share", "-", 0.7, ge=0, le=1)
    quantum_s: float = quantity("length of the quantum (T)", "s", 0.1, gt=0)
    longest_step: float = quantity(
        "longest step on the device, as a part of the quantum: longer segments are cut, and rows of a batch divided; "
        "not with fifo",
        "-", 0.25, gt=0, le=1,
    )  # fmt: skip
    longest_undivided_step: float = quantity(
        "requests whose rows cannot be divided are refused if a step would take more than this part of the quantum; "
        "single rows never are (serve; not with fifo)",
        "-", 2.0, gt=0,
    )  # fmt: skip
    measured: str | None = quantity(
        "folder with the cuts and times of models as first measured, so that every start cuts them alike, relative to "
        "this file; null: they are measured at each start",
        "-", ".commonwatt-measured",
    )  # fmt: skip
    duration_s: float = quantity("length of the run (run)", "s", 10.0, gt=0)
    token_weights: TokenWeightsSpec = quantity("what a token counts (vtc)", "-", TokenWeightsSpec)
    tenants: tuple[SharingTenant, ...] = quantity("tenants of the device", "-", min_length=1)
    server: ModelServerSpec = quantity("addresses and limits (serve)", "-", ModelServerSpec)

    @model_validator(mode="after")
    def _check(self) -> TimesliceConfig:
        names: set[str] = set()
        keys: set[str] = set()
        for tenant in self.tenants:
            if tenant.name in names:
                raise FieldError("each name once", field=f"tenants.{tenant.name}.name", value=f"{tenant.name!r} twice")
            names.add(tenant.name)
            if tenant.key in keys:
                raise FieldError("each key once", field=f"tenants.{tenant.name}.key", value="the key of another tenant")
            keys |= {tenant.key} - {None} if tenant.key else set()
            self._check_models(tenant)
        return self

    def step_limit_s(self, part: float | None = None) -> float | None:
        """Return the longest step: *part* of the quantum, else ``longest_step``; ``None`` with fifo, without limit."""
        return None if self.policy == "fifo" else (self.longest_step if part is None else part) * self.quantum_s

    @property
    def language_step_s(self) -> float:
        """Longest step of a language model, whatever the policy."""
        return self.longest_step * self.quantum_s

    @property
    def takes_turns(self) -> bool:
        """Whether tenants have slices of a quantum; else requests have an order."""
        return self.policy not in {"fifo", "vtc"}

    def without_keys(self) -> TimesliceConfig:
        """Return the configuration without keys, for display and digests."""
        tenants = tuple(tenant.model_copy(update={"key": None}) for tenant in self.tenants)
        return self.model_copy(
            update={"tenants": tenants, "server": self.server.model_copy(update={"operator_key": None})}
        )

    def _check_models(self, tenant: SharingTenant) -> None:
        models: set[str] = set()
        for model in tenant.models:
            field = f"tenants.{tenant.name}.models.{model.name}"
            if model.key in models:
                raise FieldError("each name once for a version", field=f"{field}.name", value=f"{model.name!r} twice")
            models.add(model.key)
            alike = [other for other in tenant.models if other.name == model.name]
            if len(alike) > 1 and any(other.language is not None for other in alike):
                raise FieldError(
                    "one version of a language model", field=f"{field}.name", value=f"{model.name!r} twice"
                )
            if model.language is not None:
                self._check_language(field, model)
                continue
            if self.policy == "vtc":
                raise FieldError(
                    "language models only, as policy vtc counts tokens", field=f"{field}.language", value="none"
                )
            if self.device.kind == "simulated" and model.profile is None:
                raise FieldError("a profile, which a simulated device needs", field=f"{field}.profile", value="none")
            if self.device.kind != "simulated" and (model.path is None or not re.search(r"\.(onnx|pt2)$", model.path)):
                raise FieldError("a file name that ends in .onnx or .pt2", field=f"{field}.path", value=str(model.path))

    def _check_language(self, field: str, model: ServedModel) -> None:
        if self.device.kind == "simulated":
            raise FieldError("none on a simulated device", field=f"{field}.language", value="a language model")
        if model.path is None or re.search(r"\.(onnx|pt2)$", model.path):
            raise FieldError(
                "a decoder (.npz) or a folder of transformers", field=f"{field}.path", value=str(model.path)
            )
        for name in sorted({"version", "profile", "max_batch_size", "dynamic_batching"} & model.model_fields_set):
            raise FieldError("none for a language model", field=f"{field}.{name}", value="a value")
