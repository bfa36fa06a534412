"""Schedules that keep off drained nodes, and what a controller would say of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.control.dry_run import DryRun, awake, equally_good, planned_changes, without_nodes
from commonwatt.control.engine import NodeView, SetPower
from commonwatt.control.events import Event, EventKind, EventLog
from commonwatt.placement import Explainer
from commonwatt.placement._problem import POSTPONED, Schedule
from tests.placement.brute_force import all_schedules, used_gpus
from tests.placement.made import crowded_problem


def problem_with_a_running_job(seed: int):
    """A crowded problem whose first jobs run where a first schedule put them."""
    p = crowded_problem(nodes=3, jobs=4, seed=seed)
    return p, [s for _, s in zip(range(400), all_schedules(p), strict=False)]


@pytest.mark.long
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 40), which=st.integers(0, 10**6), drained=st.sets(st.integers(0, 2)))
def test_nothing_begins_on_drained_nodes_and_the_rest_stays(seed, which, drained):
    p, schedules = problem_with_a_running_job(seed)
    s = schedules[which % len(schedules)]
    kept = without_nodes(p, s, drained)
    assert (used_gpus(p, kept) <= p.node_gpus).all()
    for j in range(len(p.stay)):
        begins = kept.choice[j] not in (POSTPONED, p.stay[j])
        nodes = set(kept.nodes_of(p, j).tolist()) if kept.choice[j] != POSTPONED else set()
        if begins:
            assert nodes.isdisjoint(drained)
        wanted = set(s.nodes_of(p, j).tolist()) if s.choice[j] != POSTPONED else set()
        if wanted.isdisjoint(drained) or s.choice[j] == p.stay[j]:
            assert kept.choice[j] == s.choice[j]
            assert nodes == wanted
    if not drained:
        assert kept is s


@pytest.mark.parametrize("seed", range(5))
def test_advice_names_each_change_once(seed):
    p, schedules = problem_with_a_running_job(seed)
    s = schedules[-1]
    said = list(planned_changes(p, s, np.arange(len(p.stay)), 5.0))
    assert [event.handle for event in said] == np.flatnonzero(s.choice != p.stay).tolist()
    assert all(event.kind.startswith("would-") and event.time_s == 5.0 and event.sentence for event in said)
    assert list(planned_changes(p, Schedule(p.stay.copy(), s.nodes), np.arange(len(p.stay)), 5.0)) == []


KLASS = np.array([0, 0, 1, 1])


def would_start(*nodes: int, gpus: int) -> Event:
    return Event(1.0, EventKind.WOULD_START, 0, nodes, gpus)


@pytest.mark.parametrize(
    ("said", "now", "free", "good"),
    [
        (would_start(0, gpus=2), would_start(0, gpus=2), [2, 2, 2, 2], True),
        (would_start(0, gpus=2), would_start(1, gpus=2), [2, 2, 2, 2], True),
        (would_start(0, gpus=2), would_start(1, gpus=2), [1, 2, 2, 2], False),  # others have it by now
        (would_start(0, gpus=2), would_start(2, gpus=2), [2, 2, 2, 2], False),  # another type
        (would_start(0, gpus=1), would_start(0, gpus=2), [2, 2, 2, 2], False),
        (would_start(0, 2, gpus=4), would_start(3, 1, gpus=4), [2, 2, 2, 2], True),
        (would_start(0, 1, gpus=2), would_start(0, gpus=2), [2, 2, 2, 2], False),
    ],
)
def test_a_place_said_before_is_as_good_as_another(said, now, free, good):
    assert equally_good(said, now, KLASS, np.array(free)) is good


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_what_would_be_done_is_said_once(seed):
    p, schedules = problem_with_a_running_job(seed)
    s, handles = schedules[-1], np.arange(len(p.stay))
    adviser = DryRun(np.zeros(len(p.node_gpus), dtype=np.int64), EventLog())
    adviser.place(p, s, handles, 5.0)
    first = adviser.log.take()
    assert sorted(event.handle for event in first) == sorted(handles.tolist())  # would be placed, or waits
    adviser.place(p, s, handles, 6.0)
    assert adviser.log.take() == []
    adviser.reset()
    adviser.place(p, s, handles, 7.0)
    again = [event for event in first if event.kind != EventKind.WAITS]
    assert [(e.handle, e.kind, e.nodes) for e in adviser.log.take()] == [(e.handle, e.kind, e.nodes) for e in again]


def waiting(seed, **changes):
    """A problem in which nothing runs, a schedule in which all wait, and an adviser that follows reasons."""
    p = replace(crowded_problem(nodes=3, jobs=4, seed=seed), **changes)
    p = replace(p, stay=np.full(len(p), -1), stay_nodes=np.zeros(0, dtype=np.int64))
    return p, Schedule.unchanged(p), DryRun(p.node_class, EventLog(follows_reasons=True))


def test_a_job_that_waits_for_another_reason_now_says_so_and_says_nothing_while_it_is_the_same():
    p, s, said = waiting(1)
    handles = np.arange(len(p))
    none = replace(p, node_gpus=np.zeros_like(p.node_gpus))
    said.waits(Explainer(none, s), handles, 1.0)
    assert {(event.reason, event.again) for event in said.log.take()} == {("nodes-down", False)}
    said.waits(Explainer(none, s), handles, 2.0)
    assert said.log.take() == []
    said.waits(Explainer(p, s), handles, 3.0)
    changed = said.log.take()
    assert [event.handle for event in changed] == handles.tolist()
    assert all(event.again and event.why.reason != "nodes-down" for event in changed)
    said.log.follows_reasons = False
    said.waits(Explainer(none, s), handles, 4.0)
    assert said.log.take() == []


def test_reasons_are_followed_a_few_jobs_at_a_time_and_each_has_its_turn(monkeypatch):
    monkeypatch.setattr("commonwatt.control.dry_run._AT_ONCE", 3)
    p, s, said = waiting(2)
    handles = np.arange(len(p))
    said.waits(Explainer(p, s), handles, 1.0)
    none = replace(p, node_gpus=np.zeros_like(p.node_gpus))
    said.log.take()
    turns = []
    for k in range(4):
        said.waits(Explainer(none, s), handles, 3.0 + k)
        turns.append([event.handle for event in said.log.take()])
    assert all(len(turn) <= 3 for turn in turns)
    assert sorted(handle for turn in turns for handle in turn) == handles.tolist()


def all_on() -> NodeView:
    return NodeView(np.full(4, 2), np.zeros(4), np.full(4, -1))


def test_power_states_are_said_once_each_and_again_when_they_change():
    adviser = DryRun(KLASS, EventLog())

    def say(*commands: tuple[int, str | None]) -> list[tuple[str, tuple[int, ...]]]:
        adviser.power("capacity-plan", [SetPower(*command) for command in commands], all_on(), 1.0)
        return [(event.kind, event.nodes) for event in adviser.log.take()]

    assert say((0, "off"), (2, "off")) == [("would-sleep", (0, 2))]
    assert say((0, "off"), (2, "off")) == []
    assert say((0, "off"), (2, "idle"), (3, None)) == [("would-sleep", (2,)), ("would-wake", (3,))]
    assert say((0, "off"), (3, None)) == [("would-wake", (2,))]
    assert say() == [("would-wake", (0,))]
    assert say() == []


@pytest.fixture
def told_to_sleep():
    """An adviser that has said of node 0 that it would sleep, and what it says then."""
    adviser = DryRun(KLASS, EventLog())

    def say(*states: str | None, busy: tuple[int, ...] = (), **view) -> list[str]:
        seen = replace(
            all_on(), **{name: np.array([value, *getattr(all_on(), name)[1:]]) for name, value in view.items()}
        )
        commands = [SetPower(0, state) for state in states]
        adviser.power("capacity-plan", commands, seen, 1.0, np.isin(np.arange(4), busy))
        return [event.kind for event in adviser.log.take()]

    assert say("off") == ["would-sleep"]
    return say


def test_a_node_that_fell_asleep_as_it_would_have_been_put_to_is_not_woken(told_to_sleep):
    assert told_to_sleep(power_state=0, wait_s=30.0) == []
    assert told_to_sleep(power_state=0, wait_s=30.0) == []
    assert told_to_sleep(wait_s=30.0) == []  # somebody wakes it
    assert told_to_sleep() == []
    assert told_to_sleep("off") == ["would-sleep"]


def test_a_node_that_sleeps_as_it_would_have_been_put_to_may_be_wanted_again(told_to_sleep):
    assert told_to_sleep(power_state=0, wait_s=30.0) == []
    assert told_to_sleep(None, power_state=0, wait_s=30.0) == ["would-wake"]
    assert told_to_sleep(None, power_state=0, wait_s=30.0) == []


def test_a_node_that_slept_for_a_while_and_is_on_as_it_is_wanted(told_to_sleep):
    assert told_to_sleep(power_state=0, wait_s=30.0) == []
    assert told_to_sleep() == ["would-wake"]
    assert told_to_sleep() == []


def test_a_node_that_became_busy_is_not_woken(told_to_sleep):
    assert told_to_sleep(busy=(0,)) == []
    assert told_to_sleep() == []
    assert told_to_sleep("off") == ["would-sleep"]


def test_a_node_that_is_gone_or_drained_is_not_woken(told_to_sleep):
    assert told_to_sleep(usable_gpus=0) == []
    assert told_to_sleep() == []
    assert told_to_sleep("off") == ["would-sleep"]


def test_a_node_that_is_drained_while_it_sleeps_is_not_woken(told_to_sleep):
    assert told_to_sleep(power_state=0, wait_s=30.0) == []
    assert told_to_sleep(usable_gpus=0, power_state=0, wait_s=30.0) == []
    assert told_to_sleep() == []


def test_nodes_told_to_wake_are_seen_awake():
    view = NodeView(np.array([2, 2]), np.array([30.0, 30.0]), np.array([0, 0]))
    assert awake(view, [SetPower(1, None)]).power_state.tolist() == [0, -1]
    assert view.power_state.tolist() == [0, 0]
