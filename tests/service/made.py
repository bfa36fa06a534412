"""A desk as the service needs one, with a store of its own and no engine behind it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from commonwatt.model.errors import JobNeverFitsError
from commonwatt.model.job_file import JobFile
from commonwatt.model.nodes import Cluster
from commonwatt.model.scenario import Scenario
from commonwatt.store import tables
from commonwatt.store.database import Database, address
from commonwatt.store.records import EventRow, SampleRow
from commonwatt.store.store import Store
from commonwatt.store.ticks import Tick, TickStore

NODES = [
    {"name": "v", "count": 2, "gpu_type": "V100", "gpus": 4, "idle_w": 150, "gpu_w": 250},
    {"name": "t", "gpu_type": "T4", "gpus": 1, "idle_w": 120, "gpu_w": 70},
]


@dataclass(frozen=True)
class Node:
    name: str
    gpu_type: str
    gpus: int
    usable_gpus: int
    held_gpus: int = 0
    state: str = "on"
    drained: bool = False
    jobs: tuple[int, ...] = ()
    power_w: float | None = 150.0


@dataclass(frozen=True)
class Job:
    done_epochs: float = 0.0
    kept_epochs: float = 0.0
    reason: str | None = None
    sentence: str | None = None
    expected_start_s: float | None = None
    expected_end_s: float | None = None


@dataclass(frozen=True)
class StandInBoard:
    nodes: tuple[Node, ...]
    jobs: dict[int, Job] = field(default_factory=dict)
    time_s: float = field(default_factory=time.time)
    mode: str = "live"
    engine: str = "simulated"
    healthy: bool = True
    trouble: str | None = None
    power_w: float | None = 450.0
    busy_gpus: int = 0
    total_gpus: int = 9
    running: int = 0
    waiting: int = 0
    tick_s: float | None = 0.01
    ticks: int = 3
    saved: dict[str, float | None] | None = None


class StandIn:
    """What the live process gives the service; ``obey`` does what was asked, as a tick would."""

    def __init__(self, folder: Path, **live: Any) -> None:
        engine = live.pop("engine", "simulated")
        self.config = Scenario.model_validate({"engine": engine, "nodes": NODES, "live": live})
        self.database = Database(address("store.db", folder))
        tables.metadata.create_all(self.database.engine)
        self.store, self.ticks = Store(self.database), TickStore(self.database)
        cluster = Cluster.of(self.config.nodes)
        kinds = [cluster.classes[k] for k in cluster.klass]
        self.now = StandInBoard(
            tuple(
                Node(name, kind.gpu_type, kind.gpus, kind.gpus) for name, kind in zip(cluster.names, kinds, strict=True)
            )
        )
        self.woken = 0
        self.logs: dict[int, bytes] = {}
        for tenant in ("ada", "bob"):
            self.store.add_tenant(tenant, 1.0, 1.0)
        self.tokens = {name: self.store.add_token(name, f"of {name}", 1.0) for name in ("ada", "bob")}
        self.tokens["operator"] = self.store.add_token(None, "of the operator", 1.0)
        self.tokens["revoked"] = self.store.add_token(None, "revoked", 1.0)
        self.store.revoke(self.store.owner(self.tokens["revoked"]).token, 2.0)

    def board(self) -> StandInBoard:
        return self.now

    def wake(self) -> None:
        self.woken += 1

    def job_times(self, file: JobFile, tenant: str) -> list[dict[str, Any]]:
        if file.gpus > 8:
            raise JobNeverFitsError("a job some nodes could run", field="gpus", value=file.gpus)
        return [{"gpu_type": "V100", "gpus": file.gpus, "time_s": 100.0, "gpu_w": None, "source": "time limit"}]

    def job_log(self, job: int, last_bytes: int) -> bytes | None:
        text = self.logs.get(job)
        return None if text is None else text[-last_bytes:]

    def obey(self) -> None:
        """Deal with all requests: cancel, hold and release; submitted jobs wait, with a reason."""
        tick = Tick()
        for request in self.ticks.requests():
            tick.requests.append(request.id)
            if request.kind == "submit":
                event = EventRow(0, time.time(), "waits", request.job, (), 0, "no-room", "No node has room.")
                tick.events.append(event)
                tick.change(request.job, reason="no-room", sentence="No node has room.", expected_end_s=2e9)
            elif request.kind == "cancel":
                tick.change(request.job, status="cancelled", ended_s=time.time())
            elif request.kind in {"hold", "release"}:
                tick.change(request.job, held=request.kind == "hold")
            elif request.kind in {"drain", "undrain"}:
                drained = request.kind == "drain"
                nodes = tuple(
                    replace(node, drained=drained) if node.name == request.node else node for node in self.now.nodes
                )
                self.now = replace(self.now, nodes=nodes)
            elif request.kind == "mode":
                self.now = replace(self.now, mode=request.value)
        tick.sample = SampleRow(time.time(), 0, 450.0, 0, 1, 9, 1, 0.01)
        self.ticks.write(tick)

    def close(self) -> None:
        self.database.close()


def job(**more: Any) -> dict[str, Any]:
    return {"name": "train", "command": ["python", "train.py"], **more}
