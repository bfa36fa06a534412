"""In a dry run, watches the jobs others submit to the same cluster: what would be done with them, and how they went."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from commonwatt.control.advice import as_good
from commonwatt.control.book import Rules
from commonwatt.control.engine import NodeView
from commonwatt.control.events import Event
from commonwatt.control.others import OtherJob, advise, job_of
from commonwatt.control.policy import Policy
from commonwatt.model.arrays import Ints
from commonwatt.model.electricity import Tariff
from commonwatt.model.errors import CommonwattError
from commonwatt.model.jobs import Job
from commonwatt.model.nodes import Cluster
from commonwatt.model.units import DAY_S
from commonwatt.placement.solvers import KeepGoing, always
from commonwatt.store.records import EventRow
from commonwatt.store.ticks import Tick

__all__ = ["SETTING", "Observer", "observed_jobs"]

log = logging.getLogger("commonwatt.observer")

SETTING = "observed"
"""Name under which the store keeps jobs of others that have ended."""

_EVERY_S = 30.0
_KEPT, _KEPT_S = 5_000, 7 * DAY_S


@dataclass
class Observer:
    """Looks at the jobs of others now and then.

    Attributes
    ----------
    others
        Asks the cluster for them.
    kept
        Those that have ended, as the store keeps them, by id.
    default_limit_s
        Run time by which a job is planned that declares none.
    """

    others: Callable[[], Sequence[OtherJob]]
    cluster: Cluster
    policy: Policy
    rules: Rules
    tariff: Tariff
    rng: np.random.Generator
    default_limit_s: float
    kept: dict[int, dict[str, Any]] = field(default_factory=dict)
    stopwatch: Callable[[], KeepGoing] = lambda: always
    _said: dict[str, Event] = field(default_factory=dict)  # where a job would be started
    _next_s: float = -math.inf

    def look(
        self, tick: Tick, now_s: float, nodes: Callable[[], NodeView], held_gpus: Ints, shut: Collection[int] = ()
    ) -> None:
        """Look if it is time; adds what is new to *tick*. What goes wrong is logged: our own jobs do not depend on it.

        Parameters
        ----------
        nodes
            Tells what our own jobs may have.
        held_gpus
            What they hold of each node. Shape [N].
        shut
            Nodes on which nothing is begun.
        """
        if now_s < self._next_s:
            return
        self._next_s = now_s + _EVERY_S
        try:
            self._look(tick, now_s, nodes(), held_gpus, shut)
        except CommonwattError as error:
            log.warning("jobs of others cannot be looked at", extra={"cause": str(error)})
        except Exception:
            log.exception("jobs of others cannot be looked at")

    def _look(self, tick: Tick, now_s: float, view: NodeView, held_gpus: Ints, shut: Collection[int]) -> None:
        jobs = self.others()
        if self._remember(jobs, now_s):
            tick.settings[SETTING] = list(self.kept.values())
        theirs = self._held_by(jobs)
        usable = view.usable_gpus - held_gpus + theirs
        usable[list(shut)] = theirs[list(shut)]
        seen = NodeView(np.clip(usable, 0, self.cluster.gpus), view.wait_s, view.power_state)
        said: dict[str, Event] = {}
        free = seen.usable_gpus - theirs
        for other, event in advise(
            jobs, cluster=self.cluster, view=seen, policy=self.policy,
            rules=self.rules, tariff=self.tariff, rng=self.rng, now_s=now_s, default_limit_s=self.default_limit_s,
            stopwatch=self.stopwatch(),
        ):  # fmt: skip
            before = self._said.get(other.label)
            said[other.label] = event
            if before is not None and as_good(before, event, self.cluster.klass, free):
                said[other.label] = before
            else:
                names = tuple(self.cluster.names[n] for n in event.nodes)
                sentence = f"job {other.label} of {other.user}, submitted to the cluster itself: {event.sentence}"
                tick.events.append(EventRow(0, now_s, event.kind, None, names, event.gpus, event.reason, sentence))
        self._said = said

    def _remember(self, jobs: Iterable[OtherJob], now_s: float) -> bool:
        """Keep jobs that have run and ended; whether there are new ones."""
        fresh = {
            job.id: asdict(replace(job, gpu_type=own.requested_type or job.gpu_type, nodes=()))
            for job in jobs
            if job.state == "ended" and job.start_s is not None and job.end_s is not None
            and (own := job_of(job, self.cluster, job.end_s - job.start_s, job.submit_s)) is not None
        }  # fmt: skip
        if all(self.kept.get(number, {}).get("submit_s") == job["submit_s"] for number, job in fresh.items()):
            return False
        recent = sorted((self.kept | fresh).values(), key=lambda job: job["end_s"])[-_KEPT:]
        self.kept = {job["id"]: job for job in recent if job["end_s"] > now_s - _KEPT_S}
        return True

    def _held_by(self, jobs: Iterable[OtherJob]) -> Ints:
        held = np.zeros(len(self.cluster), dtype=np.int64)
        at = {name: n for n, name in enumerate(self.cluster.names)}
        for job in jobs:
            for name in job.nodes if job.state == "running" else ():
                if name in at:
                    held[at[name]] += job.most_on_a_node
        return held


def observed_jobs(kept: Iterable[Mapping[str, Any]], cluster: Cluster, since_s: float) -> list[tuple[float, Job]]:
    """Return jobs of others that ended, as a simulation takes them, and when they were submitted; run as they ran."""
    found = []
    for row in kept:
        other = OtherJob(**{**row, "nodes": tuple(row["nodes"])})
        if other.start_s is None or other.end_s is None or other.submit_s <= since_s:
            continue
        job = job_of(replace(other, state="ended"), cluster, other.end_s - other.start_s, other.submit_s)
        if job is not None:
            found.append((other.submit_s, job))
    return found
