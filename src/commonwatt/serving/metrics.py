"""Metrics for Prometheus: time, energy, shares and requests, collected at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from commonwatt.model.histogram import Histogram
from commonwatt.serving import Foreign, import_extra

__all__ = ["OUTCOMES", "Measurements", "TenantMeasurements", "TokenCounts", "metrics_page"]

OUTCOMES = ("ok", "refused", "failed", "cancelled")
PREFIX = "commonwatt_timeslice_"


@dataclass
class TokenCounts:
    """Tokens of a tenant, and how soon they came."""

    prompt: int = 0
    answer: int = 0
    first: Histogram = field(default_factory=Histogram)  # from arrival to the first token of an answer
    between: Histogram = field(default_factory=Histogram)  # from a token to the next

    def copy(self) -> TokenCounts:
        """Return an independent copy."""
        return TokenCounts(self.prompt, self.answer, self.first.copy(), self.between.copy())


@dataclass(frozen=True)
class TenantMeasurements:
    """Totals of one tenant since the server started."""

    tenant: str
    time_s: float  # of the device
    energy_j: float
    time_share: float  # of the time and energy of all tenants, 0 to 1
    energy_share: float
    entitlement: float  # its weight by the sum of weights
    guaranteed_share: float  # of the time, while it has work
    queue_length: int  # requests that wait or run
    requests: Mapping[str, int]  # finished, by outcome (OUTCOMES)
    latency: Histogram = field(default_factory=Histogram)  # from arrival to outputs, of requests that were served
    tokens: TokenCounts | None = None  # None: it has no language model


@dataclass(frozen=True)
class Measurements:
    """Totals of all tenants, and idle time and energy."""

    tenants: tuple[TenantMeasurements, ...]
    idle_time_s: float
    idle_energy_j: float
    phi: float
    policy: str
    power_source: str  # measured or modelled


def metrics_page(measurements: Callable[[], Measurements]) -> Callable[[], tuple[bytes, str]]:
    """Return a function that returns Prometheus' text and its content type, from *measurements* at each call."""
    prometheus = import_extra("prometheus_client")
    registry = prometheus.CollectorRegistry()
    registry.register(_Collector(import_extra("prometheus_client.core"), measurements))
    return lambda: (prometheus.generate_latest(registry), str(prometheus.CONTENT_TYPE_LATEST))


class _Collector:
    """Families of metrics of one snapshot."""

    def __init__(self, core: Foreign, measurements: Callable[[], Measurements]) -> None:
        self._core, self._measurements = core, measurements

    def describe(self) -> list[Any]:
        """Return nothing, so that registering takes no measurements."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield all families."""
        now = self._measurements()
        yield from self._of_all(now)
        yield from self._of_shares(now)
        yield self._requests(now)
        yield self._latencies(now)
        yield from self._tokens(now)

    def _of_all(self, now: Measurements) -> Iterator[Any]:
        gauge, counter = self._core.GaugeMetricFamily, self._core.CounterMetricFamily
        info = gauge(f"{PREFIX}info", "Policy and source of power", labels=["policy", "power_source"])
        info.add_metric([now.policy, now.power_source], 1)
        yield info
        yield gauge(f"{PREFIX}phi_ratio", "Time-fair factor: guaranteed fraction of the fair share", value=now.phi)
        yield counter(f"{PREFIX}idle_seconds", "Idle time of the device", value=now.idle_time_s)
        idle = counter(f"{PREFIX}idle_joules", "Energy of the device while idle", labels=["power_source"])
        idle.add_metric([now.power_source], now.idle_energy_j)
        yield idle
        time = counter(f"{PREFIX}device_seconds", "Device time of a tenant", labels=["tenant"])
        energy = counter(f"{PREFIX}energy_joules", "Energy of a tenant", labels=["tenant", "power_source"])
        for tenant in now.tenants:
            time.add_metric([tenant.tenant], tenant.time_s)
            energy.add_metric([tenant.tenant, now.power_source], tenant.energy_j)
        yield time
        yield energy

    def _of_shares(self, now: Measurements) -> Iterator[Any]:
        rows = (
            ("time_share_ratio", "Fraction of the time of all tenants", "time_share"),
            ("energy_share_ratio", "Fraction of the energy of all tenants", "energy_share"),
            ("entitlement_ratio", "Weight of a tenant over the sum of weights", "entitlement"),
            (
                "guaranteed_share_ratio",
                "Fraction of the time guaranteed to a tenant while it has work",
                "guaranteed_share",
            ),
            ("queue_length", "Requests of a tenant that are queued or running", "queue_length"),
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
            f"{PREFIX}request_duration_seconds", "Duration of successful requests, from arrival to outputs",
            labels=["tenant"],
        )  # fmt: skip
        for tenant in now.tenants:
            family.add_metric([tenant.tenant], tenant.latency.buckets(), sum_value=tenant.latency.sum)
        return family

    def _tokens(self, now: Measurements) -> Iterator[Any]:
        of_text = [(tenant.tenant, tenant.tokens) for tenant in now.tenants if tenant.tokens is not None]
        if not of_text:
            return
        family = self._core.CounterMetricFamily(
            f"{PREFIX}tokens", "Tokens of a tenant, of prompts and of answers", labels=["tenant", "kind"]
        )
        for name, counts in of_text:
            family.add_metric([name, "prompt"], counts.prompt)
            family.add_metric([name, "answer"], counts.answer)
        yield family
        for metric, text, attribute in (
            ("time_to_first_token_seconds", "Time from arrival to the first token of an answer", "first"),
            ("time_between_tokens_seconds", "Time from a token of an answer to the next", "between"),
        ):
            histograms = self._core.HistogramMetricFamily(f"{PREFIX}{metric}", text, labels=["tenant"])
            for name, counts in of_text:
                seen: Histogram = getattr(counts, attribute)
                histograms.add_metric([name], seen.buckets(), sum_value=seen.sum)
            yield histograms
