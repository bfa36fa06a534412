"""Jobs without a time, live: what the store tells of ended jobs, through a restart of the controller, as they age."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml

pytest.importorskip("sqlalchemy")

from commonwatt.cli.jobs import expected_run_time
from commonwatt.controlplane.run_times import EndedRun, LearnedRunTimes, RunTimeHistory
from commonwatt.controlplane.wiring import read_config
from commonwatt.model.errors import InputError
from commonwatt.model.explanation import PlacementExplanation, Reason
from commonwatt.model.job_file import JobFile
from commonwatt.model.live_results import JobConfiguration
from commonwatt.model.units import span_between
from commonwatt.runtimes import JobFeatures
from commonwatt.service.serializers import explanation
from commonwatt.store.controller_store import ControllerStore
from commonwatt.store.records import EndedRow, RequestKind
from tests.controlplane.bench import Bench, node
from tests.controlplane.chaos import opening


def config(folder: Path, **more: object) -> Path:
    document = {
        "engine": "local", "nodes": [{"name": "n", "gpu_type": "V", "gpus": 2, "idle_w": 100.0, "gpu_w": 50.0}],
        "tenants": [{"name": "t"}], "policies": [{"solver": "random-greedy"}], "interval_s": 0.5, **more,
    }  # fmt: skip
    path = folder / "live.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


@pytest.fixture
def opened(tmp_path):
    with opening(partial(config, tmp_path)) as begin:
        yield begin


def submit(plane, name: str, seconds: str, **more) -> int:
    row, _ = plane.store.submit("t", JobFile(name=name, command=("sleep", seconds), **more), time.time())
    plane.supervisor.wake()
    return row.id


def until(plane, number, true):
    end_s = time.monotonic() + 120
    while not true(row := plane.store.job(number)):
        assert plane.supervisor.snapshot().trouble is None
        assert time.monotonic() < end_s, row
        time.sleep(0.02)
    return row


def figures(plane, number) -> tuple[str, int | None, str | None, float]:
    (figure,) = until(plane, number, lambda row: row.times is not None).times
    return figure["source"], figure["earlier_jobs"], figure["alike"], figure["time_s"]


@pytest.mark.long
def test_ended_jobs_tell_of_the_next_one_also_after_a_restart(opened):
    plane = opened()
    for k in range(3):
        number = submit(plane, f"train-{k}", "0.5")
        assert figures(plane, number)[0] == "unknown"
        until(plane, number, lambda row: row.status == "completed")
    ended = ControllerStore(plane.database).ended_runs()
    assert [row.name for row in ended] == ["train-0", "train-1", "train-2"]
    assert all(0.3 < row.run_time_s < 60 for row in ended)
    plane.close()
    again = opened()
    source, jobs, alike, time_s = figures(again, submit(again, "train-9", "0.1"))
    assert (source, jobs, alike) == ("history", 3, "name")
    assert time_s < 86_400.0  # what the site assumes
    assert figures(again, submit(again, "other", "0.1"))[:3] == ("history", 3, "tenant")
    assert figures(again, submit(again, "short", "0.1", time_limit_s=5.0))[3] <= 5.0
    declared = submit(again, "train-8", "0.1", times_s={"V": [77.0]})
    assert figures(again, declared)[::3] == ("declared", 77.0)


@pytest.mark.long
def test_a_running_job_that_outlives_its_series_is_predicted_anew(opened, monkeypatch):
    monkeypatch.setattr("commonwatt.controlplane.profiler.FIRST_REVISION_S", 1.0)
    plane = opened()
    for k in range(3):
        until(plane, submit(plane, f"train-{k}", "0.1"), lambda row: row.status == "completed")
    number = submit(plane, "train-9", "600")
    first_s = figures(plane, number)[3]
    row = until(plane, number, lambda row: row.times is not None and row.times[0]["outlived"])
    assert row.times[0]["time_s"] > first_s
    assert row.times[0]["source"] == "history"
    assert row.expected_end_s is None
    plane.store.ask(RequestKind.CANCEL, time.time(), job=number)
    plane.supervisor.wake()
    until(plane, number, lambda row: row.status == "cancelled")


@pytest.mark.long
def test_with_user_limit_nothing_is_predicted(opened):
    plane = opened(knowledge="user-limit")
    for k in range(3):
        until(plane, submit(plane, f"train-{k}", "0.1"), lambda row: row.status == "completed")
    assert figures(plane, submit(plane, "train-9", "0.1"))[0] == "unknown"
    assert figures(plane, submit(plane, "train-9", "0.1", time_limit_s=60.0))[0] == "time limit"


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"knowledge": "oracle"}, "knowledge"), ({"knowledge": "none"}, "knowledge"),
        ({"policies": [{"solver": "fifo", "knowledge": "oracle"}]}, "policies.0.knowledge"),
    ],
)  # fmt: skip
def test_knowledge_that_no_live_controller_can_have_is_refused(tmp_path, more, field):
    with pytest.raises(InputError, match="simulations only") as raised:
        read_config(config(tmp_path, **more))
    assert raised.value.field == field


def test_knowledge_that_is_not_given_is_no_error(tmp_path):
    assert read_config(config(tmp_path)).knowledge == "oracle"  # of simulations


@pytest.mark.parametrize(
    ("likely_s", "jobs", "said"),
    [
        ((600.0, 1500.0), 14, "about 10 to 25 min, by 14 similar jobs"),
        ((3.2, 14.8), 3, "about 3 to 15 s, by 3 similar jobs"),
        ((90.0, 7560.0), 3, "about 90 s to 2.1 h, by 3 similar jobs"),
        ((600.0, 610.0), 1, "about 10 min, by 1 similar job"),
        (None, 3, "about 17 min, by 3 similar jobs"),  # by an older server
    ],
)
def test_explain_says_what_is_known_of_a_run_time(likely_s, jobs, said):
    figure = {"gpu_type": "V", "gpus": 1, "time_s": 1000.0, "source": "history", "likely_s": likely_s}
    known = JobConfiguration.model_validate(figure | {"earlier_jobs": jobs, "alike": "kind"})
    assert expected_run_time([known]) == said
    declared = JobConfiguration.model_validate(figure | {"source": "declared", "likely_s": None})
    assert expected_run_time([declared]) is None
    unknown = JobConfiguration.model_validate(figure | {"source": "unknown", "time_s": None, "likely_s": None})
    assert expected_run_time([unknown]) == "no run time is known yet"


A_DAY = {"default_time_limit_s": 86_400.0}


def documents(bench, job):
    """What API and commands say of a job."""
    snapshot = bench.builder.snapshot(bench.snapshot(), bench.clock(), None)
    return explanation(bench.row(job), snapshot, bench.live.store.events(job=job))


def test_nothing_is_stated_by_the_default_limit(tmp_path):
    b = Bench(tmp_path, nodes=[node("n")], live=A_DAY)
    try:
        first, second, behind = (b.submit(times_s=None, gpus=2, due_in_s=100.0) for _ in range(3))
        own = b.submit(times_s=None, time_limit_s=50.0, gpus=2)
        b.settle()
        for job in (first, second, behind, own):
            told = documents(b, job)
            assert told["expected_start_s"] is None
            assert told["expected_end_s"] is None
            assert job == own or "no run time is known yet" in told["sentence"]
            texts = [told["sentence"], *(event["sentence"] for event in told["history"])]
            assert not [text for text in texts if " h" in text or "cheapest" in text or "late" in text]
        assert [c["time_s"] for c in documents(b, first)["configurations"]] == [None]
        assert [(c["time_s"], c["source"]) for c in documents(b, own)["configurations"]] == [(50.0, "time limit")]
        assert b.status(first) == "running"
        assert b.row(first).expected_end_s is None
    finally:
        b.close()


def test_an_own_limit_is_an_end(tmp_path):
    b = Bench(tmp_path, nodes=[node("n")])
    try:
        first, second = (b.submit(times_s=None, gpus=2, time_limit_s=500.0) for _ in range(2))
        b.settle()
        assert documents(b, first)["expected_end_s"] == pytest.approx(b.row(first).started_s + 500.0)
        assert documents(b, second)["expected_start_s"] == pytest.approx(b.row(first).started_s + 500.0)
    finally:
        b.close()


def test_beside_jobs_with_a_history_a_limit_says_nothing_of_eight_cases_in_ten(tmp_path):
    b = Bench(tmp_path, nodes=[node("n")])
    try:
        for seconds in (20.0, 40.0, 60.0, 80.0):
            b.submit(seconds, times_s=None, gpus=1, time_limit_s=500.0)
            b.settle()
            b.advance(seconds + 500.0)
            b.settle()
        known = b.submit(times_s=None, gpus=1, time_limit_s=500.0)
        other = b.submit(times_s=None, gpus=1, time_limit_s=500.0, tenant="b", due_in_s=9000.0)
        b.settle()
        sentences = [documents(b, job)["sentence"] for job in (known, other)]
        assert "by 4 similar jobs" in sentences[0]
        assert "8 of 10 cases" not in sentences[1]
        assert "by its time limit" in sentences[1]
    finally:
        b.close()


def test_jobs_of_a_kind_tell_of_others_with_an_interval(tmp_path):
    b = Bench(tmp_path, nodes=[node("n")])
    try:
        for seconds in (600.0, 800.0, 1000.0, 1500.0):
            b.submit(seconds, kind="resnet", gpus=2, epochs=1)
            b.settle()
            b.advance(seconds + 1)
            b.settle()
        running, waiting = (b.submit(times_s=None, kind="resnet", gpus=2, tenant="b") for _ in range(2))
        other = b.submit(times_s=None, kind="bert", gpus=2, tenant="b")
        b.settle()
        for job in (running, waiting):
            told = documents(b, job)
            (figure,) = told["configurations"]
            assert (figure["source"], figure["earlier_jobs"], figure["alike"]) == ("history", 4, "kind")
            low_s, high_s = figure["likely_s"]
            assert 300.0 < low_s < figure["time_s"] < high_s < 3000.0
            assert f"about {span_between(low_s, high_s)}, by 4 similar jobs" in told["sentence"]
        (started,) = [event for event in b.live.store.events(job=running) if event.kind == "started"]
        assert "by 4 similar jobs" in started.sentence
        assert documents(b, waiting)["expected_start_s"] == b.row(running).expected_end_s
        assert documents(b, other)["configurations"][0]["time_s"] is None
    finally:
        b.close()


def test_jobs_that_wait_learn_from_those_that_end(tmp_path):
    b = Bench(tmp_path, nodes=[node("n")], policies=[{"solver": "fifo"}], live=A_DAY)
    try:
        times = [{"V100": {2: seconds}} for seconds in (100.0, 110.0, 120.0)] + [None] * 3
        jobs = [b.submit(times_s=one, gpus=2, epochs=1) for one in times]
        b.settle()
        assert documents(b, jobs[3])["expected_start_s"] is not None
        assert documents(b, jobs[4])["expected_start_s"] is None
        for _ in range(3):
            b.advance(121.0)
            b.settle()
        b.advance(60.0)  # the next look
        b.settle()
        assert b.status(jobs[3]) == "running"
        for job in jobs[3:]:
            told = documents(b, job)
            assert told["configurations"][0]["earlier_jobs"] == 3
            assert told["expected_end_s"] is not None
            assert "no run time is known" not in told["sentence"]
    finally:
        b.close()


def test_the_most_alike_that_are_enough_count():
    history = RunTimeHistory()

    def learn(number, time_s, *job):
        for _ in range(number):
            history.learn(EndedRun(JobFeatures(*job), time_s))

    learn(4, 10.0, "a", "other")
    learn(4, 100.0, "b", "net", "resnet")
    new = JobFeatures("a", "new", "resnet")
    assert (history.expected(new).jobs, history.expected(new).alike) == (4, "kind")
    assert history.expected(replace(new, kind="")).alike == "tenant"
    assert history.expected(replace(new, tenant="c", kind="")) is None
    learn(3, 1000.0, "a", "mine", "resnet")
    assert (history.expected(new).jobs, history.expected(new).alike) == (3, "kind")
    assert history.expected(new).likely_s[1] > 700.0
    learn(3, 10_000.0, "a", "new", "resnet")
    assert (history.expected(new).jobs, history.expected(new).alike) == (3, "name")
    assert history.expected(new).likely_s[1] > 7000.0
    assert history.expected(replace(new, limit_s=50.0)).likely_s == (50.0, 50.0)


@pytest.mark.slow
def test_solvers_see_that_a_predicted_time_is_not_certain(tmp_path):
    b = Bench(tmp_path, nodes=[node("n")])
    try:
        for seconds in (100.0, 1000.0, 10_000.0):
            b.submit(times_s=None, time_limit_s=seconds)
            b.settle()
            b.advance(seconds + 1)
            b.settle()
        b.submit(500.0)
        b.submit(times_s=None, time_limit_s=50_000.0)
        b.settle()
        controller, handles = b.reconciler.controller, np.array(sorted(b.reconciler.controller.registry.active))
        left = controller.remaining(handles, b.clock(), controller.engine.progress(handles))
        assert len(handles) == 2
        assert left.outcomes[0].tolist() == [1.0] * 10  # it said what it takes
        assert left.outcomes[1].mean() == pytest.approx(1.0)
        assert left.outcomes[1].min() < 0.3 < 2 < left.outcomes[1].max()
    finally:
        b.close()


def test_ended_jobs_are_read_when_somebody_asks_for_the_first_time(tmp_path):
    asked = []
    ended = [EndedRow(k, "t", f"train-{k}", "", 1, None, 0.0, 10.0 * (k + 1), None) for k in range(4)]

    def since(time_s):
        asked.append(time_s)
        return [row for row in ended if row.ended_s >= time_s]

    learned, job = LearnedRunTimes(since), JobFeatures("t", "train-9", "", 1, math.inf)
    learned.refresh()
    assert asked == []
    assert learned.expected(job).jobs == 4
    assert learned.expected(job).jobs == 4
    assert asked == [-math.inf]
    ended.append(EndedRow(4, "t", "train-4", "", 1, None, 0.0, 40.0, None))  # at the same time as the last
    learned.refresh()
    assert learned.expected(job).jobs == 5
    assert asked == [-math.inf, 40.0]


def test_who_runs_longer_than_all_jobs_like_it_is_known_to():
    history = RunTimeHistory()
    for time_s in (50.0, 100.0, 80.0):
        history.learn(EndedRun(JobFeatures("a", "net"), time_s))
    said = [history.expected(JobFeatures("a", "net"), age_s).outlived for age_s in (0.0, 99.0, 101.0)]
    assert said == [False, False, True]
    why = PlacementExplanation(Reason.KEPT, "1-net", ("n",), 2, unknown=True, similar_jobs=3)
    assert why.sentence.endswith("it has run longer than 3 similar jobs")


@pytest.mark.parametrize(("ended", "known"), [("completed", True), ("cancelled", False)])
def test_how_long_cancelled_jobs_ran_tells_nothing(tmp_path, ended, known):
    b = Bench(tmp_path, nodes=[node("n")])
    try:
        for _ in range(3):
            job = b.submit(100.0, gpus=2, epochs=1)
            b.settle()
            if ended == "cancelled":
                b.advance(5.0)
                b.ask(RequestKind.CANCEL, job=job)
                b.settle()
            b.advance(101.0)
            b.settle()
            assert b.status(job) == ended
        job = b.submit(times_s=None, gpus=2)
        b.settle()
        assert (documents(b, job)["configurations"][0]["time_s"] is not None) == known
    finally:
        b.close()
