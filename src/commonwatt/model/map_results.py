"""What the ``map`` commands answer with."""

from __future__ import annotations

from commonwatt.model.fields import AnswerModel, ResultModel, quantity

__all__ = [
    "MapBandwidth",
    "MapEvaluateResult",
    "MapJobResult",
    "MapProgress",
    "MapResult",
    "MapTableResult",
    "MapTenant",
]


class MapJobResult(ResultModel):
    """Where and when one job runs."""

    job: int = quantity("row of the job table, from 0")
    accelerator: int = quantity("sub-accelerator it runs on, from 0")
    start_cycles: float = quantity("when it starts", "cycles")
    end_cycles: float = quantity("when it ends", "cycles")
    latency_cycles: float = quantity("time it would take if bandwidth were free", "cycles")
    stall_cycles: float = quantity("time it waits for bandwidth", "cycles")
    bandwidth_gbs: float = quantity("bandwidth it asks for", "GB/s")
    reason: str = quantity("typed reason: fixed, only-choice, fastest, less-bandwidth or spread-out")
    sentence: str = quantity("the same in one sentence")


class MapBandwidth(ResultModel):
    """An interval in which the same jobs run."""

    from_cycles: float = quantity("when it begins", "cycles")
    to_cycles: float = quantity("when it ends", "cycles")
    requested_gbs: float = quantity("bandwidth running jobs ask for together", "GB/s")
    used_gbs: float = quantity("bandwidth they get together", "GB/s")
    running: tuple[int | None, ...] = quantity("job on each sub-accelerator; null: none")
    granted_gbs: tuple[float, ...] = quantity("bandwidth each sub-accelerator gets", "GB/s")


class MapTenant(ResultModel):
    """When the jobs of one tenant end."""

    tenant: str | None = quantity("whose they are; null: all jobs, as no tenants are named")
    weight: float = quantity("how much it counts for tail and completion")
    jobs: int = quantity("number of its jobs")
    tail_cycles: float = quantity("when the part 'tail' of them has ended", "cycles")
    mean_end_cycles: float = quantity("mean of the times they end at", "cycles")


class MapEvaluateResult(AnswerModel):
    """Answer of ``commonwatt map evaluate``."""

    makespan_cycles: float = quantity("when the last job ends", "cycles")
    lower_bound_cycles: float = quantity("no mapping of this batch ends earlier", "cycles")
    gap: float = quantity("makespan over lower bound, less 1: it is at most so much above the optimum")
    objective: str = quantity("what the mapping is judged by")
    objective_value: float = quantity(
        "its value: cycles for latency, tail and completion, nJ for energy, nJ times cycles for edp, part of jobs for "
        "satisfaction",
    )
    energy_nj: float | None = quantity("energy of all jobs; null: the problem has no energies", "nJ")
    least_energy_nj: float | None = quantity("no mapping takes less; null: the problem has no energies", "nJ")
    satisfaction: float | None = quantity("part of jobs that end about where 'order' has them; null: no order")
    target_met: bool | None = quantity("whether the makespan is within 'target_cycles'; null: no target")
    tenants: tuple[MapTenant, ...] = quantity("when the jobs of each tenant end")
    accelerator: tuple[int, ...] = quantity("sub-accelerator of each job, from 0")
    priority: tuple[float, ...] = quantity("priority of each job; lower runs first, ties by index")
    accelerator_end_cycles: tuple[float, ...] = quantity("end of each sub-accelerator's last job; 0: none", "cycles")
    system_bandwidth_gbs: float = quantity("bandwidth all share", "GB/s")
    bandwidth_limited_cycles: float = quantity("time in which more bandwidth is asked for than there is", "cycles")
    jobs: tuple[MapJobResult, ...] = quantity("where and when each job runs")
    timeline: tuple[MapBandwidth, ...] = quantity("who has what bandwidth when")
    enforcement: str = quantity("what keeps the mapping", default="advisory")


class MapProgress(ResultModel):
    """A moment at which a search found something better."""

    evaluations: int = quantity("mappings evaluated so far")
    best: float = quantity("best cost so far: value of the objective; for satisfaction what is missing to 1")


class MapResult(MapEvaluateResult):
    """Answer of ``commonwatt map``."""

    algorithm: str = quantity("algorithm that searched; transfer: a transferred mapping, fine-tuned or not")
    evaluations: int = quantity("mappings evaluated")
    history: tuple[MapProgress, ...] = quantity("how the search came to its best")
    optimal: bool | None = quantity("true: proven that no mapping is better; null: not proven", default=None)
    search_s: float = quantity("time of the search, compilation included", "s")
    seed: int = quantity("seed of the search")


class MapTableResult(AnswerModel):
    """Answer of ``commonwatt map table``. Tables have a row for each job, an entry for each sub-accelerator."""

    cost_model: str | None = quantity("what the layers were costed with; null: the table was given")
    jobs: tuple[str, ...] = quantity("name of each job")
    accelerators: tuple[str, ...] = quantity("name of each sub-accelerator")
    latency_cycles: tuple[tuple[float | None, ...], ...] = quantity(
        "time if bandwidth is free; null: it cannot run there", "cycles"
    )
    bandwidth_gbs: tuple[tuple[float | None, ...], ...] = quantity("bandwidth it asks for meanwhile", "GB/s")
    energy_nj: tuple[tuple[float | None, ...], ...] | None = quantity(
        "energy it takes, by a model; null: unknown", "nJ"
    )
    macs: tuple[int, ...] | None = quantity("multiply-accumulates of each job; null: unknown")
    sg_bytes: tuple[tuple[float, ...], ...] | None = quantity("what it takes of the global scratchpad", "B")
    pe_rows: tuple[tuple[float, ...], ...] | None = quantity("rows of the array as it runs")
    pe_cols: tuple[tuple[float, ...], ...] | None = quantity("columns of the array as it runs")
