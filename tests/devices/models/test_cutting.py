from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.devices.models.base import Flow, choose_cuts, live_values, parts_of

CHAIN = Flow((("x",), ("a",), ("b",), ("c",)), (("a",), ("b",), ("c",), ("y",)), ("x",), ("y",))


@st.composite
def flows(draw):
    """A program in which every node reads what is there, and some of what is there is wanted in the end."""
    known = [f"in{i}" for i in range(draw(st.integers(1, 3)))]
    inputs, reads, writes = tuple(known), [], []
    for n in range(draw(st.integers(1, 12))):
        reads.append(tuple(draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))))
        writes.append(tuple(f"v{n}.{k}" for k in range(draw(st.integers(1, 2)))))
        known += writes[-1]
    outputs = tuple(draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True)))
    return Flow(tuple(reads), tuple(writes), inputs, outputs)


@pytest.mark.slow
@given(flows(), st.sets(st.integers(0, 12)))
def test_every_part_finds_what_it_reads_and_nothing_is_kept_for_nothing(flow, places):
    parts = parts_of(flow, sorted(place for place in places if place < len(flow.reads)))
    assert [node for part in parts for node in part.nodes] == list(range(len(flow.reads)))
    live, held = live_values(flow), set(flow.inputs)
    for part in parts:
        assert held >= set(part.reads)
        made = {name for node in part.nodes for name in flow.writes[node]}
        assert not held & made
        assert made >= set(part.writes)
        held |= set(part.writes)
        assert held >= set(part.frees)
        held -= set(part.frees)
        assert held == set(live[part.nodes.stop])
    assert held == set(flow.outputs)


def test_what_a_chain_hands_on():
    first, second = parts_of(CHAIN, (2,))
    assert (first.reads, first.writes, first.frees) == (("x",), ("b",), ("x",))
    assert (second.reads, second.writes, second.frees) == (("b",), ("y",), ("b",))


def test_a_part_that_hands_nothing_on_joins_its_neighbour():
    flow = Flow((("x",), ("x",), ("x",)), (("dead",), ("a",), ("y",)), ("x",), ("y", "a"))
    assert [part.nodes for part in parts_of(flow, (1, 2))] == [range(2), range(2, 3)]
    flow = Flow((("x",), ("x",), ("x",)), (("a",), ("y",), ("dead",)), ("x",), ("y", "a"))
    assert [part.nodes for part in parts_of(flow, (1, 2))] == [range(1), range(1, 3)]


TIMES = st.lists(st.floats(1e-6, 1e-2), min_size=1, max_size=30)


@pytest.mark.slow
@given(TIMES, st.floats(1e-4, 1e-2))
def test_parts_are_about_as_long_as_asked_where_cuts_are_free(times, segment):
    cuts = choose_cuts(times, [0.0] * (len(times) + 1), range(1, len(times)), segment)
    assert list(cuts) == sorted(set(cuts))
    assert all(0 < cut < len(times) for cut in cuts)
    for first, end in zip((0, *cuts), (*cuts, len(times)), strict=True):
        took = sum(times[first:end])
        assert took <= 1.5 * segment + max(times[first:end])


@pytest.mark.slow
@given(TIMES, st.sets(st.integers(0, 30)))
def test_it_is_cut_only_where_it_may_be(times, allowed):
    cuts = choose_cuts(times, [0.0] * (len(times) + 1), allowed, 1e-5)
    assert set(cuts) <= allowed
    assert set(cuts) == {place for place in allowed if 0 < place < len(times)} or len(cuts) < len(times)


@pytest.mark.parametrize(("live", "cut"), [([9, 9, 9, 1, 9, 9, 9], 3), ([9, 9, 9, 9, 1, 9, 9], 4), ([9] * 7, 4)])
def test_of_places_about_as_good_the_one_with_the_fewest_bytes(live, cut):
    assert choose_cuts([1.0] * 6, live, range(1, 6), 4.0)[:1] == (cut,)


def test_what_is_short_stays_whole():
    assert choose_cuts([1.0, 1.0], [0, 0, 0], [1], 2.0) == ()
    assert choose_cuts([], [0], [], 1.0) == ()
