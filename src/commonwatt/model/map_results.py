"""Results of the ``map`` commands."""

from __future__ import annotations

from commonwatt.model.fields import AnswerModel, ResultModel, quantity
from commonwatt.model.map_file import MapFile

__all__ = [
    "MapBandwidth",
    "MapBatchResult",
    "MapEvaluateResult",
    "MapJobResult",
    "MapLayer",
    "MapLayersResult",
    "MapNetwork",
    "MapNetworksResult",
    "MapProgress",
    "MapResult",
    "MapSchedule",
    "MapTableResult",
    "MapTenant",
    "ScheduledBandwidth",
    "ScheduledJob",
]


class MapLayer(ResultModel):
    """One layer; dimensions are numbers of values, pixels or channels."""

    name: str = quantity("name of the layer")
    model: str = quantity("its network")
    kind: str = quantity("fc, conv, depthwise or gemm")
    k: int = quantity("output channels; 1 for depthwise, one filter for each of c")
    c: int = quantity("input channels")
    y: int = quantity("height of the input; of a gemm its rows")
    x: int = quantity("width of the input")
    r: int = quantity("height of the filter")
    s: int = quantity("width of the filter")
    stride: int = quantity("stride")
    padding: int = quantity("padding on each side")
    groups: int = quantity("groups; of attention its heads")
    batch: int = quantity("inputs processed at a time")
    task: str | None = quantity("vision, language or recommendation; null: unknown", "-", None)
    macs: int = quantity("multiply-accumulates")


class MapLayersResult(AnswerModel):
    """Answer of ``commonwatt map layers MODEL``."""

    source: str = quantity("the file or the network")
    macs: int = quantity("multiply-accumulates of all layers")
    unsupported: dict[str, int] = quantity("operators ignored on request, with their numbers")
    approximated: tuple[str, ...] = quantity("layers with unequal strides or dilations, which are ignored")
    layers: tuple[MapLayer, ...] = quantity("the layers, in order of execution")


class MapNetwork(ResultModel):
    """A built-in network."""

    model: str = quantity("name for map layers")
    title: str = quantity("name in the paper")
    task: str = quantity("vision, language or recommendation")
    in_table_3: bool = quantity("whether Table 3 of the paper lists it")
    layers: int = quantity("number of layers")
    macs: int = quantity("multiply-accumulates of one input (of language networks, 20 tokens)")
    parameters: int = quantity("parameters; of recommendation networks without embedding tables")
    source: str = quantity("source of its definition")
    derived: str = quantity("derivation of its layers")


class MapNetworksResult(AnswerModel):
    """Answer of ``commonwatt map layers``."""

    networks: tuple[MapNetwork, ...] = quantity("the networks")


class MapBatchResult(AnswerModel):
    """Answer of ``commonwatt map batch``."""

    batch_class: str = quantity("vision, lang, recom, mix or random")
    distinct: int = quantity("number of distinct shapes")
    macs: int = quantity("multiply-accumulates of all layers")
    models: dict[str, int] = quantity("number of layers from each network")
    layers: tuple[MapLayer, ...] = quantity("the layers, in order")


class MapJobResult(ResultModel):
    """Sub-accelerator and times of a job."""

    job: int = quantity("row of the job table, from 0")
    accelerator: int = quantity("its sub-accelerator, from 0")
    start_cycles: float = quantity("start", "cycles")
    end_cycles: float = quantity("end", "cycles")
    latency_cycles: float = quantity("no-stall latency", "cycles")
    stall_cycles: float = quantity("time stalled on bandwidth", "cycles")
    bandwidth_gbs: float = quantity("requested bandwidth", "GB/s")
    reason: str = quantity("typed reason: fixed, only-choice, fastest, less-bandwidth or spread-out")
    sentence: str = quantity("the reason as a sentence")


class MapBandwidth(ResultModel):
    """An interval in which the same jobs run."""

    from_cycles: float = quantity("start of the interval", "cycles")
    to_cycles: float = quantity("end", "cycles")
    requested_gbs: float = quantity("total requested bandwidth", "GB/s")
    used_gbs: float = quantity("total granted bandwidth", "GB/s")
    running: tuple[int | None, ...] = quantity("job on each sub-accelerator; null: none")
    granted_gbs: tuple[float, ...] = quantity("granted bandwidth of each sub-accelerator", "GB/s")


class MapTenant(ResultModel):
    """Completion times of a tenant's jobs."""

    tenant: str | None = quantity("the tenant; null: all jobs of a problem without tenants")
    weight: float = quantity("weight for tail and completion")
    jobs: int = quantity("number of its jobs")
    tail_cycles: float = quantity("time by which the fraction `tail` of them has ended", "cycles")
    mean_end_cycles: float = quantity("mean completion time", "cycles")
    target_cycles: float | None = quantity("its latency target; null: none", "cycles", None)
    target_met: bool | None = quantity("whether the target is met; null: none", "-", None)


class MapEvaluateResult(AnswerModel):
    """Answer of ``commonwatt map evaluate``."""

    makespan_cycles: float = quantity("end of the last job", "cycles")
    lower_bound_cycles: float = quantity("lower bound on the makespan of any mapping", "cycles")
    gap: float = quantity("makespan over lower bound, minus 1: an upper bound on the distance to the optimum")
    optimal: bool | None = quantity(
        "true: proven optimal, a makespan to one part in a million; null: not proven", default=None
    )
    objective: str = quantity("objective of the mapping")
    objective_value: float = quantity(
        "value of the objective: cycles for latency, tail and completion, nJ for energy, nJ times cycles for edp, "
        "fraction of jobs for satisfaction",
    )
    energy_nj: float | None = quantity("energy of all jobs; null: unknown", "nJ")
    least_energy_nj: float | None = quantity("lower bound on the energy of any mapping; null: unknown", "nJ")
    satisfaction: float | None = quantity("fraction of jobs that end near their place in `order`; null: no order")
    target_met: bool | None = quantity("whether the makespan is within `target_cycles`; null: no target")
    tenants: tuple[MapTenant, ...] = quantity("completion times of each tenant's jobs")
    accelerator: tuple[int, ...] = quantity("sub-accelerator of each job, from 0")
    priority: tuple[float, ...] = quantity("priority of each job; lower runs first, ties by index")
    accelerator_end_cycles: tuple[float, ...] = quantity("end of each sub-accelerator's last job; 0: none", "cycles")
    system_bandwidth_gbs: float = quantity("shared bandwidth", "GB/s")
    bandwidth_limited_cycles: float = quantity("time in which the requested bandwidth exceeds the shared one", "cycles")
    jobs: tuple[MapJobResult, ...] = quantity("sub-accelerator and times of each job")
    timeline: tuple[MapBandwidth, ...] = quantity("bandwidth over time")
    enforcement: str = quantity("how the mapping is enforced", default="advisory")


class MapProgress(ResultModel):
    """An improvement during a search."""

    evaluations: int = quantity("mappings evaluated so far")
    best: float = quantity("best cost so far: value of the objective; for satisfaction, 1 minus it")


class MapResult(MapEvaluateResult):
    """Answer of ``commonwatt map``."""

    algorithm: str = quantity("search algorithm; transfer: a transferred mapping, fine-tuned or not")
    evaluations: int = quantity("mappings evaluated")
    history: tuple[MapProgress, ...] = quantity("improvements over the search")
    search_s: float = quantity("time of the search, including compilation", "s")
    seed: int = quantity("seed of the search")


class ScheduledBandwidth(ResultModel):
    """An interval in which a job has the same bandwidth."""

    from_cycles: float = quantity("start of the interval", "cycles")
    to_cycles: float = quantity("end", "cycles")
    gbs: float = quantity("granted bandwidth", "GB/s")


class ScheduledJob(ResultModel):
    """One job of a schedule."""

    job: str = quantity("name of the job, or its number from 0")
    tenant: str | None = quantity("its tenant; null: none given")
    accelerator: int = quantity("its sub-accelerator, from 0")
    position: int = quantity("place in the queue of its sub-accelerator, from 0")
    start_cycles: float = quantity("start", "cycles")
    end_cycles: float = quantity("end", "cycles")
    bandwidth: tuple[ScheduledBandwidth, ...] = quantity("granted bandwidth, from start to end")


class MapSchedule(AnswerModel):
    """A mapping as a schedule: what ``commonwatt map --schedule`` writes and ``--after`` reads."""

    begin_cycles: float = quantity("time at which the schedule begins; all its times count from the same 0", "cycles")
    end_cycles: float = quantity("end of the last job", "cycles")
    lower_bound_cycles: float = quantity("no mapping of these jobs ends earlier", "cycles")
    optimal: bool | None = quantity("true: proven optimal; null: not proven")
    jobs: tuple[ScheduledJob, ...] = quantity("the jobs, in the order of the mapping")
    accelerator: tuple[int, ...] = quantity("sub-accelerator of each job, from 0")
    priority: tuple[float, ...] = quantity("priority of each job; lower runs first, ties by index")
    problem: MapFile = quantity("the problem, with its job table and what was fixed")
    enforcement: str = quantity("how the schedule is enforced", default="advisory")


class MapTableResult(AnswerModel):
    """Answer of ``commonwatt map table``. Tables have a row for each job and a column for each sub-accelerator."""

    cost_model: str | None = quantity("cost model of the layers; null: the table was given")
    jobs: tuple[str, ...] = quantity("name of each job")
    accelerators: tuple[str, ...] = quantity("name of each sub-accelerator")
    latency_cycles: tuple[tuple[float | None, ...], ...] = quantity(
        "no-stall latency; null: it cannot run there", "cycles"
    )
    bandwidth_gbs: tuple[tuple[float | None, ...], ...] = quantity("bandwidth it requests meanwhile", "GB/s")
    energy_nj: tuple[tuple[float | None, ...], ...] | None = quantity("energy by the cost model; null: unknown", "nJ")
    macs: tuple[int, ...] | None = quantity("multiply-accumulates of each job; null: unknown")
    sg_bytes: tuple[tuple[float, ...], ...] | None = quantity("used part of the global scratchpad", "B")
    pe_rows: tuple[tuple[float, ...], ...] | None = quantity("rows of the array in use")
    pe_cols: tuple[tuple[float, ...], ...] | None = quantity("columns of the array in use")
