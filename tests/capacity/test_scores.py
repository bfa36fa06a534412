"""Scores of GPUs kept on, by plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.capacity import scores
from commonwatt.model.demand import Arrivals, DemandSeries

GPUS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=30)


def test_nothing_known_is_unknown():
    none = np.array([float("nan")])
    assert np.isnan(scores.gpus_served(np.array([1.0]), none))
    assert np.isnan(scores.gpus_served(np.array([1.0]), np.array([0.0])))
    assert np.isnan(scores.shift_for(0.9, np.array([1.0]), none))
    assert np.isnan(scores.slots_served(np.array([1.0]), none))


def test_gpus_kept_on_are_whole_and_limited():
    assert scores.kept_on(np.array([-1.0, 2.0, 2.1, 2.0 + 1e-12, 9.0]), 5).tolist() == [0, 2, 3, 2, 5]


@pytest.mark.slow
@given(GPUS)
def test_what_is_served(pairs):
    on, actual = np.array(pairs, dtype=float).T
    assert scores.slots_served(on, actual) == np.mean([a <= o for o, a in pairs])
    total = sum(a for _, a in pairs)
    if total:
        assert scores.gpus_served(on, actual) == pytest.approx(sum(min(o, a) for o, a in pairs) / total)


@pytest.mark.slow
@given(GPUS, st.lists(st.tuples(st.integers(-2, 32), st.integers(1, 8)), max_size=20))
def test_jobs_served_one_by_one(pairs, jobs):
    """Where jobs begin, those that begin together are added to the rest in their order while GPUs are on."""
    on, actual = np.array(pairs, dtype=float).T
    jobs = sorted(jobs, key=lambda job: job[0])
    outcomes = []
    for slot in range(len(on)):
        beginning = [size for at, size in jobs if at == slot]
        held = actual[slot] - sum(beginning)
        for size in beginning:
            held += size
            outcomes.append(held <= on[slot])
    starts, sizes = (np.array([job[i] for job in jobs], dtype=np.int64) for i in (0, 1))
    met = Arrivals.of(DemandSeries(0.0, 60.0, actual), starts, sizes)
    assert (scores.job_delays_s(on, met.index, met.met_gpus, 60.0, 5) == 0).tolist() == outcomes


def test_energy_saved_is_the_part_that_is_off():
    assert scores.energy_saving(np.array([75.0, 75.0]), 100) == pytest.approx(0.25)  # CUFF, section 3.3
    assert scores.energy_saving(np.array([150.0]), 100) == 0.0


@pytest.mark.slow
@given(GPUS, st.floats(0.05, 1.0))
def test_the_shift_is_the_smallest_that_is_enough(pairs, share):
    on, actual = np.array(pairs, dtype=float).T
    shift = scores.shift_for(share, on, actual)
    assert scores.slots_served(on + shift, actual) >= share - 1e-9
    assert scores.slots_served(on + shift - 1, actual) < share
