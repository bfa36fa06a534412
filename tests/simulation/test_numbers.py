"""Every number of a result, computed a second time from the event log and the definitions alone."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from commonwatt.simulation.record import Record
from commonwatt.simulation.run_setup import slowdowns
from commonwatt.simulation.runner import Prepared
from tests.simulation.made import documents, prepared, run

MANY = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
BEGINS, ENDS = {"started", "resumed", "resized", "migrated"}, {"completed", "preempted", "interrupted"}
Stay = tuple[int, tuple[str, ...], int, float, float, str]  # job, nodes, GPUs, from, to, how it ended


def stays(record: Record) -> list[Stay]:
    """Who held what, from the event log."""
    events, running, found = record.events, {}, []
    for time_s, kind, job, nodes, gpus in zip(
        events.time_s.tolist(), events.kind, events.job.tolist(), events.nodes, events.gpus.tolist(), strict=True
    ):
        if kind in BEGINS | ENDS and job in running:
            found.append((job, *running.pop(job), time_s, kind))
        if kind in BEGINS:
            running[job] = (tuple(nodes.split(",")), gpus, time_s)
    assert not running
    return found


class Again:
    """A run, worked out again: power of nodes by their states, progress of jobs by their epochs."""

    def __init__(self, problem: Prepared, record: Record) -> None:
        self.problem, self.record, self.stays = problem, record, stays(record)
        self.end_s = max(stay[4] for stay in self.stays)
        self.unused = problem.scenario.unused_nodes
        self.down = defaultdict(list)
        for outage in sorted(problem.scenario.outages, key=lambda o: o.from_s):
            spans = self.down[outage.node]
            if spans and outage.from_s <= spans[-1][1]:
                spans[-1] = (spans[-1][0], max(spans[-1][1], outage.to_s))
            else:
                spans.append((outage.from_s, outage.to_s))

    def kind(self, name: str):
        cluster = self.problem.cluster
        return cluster.classes[cluster.klass[cluster.names.index(name)]]

    def taken(self, name: str) -> list[tuple[float, float]]:
        """When the node is held or down, in order, merged."""
        spans = sorted([(s[3], s[4]) for s in self.stays if name in s[1]] + self.down[name])
        merged: list[list[float]] = []
        for begin, end in spans:
            if merged and begin <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([begin, end])
        return [(begin, end) for begin, end in merged]

    def energy_j(self) -> float:
        total = 0.0
        for name in self.problem.cluster.names:
            kind, now_s = self.kind(name), 0.0
            on_s = np.inf
            low_w = 0.0
            if self.unused.state is not None:
                state = kind.state(self.unused.state)
                on_s, low_w = self.unused.after_s + state.enter_s, state.power_w
            for begin, end in [*self.taken(name), (self.end_s, self.end_s)]:
                gap_s = min(begin, self.end_s) - now_s
                if gap_s > 0:
                    total += kind.idle_w * min(gap_s, on_s) + low_w * max(0.0, gap_s - on_s)
                now_s = max(now_s, end)
                down_s = sum(max(0.0, min(b, end, self.end_s) - max(a, begin)) for a, b in self.down[name])
                total += kind.idle_w * (min(end, self.end_s) - min(begin, self.end_s) - down_s)
        return total + sum(
            gpus * self.gpu_w(job, nodes) * (to - begin) for job, nodes, gpus, begin, to, _ in self.stays
        )

    def gpu_w(self, job: int, nodes: tuple[str, ...]) -> float:
        kind = self.kind(nodes[0])
        written = {j.name: j for j in self.problem.scenario.workload.jobs}[self.record.jobs.name[job]]
        return written.gpu_w.get(kind.gpu_type, kind.gpu_w)

    def ready_s(self, name: str, start_s: float) -> float:
        """When the node is on, for a job that starts on it."""
        if self.unused.state is None:
            return start_s
        state = self.kind(name).state(self.unused.state)
        free_s = ready_s = 0.0  # since when it is unused; when it was last switched on
        for begin, end in [*(s for s in self.taken(name) if s[0] < start_s), (start_s, start_s)]:
            if begin - free_s > self.unused.after_s:
                ready_s = max(begin, free_s + self.unused.after_s + state.enter_s) + state.wake_s
            ups = [up_s for _, up_s in self.down[name] if begin <= up_s <= min(end, start_s)]
            if ups:
                ready_s = 0.0
            if end >= start_s:
                break
            free_s = end
        return max(start_s, ready_s)

    def check_progress(self) -> None:
        """Each job is done exactly when its epochs are, with what stopping it costs."""
        scenario, table = self.problem.scenario, self.problem.table
        slow = slowdowns(scenario, len(table), self.problem.seed)
        for job, name in enumerate(self.record.jobs.name):
            row = table.names.index(name)
            epochs, done = int(table.epochs[row]), 0.0
            own = [s for s in self.stays if s[0] == job]
            for k, (_, nodes, gpus, begin, end, how) in enumerate(own):
                gpu_type = table.gpu_types.index(self.kind(nodes[0]).gpu_type)
                rows = range(table.start[row], table.start[row + 1])
                (config,) = (c for c in rows if (table.config_gpus[c], table.config_type[c]) == (gpus, gpu_type))
                epoch_s = table.config_time_s[config] / epochs * (slow[row] if len(slow) else 1.0)
                works_s = max(self.ready_s(n, begin) for n in nodes) + (scenario.preemption.restart_s if k else 0.0)
                reached = done + max(0.0, end - works_s) / epoch_s
                if how == "completed":
                    assert reached == pytest.approx(epochs)
                    assert k == len(own) - 1
                elif scenario.preemption.lose_work:
                    done = max(done, float(np.floor(reached + 1e-9)))
                else:
                    done = reached
                assert done < epochs + 1e-9


@pytest.mark.long
@MANY
@given(documents())
def test_energy_from_stays_and_power_states(document):
    problem = prepared(document)
    _, record = run(problem)
    assert record.result.energy_kwh * 3.6e6 == pytest.approx(Again(problem, record).energy_j(), rel=1e-7, abs=1e-3)


@pytest.mark.long
@MANY
@given(documents())
def test_jobs_end_when_their_work_is_done(document):
    problem = prepared(document)
    _, record = run(problem)
    Again(problem, record).check_progress()


@pytest.mark.long
@MANY
@given(documents())
def test_no_gpu_twice_and_none_of_a_node_that_is_down(document):
    problem = prepared(document)
    _, record = run(problem)
    again = Again(problem, record)
    for name in problem.cluster.names:
        own = [(begin, to, gpus // len(nodes)) for _, nodes, gpus, begin, to, _ in again.stays if name in nodes]
        for at_s, _, _ in own:
            assert sum(g for begin, to, g in own if begin <= at_s < to) <= again.kind(name).gpus
        for begin, to, _ in own:
            assert all(to <= a or begin >= b for a, b in again.down[name])
    segments = sorted(
        zip(*(getattr(record.segments, c).tolist() for c in ("job", "node", "gpus", "from_s", "to_s")), strict=True)
    )
    names = problem.cluster.names
    assert segments == sorted(
        (job, names.index(n), gpus // len(nodes), begin, to)
        for job, nodes, gpus, begin, to, _ in again.stays
        for n in nodes
    )


@pytest.mark.long
@MANY
@given(documents())
def test_times_counts_and_use_from_the_event_log(document):
    problem = prepared(document)
    _, record = run(problem)
    events, result, table = record.events, record.result, problem.table
    at: dict[str, dict[int, float]] = defaultdict(dict)
    for time_s, kind, job in zip(events.time_s.tolist(), events.kind, events.job.tolist(), strict=True):
        at[kind].setdefault(job, time_s)
    count = len(record.jobs.name)
    assert result.jobs == count == len(at["submitted"]) == len(at["started"]) == len(at["completed"])
    jct = [at["completed"][j] - at["submitted"][j] for j in range(count)]
    wait = [at["started"][j] - at["submitted"][j] for j in range(count)]
    due = dict(zip(table.names, table.due_s.tolist(), strict=True))
    weight = dict(zip(table.names, table.tardiness_weight.tolist(), strict=True))
    late = {name: max(0.0, at["completed"][j] - due[name]) for j, name in enumerate(record.jobs.name)}
    assert result.mean_jct_s == pytest.approx(sum(jct) / count)
    assert result.p95_jct_s == pytest.approx(np.quantile(jct, 0.95))
    assert result.mean_wait_s == pytest.approx(sum(wait) / count)
    assert result.p95_wait_s == pytest.approx(np.quantile(wait, 0.95))
    assert result.late_jobs == sum(s > 0 for s in late.values())
    assert [bool(why) for why in record.jobs.why_late] == [late[name] > 0 for name in record.jobs.name]
    assert result.tardiness_cost == pytest.approx(sum(weight[name] * s for name, s in late.items()))
    end_s, first_s = max(at["completed"].values()), min(at["submitted"].values())
    assert result.makespan_s == pytest.approx(end_s - first_s)
    assert result.preemptions == events.kind.count("preempted")
    assert result.migrations == events.kind.count("migrated") + events.kind.count("resized")
    held = sum(gpus * (to - begin) for _, _, gpus, begin, to, _ in stays(record))
    assert result.gpu_utilization == pytest.approx(held / (problem.cluster.total_gpus * (end_s - first_s)))
    assert 0 < result.gpu_utilization <= 1 + 1e-9
    if not problem.scenario.preemption.allowed:
        assert result.preemptions == result.migrations == 0


@pytest.mark.slow
@MANY
@given(documents())
def test_the_ledger_sums_to_the_meter_to_the_last_unit(document):
    problem = prepared(document)
    _, record = run(problem)
    result = record.result
    rows = {row.row: row for row in result.ledger}
    total = rows.pop("total")
    assert sum(row.energy_uj for row in rows.values()) == total.energy_uj
    assert sum(row.cost_n for row in rows.values()) == total.cost_n
    assert sum(row.gpu_us for row in rows.values()) == total.gpu_us
    assert all(row.energy_uj >= 0 and row.cost_n >= 0 and row.gpu_us >= 0 for row in rows.values())
    known = problem.scenario.electricity.carbon_g_per_kwh is not None
    assert (total.carbon_ug is not None) == known
    assert all((row.carbon_ug is not None) == known for row in rows.values() if row.energy_uj)
    if known:
        assert sum(row.carbon_ug for row in rows.values()) == total.carbon_ug
    assert result.energy_kwh * 3.6e12 == pytest.approx(total.energy_uj)
    assert result.energy_cost == pytest.approx(total.cost_n / 1e9)
    assert result.total_cost == pytest.approx(result.energy_cost + result.tardiness_cost)
    assert sum(t.energy_kwh for t in result.tenants) * 3.6e12 == pytest.approx(rows["jobs"].energy_uj)
    assert sum(t.energy_cost for t in result.tenants) == pytest.approx(rows["jobs"].cost_n / 1e9)
    assert sum(t.gpu_hours for t in result.tenants) * 3.6e9 == pytest.approx(rows["jobs"].gpu_us)
    assert sum(t.jobs for t in result.tenants) == result.jobs
    assert sum(t.late_jobs for t in result.tenants) == result.late_jobs
    held = sum(row.gpu_us for name, row in rows.items() if name in ("jobs", "starting", "lost work"))
    assert held / 1e6 == pytest.approx(sum(gpus * (to - begin) for _, _, gpus, begin, to, _ in stays(record)), abs=1e-3)


@pytest.mark.long
@MANY
@given(documents())
def test_cost_by_the_price_of_each_moment(document):
    """Energy cost lies between all energy at the lowest and at the highest price; equal where there is one price."""
    problem = prepared(document)
    _, record = run(problem)
    site = problem.scenario.electricity
    prices = [point.price_per_kwh for point in site.series] or [site.price_per_kwh]
    each = record.result.energy_kwh * site.pue
    assert min(prices) * each * (1 - 1e-6) - 1e-6 <= record.result.energy_cost <= max(prices) * each * (1 + 1e-6) + 1e-6


@pytest.mark.long
@MANY
@given(documents(most=9))
def test_nobody_does_it_for_less_than_the_lower_bound(document):
    _, record = run(prepared(document))
    assert 0 <= record.result.lower_bound_cost <= record.result.total_cost * (1 + 1e-6) + 1e-7


@pytest.mark.slow
@settings(MANY, max_examples=8)
@given(documents(most=3, solvers=("exact",)))
def test_nor_do_exact_decisions(document):
    _, record = run(prepared(document))
    assert record.result.lower_bound_cost <= record.result.total_cost * (1 + 1e-6) + 1e-7
