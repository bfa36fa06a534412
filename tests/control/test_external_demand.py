"""What external jobs have and want of a cluster, and a capacity plan that counts it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.control.engine import NodeView
from commonwatt.control.external_jobs import ExternalDemand, ExternalJob, demand_of
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.nodes import Cluster, NodeSpec
from commonwatt.model.pools import Pools

WATTS = {"idle_w": 100, "gpu_w": 200}
CLUSTER = Cluster.of(
    [
        NodeSpec(name="a", count=2, gpu_type="A100", gpus=4, partitions=("train",), **WATTS),
        NodeSpec(name="t", count=2, gpu_type="T4", gpus=2, partitions=("small", "debug"), **WATTS),
    ]
)
ONE = Pools.of(CapacitySpec(), CLUSTER)
BY_PARTITION = Pools.of(CapacitySpec(pools="partition"), CLUSTER)


def job(number, state, gpus, nodes=(), **more):
    given = {"user": "ada", "submit_s": 1.0, "start_s": None, "end_s": None, "limit_s": 60.0, "gpu_type": None}
    return ExternalJob(id=number, state=state, gpus=gpus, nodes=nodes, **{**given, **more})


def test_what_runs_has_its_nodes_and_what_waits_wants_its_pool():
    jobs = [
        job(1, "running", 8, ("a-1", "a-2")),
        job(2, "running", 1, ("t-2",), partition="debug"),
        job(3, "waiting", 2, partition="small"),
        job(4, "waiting", 4, partition="train"),
        job(5, "ended", 4, ("a-1",), start_s=2.0, end_s=3.0),
    ]
    demand = demand_of(jobs, CLUSTER, BY_PARTITION)
    assert BY_PARTITION.names == ("train", "debug", "small")
    assert (demand.running, demand.waiting) == (2, 2)
    assert demand.held_gpus.tolist() == [4, 4, 0, 1]
    assert demand.running_gpus.tolist() == [8, 1, 0]
    assert demand.waiting_gpus.tolist() == [4, 0, 2]
    assert demand.uses.tolist() == [[True, True, False, False], [False, False, False, True], [False] * 4]
    assert demand_of(jobs, CLUSTER, ONE).wanted_gpus.tolist() == [15]


@pytest.mark.parametrize(
    "one",
    [
        job(1, "waiting", 2, partition="elsewhere"),
        job(1, "waiting", 2, gpu_type="H100"),
        job(1, "waiting", 64),
        job(1, "waiting", 2, limited=True),
        job(1, "running", 2, ("x-1",)),
        job(1, "waiting", 4, partition="small,debug", gpu_type="A100"),
        job(1, "waiting", 5, partition="small"),
    ],
)
def test_what_our_nodes_cannot_give_is_not_wanted_of_them(one):
    demand = demand_of([one], CLUSTER, ONE)
    assert demand.wanted_gpus.tolist() == [0]
    assert not demand.labels


def test_a_job_that_is_partly_elsewhere_has_what_it_has_here():
    demand = demand_of([job(1, "running", 8, ("a-1", "x-1"))], CLUSTER, ONE)
    assert demand.held_gpus.tolist() == [4, 0, 0, 0]
    assert demand.running_gpus.tolist() == [4]


def test_who_came_since_is_counted_once_also_if_it_has_started_meanwhile():
    before = demand_of([job(1, "waiting", 2, partition="small")], CLUSTER, BY_PARTITION)
    now = demand_of(
        [job(1, "running", 2, ("t-1",), partition="small"), job(2, "waiting", 4, gpu_type="a100")],
        CLUSTER, BY_PARTITION,
    )  # fmt: skip
    assert now.came(before) == [(0, 4)]
    assert now.came(now) == []


@pytest.mark.parametrize(
    ("one", "gpus"),
    [
        (job(1, "waiting", 3, partition="small"), 3),  # which nodes cannot have in equal parts
        (job(1, "waiting", 2, gpu_type="nvidia_a100-sxm4-80gb"), 2),
        (job(1, "waiting", 8), 8),
    ],
)
def test_what_several_nodes_have_together_is_wanted_however_it_is_spread(one, gpus):
    assert demand_of([one], CLUSTER, ONE).wanted_gpus.tolist() == [gpus]


def test_a_task_of_an_array_comes_once():
    waiting = job(12, "waiting", 1, task=3)
    runs = job(15, "running", 1, ("t-1",), array="12_3")
    assert demand_of([runs], CLUSTER, ONE).came(demand_of([waiting], CLUSTER, ONE)) == []


@given(st.lists(st.tuples(st.sampled_from([("a-1",), ("a-1", "a-2"), ("t-1",), ("t-1", "t-2")]), st.integers(1, 4))))
def test_no_node_has_more_gpus_than_it_has(running):
    jobs = [job(k, "running", gpus * len(nodes), nodes) for k, (nodes, gpus) in enumerate(running)]
    for pools in (ONE, BY_PARTITION):
        demand = demand_of(jobs, CLUSTER, pools)
        assert (demand.held_gpus <= CLUSTER.gpus).all()
        assert int(demand.running_gpus.sum()) == sum(one.gpus for one in jobs)
        view = NodeView(CLUSTER.gpus.copy(), np.zeros(4), np.full(4, -1))
        assert (demand.held_in(view, CLUSTER.gpus).usable_gpus == CLUSTER.gpus).all()


def test_nobody_is_there():
    none = ExternalDemand.none(4)
    view = NodeView(CLUSTER.gpus.copy(), np.zeros(4), np.full(4, -1))
    assert none.held_in(view, CLUSTER.gpus) is view
    assert int(none.wanted_gpus.sum()) == 0
