"""What a controller leaves out: jobs that a changed configuration has no place for, and drained nodes.

A dry run leaves such jobs alone, else they have failed. Nodes are drained by operators, and by faults of GPUs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from commonwatt.control.controller import Controller
from commonwatt.control.engine import JobEnded, JobInterrupted, LiveEngine, Outcome, Stop
from commonwatt.control.events import EventKind, Requester, cancelled_by, completed, report_of
from commonwatt.control.scheduling import JobCondition, NodeCondition, Scheduling
from commonwatt.controlplane.health import (
    FAULTS,
    FaultKind,
    FaultResponse,
    GpuFault,
    Handled,
    HealthNow,
    HealthPoller,
    plan,
    sentence_of,
)
from commonwatt.controlplane.intent_log import WriteAheadEngine
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.model.units import plural
from commonwatt.store.controller_store import ControllerStore, Tick
from commonwatt.store.records import EventRow, JobRow, JobStatus

__all__ = ["NodeDrains", "Unschedulable", "fail", "stop_runs"]

log = logging.getLogger("commonwatt.reconciler")

_AGAIN_S = 60.0  # after the engine has refused to drain
_OFF: dict[str, Any] = {
    "nodes": [],
    "gpu_type": None,
    "gpus_per_node": 0,
    "expected_start_s": None,
    "expected_end_s": None,
}


@dataclass
class Unschedulable:
    """Jobs that cannot run here, or not as they do.

    Attributes
    ----------
    scheduling
        Of the controller: has the jobs that it registered, and that run in a way it would not let them.
    unregistered
        The other jobs by id, each with the reason: the controller has no configuration for them.
    """

    store: ControllerStore
    engine: WriteAheadEngine
    scheduling: Scheduling
    now_s: Callable[[], float]
    unregistered: dict[int, tuple[JobRow, str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.unregistered or self.scheduling.jobs(JobCondition.UNSCHEDULABLE))

    def add(self, row: JobRow, error: Exception, attempts: int) -> None:
        """Add a job that cannot be registered, and that the engine has started so often."""
        row = replace(row, attempts=max(row.attempts, attempts))
        self.unregistered[row.id] = row, f"{row.name} cannot run here: {error}"
        self.engine.unregistered[row.id] = None

    def settle(self, tick: Tick, *, dry: bool) -> None:
        """Write down how jobs ended that have; of the others, that they failed, or (in a *dry* run) why they wait."""
        self.take_ends(tick)
        for job_id, (row, sentence) in list(self.unregistered.items()):
            if dry:
                sentence = f"{sentence}; a dry run leaves it alone"
                tick.change(job_id, reason="never-fits", sentence=sentence)
            else:
                self._end(row, JobStatus.FAILED, self.now_s(), "never-fits", sentence, tick)

    def take_ends(self, tick: Tick) -> None:
        """Write down how jobs ended or were interrupted, as the engine has reported."""
        for job_id, (row, _) in list(self.unregistered.items()):
            change, before = self.engine.unregistered[job_id], row.attempts <= row.settled
            if isinstance(change, JobInterrupted) and not before:
                self._wait(row, change, tick)
            if not isinstance(change, JobEnded) or (change.outcome is not Outcome.COMPLETED and before):
                continue  # it still runs, or its end was processed before
            if change.outcome is Outcome.COMPLETED:
                tick.change(job_id, done_epochs=float(row.file.epochs), kept_epochs=float(row.file.epochs))
                self._end(row, JobStatus.COMPLETED, change.at_s, "completed", completed(row.name, change), tick)
            elif change.outcome is Outcome.CANCELLED:
                sentence = f"{row.name}: {change.cause}"
                self._end(row, JobStatus.CANCELLED, change.at_s, change.reason, sentence, tick)
            else:
                sentence = f"{row.name} failed: {change.cause or 'its command ended with an error'}"
                self._end(row, JobStatus.FAILED, change.at_s, change.reason or "failed", sentence, tick)

    def cancel(self, job_id: int, requester: Requester | None, tick: Tick) -> None:
        """Stop a job; one that is not registered has then been cancelled."""
        self.take_ends(tick)
        if job_id not in self.unregistered and self.engine.handle_of(job_id) is None:
            return  # it has ended by itself
        stop_runs(self.engine.inner, [job_id])
        if job_id in self.unregistered:
            row, _ = self.unregistered[job_id]
            self._end(row, JobStatus.CANCELLED, self.now_s(), *cancelled_by(requester), tick, requester)

    def _wait(self, row: JobRow, change: JobInterrupted, tick: Tick) -> None:
        """Write down that a job does not run any more, and waits."""
        event = report_of(change, row.name, (), len(row.nodes) * row.gpus_per_node)
        waits: dict[str, Any] = {"status": JobStatus.WAITING, "settled": row.attempts}
        tick.change(row.id, **waits, reason=event.reason, sentence=event.sentence, **_OFF)
        tick.events.append(
            EventRow(
                0, float(change.at_s), event.kind, row.id, row.nodes, event.gpus, event.reason, event.sentence,
                event.lost_s,
            )
        )  # fmt: skip
        self.unregistered[row.id] = replace(row, **waits, nodes=()), self.unregistered[row.id][1]

    def _end(
        self, row: JobRow, status: JobStatus, at_s: float, reason: str, sentence: str, tick: Tick,
        requester: Requester | None = None,
    ) -> None:  # fmt: skip
        del self.unregistered[row.id], self.engine.unregistered[row.id]
        fail(row, float(at_s), reason, sentence, tick, status=status, requester=requester)
        if (segment := self.store.segments().get(row.id)) is not None:  # it will not run again
            tick.charge(("job", row.id), segment)
            tick.segments[row.id] = None


def fail(
    row: JobRow, at_s: float, reason: str, sentence: str, tick: Tick, *, status: JobStatus = JobStatus.FAILED,
    requester: Requester | None = None,
) -> None:  # fmt: skip
    """Write down that a job has failed, or has ended in another *status*."""
    gpus = len(row.nodes) * row.gpus_per_node
    tick.change(row.id, status=status, ended_s=at_s, reason=reason[:128], sentence=sentence, **_OFF)
    nodes = tuple(row.nodes)
    tick.events.append(EventRow(0, at_s, status, row.id, nodes, gpus, reason[:128], sentence, requester=requester))


def stop_runs(engine: LiveEngine, job_ids: Sequence[int]) -> None:
    """Stop the runs of jobs; a run that cannot be stopped keeps its GPUs, and nothing else waits for it."""
    if engine.capabilities.deferred_stop:
        engine.request_stop(job_ids)
    for job_id in job_ids:
        try:
            engine.apply([Stop(job_id)])
        except EngineDownError:
            raise
        except EngineError as error:
            extra = {"job": job_id, "cause": str(error)}
            log.warning("a job that has ended, or has no place, cannot be stopped", extra=extra)


class NodeDrains:
    """Drained nodes of a controller: set by operators, or by faults of GPUs."""

    def __init__(
        self, controller: Controller, engine: WriteAheadEngine, now_s: Callable[[], float], poller: HealthPoller | None
    ) -> None:
        self.names: tuple[str, ...] = ()
        self._names: frozenset[str] = frozenset()
        self.reasons: dict[str, tuple[str, str]] = {}  # of nodes that faults drained: reason, sentence
        self._handled: Handled = {}
        self._controller, self._engine, self._now_s, self._poller = controller, engine, now_s, poller
        self._at = {name: n for n, name in enumerate(controller.cluster.names)}
        self._in_engine: set[int] | None = None
        self._again_s = math.inf  # when the engine is asked again to drain what it refused to

    @property
    def state(self) -> tuple[tuple[str, ...], dict[str, tuple[str, str]]]:
        """What is drained, and why: it changes whenever one of them does."""
        return self.names, self.reasons.copy()

    @property
    def health(self) -> HealthNow | None:
        """Whether GPU health is known; ``None`` if it is not watched."""
        if (poller := self._poller) is None:
            return None
        open_ = sum(
            response != FaultResponse.DRAINED or place[0] in self._names
            for place, (_, response) in self._handled.items()
        )
        return HealthNow(poller.answers, poller.seen_nodes, len(self.reasons), open_)

    def resume(self, names: Sequence[str], faults: Mapping[str, Any] | None, tick: Tick) -> None:
        """Go on from what the store has."""
        kept = faults or {}
        self._handled = {
            (node, gpu, FaultKind(kind)): (value, response)
            for node, gpu, kind, value, response in kept.get("seen", ()) if node in self._at
        }  # fmt: skip
        self.reasons = {node: (reason, said) for node, (reason, said) in kept.get("drained", {}).items()}
        self.set(names, tick)

    def set(self, names: Sequence[str], tick: Tick) -> None:
        """Let exactly these nodes be drained, as far as the cluster has them."""
        self._names = frozenset(name for name in names if name in self._at)
        self.names = tuple(sorted(self._names))
        tick.settings["drained"] = list(self.names)
        if gone := self.reasons.keys() - self._names:
            self.reasons = {node: why for node, why in self.reasons.items() if node not in gone}
            self._keep(tick)
        drained = {self._at[name] for name in self.names}
        self._controller.scheduling.set_nodes(NodeCondition.DRAINED, drained)
        self._engine.cancel_deferred(drained, "its place was still in use when its node was drained")
        self._controller.decide_anew()

    def why(self, name: str) -> tuple[str, str]:
        """Return reason and sentence of a node's drain; the sentence is empty where an operator asked for it."""
        return self.reasons.get(name, ("operator", "")) if name in self._names else ("", "")

    def look(self, tick: Tick, *, dry: bool) -> None:
        """Deal with the faults that were found since the last call; if *dry*, only say what would be done."""
        poller = self._poller
        if poller is None or (judged := poller.take()) is None:
            return
        nodes, by_faults = poller.hosts.nodes, set(self.reasons)
        limit = max(1, math.floor(poller.rule.at_most * len(self._at) + 1e-9))
        all_drained = {host for host, parts in nodes.items() if self._names.issuperset(parts)}

        def room(host: str, others: Collection[str]) -> bool:
            more = {part for other in (*others, host) for part in nodes[other]}
            return len(by_faults | more) <= limit or not (by_faults or others)

        made = plan(judged, self._handled, all_drained, room, dry=dry)
        if made.handled == self._handled:
            return
        self._handled = made.handled
        for host, response, faults in made.new:
            self._say(tick, nodes[host], response, faults, drains=host in made.drained, limit=limit)
        if made.drained:
            self.set([*self.names, *(part for host in made.drained for part in nodes[host])], tick)
        self._keep(tick)

    def _say(
        self,
        tick: Tick,
        nodes: tuple[str, ...],
        response: FaultResponse,
        faults: Sequence[GpuFault],
        *,
        drains: bool,
        limit: int,
    ) -> None:
        """Log the response to *faults*, and why nodes are drained."""
        reason, what = str(faults[0].kind), sentence_of(faults)
        if drains:
            self.reasons |= {node: (reason, what) for node in nodes if node not in self._names}
            kind, text = EventKind.DRAINED, f"drained: {what}"
        elif response is FaultResponse.WOULD_DRAIN:
            kind, text = EventKind.WOULD_DRAIN, f"it would be drained, but this is a dry run: {what}"
        elif response is FaultResponse.DRAINED:
            kind, text = EventKind.GPU_FAULT, f"it is drained already: {what}"
        else:
            kind = EventKind.GPU_FAULT
            text = f"it is not drained, as faults may drain at most {plural(limit, 'node')}: {what}"
        log.warning("a GPU has a fault", extra={"node": ", ".join(nodes), "cause": what, "event": str(kind)})
        tick.events.append(EventRow(0, self._now_s(), kind, None, nodes, 0, reason, text))

    def _keep(self, tick: Tick) -> None:
        seen = [[node, gpu, str(kind), *current] for (node, gpu, kind), current in sorted(self._handled.items())]
        drained = {node: list(why) for node, why in self.reasons.items()}
        tick.settings[FAULTS] = {"seen": seen, "drained": drained}

    def tell_engine(self, tick: Tick) -> None:
        """Drain nodes in an engine with a scheduler of its own, too; if it refuses, that is logged."""
        drained, now_s = self._controller.scheduling.nodes(NodeCondition.DRAINED), self._now_s()
        same = drained == self._in_engine
        if (same and now_s < self._again_s) or not self._engine.capabilities.drain:
            return
        try:
            self._engine.inner.drain(drained)
            self._again_s = math.inf
        except EngineDownError:
            raise
        except EngineError as error:
            self._again_s = now_s + _AGAIN_S
            if not same:
                said = f"the engine may still start other jobs on drained nodes: {error}"
                log.warning("the engine does not drain nodes", extra={"cause": str(error)})
                tick.events.append(EventRow(0, now_s, EventKind.NOT_DRAINED, None, self.names, 0, "refused", said))
        self._in_engine = drained
