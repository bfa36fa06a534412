"""A control plane of which everything is known, as far as metrics go."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from commonwatt.control.usage import TenantShare
from commonwatt.controlplane.feed import Counters
from commonwatt.controlplane.snapshot import Snapshot, SnapshotJob, SnapshotNode
from commonwatt.model.errors import EngineDownError, StoreError
from commonwatt.model.job_file import JobFile
from commonwatt.service.metrics import metrics_page
from commonwatt.service.middleware import HttpTimes
from commonwatt.store.api_store import ApiStore
from commonwatt.store.controller_store import ControllerStore, Tick
from commonwatt.store.database import Database, address
from commonwatt.store.migrate import prepare
from commonwatt.store.records import EventRow, IntentRow, JobStatus

NOW_S = 1_800_000_000.0


def node(name: str, gpu_type: str = "V100", gpus: int = 4, usable: int = 4, **more) -> SnapshotNode:
    said = {"allocated_gpus": 0, "state": "on", "drained": False, "jobs": (), "power_w": None} | more
    return SnapshotNode(name=name, gpu_type=gpu_type, gpus=gpus, usable_gpus=usable, **said)


EMPTY = Snapshot(NOW_S - 5, "live", "local", healthy=True)
FULL = replace(
    EMPTY,
    nodes=(
        node("a", allocated_gpus=3, power_w=900.0),
        node("b", usable=0, state="down"),
        node("c", "T4", 2, 2, drained=True, power_w=120.5),
    ),
    power_w=1020.5,
    saved={"energy_kwh": 2.5, "cost": 0.6, "baseline": "fifo", "period_s": 43200.0},
)

SHARES = (
    TenantShare("vision", 2.0, 1.5, 7200.0, 0.75, 0.5, -2400.0),
    TenantShare("speech", 1.0, 2.5, 2400.0, 0.25, 0.5, 2400.0),
)  # fmt: skip


@dataclass
class Plane:
    """What a metrics page is made of."""

    store: ApiStore
    snapshot: Snapshot = EMPTY
    counters: Counters = field(default_factory=Counters)
    http: HttpTimes = field(default_factory=HttpTimes)

    def page(self):
        return metrics_page(
            snapshot=lambda: self.snapshot, store=self.store, counts=self.counters.counts, http=self.http,
            currency="EUR", reserved=("c",), now_s=lambda: NOW_S,
        )  # fmt: skip

    def text(self) -> str:
        return self.page()()[0].decode()


def bare(folder: Path) -> Plane:
    """Just begun."""
    database = Database(address("store.db", folder))
    prepare(database)
    return Plane(ApiStore(database))


def account(energy_uj, cost_n, carbon_ug, gpu_us):
    return {"energy_uj": energy_uj, "cost_n": cost_n, "carbon_ug": carbon_ug, "gpu_us": gpu_us}


def filled(folder: Path) -> Plane:
    """In the middle of its work: a value for every metric there is."""
    plane = bare(folder)
    store = plane.store
    for tenant in ("vision", 'te"xt\\'):
        store.add_tenant(tenant, 1.0, NOW_S - 1000)
    file = JobFile(name="j", command=("true",), tardiness_weight=0.01)
    late = store.submit("vision", file, NOW_S - 900, due_s=NOW_S - 100)[0].id
    held = store.submit("vision", file, NOW_S - 950)[0].id
    will = store.submit("vision", file, NOW_S - 800, due_s=NOW_S + 100)[0].id
    run = store.submit('te"xt\\', file, NOW_S - 700, due_s=NOW_S + 50)[0].id
    done = store.submit('te"xt\\', file, NOW_S - 990, due_s=NOW_S - 500)[0].id
    controller_store = ControllerStore(store.database)
    tick = Tick(requests=[request.id for request in controller_store.requests()[1:]])
    tick.change(held, held=True)
    tick.change(run, status=JobStatus.RUNNING, nodes=["a"], gpus_per_node=3, expected_end_s=NOW_S + 90)
    tick.change(done, status=JobStatus.COMPLETED, ended_s=NOW_S - 600)
    tick.change(late, expected_end_s=NOW_S + 300)
    tick.events = [
        EventRow(0, NOW_S - 600, kind, done, ("a",), 1, "", "")
        for kind in ("started", "preempted", "resumed", "migrated", "resized", "completed")
    ]
    tick.ledger = {
        ("job", done): account(3_500_000, 250_000_000, 125_000, 60_000_000),
        ("segment", run): account(1_000_000, 50_000_000, 25_000, 30_000_000),
        ("idle", 0): account(2_000_000, 100_000_000, 50_000, 90_000_000),
        ("meter", 0): account(6_500_000, 400_000_000, 200_000, 180_000_000),
    }
    controller_store.write(tick)
    rows = {row.id: row for row in controller_store.active_jobs()}
    ends = {will: NOW_S + 200}  # of those that wait, only the snapshot knows
    jobs = {
        row.id: replace(SnapshotJob.of(row), expected_end_s=ends.get(row.id, row.expected_end_s))
        for row in rows.values()
    }
    plane.snapshot = replace(FULL, rows=rows, jobs=jobs)
    controller_store.intend([IntentRow("start-1-1", "start", 1, 1, (0,), 1, NOW_S)])
    for duration_s in (0.002, 0.02, 0.2):
        plane.counters.tick(duration_s)
    for error in (EngineDownError("x"), EngineDownError("y"), StoreError("z"), ValueError("w")):
        plane.counters.error(error)
    plane.http.observe("GET", "/api/v1/jobs/{job}", 200, 0.004)
    plane.http.observe("POST", "/api/v1/jobs", 201, 0.012)
    return plane
