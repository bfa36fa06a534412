"""What a schedule would change, for a controller that only says so; and schedules that keep off drained nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from commonwatt.control.engine import NodeView, SetPower
from commonwatt.control.events import Event, EventKind, EventLog
from commonwatt.model.arrays import Bools, Ints
from commonwatt.placement.explain import Explainer
from commonwatt.placement.problem import POSTPONED, Problem, Schedule

__all__ = ["Adviser", "advice", "as_good", "awake", "without_nodes"]


@dataclass
class Adviser:
    """Says why jobs wait, and what a controller would do that does nothing: once, and again when that has changed.

    Attributes
    ----------
    klass
        Class of each node. Shape [N].
    log
        Where it is said.
    told_waiting
        Jobs of which it is known why they wait.
    """

    klass: Ints
    log: EventLog
    told_waiting: set[int] = field(default_factory=set)
    _jobs: dict[int, Event] = field(default_factory=dict)  # by handle
    _power: dict[str, dict[int, str | None]] = field(default_factory=dict)  # states nodes would be in, by who says so

    def forget(self) -> None:
        """Say anew what would be done."""
        self._jobs, self._power = {}, {}

    def waits(self, explainer: Explainer, handles: Ints, now_s: float) -> None:
        """Say of jobs that go on waiting why."""
        waiting = np.flatnonzero((explainer.schedule.choice == POSTPONED) & (explainer.problem.stay < 0))
        for j, handle in zip(waiting.tolist(), handles[waiting].tolist(), strict=True):
            if handle not in self.told_waiting:
                self.told_waiting.add(handle)
                why = explainer.explain(j)
                self.log.append(Event(now_s, EventKind.WAITS, handle, reason=why.reason, sentence=why.sentence))

    def place(self, problem: Problem, schedule: Schedule, handles: Ints, now_s: float) -> None:
        """Say what *schedule* would change, and why other jobs wait."""
        at = {int(handle): j for j, handle in enumerate(handles)}
        free = problem.node_gpus.copy()
        for j in np.flatnonzero(problem.stay >= 0).tolist():
            free[problem.nodes_held(j)] -= int(problem.per_node[problem.stay[j]])
        before, self._jobs = self._jobs, {}
        for event in advice(problem, schedule, handles, now_s):
            j, said = at[event.handle], before.get(event.handle)
            mine = free.copy()
            if problem.stay[j] >= 0:
                mine[problem.nodes_held(j)] += int(problem.per_node[problem.stay[j]])
            if said is not None and said.kind == event.kind and as_good(said, event, self.klass, mine):
                self._jobs[event.handle] = said
                continue
            self._jobs[event.handle] = event
            self.log.append(event)
        self.told_waiting -= self._jobs.keys()
        self.waits(Explainer(problem, schedule), handles, now_s)

    def power(
        self, by: str, commands: Sequence[SetPower], view: NodeView, now_s: float, busy: Bools | None = None
    ) -> None:
        """Say which nodes would be put to sleep or woken, by the ``capacity-plan`` or for ``waiting-jobs``.

        Of a node that would sleep no more it is said only if it is on and left alone. One that sleeps is as it was
        wanted, and one that is *busy* (shape [N]) or not to be had would not be put to sleep in any case.
        """
        would = {command.node: command.state for command in commands}
        said = self._power.get(by, {})
        spared = [node for node, state in said.items() if state is not None and node not in would]
        asleep = {node: said[node] for node in spared if view.power_state[node] >= 0 and view.usable_gpus[node] > 0}
        self._power[by] = would | asleep
        fresh = {node: state for node, state in would.items() if node not in said or said[node] != state}
        on = (view.power_state < 0) & (view.wait_s <= 0) & (view.usable_gpus > 0)
        on_again = [node for node in spared if on[node] and (busy is None or not busy[node])]
        whose = "the capacity plan" if by == "capacity-plan" else "a job that waits"
        for state in sorted({state for state in fresh.values() if state is not None}):
            nodes = tuple(sorted(node for node, to in fresh.items() if to == state))
            sentence = f"in a dry run; else {whose} would put {_nodes(len(nodes))} to sleep ({state})"
            self.log.append(Event(now_s, EventKind.WOULD_SLEEP, -1, nodes, 0, by, sentence))
        if nodes := tuple(sorted([*on_again, *(node for node, to in fresh.items() if to is None)])):
            sentence = f"in a dry run; else {whose} would have {_nodes(len(nodes))} woken"
            self.log.append(Event(now_s, EventKind.WOULD_WAKE, -1, nodes, 0, by, sentence))


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def as_good(said: Event, now: Event, klass: Ints, free: Ints) -> bool:
    """Whether the place *said* is as good as the one of *now*: nodes of the same classes, which still have room.

    *klass* is the class of each node, *free* the GPUs nobody else holds. Shapes [N].
    """
    old, new = list(said.nodes), list(now.nodes)
    each = now.gpus // max(1, len(new))
    alike = said.gpus == now.gpus and sorted(klass[old].tolist()) == sorted(klass[new].tolist())
    return alike and bool((free[old] >= each).all())


def awake(view: NodeView, commands: Sequence[SetPower]) -> NodeView:
    """Return *view* as if nodes had been told to wake."""
    if not commands:
        return view
    state = view.power_state.copy()
    state[[command.node for command in commands if command.state is None]] = -1
    return replace(view, power_state=state)


def advice(problem: Problem, schedule: Schedule, handles: Ints, now_s: float) -> Iterator[Event]:
    """Yield what *schedule* would start, move and preempt, each with its reason."""
    explainer = Explainer(problem, schedule)
    for j in np.flatnonzero(schedule.choice != problem.stay):
        row, runs = int(schedule.choice[j]), problem.stay[j] >= 0
        placed = EventKind.WOULD_MOVE if runs else EventKind.WOULD_START
        kind = EventKind.WOULD_PREEMPT if row == POSTPONED else placed
        why = explainer.explain(int(j))
        nodes = tuple(int(n) for n in schedule.nodes_of(problem, int(j)))
        gpus = 0 if row == POSTPONED else problem.gpus_of(row)
        yield Event(now_s, kind, int(handles[j]), nodes, gpus, why.reason, why.sentence)


def without_nodes(problem: Problem, schedule: Schedule, drained: Collection[int]) -> Schedule:
    """Return *schedule* without what would begin on *drained* nodes; jobs that are there may stay.

    A job that would move to one stays where it is, if its place is still free, and is postponed otherwise.
    """
    entering = [
        int(j)
        for j in np.flatnonzero((schedule.choice != problem.stay) & (schedule.choice != POSTPONED))
        if not set(schedule.nodes_of(problem, int(j)).tolist()).isdisjoint(drained)
    ]
    if not entering:
        return schedule
    kept = Schedule(schedule.choice.copy(), schedule.nodes.copy())
    kept.choice[entering] = POSTPONED
    free = problem.node_gpus.copy()
    nodes, gpus = kept.occupancy(problem)
    np.subtract.at(free, nodes, gpus)
    for j in entering:
        first = int(problem.slot_start[j])
        kept.nodes[first : int(problem.slot_start[j + 1])] = -1
        if problem.stay[j] < 0:
            continue
        held, each = problem.nodes_held(j), int(problem.per_node[problem.stay[j]])
        if (free[held] >= each).all():
            free[held] -= each
            kept.choice[j] = problem.stay[j]
            kept.nodes[first : first + len(held)] = held
    return kept
