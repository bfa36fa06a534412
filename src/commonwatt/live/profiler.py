"""The job profiler at work: measures new jobs on nodes set aside, and corrects all from what they tell while they run.

A job that waits is measured when a profiling node is free; while none is, it is placed like any other. What it does
there is part of its work: only what it did since its last snapshot is done again. What is decided here, and why, is in
``control.profiling`` and ``control.prediction``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from commonwatt.control.controller import Controller
from commonwatt.control.engine import JobEnded, JobInterrupted, Outcome, Reading
from commonwatt.control.events import Event, EventKind
from commonwatt.control.prediction import predict
from commonwatt.control.profiling import Probed, judge, next_probe, power_per_gpu_w
from commonwatt.control.scaling import KindScaling
from commonwatt.control.speed import EpochClock
from commonwatt.live.durable import Durable
from commonwatt.live.jobs import TimeFigure
from commonwatt.live.kinds import Kinds
from commonwatt.live.probe_queue import ProbeQueue, Sort
from commonwatt.model.job_profile import Configuration, Measurement, Source, Unprofilable
from commonwatt.model.live import ProfilingSpec
from commonwatt.model.units import MICRO
from commonwatt.store.records import JobRow
from commonwatt.store.ticks import Tick

__all__ = ["VAIN", "Profiler"]

VAIN = "unmeasured"
"""Setting of the store for measurements that gave nothing."""

_OFF = 0.05
"""How far the time of a running job may be off before it is corrected."""

_MOST = 200
"""Jobs corrected at once; the others the next time, so that nobody waits for it."""


@dataclass
class _Card:
    """What is known of a job."""

    id: int
    name: str
    kind: str
    epochs: int
    allowed: list[TimeFigure]
    figures: list[TimeFigure]
    own: dict[Configuration, Measurement] = field(default_factory=dict)
    failed: dict[Configuration, Unprofilable] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)  # nodes the engine would not start it on

    @property
    def configurations(self) -> list[Configuration]:
        """What it may get."""
        return [Configuration(figure.gpu_type, figure.gpus) for figure in self.allowed]


@dataclass
class _Run:
    """A job since it was last started."""

    configuration: Configuration
    nodes: tuple[int, ...]
    starts: int
    clock: EpochClock


@dataclass
class _Probe:
    """A measurement."""

    handle: int
    configuration: Configuration
    began_s: float
    clock: EpochClock
    energy_uj: int | None = 0
    metered_s: float = 0.0
    crashed: bool = False


class Profiler:
    """Measures, predicts and corrects.

    Parameters
    ----------
    written
        Measurements of earlier jobs, as the store has them.
    spec
        How to measure; ``None``: new jobs are not measured, but those that run are still followed.
    vain
        Measurements of active jobs that gave nothing, as they were written to the setting ``VAIN``: by job.
    """

    def __init__(
        self, controller: Controller, durable: Durable, written: Iterable[Mapping[str, Any]],
        spec: ProfilingSpec | None, vain: Mapping[str, Sequence[Sequence[Any]]] | None = None,
    ) -> None:  # fmt: skip
        self._controller, self._durable, self._spec, self._before = controller, durable, spec, vain or {}
        self._kinds = Kinds(written)
        self._cards: dict[int, _Card] = {}  # by handle
        self._runs: dict[int, _Run] = {}
        self._probes: dict[int, _Probe] = {}  # by node
        self._vain: list[Event] = []  # of measurements that gave nothing, to be told
        at = {name: n for n, name in enumerate(controller.cluster.names)}
        controller.set_aside = {at[name] for name in spec.nodes} if spec else set()
        sorts = {self._sort(node) for node in controller.set_aside}
        self._queue = ProbeQueue(sorts, self._left, lambda handle: handle in controller.book.active)
        durable.pardon, durable.metered = self._pardon, self._meter

    # -- jobs

    def figures(self, row: JobRow, allowed: Sequence[TimeFigure]) -> list[TimeFigure]:
        """Return the times of a new job in the configurations it may get."""
        return self._predicted(_card(row, allowed, allowed))

    def enter(self, handle: int, row: JobRow, allowed: Sequence[TimeFigure], figures: Sequence[TimeFigure]) -> None:
        """Take in a job, with what it may get as declared, and its times as they are known now."""
        card = self._cards[handle] = _card(row, allowed, figures)
        card.own = {m.configuration: m for m in self._kinds.of_job(row.id)}
        for gpu_type, gpus, why in self._before.get(str(row.id), ()):
            card.failed[Configuration(gpu_type, gpus)] = Unprofilable(why)
        for figure in figures:
            if figure.gpu_w is not None:  # a job has one figure for each type, its configurations may differ
                self._controller.book.retime(handle, figure.gpu_type, figure.gpus, figure.time_s, figure.gpu_w)
        self._queue.put(handle)

    def resume(self, now_s: float) -> None:
        """Measure jobs anew that were found on nodes set aside."""
        for handle, nodes in self._controller.book.nodes.items():
            if len(nodes) == 1 and nodes[0] in self._controller.set_aside - self._probes.keys():
                self._controller.aside.add(handle)
                self._probes[nodes[0]] = self._begun(handle, self._configuration(handle), now_s)

    def next_s(self) -> float | None:
        """When the next measurement is over at the latest."""
        if self._spec is None or self._controller.dry:
            return None
        return min((probe.began_s + self._spec.limit_s for probe in self._probes.values()), default=None)

    # -- measuring

    def measure(self, tick: Tick, now_s: float) -> bool:
        """End measurements that are over, begin others; whether there is something to decide about."""
        if self._spec is None or self._controller.dry:
            return False
        over = [node for node, probe in self._probes.items() if self._look(probe, node, tick, now_s)]
        for node in over:
            del self._probes[node]
        if over or self._durable.waiting_changes():
            self._controller.absorb()  # what has just ended, or ended before a restart, neither waits nor begins again
        if over:
            book = self._controller.book
            for event in self._vain:
                if event.handle in book.active and event.handle not in book.nodes:
                    self._controller.log.append(event)
            self._vain.clear()
        begun = False
        usable, gpus = self._durable.nodes().usable_gpus, self._controller.cluster.gpus
        held = self._controller.held_on()
        busy = {node for nodes, _ in self._controller.leaving.values() for node in nodes}
        for node in sorted(self._controller.set_aside - self._probes.keys() - self._controller.drained - busy):
            whole = usable[node] >= gpus[node] and not held[node]  # beside others' work a measurement means little
            begun |= bool(whole) and self._begin(node, now_s)
        return bool(over) or begun

    def _begin(self, node: int, now_s: float) -> bool:
        """Begin the next measurement on a free node, if there is one; whether it was tried."""
        controller, sort = self._controller, self._sort(node)

        def may_begin(handle: int) -> bool:
            held = handle in controller.held_back or handle in controller.paused
            taken = handle in controller.book.nodes or handle in controller.leaving
            return not held and not taken and node not in self._cards[handle].refused

        if (handle := self._queue.first(sort, may_begin)) is None:
            return False
        card = self._cards[handle]
        known = self._kinds.scaling(card.kind, card.id).fractions
        there = next_probe(card.configurations, card.own, card.failed, dict([sort]), known)
        assert isinstance(there, Configuration)
        sentence = f"{card.name} is measured with {there.gpus} {there.gpu_type}"
        controller.start_aside(handle, node, there.gpus, now_s, ("profiling", sentence))
        if any(change.handle == handle for change in self._durable.waiting_changes()):
            card.refused.add(node)
        else:
            self._probes[node] = self._begun(handle, there, now_s)
        return True

    def _left(self, handle: int, sort: Sort) -> bool:
        """Whether something is left to be measured of a job on nodes of a sort."""
        card = self._cards[handle]
        return isinstance(next_probe(card.configurations, card.own, card.failed, dict([sort])), Configuration)

    def _sort(self, node: int) -> Sort:
        kind = self._controller.cluster.classes[self._controller.cluster.klass[node]]
        return kind.gpu_type, kind.gpus

    def _look(self, probe: _Probe, node: int, tick: Tick, now_s: float) -> bool:
        """Whether a measurement is over; what it found is taken account of."""
        assert self._spec is not None
        handle, controller, ended = probe.handle, self._controller, None
        limit_s = probe.began_s + self._spec.limit_s
        if handle not in controller.book.active:
            return True
        changes = [change for change in self._durable.waiting_changes() if change.handle == handle]
        if probe.crashed:
            ended = Outcome.FAILED
        elif controller.book.nodes.get(handle) != (node,):
            return True  # it never came here, or is elsewhere by now
        elif changes:
            if isinstance(changes[0], JobInterrupted) and not changes[0].begun:
                self._cards[handle].refused.add(node)  # or it would be sent here again and again, and run nowhere
            if not isinstance(changes[0], JobEnded) or changes[0].outcome is Outcome.FAILED:
                return True  # it was interrupted, and may be measured again, or it has failed for good
            ended = changes[0].outcome
        progress = self._durable.progress(np.array([handle]))
        told_s = now_s if progress.told_s is None or np.isnan(progress.told_s[0]) else float(progress.told_s[0])
        if ended is None:
            probe.clock.observe(told_s, float(progress.done_epochs[0]))
        if ended is None and progress.done_epochs[0] >= self._cards[handle].epochs and now_s < limit_s:
            return False  # it is about to end by itself
        found = judge(
            probe.clock, now_s - probe.began_s, epochs=self._spec.epochs, limit_s=self._spec.limit_s, ended=ended
        )
        if found is None:
            return False
        card, there = self._cards[handle], probe.configuration
        if ended is None:
            controller.stop_aside(handle, now_s, ("measured", _sentence(card.name, there, found)))
        if isinstance(found, Unprofilable):
            if ended is not Outcome.COMPLETED:
                self._gave_nothing(tick, handle, there, found, now_s)
            return True
        idle_w = controller.cluster.classes[controller.cluster.klass[node]].idle_w
        energy_j = None if probe.energy_uj is None else probe.energy_uj / MICRO
        gpu_w = power_per_gpu_w(energy_j, probe.metered_s, idle_w, there.gpus)
        self._learn(tick, card, there, found, gpu_w, now_s)
        self._revise(tick, handle, card)
        return True

    def _gave_nothing(self, tick: Tick, handle: int, there: Configuration, why: Unprofilable, now_s: float) -> None:
        card = self._cards[handle]
        card.failed[there] = why
        tick.settings[VAIN] = {
            str(self._cards[h].id): [[c.gpu_type, c.gpus, str(reason)] for c, reason in self._cards[h].failed.items()]
            for h in self._controller.book.active if self._cards[h].failed
        }  # fmt: skip
        if card.own:
            return
        sentence = f"{card.name} could not be measured with {there.gpus} {there.gpu_type}: {why}"
        self._vain.append(Event(now_s, EventKind.WAITS, handle, reason="unprofilable", sentence=sentence))

    def _begun(self, handle: int, there: Configuration, now_s: float) -> _Probe:
        done = float(self._durable.progress(np.array([handle])).done_epochs[0])
        return _Probe(handle, there, now_s, EpochClock(now_s, done))

    def _pardon(self, handle: int) -> bool:
        """Whether a job that failed is being measured: it may go on as if it had not been."""
        for node, probe in self._probes.items():
            if probe.handle == handle and self._controller.book.nodes.get(handle) == (node,):
                probe.crashed = True
                return True
        return False

    def _meter(self, reading: Reading) -> None:
        probe = self._probes.get(reading.node)
        if probe is None or reading.to_s <= probe.began_s or [h.handle for h in reading.holders] != [probe.handle]:
            return
        probe.metered_s += reading.to_s - reading.from_s
        known = probe.energy_uj is not None and reading.energy_uj is not None
        probe.energy_uj = (probe.energy_uj or 0) + (reading.energy_uj or 0) if known else None

    # -- following

    def follow(self, tick: Tick, seen: Mapping[int, tuple[float, float | None]], now_s: float) -> None:
        """Take note of what running jobs have told, and correct their times."""
        book = self._controller.book
        for handle in [handle for handle in self._runs if handle not in book.nodes]:
            self._leave(tick, handle, self._runs.pop(handle), now_s)
        corrected, started = 0, book.job("starts")
        for handle, (done, told_s) in seen.items():
            if handle in self._controller.aside:
                continue
            run, nodes, starts = self._runs.get(handle), book.nodes[handle], int(started[handle])
            if run is None or run.nodes != nodes or run.starts != starts:
                if run is not None:
                    self._leave(tick, handle, run, now_s)
                clock = EpochClock(now_s, done)
                self._runs[handle] = _Run(self._configuration(handle), nodes, starts, clock)
                continue
            run.clock.observe(now_s if told_s is None else told_s, done)
            if corrected < _MOST:
                corrected += self._correct(tick, handle, run, done, now_s)

    def _correct(self, tick: Tick, handle: int, run: _Run, done: float, now_s: float) -> bool:
        """Correct the times of a running job if they are off; whether they were."""
        card, epoch_s, there = self._cards[handle], run.clock.epoch_s, run.configuration
        if epoch_s is None:
            return False
        for figure in card.figures:
            if (figure.gpu_type, figure.gpus) != (there.gpu_type, there.gpus):
                continue
            if figure.source != Source.MEASURED or abs(epoch_s * card.epochs / figure.time_s - 1.0) > _OFF:
                gpu_w = card.own[there].gpu_w if there in card.own else None
                card.own[there] = Measurement(
                    card.kind, card.id, there.gpu_type, there.gpus, epoch_s, gpu_w, run.clock.epochs, now_s
                )
                self._revise(tick, handle, card)
                tick.change(card.id, expected_end_s=now_s + epoch_s * (card.epochs - done))
                return True
        return False

    def _leave(self, tick: Tick, handle: int, run: _Run, now_s: float) -> None:
        """Keep what was learnt of a job that has left its nodes."""
        if run.clock.epoch_s is not None:
            card = self._cards[handle]
            gpu_w = card.own[run.configuration].gpu_w if run.configuration in card.own else None
            self._learn(tick, card, run.configuration, Probed(run.clock.epoch_s, run.clock.epochs), gpu_w, now_s)
            self._queue.put(handle)

    def _configuration(self, handle: int) -> Configuration:
        book, cluster = self._controller.book, self._controller.cluster
        row = int(book.job("row")[handle])
        gpus = int(book.row("width")[row] * book.row("per_node")[row])
        return Configuration(cluster.classes[int(book.row("klass")[row])].gpu_type, gpus)

    # -- figures

    def _learn(
        self, tick: Tick, card: _Card, there: Configuration, found: Probed, gpu_w: float | None, now_s: float
    ) -> None:
        own = Measurement(
            card.kind, card.id, there.gpu_type, there.gpus, found.epoch_s, gpu_w, found.epochs, now_s
        )  # fmt: skip
        card.own[there] = own
        self._kinds.add(own)
        tick.profiles.append(vars(own).copy())

    def _revise(self, tick: Tick, handle: int, card: _Card) -> None:
        """Work out the times of a job anew."""
        card.figures = self._predicted(card)
        tick.change(card.id, times=[vars(figure) for figure in card.figures])
        for figure in card.figures:
            self._controller.book.retime(handle, figure.gpu_type, figure.gpus, figure.time_s, figure.gpu_w)
        self._queue.put(handle)
        self._controller.decide_anew()

    def _predicted(self, card: _Card) -> list[TimeFigure]:
        kind = self._kinds.scaling(card.kind, card.id) if card.kind else KindScaling([])
        declared_s, limit_s = {}, max(figure.time_s for figure in card.allowed) / card.epochs
        for figure in card.allowed:
            if figure.source == Source.DECLARED:
                declared_s[Configuration(figure.gpu_type, figure.gpus)] = figure.time_s / card.epochs
        found = predict(card.configurations, card.own.values(), kind, declared_s=declared_s, limit_s=limit_s)
        return [
            TimeFigure(f.configuration.gpu_type, f.configuration.gpus, f.epoch_s * card.epochs, f.gpu_w, str(f.source))
            for f in found
        ]


def _card(row: JobRow, allowed: Sequence[TimeFigure], figures: Sequence[TimeFigure]) -> _Card:
    return _Card(row.id, row.name, row.file.kind, row.file.epochs, list(allowed), list(figures))


def _sentence(name: str, there: Configuration, found: Probed | Unprofilable) -> str:
    where = f"with {there.gpus} {there.gpu_type}"
    if isinstance(found, Unprofilable):
        return f"{name} could not be measured {where}: {found}"
    return f"{name} was measured {where}: an epoch takes {found.epoch_s:.4g} s"
