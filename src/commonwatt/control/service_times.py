"""For how long jobs had GPUs, by class of nodes: the attained service that published schedulers go by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from commonwatt.control.job_registry import JobRegistry
from commonwatt.model.arrays import Ints
from commonwatt.model.jobs import Received

__all__ = ["ServiceTimes"]


class ServiceTimes:
    """Seconds and GPU-seconds of every job, by handle, from one decision to the next.

    A job has its GPUs until the next decision: in rounds nobody else gets them earlier, even if it has ended. Unless it
    is *wanted* nothing is noted, as that takes time in proportion to what runs.
    """

    def __init__(self, registry: JobRegistry, now_s: float, *, wanted: bool = True) -> None:
        self._registry, self._at_s, self._wanted = registry, now_s, wanted
        classes = len(registry.cluster.classes)
        self._job_s, self._gpu_s = np.zeros((0, classes)), np.zeros(0)
        self._class_s, self._before = np.zeros(classes), 0
        self._running: tuple[Ints, Ints, Ints] | None = None  # handle, class and GPUs of what the last decision runs

    def received(self, handles: Ints, now_s: float) -> Received | None:
        """Return what *handles* have received up to *now_s*, when a decision is due; ``None`` if it is not wanted."""
        if not self._wanted:
            return None
        self._age(now_s)
        return Received(
            self._job_s[handles], self._gpu_s[handles], self._class_s.copy(), self._before + len(self._registry)
        )

    def decided(self, now_s: float) -> None:
        """Take note of what runs after a decision."""
        if not self._wanted:
            return
        self._age(now_s)
        registry = self._registry
        handles = np.fromiter(registry.nodes, dtype=np.int64, count=len(registry.nodes))
        rows = registry.job("row")[handles]
        gpus = registry.row("width")[rows] * registry.row("per_node")[rows]
        self._running = handles, registry.row("klass")[rows], gpus

    def by_name(self) -> dict[str, object]:
        """Return what an earlier controller has to leave behind: totals, and the rows of active jobs by name."""
        names, active = self._registry.names, sorted(self._registry.active)
        jobs = {names[h]: [*self._job_s[h].tolist(), float(self._gpu_s[h])] for h in active if h < len(self._gpu_s)}
        return {"classes": self._class_s.tolist(), "jobs": self._before + len(names) - len(active), "received": jobs}

    def resume(self, left: Mapping[str, Any], handles: Mapping[str, int]) -> None:
        """Continue from what ``by_name`` returned, if the cluster has as many classes; *handles* by name."""
        if len(left.get("classes", ())) != len(self._class_s):
            return
        self._grow()
        self._class_s[:], self._before = left["classes"], int(left["jobs"])
        for name, row in left["received"].items():
            if name in handles:
                self._job_s[handles[name]] = row[:-1]
                self._gpu_s[handles[name]] = row[-1]

    def _grow(self) -> None:
        more = len(self._registry) - len(self._gpu_s)
        if more > 0:
            more += len(self._gpu_s)  # by half at least: jobs come one by one
            self._job_s = np.concatenate((self._job_s, np.zeros((more, self._job_s.shape[1]))))
            self._gpu_s = np.append(self._gpu_s, np.zeros(more))

    def _age(self, now_s: float) -> None:
        self._grow()
        elapsed_s = now_s - self._at_s
        self._at_s = now_s
        if self._running is None or elapsed_s <= 0:
            return
        handles, klass, gpus = self._running
        self._job_s[handles, klass] += elapsed_s
        self._gpu_s[handles] += elapsed_s * gpus
        np.add.at(self._class_s, klass, elapsed_s)
