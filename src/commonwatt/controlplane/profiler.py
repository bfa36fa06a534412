"""The job profiler: measures new jobs on reserved nodes, and corrects the times of all jobs while they run.

A waiting job is measured when a profiling node is free; while none is, it is placed like any other. Its work there
counts: only work since its last checkpoint is repeated. ``control.profiling`` decides what to measure, and
``control.scaling`` predicts the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from commonwatt.control.controller import Controller
from commonwatt.control.engine import JobEnded, JobInterrupted, JobProgress, Outcome, Reading
from commonwatt.control.events import Event, EventKind
from commonwatt.control.profiling import EpochTimer, Probed, judge, next_probe, power_per_gpu_w
from commonwatt.control.run_time_estimates import FIRST_REVISION_S, OUTCOMES, Remaining
from commonwatt.control.scaling import KindScaling, predict
from commonwatt.control.scheduling import JobCondition, NodeCondition
from commonwatt.controlplane.intent_log import WriteAheadEngine
from commonwatt.controlplane.jobs import TimeFigure, figure_values
from commonwatt.controlplane.measurements import ProbeQueue, ScalingHistory, Sort
from commonwatt.controlplane.run_times import LearnedRunTimes, features_of
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.explanation import PlacementExplanation, Reason
from commonwatt.model.job_file import Configuration, Measurement, Source, Unprofilable, bounded_s
from commonwatt.model.live import ProfilingSpec
from commonwatt.model.units import MICRO
from commonwatt.store.controller_store import Tick
from commonwatt.store.records import JobRow, JobStatus, packed, unpacked

__all__ = ["FAILED_PROBES", "Profiler"]

FAILED_PROBES = "unmeasured"
"""Setting of the store for measurements of active jobs that gave no result."""

_OFF = 0.05
"""Relative error of the time of a running job above which it is corrected."""

_MOST = 200
"""Jobs corrected in one step; the others follow in the next, so that a step stays short."""

_BY_LIMIT = (Source.TIME_LIMIT, Source.UNKNOWN)

LEAST_LEFT = 1e-3
"""Of the expected run time, at least so much is left of a job in every outcome."""


_Figures = tuple[tuple[TimeFigure, ...], tuple[TimeFigure, ...]]
_NOTHING: Mapping[Any, Any] = MappingProxyType({})


@dataclass(slots=True)
class _Card:
    """The configurations of a job, and its measurements. There is one for each active job: it is kept small."""

    id: int
    name: str
    kind: str
    epochs: int
    _figures: bytes | _Figures  # allowed, and with the best times there are
    own: Mapping[Configuration, Measurement] = field(default_factory=lambda: _NOTHING)
    failed: Mapping[Configuration, Unprofilable] = field(default_factory=lambda: _NOTHING)
    by_history: bool = field(init=False)  # whether all its figures are from ended jobs
    unknown: bool = field(init=False)  # whether nothing is known of its run time
    refused: frozenset[int] = frozenset()  # nodes on which the engine refused to start it
    row: bytes | None = None  # packed, where run times are learnt from those of jobs like it
    began_s: float | None = None  # its run under an earlier controller
    age_s: float = 0.0  # at which its run time was last predicted
    outcomes: Floats | None = None  # equally likely run times, over the expected one; None: it is not predicted

    def __post_init__(self) -> None:
        self.by_history = all(figure.source == Source.HISTORY for figure in self.figures)
        self.unknown = all(figure.source == Source.UNKNOWN or figure.outlived for figure in self.figures)

    @property
    def allowed(self) -> tuple[TimeFigure, ...]:
        """Its configurations, with the times declared."""
        return self._both()[0]

    @property
    def figures(self) -> tuple[TimeFigure, ...]:
        """The same with the best times there are."""
        return self._both()[1]

    def revise(self, figures: Sequence[TimeFigure]) -> None:
        """Take other *figures* as the best there are."""
        self._figures = self.allowed, tuple(figures)
        self.__post_init__()

    def pack(self) -> None:
        """Keep the figures as bytes until they are asked for: most jobs wait."""
        values, others = ([figure_values(figure) for figure in each] for each in self._both())
        self._figures = packed((values, values if others == values else others))

    def _both(self) -> _Figures:
        if isinstance(self._figures, bytes):
            allowed, figures = (tuple(TimeFigure(*one) for one in each) for each in unpacked(self._figures))
            self._figures = allowed, figures
        return self._figures

    @property
    def configurations(self) -> list[Configuration]:
        """Its configurations."""
        return [Configuration(figure.gpu_type, figure.gpus) for figure in self.allowed]


@dataclass
class _Run:
    """A job since it was last started."""

    configuration: Configuration
    nodes: tuple[int, ...]
    starts: int
    timer: EpochTimer
    began_s: float = 0.0
    base: float = 0.0  # epochs it had done


@dataclass
class _Probe:
    """A measurement."""

    handle: int
    configuration: Configuration
    began_s: float
    timer: EpochTimer
    energy_uj: int | None = 0
    metered_s: float = 0.0
    crashed: bool = False
    adopted: bool = False  # an earlier controller began it


class Profiler:
    """Measures, predicts and corrects.

    Parameters
    ----------
    written
        Measurements of earlier jobs, as the store has them.
    spec
        How to measure; ``None``: new jobs are not measured, but the times of running jobs are still corrected.
    failed
        The setting ``FAILED_PROBES``, by job.
    learned
        Predicts run times that nobody declares; ``None``: the time limit is taken.
    """

    def __init__(
        self, controller: Controller, engine: WriteAheadEngine, written: Iterable[Mapping[str, Any]],
        spec: ProfilingSpec | None, failed: Mapping[str, Sequence[Sequence[Any]]] | None = None,
        learned: LearnedRunTimes | None = None,
    ) -> None:  # fmt: skip
        self._controller, self._engine, self._spec, self._before = controller, engine, spec, failed or {}
        self._history, self._learned = ScalingHistory(written), learned
        if learned is not None:
            controller.remaining = self._remaining
        self._cards: dict[int, _Card] = {}  # by handle
        self._runs: dict[int, _Run] = {}
        self._probes: dict[int, _Probe] = {}  # by node
        self._unknown: list[int] = []  # to be predicted, as jobs have ended
        self._ended = False  # whether some have since these were looked up
        self._failures: list[Event] = []  # of measurements without a result, to be logged
        at = {name: n for n, name in enumerate(controller.cluster.names)}
        self._nodes = {at[name] for name in spec.nodes} if spec else set[int]()
        controller.scheduling.set_nodes(NodeCondition.RESERVED, self._nodes)
        sorts = {self._sort(node) for node in self._nodes}
        self._queue = ProbeQueue(sorts, self._left, lambda handle: handle in controller.registry.active)
        engine.may_restart, engine.on_reading = self._may_restart, self._meter

    # -- jobs

    def figures(self, row: JobRow, allowed: Sequence[TimeFigure]) -> list[TimeFigure]:
        """Return the times of a new job in its configurations."""
        return self._predicted(self._card(row, allowed, allowed))

    def register(self, handle: int, row: JobRow, allowed: Sequence[TimeFigure], figures: Sequence[TimeFigure]) -> None:
        """Register a job with its configurations as declared, and the best times there are."""
        card = self._cards[handle] = self._card(row, allowed, figures)
        if earlier := self._history.of_job(row.id):
            card.own = {m.configuration: m for m in earlier}
        card.began_s = row.started_s if row.status is JobStatus.RUNNING else None
        for gpu_type, gpus, why in self._before.get(str(row.id), ()):
            card.failed = {**card.failed, Configuration(gpu_type, gpus): Unprofilable(why)}
        if row.file.workload is not None:  # its pods are not ours, and tell no progress
            none = dict.fromkeys((Configuration(f.gpu_type, f.gpus) for f in figures), Unprofilable.NO_PROGRESS)
            card.failed = {**card.failed, **none}
        for figure in figures:
            if figure.gpu_w is not None:  # a job has one figure for each type; its configurations may differ
                self._controller.registry.retime(handle, figure.gpu_type, figure.gpus, figure.time_s, figure.gpu_w)
        self._queue.put(handle)
        card.pack()

    def told(self, handle: int, why: PlacementExplanation) -> PlacementExplanation:
        """Return why a job runs or waits with what is known of run times, and without what only the default says."""
        runs, card = self._controller.registry.nodes, self._cards.get(handle)
        if why.reason in (Reason.RESERVED, Reason.NEXT) and any(map(self.nothing_known, runs)):
            why = replace(why, starts_within_s=None)
        if card is None:
            return why
        if card.unknown:
            why = replace(why, spare_s=None, in_time=None, cost=None, cheapest_cost=None, restart_s=None)
            return replace(why, unknown=True, similar_jobs=card.figures[0].earlier_jobs)
        if not card.by_history:
            if all(figure.source == Source.TIME_LIMIT for figure in card.figures):  # it may end at any time before
                return replace(why, expected_s=None, likely_s=(), in_time=None, by_limit=True)
            return why
        here = self._configuration(handle) if handle in runs else None
        figure = next((f for f in card.figures if Configuration(f.gpu_type, f.gpus) == here), card.figures[0])
        why = replace(why, similar_jobs=figure.earlier_jobs)
        if figure.likely_s is None or handle in self._runs or self._engine.jobs[handle].kept_epochs > 0:
            return why  # it has done something: placement says how much is left
        expected_s = figure.time_s if why.expected_s is None else why.expected_s
        return replace(why, expected_s=expected_s, likely_s=tuple(figure.likely_s))

    def nothing_known(self, handle: int) -> bool:
        """Whether nothing is known of the run time of a job but the default by which it is planned."""
        card = self._cards.get(handle)
        return card is not None and card.unknown

    def _card(self, row: JobRow, allowed: Sequence[TimeFigure], figures: Sequence[TimeFigure]) -> _Card:
        learns = self._learned is not None and any(figure.source in _BY_LIMIT for figure in allowed)
        both = tuple(allowed), tuple(figures)
        return _Card(row.id, row.name, row.file.kind, row.file.epochs, both, row=packed(row) if learns else None)

    def resume(self, now_s: float) -> None:
        """Measure jobs anew that an earlier controller started on reserved nodes."""
        for handle, nodes in self._controller.registry.nodes.items():
            if len(nodes) == 1 and nodes[0] in self._nodes - self._probes.keys():
                self._controller.scheduling.mark(handle, JobCondition.PROFILING)
                probe = self._probes[nodes[0]] = self._new_probe(handle, self._configuration(handle), now_s)
                probe.adopted = True

    def next_s(self) -> float | None:
        """When the next measurement ends at the latest."""
        if self._spec is None or self._controller.dry:
            return None
        return min((probe.began_s + self._spec.limit_s for probe in self._probes.values()), default=None)

    # -- measuring

    def measure(self, tick: Tick, now_s: float) -> bool:
        """End measurements that are done, and begin others; returns whether there is anything to decide."""
        if self._spec is None or self._controller.dry:
            return False
        over = [node for node, probe in self._probes.items() if self._look(probe, node, tick, now_s)]
        for node in over:
            del self._probes[node]
        if over or self._engine.waiting_changes():
            self._controller.absorb()  # jobs that have just ended, or ended before a restart, are not measured again
        if over:
            registry = self._controller.registry
            for event in self._failures:
                if event.handle in registry.active and event.handle not in registry.nodes:
                    self._controller.log.append(event)
            self._failures.clear()
        begun = False
        usable, gpus = self._engine.nodes().usable_gpus, self._controller.cluster.gpus
        allocated, scheduling = self._controller.allocated_gpus(), self._controller.scheduling
        busy = {node for allocation in scheduling.terminating.values() for node in allocation.nodes}
        drained = scheduling.nodes(NodeCondition.DRAINED)
        for node in sorted(self._nodes - self._probes.keys() - drained - busy):
            whole = usable[node] >= gpus[node] and not allocated[node]  # beside other jobs a measurement means little
            begun |= bool(whole) and self._begin(node, now_s)
        return bool(over) or begun

    def _begin(self, node: int, now_s: float) -> bool:
        """Begin the next measurement on a free node, if there is one; returns whether it was tried."""
        controller, sort = self._controller, self._sort(node)

        def may_begin(handle: int) -> bool:
            waits = handle not in controller.registry.nodes and controller.scheduling.may_start(handle)
            return waits and node not in self._cards[handle].refused

        if (handle := self._queue.first(sort, may_begin)) is None:
            return False
        card = self._cards[handle]
        scaling = self._history.scaling(card.kind, card.id).fractions
        there = next_probe(card.configurations, card.own, card.failed, dict([sort]), scaling)
        assert isinstance(there, Configuration)
        sentence = f"{card.name} is measured with {there.gpus} {there.gpu_type}"
        controller.start_probe(handle, node, there.gpus, now_s, ("profiling", sentence))
        if any(change.handle == handle for change in self._engine.waiting_changes()):
            card.refused |= {node}
        else:
            self._probes[node] = self._new_probe(handle, there, now_s)
        return True

    def _left(self, handle: int, sort: Sort) -> bool:
        """Whether anything of a job is left to be measured on nodes of a sort."""
        card = self._cards[handle]
        return isinstance(next_probe(card.configurations, card.own, card.failed, dict([sort])), Configuration)

    def _sort(self, node: int) -> Sort:
        kind = self._controller.cluster.classes[self._controller.cluster.klass[node]]
        return kind.gpu_type, kind.gpus

    def _look(self, probe: _Probe, node: int, tick: Tick, now_s: float) -> bool:
        """Whether a measurement is done; its result is then stored."""
        assert self._spec is not None
        handle, controller, ended = probe.handle, self._controller, None
        limit_s = probe.began_s + self._spec.limit_s
        if handle not in controller.registry.active:
            return True
        changes = [change for change in self._engine.waiting_changes() if change.handle == handle]
        if probe.crashed:
            ended = Outcome.FAILED
        elif controller.registry.nodes.get(handle) != (node,):
            return True  # it never came here, or is elsewhere now
        elif changes:
            refused = isinstance(changes[0], JobInterrupted) and not changes[0].begun
            if refused and not probe.adopted:  # one adopted that never began was cut off when its controller ended
                self._cards[handle].refused |= {node}  # else it would be sent here again and again, and run nowhere
            if not isinstance(changes[0], JobEnded) or changes[0].outcome is not Outcome.COMPLETED:
                return True  # it was interrupted and may be measured again, or it has failed or was cancelled
            ended = changes[0].outcome
        progress = self._engine.progress(np.array([handle]))
        at_s = np.nan if progress.reported_s is None else float(progress.reported_s[0])
        if ended is None:
            probe.timer.observe(now_s if np.isnan(at_s) else at_s, float(progress.done_epochs[0]))
        if ended is None and progress.done_epochs[0] >= self._cards[handle].epochs and now_s < limit_s:
            return False  # it is about to end by itself
        result = judge(
            probe.timer, now_s - probe.began_s, epochs=self._spec.epochs, limit_s=self._spec.limit_s, ended=ended
        )
        if result is None:
            return False
        card, there = self._cards[handle], probe.configuration
        if ended is None:
            controller.stop_probe(handle, now_s, ("measured", _sentence(card.name, there, result)))
        if isinstance(result, Unprofilable):
            if ended is not Outcome.COMPLETED:
                self._fail(tick, handle, there, result, now_s)
            return True
        idle_w = controller.cluster.classes[controller.cluster.klass[node]].idle_w
        energy_j = None if probe.energy_uj is None else probe.energy_uj / MICRO
        gpu_w = power_per_gpu_w(energy_j, probe.metered_s, idle_w, there.gpus)
        self._add(tick, card, there, result, gpu_w, now_s)
        self._revise(tick, handle, card)
        return True

    def _fail(self, tick: Tick, handle: int, there: Configuration, why: Unprofilable, now_s: float) -> None:
        card = self._cards[handle]
        card.failed = {**card.failed, there: why}
        tick.settings[FAILED_PROBES] = {
            str(self._cards[h].id): [[c.gpu_type, c.gpus, str(reason)] for c, reason in self._cards[h].failed.items()]
            for h in self._controller.registry.active if self._cards[h].failed
        }  # fmt: skip
        if card.own:
            return
        sentence = f"{card.name} could not be measured with {there.gpus} {there.gpu_type}: {why}"
        self._failures.append(Event(now_s, EventKind.WAITS, handle, reason="unprofilable", text=sentence))

    def _new_probe(self, handle: int, there: Configuration, now_s: float) -> _Probe:
        done = float(self._engine.progress(np.array([handle])).done_epochs[0])
        return _Probe(handle, there, now_s, EpochTimer(now_s, done))

    def _may_restart(self, handle: int) -> bool:
        """Whether a job that failed is being measured: it is then started again as if it had not been."""
        for node, probe in self._probes.items():
            if probe.handle == handle and self._controller.registry.nodes.get(handle) == (node,):
                probe.crashed = True
                return True
        return False

    def _meter(self, reading: Reading) -> None:
        probe = self._probes.get(reading.node)
        if probe is None or reading.to_s <= probe.began_s or [h.handle for h in reading.holders] != [probe.handle]:
            return
        probe.metered_s += reading.to_s - reading.from_s
        metered = probe.energy_uj is not None and reading.energy_uj is not None
        probe.energy_uj = (probe.energy_uj or 0) + (reading.energy_uj or 0) if metered else None

    # -- tracking

    def track(self, tick: Tick, seen: Mapping[int, tuple[float, float | None]], now_s: float) -> None:
        """Take in the progress running jobs have reported, and correct their times."""
        registry = self._controller.registry
        self._predict_unknown(tick, now_s)
        for handle in [handle for handle in self._runs if handle not in registry.nodes]:
            self._leave(tick, handle, self._runs.pop(handle), now_s)
            self._ended |= handle not in registry.active
        profiling = self._controller.scheduling.jobs(JobCondition.PROFILING)
        corrected, started = 0, registry.job("starts")
        for handle, (done, reported_s) in seen.items():
            if handle in profiling:
                continue
            run, nodes, starts = self._runs.get(handle), registry.nodes[handle], int(started[handle])
            if run is None or run.nodes != nodes or run.starts != starts:
                if run is not None:
                    self._leave(tick, handle, run, now_s)
                timer = EpochTimer(now_s, done)
                card = self._cards[handle]
                began_s, card.began_s = now_s if run or card.began_s is None else card.began_s, None
                self._runs[handle] = _Run(self._configuration(handle), nodes, starts, timer, began_s, done)
                continue
            run.timer.observe(now_s if reported_s is None else reported_s, done)
            self._revise_by_age(tick, handle, run, done, now_s)
            if corrected < _MOST:
                corrected += self._correct(tick, handle, run, done, now_s)

    def _predict_unknown(self, tick: Tick, now_s: float) -> None:
        """Predict jobs of which nothing was known, a few at a time, once others have ended and the store has that."""
        if self._learned is None:
            return
        if self._ended:
            self._ended = False
            self._learned.refresh()
            self._unknown = sorted(filter(self.nothing_known, self._controller.registry.active), reverse=True)
        for _ in range(min(_MOST, len(self._unknown))):
            handle = self._unknown.pop()
            card, run = self._cards[handle], self._runs.get(handle)
            card.age_s = 0.0 if run is None else now_s - run.began_s
            if handle not in self._controller.registry.active or self._still_unknown(card):
                continue
            self._revise(tick, handle, card)
            if run is not None and (figure := self._by_history(handle)) is not None:
                tick.change(card.id, expected_end_s=_end_of(run, figure))

    def _still_unknown(self, card: _Card) -> bool:
        return all(figure.source == Source.UNKNOWN for figure in self._predicted(card))

    def _correct(self, tick: Tick, handle: int, run: _Run, done: float, now_s: float) -> bool:
        """Correct the times of a running job if they are off; returns whether they were."""
        card, epoch_s, there = self._cards[handle], run.timer.epoch_s, run.configuration
        if epoch_s is None:
            return False
        for figure in card.figures:
            if (figure.gpu_type, figure.gpus) != (there.gpu_type, there.gpus):
                continue
            if figure.source != Source.MEASURED or abs(epoch_s * card.epochs / figure.time_s - 1.0) > _OFF:
                gpu_w = card.own[there].gpu_w if there in card.own else None
                measured = Measurement(
                    card.kind, card.id, there.gpu_type, there.gpus, epoch_s, gpu_w, run.timer.epochs, now_s
                )
                card.own = {**card.own, there: measured}
                self._revise(tick, handle, card)
                tick.change(card.id, expected_end_s=now_s + epoch_s * (card.epochs - done))
                return True
        return False

    def _by_history(self, handle: int) -> TimeFigure | None:
        """Return the time of a running job where it runs, if that comes from ended jobs and it reports no progress."""
        run, card = self._runs.get(handle), self._cards[handle]
        if run is None:
            return None
        here = run.configuration
        figures = (f for f in card.figures if (f.gpu_type, f.gpus) == (here.gpu_type, here.gpus))
        return next((figure for figure in figures if figure.source == Source.HISTORY), None)

    def _revise_by_age(self, tick: Tick, handle: int, run: _Run, done: float, now_s: float) -> None:
        """Predict a job anew that runs longer than expected, or twice as long as at the last prediction."""
        figure, card = self._by_history(handle), self._cards[handle]
        age_s = now_s - run.began_s
        if figure is None or done > run.base or age_s < min(max(2.0 * card.age_s, FIRST_REVISION_S), figure.time_s):
            return
        assert self._learned is not None
        self._learned.refresh()
        card.age_s = age_s
        self._revise(tick, handle, card)
        if (later := self._by_history(handle)) is not None:
            tick.change(card.id, expected_end_s=_end_of(run, later))

    def _remaining(self, handles: Ints, now_s: float, progress: JobProgress) -> Remaining | None:
        """Return what is left of jobs; of those that report nothing, their expected time without what they have run.

        What comes from ended jobs alone is not certain: solvers see the outcomes too.
        """
        ages = {}
        outcomes = np.ones((len(handles), OUTCOMES))
        for at, handle in enumerate(handles.tolist()):
            run = self._runs.get(handle)
            if run is None or handle not in self._controller.registry.nodes or progress.done_epochs[at] > run.base:
                continue
            if (figure := self._by_history(handle)) is not None:
                ages[at] = min(1.0 - 1.0 / max(figure.time_s, 2.0), max(0.0, now_s - run.began_s) / figure.time_s)
        for at, handle in enumerate(handles.tolist()):
            if (likely := self._outcomes(handle)) is not None:
                left = np.maximum(likely - ages.get(at, 0.0), LEAST_LEFT)
                outcomes[at] = left / left.mean()
        certain = bool((outcomes == 1.0).all())
        if not ages and certain:
            return None
        registry = self._controller.registry
        epochs = registry.job("epochs")[handles]
        left_kept, left_now = 1.0 - progress.kept_epochs / epochs, 1.0 - progress.done_epochs / epochs
        for at, part in ages.items():
            left_now[at] = max(left_now[at] - part, 1e-9)
        limit_s = registry.job("limit_s")[handles]
        finite = np.isfinite(limit_s)
        limit_s[finite] *= np.maximum(left_now[finite], np.finfo(float).tiny)
        return Remaining(
            left_now, left_kept, limit_s, None if certain else outcomes, attained_s=None if ages else 1.0 - left_now
        )

    def _outcomes(self, handle: int) -> Floats | None:
        """Return the equally likely run times of a job over the expected one, if all is from ended jobs."""
        card = self._cards.get(handle)
        if card is None or not card.by_history:
            return None
        if card.outcomes is None:  # predicted when it was submitted
            self._predicted(card)
        return card.outcomes

    def _leave(self, tick: Tick, handle: int, run: _Run, now_s: float) -> None:
        """Store the measurement of a job that has left its nodes."""
        self._cards[handle].age_s = 0.0
        if run.timer.epoch_s is not None:
            card = self._cards[handle]
            gpu_w = card.own[run.configuration].gpu_w if run.configuration in card.own else None
            self._add(tick, card, run.configuration, Probed(run.timer.epoch_s, run.timer.epochs), gpu_w, now_s)
            self._queue.put(handle)

    def _configuration(self, handle: int) -> Configuration:
        registry, cluster = self._controller.registry, self._controller.cluster
        row = int(registry.job("row")[handle])
        gpus = int(registry.row("width")[row] * registry.row("per_node")[row])
        return Configuration(cluster.classes[int(registry.row("klass")[row])].gpu_type, gpus)

    # -- figures

    def _add(
        self, tick: Tick, card: _Card, there: Configuration, result: Probed, gpu_w: float | None, now_s: float
    ) -> None:
        own = Measurement(
            card.kind, card.id, there.gpu_type, there.gpus, result.epoch_s, gpu_w, result.epochs, now_s
        )  # fmt: skip
        card.own = {**card.own, there: own}
        self._history.add(own)
        tick.profiles.append(vars(own).copy())

    def _revise(self, tick: Tick, handle: int, card: _Card) -> None:
        """Predict the times of a job anew."""
        card.revise(self._predicted(card))
        tick.change(card.id, times=[figure.document() for figure in card.figures])
        for figure in card.figures:
            self._controller.registry.retime(handle, figure.gpu_type, figure.gpus, figure.time_s, figure.gpu_w)
        self._queue.put(handle)
        self._controller.decide_anew()

    def _predicted(self, card: _Card) -> list[TimeFigure]:
        kind = self._history.scaling(card.kind, card.id) if card.kind else KindScaling([])
        declared_s, limit_s = {}, max(figure.time_s for figure in card.allowed) / card.epochs
        for figure in card.allowed:
            if figure.source == Source.DECLARED:
                declared_s[Configuration(figure.gpu_type, figure.gpus)] = figure.time_s / card.epochs
        figures = predict(card.configurations, card.own.values(), kind, declared_s=declared_s, limit_s=limit_s)
        there = {(figure.gpu_type, figure.gpus): figure for figure in card.allowed}
        predicted = []
        for f in figures:
            gpu_type, gpus = f.configuration.gpu_type, f.configuration.gpus
            source = f.source.value if f.source is not Source.TIME_LIMIT else there[gpu_type, gpus].source
            figure = TimeFigure(gpu_type, gpus, f.epoch_s * card.epochs, f.gpu_w, source)
            same = figure == there.get((gpu_type, gpus))
            predicted.append(self._or_history(card, there[gpu_type, gpus] if same else figure))  # one for both
        return predicted

    def _or_history(self, card: _Card, figure: TimeFigure) -> TimeFigure:
        """Return *figure*, or in place of a time limit what ended jobs tell."""
        if self._learned is None or card.row is None or figure.source not in _BY_LIMIT:
            return figure
        estimate = self._learned.expected(features_of(unpacked(card.row), figure.gpus), card.age_s)
        if estimate is None:
            return figure
        card.outcomes = np.array(estimate.outcomes_s) / estimate.time_s
        return replace(
            figure, time_s=bounded_s(estimate.time_s), source=str(Source.HISTORY), earlier_jobs=estimate.jobs,
            alike=estimate.alike, likely_s=estimate.likely_s, outlived=estimate.outlived,
        )  # fmt: skip


def _end_of(run: _Run, figure: TimeFigure) -> float | None:
    return None if figure.outlived else run.began_s + figure.time_s


def _sentence(name: str, there: Configuration, result: Probed | Unprofilable) -> str:
    where = f"with {there.gpus} {there.gpu_type}"
    if isinstance(result, Unprofilable):
        return f"{name} could not be measured {where}: {result}"
    return f"{name} was measured {where}: an epoch takes {result.epoch_s:.4g} s"
