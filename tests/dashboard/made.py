"""A service with a made cluster behind it: a real store, a snapshot that obeys at once, no controller and no engine."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from commonwatt.controlplane.jobs import JobMaker
from commonwatt.controlplane.snapshot import Snapshot, SnapshotJob, SnapshotNode
from commonwatt.model.job_file import JobFile
from commonwatt.model.nodes import Cluster
from commonwatt.model.scenario import Scenario
from commonwatt.service.context import ServiceContext
from commonwatt.store import tables
from commonwatt.store.api_store import ApiStore
from commonwatt.store.controller_store import ControllerStore, Tick
from commonwatt.store.database import Database, address
from commonwatt.store.records import EventRow, RequestKind, SampleRow

TENANTS = ("ada", "bob", "carol", "dan")
NODES = [
    {"name": "v", "count": 50, "gpu_type": "V100", "gpus": 4, "idle_w": 150, "gpu_w": 250},
    {"name": "p", "count": 30, "gpu_type": "P100", "gpus": 4, "idle_w": 140, "gpu_w": 200},
    {"name": "t", "count": 20, "gpu_type": "T4", "gpus": 8, "idle_w": 120, "gpu_w": 70},
]  # in percent of all nodes
SAVED = {
    "baseline": "fifo", "energy_kwh": 12.5, "cost": 2.15, "tardiness_cost": -0.5, "baseline_energy_kwh": 100.0,
    "baseline_cost": 17.2, "jobs": 400.0, "period_s": 7 * 86400.0,
    "capacity": "last-value", "baseline_capacity": None, "no_forecast": "ours: 0 steps",
}  # fmt: skip
REASONS = [("no-room", "No node has room for it."), ("held-back", "It is not urgent; others gain more.")]


def nodes_of(count: int) -> list[dict[str, Any]]:
    return [node | {"count": max(1, node["count"] * count // 100)} for node in NODES]


def snapshot_job(job: int, **more: Any) -> SnapshotJob:
    """A job that waits, unless *more* says otherwise."""
    nothing = {
        "name": f"train-{job:05d}", "tenant": "ada", "submit_s": 0.0, "epochs": 10, "status": "waiting",
        "held": False, "nodes": (), "gpus": 0, "done_epochs": 0.0, "kept_epochs": 0.0,
        "reason": None, "sentence": None, "expected_start_s": None, "expected_end_s": None,
    }  # fmt: skip
    return SnapshotJob(id=job, **nothing | more)


class MadeService:
    """What the live process gives the service."""

    def __init__(
        self, folder: Path, *, nodes: int = 20, running: int = 12, waiting: int = 30, seed: int = 1,
        server: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        solver = {"solver": "fair-share"}  # divides by weight
        live = {"server": server or {}}
        self.config = Scenario.model_validate(
            {"engine": "local", "nodes": nodes_of(nodes), "policies": [solver], "live": live}
        )
        self.database = Database(address("store.db", folder))
        tables.metadata.create_all(self.database.engine)
        self.store, self.ticks = ApiStore(self.database), ControllerStore(self.database)
        self.folder = folder
        maker = JobMaker(Cluster.of(self.config.nodes), self.config.live.default_time_limit_s)
        self.context = ServiceContext(self.config, folder, self.store, maker, self.snapshot, self.wake)
        self._lock = threading.Lock()
        self._rng = np.random.default_rng(seed)
        for k, tenant in enumerate(TENANTS):
            self.store.add_tenant(tenant, 1.0 + k, 1.0)
        self.tokens = {tenant: self.store.add_token(tenant, f"of {tenant}", 1.0) for tenant in TENANTS}
        self.tokens["operator"] = self.store.add_token(None, "night shift", 1.0)
        self._now = self._make(running, waiting)
        self._past()

    # -- what the service asks for

    def snapshot(self) -> Snapshot:
        return self._now

    def wake(self) -> None:
        """Do at once what was asked, as a tick would."""
        with self._lock:
            tick = Tick()
            for request in self.ticks.requests():
                tick.requests.append(request.id)
                self._obey(tick, request.kind, request.job, request.node, request.value)
            self._publish(tick)

    def write_log(self, job: int, text: str) -> None:
        """Let *job* have printed *text*."""
        folder = self.folder / "state" / "runs" / f"{job}-1"
        folder.mkdir(parents=True)
        (folder / "output.log").write_text(text, encoding="utf-8")

    # -- the world

    def tick(self, **changes: Any) -> None:
        """Let time pass."""
        with self._lock:
            self._now = replace(self._now, **changes)
            self._publish(Tick())

    def change_job(self, job: int, **changes: Any) -> None:
        """Change what the snapshot says of a job."""
        with self._lock:
            self._now = replace(self._now, jobs={**self._now.jobs, job: replace(self._now.jobs[job], **changes)})
            self._publish(Tick())

    def end(self, job: int, kind: str = "completed", tick: Tick | None = None) -> None:
        """Have a job end, as the controller writes it down: alone, or in *tick*."""
        written = tick or Tick()
        written.change(job, status=kind, ended_s=time.time())
        written.events.append(EventRow(0, time.time(), kind, job, (), 0, "", f"It is {kind}."))
        if tick is None:
            with self._lock:
                left = {other: known for other, known in self._now.jobs.items() if other != job}
                self._now = replace(self._now, jobs=left)
                self._publish(written)

    def close(self) -> None:
        self.database.close()

    def _make(self, running: int, waiting: int) -> Snapshot:
        now = time.time()
        nodes = [
            SnapshotNode(f"{spec.name}-{k}", spec.gpu_type, spec.gpus, spec.gpus, 0, "on", False, (), spec.idle_w)  # noqa: FBT003
            for spec in self.config.nodes for k in range(spec.count)
        ]  # fmt: skip
        for k, state in ((1, "down"), (2, "asleep"), (3, "waking")):
            nodes[k] = replace(nodes[k], state=state, power_w=None if state == "down" else 20.0)
        nodes[4] = replace(nodes[4], drained=True)
        free = list(range(5, len(nodes)))
        made = [self._running(job, now, nodes, free) for job in range(1, running + 1)]
        made += [self._waiting(job, now) for job in range(running + 1, running + waiting + 1)]
        with self.database.transaction() as c:
            c.execute(tables.jobs.insert(), [row for row, _ in made])
        return Snapshot(
            time_s=now, mode="live", engine="local", healthy=True, nodes=tuple(nodes),
            jobs={job.id: job for _, job in made}, power_w=sum(n.power_w or 0 for n in nodes),
            busy_gpus=sum(n.allocated_gpus for n in nodes), total_gpus=sum(n.gpus for n in nodes), running=running,
            waiting=waiting, tick_s=0.021, ticks=7, saved=SAVED,
        )  # fmt: skip

    def _running(
        self, job: int, now: float, nodes: list[SnapshotNode], free: list[int]
    ) -> tuple[dict[str, Any], SnapshotJob]:
        k = free[int(self._rng.integers(len(free)))]
        node = nodes[k]
        gpus = int(self._rng.integers(1, node.gpus - node.allocated_gpus + 1))
        held, power_w = node.allocated_gpus + gpus, (node.power_w or 0) + 100 * gpus
        nodes[k] = replace(node, allocated_gpus=held, jobs=(*node.jobs, job), power_w=power_w)
        if held == node.gpus:
            free.remove(k)
        began, left, done = (float(self._rng.uniform(0, most)) for most in (3000, 6000, 10))
        row = self._row(job, now - began - 5, now) | {
            "status": "running", "started_s": now - began, "gpu_type": node.gpu_type, "nodes": [node.name],
            "gpus_per_node": gpus,
        }  # fmt: skip
        sentence = f"{node.name} is the cheapest way to meet its due date."
        return row, snapshot_job(
            job, **_same(row), status="running", nodes=(node.name,), gpus=gpus, done_epochs=done,
            kept_epochs=float(int(done)), reason="cheapest-in-time", sentence=sentence,
            expected_end_s=now + 60 + left,
        )  # fmt: skip

    def _waiting(self, job: int, now: float) -> tuple[dict[str, Any], SnapshotJob]:
        start, length = (float(self._rng.uniform(60, most)) for most in (20000, 6000))
        reason, sentence = REASONS[job % 2]
        known = job % 10 > 0
        row = self._row(job, now - length, now)
        return row, snapshot_job(
            job, **_same(row), reason=reason, sentence=sentence, expected_start_s=now + start if known else None,
            expected_end_s=now + start + length if known else None,
        )  # fmt: skip

    def _row(self, job: int, submit_s: float, now: float) -> dict[str, Any]:
        name = f"train-{job:05d}"
        file = JobFile.model_validate({"name": name, "command": "python train.py", "epochs": 10})
        return {
            "id": job, "name": name, "tenant": TENANTS[int(self._rng.integers(len(TENANTS)))],
            "file": file.model_dump(mode="json"), "status": "waiting", "held": False, "nodes": [],
            "submit_s": submit_s, "due_s": now + float(self._rng.uniform(60, 40000)), "attempts": 1, "settled": 0,
            "failures": 0, "started_s": None, "gpu_type": None, "gpus_per_node": 0, "done_epochs": 0.0,
            "kept_epochs": 0.0,
        }  # fmt: skip

    def _past(self) -> None:
        """Yesterday's samples, a ledger, and events."""
        now, total = self._now.time_s, self._now.total_gpus
        busy = [int(total * (0.6 + 0.3 * np.sin(k / 30))) for k in range(300)]
        samples = [
            SampleRow(now - 60 * (k + 1), b, 150.0 * b, b // 3, b // 7, total, b, 0.02) for k, b in enumerate(busy)
        ]
        ledger = [("idle", 0, 10**13, 10**12, None, 10**11)]
        for job in list(self._now.jobs)[:400]:
            uj, us = int(self._rng.integers(10**12, 10**13)), int(self._rng.integers(10**9, 10**11))
            ledger.append(("job", job, uj, uj // 20000, uj // 9, us))
        ledger.append(("meter", 0, *(sum(row[k] for row in ledger) for k in (2, 3)), None, sum(r[5] for r in ledger)))
        columns = ("row", "job", "energy_uj", "cost_n", "carbon_ug", "gpu_us")
        with self.database.transaction() as c:
            c.execute(tables.samples.insert(), [vars(sample) for sample in samples])
        tick = Tick(ledger={row[:2]: dict(zip(columns[2:], row[2:], strict=True)) for row in ledger})
        for job in list(self._now.jobs.values())[:20]:
            kind = "started" if job.nodes else "waits"
            tick.events.append(EventRow(0, now - 5, kind, job.id, job.nodes, job.gpus, job.reason, job.sentence))
        self.ticks.write(tick)

    def _publish(self, tick: Tick) -> None:
        jobs = self._now.jobs.values()
        running, waiting = (sum(j.status == s for j in jobs) for s in ("running", "waiting"))
        now = time.time()
        tick.sample = SampleRow(
            now, self._now.busy_gpus, self._now.power_w, running, waiting, self._now.total_gpus, 1, 0.02
        )
        self.ticks.write(tick)
        self._now = replace(self._now, time_s=now, ticks=self._now.ticks + 1, running=running, waiting=waiting)

    def _obey(self, tick: Tick, kind: RequestKind, job: int | None, node: str | None, value: Any) -> None:
        jobs, nodes = dict(self._now.jobs), self._now.nodes
        if kind is RequestKind.SUBMIT:
            jobs[job] = replace(SnapshotJob.of(self.store.job(job)), reason=REASONS[0][0], sentence=REASONS[0][1])
        elif kind is RequestKind.CANCEL and job in jobs:
            del jobs[job]
            self.end(job, "cancelled", tick)
            nodes = tuple(replace(n, jobs=tuple(j for j in n.jobs if j != job)) for n in nodes)
        elif kind in (RequestKind.HOLD, RequestKind.RELEASE):
            held = kind is RequestKind.HOLD
            jobs[job] = replace(jobs[job], held=held)
            tick.change(job, held=held)
        elif kind in (RequestKind.DRAIN, RequestKind.UNDRAIN):
            drained = kind is RequestKind.DRAIN
            nodes = tuple(replace(n, drained=drained) if n.name == node else n for n in nodes)
        elif kind is RequestKind.MODE:
            self._now = replace(self._now, mode=value)
        if job is not None:
            tick.events.append(EventRow(0, time.time(), str(kind), job, (), 0, "", f"Asked for: {kind}."))
        self._now = replace(self._now, jobs=jobs, nodes=nodes)


def _same(row: dict[str, Any]) -> dict[str, Any]:
    """What a snapshot says of a job as its row does."""
    return {name: row[name] for name in ("tenant", "submit_s", "started_s", "due_s")}


def requests_of(service: MadeService) -> int:
    """How many requests were ever made."""
    with service.database.reading() as c:
        return c.execute(sa.select(sa.func.count()).select_from(tables.requests)).scalar()
