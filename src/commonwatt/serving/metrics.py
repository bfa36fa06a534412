"""What Prometheus reads: a plain snapshot of time, energy, shares and requests, made when it asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from commonwatt.model.histogram import Histogram
from commonwatt.serving.optional import Foreign, wanted

__all__ = ["OUTCOMES", "Measurements", "TenantMeasurements", "metrics_page"]

OUTCOMES = ("ok", "refused", "failed", "cancelled")
PREFIX = "commonwatt_timeslice_"


@dataclass(frozen=True)
class TenantMeasurements:
    """What one tenant got since the server started."""

    tenant: str
    time_s: float  # of the device
    energy_j: float
    time_share: float  # of the time and energy of all tenants, 0 to 1
    energy_share: float
    entitlement: float  # its weight by the sum of weights
    guaranteed_share: float  # phi times that, or what the policy guarantees
    queue_length: int  # requests that wait or run
    requests: Mapping[str, int]  # finished, by outcome (OUTCOMES)
    latency: Histogram = field(default_factory=Histogram)  # from arrival to outputs, of requests that were served


@dataclass(frozen=True)
class Measurements:
    """What all tenants got, and what nobody did."""

    tenants: tuple[TenantMeasurements, ...]
    idle_time_s: float
    idle_energy_j: float
    phi: float
    policy: str
    power_source: str  # measured or modelled


def metrics_page(measurements: Callable[[], Measurements]) -> Callable[[], tuple[bytes, str]]:
    """Return a function that gives Prometheus' text and its content type, reading *measurements* each time."""
    prometheus = wanted("prometheus_client")
    registry = prometheus.CollectorRegistry()
    registry.register(_Collector(wanted("prometheus_client.core"), measurements))
    return lambda: (prometheus.generate_latest(registry), str(prometheus.CONTENT_TYPE_LATEST))


class _Collector:
    """Families of metrics of one snapshot."""

    def __init__(self, core: Foreign, measurements: Callable[[], Measurements]) -> None:
        self._core, self._measurements = core, measurements

    def describe(self) -> list[Any]:
        """Nothing, so that registering asks for no snapshot."""
        return []

    def collect(self) -> Iterator[Any]:
        """Take a snapshot and tell it."""
        now = self._measurements()
        yield from self._of_all(now)
        yield from self._of_shares(now)
        yield self._requests(now)
        yield self._latencies(now)

    def _of_all(self, now: Measurements) -> Iterator[Any]:
        gauge, counter = self._core.GaugeMetricFamily, self._core.CounterMetricFamily
        info = gauge(f"{PREFIX}info", "The policy, and where power comes from", labels=["policy", "power_source"])
        info.add_metric([now.policy, now.power_source], 1)
        yield info
        yield gauge(f"{PREFIX}phi_ratio", "Time-fair factor: the guaranteed part of a fair share", value=now.phi)
        yield counter(f"{PREFIX}idle_seconds", "Time of the device that nobody used", value=now.idle_time_s)
        idle = counter(f"{PREFIX}idle_joules", "Energy of the device while nobody used it", labels=["power_source"])
        idle.add_metric([now.power_source], now.idle_energy_j)
        yield idle
        time = counter(f"{PREFIX}device_seconds", "Time of the device that a tenant got", labels=["tenant"])
        energy = counter(f"{PREFIX}energy_joules", "Energy of a tenant's work", labels=["tenant", "power_source"])
        for tenant in now.tenants:
            time.add_metric([tenant.tenant], tenant.time_s)
            energy.add_metric([tenant.tenant, now.power_source], tenant.energy_j)
        yield time
        yield energy

    def _of_shares(self, now: Measurements) -> Iterator[Any]:
        rows = (
            ("time_share_ratio", "A tenant's part of the time of all tenants", "time_share"),
            ("energy_share_ratio", "A tenant's part of the energy of all tenants", "energy_share"),
            ("entitlement_ratio", "A tenant's weight by the sum of weights", "entitlement"),
            ("guaranteed_share_ratio", "The part a tenant is guaranteed while it has work", "guaranteed_share"),
            ("queue_length", "Requests of a tenant that wait or run", "queue_length"),
        )
        for name, text, attribute in rows:
            family = self._core.GaugeMetricFamily(f"{PREFIX}{name}", text, labels=["tenant"])
            for tenant in now.tenants:
                family.add_metric([tenant.tenant], float(getattr(tenant, attribute)))
            yield family

    def _requests(self, now: Measurements) -> Foreign:
        family = self._core.CounterMetricFamily(
            f"{PREFIX}requests", "Finished requests of a tenant by outcome", labels=["tenant", "outcome"]
        )
        for tenant in now.tenants:
            for outcome in OUTCOMES:
                family.add_metric([tenant.tenant, outcome], tenant.requests.get(outcome, 0))
        return family

    def _latencies(self, now: Measurements) -> Foreign:
        family = self._core.HistogramMetricFamily(
            f"{PREFIX}request_duration_seconds", "From arrival to outputs, of requests that were served",
            labels=["tenant"],
        )  # fmt: skip
        for tenant in now.tenants:
            family.add_metric([tenant.tenant], tenant.latency.buckets(), sum_value=tenant.latency.sum)
        return family
