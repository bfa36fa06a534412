"""Services of the live control plane: what is checked of them, what they are compiled to, and what was counted.

The controller is the fleet's, as in simulation. Its loads are counted by the front, its engine really serves.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from commonwatt.control.fleet.interface import ReplicaDemand, ServingState
from commonwatt.control.ledger import Account
from commonwatt.engines.model_servers import HostedService, Hosting
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError, MissingExtraError
from commonwatt.model.fleet import WHOLE_MILLI, Fleet, LoadSeries, ServiceModel, SharingSpec
from commonwatt.model.histogram import FINE_BOUNDS_S
from commonwatt.model.names import is_loopback
from commonwatt.model.nodes import Cluster
from commonwatt.model.scenario import Scenario
from commonwatt.model.units import plural

if TYPE_CHECKING:
    from commonwatt.control.controller import Controller
    from commonwatt.control.fleet.controller import FleetController

__all__ = ["CountedLoad", "LiveServices", "SnapshotService", "check_services", "fleet_controller", "hosting_of"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ADDRESS = re.compile(r"[A-Za-z0-9_.:%-]+")
_NEEDED = ("onnxruntime", "starlette", "tritonclient", "uvicorn")  # by model servers
SHORTEST_KEY = 16
HOSTING_ENGINES = ("local", "slurm", "kubernetes")
_COUNTS = ("requests", "served", "late", "unanswered")


# -- the configuration


def sharing_of(config: Scenario) -> SharingSpec:
    """Return how GPUs may be shared."""
    return config.policies[0].sharing or config.sharing or SharingSpec()


def check_services(config: Scenario, cluster: Cluster, folder: Path) -> None:
    """Raise ``InputError`` on services that cannot be served live, or parts of a fleet that are not enforced.

    Raises ``MissingExtraError`` without what model servers need.
    """
    if config.fractional is not None:
        expected = "none: `serve` enforces no part of a GPU for processes of jobs; `simulate` takes them"
        raise InputError(expected, field="fractional", value="some")
    if not config.services:
        return
    if config.engine not in HOSTING_ENGINES:
        expected = f"none but with engine {', '.join(HOSTING_ENGINES)}"
        raise InputError(expected, field="services", value="some")
    for module in _NEEDED:
        if find_spec(module) is None:
            raise MissingExtraError(module, "serve")
    if config.live.mode == "dry-run":
        raise InputError("live: what services get is measured by serving them", field="live.mode", value="dry-run")
    for kind in cluster.classes:
        if "mig" in kind.share or kind.platform is not None:
            field = "nodes.share" if "mig" in kind.share else "nodes.platform"
            expected = "none: `serve` divides GPUs in time only (share: [time]); `simulate` takes the rest"
            raise InputError(expected, field=field, value="mig" if "mig" in kind.share else kind.platform)
    if key_of(config) is None and not is_loopback(config.live.services.host):
        expected = "a loopback address, or live.services.key_env: without a key anybody could ask"
        raise InputError(expected, field="live.services.host", value=config.live.services.host)
    _check_servers(config, cluster)
    for service in config.services:
        where = f"services.{service.name}"
        if not _NAME.fullmatch(service.name):
            raise InputError("letters, digits, '.', '_' and '-', as it is a part of URLs", field="services.name",
                             value=service.name)  # fmt: skip
        if service.model_file is None or not service.model_file.endswith((".onnx", ".pt2")):
            raise InputError("a name that ends in .onnx or .pt2", field=f"{where}.model_file", value=service.model_file)
        if not (folder / service.model_file).is_file():
            raise InputError("a file that is there", field=f"{where}.model_file", value=folder / service.model_file)
        if config.engine == "kubernetes":
            _check_mounted(config, folder, (folder / service.model_file).absolute(), f"{where}.model_file")
    shared = {kind.gpu_type for kind in cluster.classes if "time" in kind.share}
    for model in live_fleet(config, cluster, folder).services:
        if "time" in sharing_of(config).modes and shared.isdisjoint(model.types):
            expected = f"a node with share: [time] and GPUs that {model.name} has a profile for"
            raise InputError(expected, field="nodes.share", value="none")


def _check_servers(config: Scenario, cluster: Cluster) -> None:
    """Raise ``InputError`` for settings of model servers that cannot be, or that the engine does not use."""
    live = config.live.services
    if live.image is not None and config.engine != "kubernetes":
        raise InputError("none but with engine kubernetes", field="live.services.image", value=live.image)
    if live.addresses and config.engine != "slurm":
        raise InputError("none but with engine slurm", field="live.services.addresses", value=", ".join(live.addresses))
    if config.engine == "slurm" and live.python is not None and not live.python.startswith("/"):
        raise InputError("an absolute path, as on all nodes", field="live.services.python", value=live.python)
    for node, address in live.addresses.items():
        if node not in cluster.names:
            raise InputError("names of declared nodes", field="live.services.addresses", value=node)
        if not _ADDRESS.fullmatch(address):
            raise InputError("an address or a host name", field=f"live.services.addresses.{node}", value=address)


def _check_mounted(config: Scenario, folder: Path, file: Path, field: str) -> None:
    """Raise ``InputError`` for a model file that pods would not see: they have the volumes, and the state folder."""
    spec = config.live.kubernetes
    mounted = [*spec.volumes, str((folder / spec.state).absolute())]
    if not any(file.is_relative_to(path) for path in mounted):
        raise InputError(f"a file on a volume of live.kubernetes.volumes, or in {mounted[-1]}", field=field, value=file)


def key_of(config: Scenario) -> str | None:
    """Return the key that clients of services send; ``None``: none. Raises ``InputError`` if it is not set or short."""
    name = config.live.services.key_env
    if name is None:
        return None
    key = os.environ.get(name, "")
    if len(key) < SHORTEST_KEY or not (key.isascii() and key.isprintable()) or " " in key:
        expected = f"a variable that is set to {SHORTEST_KEY} characters of ASCII or more, without blanks"
        seen = f"{name}, {len(key)} characters" if key else f"{name}, not set"
        raise InputError(expected, field="live.services.key_env", value=seen)
    return key


def live_fleet(config: Scenario, cluster: Cluster, folder: Path) -> Fleet:
    """Return the fleet of a configuration, with loads that are counted. Raises ``InputError``."""
    from commonwatt.data.fleet import make_fleet

    unread = tuple(service.model_copy(update={"load": LoadSeries(rps=(0.0,))}) for service in config.services)
    with_loads = config.model_copy(update={"services": unread})
    fleet = make_fleet(with_loads, folder, cluster, sharing_of(config), (), 0)
    step_s = config.live.services.step_s
    return replace(fleet, services=tuple(replace(service, load=CountedLoad(step_s)) for service in fleet.services))


def hosting_of(config: Scenario, cluster: Cluster, folder: Path) -> Hosting | None:
    """Return what GPUs of the engine are shared for; ``None``: there are no services."""
    if not config.services:
        return None
    sharing, live = sharing_of(config), config.live.services
    python = config.live.kubernetes.python if config.engine == "kubernetes" else sys.executable
    hosted = tuple(
        HostedService(
            spec.name, str((folder / str(spec.model_file)).absolute()), spec.latency_s,
            {gpu_type: max(1e-3, model.power_w) for gpu_type, model in service.types.items()},
        )
        for spec, service in zip(config.services, live_fleet(config, cluster, folder).services, strict=True)
    )  # fmt: skip
    return Hosting(
        hosted, "tf" if sharing.slices == "equal" else sharing.slices, equal=sharing.slices == "equal", phi=sharing.phi,
        quantum_s=sharing.quantum_s, host=live.host, port=live.port, threads=live.threads, segment_s=live.segment_s,
        python=live.python or python, image=live.image, addresses=live.addresses, device=live.device,
        key=key_of(config),
    )  # fmt: skip


def fleet_controller(config: Scenario, cluster: Cluster, folder: Path) -> Callable[..., Controller]:
    """Return what makes the controller of a configuration with services, from the arguments of ``Controller``."""
    from commonwatt.control.fleet.controller import FleetController, eager
    from commonwatt.control.policy import Policy

    fleet, spec = live_fleet(config, cluster, folder), eager(config.policies[0])
    return partial(FleetController, fleet=fleet, resident_policy=Policy.of(spec, live=True))


# -- requests


@dataclass
class CountedLoad:
    """Requests per second of a service, as counted in steps of equal length; what the next step brings is unknown."""

    step_s: float
    rps: float = 0.0  # in the last step
    since: tuple[float, int] | None = None  # when the present step began, and the requests until then

    @property
    def end_s(self) -> float:
        """Return infinity: a live service does not end."""
        return math.inf

    def at(self, time_s: float) -> float:  # noqa: ARG002
        """Return the requests per second of the last step: those of the present one are not counted yet."""
        return self.rps

    def seen(self, time_s: float) -> float:  # noqa: ARG002
        """Return the same."""
        return self.rps

    def next_s(self, time_s: float) -> float:
        """Return when the next step begins."""
        return (math.floor(time_s / self.step_s + 1e-9) + 1) * self.step_s

    def count(self, now_s: float, requests: int) -> None:
        """Take note of all requests until now."""
        self.since = self.since or (now_s, requests)
        from_s, before = self.since
        if now_s >= self.next_s(from_s):
            self.rps = max(0, requests - before) / (now_s - from_s)
            self.since = (now_s, requests)


@dataclass
class _Total:
    """Counts of a service since it was first served, over all fronts there were."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    buckets: list[int] = field(default_factory=list)
    latency_s: float = 0.0

    def add(self, counts: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        """Add what the front has counted since it told *before*."""
        for name in _COUNTS:
            self.counts[name] += int(counts[name]) - int(before.get(name, 0))
        buckets, old = counts["buckets"], before.get("buckets", [0] * len(counts["buckets"]))
        if len(self.buckets) != len(buckets):
            self.buckets = [0] * len(buckets)
        self.buckets = [own + now - then for own, now, then in zip(self.buckets, buckets, old, strict=True)]
        self.latency_s += float(counts["latency_s"]) - float(before.get("latency_s", 0.0))

    def quantile_s(self, quantile: float) -> float | None:
        """Return the upper bound of the bucket that the quantile is in; ``None`` without requests, or above all."""
        served = sum(self.buckets)
        if not served or len(FINE_BOUNDS_S) + 1 != len(self.buckets):
            return None
        for upper, below in zip(FINE_BOUNDS_S, accumulate(self.buckets), strict=False):
            if below >= quantile * served:
                return upper
        return None


@dataclass(frozen=True, slots=True)
class SnapshotService:
    """A service now.

    Attributes
    ----------
    replicas, ready
        Replicas that were placed, and devices on which its model is loaded.
    gpus
        GPUs it has reserved, parts included.
    requests, late, unanswered
        Since it was first served: all, those later than the target or not answered, and those not answered.
    p50_s, p99_s
        Of all requests that were answered, to 10%.
    """

    name: str
    tenant: str
    replicas: int
    ready: int
    gpus: float
    nodes: tuple[str, ...]
    phi: float | None
    requests_per_s: float
    requests: int
    late: int
    unanswered: int
    latency_target_s: float
    quantile: float
    p50_s: float | None
    p99_s: float | None
    energy_j: float | None
    cost: float | None
    url: str | None
    trouble: str | None
    sentence: str

    @property
    def late_share(self) -> float | None:
        """Late requests over all; ``None`` without requests."""
        return self.late / self.requests if self.requests else None


def _sentence(service: ServiceModel, demand: ReplicaDemand | None, replicas: int, gpus: float, headroom: float) -> str:
    has = f"{service.name} has {plural(replicas, 'replica')} on {gpus:.3g} GPUs"
    if demand is None:
        return f"{has}, and was not sized yet"
    last = f"{service.load.at(0.0):.3g} requests/s of the last step, times {headroom:g},"
    within = f"to answer {service.quantile:.3g} of them within {service.latency_s:g} s"
    return f"{has}: {last} need {plural(demand.replicas, 'replica')} {within}"


def phi_in_force(configured: float, written: Mapping[str, float] | None) -> float:
    """Return the phi that was set by a request, unless the configuration has another now than it had then."""
    return written["phi"] if written and written["instead_of"] == configured else configured


class LiveServices:
    """What is counted of the services of one controller, kept from one controller to the next."""

    def __init__(self, controller: FleetController) -> None:
        self._controller, self._fleet = controller, controller.manager.fleet
        self._totals = {service.name: _Total() for service in self._fleet.services}
        self._last_counts: dict[str, Mapping[str, Any]] = {}  # by the front, last
        self._began_s = math.nan
        self.seen = ServingState()

    def look(self, now_s: float, seen: ServingState) -> None:
        """Take note of what was counted until now."""
        self.seen = seen
        if seen.began_s != self._began_s and not math.isnan(seen.began_s):
            self._last_counts, self._began_s = {}, seen.began_s
        for service in self._fleet.services:
            counts, total = seen.counts.get(service.name), self._totals[service.name]
            if counts is not None and not math.isnan(seen.began_s):
                total.add(counts, self._last_counts.get(service.name, {}))
                self._last_counts[service.name] = counts
                if isinstance(service.load, CountedLoad):
                    service.load.count(now_s, total.counts["requests"])

    def set_phi(self, phi: float) -> dict[str, float]:
        """Guarantee *phi* of the time-fair share from now on; returns what to write down."""
        self._controller.manager.set_phi(min(1.0, max(0.0, phi)))
        return {"phi": self._controller.manager.phi, "instead_of": self._fleet.sharing.phi}

    def resume_phi(self, written: Mapping[str, float] | None) -> None:
        """Continue with the phi that was set, unless the configuration has another now than it had then."""
        self._controller.manager.set_phi(phi_in_force(self._fleet.sharing.phi, written))

    def differs(self, seen: ServingState) -> bool:
        """Whether something else is served now, or elsewhere, than at the last look."""
        was = self.seen
        return (was.front, was.ready, was.trouble) != (seen.front, seen.ready, seen.trouble)

    def state(self) -> dict[str, Any]:
        """Return what another controller goes on from."""
        counts = {
            service.name: {
                "counts": total.counts, "buckets": total.buckets, "latency_s": total.latency_s, "rps": load.rps,
                "since": load.since, "told": self._last_counts.get(service.name, {}),
            }
            for service in self._fleet.services
            if isinstance(load := service.load, CountedLoad)
            for total in (self._totals[service.name],)
        }  # fmt: skip
        began_s = None if math.isnan(self._began_s) else self._began_s
        return {"gpus": self._controller.manager.gpus.state(self._fleet.services), "began_s": began_s, "counts": counts}

    def resume(self, state: Mapping[str, Any], there: Mapping[int, tuple[int, float]]) -> None:
        """Continue from a ``state``, with the shared GPUs that are *there*."""
        self._controller.manager.gpus.resume(state.get("gpus", {}), self._fleet.services, there)
        self._began_s = math.nan if state.get("began_s") is None else float(state["began_s"])
        for service in self._fleet.services:
            row = state.get("counts", {}).get(service.name)
            if row is None:
                continue
            total = _Total(dict(row["counts"]), list(row["buckets"]), float(row["latency_s"]))
            self._totals[service.name], self._last_counts[service.name] = total, row["told"]
            if isinstance(service.load, CountedLoad):
                service.load.rps, since = float(row["rps"]), row.get("since")
                # what came while no controller ran is spread over that time
                service.load.since = None if since is None else (float(since[0]), int(since[1]))

    def snapshot(self) -> tuple[SnapshotService, ...]:
        """Return all services as of the last look."""
        return tuple(self._service(i) for i in range(len(self._fleet.services)))

    def on_nodes(self) -> tuple[Ints, Floats]:
        """Return the shared GPUs of each node, and their declared power beyond idle. Shapes [N]."""
        manager, cluster = self._controller.manager, self._controller.cluster
        power_w = np.zeros(len(cluster))
        for gpu in manager.gpus.gpus.values():
            kind = cluster.classes[cluster.klass[gpu.node]]
            idle_w = kind.idle_w / kind.gpus
            power_w[gpu.node] += sum(w.power_w - idle_w * w.milli / WHOLE_MILLI for w in gpu.weights)
        return manager.shared_gpus(), power_w

    def _service(self, i: int) -> SnapshotService:
        manager, service, seen = self._controller.manager, self._fleet.services[i], self.seen
        own = list(manager.gpus.of_service(i))
        gpus = sorted({r.gpu for r in own})
        total, account = self._totals[service.name], manager.gpus.service_accounts.get(i, Account())
        phis = [phi for g in gpus if (phi := manager.gpus.gpus[g].phi) is not None]
        ready = sum(service.name in names for names in seen.ready.values())
        reserved = sum(r.milli for r in own) / WHOLE_MILLI
        names = tuple(self._controller.cluster.names[manager.gpus.gpus[g].node] for g in gpus)
        url = None if seen.front is None else f"http://{seen.front}/v2/models/{service.name}"
        return SnapshotService(
            name=service.name, tenant=service.tenant, replicas=len(own), ready=ready, gpus=reserved, nodes=names,
            phi=max(phis, default=None), requests_per_s=service.load.at(0.0), requests=total.counts["requests"],
            late=total.counts["late"], unanswered=total.counts["unanswered"], latency_target_s=service.latency_s,
            quantile=service.quantile, p50_s=total.quantile_s(0.5), p99_s=total.quantile_s(0.99),
            energy_j=None if account.energy_uj is None else account.energy_uj / 1e6,
            cost=None if account.cost_n is None else account.cost_n / 1e9,
            sentence=_sentence(service, manager.demand_of(i), len(own), reserved, manager.fleet.sharing.headroom),
            trouble=seen.trouble.get(service.name), url=url,
        )  # fmt: skip
