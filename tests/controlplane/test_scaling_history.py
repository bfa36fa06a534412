"""What is known of a kind, kept up to date: the same as if it were worked out anew each time, at less work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.control import scaling
from commonwatt.control.scaling import KindScaling
from commonwatt.controlplane import measurements as kinds
from commonwatt.controlplane.measurements import ScalingHistory
from commonwatt.model.job_file import Measurement

measurements = st.builds(
    Measurement, st.sampled_from(["", "k", "l"]), st.integers(1, 6), st.sampled_from("VT"), st.sampled_from([1, 2, 4]),
    st.floats(0.1, 100), st.one_of(st.none(), st.floats(0, 500)),
)  # fmt: skip


def told(found: KindScaling) -> tuple:
    there = [(gpu_type, gpus) for gpu_type in "VT" for gpus in (1, 2, 4)]
    return (
        found.fractions, found.any_fraction, found.ratio("V", "T"),
        [found.epoch_s(*one) for one in there], [found.gpu_w(*one) for one in there],
    )  # fmt: skip


@pytest.mark.slow
@given(st.lists(st.tuples(measurements, st.sampled_from("kl"), st.integers(1, 8)), max_size=30))
def test_it_is_as_if_worked_out_anew(asked):
    known, added = ScalingHistory([]), []
    for own, kind, job in asked:
        known.add(own)
        added.append(own)
        anew = KindScaling(m for m in added if m.kind == kind and m.job != job)
        assert told(known.scaling(kind, job)) == told(anew)


def test_jobs_beyond_the_last_ones_are_forgotten(monkeypatch):
    monkeypatch.setattr(kinds, "_JOBS", 2)
    known = ScalingHistory([])
    for job in range(1, 5):
        known.add(Measurement("k", job, "V", 1, float(job)))
        known.scaling("k", 0)
    assert known.scaling("k", 0).epoch_s("V", 1) == 3.5


def test_a_job_is_fitted_again_only_when_something_was_added_to_it(monkeypatch):
    fitted, fit_line = [], scaling.fit_line
    monkeypatch.setattr(scaling, "fit_line", lambda *args: fitted.append(args) or fit_line(*args))
    known = ScalingHistory([])
    for job in range(1, 11):
        for gpus in (1, 2):
            known.add(Measurement("k", job, "V", gpus, 10.0 / gpus))
    for job in range(20):
        known.scaling("k", job)
    assert len(fitted) == 10
    known.add(Measurement("k", 3, "V", 4, 2.0))
    for job in range(20):
        known.scaling("k", job)
    assert len(fitted) == 11
