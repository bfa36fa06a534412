"""Files of ``commonwatt map``: a problem (a job table, or layers on sub-accelerators) and a mapping to evaluate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from commonwatt.model.errors import FieldError
from commonwatt.model.fields import FileModel, quantity

__all__ = [
    "AcceleratorSpec",
    "BatchSpec",
    "FixedMapping",
    "LayerSpec",
    "MapFile",
    "MapTable",
    "MappingFile",
    "TransferFile",
]

_LARGEST = 10**9  # larger dimensions are taken for mistakes
_NEEDED = {"fc": "kc", "gemm": "kcy", "conv": "kcyxrs", "depthwise": "cyxrs"}


class AcceleratorSpec(FileModel):
    """One or several equal sub-accelerators."""

    name: str = quantity("name; of several, a number is added", "-", "")
    dataflow: Literal["HB", "LB", "SHI"] = quantity(
        "dimension spread over the array: channels (HB), rows of the output (LB), rows and columns of it (SHI)"
    )
    pe_rows: int = quantity("rows of processing elements", "-", ge=1, le=100_000)
    pe_cols: int = quantity("columns of processing elements", "-", 64, ge=1, le=100_000)
    sg_kib: float | None = quantity(
        "global scratchpad, both halves of the double buffer; null: unlimited", "KiB", None, gt=0
    )
    sl_bytes: float | None = quantity(
        "scratchpad of a processing element, both halves; null: unlimited", "B", None, gt=0
    )
    flexible: bool = quantity("whether the shape is chosen for each layer, within rows times columns", default=False)
    count: int = quantity("number of equal sub-accelerators", "-", 1, ge=1, le=4096)


class LayerSpec(FileModel):
    """One or several equal layers; unit: values, pixels or channels."""

    name: str = quantity("name of the layer", "-", "")
    model: str = quantity("its network", "-", "")
    task: Literal["vision", "language", "recommendation"] | None = quantity("class of the network", "-", None)
    kind: Literal["fc", "conv", "depthwise", "gemm"] = quantity("kind of layer")
    k: int = quantity("output channels; 1 for depthwise, one filter for each of c", "-", 1, ge=1, le=_LARGEST)
    c: int = quantity("input channels", "-", ge=1, le=_LARGEST)
    y: int = quantity("height of the input; of a gemm its rows", "-", 1, ge=1, le=_LARGEST)
    x: int = quantity("width of the input", "-", 1, ge=1, le=_LARGEST)
    r: int = quantity("height of the filter", "-", 1, ge=1, le=_LARGEST)
    s: int = quantity("width of the filter", "-", 1, ge=1, le=_LARGEST)
    stride: int = quantity("stride", "-", 1, ge=1, le=_LARGEST)
    padding: int = quantity("padding on each side", "-", 0, ge=0, le=_LARGEST)
    groups: int = quantity("groups of a convolution", "-", 1, ge=1, le=_LARGEST)
    batch: int = quantity("inputs processed at a time", "-", 1, ge=1, le=_LARGEST)
    repeat: int = quantity("number of jobs with this layer", "-", 1, ge=1, le=100_000)

    @model_validator(mode="after")
    def _check_form(self) -> LayerSpec:
        for name in _NEEDED[self.kind]:
            if name not in self.model_fields_set:
                raise FieldError(f"this field to be given, as the layer is of kind {self.kind}", field=name)
        return self


class BatchSpec(FileModel):
    """Layers drawn from the networks of a class, or all layers of some networks, one after another."""

    batch_class: Literal["vision", "lang", "recom", "mix", "random"] | None = quantity(
        "class of networks to draw from, with equal probability for each layer", "-", None, alias="class"
    )
    count: int = quantity("number of layers to draw", "-", 100, ge=1, le=100_000)
    seed: int = quantity("seed of the draw", "-", 0, ge=0)
    products: bool = quantity("whether to include products of activations (attention, interactions)", default=False)
    networks: tuple[str, ...] | None = quantity("networks, by their names in `map layers`", "-", None, min_length=1)
    tokens: int | None = quantity("text length of language networks; null: 20", "tokens", None, ge=1)

    @model_validator(mode="after")
    def _check_form(self) -> BatchSpec:
        if (self.batch_class is None) == (self.networks is None):
            raise FieldError("a class or networks" + (", not both" if self.networks else ""), field="class")
        if self.tokens is not None and self.networks is None:
            raise FieldError("networks as well; layers drawn by class have 20 tokens", field="tokens")
        return self


Rows = tuple[tuple[float | None, ...], ...]


def _form_of_jobs(value: object) -> str:
    if isinstance(value, (BatchSpec, Mapping)):
        return "a-batch"
    return "a-list" if isinstance(value, (list, tuple)) else "a-file"


# the tags are no identifiers, so that errors do not name them
Jobs = Annotated[
    Annotated[str, Tag("a-file")]
    | Annotated[tuple[LayerSpec, ...], Tag("a-list")]
    | Annotated[BatchSpec, Tag("a-batch")],
    Discriminator(_form_of_jobs),
]


class MapTable(FileModel):
    """Latency and bandwidth of every job (row) on every sub-accelerator (column)."""

    latency_cycles: Rows = quantity(
        "no-stall latency on each sub-accelerator, above 0; null: it cannot run there", "cycles", min_length=1
    )
    bandwidth_gbs: Rows = quantity("requested bandwidth, 0 or more", "GB/s", min_length=1)
    energy_nj: Rows | None = quantity("energy, 0 or more", "nJ", None, min_length=1)


class FixedMapping(FileModel):
    """Fixed parts of a mapping."""

    accelerator: tuple[Annotated[int, Field(ge=0)] | None, ...] | None = quantity(
        "sub-accelerator each job must run on, from 0; null: any", "-", None
    )
    priority: tuple[float | None, ...] | None = quantity("priority each job must have; null: any", "-", None)


class MapFile(FileModel):
    """A batch of jobs on sub-accelerators that share one bandwidth, and the objective of a mapping.

    Jobs are named by number from 0, in the order of the table, or by name.
    """

    system_bandwidth_gbs: float = quantity("bandwidth shared by all sub-accelerators", "GB/s", gt=0)
    table: MapTable | str | None = quantity(
        "the job table, or a CSV or JSON file with it; replaces platform and jobs", "-", None
    )
    platform: str | tuple[AcceleratorSpec, ...] | None = quantity(
        "a setting of the paper (S1 to S6, S1-flexible, S3-flexible), or sub-accelerators", "-", None, min_length=1
    )
    jobs: Jobs | None = quantity(
        "layers, a CSV file with them, or a selection from the networks of the paper", "-", None
    )
    cost_model: Literal["maestro", "shi", "roofline"] = quantity(
        "cost model of layers: the published one, the same with SHI instead of LB, or the physically honest one",
        "-",
        "maestro",
    )
    objective: Literal["latency", "energy", "edp", "satisfaction", "tail", "completion"] = quantity(
        "quantity to minimise: makespan, energy, their product, jobs out of the target order, tail latency of tenants, "
        "or mean completion time",
        "-",
        "latency",
    )
    target_cycles: float | None = quantity(
        "a sufficient makespan: objective latency stops there, other objectives penalise the excess", "cycles",
        None, ge=1e-6,
    )  # fmt: skip
    names: tuple[str, ...] | None = quantity("name of each job", "-", None, min_length=1)
    after: dict[str, tuple[str, ...]] | Literal["tenant"] | None = quantity(
        "predecessors of each job; tenant: the previous job of the same tenant", "-", None
    )
    order: tuple[str, ...] | None = quantity("all jobs in the desired order of completion", "-", None, min_length=1)
    tenants: tuple[str, ...] | None = quantity("tenant of each job", "-", None, min_length=1)
    weights: dict[str, Annotated[float, Field(gt=0)]] = quantity(
        "weight of each tenant for tail and completion; default 1", "-", dict
    )
    targets: dict[str, Annotated[float, Field(ge=1e-6)]] = quantity(
        "latency target of each tenant: time by which the fraction `tail` of its jobs should have ended; excess is "
        "penalised", "cycles", dict,
    )  # fmt: skip
    tail: float = quantity("fraction of a tenant's jobs that end within its tail latency", "-", 0.95, gt=0, le=1)
    fixed: FixedMapping | None = quantity("fixed parts of the mapping", "-", None)

    @model_validator(mode="after")
    def _check_form(self) -> MapFile:
        if self.table is not None:
            for key in ("platform", "jobs"):
                if getattr(self, key) is not None:
                    raise FieldError("a table, or a platform and jobs, not both", field=key)
        elif self.platform is None and self.jobs is None:
            raise FieldError("this field to be given, or platform and jobs", field="table")
        else:
            for key, other in (("platform", "jobs"), ("jobs", "platform")):
                if getattr(self, key) is None:
                    raise FieldError(f"this field to be given beside {other}", field=key)
        return self


class MappingFile(FileModel):
    """A mapping: lower priority values run first, ties by the order of jobs."""

    accelerator: tuple[int, ...] = quantity("sub-accelerator of each job, from 0", "-", min_length=1)
    priority: tuple[float, ...] = quantity("priority of each job on its sub-accelerator", "-", min_length=1)


class TransferFile(FileModel):
    """A batch saved by ``map --save-transfer``: jobs by rank, the longest mean latency first."""

    accelerator: tuple[Annotated[int, Field(ge=0)], ...] = quantity(
        "sub-accelerator of the job of each rank, from 0", "-", min_length=1
    )
    priority: tuple[float, ...] = quantity("priority of the job of each rank; lower runs first", "-", min_length=1)
    latency_cycles: Rows = quantity(
        "no-stall latency on each sub-accelerator; null: it cannot run there", "cycles", min_length=1
    )
    bandwidth_gbs: Rows = quantity("requested bandwidth", "GB/s", min_length=1)
    stretch: float = quantity("makespan over a simple lower bound", "-", ge=0)
