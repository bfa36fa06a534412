"""What a schedule would change, for a controller that only reports it; and schedules that keep off drained nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from commonwatt.control.engine import NodeView, SetPower
from commonwatt.control.events import Event, EventKind, EventLog
from commonwatt.model.arrays import Bools, Ints
from commonwatt.model.explanation import PlacementExplanation
from commonwatt.placement import POSTPONED, Explainer, PlacementProblem, Schedule

_AT_ONCE = 50  # waiting jobs that are explained again after a decision
_Gist = tuple[object, ...]

__all__ = ["DryRun", "awake", "equally_good", "planned_changes", "without_nodes"]


@dataclass
class DryRun:
    """Logs why jobs wait, and what a dry run would do: once, and again when that changes.

    Attributes
    ----------
    klass
        Class of each node. Shape [N].
    log
        Where events go.
    explained
        Waiting jobs whose reason was logged.
    """

    klass: Ints
    log: EventLog
    explained: set[int] = field(default_factory=set)
    _gists: dict[int, _Gist] = field(default_factory=dict)  # of the reasons logged last, by handle
    _turns: list[int] = field(default_factory=list)  # jobs that are explained again next
    _jobs: dict[int, Event] = field(default_factory=dict)  # logged last, by handle
    _power: dict[str, dict[int, str | None]] = field(default_factory=dict)  # state each node would be in, by reason

    def reset(self) -> None:
        """Log anew what would be done."""
        self._jobs, self._power = {}, {}

    def waits(self, explainer: Explainer, handles: Ints, now_s: float) -> None:
        """Log why jobs wait, if that was not logged yet; and of some, where it is followed, that it is another now."""
        waiting = np.flatnonzero((explainer.schedule.choice == POSTPONED) & (explainer.problem.stay < 0))
        by_handle: dict[int, int] = {}
        for j, handle in zip(waiting.tolist(), handles[waiting].tolist(), strict=True):
            if handle in self.explained:
                by_handle[handle] = j
                continue
            self.explained.add(handle)
            why = explainer.explain(j)
            self.log.append(Event(now_s, EventKind.WAITS, handle, reason=why.reason, why=why))
            if self.log.follows_reasons:
                self._gists[handle] = _gist(why)
        if not self.log.follows_reasons:
            return
        self._gists = {handle: gist for handle, gist in self._gists.items() if handle in self.explained}
        self._turns = [handle for handle in self._turns if handle in by_handle] or list(by_handle)
        turn, self._turns = self._turns[:_AT_ONCE], self._turns[_AT_ONCE:]
        for handle in turn:
            why = explainer.explain(by_handle[handle])
            if self._gists.get(handle) != (gist := _gist(why)):
                self._gists[handle] = gist
                self.log.append(Event(now_s, EventKind.WAITS, handle, reason=why.reason, why=why, again=True))

    def place(self, problem: PlacementProblem, schedule: Schedule, handles: Ints, now_s: float) -> None:
        """Log what *schedule* would change, and why other jobs wait."""
        at = {int(handle): j for j, handle in enumerate(handles)}
        free = problem.node_gpus.copy()
        for j in np.flatnonzero(problem.stay >= 0).tolist():
            free[problem.nodes_held(j)] -= int(problem.per_node[problem.stay[j]])
        before, self._jobs = self._jobs, {}
        for event in planned_changes(problem, schedule, handles, now_s):
            j, logged = at[event.handle], before.get(event.handle)
            available = free.copy()
            if problem.stay[j] >= 0:
                available[problem.nodes_held(j)] += int(problem.per_node[problem.stay[j]])
            if logged is not None and logged.kind == event.kind and equally_good(logged, event, self.klass, available):
                self._jobs[event.handle] = logged
                continue
            self._jobs[event.handle] = event
            self.log.append(event)
        self.explained -= self._jobs.keys()
        self.waits(Explainer(problem, schedule), handles, now_s)

    def power(
        self, by: str, commands: Sequence[SetPower], view: NodeView, now_s: float, busy: Bools | None = None
    ) -> None:
        """Log which nodes would be put to sleep or woken, by the ``capacity-plan`` or for ``waiting-jobs``.

        A node that would not sleep any more is logged only if it is on and unused: one that is asleep is as the plan
        wanted it, and one that is *busy* (shape [N]) or not usable would not be put to sleep in any case.
        """
        would = {command.node: command.state for command in commands}
        logged = self._power.get(by, {})
        spared = [node for node, state in logged.items() if state is not None and node not in would]
        asleep = {node: logged[node] for node in spared if view.power_state[node] >= 0 and view.usable_gpus[node] > 0}
        self._power[by] = would | asleep
        fresh = {node: state for node, state in would.items() if node not in logged or logged[node] != state}
        on = (view.power_state < 0) & (view.wait_s <= 0) & (view.usable_gpus > 0)
        on_again = [node for node in spared if on[node] and (busy is None or not busy[node])]
        whose = "the capacity plan" if by == "capacity-plan" else "a waiting job"
        for state in sorted({state for state in fresh.values() if state is not None}):
            nodes = tuple(sorted(node for node, to in fresh.items() if to == state))
            sentence = f"in a dry run; else {whose} would put {_nodes(len(nodes))} to sleep ({state})"
            self.log.append(Event(now_s, EventKind.WOULD_SLEEP, -1, nodes, 0, by, sentence))
        if nodes := tuple(sorted([*on_again, *(node for node, to in fresh.items() if to is None)])):
            sentence = f"in a dry run; else {whose} would wake {_nodes(len(nodes))}"
            self.log.append(Event(now_s, EventKind.WOULD_WAKE, -1, nodes, 0, by, sentence))


def _gist(why: PlacementExplanation) -> _Gist:
    """Return what of a reason is news when it changes: not what time alone changes."""
    soon = None if why.starts_within_s is None else round(why.starts_within_s / 60.0)
    late = why.spare_s is not None and why.spare_s < 0
    needs, shares = (why.lacks, why.needs, why.left), (why.received_gpus, why.entitled_gpus)
    return why.reason, why.nodes, why.gpus, soon, late, why.for_oldest, why.unstopped, needs, shares


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def equally_good(earlier: Event, now: Event, klass: Ints, free: Ints) -> bool:
    """Whether the place of the *earlier* event is as good as the one of *now*: nodes of the same classes, with room.

    *klass* is the class of each node, *free* the GPUs no other job has. Shapes [N].
    """
    old, new = list(earlier.nodes), list(now.nodes)
    each = now.gpus // max(1, len(new))
    alike = earlier.gpus == now.gpus and sorted(klass[old].tolist()) == sorted(klass[new].tolist())
    return alike and bool((free[old] >= each).all())


def awake(view: NodeView, commands: Sequence[SetPower]) -> NodeView:
    """Return *view* as if *commands* to wake nodes had been carried out."""
    if not commands:
        return view
    state = view.power_state.copy()
    state[[command.node for command in commands if command.state is None]] = -1
    return replace(view, power_state=state)


def planned_changes(problem: PlacementProblem, schedule: Schedule, handles: Ints, now_s: float) -> Iterator[Event]:
    """Yield what *schedule* would start, move and preempt, each with its reason."""
    explainer = Explainer(problem, schedule)
    for j in np.flatnonzero(schedule.choice != problem.stay):
        row, runs = int(schedule.choice[j]), problem.stay[j] >= 0
        placed = EventKind.WOULD_MOVE if runs else EventKind.WOULD_START
        kind = EventKind.WOULD_PREEMPT if row == POSTPONED else placed
        why = explainer.explain(int(j))
        nodes = tuple(int(n) for n in schedule.nodes_of(problem, int(j)))
        gpus = 0 if row == POSTPONED else problem.gpus_of(row)
        yield Event(now_s, kind, int(handles[j]), nodes, gpus, why.reason, why=why)


def without_nodes(problem: PlacementProblem, schedule: Schedule, drained: Collection[int]) -> Schedule:
    """Return *schedule* without starts on *drained* nodes; jobs that run there may stay.

    A job that would move to a drained node stays where it is, if its place is still free, and is postponed otherwise.
    """
    entering = [
        int(j)
        for j in np.flatnonzero((schedule.choice != problem.stay) & (schedule.choice != POSTPONED))
        if not set(schedule.nodes_of(problem, int(j)).tolist()).isdisjoint(drained)
    ]
    return without_starts(problem, schedule, entering) if entering else schedule


def without_starts(problem: PlacementProblem, schedule: Schedule, jobs: Sequence[int]) -> Schedule:
    """Return *schedule* without the places of *jobs*: each stays if its place is still free, or is postponed."""
    kept = replace(schedule, choice=schedule.choice.copy(), nodes=schedule.nodes.copy())
    kept.choice[list(jobs)] = POSTPONED
    free = problem.node_gpus.copy()
    nodes, gpus = kept.occupancy(problem)
    np.subtract.at(free, nodes, gpus)
    for j in jobs:
        first = int(problem.slot_start[j])
        kept.nodes[first : int(problem.slot_start[j + 1])] = -1
        if problem.stay[j] < 0:
            continue
        stay_nodes, each = problem.nodes_held(j), int(problem.per_node[problem.stay[j]])
        if (free[stay_nodes] >= each).all():
            free[stay_nodes] -= each
            kept.choice[j] = problem.stay[j]
            kept.nodes[first : first + len(stay_nodes)] = stay_nodes
    return kept
