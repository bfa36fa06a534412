"""Jobs wait for a lower price, and nodes stay below their power cap, under every solver."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.control.controller import Controller
from commonwatt.control.events import EventKind
from commonwatt.control.job_registry import Rules
from commonwatt.data.files import load_yaml
from commonwatt.engines.simulated.engine import World
from commonwatt.model.electricity import Electricity, ElectricityPoint
from commonwatt.model.explanation import Reason
from commonwatt.model.jobs import Job, JobArrays
from commonwatt.model.nodes import Cluster, NodeSpec
from commonwatt.model.scenario import PolicyLimits, PriceWait, Scenario
from commonwatt.placement import lower_bound
from commonwatt.simulation.runner import run_seeds
from commonwatt.simulation.workload import prepare
from tests.control.test_guarantees import BACKFILL, QUICK, SOLVERS
from tests.control.worlds import cluster_of, job, simulate

HOUR = 3600.0
EXAMPLES = Path(__file__).parents[2] / "examples"
DAY = {"00:00": 0.05, "07:00": 0.50, "22:00": 0.05}
NIGHTS = Electricity(daily=DAY, pue=1.0)
ONE = Cluster.of([NodeSpec(name="n", gpu_type="V100", gpus=1, idle_w=400, gpu_w=160)])
FREE = World(lose_work=False)
WAITS = PriceWait()


def cost_of(controller: Controller) -> float:
    late_s = np.maximum(0.0, controller.registry.job("ended_s") - controller.registry.job("due_s"))
    return controller.ledger.meter.cost_n / 1e9 + float(np.sum(controller.registry.job("weight") * late_s))


def late(controller: Controller) -> set[str]:
    registry = controller.registry
    over_s = registry.job("ended_s") - registry.job("due_s")
    return {name for name, s in zip(registry.names, over_s.tolist(), strict=True) if s > 1e-6}


def starts_h(controller: Controller) -> dict[str, float]:
    began_s = controller.registry.job("began_s") / HOUR
    return dict(zip(controller.registry.names, began_s.round(6).tolist(), strict=True))


def one_job(**more) -> JobArrays:
    return JobArrays.of([job("a", 9 * HOUR, HOUR, **{"due_s": 33 * HOUR, **more})])


# -- the price


@pytest.mark.parametrize("solver", SOLVERS)
def test_an_hour_with_a_day_of_slack_runs_at_night(solver):
    """0.56 kWh at 0.50 or at 0.05: 0.28 without waiting, 0.028 with it, which is the bound."""
    assert cost_of(simulate(ONE, one_job(), solver, electricity=NIGHTS)) == pytest.approx(0.28)
    done = simulate(ONE, one_job(), solver, electricity=NIGHTS, wait_for_price=WAITS)
    assert cost_of(done) == pytest.approx(0.028)
    assert starts_h(done) == {"a": 22.0}
    assert lower_bound(one_job(), ONE, NIGHTS.tariff()) == pytest.approx(0.028)


def test_the_reason_says_until_when_and_what_is_saved():
    done = simulate(ONE, one_job(), "easy", electricity=NIGHTS, wait_for_price=WAITS)
    (event,) = [event for event in done.log.since(0) if event.kind is EventKind.WAITS]
    assert event.reason == Reason.LOWER_PRICE
    assert event.why.starts_within_s == pytest.approx(13 * HOUR)
    assert event.why.saved == pytest.approx(0.252)
    assert event.why.saved_part == pytest.approx(0.9)
    assert event.why.spare_s == pytest.approx(10 * HOUR)
    assert event.sentence == (
        "a waits for a lower price of electricity in 13.0 h; it saves €0.25 (90%), "
        "and ends 10.0 h before its due date or earlier"
    )


@pytest.mark.parametrize(
    ("states", "unused", "kwh_asleep"),
    [([{"name": "off"}], "off", 0.0), ([{"name": "sleep", "power_w": 20}], "sleep", 13 * 0.02), ([], None, 13 * 0.4)],
)
def test_while_a_job_waits_its_node_is_charged_as_it_is(states, unused, kwh_asleep):
    """From 9:00 on: 13 h off, asleep or idle at 0.50, then an hour of work at 0.05."""
    node = NodeSpec(name="n", gpu_type="V100", gpus=1, idle_w=400, gpu_w=160, states=states)
    world = World(unused_state=unused)
    done = simulate(Cluster.of([node]), one_job(), "fifo", electricity=NIGHTS, wait_for_price=WAITS, world=world)
    before = 9 * (kwh_asleep / 13)  # until 9:00: 7 h at 0.05, 2 h at 0.50
    assert cost_of(done) == pytest.approx(0.028 + 0.5 * kwh_asleep + before / 9 * (7 * 0.05 + 2 * 0.5))


def test_who_has_no_time_does_not_wait():
    """Due at 22:30 without the margin: half of it at night; with 10 min of margin less, due at 21:00 nothing."""
    for due_h, margin_s, start_h in ((22.5, 0.0, 21.5), (22.5, 600.0, 21.5 - 1 / 6), (21.0, 0.0, 9.0)):
        spec = PriceWait(margin_s=margin_s)
        done = simulate(ONE, one_job(due_s=due_h * HOUR), "fifo", electricity=NIGHTS, wait_for_price=spec)
        assert starts_h(done) == {"a": pytest.approx(start_h, abs=1e-4)}
        assert not late(done)


@pytest.mark.parametrize(("allowed_h", "start_h"), [(0, 9.0), (5, 9.0), (13, 22.0), (24, 22.0)])
def test_without_a_due_date_a_job_waits_as_long_as_it_may(allowed_h, start_h):
    spec = PriceWait(may_wait_s=allowed_h * HOUR)
    done = simulate(ONE, one_job(due_s=np.inf), "fifo", electricity=NIGHTS, wait_for_price=spec)
    assert starts_h(done) == {"a": start_h}


def test_a_limit_on_deliberate_waiting_holds_unless_waiting_is_priced():
    limits = PolicyLimits(max_deliberate_wait_s=2 * HOUR)
    given = {"electricity": NIGHTS, "limits": limits}
    assert starts_h(simulate(ONE, one_job(), "fifo", wait_for_price=WAITS, **given)) == {"a": 9.0}
    for an_hour, start_h in ((0.01, 22.0), (0.02, 9.0)):  # 13 h of waiting cost 0.13 or 0.26; 0.252 is saved
        spec = PriceWait(delay_cost_per_h=an_hour)
        assert starts_h(simulate(ONE, one_job(), "fifo", wait_for_price=spec, **given)) == {"a": start_h}


def test_prices_that_are_not_known_yet_are_not_waited_for():
    for known_h, start_h in ((12, 9.0), (15, 22.0)):
        spec = PriceWait(known_s=known_h * HOUR)
        assert starts_h(simulate(ONE, one_job(), "fifo", electricity=NIGHTS, wait_for_price=spec)) == {"a": start_h}


def test_less_carbon_is_waited_for_in_the_same_way():
    points = [
        ElectricityPoint(from_s=0, price_per_kwh=0.1, carbon_g_per_kwh=500),
        ElectricityPoint(from_s=12 * HOUR, price_per_kwh=0.2, carbon_g_per_kwh=100),
        ElectricityPoint(from_s=15 * HOUR, price_per_kwh=0.1, carbon_g_per_kwh=500),
    ]
    site = Electricity(series=points, pue=1.0)
    for spec, start_h in (
        (WAITS, 9.0), (PriceWait(minimise="carbon"), 12.0), (PriceWait(carbon_price_per_kg=0.2), 9.0),
        (PriceWait(carbon_price_per_kg=0.5), 12.0),
    ):  # fmt: skip
        done = simulate(ONE, one_job(), "fifo", electricity=site, wait_for_price=spec)
        assert starts_h(done) == {"a": start_h}
    done = simulate(ONE, one_job(), "fifo", electricity=site, wait_for_price=PriceWait(minimise="carbon"))
    why = next(event.why for event in done.log.since(0) if event.why is not None)
    assert why.reason == Reason.LESS_CARBON
    assert why.saved == pytest.approx(0.56 * 0.4)
    assert "kg of CO2" in why.sentence


@pytest.mark.slow
def test_those_who_wait_for_the_same_night_do_not_all_start_at_its_beginning():
    """12 jobs of 1 h on one GPU, cheap for 9 h: nine at night, and three more in time, before or after."""
    table = JobArrays.of([job(f"j{i}", 9 * HOUR, HOUR, due_s=33 * HOUR) for i in range(12)])
    done = simulate(ONE, table, "fifo", electricity=NIGHTS, wait_for_price=WAITS)
    at_night = [h for h in starts_h(done).values() if 22 <= h <= 30]
    assert len(at_night) == 9
    assert not late(done)
    assert cost_of(done) == pytest.approx(9 * 0.028 + 3 * 0.28)
    assert cost_of(done) == pytest.approx(lower_bound(table, ONE, NIGHTS.tariff()), rel=1e-6)


@pytest.mark.parametrize("solver", ["fifo", "lookahead", "easy"])
def test_one_who_waits_lets_others_go_first_who_cannot(solver):
    """At 21:30 come six jobs that are due one after the other: the one that waits for 22:00 starts after them."""
    urgent = [job(f"u{i}", 21.5 * HOUR, HOUR, due_s=(22.5 + i) * HOUR) for i in range(6)]
    table = JobArrays.of([job("waits", 9 * HOUR, 2 * HOUR, due_s=33 * HOUR), *urgent])
    done = simulate(ONE, table, solver, electricity=NIGHTS, wait_for_price=WAITS)
    assert starts_h(done)["waits"] == 27.5
    assert not late(done)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 4, 6])
def test_jobs_that_run_in_planned_hours_are_not_stopped_for_others(seed):
    """Of a solver that sees one moment, 6 to 31 were: what it started last, at a price that others had waited for."""
    rng, jobs = np.random.default_rng(seed), []
    for i in range(14):
        time_s, submit_s = HOUR * float(np.exp(rng.normal(0.7, 0.8))), HOUR * float(rng.uniform(6, 40))
        gpus = int(rng.choice([1, 2, 4]))
        times = {"V100": {g: time_s * (gpus / g) ** 0.85 for g in (1, 2, 4)}}
        own = {"epochs": max(1, round(time_s / 600)), "requested_gpus": gpus}
        jobs.append(Job(f"j{i}", "t", submit_s, submit_s + time_s + 24 * HOUR, 2e-4 * gpus, times, **own))
    table = JobArrays.of(sorted(jobs, key=lambda one: one.submit_s))
    falls = Electricity(daily={"06:00": 0.3, "11:00": 0.2, "17:00": 0.4, "23:00": 0.1}, pue=1.0)
    node = Cluster.of([NodeSpec(name="n", gpu_type="V100", gpus=4, idle_w=150, gpu_w=250)])
    plain = simulate(node, table, "lookahead", electricity=falls)
    waits = simulate(node, table, "lookahead", electricity=falls, wait_for_price=PriceWait(known_s=24 * HOUR))
    assert not [event for event in waits.log.since(0) if event.kind in (EventKind.PREEMPTED, EventKind.RESIZED)]
    assert not late(waits)
    assert cost_of(waits) < 0.9 * cost_of(plain)


def test_the_cheaper_of_two_plans_counts():
    """Priced hours give the night to a long job, and `sweep`, which needs all GPUs for 2 h, would run by day."""
    file = load_yaml(EXAMPLES / "price.yaml", Scenario)
    (result,), _ = run_seeds([prepare(file, EXAMPLES, 0)])
    waits, pauses = (one for one in result.policies if one.policy.startswith("waits"))
    assert waits.total_cost == pytest.approx(2.10, abs=0.01)  # the long job begins when `sweep` has ended
    assert pauses.total_cost < waits.total_cost
    assert (waits.most_starts, pauses.most_starts) == (1, 2)


def test_who_waits_for_the_gpus_of_a_planned_job_is_told_so():
    """Which `srtf` would stop for one that is shorter; it does where that one would else be late."""

    def ran(due_h: float):
        waits = job("waits", 9 * HOUR, 8 * HOUR, due_s=33 * HOUR)
        table = JobArrays.of([waits, job("short", 23 * HOUR, HOUR, due_s=due_h * HOUR)])
        return simulate(ONE, table, "srtf", electricity=NIGHTS, wait_for_price=WAITS)

    told = [event.sentence for event in ran(np.inf).log.since(0) if event.kind is EventKind.WAITS]
    assert told[-1].endswith("of jobs that are not stopped, as they run in the hours planned for them (wait_for_price)")
    assert starts_h(ran(np.inf)) == {"waits": 22.0, "short": 30.0}
    assert starts_h(ran(24.5)) == {"waits": 22.0, "short": 23.0}


# -- pauses

PAUSES = PriceWait(preempt=True)
FOUR = Cluster.of([NodeSpec(name="n", count=4, gpu_type="V100", gpus=1, idle_w=400, gpu_w=160)])


def paused(table: JobArrays, spec: PriceWait | None, *, lose: bool = True, **more) -> Controller:
    world, rules = World(restart_s=60.0, lose_work=lose), Rules(restart_s=60.0)
    return simulate(FOUR, table, "fifo", electricity=NIGHTS, world=world, rules=rules, wait_for_price=spec, **more)


def long_job(epochs: int = 120) -> JobArrays:
    """20 h from 9:00, due 48 h later: two nights have 18 h."""
    return JobArrays.of([job("a", 9 * HOUR, 20 * HOUR, due_s=57 * HOUR, epochs=epochs)])


@pytest.mark.slow
def test_a_long_job_pauses_by_day():
    """At 0.56 kW: 18 h of 20 are night; a pause costs a restart, and the work since the last snapshot."""
    table = long_job()
    assert cost_of(paused(table, None)) == pytest.approx(0.56 * (13 * 0.5 + 7 * 0.05))
    once, pauses = paused(table, WAITS), paused(table, PAUSES)
    bound = lower_bound(table, FOUR, NIGHTS.tariff())
    assert bound == pytest.approx(0.56 * (18 * 0.05 + 2 * 0.5))
    assert bound <= cost_of(pauses) < 0.75 * cost_of(once)
    assert not late(pauses)
    event, *_ = [event for event in pauses.log.since(0) if event.kind is EventKind.PREEMPTED]
    assert event.reason == Reason.LOWER_PRICE
    assert event.sentence.startswith("a is preempted on n-1, and waits for a lower price of electricity in ")


@pytest.mark.slow
def test_no_pause_that_costs_more_than_it_saves():
    """One epoch: a pause by day loses all work of the night."""
    done = paused(long_job(epochs=1), PAUSES)
    assert not [event for event in done.log.since(0) if event.kind is EventKind.PREEMPTED]
    assert not late(done)


@pytest.mark.parametrize("limits", [PolicyLimits(max_starts=1), PolicyLimits(min_run_s=1e6)])
def test_limits_keep_a_job_from_pausing(limits):
    done = paused(long_job(), PAUSES, limits=limits)
    assert not [event for event in done.log.since(0) if event.kind is EventKind.PREEMPTED]


@pytest.mark.long
@given(
    jobs=st.lists(
        st.tuples(st.sampled_from([0.5, 3.0, 11.0]), st.sampled_from([0.0, 9.0, 24.0, 40.0])), min_size=1, max_size=5
    )
)
@settings(max_examples=25, deadline=None)
def test_jobs_that_pause_are_late_only_if_they_would_have_been(jobs):
    table = JobArrays.of(
        job(f"j{i}", 9 * HOUR, h * HOUR, due_s=(9 + h + slack) * HOUR, epochs=40) for i, (h, slack) in enumerate(jobs)
    )
    plain, pauses = paused(table, None), paused(table, PAUSES)
    assert late(pauses) <= late(plain)
    assert cost_of(pauses) >= lower_bound(table, FOUR, NIGHTS.tariff()) * (1 - 1e-6)


@st.composite
def with_slack(draw: st.DrawFn) -> JobArrays:
    """Jobs of one size each, all there at 9:00, some without slack or due date."""
    jobs = []
    for i in range(draw(st.integers(1, 9))):
        time_s = draw(st.sampled_from([0.2, 1.0, 3.0, 7.5])) * HOUR
        slack_s = draw(st.sampled_from([0.0, 0.3, 5.0, 14.0, 24.0, np.inf])) * HOUR
        size = draw(st.sampled_from([1, 1, 2]))
        jobs.append(job(f"j{i}", 9 * HOUR, time_s, size, due_s=9 * HOUR + time_s + slack_s))
    return JobArrays.of(jobs)


CURVES = st.sampled_from([
    NIGHTS, Electricity(daily={"00:00": 0.1, "06:00": 0.3, "11:00": 0.08, "17:00": 0.4, "21:00": 0.2}, pue=1.0)
])  # fmt: skip


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("solver", ["fifo", "easy", "edf", "lookahead", "random-greedy", "srtf"])
@given(table=with_slack(), site=CURVES)
@settings(max_examples=20, deadline=None)
def test_with_certain_run_times_nobody_is_late_where_nobody_would_have_been(solver, table, site):
    """Under solvers that see due dates as the plan does; rules may start jobs that are released together otherwise."""
    given_ = {"electricity": site, "world": FREE}
    plain = simulate(cluster_of(2, 2), table, solver, **given_)
    waits = simulate(cluster_of(2, 2), table, solver, wait_for_price=PriceWait(margin_s=0.0), **given_)
    if solver in ("lookahead", "random-greedy") and not late(plain):
        assert not late(waits)
    assert cost_of(waits) >= lower_bound(table, cluster_of(2, 2), site.tariff()) * (1 - 1e-6) - 1e-9


@pytest.mark.parametrize(
    ("solver", "jobs"),
    [
        ("edf", [(7.5, 5.0, 1), (7.5, np.inf, 2), (3.0, 0.3, 2)]),
        ("fifo", [(3.0, 0.3, 2), (3.0, 0.0, 2), (7.5, 5.0, 2)]),
    ],
)
def test_no_job_takes_the_room_that_one_which_is_held_needs_in_time(solver, jobs):
    """Held for 18 minutes, the job of 3 h would lose its GPUs to one of 7.5 h that the plan has behind it."""
    table = JobArrays.of(
        job(f"j{i}", 9 * HOUR, h * HOUR, size, due_s=(9 + h + slack) * HOUR) for i, (h, slack, size) in enumerate(jobs)
    )
    falls = Electricity(daily={"06:00": 0.3, "11:00": 0.08, "17:00": 0.4}, pue=1.0)
    done = simulate(
        cluster_of(2, 2), table, solver, electricity=falls, world=FREE, wait_for_price=PriceWait(margin_s=0.0)
    )
    assert not late(done)


@pytest.mark.slow
@pytest.mark.parametrize("solver", QUICK)
@given(table=with_slack())
@settings(max_examples=5, deadline=None)
def test_at_a_constant_price_nothing_changes(solver, table):
    plain = simulate(cluster_of(2, 2), table, solver, iterations=5)
    waits = simulate(cluster_of(2, 2), table, solver, iterations=5, wait_for_price=PriceWait(may_wait_s=1e5))
    assert [event.sentence for event in waits.log.since(0)] == [event.sentence for event in plain.log.since(0)]
    assert waits.ledger.meter == plain.ledger.meter


# -- the power cap


def most_w(controller: Controller, table: JobArrays) -> list[tuple[float, float]]:
    """Power of the cluster in each piece of time between events, from which jobs had which GPUs."""
    edges, steps = set(), []
    for event in controller.log.since(0):
        edges.add(float(event.time_s))
    run: dict[int, tuple[tuple[int, ...], int]] = {}
    log = sorted(controller.log.since(0), key=lambda event: event.time_s)
    for time_s in sorted(edges):
        for event in (event for event in log if event.time_s == time_s):
            if event.kind in {EventKind.STARTED, EventKind.RESUMED, EventKind.MIGRATED, EventKind.RESIZED}:
                run[event.handle] = event.nodes, event.gpus
            if event.kind in {EventKind.PREEMPTED, EventKind.COMPLETED, EventKind.INTERRUPTED}:
                run.pop(event.handle, None)
        on = {node for nodes, _ in run.values() for node in nodes}
        steps.append((time_s, 100.0 * len(on) + 100.0 * sum(gpus for _, gpus in run.values())))
    return steps


@st.composite
def crowds(draw: st.DrawFn) -> JobArrays:
    jobs, at_s = [], 0.0
    for i in range(draw(st.integers(1, 10))):
        at_s += draw(st.sampled_from([0.0, 100.0, 1500.0]))
        alone_s = draw(st.sampled_from([300.0, 2000.0, 6000.0]))
        sizes = draw(st.sampled_from([(1,), (2,), (1, 2), (1, 2, 4)]))
        jobs.append(Job(
            f"j{i}", "t", at_s, at_s + draw(st.sampled_from([alone_s, 4 * alone_s, np.inf])), 1e-3,
            {"V100": {g: alone_s / g**0.8 for g in sizes}}, epochs=draw(st.sampled_from([1, 8])),
            requested_gpus=sizes[0],
        ))  # fmt: skip
    return JobArrays.of(jobs)


@pytest.mark.slow
@pytest.mark.parametrize("solver", QUICK)
@given(
    table=crowds(), caps=st.lists(st.sampled_from([400.0, 500.0, 700.0]), min_size=1, max_size=4), free=st.booleans()
)
@settings(max_examples=12, deadline=None)
def test_nodes_never_draw_more_than_the_cap(solver, table, caps, free):
    """A 2-GPU job alone takes 300 W on a node, 400 W on two; without preemption starts look ahead."""
    points = [ElectricityPoint(from_s=1700.0 * k, price_per_kwh=0.1, power_cap_w=cap) for k, cap in enumerate(caps)]
    rules = Rules(interval_s=300.0, preempt=free)
    wait = PriceWait() if free else None
    done = simulate(
        cluster_of(3, 2), table, solver, rules=rules, world=FREE, iterations=5, wait_for_price=wait,
        electricity=Electricity(series=points),
    )  # fmt: skip
    cap = done.tariff.cap_w
    for time_s, drawn_w in most_w(done, table):
        assert drawn_w <= float(cap.at(time_s)) + 1e-6
    for sample in done.samples:
        assert sample.power_w <= float(cap.at(sample.time_s)) + 1e-6
    assert np.isfinite(done.registry.job("ended_s")).all()


def test_what_does_not_fit_under_the_cap_waits_and_says_so():
    """Two 1-GPU jobs fit on one node under 350 W (300 W); the third waits for one of them."""
    table = JobArrays.of([job(f"j{i}", 0.0, 1000.0) for i in range(3)])
    done = simulate(cluster_of(2, 2), table, "fifo", electricity=Electricity(power_cap_w=350.0))
    (event,) = [event for event in done.log.since(0) if event.reason == Reason.POWER_CAP]
    assert event.sentence == ("j2 waits: with 1 GPU more, the nodes would draw more than their power cap allows")
    assert sorted(starts_h(done).values()) == [0.0, 0.0, pytest.approx(1000 / HOUR, abs=1e-5)]


def test_where_the_cap_falls_jobs_that_would_be_above_it_are_not_started_or_else_stopped():
    """From 1000 s on one of the two nodes: a job of 2000 s starts only if it may run on beside the other one."""
    points = [
        ElectricityPoint(from_s=t, price_per_kwh=0.1, power_cap_w=w) for t, w in ((0, 800), (1000, 250), (4000, 800))
    ]
    table = JobArrays.of([job("a", 0.0, 2000.0, 2), job("b", 0.0, 900.0, 2)])
    site = Electricity(series=points)
    done = simulate(cluster_of(2, 2), table, "fifo", electricity=site, rules=Rules(preempt=False))
    assert starts_h(done)["a"] == pytest.approx(4000 / HOUR, abs=1e-5)
    assert starts_h(done)["b"] == 0.0


def test_under_a_cap_jobs_wait_for_the_night_only_as_power_allows():
    """Under 900 W only one of two nodes of 560 W runs: two jobs one after the other, both at night."""
    cluster = Cluster.of([NodeSpec(name="n", count=2, gpu_type="V100", gpus=1, idle_w=400, gpu_w=160)])
    table = JobArrays.of([job(f"j{i}", 9 * HOUR, HOUR, due_s=33 * HOUR) for i in range(2)])
    site = Electricity(daily=DAY, pue=1.0, power_cap_w=900.0)
    done = simulate(cluster, table, "fifo", electricity=site, wait_for_price=WAITS)
    assert sorted(starts_h(done).values()) == [22.0, 23.0]
    assert cost_of(done) == pytest.approx(2 * 0.028)


def test_backfill_is_in_the_tests_of_every_solver():
    assert set(BACKFILL) <= set(QUICK) <= set(SOLVERS)
