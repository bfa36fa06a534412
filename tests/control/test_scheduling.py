"""The scheduling state of jobs and nodes; and configurations whose times become known: on a simulated cluster."""

from __future__ import annotations

import math

import numpy as np
import pytest

from commonwatt.control.controller import Controller
from commonwatt.control.job_registry import JobRegistry, Rules
from commonwatt.control.policy import Policy
from commonwatt.control.scheduling import Allocation, JobCondition, NodeCondition, Scheduling
from commonwatt.control.usage import AllocatedGpus
from commonwatt.engines.simulated.engine import SimulatedEngine, World
from commonwatt.model.electricity import Electricity
from commonwatt.model.errors import EngineError
from commonwatt.model.jobs import Job, JobArrays
from commonwatt.model.nodes import Cluster, NodeSpec
from commonwatt.model.scenario import PolicySpec
from tests.control.worlds import cluster_of, job, trace


def controller_of(table: JobArrays, solver: str = "random-greedy") -> Controller:
    cluster = cluster_of(nodes=2, gpus=2)
    made = Controller(
        cluster=cluster, engine=SimulatedEngine(cluster, table, World()), policy=Policy.of(PolicySpec(solver=solver)),
        rules=Rules(), tariff=Electricity().tariff(), rng=np.random.default_rng(0),
    )  # fmt: skip
    made.submit(table, np.arange(len(table)))
    return made


def test_who_may_be_scheduled_is_asked_in_one_place():
    s = Scheduling()
    kept = [JobCondition.HELD, JobCondition.BACKOFF, JobCondition.UNSCHEDULABLE]
    for handle, condition in enumerate([*kept, JobCondition.PROFILING]):
        s.mark(handle, condition)
    s.terminate(4, Allocation((1,), 2))
    s.terminate(4, Allocation((0,), 1))  # told again: it has what it had
    active = set(range(6))
    assert s.candidates(active, set()) == [4, 5]
    assert s.candidates(active, {0, 1, 2, 3}) == [0, 1, 2, 4, 5]  # they run: only one that is measured is left alone
    assert [handle for handle in active if s.may_start(handle)] == [5]
    assert s.demands(active) == {1, 3, 4, 5}
    s.mark(0, JobCondition.BACKOFF)
    assert s.of_job(0) == JobCondition.HELD | JobCondition.BACKOFF
    s.mark_only({5}, JobCondition.BACKOFF)
    assert (s.of_job(0), s.of_job(1), s.of_job(5)) == (JobCondition.HELD, JobCondition(0), JobCondition.BACKOFF)
    s.mark(4, JobCondition.HELD)
    s.forget(4)
    s.mark(3, JobCondition.NOT_YET)  # its time has not come: no GPUs are wanted for it
    assert s.demands({1, 3, 5}) == {1, 5}
    s.mark(3, JobCondition.NOT_YET, on=False)
    assert s.of_job(4) == JobCondition.TERMINATING
    assert s.terminated(4) == Allocation((1,), 2)
    assert (s.terminated(4), s.of_job(4)) == (None, JobCondition(0))
    s.set_nodes(NodeCondition.DRAINED, {0, 1})
    s.set_nodes(NodeCondition.RESERVED, {1, 2})
    assert (s.nodes(NodeCondition.DRAINED), s.closed_nodes) == ({0, 1}, {0, 1, 2})


@pytest.mark.parametrize("solver", ["random-greedy", "lookahead", "fifo"])
def test_nothing_is_placed_on_a_node_set_aside_and_what_runs_there_stays(solver):
    made = controller_of(JobArrays.of([job(name, 0, 1000) for name in "abcde"]), solver)
    made.scheduling.set_nodes(NodeCondition.RESERVED, {1})
    made.start_probe(0, 1, 1, 0.0, ("profiling", "a is measured"))
    for _ in range(3):
        made.tick(0.0)
        assert made.registry.nodes.pop(0) == (1,)
        assert set(made.registry.nodes.values()) == {(0,)}
        assert len(made.registry.nodes) == 2
        made.registry.nodes[0] = (1,)
        made.decide_anew()


def test_a_job_that_was_aside_is_placed_like_any_other_and_its_energy_is_its_own():
    made = controller_of(JobArrays.of([job("a", 0, 1000)]))
    made.scheduling.set_nodes(NodeCondition.RESERVED, {1})
    made.start_probe(0, 1, 1, 0.0, ("profiling", "a is measured"))
    made.engine.advance(250.0)
    made.stop_probe(0, 250.0, ("measured", "a was measured"))
    assert made.ledger.account(0).energy_uj == 200 * 150 * 10**6  # two epochs at 100 W and half of 100 W
    assert made.ledger.overhead["lost work"].energy_uj == 50 * 150 * 10**6
    assert made.ledger.total() == made.ledger.meter
    made.tick(250.0)
    assert trace(made) == [
        (0, "submitted", "a", ()), (0, "started", "a", (1,)),
        (250, "preempted", "a", (1,)), (250, "resumed", "a", (0,)),
    ]  # fmt: skip
    assert (made.preemptions, made.migrations) == (0, 0)


def test_a_job_aside_that_is_cancelled_or_ends_leaves_nothing_behind():
    made = controller_of(JobArrays.of([job("a", 0, 100), job("b", 0, 1000)]))
    made.scheduling.set_nodes(NodeCondition.RESERVED, {0, 1})
    made.start_probe(0, 0, 1, 0.0, ("profiling", "a is measured"))
    made.start_probe(1, 1, 1, 0.0, ("profiling", "b is measured"))
    made.cancel({1: None}, 50.0)
    made.engine.advance(200.0)
    made.tick(200.0)
    assert (made.scheduling.jobs(JobCondition.PROFILING), made.registry.nodes) == (set(), {})
    assert made.registry.active == set()


def test_a_job_cannot_be_put_where_it_may_not_run():
    made = controller_of(JobArrays.of([job("a", 0, 100, gpus=2)]))
    with pytest.raises(EngineError, match="a cannot run with 1 GPU on n-2"):
        made.start_probe(0, 1, 1, 0.0, ("", ""))
    assert (made.scheduling.of_job(0), made.registry.nodes) == (JobCondition(0), {})


def test_times_and_powers_of_one_configuration_become_known():
    nodes = [
        NodeSpec(name="v", count=2, gpu_type="V", gpus=2, idle_w=100, gpu_w=50),
        NodeSpec(name="t", gpu_type="T", gpus=2, idle_w=80, gpu_w=30),
    ]
    book = JobRegistry(Cluster.of(nodes))
    times = {"V": {1: 100.0, 2: 60.0, 4: 40.0}, "T": {1: 300.0}}
    book.add(JobArrays.of([Job(name, "t", 0, math.inf, 0, times) for name in "ab"]), np.arange(2))
    book.retime(1, "V", 2, 55.0, 70.0)
    rows = [
        (int(book.row("width")[r] * book.row("per_node")[r]), book.row("time_s")[r], book.row("gpu_w")[r])
        for r in range(len(book.row("klass")))
    ]
    first = int(book.job("first")[1])
    assert [(g, t, w) for g, t, w in rows[:first]] == [
        (g, times["V" if w == 50 else "T"][g], w) for g, _, w in rows[:first]
    ]
    for gpus, time_s, gpu_w in rows[first:]:
        if gpus == 2:
            assert (time_s, gpu_w) == (55, 70)
        else:
            assert time_s == times["V" if gpu_w == 50 else "T"][gpus]
    two = [r for r in range(first, len(rows)) if rows[r][0] == 2]
    assert {(int(book.row("per_node")[r]), float(book.row("power_w")[r])) for r in two} <= {(2, 240.0), (1, 170.0)}
    book.retime(1, "V", 2, 55.0, None)
    assert {float(book.row("gpu_w")[r]) for r in two} == {50.0}


def test_sums_of_gpus_follow_what_jobs_have():
    rng, gpus, had = np.random.default_rng(0), AllocatedGpus(), {}
    for _ in range(300):
        handle, tenant, number = int(rng.integers(20)), int(rng.integers(4)), int(rng.integers(0, 9))
        if rng.random() < 0.6:
            gpus.give(handle, number, tenant)
            had[handle] = number, tenant
        else:
            assert gpus.take(handle) == had.pop(handle, (0, 0))[0]
        of_tenant = [sum(n for n, t in had.values() if t == tenant) for tenant in range(6)]
        assert (gpus.total, gpus.of_tenants(6).tolist()) == (sum(of_tenant), of_tenant)
        assert dict(gpus) == {h: n for h, (n, _) in had.items()}


def test_gpus_that_two_jobs_have_count_once():
    beside = {1: 2, 2: 1}
    gpus = AllocatedGpus(beside=beside)
    gpus.give(1, 4, tenant=0)
    gpus.give(2, 4, tenant=1)
    gpus.give(3, 1, tenant=1)
    assert (gpus.total, gpus[1], gpus[2]) == (5, 4, 4)
    assert gpus.of_tenants(2).tolist() == [2.0, 3.0]
    beside.clear()  # the registry knows first
    assert gpus.take(1) == 4
    assert (gpus.total, gpus.of_tenants(2).tolist()) == (5, [0.0, 5.0])
    assert (gpus.take(2), gpus.take(3), gpus.total) == (4, 1, 0)
