"""Jobs without a time, live: what the store tells of ended jobs, through a restart of the controller, as they age."""

from __future__ import annotations

import math
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml

pytest.importorskip("sqlalchemy")

from commonwatt.cli.jobs import expected_run_time
from commonwatt.controlplane.run_times import LearnedRunTimes
from commonwatt.controlplane.wiring import read_config
from commonwatt.model.errors import InputError
from commonwatt.model.job_file import JobFile
from commonwatt.model.live_results import JobConfiguration
from commonwatt.runtimes import JobFeatures
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
        assert figures(plane, number)[0] == "time limit"
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
    row = until(plane, number, lambda row: row.times is not None and row.times[0]["time_s"] > first_s)
    assert row.times[0]["source"] == "history"
    assert row.expected_end_s == pytest.approx(row.started_s + row.times[0]["time_s"], abs=30)
    plane.store.ask(RequestKind.CANCEL, time.time(), job=number)
    plane.supervisor.wake()
    until(plane, number, lambda row: row.status == "cancelled")


@pytest.mark.long
def test_with_user_limit_nothing_is_predicted(opened):
    plane = opened(knowledge="user-limit")
    for k in range(3):
        until(plane, submit(plane, f"train-{k}", "0.1"), lambda row: row.status == "completed")
    assert figures(plane, submit(plane, "train-9", "0.1"))[0] == "time limit"


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
    ("time_s", "jobs", "alike", "said"),
    [
        (7560.0, 14, "name", "expected 2.1 h, from 14 earlier jobs of this name"),
        (90.0, 1, "name", "expected 90 s, from 1 earlier job of this name"),
        (600.0, 3, "tenant", "expected 10 min, from 3 earlier jobs of this tenant"),
    ],
)
def test_explain_says_where_the_time_comes_from(time_s, jobs, alike, said):
    figure = {"gpu_type": "V", "gpus": 1, "time_s": time_s, "source": "history"}
    known = JobConfiguration.model_validate(figure | {"earlier_jobs": jobs, "alike": alike})
    assert expected_run_time([known]) == said
    declared = JobConfiguration.model_validate(figure | {"source": "declared"})
    assert expected_run_time([declared]) is None


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
