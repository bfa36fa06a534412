"""Results of the fleet part of a simulation: services, fractional jobs, and how GPUs were shared."""

from __future__ import annotations

from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from commonwatt.model.fields import ResultModel, quantity

__all__ = ["FleetResult", "FleetTenantResult", "FractionalResult", "PowerCapResult", "ServiceResult"]


class ServiceResult(ResultModel):
    """What a service's requests got."""

    service: str = quantity("name of the service")
    tenant: str = quantity("its tenant")
    requests: float = quantity("requests that arrived")
    late_requests: float = quantity("of these, later than the latency target, or refused; by the stated law")
    late_share: float | None = quantity("late requests over requests; null: there were none")
    met_share: float | None = quantity(
        "share of the time with requests in which the stated quantile met the target; null: there was none"
    )
    mean_replicas: float = quantity("mean number of replicas over its life")
    gpu_hours: float = quantity("GPU time reserved for it", "GPU h")
    moves: int = quantity("replicas started again elsewhere")
    energy_kwh: float = quantity("energy of its replicas, their share of idle power included", "kWh")
    energy_cost: float = quantity("cost of that energy", "currency")


class FractionalResult(ResultModel):
    """What the fractional jobs got."""

    jobs: int = quantity("jobs")
    ended: int = quantity("of these, ended")
    mean_wait_s: float | None = quantity("mean time from submission to first start; null: there were none", "s")
    p95_wait_s: float | None = quantity("95th percentile", "s")
    mean_stretch: float | None = quantity(
        "mean of time from submission to end, over the time with what they asked for, undisturbed"
    )
    stops: int = quantity("times one was stopped to make room, or lost its node")
    gpu_hours: float = quantity("GPU time reserved for them", "GPU h")
    energy_kwh: float = quantity("their energy, their share of idle power included", "kWh")
    energy_cost: float = quantity("cost of that energy", "currency")


class FleetTenantResult(ResultModel):
    """A tenant over all it runs: training jobs, services and fractional jobs."""

    tenant: str = quantity("name of the tenant")
    weight: float = quantity("its weight")
    energy_kwh: float | None = quantity("energy of all it ran", "kWh")
    gpu_hours: float = quantity("GPU time of all it ran", "GPU h")
    mean_wait_s: float | None = quantity("mean wait of its training and fractional jobs; null: it has none", "s")
    late_requests: float = quantity("late requests of its services")


class PowerCapResult(ResultModel):
    """What happened under the power cap, or the power budget of the capacity plan."""

    most_w: float = quantity("most power drawn after any decision", "W")
    over_s: float = quantity(
        "time above the cap by services alone, with the nodes they are on: no job was left to stop", "s"
    )
    over_beside_jobs_s: float = quantity("time above it by services, beside jobs that may not be stopped", "s")
    most_over_w: float = quantity("the most by which it was exceeded; nodes that are down count as on", "W")
    stopped_jobs: int = quantity("training jobs stopped to stay below it when services grew")
    stopped_fractional: int = quantity("fractional jobs stopped for that")


class FleetResult(ResultModel):
    """How GPUs were shared, and what that gave."""

    services: tuple[ServiceResult, ...] = quantity("services")
    fractional: FractionalResult | None = quantity("fractional jobs; null: there are none")
    tenants: tuple[FleetTenantResult, ...] = quantity(
        "tenants over all they run; with `idle_kwh` they sum to the meter"
    )
    requests: float = quantity("requests of all services")
    late_requests: float = quantity("late requests of all services")
    whole_gpu_hours: float = quantity("time of GPUs with one replica or fractional job on them alone", "GPU h")
    mig_gpu_hours: float = quantity("time of GPUs cut by MIG", "GPU h")
    time_gpu_hours: float = quantity("time of GPUs shared in time", "GPU h")
    reserved_share: float | None = quantity("reserved part of the time of those GPUs; null: there was none")
    layouts: int = quantity("times a GPU was cut by MIG, the first included")
    drained: int = quantity("MIG instances with a replica on them that had to drain")
    made_room: int = quantity("training jobs stopped to make room for a service")
    unplaced_s: float = quantity("sum over replicas of the time without room for them", "s")
    mean_phi: float | None = quantity(
        "etf: mean of the phi in force over time-shared GPUs and time; null: no such time"
    )
    interference_slowdown: float = quantity("slowdown beside a GPU's worth of other work, as used")
    idle_kwh: float = quantity("energy of no tenant: idle, asleep, waking, lost work", "kWh")
    energy_evenness: float | None = quantity(
        "Jain's index of energy over weight, over tenants; 1: even; null: fewer than two tenants"
    )
    time_evenness: float | None = quantity("the same of GPU time over weight")
    power_cap: PowerCapResult | None = quantity("what happened under a power cap; absent: there is none", "-", None)

    @model_serializer(mode="wrap")
    def _without_cap(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = handler(self)
        if self.power_cap is None:
            document.pop("power_cap", None)
        return document
