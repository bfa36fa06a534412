"""A service as the service needs one, with a store of its own and no engine behind it."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from commonwatt.controlplane.jobs import JobMaker
from commonwatt.controlplane.snapshot import Snapshot, SnapshotNode
from commonwatt.model.nodes import Cluster
from commonwatt.model.scenario import Scenario
from commonwatt.service.context import ServiceContext
from commonwatt.store.api_store import ApiStore
from commonwatt.store.controller_store import ControllerStore, Tick
from commonwatt.store.database import Database, address
from commonwatt.store.migrate import prepare
from commonwatt.store.records import EventRow, SampleRow

NODES = [
    {"name": "v", "count": 2, "gpu_type": "V100", "gpus": 4, "idle_w": 150, "gpu_w": 250},
    {"name": "t", "gpu_type": "T4", "gpus": 1, "idle_w": 120, "gpu_w": 70},
]


@cache
def _empty_store() -> Path:
    """Return a new store, made once: making one takes longer than copying it."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    database = Database(address("store.db", folder))
    prepare(database)
    database.close()
    return folder / "store.db"


class StandIn:
    """What the live process gives the service; ``obey`` does what was asked, as a tick would."""

    def __init__(self, folder: Path, **live: Any) -> None:
        engine = live.pop("engine", "simulated")
        self.config = Scenario.model_validate({"engine": engine, "nodes": NODES, "live": live})
        self.folder = folder
        shutil.copyfile(_empty_store(), folder / "store.db")
        self.database = Database(address("store.db", folder))
        self.store, self.ticks = ApiStore(self.database), ControllerStore(self.database)
        cluster = Cluster.of(self.config.nodes)
        kinds = [cluster.classes[k] for k in cluster.klass]
        nodes = tuple(
            SnapshotNode(
                name, kind.gpu_type, kind.gpus, kind.gpus, 0, "on", drained=False, jobs=(), power_w=kind.idle_w
            )
            for name, kind in zip(cluster.names, kinds, strict=True)
        )
        self.now = Snapshot(
            time.time(), "live", engine, healthy=True, nodes=nodes, power_w=420.0, total_gpus=9, ticks=3
        )
        live = self.config.live
        maker = JobMaker(cluster, live.default_time_limit_s, live.limits_of, accounts_of=live.accounts_of)
        self.context = ServiceContext(self.config, folder, self.store, maker, lambda: self.now, self.wake)
        self.woken = 0
        for tenant in ("ada", "bob"):
            self.store.add_tenant(tenant, 1.0, 1.0)
        self.tokens = {name: self.store.add_token(name, f"of {name}", 1.0) for name in ("ada", "bob")}
        self.tokens["operator"] = self.store.add_token(None, "of the operator", 1.0)
        self.tokens["revoked"] = self.store.add_token(None, "revoked", 1.0)
        self.store.revoke(self.store.owner(self.tokens["revoked"]).token, 2.0)

    def wake(self) -> None:
        self.woken += 1

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
        self.now = replace(self.now, ticks=self.now.ticks + 1)

    def run(self, job: int, node: str, **account: int) -> None:
        """Let a job run on a node, and charge it."""
        tick = Tick()
        now_s = time.time()
        tick.change(
            job, status="running", attempts=1, nodes=[node], gpu_type="V100", gpus_per_node=1, started_s=now_s
        )  # fmt: skip
        tick.ledger["segment", job] = {"energy_uj": 0, "cost_n": 0, "carbon_ug": 0, "gpu_us": 0} | account
        self.ticks.write(tick)
        nodes = tuple(
            replace(each, jobs=(job,), allocated_gpus=1) if each.name == node else each for each in self.now.nodes
        )
        self.now = replace(self.now, nodes=nodes)

    def close(self) -> None:
        self.database.close()


def job(**more: Any) -> dict[str, Any]:
    return {"name": "train", "command": ["python", "train.py"], **more}
