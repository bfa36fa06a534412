"""A job that waits for an array waits for all its tasks."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.model.dependencies import WaitedFor, met, together
from commonwatt.model.errors import InputError
from commonwatt.model.job_file import JobFile, ScriptSpec
from commonwatt.store.records import RequestKind
from tests.controlplane.bench import ENDED, Bench


@pytest.fixture
def b(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def array(b: Bench, seconds: list[float], most: int | None = None) -> list[int]:
    """Submit a task of each length, as the client does, with another job in between."""
    ids: list[int] = []
    for index, length in enumerate(seconds):
        place = (ids[0] if ids else 0, index, len(seconds), 0, len(seconds) - 1)
        script = ScriptSpec(script="#!/bin/sh\n", submit_folder="/", array=place, array_most=most)
        ids.append(b.submit(length, batch=script))
        b.submit(10.0)
    return ids


def pass_(b: Bench, seconds: float) -> None:
    b.advance(seconds)
    b.settle()


@pytest.mark.parametrize("again", [False, True])
def test_it_starts_once_the_last_task_has_ended(b, again):
    tasks = array(b, [20.0, 200.0])
    waits = b.submit(10.0, after={tasks[0]: "afterok"})
    b.settle()
    pass_(b, 60.0)
    if again:
        b.begin()
        b.settle()
    assert [b.status(job) for job in tasks] == ["completed", "running"]
    assert (b.status(waits), b.row(waits).reason) == ("waiting", "dependency")
    for _ in range(8):
        pass_(b, 50.0)
    assert [b.status(job) for job in (*tasks, waits)] == ["completed"] * 3
    assert b.row(waits).began_s >= b.row(tasks[1]).ended_s


@pytest.mark.parametrize(("kind", "runs"), [("afterok", False), ("afternotok", True), ("afterany", True)])
def test_one_failed_task_is_a_failed_array(b, kind, runs):
    tasks = array(b, [20.0, 300.0])
    waits = b.submit(10.0, after={tasks[0]: kind})
    b.settle()
    pass_(b, 60.0)
    assert b.status(waits) == "waiting"
    b.ask(RequestKind.CANCEL, job=tasks[1])
    for _ in range(4):
        pass_(b, 50.0)
    assert b.status(tasks[1]) == "cancelled"
    assert (b.status(waits) in ENDED) == runs
    assert runs or b.row(waits).reason == "dependency-never"


def test_a_task_that_is_submitted_later_counts(b):
    place = (0, 0, 2, 0, 1)
    first = b.submit(20.0, batch=ScriptSpec(script="#!/bin/sh\n", submit_folder="/", array=place))
    waits = b.submit(10.0, after={first: "afterany"})
    second = b.submit(300.0, batch=ScriptSpec(script="#!/bin/sh\n", submit_folder="/", array=(first, 1, 2, 0, 1)))
    b.settle()
    pass_(b, 100.0)
    assert [b.status(job) for job in (first, second, waits)] == ["completed", "running", "waiting"]


def test_what_is_known_of_an_array_is_what_is_known_of_all_its_tasks():
    ended, failed = WaitedFor(began=True, ended=True, completed=True), WaitedFor(began=True, ended=True)
    runs = [WaitedFor(began=True, expected_end_s=end_s, gpus=2) for end_s in (50.0, 90.0)]
    assert together([ended, *runs]) == WaitedFor(began=True, expected_end_s=90.0, gpus=4)
    assert together([runs[0], WaitedFor()]) == WaitedFor(gpus=2)
    assert met("afterok", together([ended, failed])) is None
    assert met("afternotok", together([ended, failed])) is True
    assert met("afternotok", together([ended, ended])) is None
    assert met("afterok", together([failed, runs[0]])) is False


@pytest.mark.parametrize("again", [False, True])
def test_no_more_of_its_tasks_run_at_once_than_it_says(b, again):
    """Four GPUs are there, and other jobs between the tasks have them."""
    tasks = array(b, [50.0] * 5, most=2)
    b.settle()
    at_once = []
    for _ in range(12):
        statuses = [b.status(job) for job in tasks]
        at_once.append(statuses.count("running"))
        waiting = [job for job, status in zip(tasks, statuses, strict=True) if status == "waiting"]
        if waiting and at_once[-1] == 2:
            row = b.row(waiting[0])
            assert row.reason == "quota"
            assert f"array {tasks[0]} has 2 running jobs and may have 2" in row.sentence
        if again:
            b.begin()
        pass_(b, 20.0)
    assert max(at_once) == 2
    assert [b.status(job) for job in tasks] == ["completed"] * 5


def test_a_range_of_nodes_has_its_gpus_on_each_of_them(b):
    """Two nodes have two GPUs each: with one on each, a job of one or two nodes never has two on one."""
    wide = b.submit(50.0, gpus=2, gpu_counts=(1, 2), gpus_per_node=1, times_s={"V100": {1: 100.0, 2: 40.0}})
    b.settle()
    pass_(b, 10.0)
    places = [event.nodes for event in b.live.store.events(job=wide) if event.kind == "started"]
    assert [len(nodes) for nodes in places] == [b.row(wide).gpus]
    with pytest.raises(ValueError, match="a divisor of all GPU counts"):
        b.submit(50.0, gpus=3, gpus_per_node=2)
    with pytest.raises(InputError, match=r"4 of V100, 4 on each node"):
        b.live.maker.check(JobFile(name="j", command=("true",), gpus=4, gpus_per_node=4))


def test_nobody_else_changes_how_many_tasks_of_an_array_run(b):
    """A task that says it is of another tenant's array counts for its own tenant alone."""
    tasks = array(b, [500.0] * 3, most=2)
    for most in (1, 3):
        place = (tasks[0], 7, 3, 0, 2)
        script = ScriptSpec(script="#!/bin/sh\n", submit_folder="/", array=place, array_most=most)
        b.submit(500.0, batch=script, tenant="b")
    for _ in range(4):
        pass_(b, 20.0)
    assert [b.status(job) for job in tasks].count("running") == 2
