"""What a controller does that waits for another one's place: it shows the cluster as the store has it."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from commonwatt.controlplane.health import FAULTS
from commonwatt.controlplane.snapshot import Snapshot, SnapshotJob, SnapshotNode
from commonwatt.model.nodes import Cluster
from commonwatt.store.api_store import ApiStore
from commonwatt.store.claim import RENEW_S, Claim
from commonwatt.store.controller_store import ControllerStore
from commonwatt.store.records import JobRow, JobStatus

__all__ = ["UNUSUAL_NODES", "Lease", "StandbyView", "unusual_nodes"]

log = logging.getLogger("commonwatt.standby")

UNUSUAL_NODES = "unusual_nodes"
"""Setting of the store with the nodes that are not simply on: state and usable GPUs by name."""


class Lease:
    """Renews a claim in a thread of its own until it is stopped; calls *lost* when its lock turns out to be gone."""

    def __init__(self, claim: Claim, lost: Callable[[], None]) -> None:
        self._claim, self._lost = claim, lost
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        before = True
        while not self._over.wait(RENEW_S):
            holds_lock = self._claim.holds_lock()
            if before and not holds_lock and not self._over.is_set():
                log.warning("the lock of the store is lost")
                self._lost()
            before = holds_lock

    def stop(self) -> None:
        """Stop renewing."""
        self._over.set()


def unusual_nodes(snapshot: Snapshot) -> dict[str, list[str | int]]:
    """Return state and usable GPUs of the nodes of *snapshot* that are not simply on, by name."""
    return {
        node.name: [node.state, node.usable_gpus]
        for node in snapshot.nodes
        if node.state != "on" or node.usable_gpus != node.gpus
    }


class StandbyView:
    """The cluster as the active controller wrote it down; safe to ask from one thread.

    Power of single nodes, and what is estimated from one look to the next, are unknown here. *get_ready* is called once
    before its controller waits: what is done in advance does not delay it later.
    """

    def __init__(
        self, store: ApiStore, controller_store: ControllerStore, cluster: Cluster, engine: str,
        get_ready: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._store, self._controller_store, self._cluster, self._engine = store, controller_store, cluster, engine
        self._get_ready: Callable[[], None] | None = get_ready

    def get_ready(self) -> None:
        """Do what can be done in advance, if it is not done."""
        if self._get_ready is not None:
            self._get_ready()
            self._get_ready = None

    def look(self, now_s: float) -> Snapshot:
        """Return the cluster; raises ``StoreError``."""
        settings, rows = self._controller_store.settings(), self._controller_store.active_jobs()
        sample = next(iter(self._store.samples(0.0, limit=1)), None)
        nodes = self._nodes(rows, settings)
        running = sum(row.status is JobStatus.RUNNING for row in rows)
        return Snapshot(
            now_s, settings.get("mode", "live"), self._engine, healthy=True, role="standby", nodes=nodes,
            jobs={row.id: SnapshotJob.of(row) for row in rows}, rows={row.id: row for row in rows},
            by_tenant=Counter((row.tenant, str(row.status)) for row in rows),
            power_w=None if sample is None else sample.power_w, busy_gpus=sum(node.allocated_gpus for node in nodes),
            total_gpus=self._cluster.total_gpus, running=running, waiting=len(rows) - running,
            tick_s=0.0 if sample is None else sample.tick_s, decided_s=None if sample is None else sample.time_s,
            saved=settings.get("saved"),
        )  # fmt: skip

    def _nodes(self, rows: list[JobRow], settings: Mapping[str, Any]) -> tuple[SnapshotNode, ...]:
        jobs: dict[str, list[int]] = {}
        allocated: dict[str, int] = {}
        for row in rows:
            for name in row.nodes:
                jobs.setdefault(name, []).append(row.id)
                allocated[name] = allocated.get(name, 0) + row.gpus_per_node
        drained, unusual = set(settings.get("drained", ())), settings.get(UNUSUAL_NODES, {})
        faults = (settings.get(FAULTS) or {}).get("drained", {})
        made = []
        for name, klass in zip(self._cluster.names, self._cluster.klass.tolist(), strict=True):
            kind = self._cluster.classes[klass]
            reason, fault = faults.get(name, ("operator", "")) if name in drained else ("", "")
            state, usable = unusual.get(name, ("on", kind.gpus))
            made.append(
                SnapshotNode(
                    name, kind.gpu_type, kind.gpus, usable, allocated.get(name, 0), state, name in drained,
                    tuple(jobs.get(name, ())), None, fault, reason,
                )
            )  # fmt: skip
        return tuple(made)
