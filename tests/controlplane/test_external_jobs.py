"""What would be done with jobs of others: placed like ours, where those that run leave room, and never moved."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.control.engine import NodeView
from commonwatt.control.events import EventKind

pytest.importorskip("sqlalchemy")

from commonwatt.control.external_jobs import ExternalJob, job_of
from commonwatt.control.job_registry import Rules
from commonwatt.control.policy import Policy
from commonwatt.controlplane.observer import dry_run
from commonwatt.model.electricity import Electricity
from commonwatt.model.nodes import Cluster, NodeSpec
from commonwatt.model.scenario import PolicySpec

NOW_S = 10_000.0
CLUSTER = Cluster.of(
    [
        NodeSpec(name="a", count=2, gpu_type="A100", gpus=4, idle_w=400, gpu_w=300),
        NodeSpec(name="t", count=1, gpu_type="T4", gpus=2, idle_w=200, gpu_w=70),
    ]
)


def other(number: int, gpus: int = 1, **more) -> ExternalJob:
    nothing = {
        "user": "ada", "state": "waiting", "submit_s": NOW_S - 100, "start_s": None, "end_s": None, "limit_s": 3600.0,
        "gpu_type": None, "nodes": (),
    }  # fmt: skip
    return ExternalJob(id=number, gpus=gpus, **nothing | more)


def running(number: int, gpus: int, *nodes: str, **more) -> ExternalJob:
    return other(number, gpus, state="running", start_s=NOW_S - 50, nodes=nodes, **more)


def seen(usable) -> NodeView:
    return NodeView(np.array(usable), np.zeros(3), np.full(3, -1))


def planned_changes(*others, usable=None, solver="easy", seed=0):
    found = dry_run(
        others, cluster=CLUSTER, view=seen([4, 4, 2] if usable is None else usable),
        policy=Policy.of(PolicySpec(solver=solver)), rules=Rules(interval_s=300.0),
        tariff=Electricity().tariff(), rng=np.random.default_rng(seed), now_s=NOW_S, default_limit_s=86_400.0,
    )  # fmt: skip
    return {job.id: (tuple(CLUSTER.names[n] for n in event.nodes), event.gpus) for job, event in found}


@pytest.mark.parametrize("solver", ["easy", "random-greedy", "lookahead"])
def test_what_waits_would_be_started_where_there_is_room(solver):
    assert planned_changes(running(1, 4, "a-1"), running(2, 3, "a-2"), other(3, 2), solver=solver) == {3: (("t",), 2)}
    assert planned_changes(running(1, 4, "a-1"), other(3, 4, gpu_type="a100"), solver=solver) == {3: (("a-2",), 4)}
    assert planned_changes(running(1, 4, "a-1"), running(2, 1, "a-2"), other(3, 4), solver=solver) == {}


def test_what_is_not_theirs_is_not_given():
    assert planned_changes(other(1, 2), usable=[1, 0, 1]) == {}
    assert planned_changes(other(1, 1), usable=[0, 1, 0]) == {1: (("a-2",), 1)}


@pytest.mark.parametrize("solver", ["exact", "easy", "random-greedy"])
def test_where_more_is_held_than_declared_nobody_gets_any(solver):
    """As where the node has more GPUs than the cluster was declared with, or a job is seen twice."""
    two = (running(1, 4, "a-1"), running(2, 4, "a-1"))
    assert planned_changes(*two, other(3, 4), solver=solver) == {3: (("a-2",), 4)}
    assert planned_changes(*two, running(4, 3, "a-2"), other(3, 4), solver=solver) == {}
    assert planned_changes(running(1, 4, "a-1"), running(1, 4, "a-1"), other(3, 4), solver=solver) == {3: (("a-2",), 4)}


def test_tasks_of_an_array_share_a_number_and_are_jobs_of_their_own():
    found = dry_run(
        [other(1, 4, task=1), other(1, 4, task=2)], cluster=CLUSTER, view=seen(CLUSTER.gpus),
        policy=Policy.of(PolicySpec(solver="easy")), rules=Rules(interval_s=300.0), tariff=Electricity().tariff(),
        rng=np.random.default_rng(0), now_s=NOW_S, default_limit_s=86_400.0,
    )  # fmt: skip
    assert [job.label for job, _ in found] == ["1_1", "1_2"]


def test_a_job_that_holds_gpus_in_a_way_of_its_own_keeps_them():
    assert planned_changes(running(1, 3, "a-1", "a-2"), other(2, 4, gpu_type="A100")) == {}
    assert planned_changes(running(1, 3, "a-1", "a-2"), other(2, 2, gpu_type="A100"))[2][1] == 2
    assert planned_changes(running(1, 8, "elsewhere"), other(2, 4))[2][1] == 4
    assert planned_changes(running(1, 4, "a-1", "elsewhere"), other(2, 4)) == {2: (("a-2",), 4)}
    assert planned_changes(running(1, 4, "a-1", "t"), other(2, 4)) == {2: (("a-2",), 4)}
    assert planned_changes(running(1, 4, "a-1", "elsewhere"), running(2, 4, "a-2"), other(3, 4)) == {}
    assert planned_changes(running(1, 1), other(2, 4))[2][1] == 4  # nobody knows where


def test_what_cannot_run_here_or_has_ended_is_passed_over():
    assert planned_changes(other(1, 64), other(2, 1, gpu_type="H100"), other(3, 1, state="ended")) == {}
    assert planned_changes() == {}


def test_a_job_without_a_time_limit_is_planned_by_the_default_one():
    job = job_of(other(1, limit_s=None), CLUSTER, 86_400.0, 0.0)
    assert job is not None
    assert job.times_s == {"A100": {1: 86_400.0}, "T4": {1: 86_400.0}}
    assert planned_changes(other(1, limit_s=None))


def test_where_it_ran_tells_its_type():
    job = job_of(running(1, 2, "t"), CLUSTER, 60.0, 0.0)
    assert job is not None
    assert (job.requested_type, job.times_s) == ("T4", {"T4": {2: 60.0}})
    assert job_of(running(1, 2, "a-1", "t"), CLUSTER, 60.0, 0.0) is None


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    held=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=4),
    waiting=st.lists(st.integers(1, 5), max_size=5),
    solver=st.sampled_from(["easy", "random-greedy", "fifo"]),
)
def test_no_gpu_is_promised_twice(held, waiting, solver):
    left = CLUSTER.gpus.copy()
    jobs = []
    for number, (node, gpus) in enumerate(held):
        if gpus <= left[node]:
            left[node] -= gpus
            jobs.append(running(number, gpus, CLUSTER.names[node]))
    jobs += [other(100 + k, gpus) for k, gpus in enumerate(waiting)]
    given_to = planned_changes(*jobs, solver=solver)
    assert all(number >= 100 for number in given_to)
    for nodes, gpus in given_to.values():
        for name in nodes:
            left[list(CLUSTER.names).index(name)] -= gpus // len(nodes)
    assert (left >= 0).all()


def test_the_only_advice_is_to_start():
    found = dry_run(
        [running(1, 4, "a-1"), other(2, 4)], cluster=CLUSTER, view=seen(CLUSTER.gpus),
        policy=Policy.of(PolicySpec(solver="random-greedy")), rules=Rules(interval_s=300.0),
        tariff=Electricity().tariff(), rng=np.random.default_rng(0), now_s=NOW_S, default_limit_s=60.0,
    )  # fmt: skip
    assert {event.kind for _, event in found} == {EventKind.WOULD_START}


jobs_of_any_kind = st.builds(
    ExternalJob,
    id=st.integers(1, 10**6), user=st.sampled_from(["ada", "bob"]), gpus=st.integers(1, 12),
    state=st.sampled_from(["waiting", "running", "ended"]), gpu_type=st.sampled_from([None, "a100", "T4", "H100"]),
    submit_s=st.floats(0, 2 * NOW_S), start_s=st.none() | st.floats(0, 2 * NOW_S),
    end_s=st.none() | st.floats(0, NOW_S), limit_s=st.none() | st.floats(1, 1e6),
    nodes=st.lists(st.sampled_from(["a-1", "a-2", "t", "elsewhere"]), max_size=3, unique=True).map(tuple),
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(jobs=st.lists(jobs_of_any_kind, max_size=6, unique_by=lambda job: job.id))
def test_whatever_a_cluster_tells(jobs):
    given_to = planned_changes(*jobs, solver="random-greedy", usable=[2, 4, 1])
    assert given_to.keys() <= {job.id for job in jobs if job.state == "waiting"}
