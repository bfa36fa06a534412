"""Faults of GPUs drain a node: what DCGM's exporter reports by Prometheus, once for each fault.

A thread asks Prometheus (``HealthPoller``), so no decision waits for it. Two pure functions follow: ``judge`` finds the
faults in its answer, and ``plan`` decides which of them drain a node. ``NodeDrains`` carries that out and records which
faults were handled, since the exporter repeats the last Xid error for as long as it runs. An operator who undrains a
node accepts what the exporter reports of it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from commonwatt.data.prometheus import query_now
from commonwatt.model.errors import CommonwattError
from commonwatt.model.live import ECC, TEMPERATURE, XID, HealthSpec
from commonwatt.model.units import plural

__all__ = [
    "FAULTS", "FaultKind", "FaultResponse", "GpuFault", "Handled", "HealthNow", "HealthPlan", "HealthPoller",
    "HostNames", "Judgement", "Readings", "judge", "plan", "read_health", "sentence_of",
]  # fmt: skip

log = logging.getLogger("commonwatt.health")

FAULTS = "gpu_faults"
"""Setting of the store: faults that were handled, and why nodes are drained."""

_BLANK = 0x7FFFFFF0  # from here on DCGM's values mean that there is none
_MOST_NAMED = 3
_TEXTS = {
    48: "uncorrected ECC error", 63: "row remapping or page retirement", 64: "failed row remapping or page retirement",
    74: "NVLink error", 79: "GPU has fallen off the bus", 92: "many corrected ECC errors", 94: "contained ECC error",
    95: "uncontained ECC error", 119: "GSP timeout", 120: "GSP error", 140: "unrecovered ECC error",
}  # fmt: skip


class FaultKind(StrEnum):
    """What is wrong with a GPU: the reason of a drain."""

    XID = "gpu-xid"
    ECC = "gpu-ecc"
    HOT = "gpu-hot"


Place = tuple[str, str, FaultKind]
"""First node of a host, GPU, and kind of fault."""


@dataclass(frozen=True)
class GpuFault:
    """A fault of a GPU; another value is another fault."""

    gpu: str
    kind: FaultKind
    value: float
    for_s: float = 0.0

    @property
    def sentence(self) -> str:
        """What it is, in words."""
        match self.kind:
            case FaultKind.XID:
                text = _TEXTS.get(int(self.value))
                return f"GPU {self.gpu} reports Xid {self.value:.0f}" + ("" if text is None else f" ({text})")
            case FaultKind.ECC:
                return f"GPU {self.gpu} reports {plural(int(self.value), 'uncorrected ECC error')}"
        return f"GPU {self.gpu} has been at {self.value:g} °C or above for {self.for_s:.0f} s"


# -- the rule: readings in, faults out


Readings = Mapping[tuple[str, str, str], float]
"""What Prometheus has: by first node of a host, GPU and metric."""


@dataclass(frozen=True)
class Judgement:
    """The faults among one set of readings, and what is well. What is in neither was not read, or is not yet known."""

    faults: Mapping[Place, GpuFault] = field(default_factory=dict)
    well: frozenset[Place] = frozenset()
    hot_since: Mapping[tuple[str, str], float] = field(default_factory=dict)
    nodes: int = 0  # that were read


def judge(readings: Readings, rule: HealthSpec, hot_since: Mapping[tuple[str, str], float], at_s: float) -> Judgement:
    """Return the faults that *readings* of the time *at_s* show; *hot_since*: GPUs that were too hot at the last look.

    A GPU whose temperature is missing counts as not too hot from then on.
    """
    faults: dict[Place, GpuFault] = {}
    well: set[Place] = set()
    hot: dict[tuple[str, str], float] = {}
    for (node, gpu, metric), value in readings.items():
        if metric == TEMPERATURE and rule.hot_c is not None:
            place, bad = (node, gpu, FaultKind.HOT), value >= rule.hot_c
            if bad:
                began_s = hot[node, gpu] = hot_since.get((node, gpu), at_s)
                if at_s - began_s < rule.hot_for_s:
                    continue
            fault = GpuFault(gpu, FaultKind.HOT, rule.hot_c, rule.hot_for_s)
        elif metric == ECC and rule.ecc_uncorrected:
            place, bad, fault = (node, gpu, FaultKind.ECC), value >= 1, GpuFault(gpu, FaultKind.ECC, value)
        elif metric == XID and rule.xids:
            place, bad, fault = (node, gpu, FaultKind.XID), value in rule.xids, GpuFault(gpu, FaultKind.XID, value)
        else:
            continue
        if bad:
            faults[place] = fault
        else:
            well.add(place)
    return Judgement(faults, frozenset(well), hot, len({node for node, *_ in readings}))


class FaultResponse(StrEnum):
    """How a fault was handled."""

    DRAINED = "drained"  # its node is, or was already: an operator who undrains it accepts the fault
    REPORTED = "reported"  # too many nodes are drained by faults
    WOULD_DRAIN = "would-drain"  # it is a dry run


Handled = Mapping[Place, tuple[float, str]]
"""Faults that were handled: their value, and how."""


@dataclass(frozen=True)
class HealthPlan:
    """The response to one set of readings."""

    handled: Handled
    new: Sequence[
        tuple[str, FaultResponse, tuple[GpuFault, ...]]
    ] = ()  # by host, in its order; with a drain that is to be
    drained: frozenset[str] = frozenset()  # hosts to be drained


def plan(
    judged: Judgement,
    handled: Handled,
    drained: Collection[str],
    room: Callable[[str, Collection[str]], bool],
    *,
    dry: bool,
) -> HealthPlan:
    """Return the response to faults that are new, and to those that were only reported.

    Parameters
    ----------
    handled
        Faults that were handled. One whose reading is well again is forgotten: the next is a new one.
    drained
        Hosts whose nodes are all drained, by whomever.
    room
        Whether a host may be drained beside others that this plan drains.
    """
    current = {place: kept for place, kept in handled.items() if place not in judged.well}
    fresh: dict[str, list[Place]] = {}
    for place, fault in sorted(judged.faults.items()):
        value, response = current.get(place, (None, None))
        if value != fault.value or response != FaultResponse.DRAINED:
            fresh.setdefault(place[0], []).append(place)
    new: list[tuple[str, FaultResponse, tuple[GpuFault, ...]]] = []
    drains: list[str] = []
    for host, places in fresh.items():
        if host in drained:
            response = FaultResponse.DRAINED
        elif dry:
            response = FaultResponse.WOULD_DRAIN
        elif room(host, drains):
            response = FaultResponse.DRAINED
            drains.append(host)
        else:
            response = FaultResponse.REPORTED
        unreported = [place for place in places if current.get(place) != (judged.faults[place].value, response)]
        current |= {place: (judged.faults[place].value, response) for place in places}
        if unreported:
            new.append((host, response, tuple(judged.faults[place] for place in unreported)))
    return HealthPlan(current, new, frozenset(drains))


# -- what is read


@dataclass(frozen=True)
class HostNames:
    """Hosts by the names that a label may have for them; parts of a host (``host:type``) are drained together."""

    nodes: Mapping[str, tuple[str, ...]]  # by first node
    first: Mapping[str, str]  # by name

    @classmethod
    def of(cls, names: Sequence[str]) -> HostNames:
        """Return the hosts of nodes with these *names*."""
        hosts: dict[str, list[str]] = {}
        for name in names:
            hosts.setdefault(name.rpartition(":")[0] or name, []).append(name)
        first = {host: parts[0] for host, parts in hosts.items()} | {n: ns[0] for ns in hosts.values() for n in ns}
        short: dict[str, set[str]] = {}
        for host, parts in hosts.items():
            short.setdefault(_host_part(host), set()).add(parts[0])
        unique = {name: next(iter(which)) for name, which in short.items() if len(which) == 1}
        return cls({parts[0]: tuple(parts) for parts in hosts.values()}, unique | first)

    def find(self, label: str) -> str | None:
        """Return the first node of the host that *label* names, with or without domain and port."""
        host, _, port = label.rpartition(":")
        plain = host if host and port.isdecimal() else label
        for name in (label, plain, _host_part(plain)):
            if name in self.first:
                return self.first[name]
        return None


def _host_part(name: str) -> str:
    head, _, rest = name.partition(".")
    return name if not head or rest.replace(".", "").isdecimal() else head


@dataclass(frozen=True)
class HealthAnswer:
    """What Prometheus has, and which names it has that are not ours; ``None``: a series without the label."""

    readings: Readings
    others: tuple[str | None, ...]


def read_health(rule: HealthSpec, hosts: HostNames, timeout_s: float = 10.0) -> HealthAnswer:
    """Ask Prometheus; raises ``InputError`` if it does not answer, or answers with something else.

    Where a GPU has several series (one for each MIG instance), the worst counts.
    """
    readings: dict[tuple[str, str, str], float] = {}
    others: dict[str | None, None] = {}
    for metric in rule.metrics:
        for labels, value in query_now(rule.prometheus, metric, timeout_s):
            label = labels.get(rule.node_label)
            node = None if label is None else hosts.find(label)
            if node is None:
                others[label] = None
            elif math.isfinite(value) and 0 <= value < _BLANK:
                place = node, labels.get("gpu") or labels.get("UUID") or "?", metric
                both = (value, readings.get(place, 0.0))
                readings[place] = max(both, key=lambda v: (metric == XID and v in rule.xids, v))
    return HealthAnswer(readings, tuple(others))


class HealthPoller:
    """Asks Prometheus now and again, in a thread of its own, while this controller is the active one."""

    def __init__(
        self, rule: HealthSpec, names: Sequence[str], now_s: Callable[[], float], active: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.rule, self.hosts = rule, HostNames.of(names)
        self.answers: bool | None = None  # whether Prometheus answered at the last look; ``None``: there was none
        self.seen_nodes = 0
        self._now_s, self._active = now_s, active
        self._hot_since: Mapping[tuple[str, str], float] = {}
        self._judged: Judgement | None = None
        self._said_others = False
        self._stopping, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, name="gpu-health", daemon=True)

    @classmethod
    def of(
        cls, rule: HealthSpec | None, names: Sequence[str], now_s: Callable[[], float], active: Callable[[], bool]
    ) -> HealthPoller | None:
        """Return one; ``None`` if there is no *rule*."""
        return None if rule is None else cls(rule, names, now_s, active)

    def start(self) -> None:
        """Start."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; a request that is under way ends by itself."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def take(self) -> Judgement | None:
        """Return what the last look has found; ``None`` if that was taken before, or Prometheus did not answer."""
        with self._lock:
            judged, self._judged = self._judged, None
        return judged

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._active():
                self.look()
            else:
                self._judged, self._hot_since = None, {}
            self._stopping.wait(self.rule.every_s)

    def look(self) -> None:
        """Ask once. Without an answer nothing is found, and what was found before stays."""
        try:
            answer = read_health(self.rule, self.hosts)
        except CommonwattError as error:
            self._missed(str(error))
            return
        except Exception as error:  # whatever it is: health must not end with it
            self._missed(f"{type(error).__name__}: {error}")
            return
        if self.answers is False:
            log.info("GPU health is known again", extra={"nodes": len({node for node, *_ in answer.readings})})
        judged = judge(answer.readings, self.rule, self._hot_since, self._now_s())
        with self._lock:
            self._judged, self._hot_since = judged, judged.hot_since
        self.answers, self.seen_nodes = True, judged.nodes
        if answer.others and not self._said_others:
            self._said_others = True
            names = sorted(f"no label {self.rule.node_label}" if name is None else name for name in answer.others)
            log.warning("metrics of GPUs on other nodes are ignored", extra={"nodes": names[:10], "all": len(names)})

    def _missed(self, cause: str) -> None:
        self._hot_since = {}
        if self.answers is not False:
            log.warning("GPU health is unknown: nodes stay as they are", extra={"cause": cause})
        self.answers = False


@dataclass(frozen=True)
class HealthNow:
    """Whether GPU health is known, for its readers."""

    answers: bool | None
    nodes: int  # with readings
    drained: int  # by faults
    faults: int  # that have not been accepted by an operator, or are only reported


def sentence_of(faults: Iterable[GpuFault]) -> str:
    """Return faults of one host in words."""
    said = [fault.sentence for fault in faults]
    named, rest = said[:_MOST_NAMED], len(said) - _MOST_NAMED
    return "; ".join([*named, f"and {plural(rest, 'more fault')}"] if rest > 0 else named)
