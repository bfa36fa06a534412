"""Users' own Jobs and gangs in Kubernetes: how their pods are placed, how they are held, and what quotas leave them."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from commonwatt.engines.kubernetes.api import DENIED, KubernetesApi, RefusedByServerError, path_of
from commonwatt.engines.kubernetes.containers import quantity_of
from commonwatt.engines.kubernetes.informer import Informer, Watched
from commonwatt.engines.kubernetes.objects import (
    ATTEMPT,
    CLUSTER,
    GATE,
    JOB,
    PODS,
    RANK,
    REQUIRED,
    RUN,
    Pod,
    is_gated,
    pod_of,
)
from commonwatt.engines.kubernetes.run import KubernetesRun
from commonwatt.engines.kubernetes.settings import SCHEDULER, KubernetesSettings, shown
from commonwatt.engines.kubernetes.user_gang import KINDS, child_of, left_to_kueue, suspended_in
from commonwatt.engines.kubernetes.user_job import TENANT, UserJob, by_kueue
from commonwatt.engines.kubernetes.user_requests import About, LateError, Pauses, annotate, post_event
from commonwatt.engines.kubernetes.user_run import MADE_S, UserJobRun
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.model.units import plural

__all__ = ["NamespaceQuota", "UserJobs", "quota_of"]

log = logging.getLogger("commonwatt.kubernetes")

_Answer = TypeVar("_Answer")
_LONGEST_S = 3600.0
"""Longest pause after no pods of a Job could be placed."""
_DELETED_S = 10.0
"""How long the controller of Jobs may take to delete the pods of one that was suspended."""
_PLACING = ("patch", "bind")


@dataclass(frozen=True, slots=True)
class _Failed:
    """Starts of a Job of which no pods could be placed: how often, until when it waits, its pods then, and why."""

    tries: int
    until_s: float
    there: int
    why: str


@dataclass(frozen=True, slots=True)
class NamespaceQuota:
    """A ResourceQuota: what is left of what it counts, by the names of resources, and of which pods it counts that.

    *left* has, by resource, what is left, and the most. *scopes* are all that have to be true of a pod: a scope, an
    operator (of ``PriorityClass``), and values.
    """

    namespace: str
    name: str
    left: tuple[tuple[str, float, float], ...]
    scopes: tuple[tuple[str, str, tuple[str, ...]], ...] = ()

    def counts(self, job: UserJob) -> bool:
        """Whether it counts the pods of a job; a deadline of single pods is not known, and taken for none."""
        return self.namespace == job.namespace and all(_is_of(job, *scope) for scope in self.scopes)

    def lacks(self, needs: Mapping[str, float], part: float = 1.0) -> str:
        """Return what is missing of *needs*, which are this *part* of the job's, in words; "" if nothing is."""
        for name, left, most in self.left:
            own = name.removeprefix("requests.").removeprefix("count/")
            if name.startswith("limits.") or needs.get(own, 0.0) <= left + 1e-6:
                continue
            who = f"quota {self.name} of namespace {self.namespace}"
            if (whole := needs[own] / part) > most + 1e-6:
                return f"{who} allows {shown(own, most)} in all, and its pods need {shown(own, whole)}: it never starts"
            return f"{who} has {shown(own, left)} left, and its pods need {shown(own, needs[own])}"
        return ""


def quota_of(item: Mapping[str, Any]) -> NamespaceQuota:
    """Return a quota of the API's object *item*; what Kubernetes has not counted yet is taken for unused."""
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    hard, used = spec.get("hard") or {}, status.get("used") or {}
    selected = (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    scopes = [(name, "Exists", ()) for name in spec.get("scopes") or ()]
    scopes += [(e["scopeName"], e.get("operator", "Exists"), tuple(e.get("values") or ())) for e in selected]
    left = tuple(
        (name, quantity_of(most) - quantity_of(used.get(name, 0)), quantity_of(most))
        for name, most in sorted(hard.items())
    )
    return NamespaceQuota(meta["namespace"], meta["name"], left, tuple(scopes))


def _is_of(job: UserJob, scope: str, operator: str, values: tuple[str, ...]) -> bool:
    if scope == "PriorityClass":
        named = job.priority_class
        return {
            "In": named in values, "NotIn": named not in values, "Exists": bool(named), "DoesNotExist": not named,
        }[operator]  # fmt: skip
    best_effort = not any(name in ("cpu", "memory") for name, _ in job.requests)
    in_scope = {"BestEffort": best_effort, "NotBestEffort": not best_effort, "NotTerminating": True}
    return in_scope.get(scope, False)


class UserJobs:
    """The labelled Jobs of some namespaces, and other *kinds*.

    One is held in either of two ways. Its pods name our scheduler, so that nobody places them but us. And where the
    server knows its field ``suspend`` (of Jobs, by default from 1.22), it has no pods until it is started. The answer
    says which it is: it has the field, or has lost it. A gang is held in both. The field of a Job in a queue of Kueue
    is Kueue's: it is never written here.

    Parameters
    ----------
    label
        Of our pods.
    namespaces
        Where Jobs are taken over.
    kinds
        What is taken over there; keys of ``KINDS``.
    kueue
        Whether a Job in a queue of Kueue is, too; if not, it is left to Kueue.
    pauses
        Ask the server to change something, here and elsewhere; ``None``: new ones.
    """

    def __init__(
        self, api: KubernetesApi, label: str, namespaces: Collection[str], kinds: Collection[str] = ("Job",), *,
        kueue: bool = True, pauses: Pauses | None = None,
    ) -> None:  # fmt: skip
        self._api, self._label = api, label
        self._jobs: list[tuple[tuple[str, str], Watched[UserJob]]] = []  # by namespace and kind
        self._children: list[Watched[tuple[str, str]]] = []
        self._quotas = [Watched(path_of("resourcequotas", each), quota_of) for each in namespaces]
        for name, namespace in ((name, each) for name in kinds for each in namespaces):
            kind = KINDS[name]
            path = path_of(kind.resource, namespace, group=kind.group)
            read = kind.read if kueue else partial(left_to_kueue, kind)
            self._jobs.append(((namespace, name), Watched(path, read, {"labelSelector": TENANT})))
            if kind.children:
                path = path_of("jobs", namespace, group=KINDS["Job"].group)
                self._children.append(Watched(path, child_of, {"labelSelector": kind.children}))
        self.informer: Informer | None = None  # which has them
        self.pods: Watched[Pod] | None = None  # all there are
        self.unseen: dict[tuple[str, str], str] = {}  # namespaces and kinds that we may not look at, and why
        self.pauses = pauses or Pauses(api)  # by namespace and resource, of what changes them
        self._made: tuple[int, Counter[tuple[str, str]]] = -1, Counter()  # pods by namespace and owner, as of then
        self._failed: dict[str, _Failed] = {}  # starts of Jobs of which no pods could be placed, by uid
        self._stopping_s: dict[str, float] = {}  # since when gangs are to have no pods, while they may have some
        self._warned: dict[str, str] = {}  # what was logged last of what is denied, by what that means
        self._turn = "", 0.0  # whose start is tried after no answer, and since when: it may keep GPUs for nothing
        self._suspends: dict[tuple[str, str], bool] = {}  # by namespace and kind: whether the server keeps the field

    @property
    def watched(self) -> list[Watched[Any]]:
        """All that the informer has to watch."""
        return [*(watched for _, watched in self._jobs), *self._children, *self._quotas]

    @property
    def version(self) -> tuple[int, ...]:
        """Changes whenever a Job, a quota's remainder or the set of Jobs without pods changes.

        Pods count while some of a gang are to go.
        """
        watched: list[Watched[Any]] = [*(jobs for _, jobs in self._jobs), *self._quotas]
        if self._stopping_s and self.pods is not None:
            watched.append(self.pods)
        return *(each.version for each in watched), sum(failed.tries for failed in self._failed.values())

    def all(self) -> dict[str, UserJob]:
        """Return the Jobs by uid, without those of namespaces and kinds that are ``unseen``.

        Raises ``EngineError`` if the server does not answer.
        """
        jobs: dict[str, UserJob] = {}
        denied: dict[tuple[str, str], str] = {}
        for place, each in self._jobs:
            assert self.informer is not None
            try:
                jobs |= self._asked(self.informer.look, each)
            except DENIED as error:
                denied[place] = str(error)
        for namespace, kind in denied.keys() - self.unseen.keys():
            said = {"namespace": namespace, "kind": kind, "cause": denied[namespace, kind]}
            log.warning("users' Jobs of a namespace are not seen: they stay as they are", extra=said)
        self.unseen = denied
        if not denied:
            self._stopping_s = {uid: since_s for uid, since_s in self._stopping_s.items() if uid in jobs}
            self._failed = {uid: failed for uid, failed in self._failed.items() if uid in jobs}
        return jobs

    def _asked(self, ask: Callable[..., _Answer], *what: Any) -> _Answer:  # noqa: ANN401
        """Return the answer to a question about users' objects; raises one of ``DENIED`` if only their API is down.

        An extension may be; the server is not while it tells of pods.
        """
        try:
            return ask(*what)
        except EngineDownError as error:
            if self.pods is None or not (self.pods.synced and self.pods.steady):
                raise
            raise RefusedByServerError(503, "ServiceUnavailable", str(error)) from error

    def why_unseen(self, namespace: str) -> str:
        """Return why Jobs of a namespace may not be looked at; "" if they may."""
        why = next((why for (space, _), why in self.unseen.items() if space == namespace), "")
        return f"its Job may not be looked at: {why}" if why else ""

    def find(self, uid: str) -> UserJob | None:
        """Return a Job, ``None`` if it is gone, or unseen; raises ``EngineError`` as ``all`` does."""
        assert self.informer is not None
        for _, each in self._jobs:
            with suppress(*DENIED):
                if (job := self._asked(self.informer.find, each, uid)) is not None:
                    return job
        return None

    def of(self, run: UserJobRun) -> UserJob | None:
        """Return the Job of a run, ``None`` if it is gone.

        Raises one of ``DENIED`` if its namespace is unseen, ``EngineError`` as ``all`` does.
        """
        assert self.informer is not None
        denied: EngineError | None = None
        for (namespace, kind), each in self._jobs:
            if namespace == run.spec.workload[0] and kind == (run.kind or kind):
                try:
                    if (job := self._asked(self.informer.find, each, run.owner)) is not None:
                        return job
                except DENIED as error:
                    denied = error
        if denied is not None:
            raise denied
        return None

    def short_of_quota(self, job: UserJob) -> str:
        """Return which quota has too little left for a job, in words; "": none, or they may not be looked at."""
        assert self.informer is not None
        assert self.pods is not None
        quotas: list[NamespaceQuota] = []
        for each in self._quotas:
            try:
                quotas += [quota for quota in self._asked(self.informer.look, each).values() if quota.counts(job)]
            except DENIED as error:
                self._warn("resource quotas cannot be looked at: jobs are placed without regard to them", error)
        if not quotas or not (missing := self._missing(job)):
            return ""
        needs = {PODS: float(missing)}
        for group in job.groups or (job,):
            for name, amount in group.requests:
                needs[name] = needs.get(name, 0.0) + group.pods * amount * missing / job.pods
        return next(filter(None, (quota.lacks(needs, missing / job.pods) for quota in quotas)), "")

    def _missing(self, job: UserJob) -> int:
        """Return how many pods of a job are not there that have to run yet."""
        return max(0, job.pods - job.succeeded - self._pods_of(job))

    def _pods_of(self, job: UserJob) -> int:
        """Return how many pods of a job are there that are not over."""
        assert self.informer is not None
        assert self.pods is not None
        if self._made[0] != (version := self.pods.version):
            there = (pod for pod in self.informer.look(self.pods).values() if pod.owner and not pod.over)
            self._made = version, Counter((pod.namespace, self._owner(pod)) for pod in there)
        return self._made[1][job.namespace, job.uid]

    def is_stopping(self, job: UserJob) -> bool:
        """Whether pods of a gang that does not run may be there yet: its controller has not done what it was asked to.

        If it were resumed now, the controller might delete those pods after they were placed. One that says nothing
        (the definitions of old know no such condition) is waited for a minute.
        """
        if not job.gang or job.over or (job.suspended and job.stopped and not self._pods_of(job)):
            self._stopping_s.pop(job.uid, None)
            return False
        return time.monotonic() < self._stopping_s.setdefault(job.uid, time.monotonic()) + MADE_S

    def podless(self, run: UserJobRun, settings: KubernetesSettings) -> str:
        """Return why a run that waits for its pods is to be withdrawn, in words; "": it may wait."""
        waited_s, job = time.monotonic() - run.waiting_s, run.job
        if job is None or waited_s <= min(settings.lag_s, settings.start_s):
            return ""
        if short := self.short_of_quota(job):
            return short
        if waited_s <= (most_s := min(settings.start_s, MADE_S)):
            return ""
        tries = self._failed[job.uid].tries + 1 if job.uid in self._failed else 1
        until_s, there = time.monotonic() + min(_LONGEST_S, 2.0 ** min(tries, 16) * MADE_S), self._pods_of(job)
        if self._missing(job) or not there:
            why = f"Kubernetes has not made its pods within {most_s:g} s: the Events of its {job.kind} say why"
        else:
            why = f"its pods do not wait to be placed by {SCHEDULER}: something has changed, placed or deleted them"
        self._failed[job.uid] = _Failed(tries, until_s, there, why)
        return why

    def hangs(self, job: UserJob) -> str:
        """Return why a job would not start now, in words, as requests about it would hang; "": it may."""
        kinds = [(job.namespace, KINDS[job.kind].resource), *((job.namespace, "pods", verb) for verb in _PLACING)]
        uid, since_s = self._turn
        if why := next(filter(None, map(self.pauses.hangs, kinds)), ""):
            self._turn = self._turn if uid != job.uid else ("", 0.0)
            return f"requests about namespace {job.namespace} are not answered, a webhook may hang: {why}"
        if not any(map(self.pauses.hung, kinds)):
            return ""
        if uid != job.uid and time.monotonic() < since_s + MADE_S:
            return "requests about its namespace were not answered of late: such jobs are tried one after another"
        self._turn = (job.uid, time.monotonic()) if uid != job.uid else self._turn
        return ""

    def made_none(self, job: UserJob) -> str:
        """Return why no pods of a job could be placed of late, so that it waits a while; "" if it may start.

        It may at once if there are more pods of it since.
        """
        failed = self._failed.get(job.uid)
        if failed is None or time.monotonic() > failed.until_s or self._pods_of(job) > failed.there:
            return ""
        return f"{failed.why}; it was tried {plural(failed.tries, 'time')}"

    def _owner(self, pod: Pod) -> str:
        """Return the uid of what a pod belongs to: of the gang, if a Job of one has made it."""
        for each in self._children:
            with suppress(*DENIED):
                assert self.informer is not None
                if (child := self._asked(self.informer.find, each, pod.owner)) is not None:
                    return child[1]
        return pod.owner

    # -- starting

    def resume(self, job: UserJob) -> bool:
        """Let Kubernetes make the pods of a Job; returns whether it has answered that it does, or need not.

        Raises ``EngineError``, also if Kueue has suspended it.
        """
        if job.suspended and job.queue:
            msg = f"{by_kueue(job.queue)} has suspended its Job"
            raise EngineError(msg)
        if job.suspended:
            try:
                self._patch(job, self._suspension(job, wanted=False))
            except LateError:
                return False
        self._stopping_s.pop(job.uid, None)
        return True

    def place(
        self, run: UserJobRun, job: UserJob, pods: Iterable[Pod], hosts: Mapping[int, str],
        fits: Callable[[Mapping[int, Pod]], None] = lambda _: None,
    ) -> bool:  # fmt: skip
        """Place the pods of a run once all of them are there, and *fits* raises nothing; returns whether that is done.

        Which pod has which rank is on disk before the first one is placed: whoever goes on after a crash places the
        same ones. Raises ``EngineError`` if one cannot be placed, as it is gone or somebody else was faster.
        """
        there = {
            pod.uid: pod for pod in pods
            if pod.owner and pod.namespace == job.namespace and self._owner(pod) == job.uid
        }  # fmt: skip
        lately = job.gang or time.monotonic() < run.waiting_s + _DELETED_S  # one on a lost node is deleted for hours
        if not run.has_chosen() and lately and any(pod.deleting and not pod.over for pod in there.values()):
            return False  # those that are left may be deleted, too, as the job was suspended a moment ago
        if not run.has_chosen():
            free = [pod for pod in there.values() if (pod.gated or pod.scheduler == SCHEDULER) and _waits(pod)]
            left = len(run.ranks) if job.gang else len(run.ranks) - job.succeeded
            if not 0 < left <= len(free):
                return False
            chosen = sorted(free, key=lambda pod: pod.name)[:left]
            fits(dict(zip(run.ranks, chosen, strict=False)))
            run.choose(chosen)
        late = 0
        for rank in run.ranks:
            pod = there.get(run.pod_uid(rank))
            try:
                if pod is not None and _waits(pod) and pod.gated:
                    self._ask_of("patch", pod, self._ungate, run, rank, pod, hosts[run.node_of(rank)])
                if pod is not None and _waits(pod) and pod.scheduler == SCHEDULER:
                    self._ask_of("bind", pod, self._bind, run, rank, pod, hosts[run.node_of(rank)])
            except LateError:
                late += 1
            except DENIED as error:
                self._warn("a user's pod cannot be placed", error)
                raise
        if not late:
            self._failed.pop(job.uid, None)
        return not late

    def _notes(self, run: UserJobRun, rank: int) -> dict[str, str]:
        spec = run.spec
        return {
            CLUSTER: self._label, RUN: run.mark, JOB: str(spec.handle), ATTEMPT: str(spec.attempt), RANK: str(rank),
            "commonwatt.io/nodes": ",".join(spec.node_names),
        }  # fmt: skip

    def _ungate(self, run: UserJobRun, rank: int, pod: Pod, host: str) -> None:
        """Pin a pod to its node, and take our gate away once the server has kept that."""
        path = path_of("pods", pod.namespace, pod.name)
        now = self._api.get(path)
        if now["metadata"]["uid"] != pod.uid:
            msg = f"pod {pod.name} is gone"
            raise EngineError(msg)
        before = (now["metadata"].get("annotations") or {}).get(RUN, run.mark)
        if is_gated(now["spec"]) and before != run.mark:  # an affinity can be narrowed, not widened
            self._api.delete(path, pod.uid)
            msg = f"pod {pod.name} was pinned for a run that was given up: Kubernetes makes another one"
            raise EngineError(msg)
        if is_gated(now["spec"]) and not _is_pinned(now["spec"], host):
            meta = {"uid": pod.uid, "annotations": self._notes(run, rank)}
            now = self._api.merge(path, {"metadata": meta, "spec": {"affinity": _pinned(now["spec"], host)}})
        if not _is_pinned(now["spec"], host):
            msg = f"pod {pod.name} is not pinned to node {host}: its affinity was dropped, or its gate taken away"
            raise EngineError(msg)
        others = [gate for gate in now["spec"].get("schedulingGates") or () if gate.get("name") != GATE]
        self._api.merge(path, {"metadata": {"uid": pod.uid}, "spec": {"schedulingGates": others}})

    def _bind(self, run: UserJobRun, rank: int, pod: Pod, host: str) -> None:
        path = path_of("pods", pod.namespace, pod.name)
        meta = {"name": pod.name, "uid": pod.uid, "annotations": self._notes(run, rank)}
        if self._api.bind_once(path, host, meta):
            return
        now = pod_of(self._api.get(path))
        if (now.uid, now.node, now.mark) != (pod.uid, host, run.mark):
            msg = f"pod {pod.name} was placed on {now.node} by somebody else"
            msg = msg if now.node else f"pod {pod.name} cannot be placed: it has a scheduling gate, or has changed"
            raise EngineError(msg)

    def _warn(self, what: str, error: EngineError) -> None:
        """Log what is denied: once, while the cause is the same."""
        if self._warned.get(what) != str(error):
            log.warning(what, extra={"cause": str(error)})
        self._warned[what] = str(error)

    # -- stopping

    def tell(self, job: UserJob, reason: str, message: str, now_s: float) -> bool:
        """Write an Event about a Job, some time; returns whether it will be: if not, it is to be told again."""
        about, of = About(job.kind, job.namespace, job.name, job.uid), (job.namespace, "events")
        return self.pauses.send(of, post_event, self._api, about, message, reason, message, now_s)

    def note_refusal(self, job: UserJob, why: str) -> bool:
        """Write into the annotations of a Job why it is not taken over, some time; returns as ``tell`` does."""
        notes = {"commonwatt.io/status": "refused", "commonwatt.io/reason": why[:1000]}
        about = About(job.kind, job.namespace, job.name, job.uid)
        return self.pauses.send((job.namespace, KINDS[job.kind].resource), annotate, self._api, about, notes)

    def stop(self, run: KubernetesRun, pods: Iterable[Pod]) -> None:
        """Stop the *pods* of a run: by suspending its Job, else by deleting them; then others are made, and wait.

        Where we may do neither (any more), that is logged, and has to be tried again: the pods run on.
        """
        before, run.denied_s, job = run.denied_s, None, None
        if isinstance(run, UserJobRun):
            try:
                job = self.of(run)
                if job is not None and not job.over and self._suspend(job):
                    return
            except LateError:  # it may be suspended yet
                run.denied_s = time.monotonic()
                return
            except DENIED:
                pass
        try:
            for pod in pods:
                try:
                    if not pod.deleting:
                        self.delete(pod)
                except LateError:
                    run.denied_s = time.monotonic()
        except DENIED as error:
            run.denied_s = time.monotonic()
            if before is None:
                namespace, name = run.spec.workload[:2] or ("", run.spec.name)
                what = {"namespace": namespace, "name_there": name, "cause": str(error)}
                log.warning("a job cannot be stopped, and runs on", extra=what)
            if before is None and job is not None:
                self.tell(job, "NotStopped", f"it is to be stopped, and runs on: {error}", run.now_s())

    def delete(self, pod: Pod, grace_s: int | None = None) -> None:
        """Delete a pod; raises one of ``DENIED`` if that is not allowed, or does not work in its namespace."""
        path = path_of("pods", pod.namespace, pod.name)
        self._ask_of("delete", pod, self._api.delete, path, pod.uid, grace_s)

    def _ask_of(self, verb: str, pod: Pod, request: Callable[..., object], *what: Any) -> None:  # noqa: ANN401
        self.pauses.ask((pod.namespace, "pods", verb), request, *what, about=pod.uid)

    def retire(self, job: UserJob) -> None:
        """Have Kubernetes make no pods of a Job any more, without deleting it; raises ``EngineError``.

        It is suspended, or, where the server does not know that, or Kueue would resume it, its parallelism becomes 0. A
        gang has none: its pods wait, as nobody places them.
        """
        resumed = self.pauses.is_unsettled((job.namespace, KINDS[job.kind].resource), job.uid)  # perhaps
        done = job.over or job.pods == 0 or (job.suspended and not job.queue and not resumed)
        if not done and not self._suspend(job) and not job.gang:
            with suppress(_GoneError):
                self._patch(job, {"spec": {"parallelism": 0}})

    def hold(self, job: UserJob) -> bool:
        """Suspend a Job that is not to have pods yet; returns whether the server keeps it so. Kueue's is left as it is.

        A server that does not know the field drops it in silence: the answer says whether it was kept.
        """
        return self._suspend(job)

    def _suspend(self, job: UserJob) -> bool:
        if job.queue:  # Kueue resumes what it has admitted
            return False
        of = job.namespace, job.kind
        if self._suspends.get(of) is False and not job.gang:  # a definition may be replaced at any time
            return False
        with suppress(_GoneError):
            made = self._patch(job, self._suspension(job, wanted=True))
            self._suspends[of] = suspended_in(KINDS[job.kind], made)
            return self._suspends[of]
        return False

    @staticmethod
    def _suspension(job: UserJob, *, wanted: bool) -> dict[str, Any]:
        body: Any = wanted
        for name in reversed(KINDS[job.kind].suspend):
            body = {name: body}
        return dict(body)

    def _patch(self, job: UserJob, change: Mapping[str, Any]) -> dict[str, Any]:
        """Change a Job, this one and no other of its name."""
        kind = KINDS[job.kind]
        path = path_of(kind.resource, job.namespace, job.name, group=kind.group)
        try:
            change = {"metadata": {"uid": job.uid}, **change}
            of = job.namespace, kind.resource
            return self.pauses.ask(of, self._api.merge, path, change, about=job.uid, seen=job)
        except RefusedByServerError as error:
            if error.status not in (404, 409):
                raise
            msg = f"{job.kind} {job.namespace}/{job.name} is gone"
            raise _GoneError(msg) from error


def _pinned(spec: Mapping[str, Any], host: str) -> dict[str, Any]:
    """Return the affinity of a pod's *spec*, with each way to fulfil it narrowed to the node *host*."""
    own = spec.get("affinity") or {}
    node = own.get("nodeAffinity") or {}
    terms = (node.get(REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    rule = {"key": "metadata.name", "operator": "In", "values": [host]}
    narrowed = [{**term, "matchFields": [*(term.get("matchFields") or ()), rule]} for term in terms]
    return {**own, "nodeAffinity": {**node, REQUIRED: {"nodeSelectorTerms": narrowed}}}


def _is_pinned(spec: Mapping[str, Any], host: str) -> bool:
    """Whether the required affinity of a pod's *spec* admits no node but *host*."""
    node = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (node.get(REQUIRED) or {}).get("nodeSelectorTerms") or ()
    rule = {"key": "metadata.name", "operator": "In", "values": [host]}
    return bool(terms) and all(rule in (term.get("matchFields") or ()) for term in terms)


def _waits(pod: Pod) -> bool:
    return not (pod.node or pod.over or pod.deleting)


class _GoneError(EngineError):
    """The Job was deleted; there may be another one of its name."""
