"""Times of a job in all its configurations: one exact case for each sort of evidence, and what always holds."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.control.scaling import KindScaling, predict
from commonwatt.model.job_file import Configuration, Measurement, Source

TYPES = ("T", "V")
ALL = [Configuration(gpu_type, gpus) for gpu_type in TYPES for gpus in (1, 2, 4)]
LIMIT_S = 1000.0


def of(job, gpu_type, row, **more):
    return [Measurement("k", job, gpu_type, gpus, epoch_s, **more) for gpus, epoch_s in row.items()]


def declared(**rows):
    return {Configuration(gpu_type, gpus): s for gpu_type, row in rows.items() for gpus, s in row.items()}


def table(figures):
    return {
        (f.configuration.gpu_type, f.configuration.gpus): (pytest.approx(f.epoch_s), f.source.value) for f in figures
    }


def row(gpu_type, **by_count):
    return {(gpu_type, int(key[1:])): value for key, value in by_count.items()}


def times(own=(), similar=(), **more):
    return table(predict(ALL, own, KindScaling(similar) if similar else None, limit_s=LIMIT_S, **more))


NOTHING = row("T", n1=(1000, "time limit"), n2=(1000, "time limit"), n4=(1000, "time limit"))


def test_of_a_job_of_which_nothing_is_known_its_time_limit():
    limit = (1000, "time limit")
    assert times() == {**NOTHING, **row("V", n1=limit, n2=limit, n4=limit)}


def test_two_counts_of_a_type_give_the_others_of_it():
    found = times(of(1, "V", {1: 10, 2: 6}))
    assert found == {**NOTHING, **row("V", n1=(10, "measured"), n2=(6, "measured"), n4=(4, "predicted"))}


def test_one_count_scales_as_jobs_of_its_kind_do_on_that_type():
    found = times(of(1, "V", {2: 6}), of(2, "V", {1: 100, 2: 60}))
    assert found == {**NOTHING, **row("V", n1=(10, "similar"), n2=(6, "measured"), n4=(4, "similar"))}


def test_else_as_it_does_itself_on_another_type():
    found = times(of(1, "V", {1: 10, 2: 6}) + of(1, "T", {1: 50}))
    assert found == {
        **row("T", n1=(50, "measured"), n2=(30, "predicted"), n4=(20, "predicted")),
        **row("V", n1=(10, "measured"), n2=(6, "measured"), n4=(4, "predicted")),
    }


def test_else_as_its_kind_does_on_another_type():
    found = times(of(1, "T", {1: 50}), of(2, "V", {1: 10, 2: 6}))
    assert {key: value for key, value in found.items() if key[0] == "T"} == row(
        "T", n1=(50, "measured"), n2=(30, "similar"), n4=(20, "similar")
    )


def test_a_type_it_was_never_on_compares_as_it_does_for_its_kind():
    similar = of(2, "V", {1: 100, 2: 60}) + of(2, "T", {1: 300, 2: 240})  # F = 0.8 and 0.4, ratio 3
    found = times(of(1, "V", {1: 10}), similar)
    assert found == {
        **row("T", n1=(30, "similar"), n2=(24, "similar"), n4=(21, "similar")),
        **row("V", n1=(10, "measured"), n2=(6, "similar"), n4=(4, "similar")),
    }
    with_line = times(of(1, "V", {1: 10, 4: 4}), similar)
    assert with_line[("T", 2)] == (24, "similar")
    assert with_line[("V", 2)] == (6, "predicted")


def test_without_scaling_types_compare_count_by_count_and_more_gpus_are_taken_to_gain_nothing():
    found = times(of(1, "V", {2: 10}), of(2, "V", {2: 100}) + of(2, "T", {2: 300}))
    assert found == {
        **row("T", n1=(60, "similar"), n2=(30, "similar"), n4=(30, "similar")),
        **row("V", n1=(20, "predicted"), n2=(10, "measured"), n4=(10, "predicted")),
    }


def test_what_its_owner_declared_is_corrected_by_how_far_off_it_was():
    said = declared(V={1: 5, 2: 4, 4: 3}, T={1: 20, 2: 12, 4: 9})
    assert times(declared_s=said) == {
        **row("T", n1=(20, "declared"), n2=(12, "declared"), n4=(9, "declared")),
        **row("V", n1=(5, "declared"), n2=(4, "declared"), n4=(3, "declared")),
    }
    assert times(of(1, "V", {1: 10}), declared_s=said) == {
        **row("T", n1=(40, "declared"), n2=(24, "declared"), n4=(18, "declared")),
        **row("V", n1=(10, "measured"), n2=(8, "declared"), n4=(6, "declared")),
    }
    assert times(of(1, "V", {1: 10}) + of(1, "T", {1: 10}), declared_s=said)[("T", 2)] == (6, "declared")


def test_measurements_of_its_kind_count_more_than_what_was_declared_once_it_was_measured():
    said, similar = declared(V={1: 5, 2: 5, 4: 5}), of(2, "V", {1: 100, 2: 60})
    assert times(similar=similar, declared_s=said)[("V", 2)] == (5, "declared")
    assert times(of(1, "V", {1: 10}), similar, declared_s=said)[("V", 2)] == (6, "similar")


def test_of_a_job_of_which_only_its_kind_is_known_the_kinds_times():
    found = times(similar=of(2, "V", {1: 10, 2: 6}) + of(3, "V", {1: 20}))
    assert found == {**NOTHING, **row("V", n1=(15, "similar"), n2=(9, "similar"), n4=(6, "similar"))}


def test_power_is_metered_there_or_on_the_type_or_of_its_kind_or_declared():
    own = of(1, "V", {1: 10}, gpu_w=200) + of(1, "V", {2: 6}, gpu_w=180)
    said = {"V": 250.0, "T": 70.0}

    def power(measured, similar=(), **more):
        figures = predict(ALL, measured, KindScaling(similar), limit_s=1, **more)
        return [figure.gpu_w for figure in figures]

    assert power(own, declared_w=said) == [70, 70, 70, 200, 180, 190]
    assert power(own, of(2, "T", {2: 6}, gpu_w=60)) == [60, 60, 60, 200, 180, 190]
    assert power(of(1, "V", {1: 10})) == [None] * 6
    assert power([]) == [None] * 6


rows = st.dictionaries(st.sampled_from([1, 2, 3, 4, 8]), st.floats(0.1, 1e4), max_size=4)
jobs = st.fixed_dictionaries(dict.fromkeys(TYPES, rows))
CONFIGURATIONS = [Configuration(gpu_type, gpus) for gpu_type in TYPES for gpus in (1, 2, 3, 4, 8, 16)]


def measurements(job, curves):
    return [m for gpu_type, by_count in curves.items() for m in of(job, gpu_type, by_count)]


@pytest.mark.slow
@given(own=jobs, similar=st.lists(jobs, max_size=4), said=jobs, seed=st.integers(0, 99))
def test_what_always_holds(own, similar, said, seed):
    mine = measurements(0, own)
    others = [m for job, curves in enumerate(similar, start=1) for m in measurements(job, curves)]
    options = {"declared_s": declared(**said), "limit_s": LIMIT_S}
    figures = predict(CONFIGURATIONS, mine, KindScaling(others), **options)
    assert [figure.configuration for figure in figures] == CONFIGURATIONS
    for figure in figures:
        there = figure.configuration
        assert 0 < figure.epoch_s < float("inf")
        known = own[there.gpu_type].get(there.gpus)
        assert (figure.source is Source.MEASURED) == (known is not None)
        if known is not None:
            assert figure.epoch_s == known
        if figure.source is Source.SIMILAR:
            assert others
        if figure.source is Source.DECLARED:
            assert there.gpus in said[there.gpu_type]
    for gpu_type in TYPES:  # no prediction says that more GPUs are slower
        for source in (Source.PREDICTED, Source.SIMILAR):
            times_s = [f.epoch_s for f in figures if f.configuration.gpu_type == gpu_type and f.source is source]
            if any(mine) or source is Source.PREDICTED:
                assert all(a >= b * (1 - 1e-9) for a, b in pairwise(times_s))
    shuffled_own, shuffled = list(mine), list(others)
    random.Random(seed).shuffle(shuffled_own)
    random.Random(seed).shuffle(shuffled)
    again = predict(CONFIGURATIONS[::-1], shuffled_own, KindScaling(shuffled), **options)[::-1]
    assert again == figures


@pytest.mark.slow
@given(
    alone_s=st.tuples(st.floats(1, 1e4), st.floats(1, 1e4)), fraction=st.floats(0, 1), ratio=st.floats(0.1, 10),
    known=st.sampled_from(CONFIGURATIONS),
)  # fmt: skip
def test_where_all_jobs_of_a_kind_follow_the_law_every_prediction_is_exact(alone_s, fraction, ratio, known):
    def law(job, there):
        return alone_s[job] * (ratio if there.gpu_type == "T" else 1) * (1 - fraction + fraction / there.gpus)

    similar = [Measurement("k", 1, c.gpu_type, c.gpus, law(1, c)) for c in CONFIGURATIONS]
    own = [Measurement("k", 0, known.gpu_type, known.gpus, law(0, known))]
    for figure in predict(CONFIGURATIONS, own, KindScaling(similar), limit_s=LIMIT_S):
        assert figure.epoch_s == pytest.approx(law(0, figure.configuration), rel=1e-4)
        assert figure.source is (Source.MEASURED if figure.configuration == known else Source.SIMILAR)


def test_declared_times_next_to_nothing_tell_nothing_of_how_far_off_they_are():
    said = declared(V={1: 1e-320, 2: 1e-320}, T={1: 0.0})
    for own in ((), of(1, "V", {1: 5.0})):
        assert all(0 < f.epoch_s < math.inf for f in predict(ALL, own, None, declared_s=said, limit_s=0.0))


positive = st.floats(min_value=5e-324, allow_infinity=False, allow_nan=False)
odd_rows = st.dictionaries(st.sampled_from([1, 2, 1024]), positive, max_size=3)
odd_jobs = st.fixed_dictionaries(dict.fromkeys(TYPES, odd_rows))
odd_powers = st.one_of(st.none(), st.floats(0, 1.7e308))


@pytest.mark.slow
@given(
    own=odd_jobs, similar=st.lists(odd_jobs, max_size=3), limit_s=st.floats(0),
    said=st.dictionaries(
        st.builds(Configuration, st.sampled_from(TYPES), st.sampled_from([1, 2, 1024])), st.floats(0)
    ),
    powers=st.lists(odd_powers, min_size=2, max_size=2),
)  # fmt: skip
def test_whatever_was_declared_or_measured_a_figure_is_finite_and_above_0(own, similar, limit_s, said, powers):
    mine = [m for y, by_count in own.items() for m in of(0, y, by_count, gpu_w=powers[0])]
    others = [
        m for job, curves in enumerate(similar, 1) for y, by_count in curves.items()
        for m in of(job, y, by_count, gpu_w=powers[1])
    ]  # fmt: skip
    for kind in (None, KindScaling(others)):
        for figure in predict(CONFIGURATIONS, mine, kind, declared_s=said, limit_s=limit_s):
            assert 0 < figure.epoch_s < math.inf
            assert 0 < figure.epoch_s * 1_000_000_000 < math.inf  # the most epochs a job may have
            assert figure.gpu_w is None or 0 <= figure.gpu_w < math.inf
