"""Announces decisions to users in Kubernetes itself, so that they need not know our commands.

``kubectl describe`` shows the events of a job as Events of its Job, or of the pod that was made for it, and the
annotations of a Job say why it waits, when it is expected to start, and what it has cost. A thread of the active
controller reads all that from the store and from the last snapshot: a decision never waits for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from commonwatt.control.events import EventKind
from commonwatt.controlplane.snapshot import Snapshot, why_of
from commonwatt.controlplane.supervisor import Supervisor
from commonwatt.engines.kubernetes.api import DENIED, KubernetesApi, RefusedByServerError, path_of
from commonwatt.engines.kubernetes.connect import api_of, settings_of
from commonwatt.engines.kubernetes.settings import cluster_label, pod_name
from commonwatt.engines.kubernetes.user_requests import About, LateError, Pauses, annotate, post_event
from commonwatt.engines.state_folder import identity_in
from commonwatt.model.errors import ClaimLostError, CommonwattError, EngineDownError, EngineError
from commonwatt.model.scenario import Scenario
from commonwatt.model.units import NANO
from commonwatt.store.api_store import ApiStore
from commonwatt.store.records import ACTIVE, EventRow, JobRow

__all__ = ["SETTING", "Announcer", "announcer_of"]

log = logging.getLogger("commonwatt.kubernetes")

SETTING = "announced"
"""Setting of the store: number of the last event that was announced."""
_EVERY_S, _LONGEST_S = 2.0, 60.0
_STOP_S = 2.0  # a webhook may hang; the next controller announces the rest
_WAIT_S = 1.0  # for an answer, so that Events of other namespaces do not wait
_PAGE = 500
_LATEST_S = 253_402_300_800.0  # the year 10000
_LATE_S = 3600.0  # Kubernetes deletes Events after an hour
_MOST_EVENTS, _MOST_PATCHES = 50, 20  # in one look
_PER_JOB, _MINUTE_S, _SAME_S = 10, 60.0, 600.0
_MOST_REFUSALS = 10  # of what a Job that has ended is to say
_MOST_LATE, _SOON_S = 30, 1.0  # after an answer that is late: asked for again, and at last taken for a refusal
_PAUSE_S, _LONGEST_PAUSE_S = 30.0, 600.0
"""Between two changes of a Job's annotations while its status is the same, or after a refusal; then it doubles."""
_MOST_PODS = 8
_PODS_BY = {
    "Job": "controller-uid={uid}", "JobSet": "jobset.sigs.k8s.io/jobset-name={name}",
    "PyTorchJob": "training.kubeflow.org/job-name={name}",
}  # fmt: skip
"""Labels that select the pods of a Job or gang, for messages about them."""
_REASONS: dict[str, str] = {
    EventKind.SUBMITTED: "Accepted", EventKind.WAITS: "Waiting", EventKind.STARTED: "Started",
    EventKind.RESUMED: "Resumed", EventKind.RESIZED: "Resized", EventKind.MIGRATED: "Migrated",
    EventKind.PREEMPTED: "Preempted", EventKind.INTERRUPTED: "Interrupted", EventKind.NOT_STARTED: "NotStarted",
    EventKind.COMPLETED: "Completed", EventKind.FAILED: "Failed", EventKind.CANCELLED: "Cancelled",
}  # fmt: skip
_PLACED = frozenset({EventKind.STARTED, EventKind.RESUMED, EventKind.RESIZED, EventKind.MIGRATED})
_ENDED = frozenset({EventKind.COMPLETED, EventKind.FAILED, EventKind.CANCELLED})


@dataclass
class _Announced:
    """What was announced about one job."""

    notes: Mapping[str, str | None] = field(default_factory=dict)
    at_s: float = -1e18
    refusals: int = 0
    late: int = 0  # answers that were late since the last that was not
    said: dict[tuple[str, str], float] = field(default_factory=dict)  # when, by kind and sentence


@dataclass
class Announcer:
    """Writes Events and annotations.

    Attributes
    ----------
    api_of
        Connects to the API server.
    snapshot
        Returns the cluster as of the controller's last look.
    active
        Whether this controller is the active one.
    pod_of
        Returns namespace and name of the pod that the engine has made for a job.
    """

    store: ApiStore
    api_of: Callable[[], KubernetesApi]
    snapshot: Callable[[], Snapshot]
    active: Callable[[], bool]
    now_s: Callable[[], float]
    currency: str
    pod_of: Callable[[KubernetesApi, JobRow], tuple[str, str]]
    every_s: float = _EVERY_S
    _api: KubernetesApi | None = None
    _last: int | None = None
    _announced: dict[int, _Announced] = field(default_factory=dict)
    _final: set[int] = field(default_factory=set)  # that have ended, and whose Jobs do not say so yet
    _users: dict[int, bool] = field(default_factory=dict)  # active jobs: whether a user has made it in Kubernetes
    _refused: str = ""
    _pauses: Pauses | None = None  # by namespace

    def __post_init__(self) -> None:
        self._stopping, self._began_s = threading.Event(), self.now_s()
        self._thread = threading.Thread(target=self._run, name="announcer", daemon=True)

    def start(self) -> None:
        """Start."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the request that is under way."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)
        in_use = self._thread.is_alive() or (self._pauses is not None and self._pauses.busy)
        if self._api is not None and not in_use:  # TLS may write yet: closed, into another file
            self._api.close()

    def _run(self) -> None:
        failures = 0
        while not self._stopping.wait(min(_LONGEST_S, self.every_s * 2.0 ** min(failures, 5))):
            try:
                if self.active() and self.snapshot().mode == "live":
                    self.look()
                failures = 0
            except CommonwattError as error:
                failures += 1
                if isinstance(error, ClaimLostError):  # under another claim it begins anew
                    self._api = self._pauses = self._last = None
                if failures == 1:
                    log.warning("decisions cannot be announced in Kubernetes", extra={"cause": str(error)})
            except Exception:
                failures += 1
                log.exception("announcing decisions in Kubernetes failed; it goes on")

    def look(self) -> None:
        """Announce what is new; raises ``EngineDownError`` or ``StoreError`` without an answer, and forgets nothing."""
        api = self._api = self._api or self.api_of()
        self._pauses = self._pauses or Pauses(api, wait_s=_WAIT_S)
        if self._last is None:
            self._last = self.store.setting(SETTING) or self._begun()
            self._final |= set(self._ended_lately())
        self._announce_events(api)
        self._annotate(api)

    def _begun(self) -> int:
        """Return the last event from before this began, where nothing was announced yet."""
        newest = self.store.events(limit=_PAGE, newest_first=True)
        return next((event.id for event in newest if event.time_s < self._began_s), newest[-1].id - 1 if newest else 0)

    def _ended_lately(self) -> Iterator[int]:
        """Yield jobs that have ended: an announcer before this one may not have come to say so in their annotations."""
        for event in self.store.events(limit=_PAGE, newest_first=True):
            if event.kind in _ENDED and event.job is not None and event.time_s > self.now_s() - _LATE_S:
                row = self.store.job(event.job)
                if row is not None and row.file.workload is not None:
                    yield event.job

    # -- events

    def _announce_events(self, api: KubernetesApi) -> None:
        assert self._last is not None
        before, written = self._last, 0
        try:
            for event in self.store.events(after=self._last, limit=_PAGE):
                if self._stopping.is_set() or written >= _MOST_EVENTS:
                    break
                if event.job is not None and event.kind in _REASONS:
                    written += self._announce(api, event, event.job)
                self._last = event.id
        finally:
            if self._last != before:
                self.store.keep_setting(SETTING, self._last)

    def _announce(self, api: KubernetesApi, event: EventRow, number: int) -> bool:
        """Announce one event, unless it is too old or one too many; returns whether a request was made."""
        row = self.snapshot().rows.get(number) or self.store.job(number)
        if row is None or (row.file.workload is None and event.kind not in _PLACED):
            return False
        if row.file.workload is not None and event.kind in _ENDED:
            self._final.add(number)
        if event.time_s < self.now_s() - _LATE_S or not self._worth_it(event, number):
            return False
        key, reason, said = f"event {event.id}", _REASONS[event.kind], _message(event, row)
        for about in self._about(api, row, event.kind):
            self._allowed(about.namespace, post_event, api, about, key, reason, said, event.time_s, of=(about.uid, key))
        self._announced[number].said[event.kind, event.sentence] = event.time_s
        return True

    def _about(self, api: KubernetesApi, row: JobRow, kind: str) -> list[About]:
        """Return the objects that get an Event: the pod of a run; or a Job and, until it ends, its pods."""
        job = _job(row)
        if job is None:
            pod = _pod_named(api, *self.pod_of(api, row))
            return [] if pod is None else [pod]
        pods: list[About] = []
        if kind not in _ENDED:
            self._allowed(job.namespace, lambda: pods.extend(_pods_of_job(api, job)))
        return [job, *pods]

    def _worth_it(self, event: EventRow, number: int) -> bool:
        """Whether to announce an event: no repetition of a recent one, and not too many for one job."""
        said = self._announced.setdefault(number, _Announced()).said
        for key in [key for key, at_s in said.items() if event.time_s > at_s + _SAME_S]:
            del said[key]
        key = (event.kind, event.sentence)
        recent = sum(event.time_s < at_s + _MINUTE_S for at_s in said.values())
        return event.kind in _ENDED or not (key in said or recent >= _PER_JOB)

    def _allowed(
        self, namespace: str, request: Callable[..., object], *what: object, of: Hashable = None
    ) -> bool | None:
        """Make a request; returns whether it was allowed, ``None`` if there is no answer yet.

        A refusal is logged, once for each cause.

        Raises ``EngineDownError`` if it is the server that does not answer, and not a webhook of the *namespace*.
        """
        assert self._pauses is not None
        try:
            self._pauses.ask(namespace, request, *what, about=of)
        except LateError:  # it may be executed yet
            return None
        except EngineError as error:
            if isinstance(error, EngineDownError) and not isinstance(error, DENIED):
                raise
            if str(error) != self._refused:
                log.warning("Kubernetes refuses announcements", extra={"cause": str(error)})
            self._refused = str(error)
            return False
        return True

    # -- annotations

    def _annotate(self, api: KubernetesApi) -> None:
        """Bring the annotations of Jobs up to date: few at a time, those first whose status has changed."""
        snapshot, now_s = self.snapshot(), self.now_s()
        users, rows = self._users, snapshot.rows
        self._users = {n: users[n] if n in users else rows[n].file.workload is not None for n in rows}
        each: list[tuple[int, str, JobRow | None]] = []
        each += ((n, job.status, None) for n, job in snapshot.jobs.items() if self._users.get(n))
        each += [(row.id, row.status, row) for row in map(self.store.job, sorted(self._final)) if row is not None]
        due: list[tuple[bool, float, JobRow, dict[str, str | None]]] = []
        for number, status, ended in each:
            entry = self._announced.setdefault(number, _Announced())
            same = entry.notes.get("commonwatt.io/status") == status
            pause_s = min(_LONGEST_PAUSE_S, _PAUSE_S * 2.0 ** min(10, max(0, entry.refusals - 1)))
            if entry.late:
                pause_s = min(_PAUSE_S, _SOON_S * entry.late)
            if not ((same or entry.refusals or entry.late) and now_s < entry.at_s + pause_s):
                row = ended or rows[number]
                if (notes := self._notes(row, snapshot)) != entry.notes:
                    due.append((same, entry.at_s, row, notes))
        for _, _, row, notes in sorted(due, key=lambda one: one[:2])[:_MOST_PATCHES]:
            if self._stopping.is_set():
                break
            about, entry = _job(row), self._announced[row.id]
            assert about is not None
            entry.at_s = now_s
            allowed = self._allowed(about.namespace, annotate, api, about, notes, of=about.uid)
            if allowed is None and entry.late < _MOST_LATE:
                entry.late += 1
                continue
            entry.late, entry.refusals = 0, 0 if allowed else entry.refusals + 1
            entry.notes = notes if allowed else entry.notes
            if row.status not in ACTIVE and not 0 < entry.refusals < _MOST_REFUSALS:
                self._final.discard(row.id)
        self._announced = {n: entry for n, entry in self._announced.items() if n in snapshot.rows or n in self._final}

    def _notes(self, row: JobRow, snapshot: Snapshot) -> dict[str, str | None]:
        job = snapshot.jobs.get(row.id)
        _, why = why_of(row if job is None else job)
        waits = row.status == "waiting" and job is not None
        cost_n = self.store.account(row.id)["cost_n"] if row.attempts else 0
        return {
            "commonwatt.io/job": str(row.id), "commonwatt.io/status": row.status.value,
            "commonwatt.io/reason": why[:1000] if why else None,
            "commonwatt.io/expected-start": _minute(job.expected_start_s) if waits and job is not None else None,
            "commonwatt.io/expected-end": None if job is None else _minute(job.expected_end_s),
            "commonwatt.io/cost": "unknown" if cost_n is None else f"{cost_n / NANO:.3g} {self.currency}",
        }  # fmt: skip


def announcer_of(
    config: Scenario, folder: Path, store: ApiStore, supervisor: Supervisor,
    term: Callable[[], Callable[[], None]],
    now_s: Callable[[], float],
) -> Announcer | None:  # fmt: skip
    """Return the announcer of a configuration; ``None`` for another engine, or where nothing may be changed."""
    spec = config.live.kubernetes
    if config.engine != "kubernetes" or spec.read_only:
        return None

    def pod_of(api: KubernetesApi, row: JobRow) -> tuple[str, str]:
        label = cluster_label(identity_in(folder / spec.state))
        return settings_of(spec, api.access.namespace).namespace, pod_name(label, row.id, row.attempts)

    return Announcer(
        store, lambda: api_of(spec, folder, term()), supervisor.snapshot, lambda: supervisor.active, now_s,
        config.electricity.currency, pod_of,
    )  # fmt: skip


def _pods_of_job(api: KubernetesApi, job: About) -> list[About]:
    """Return the pods of a Job that wait or run, but few of them; raises ``EngineError`` as ``post_event`` does."""
    selector = _PODS_BY[job.kind].format(uid=job.uid, name=job.name)
    params = {"labelSelector": selector, "limit": str(_MOST_PODS)}
    pods = api.get(path_of("pods", job.namespace), **params).get("items") or ()
    return [
        About("Pod", job.namespace, pod["metadata"]["name"], pod["metadata"]["uid"]) for pod in pods
        if (pod.get("status") or {}).get("phase") in ("Pending", "Running")
    ]  # fmt: skip


def _pod_named(api: KubernetesApi, namespace: str, name: str) -> About | None:
    """Return a pod; ``None`` if there is none of that name. Raises ``EngineDownError``."""
    pod: dict[str, Any] = {}
    with suppress(RefusedByServerError):
        pod = api.get(path_of("pods", namespace, name))
    return About("Pod", namespace, name, pod["metadata"]["uid"]) if pod else None


def _job(row: JobRow) -> About | None:
    of = row.file.workload
    return None if of is None else About(of.kind, of.namespace, of.name, of.uid)


def _minute(time_s: float | None) -> str | None:
    """Return a time to the minute, so that small changes of an estimate change nothing; ``None``: after all years."""
    if time_s is None or not 0.0 <= time_s < _LATEST_S:
        return None
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%MZ")


def _message(event: EventRow, row: JobRow) -> str:
    said = event.sentence or f"{row.name} is {event.kind}"
    if event.kind == EventKind.SUBMITTED:
        kind = "Job" if row.file.workload is None else row.file.workload.kind
        return f"job {row.id} of tenant {row.tenant}; annotations of its {kind} say why it waits, and until when"
    if event.kind in _PLACED and (end := _minute(row.expected_end_s)) is not None:
        return f"{said}; it is expected to end at {end}"
    return said
