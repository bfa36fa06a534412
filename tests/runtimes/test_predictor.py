"""What is learned from jobs that have ended, against the same in plain words; and nothing from the future."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.runtimes import (
    JobFeatures,
    RuntimeDistribution,
    RuntimePredictor,
    Shrinkage,
    job_group,
    predict_at_submission,
)


def in_words(history: list[tuple[JobFeatures, float]], job: JobFeatures, how: Shrinkage) -> np.ndarray:
    """The prediction for *job*, group by group, each job of a group weighed by how many ended after it."""
    believed = RuntimeDistribution.unknown(1).probability[0].copy()
    for level, group in enumerate(job.groups()):
        memory = how.own_memory if level >= 5 else how.memory
        counts = np.zeros(len(believed))
        own = [run_s for other, run_s in history if other.groups()[level] == group]
        for since, run_s in enumerate(reversed(own)):
            at = min(int(10 * math.log10(max(run_s, 1.0))), len(believed) - 1)
            for k, part in ((at, 1 - 2 * how.spread), (max(at - 1, 0), how.spread), (min(at + 1, 69), how.spread)):
                counts[k] += part * (1 - 1 / memory) ** (since + 1)
        believed = (counts + how.strength * believed) / (counts.sum() + how.strength)
    return believed


JOBS = st.builds(
    JobFeatures,
    tenant=st.sampled_from(["a", "b"]),
    name=st.sampled_from(["train-1", "train-22", "eval"]),
    gpus=st.sampled_from([1, 8]),
    limit_s=st.sampled_from([math.inf, 3600.0]),
)
TIMES = st.floats(0.1, 3e7)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(history=st.lists(st.tuples(JOBS, TIMES), max_size=25), job=JOBS, memory=st.sampled_from([5.0, math.inf]))
def test_it_is_what_the_formula_says(history, job, memory):
    how = Shrinkage(strength=2.0, memory=3 * memory, own_memory=memory, spread=0.15)
    predictor = RuntimePredictor(how)
    for other, run_s in history:
        predictor.learn(predictor.groups([other]), np.array([run_s]))
    ours = predictor.predict(predictor.groups([job])).probability[0]
    assert ours == pytest.approx(in_words(history, job, how), rel=1e-9, abs=1e-12)


def test_weights_that_grow_without_end_stay_numbers():
    how = Shrinkage(own_memory=3.0, memory=3.0)
    predictor, job = RuntimePredictor(how), JobFeatures("a", "x")
    groups = predictor.groups([job])
    times = np.where(np.arange(400) < 380, 100.0, 9000.0)
    for run_s in times:
        predictor.learn(groups, np.array([run_s]))
    ours = predictor.predict(groups).probability[0]
    assert ours == pytest.approx(in_words([(job, t) for t in times], job, how), rel=1e-9, abs=1e-12)


def test_before_anything_has_ended_nothing_is_known():
    predictor = RuntimePredictor()
    said = predictor.predict(predictor.groups([JobFeatures("a", "x")]))
    assert np.allclose(said.probability, RuntimeDistribution.unknown(1).probability)


def test_jobs_of_a_series_are_predicted_from_each_other_and_others_from_all():
    predictor, rng = RuntimePredictor(), np.random.default_rng(0)
    for i in range(200):
        series, typical_s = (("long", 50_000.0), ("short", 200.0))[i % 2]
        groups = predictor.groups([JobFeatures("a", f"{series}-{i}")])
        predictor.learn(groups, np.array([typical_s * rng.uniform(0.9, 1.1)]))
    asked = [JobFeatures("a", "long-999"), JobFeatures("a", "short-0"), JobFeatures("z", "other")]
    low, middle, high = predictor.predict(predictor.groups(asked)).quantiles(np.zeros(3), np.array([0.2, 0.5, 0.8])).T
    assert middle[0] == pytest.approx(50_000, rel=0.35)
    assert middle[1] == pytest.approx(200, rel=0.35)
    assert low[2] < 400
    assert high[2] > 30_000


def test_a_job_that_outlives_its_series_is_expected_like_others_that_did():
    predictor = RuntimePredictor()
    for i in range(100):
        predictor.learn(predictor.groups([JobFeatures("a", f"short-{i}")]), np.array([200.0]))
        predictor.learn(predictor.groups([JobFeatures("b", f"long-{i}")]), np.array([40_000.0]))
    said = predictor.predict(predictor.groups([JobFeatures("a", "short-x")]))
    assert said.quantiles(np.array([0.0]), np.array([0.5]))[0, 0] < 300
    assert said.quantiles(np.array([1000.0]), np.array([0.5]))[0, 0] == pytest.approx(40_000, rel=0.4)


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[JobFeatures], np.ndarray, np.ndarray, float, np.ndarray]:
    jobs = draw(st.lists(JOBS, min_size=2, max_size=15))
    submit_s = np.array([draw(st.integers(0, 50)) * 10.0 for _ in jobs])
    run_s = np.array([draw(st.integers(1, 60)) * 10.0 for _ in jobs])
    at_s = draw(st.integers(0, 60)) * 10.0
    changed_s = np.array([draw(st.integers(1, 200)) * 10.0 for _ in jobs])
    return jobs, submit_s, run_s, at_s, changed_s


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(log=logs())
def test_what_ends_later_changes_no_prediction(log):
    jobs, submit_s, run_s, at_s, changed_s = log
    end_s = submit_s + run_s
    later = end_s > at_s
    other_s = np.where(later, np.maximum(changed_s, at_s - submit_s + 10.0), run_s)
    one = predict_at_submission(RuntimePredictor(), jobs, submit_s, end_s, run_s).probability
    two = predict_at_submission(RuntimePredictor(), jobs, submit_s, submit_s + other_s, other_s).probability
    known = submit_s <= at_s
    assert np.array_equal(one[known], two[known])


def test_a_prediction_has_learned_exactly_what_had_ended():
    jobs = [JobFeatures("a", "x")] * 4
    submit_s, run_s = np.array([0.0, 5.0, 10.0, 30.0]), np.array([10.0, 100.0, 10.0, 1.0])
    said = predict_at_submission(RuntimePredictor(), jobs, submit_s, submit_s + run_s, run_s)
    predictor = RuntimePredictor()
    groups = predictor.groups(jobs)
    for j, learned in ((0, []), (1, []), (2, [0]), (3, [2])):
        predictor.learn(groups[learned], run_s[learned])
        assert np.array_equal(said.probability[j], predictor.predict(groups[[j]]).probability[0])


def test_digits_do_not_make_a_series():
    assert job_group("resnet50_lr0.1_seed17") == job_group("resnet18_lr0.3_seed4")
    assert job_group("bert") != job_group("gpt")
    assert job_group("sweep-3fa9c1d") == job_group("sweep-0b77e2aa")
    assert job_group("facade") != job_group("decade")
