"""The tick, on tiny scenarios with exact traces."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.control.job_registry import Rules
from commonwatt.control.policy import Policy
from commonwatt.control.usage import DecayedUsage
from commonwatt.engines.simulated.engine import Outage, World
from commonwatt.model.errors import JobNeverFitsError
from commonwatt.model.jobs import Job, JobArrays
from commonwatt.model.nodes import Cluster, NodeSpec
from tests.control.worlds import cluster_of, job, random_jobs, simulate, trace


def test_first_come_first_served_on_one_gpu():
    table = JobArrays.of([job("a", 0, 100), job("b", 10, 50)])
    done = simulate(cluster_of(nodes=1, gpus=1), table, "fifo")
    assert trace(done) == [
        (0, "submitted", "a", ()),
        (0, "started", "a", (0,)),
        (10, "submitted", "b", ()),
        (10, "waits", "b", ()),
        (100, "completed", "a", (0,)),
        (100, "started", "b", (0,)),
        (150, "completed", "b", (0,)),
    ]


def test_an_urgent_job_preempts_and_the_other_goes_on_from_its_snapshot():
    """10 epochs of 100 s: stopped at 250 s it falls back to 200 s, then restarts with 30 s lost."""
    table = JobArrays.of(
        [
            job("calm", 0, 1000, due_s=50_000),
            job("urgent", 250, 400, due_s=650.5, tardiness_weight=1.0),
        ]
    )
    done = simulate(
        cluster_of(nodes=1, gpus=1), table, "random-greedy", rules=Rules(restart_s=30), world=World(restart_s=30)
    )
    assert trace(done) == [
        (0, "submitted", "calm", ()),
        (0, "started", "calm", (0,)),
        (250, "submitted", "urgent", ()),
        (250, "preempted", "calm", (0,)),
        (250, "started", "urgent", (0,)),
        (650, "completed", "urgent", (0,)),
        (650, "resumed", "calm", (0,)),
        (650 + 30 + 800, "completed", "calm", (0,)),
    ]
    told = next(e for e in done.log.since(0) if e.kind == "preempted")
    assert told.reason == "displaced"
    assert "go to urgent" in told.sentence
    assert "50 s of work since the last checkpoint are lost" in told.sentence
    assert told.lost_s == 50.0
    assert done.preemptions == 1


@pytest.mark.parametrize(
    ("outages", "decided_s"),
    [
        ((), [0, 300]),  # decided, confirmed, then nothing happens
        ((Outage(node=1, from_s=400, to_s=700),), [0, 300, 600, 900]),  # the other node goes and comes back
    ],
)
def test_nothing_is_decided_anew_where_nothing_has_happened(monkeypatch, outages, decided_s):
    times, decide = [], Policy.decide
    monkeypatch.setattr(
        Policy, "decide", lambda self, problem, *a: times.append(problem.now_s) or decide(self, problem, *a)
    )
    done = simulate(cluster_of(nodes=2, gpus=1), JobArrays.of([job("a", 0, 1600)]), world=World(outages=outages))
    assert times == decided_s
    assert [sample.time_s for sample in done.samples] == [0, 300, 600, 900, 1200, 1500, 1600]


def test_nothing_is_preempted_where_it_is_not_allowed():
    table = JobArrays.of([job("calm", 0, 1000), job("urgent", 250, 400, due_s=650.5, tardiness_weight=1.0)])
    done = simulate(cluster_of(nodes=1, gpus=1), table, "random-greedy", rules=Rules(preempt=False))
    assert done.preemptions == done.migrations == 0
    assert [name for _, kind, name, _ in trace(done) if kind == "completed"] == ["calm", "urgent"]


def test_rescheduling_every_interval_and_at_submissions_and_completions():
    table = JobArrays.of([job("a", 0, 1000), job("b", 450, 100)])
    done = simulate(cluster_of(), table, "fifo", rules=Rules(interval_s=300))
    assert [s.time_s for s in done.samples] == [0, 300, 450, 550, 850, 1000]


def test_interrupted_by_an_outage_it_goes_on_elsewhere():
    table = JobArrays.of([job("a", 0, 1000)])
    world = World(outages=(Outage(0, 450.0, 5000.0),))
    done = simulate(cluster_of(nodes=2, gpus=1), table, "fifo", world=world)
    assert trace(done) == [
        (0, "submitted", "a", ()),
        (0, "started", "a", (0,)),
        (450, "interrupted", "a", (0,)),
        (450, "resumed", "a", (1,)),
        (450 + 600, "completed", "a", (1,)),
    ]


def test_waits_through_an_outage_of_everything():
    table = JobArrays.of([job("a", 0, 1000)])
    done = simulate(cluster_of(nodes=1, gpus=1), table, "fifo", world=World(outages=(Outage(0, 450.0, 5000.0),)))
    assert done.registry.job("ended_s")[0] == pytest.approx(5000 + 600, abs=300)
    told = [e for e in done.log.since(0) if e.kind == "waits"]
    assert told[0].reason == "nodes-down"


def test_a_job_no_node_can_run_is_refused_at_the_door():
    table = JobArrays.of([Job("big", "t", 0, np.inf, 0, {"V100": {64: 10.0}})])
    with pytest.raises(JobNeverFitsError, match=r"jobs.big.*64 GPUs of V100.*nodes of one class"):
        simulate(cluster_of(), table, "fifo")


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ({"constraint": "ssd"}, r"2 GPUs of V100 with ssd'"),
        ({"width": 2, "partition": "none"}, r"2 GPUs of V100 in partition none on 2 nodes'"),
        ({"width": -1}, r"2 GPUs of V100, 1 on each node'"),
    ],
)
def test_what_else_it_asks_for_is_said(asked, shown):
    kind = NodeSpec(name="n", gpu_type="V100", gpus=2, idle_w=1, gpu_w=1, partitions=("main",), features=("ib",))
    table = JobArrays.of([Job("big", "t", 0, np.inf, 0, {"V100": {2: 10.0}}, **asked)])
    with pytest.raises(JobNeverFitsError, match=shown):
        simulate(Cluster.of([kind]), table, "fifo")


def test_gangs_run_on_several_nodes():
    table = JobArrays.of([job("gang", 0, 100, gpus=4), job("one", 0, 100)])
    done = simulate(cluster_of(nodes=2, gpus=2), table, "fifo")
    assert (0, "started", "gang", (0, 1)) in trace(done)
    assert (100, "started", "one", (0,)) in trace(done)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["lookahead", "random-greedy", "local-search", "easy", "fair-share", "srtf", "edf"])
def test_every_job_ends_exactly_once_and_gpus_are_never_shared(solver):
    table = random_jobs(40, 11)
    done = simulate(
        cluster_of(),
        table,
        solver,
        rules=Rules(restart_s=20),
        world=World(restart_s=20, outages=(Outage(1, 3000, 4000),)),
    )
    kinds = [str(e.kind) for e in done.log.since(0)]
    assert kinds.count("completed") == 40
    held: dict[int, dict[int, int]] = {0: {}, 1: {}}
    for e in done.log.since(0):
        for node in (0, 1):
            held[node].pop(e.handle, None)
        if e.kind in ("started", "resumed", "resized", "migrated"):
            for node in e.nodes:
                held[node][e.handle] = e.gpus // len(e.nodes)
    work = np.array([e.gpus for e in done.log.since(0)])
    assert work.max() <= 2
    assert max(s.busy_gpus for s in done.samples) <= 4


@pytest.mark.slow
def test_every_start_stop_and_wait_has_a_reason_and_a_sentence():
    done = simulate(
        cluster_of(), random_jobs(40, 2), "random-greedy", world=World(restart_s=20), rules=Rules(restart_s=20)
    )
    decided = [e for e in done.log.since(0) if e.kind not in ("submitted", "completed")]
    assert decided
    assert all(e.reason and e.sentence for e in decided)


def test_the_engine_is_never_asked_for_more_than_it_can_do():
    """A controller on an engine without preemption sends no Stop."""
    from dataclasses import replace

    from commonwatt.control.controller import Controller
    from commonwatt.control.policy import Policy
    from commonwatt.engines.simulated.engine import SimulatedEngine
    from commonwatt.model.electricity import Electricity
    from commonwatt.model.scenario import PolicySpec

    table = random_jobs(3, 1)
    engine = SimulatedEngine(cluster_of(), table, World())
    engine.capabilities = replace(engine.capabilities, preempt=False)
    controller = Controller(
        cluster=cluster_of(), engine=engine, policy=Policy.of(PolicySpec(solver="random-greedy")), rules=Rules(),
        tariff=Electricity().tariff(), rng=np.random.default_rng(0),
    )  # fmt: skip
    assert controller.rules.preempt is False


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0, 1e6), st.floats(0, 8)), min_size=1, max_size=6))
def test_shares_and_debts_of_tenants_add_up(drawn):
    weights, used, held = (np.array(column) for column in zip(*drawn, strict=True))
    names = [f"t{k}" for k in range(len(drawn))]
    usage = DecayedUsage(1000.0, 0.0)
    usage.gpu_s = used
    given_weights = dict(zip(names, weights.tolist(), strict=True))
    assert usage.shares(names, given_weights, held, 1.0) == ()  # nothing is decided
    usage.entitled = held
    shares = usage.shares(names, given_weights, held, 1.0)
    assert [share.name for share in shares] == names
    assert sum(share.entitled_share for share in shares) == pytest.approx(1.0)
    assert sum(share.debt_gpu_s for share in shares) == pytest.approx(0.0, abs=1e-6 * max(1.0, used.sum()))
    for share in shares:
        if used.sum() == 0:
            assert share.used_share is None
        else:
            owed = (share.entitled_share - share.used_share) * used.sum()
            assert share.debt_gpu_s == pytest.approx(owed, abs=1e-6 * used.sum())
    assert all(share.debt_gpu_s == 0 for share in usage.shares(names, given_weights, held, 0.0))


def test_a_tenant_that_came_after_the_decision_has_no_share_yet():
    usage = DecayedUsage(1000.0, 0.0)
    usage.gpu_s, usage.entitled = np.array([30.0]), np.array([1.0, 2.0])
    shares = usage.shares(["a", "b", "c"], {"b": 2.0}, np.array([1.0, 0.0, 4.0]), 1.0)
    assert [(s.name, s.used_gpu_s, s.debt_gpu_s) for s in shares] == [("a", 30.0, -20.0), ("b", 0.0, 20.0)]


def test_usage_counts_gpus_by_the_weight_of_their_type():
    nodes = [
        NodeSpec(name=kind, gpu_type=kind, gpus=1, idle_w=1.0, gpu_w=1.0, share_weight=weight)
        for kind, weight in (("A100", 2.5), ("T4", 0.5), ("V100", 1.0))
    ]
    each = (("x", "A100"), ("y", "T4"), ("z", "V100"))
    table = JobArrays.of([replace(job(name, 0, 100, tenant=name), times_s={kind: {1: 100.0}}) for name, kind in each])
    done = simulate(Cluster.of(nodes), table, "fair-share", rules=Rules(half_life_s=1e15))
    assert done.usage()[1] == pytest.approx({"x": 250.0, "y": 50.0, "z": 100.0})


def test_usage_for_fair_share_halves_with_its_half_life():
    table = JobArrays.of([job("a", 0, 100, tenant="x"), job("b", 1100, 100, tenant="y")])
    done = simulate(cluster_of(nodes=1, gpus=1), table, "fair-share", rules=Rules(half_life_s=1000, interval_s=1e9))
    x, y = done.usage()[1].values()
    assert y == pytest.approx(100)
    assert x == pytest.approx(100 * 0.5 ** (1100 / 1000))
