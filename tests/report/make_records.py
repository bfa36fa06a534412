"""Seeded synthetic runs: consistent with themselves (no GPU held twice), not the work of any real scheduler."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.model.nodes import Cluster, NodeSpec
from commonwatt.model.results import LedgerRow, PolicyResult, SimulationResult, TenantResult
from commonwatt.simulation.record import EventColumns, JobColumns, Record, SampleColumns, Segments
from commonwatt.simulation.reference import ReferenceRuns
from commonwatt.simulation.summary import percentiles_s, service_fields

PRICE = 0.172 * 1.33  # EUR/kWh, PUE included


@dataclass(frozen=True)
class Size:
    nodes: int
    gpus: int
    jobs: int
    tenants: int
    span_s: float
    mean_run_s: float
    spread: float = 1.3


SMALL = Size(nodes=3, gpus=4, jobs=8, tenants=3, span_s=1500.0, mean_run_s=2500.0, spread=0.6)
MEDIUM = Size(nodes=24, gpus=4, jobs=600, tenants=12, span_s=3 * 86400.0, mean_run_s=14000.0)
LARGE = Size(nodes=1000, gpus=8, jobs=100_000, tenants=40, span_s=7 * 86400.0, mean_run_s=19000.0)

SLOWNESS = {"lookahead": 1.0, "random-greedy": 1.05, "easy": 1.2, "fair-share": 1.25, "fifo": 1.5}


def make(
    size: Size, policies: tuple[str, ...] = tuple(SLOWNESS), seed: int = 1, **overrides: object
) -> tuple[SimulationResult, list[Record]]:
    """Return a result and its records. *overrides*: columns of ``JobColumns`` to replace, such as ``name``."""
    records = [make_record(size, policy, seed, **overrides) for policy in policies]
    return make_result(records, seed), records


def make_result(records: list[Record], seed: int = 1, **fields: object) -> SimulationResult:
    cluster = records[0].cluster
    facts = {
        "version": "0.1.0",
        "seed": seed,
        "input_digest": "5f" * 32,
        "scenario": "synthetic week",
        "workload": "Jobs drawn with a seed, for tests.",
        "currency": "EUR",
        "jobs": len(records[0].jobs.name),
        "nodes": len(cluster),
        "gpus": cluster.total_gpus,
        "policies": tuple(record.result for record in records),
    }
    return SimulationResult(**(facts | fields))


def make_record(size: Size, policy: str, seed: int = 1, **overrides: object) -> Record:
    rng = np.random.default_rng(seed)
    half = max(1, size.nodes // 2)
    specs = [NodeSpec(name="v100", count=half, gpu_type="V100", gpus=size.gpus, idle_w=150, gpu_w=250)]
    if size.nodes > half:
        specs.append(NodeSpec(name="t4", count=size.nodes - half, gpu_type="T4", gpus=size.gpus, idle_w=100, gpu_w=70))
    cluster = Cluster.of(specs)
    count = size.jobs
    submit = np.sort(rng.uniform(0, size.span_s, count))
    submit[0] = 0.0
    # Few users submit most of the jobs.
    tenant = np.minimum(rng.geometric(min(1.0, 2.2 / size.tenants), count) - 1, size.tenants - 1)
    gpus = np.minimum(2 ** rng.geometric(0.45, count) // 2, size.gpus).astype(np.int64)
    fastest = rng.lognormal(0, size.spread, count) * size.mean_run_s / np.exp(size.spread**2 / 2)
    slow = SLOWNESS.get(policy, 1.1)
    run = fastest * (1 + (slow - 1) * rng.random(count))
    node, begin = _place(rng, cluster, submit, gpus, run)
    end = begin + run
    due = submit + 100 + fastest * rng.uniform(1.5, 4, count)
    due[rng.random(count) < 0.05] = np.inf
    weight = rng.choice([0.0001, 0.0002, 0.0005], count) * gpus
    segments, starts = _segments(rng, node, gpus, begin, end)
    samples = _samples(cluster, submit, begin, end, gpus)
    late = np.maximum(0, end - due)
    energy_j = gpus * run * 290.0
    columns = {
        "name": tuple(f"job-{i:0{len(str(count))}}" for i in range(count)),
        "tenant": tuple(f"team-{t:02}" for t in tenant.tolist()),
        "submit_s": submit, "due_s": due, "began_s": begin, "ended_s": end, "tardiness_weight": weight,
        "starts": starts, "energy_j": energy_j, "energy_cost": energy_j / 3.6e6 * PRICE, "gpu_s": gpus * run,
        "fastest_s": fastest, "why_late": tuple(_why(x, w) for x, w in zip(late, begin - submit, strict=True)),
    }  # fmt: skip
    jobs = JobColumns(**(columns | overrides))
    return Record(
        policy, cluster, _policy_result(policy, cluster, jobs, samples, _service(cluster, jobs, segments)), jobs,
        segments, samples, _no_events(),
    )  # fmt: skip


def _place(rng, cluster, submit, gpus, run):
    """Each job, in order, goes to the earlier free of two nodes drawn at random."""
    free = [np.zeros(g) for g in cluster.gpus.tolist()]
    pairs = rng.integers(0, len(cluster), (len(submit), 2))
    node, begin = np.zeros(len(submit), dtype=np.int64), np.zeros(len(submit))
    for i, (a, b) in enumerate(pairs.tolist()):
        g = int(gpus[i])
        chosen = a if free[a][g - 1] <= free[b][g - 1] else b
        begin[i] = max(submit[i], free[chosen][g - 1])
        free[chosen][:g] = begin[i] + run[i]
        free[chosen].sort()
        node[i] = chosen
    return node, begin


def _segments(rng, node, gpus, begin, end):
    """One job in ten was stopped half-way and went on at once."""
    twice = rng.random(len(node)) < 0.1
    middle = (begin + end) / 2
    jobs = np.arange(len(node))
    job = np.concatenate([jobs, jobs[twice]])
    first_end = np.where(twice, middle, end)
    segments = Segments(
        job,
        node[job],
        gpus[job],
        np.concatenate([begin, middle[twice]]),
        np.concatenate([first_end, end[twice]]),
    )
    return segments, 1 + twice.astype(np.int64)


def _samples(cluster, submit, begin, end, gpus):
    times, inverse = np.unique(np.concatenate([submit, begin, end]), return_inverse=True)
    n = len(submit)

    def level(at_submit, at_begin, at_end):
        steps = np.concatenate([at_submit, at_begin, at_end])
        return np.bincount(inverse, steps, len(times)).cumsum().round().astype(np.int64)

    one, none = np.ones(n), np.zeros(n)
    busy = level(none, gpus, -gpus)
    running = level(none, one, -one)
    waiting = level(one, -one, none)
    each = cluster.total_gpus / len(cluster)
    power = 170.0 * busy + 130.0 * np.ceil(busy / each)
    return SampleColumns(times, busy, power, running, waiting, np.full(len(times), cluster.total_gpus), busy)


def _service(cluster, jobs, segments):
    gpus = np.maximum(1, np.rint(jobs.gpu_s / (jobs.ended_s - jobs.began_s))).astype(np.int64)
    reference = ReferenceRuns(jobs.fastest_s, gpus, jobs.energy_j)
    return service_fields(jobs, segments, reference, np.arange(len(jobs.name)), cluster.total_gpus)


def _policy_result(policy, cluster, jobs, samples, service):
    span = jobs.ended_s.max() - jobs.submit_s.min()
    energy_j = float(np.sum(samples.power_w[:-1] * np.diff(samples.time_s)))
    cost, tardiness = energy_j / 3.6e6 * PRICE, float(jobs.tardiness_cost.sum())
    jct = jobs.ended_s - jobs.submit_s
    return PolicyResult(
        policy=policy, energy_kwh=energy_j / 3.6e6, energy_cost=cost, carbon_kg=energy_j / 3.6e6 * 0.3,
        tardiness_cost=tardiness, total_cost=cost + tardiness,
        lower_bound_cost=_bound(jobs),
        jobs=len(jobs.name), late_jobs=int((jobs.late_s > 0).sum()), mean_jct_s=float(jct.mean()),
        p95_jct_s=float(np.quantile(jct, 0.95)), **service,
        window_energy_kwh=energy_j / 3.6e6 * 0.9, window_cost=cost * 0.9, window_gpu_utilization=0.5,
        unfinished_energy_kwh=energy_j / 3.6e6 * 0.1, tail_s=float(jobs.ended_s.max() - jobs.submit_s.max()),
        tail_energy_kwh=energy_j / 3.6e6 * 0.2,
        makespan_s=float(span), preemptions=int((jobs.starts > 1).sum()), migrations=0,
        gpu_utilization=float(jobs.gpu_s.sum() / span / cluster.total_gpus), decisions=len(samples.time_s),
        tenants=_tenants(jobs), ledger=_ledger(jobs, energy_j, cost),
    )  # fmt: skip


def _bound(jobs):
    """The same for every policy: GPU time at the speed of ``fastest_s``, at a power below all nodes'."""
    least_gpu_s = jobs.fastest_s * jobs.gpu_s / (jobs.ended_s - jobs.began_s)
    return float(least_gpu_s.sum()) * 150 / 3.6e6 * PRICE


def _tenants(jobs):
    names = np.array(jobs.tenant)
    found = []
    for name in sorted(set(jobs.tenant)):
        mine = names == name
        found.append(
            TenantResult(
                tenant=name, jobs=int(mine.sum()), late_jobs=int((jobs.late_s[mine] > 0).sum()),
                energy_kwh=float(jobs.energy_j[mine].sum() / 3.6e6), energy_cost=float(jobs.energy_cost[mine].sum()),
                tardiness_cost=float(jobs.tardiness_cost[mine].sum()), gpu_hours=float(jobs.gpu_s[mine].sum() / 3600),
                mean_jct_s=float((jobs.ended_s - jobs.submit_s)[mine].mean()),
                mean_wait_s=float((jobs.began_s - jobs.submit_s)[mine].mean()),
                **percentiles_s((jobs.began_s - jobs.submit_s)[mine]),
            )
        )  # fmt: skip
    return tuple(found)


def _ledger(jobs, energy_j, cost):
    gpu_us = int(jobs.gpu_s.sum() * 1e6)
    rows = []
    for name, share in (
        ("jobs", 0.83),
        ("idle", 0.12),
        ("starting", 0.02),
        ("lost work", 0.03),
        ("waking", 0.0),
        ("total", 1.0),
    ):
        rows.append(
            LedgerRow(
                row=name, energy_uj=int(energy_j * share * 1e6), cost_n=int(cost * share * 1e9),
                carbon_ug=int(energy_j / 3.6e6 * 0.3 * share * 1e9), gpu_us=int(gpu_us * share),
            )
        )  # fmt: skip
    return tuple(rows)


def _why(late_s, wait_s):
    if late_s <= 0:
        return ""
    return f"It waited {wait_s / 60:.0f} min because every node that could run it was taken by jobs due earlier."


def _no_events():
    empty = np.zeros(0)
    return EventColumns(empty, (), empty.astype(np.int64), (), empty.astype(np.int64), (), (), empty)
