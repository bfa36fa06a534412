"""Metrics for Prometheus: the cluster after the last tick, totals of the store, and counters of this process.

Unknown is absent, never 0. Energy, money, GPU time and events are totals of the store and survive restarts; durations
and errors are counted from the start of the process.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from commonwatt import __version__
from commonwatt.controlplane.feed import EVENT_KINDS, TickCounts
from commonwatt.controlplane.snapshot import Snapshot, SnapshotNode
from commonwatt.model.errors import MissingExtraError, StoreError
from commonwatt.model.units import J_PER_KWH, MICRO, NANO
from commonwatt.service.middleware import HttpTimes
from commonwatt.store.api_store import ApiStore
from commonwatt.store.queries import event_counts, lateness, queue
from commonwatt.store.records import is_late

__all__ = ["metrics_page"]

PREFIX = "commonwatt_"
NODE_STATES = ("on", "waking", "asleep", "down")
CONTROLLER_ERRORS = {
    "engine": "Ticks that ended with an error of the engine, since the process started",
    "store": "Ticks that ended with an error of the database, since the process started",
    "other": "Ticks that ended with another error, since the process started",
}

Metric = Any
"""A family of metrics of prometheus_client."""


def metrics_page(
    *, snapshot: Callable[[], Snapshot], store: ApiStore, counts: Callable[[], TickCounts], http: HttpTimes,
    currency: str, reserved: Collection[str] = (), now_s: Callable[[], float] = time.time,
) -> Callable[[], tuple[bytes, str]]:  # fmt: skip
    """Return a function that returns Prometheus' text and its content type.

    Parameters
    ----------
    snapshot
        Returns the cluster after the last tick.
    store
        Source of the totals. If it does not answer, their families are absent and ``commonwatt_store_up`` is 0.
    counts
        Returns the controller's counters.
    http
        Durations of requests.
    currency
        Currency of all costs.
    reserved
        Nodes reserved for profiling new jobs.
    """
    try:
        import prometheus_client
    except ImportError as error:
        raise MissingExtraError("prometheus-client", "live") from error
    registry = prometheus_client.CollectorRegistry()
    prometheus_client.ProcessCollector(registry=registry)
    registry.register(_Collector(snapshot, store, counts, http, currency, reserved, now_s))
    return lambda: (prometheus_client.generate_latest(registry), str(prometheus_client.CONTENT_TYPE_LATEST))


class _Collector:
    """Collects all families at each scrape."""

    def __init__(
        self, snapshot: Callable[[], Snapshot], store: ApiStore, counts: Callable[[], TickCounts], http: HttpTimes,
        currency: str, reserved: Collection[str], now_s: Callable[[], float],
    ) -> None:  # fmt: skip
        self._snapshot, self._store, self._counts, self._http = snapshot, store, counts, http
        self._currency, self._reserved, self._now_s = currency, reserved, now_s

    def describe(self) -> list[Metric]:
        """Return nothing, so that registering reads nothing."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        yield _gauge("build_info", "Version of commonwatt", {("version",): {(__version__,): 1.0}})
        snapshot = self._snapshot()
        yield from _controller(snapshot)
        yield from _cluster(snapshot, self._reserved)
        yield from _services(snapshot)
        yield from _capacity(snapshot)
        yield from _health(snapshot)
        yield from _tenants(snapshot)
        yield from self._saved(snapshot.saved)
        yield from self._process()
        try:
            families = [*self._queue(snapshot), *self._ledger(), *self._events()]
        except StoreError:
            families = []
        yield _gauge("store_up", "Whether the database answers", float(bool(families)))
        yield from families

    def _saved(self, saved: Mapping[str, float | str | None] | None) -> Iterator[Metric]:
        energy_kwh, cost = (saved or {}).get("energy_kwh"), (saved or {}).get("cost")
        if isinstance(energy_kwh, float):
            yield _gauge(
                "saved_energy_joules", "Estimated energy saved against the baseline policy",
                energy_kwh * J_PER_KWH,
            )  # fmt: skip
        if isinstance(cost, float):
            yield _gauge(
                "saved_cost", "Estimated cost saved against the baseline policy",
                {("currency",): {(self._currency,): cost}},
            )  # fmt: skip
        if isinstance(period_s := (saved or {}).get("period_s"), float):
            yield _gauge("saved_period_seconds", "Period covered by the estimate of savings", period_s)

    def _process(self) -> Iterator[Metric]:
        from prometheus_client.core import HistogramMetricFamily

        counts = self._counts()
        duration = HistogramMetricFamily(f"{PREFIX}tick_duration_seconds", "Duration of a tick: observe, decide, act")
        duration.add_metric([], counts.ticks.buckets(), sum_value=counts.ticks.sum)
        yield duration
        yield _counter("ticks", "Ticks since the process started", float(sum(counts.ticks.counts)))
        for source, number in counts.errors.items():
            name = "controller" if source == "other" else source
            yield _counter(f"{name}_errors", CONTROLLER_ERRORS[source], float(number))
        requests = HistogramMetricFamily(
            f"{PREFIX}http_request_duration_seconds", "Duration of a request, from arrival to the end of the response",
            labels=["method", "route", "status"],
        )  # fmt: skip
        for labels, times in self._http.snapshot().items():
            requests.add_metric(list(labels), times.buckets(), sum_value=times.sum)
        yield requests

    def _queue(self, snapshot: Snapshot) -> Iterator[Metric]:
        jobs = {(status,): float(number) for status, number in self._store.counts().items()}
        yield _gauge("jobs", "Jobs by status", {("status",): jobs})
        now_s = self._now_s()
        standing = queue(self._store.database)
        wait_s = 0.0 if standing.oldest_submit_s is None else max(0.0, now_s - standing.oldest_submit_s)
        yield _gauge(
            "queue_oldest_wait_seconds", "Age of the oldest waiting job that is not on hold; 0 without one", wait_s
        )
        yield _gauge("jobs_on_hold", "Waiting jobs on hold", float(standing.held))
        yield _gauge(
            "requests_pending", "User requests that the controller has yet to handle", float(standing.requests)
        )
        yield _gauge("intents_open", "Commands to the engine with unknown outcome", float(standing.intents))
        late = lateness(self._store.database, now_s)
        yield _gauge("late_jobs", "Active jobs past their due dates", float(late.late))
        expected = sum(is_late(job.due_s, now_s, job.expected_end_s) for job in snapshot.jobs.values())
        yield _gauge("expected_late_jobs", "Active jobs that are late or expected to be late", float(expected))
        cost = {("currency",): {(self._currency,): late.cost}}
        yield _gauge("tardiness_cost", "Tardiness cost of active jobs so far", cost)

    def _ledger(self) -> Iterator[Metric]:
        """Yield rows of the ledger; the work since a running job's last start may be lost, so it is a gauge."""
        rows = self._store.ledger()
        quantities = (
            ("energy_uj", "energy", "joules", MICRO, "Energy"),
            ("cost_n", "cost", "", NANO, "Cost of electricity"),
            ("carbon_ug", "carbon", "grams", MICRO, "Carbon emissions of electricity"),
            ("gpu_us", "gpu", "seconds", MICRO, "GPU time"),
        )
        for column, name, unit, scale, text in quantities:
            money = (self._currency,) if name == "cost" else ()
            names = ("currency",) * len(money)
            settled: dict[tuple[str, ...], float] = {}
            pending: dict[tuple[str, ...], float] = {}
            metered: float | None = None
            for row in rows:
                if row[column] is None:
                    continue
                value, tenant = row[column] / scale, row["tenant"] or ""
                if row["row"] == "meter":
                    metered = value
                elif row["row"] == "segment":
                    pending[*money, tenant] = value
                else:
                    settled[*money, row["row"], tenant] = value
            suffix = f"_{unit}" if unit else ""
            yield _counter(
                f"{name}{suffix}", f"{text} by row of the ledger, and by tenant for jobs",
                {(*names, "row", "tenant"): settled},
            )  # fmt: skip
            yield _gauge(
                f"pending_{name}{suffix}", f"{text} of running jobs since their last start, not yet in the ledger",
                {(*names, "tenant"): pending},
            )  # fmt: skip
            if metered is not None:
                yield _counter(
                    f"metered_{name}{suffix}", f"{text} of the whole cluster",
                    {names: {money: metered}} if money else metered,
                )  # fmt: skip

    def _events(self) -> Iterator[Metric]:
        counts = dict.fromkeys(EVENT_KINDS, 0) | event_counts(self._store.database)  # 0 leaves no gap in a series
        yield _counter("job_events", "Events of jobs by kind", {("kind",): {(k,): float(n) for k, n in counts.items()}})
        yield _counter("preemptions", "Running jobs that were stopped to wait", float(counts.get("preempted", 0)))
        moved = counts.get("migrated", 0) + counts.get("resized", 0)
        yield _counter("migrations", "Running jobs that were moved or resized", float(moved))


def _controller(snapshot: Snapshot) -> Iterator[Metric]:
    info = {("engine", "mode"): {(snapshot.engine, snapshot.mode): 1.0}}
    yield _gauge("controller_info", "Engine and mode", info)
    yield _gauge(
        "controller_active", "Whether this controller is active, and not a standby", float(snapshot.role == "active")
    )
    yield _gauge("controller_healthy", "Whether the last tick was carried out", float(snapshot.healthy))
    yield _gauge("controller_last_tick_timestamp_seconds", "Time of the last tick", snapshot.time_s)


def _cluster(snapshot: Snapshot, reserved: Collection[str]) -> Iterator[Metric]:
    nodes = snapshot.nodes
    yield _gauge("gpus", "GPUs of the cluster", float(sum(node.gpus for node in nodes)))
    yield _gauge("gpus_usable", "Available GPUs of the cluster", float(sum(node.usable_gpus for node in nodes)))
    allocated = float(sum(node.allocated_gpus for node in nodes))
    yield _gauge("gpus_allocated", "GPUs allocated to jobs", allocated)
    yield _gauge("gpus_held", "GPUs allocated to jobs; the old name of gpus_allocated", allocated)
    shut = {node.name for node in nodes if node.drained or node.name in reserved}
    free = sum(max(0, node.usable_gpus - node.allocated_gpus) for node in nodes if node.name not in shut)
    yield _gauge("gpus_free", "Free GPUs of nodes that are neither drained nor reserved for profiling", float(free))
    if snapshot.power_w is not None:
        yield _gauge("power_watts", "Power of the cluster", snapshot.power_w)
    states = Counter(node.state for node in nodes)
    by_state = {(state,): float(states[state]) for state in NODE_STATES}
    yield _gauge("nodes", "Nodes by state", {("state",): by_state})
    up = {(node.name,): float(node.state != "down") for node in nodes}
    yield _gauge("node_up", "Whether the node is up", {("node",): up})
    drained = {(node.name,): float(node.drained) for node in nodes}
    yield _gauge("node_drained", "Whether the node is drained", {("node",): drained})
    yield _gauge(
        "node_gpus", "GPUs of a node by state: held (allocated to jobs), free or unusable",
        {("node", "gpu_type", "state"): dict(row for node in nodes for row in _shares(node))},
    )  # fmt: skip
    power = {(node.name,): node.power_w for node in nodes if node.power_w is not None}
    yield _gauge("node_power_watts", "Power of a node", {("node",): power})


def _services(snapshot: Snapshot) -> Iterator[Metric]:
    if not snapshot.services:
        return
    gauges = (
        ("replicas", "Replicas of a service that were placed", "replicas"),
        ("replicas_ready", "Shared GPUs on which the model of a service is loaded", "ready"),
        ("gpus", "GPUs that a service has reserved, parts included", "gpus"),
        ("requests_per_second", "Requests of the last step, by which replicas are sized", "requests_per_s"),
        ("latency_p50_seconds", "Median latency of answered requests", "p50_s"),
        ("latency_p99_seconds", "99th percentile of the latency of answered requests", "p99_s"),
    )
    counters = (
        ("requests", "Requests of a service", "requests"),
        ("late_requests", "Requests later than the target, or not answered", "late"),
        ("unanswered_requests", "Requests that no replica has answered", "unanswered"),
        ("energy_joules", "Energy of the replicas of a service", "energy_j"),
    )
    for make, families in ((_gauge, gauges), (_counter, counters)):
        for name, text, attribute in families:
            values = {(s.name, s.tenant): getattr(s, attribute) for s in snapshot.services}
            samples = {labels: float(value) for labels, value in values.items() if value is not None}
            yield make(f"service_{name}", text, {("service", "tenant"): samples})


def _capacity(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield what the capacity plan keeps on, by pool; the pool has no name where there is only one."""
    if snapshot.pools:
        gpus = {
            (pool.name, state): float(count)
            for pool in snapshot.pools
            for state, count in (("on", pool.on_gpus), ("wanted", pool.wanted_gpus), ("promised", pool.promised_gpus))
        }
        text = "GPUs at the last capacity plan by pool and state: on (or waking), wanted, promised for the next step"
        yield _gauge("capacity_gpus", text, {("pool", "state"): gpus})
        kept = {(pool.name,): float(pool.kept) for pool in snapshot.pools}
        yield _gauge("capacity_promise_kept", "Whether the promise of the pool is being kept", {("pool",): kept})
    if snapshot.power is not None:
        if math.isfinite(snapshot.power.limit_w):
            yield _gauge("capacity_power_limit_watts", "Power budget of the capacity plan", snapshot.power.limit_w)
        text = "What the nodes count for against the power budget: those that are on with all GPUs busy"
        yield _gauge("capacity_power_counted_watts", text, snapshot.power.counted_w)
        text = "Nodes that the power budget kept off at the last plan"
        yield _gauge("capacity_nodes_without_power", text, float(snapshot.power.nodes_off))


def _health(snapshot: Snapshot) -> Iterator[Metric]:
    if (health := snapshot.health) is None:
        return
    if health.answers is not None:
        text = "Whether Prometheus answered when it was last asked about GPU health"
        yield _gauge("gpu_health_up", text, float(health.answers))
    yield _gauge("gpu_health_nodes", "Nodes whose GPU health was known at the last answer", float(health.nodes))
    yield _gauge("gpu_faults", "Faults of GPUs that no operator has accepted by an undrain", float(health.faults))
    yield _gauge("nodes_drained_by_faults", "Nodes that faults of GPUs have drained", float(health.drained))


def _tenants(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield shares of tenants where the policy guarantees some; a row for each tenant that has submitted a job."""
    if not snapshot.shares:
        return
    gauges = (
        ("allocated_gpus", "GPUs of running jobs of a tenant", "allocated_gpus"),
        ("held_gpus", "The old name of tenant_allocated_gpus", "allocated_gpus"),
        ("entitled_gpus", "GPUs a tenant was entitled to at the last decision about all jobs", "entitled_gpus"),
        ("used_share_ratio", "Part of a tenant of the decayed GPU time of all tenants", "used_share"),
        ("entitled_share_ratio", "Weight of a tenant over the sum of weights", "entitled_share"),
        ("decayed_gpu_seconds", "GPU time of a tenant, halved every half-life of the policy", "used_gpu_s"),
        ("debt_gpu_seconds", "Decayed GPU time a tenant had less than its share; below 0 more", "debt_gpu_s"),
    )
    for name, text, attribute in gauges:
        values = {(share.name,): getattr(share, attribute) for share in snapshot.shares}
        samples = {labels: float(value) for labels, value in values.items() if value is not None}
        yield _gauge(f"tenant_{name}", text, {("tenant",): samples})


def _shares(node: SnapshotNode) -> Iterator[tuple[tuple[str, ...], float]]:
    free = max(0, node.usable_gpus - node.allocated_gpus)
    states = {"held": node.allocated_gpus, "free": free, "unusable": max(0, node.gpus - node.allocated_gpus - free)}
    for state, gpus in states.items():
        yield (node.name, node.gpu_type, state), float(gpus)


_Values = float | Mapping[Any, Mapping[Any, float]]
"""One value, or values by labels: ``{label names: {label values: value}}``."""


def _gauge(name: str, text: str, values: _Values) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return _family(GaugeMetricFamily, name, text, values)


def _counter(name: str, text: str, values: _Values) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    return _family(CounterMetricFamily, name, text, values)


def _family(kind: Callable[..., Metric], name: str, text: str, values: _Values) -> Metric:
    if not isinstance(values, Mapping):
        return kind(f"{PREFIX}{name}", text, value=values)
    ((labels, rows),) = values.items()
    family = kind(f"{PREFIX}{name}", text, labels=list(labels))
    for row, value in rows.items():
        family.add_metric(list(row), value)
    return family
