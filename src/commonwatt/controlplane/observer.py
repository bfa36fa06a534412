"""In a dry run, watches external jobs: what would be done with them, and how long they took."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from commonwatt.control.dry_run import equally_good
from commonwatt.control.engine import NodeView
from commonwatt.control.events import Event
from commonwatt.control.external_jobs import ExternalJob, dry_run, job_of
from commonwatt.control.job_registry import Rules
from commonwatt.control.policy import Policy
from commonwatt.model.arrays import Ints
from commonwatt.model.electricity import Tariff
from commonwatt.model.errors import CommonwattError
from commonwatt.model.jobs import Job
from commonwatt.model.nodes import Cluster
from commonwatt.model.units import DAY_S
from commonwatt.optimize import KeepGoing, always
from commonwatt.store.controller_store import Tick
from commonwatt.store.records import EventRow

__all__ = ["SETTING", "Observer", "observed_jobs"]

log = logging.getLogger("commonwatt.observer")

SETTING = "observed"
"""Setting of the store with external jobs that have ended."""

_EVERY_S = 30.0
_MOST, _KEEP_S = 5_000, 7 * DAY_S


@dataclass
class Observer:
    """Looks at external jobs now and then.

    Attributes
    ----------
    external_jobs
        Asks the cluster for them.
    ended
        Those that have ended, as the store has them, by id.
    default_limit_s
        Run time assumed for a job that declares none.
    """

    external_jobs: Callable[[], Sequence[ExternalJob]]
    cluster: Cluster
    policy: Policy
    rules: Rules
    tariff: Tariff
    rng: np.random.Generator
    default_limit_s: float
    ended: dict[int, dict[str, Any]] = field(default_factory=dict)
    stopwatch: Callable[[], KeepGoing] = lambda: always
    _planned: dict[str, Event] = field(default_factory=dict)  # where each job would be started
    _next_s: float = -math.inf

    def look(
        self,
        tick: Tick,
        now_s: float,
        nodes: Callable[[], NodeView],
        allocated_gpus: Ints,
        closed: Collection[int] = (),
    ) -> None:
        """Look if it is time; adds what is new to *tick*. Errors are logged: our own jobs do not depend on it.

        Parameters
        ----------
        nodes
            Returns the GPUs our own jobs may have.
        allocated_gpus
            GPUs of each node that they have. Shape [N].
        closed
            Nodes on which nothing is started.
        """
        if now_s < self._next_s:
            return
        self._next_s = now_s + _EVERY_S
        try:
            self._look(tick, now_s, nodes(), allocated_gpus, closed)
        except CommonwattError as error:
            log.warning("external jobs cannot be observed", extra={"cause": str(error)})
        except Exception:
            log.exception("external jobs cannot be observed")

    def _look(self, tick: Tick, now_s: float, view: NodeView, allocated_gpus: Ints, closed: Collection[int]) -> None:
        jobs = self.external_jobs()
        if self._remember(jobs, now_s):
            tick.settings[SETTING] = list(self.ended.values())
        external_gpus = self._allocated(jobs)
        usable = view.usable_gpus - allocated_gpus + external_gpus
        usable[list(closed)] = external_gpus[list(closed)]
        seen = NodeView(np.clip(usable, 0, self.cluster.gpus), view.wait_s, view.power_state)
        planned: dict[str, Event] = {}
        free = seen.usable_gpus - external_gpus
        for job, event in dry_run(
            jobs, cluster=self.cluster, view=seen, policy=self.policy,
            rules=self.rules, tariff=self.tariff, rng=self.rng, now_s=now_s, default_limit_s=self.default_limit_s,
            stopwatch=self.stopwatch(),
        ):  # fmt: skip
            before = self._planned.get(job.label)
            planned[job.label] = event
            if before is not None and equally_good(before, event, self.cluster.klass, free):
                planned[job.label] = before
            else:
                names = tuple(self.cluster.names[n] for n in event.nodes)
                sentence = f"job {job.label} of {job.user}, submitted to the cluster directly: {event.sentence}"
                tick.events.append(EventRow(0, now_s, event.kind, None, names, event.gpus, event.reason, sentence))
        self._planned = planned

    def _remember(self, jobs: Iterable[ExternalJob], now_s: float) -> bool:
        """Keep jobs that have run and ended; returns whether there are new ones."""
        fresh = {
            job.id: asdict(replace(job, gpu_type=own.requested_type or job.gpu_type, nodes=()))
            for job in jobs
            if job.state == "ended" and job.start_s is not None and job.end_s is not None
            and (own := job_of(job, self.cluster, job.end_s - job.start_s, job.submit_s)) is not None
        }  # fmt: skip
        if all(self.ended.get(number, {}).get("submit_s") == job["submit_s"] for number, job in fresh.items()):
            return False
        recent = sorted((self.ended | fresh).values(), key=lambda job: job["end_s"])[-_MOST:]
        self.ended = {job["id"]: job for job in recent if job["end_s"] > now_s - _KEEP_S}
        return True

    def _allocated(self, jobs: Iterable[ExternalJob]) -> Ints:
        gpus = np.zeros(len(self.cluster), dtype=np.int64)
        at = {name: n for n, name in enumerate(self.cluster.names)}
        for job in jobs:
            for name in job.nodes if job.state == "running" else ():
                if name in at:
                    gpus[at[name]] += job.most_on_a_node
        return gpus


def observed_jobs(ended: Iterable[Mapping[str, Any]], cluster: Cluster, since_s: float) -> list[tuple[float, Job]]:
    """Return ended external jobs as a simulation takes them, with the times they took, and when they were submitted."""
    jobs = []
    for row in ended:
        external = ExternalJob(**{**row, "nodes": tuple(row["nodes"])})
        if external.start_s is None or external.end_s is None or external.submit_s <= since_s:
            continue
        run_s = external.end_s - external.start_s
        job = job_of(replace(external, state="ended"), cluster, run_s, external.submit_s)
        if job is not None:
            jobs.append((external.submit_s, job))
    return jobs
