"""The benchmark of Table III, in small: it runs real jobs to their end, and meters what passes."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy")

from benchmarks.live_deviation import deviation, predicted, scaled


@pytest.mark.long
def test_two_jobs_are_predicted_run_and_metered():
    row = deviation("fifo", scale=3000.0, jobs=2)
    assert row["failed"] == 0
    assert row["predicted"] > 0
    assert row["metered"] > 0.5 * row["predicted"]  # how near it comes hangs on the machine


@pytest.mark.long
@pytest.mark.parametrize(("solver", "scale"), [("fifo", 800.0), ("random-greedy", 400.0)])
def test_the_eight_jobs_cost_what_was_predicted(solver, scale):
    """At most 13% less is metered than predicted, the worst deviation in Table III.

    There is no such limit above: a process that starts late costs *scale* times as much. ``benchmarks.live_deviation``
    measures that.
    """
    row = deviation(solver, scale)
    assert row["failed"] == 0
    assert row["off_full"] < 13
    assert row["off_free"] < 13
    assert row["metered"] < 2 * row["predicted"]


def test_costs_are_those_of_the_full_length_whatever_the_scale():
    costs = [predicted(scaled("edf", scale, 8)[0], free=False) for scale in (1.0, 200.0)]
    assert costs[0] == pytest.approx(costs[1], rel=1e-6)
