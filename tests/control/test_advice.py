"""Schedules that keep off drained nodes, and what a controller would say of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.control.advice import advice, without_nodes
from commonwatt.placement.problem import POSTPONED, Schedule
from tests.placement.brute_force import all_schedules, used_gpus
from tests.placement.made import crowded_problem


def problem_with_a_running_job(seed: int):
    """A crowded problem whose first jobs run where a first schedule put them."""
    p = crowded_problem(nodes=3, jobs=4, seed=seed)
    return p, [s for _, s in zip(range(400), all_schedules(p), strict=False)]


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
    said = list(advice(p, s, np.arange(len(p.stay)), 5.0))
    assert [event.handle for event in said] == np.flatnonzero(s.choice != p.stay).tolist()
    assert all(event.kind.startswith("would-") and event.time_s == 5.0 and event.sentence for event in said)
    assert list(advice(p, Schedule(p.stay.copy(), s.nodes), np.arange(len(p.stay)), 5.0)) == []
