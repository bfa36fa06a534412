"""Takes over the Jobs and gangs that users create in Kubernetes.

Each is submitted once, and cancelled when it is deleted there.

The uid of a Job is the key of its submission: whoever looks at it again, after a crash or a restart, finds the job that
was submitted for it; a Job of the same name that was created later is another one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import islice

from commonwatt.controlplane.jobs import JobMaker, TimeFigure, due_of
from commonwatt.controlplane.pending_commands import OneByOne
from commonwatt.engines.kubernetes.engine import KubernetesEngine
from commonwatt.engines.kubernetes.user_gang import KINDS, reannotated, reshaped
from commonwatt.engines.kubernetes.user_job import DUE, WEIGHT, UserJob, by_kueue
from commonwatt.engines.kubernetes.user_run import end_without_run
from commonwatt.model.errors import EngineError, InputError, ServiceError
from commonwatt.model.job_file import JobFile
from commonwatt.model.live import PriorityClassSpec
from commonwatt.store.api_store import ApiStore
from commonwatt.store.controller_store import ControllerStore, Tick
from commonwatt.store.records import ACTIVE, JobRow, RequestKind

__all__ = ["UserJobIntake", "key_of"]

log = logging.getLogger("commonwatt.kubernetes")

_EVERY_S = 5.0
"""Between looks while no Job changes: jobs may have ended here, and quotas may have room."""
_ANEW_S, _FEW = 45.0, 20
"""Within which a Job that was refused is looked at anew, as nodes and limits may be others; so many at each look."""
_MOST = 100_000
_LATEST_S = 1e15  # all databases have it
_ENDED = "its job has ended here: to run it again, delete the {} and create it"
_ODD = "its Job cannot be looked at: the log of the controller says why"


def key_of(job: UserJob) -> str:
    """Return the idempotency key under which a Job is submitted."""
    return f"kubernetes-job {job.uid}"


@dataclass
class UserJobIntake:
    """Keeps the store's jobs and the users' Jobs in step.

    Attributes
    ----------
    tenants
        Whose Jobs are taken over, by namespace.
    classes
        What a Job asks for by its PriorityClass, as far as its annotations do not say.
    refused
        By uid: why a Job is not taken over.
    awaiting
        By number: why a job may not be placed now, though it was taken over.
    renewed
        Whether the GPU types of a job have changed, as Kueue has admitted it to others: a new reconciler sees that.
    """

    engine: KubernetesEngine
    store: ApiStore
    controller_store: ControllerStore
    maker: JobMaker
    tenants: Mapping[str, Collection[str]]
    classes: Mapping[str, PriorityClassSpec] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    awaiting: dict[int, str] = field(default_factory=dict)
    renewed: bool = False
    _queued: set[str] = field(default_factory=set)  # uids seen while Kueue held them
    _rules: dict[str, str] = field(default_factory=dict)  # of the pods of Kueue's Jobs, by uid, as last looked at
    _begun: bool = False
    _jobs: dict[str, int] = field(default_factory=dict)  # those not known to have ended, by uid
    _spaces: dict[str, tuple[str, str]] = field(default_factory=dict)  # their namespaces and kinds, by uid
    _taken: dict[str, tuple[str, int, float, JobFile]] = field(default_factory=dict)  # tenant, pods, their GPUs, by uid
    _decided: dict[str, UserJob] = field(default_factory=dict)  # not taken over as they were then: longest ago first
    _turn_s: float = 0.0  # when some of them had their turn
    _unkept: dict[str, str] = field(default_factory=dict)  # by uid: the change that its Event NotFollowed names
    _single: OneByOne = field(default_factory=OneByOne)
    _cancelled: set[int] = field(default_factory=set)
    _done: set[str] = field(default_factory=set)  # that have ended here: Kubernetes makes no pods of them any more
    _resting: set[str] = field(default_factory=set)  # those of them that were seen to have no pods
    _seen: tuple[int, ...] = ()
    _next_s: float = -math.inf
    _trouble: str = ""

    def look(self, now_s: float) -> bool:
        """Submit new Jobs, cancel those that are gone; returns whether there are requests for the controller.

        Errors of Kubernetes, and of single Jobs, are logged: others do not depend on them. Raises ``StoreError``.
        """
        version = self.engine.user_jobs.version
        if version == self._seen and now_s < self._next_s:
            return False
        self._seen, self._next_s = version, now_s + _EVERY_S
        try:
            asked = self._look(self.engine.user_jobs.all(), now_s)
        except EngineError as error:
            if str(error) != self._trouble:
                log.warning("users' Jobs cannot be looked at", extra={"cause": str(error)})
            self._trouble = str(error)
            return False
        self._trouble = ""
        return asked

    def _look(self, there: Mapping[str, UserJob], now_s: float) -> bool:
        if not self._begun:
            for row in self.store.jobs(status=ACTIVE, limit=_MOST):
                self._note(row)
            self._begun = True
        self.refused = {uid: why for uid, why in self.refused.items() if uid in there}
        self._done &= there.keys()
        self._resting &= self._done
        self._queued &= there.keys()
        self._single.forget(there.keys())
        asked, look = False, self._single.look
        for job in self._due(there, now_s):
            if (new := look(self._take, job, now_s)) is False:
                self._decided[job.uid] = job
            asked = asked or bool(new)
        for uid in self._done & there.keys():
            look(self._rest, there[uid], now_s)
        self._settle(there)
        for uid in self._jobs.keys() & there.keys():
            look(self._hold, there[uid])
        own = [(number, there[uid]) for uid, number in self._jobs.items() if uid in there]
        reasons = {number: look(self._why_not, job, number, now_s) for number, job in own if not job.over}
        self.awaiting = {number: _ODD if why is None else why for number, why in reasons.items() if why != ""}
        hidden = {number: self._spaces[uid] for uid, number in self._jobs.items() if uid not in there}
        for number, (space, kind) in hidden.items():
            if why := self.engine.user_jobs.unseen.get((space, kind)):
                self.awaiting[number] = f"{kind}s of its namespace {space} may not be looked at: {why}"
        for _, job in own:
            look(self._tell_unfollowed, job, now_s)
        for uid, number in self._jobs.items():
            if uid in there and there[uid].end and not self.engine.runs(there[uid]):
                look(self._report_end, there[uid], number, now_s)
                continue
            gone = uid not in there or (there[uid].over and not self.engine.runs(there[uid]))
            if gone and number not in self.awaiting and number not in self._cancelled:
                self._cancelled.add(number)
                self.store.ask(RequestKind.CANCEL, now_s, job=number, value={"by": "tenant"})
                asked = True
        return asked

    def _due(self, there: Mapping[str, UserJob], now_s: float) -> list[UserJob]:
        """Return the Jobs to decide on: those that are new, or have changed, and a few of the others, in turn."""
        uids = self._jobs.keys() | self._done
        open_ = {uid: job for uid, job in there.items() if not (uid in uids or job.over or job.left_to)}
        self._decided = {uid: job for uid, job in self._decided.items() if uid in open_}
        few = max(_FEW, math.ceil(len(there) * (now_s - self._turn_s) / _ANEW_S))
        self._turn_s, turn = now_s, set(islice(self._decided, few))
        return [job for uid, job in open_.items() if uid in turn or self._decided.get(uid) != job]

    def _report_end(self, job: UserJob, number: int, now_s: float) -> None:
        self.engine.report(end_without_run(job, number, now_s))

    def _why_not(self, job: UserJob, number: int, now_s: float) -> str:
        """Return why a job may not be placed now: Kubernetes would make no pods, or it is in a queue of Kueue.

        Pods of that may be others once it is resumed.
        """
        if not job.queue:
            return self._short_of_pods(job)
        if job.suspended:
            self._rules.pop(job.uid, None)
            return f"{by_kueue(job.queue)} has yet to admit it again"
        if self._rules.get(job.uid) == job.rules:
            return self._short_of_pods(job)
        if self.engine.runs(job):  # were its GPU types others now, it would start on the old ones as soon as it ends
            return f"{by_kueue(job.queue)} may have admitted it anew, and its last run has yet to end"
        try:
            _, figures = self._checked(job)
        except ValueError as error:
            self._refuse(job, str(error), now_s)
            return f"its Job cannot be placed as it is now: {error}"
        self.refused.pop(job.uid, None)
        row, types = self.store.job(number), {figure.gpu_type for figure in figures}
        assert row is not None
        before = row.file.gpu_types if row.times is None else [figure["gpu_type"] for figure in row.times]
        if types != set(before or ()):
            self.controller_store.write(Tick(jobs={number: {"times": [figure.document() for figure in figures]}}))
            self.renewed = True
        self._rules[job.uid] = job.rules
        return self._short_of_pods(job)

    def _short_of_pods(self, job: UserJob) -> str:
        """Return why Kubernetes would make no pods of a job now, as far as is known; "": it would, or the job runs."""
        jobs = self.engine.user_jobs
        if self.engine.runs(job):
            return ""
        if reshaped(job, *self._taken[job.uid][1:3]):
            return self._unfollowed(job)
        if jobs.is_stopping(job):
            return f"the controller of its {job.kind} has yet to delete pods of it, as it is suspended"
        return jobs.short_of_quota(job) or jobs.made_none(job) or jobs.hangs(job)

    def _unfollowed(self, job: UserJob) -> str:
        """Return which changes of a Job come too late for its job, in words; "": none."""
        tenant, pods, gpus, file = self._taken[job.uid]
        changes = reshaped(job, pods, gpus) + reannotated(job, file, by_class=job.priority_class in self.classes)
        changes += [] if tenant == job.tenant else [f"tenant {job.tenant or 'none'} now, {tenant} then"]
        return (
            f"its {job.kind} was changed ({'; '.join(changes)}): undo that, or delete and create it" if changes else ""
        )

    def _tell_unfollowed(self, job: UserJob, now_s: float) -> None:
        said = self._unfollowed(job)
        if said != self._unkept.get(job.uid, "") and not job.over:
            about = f"{said}; it goes on as it was taken over"
            if not said or self.engine.user_jobs.tell(job, "NotFollowed", about, now_s):
                self._unkept[job.uid] = said

    def _is_admitted(self, job: UserJob, now_s: float) -> bool:
        """Whether Kueue has admitted a Job of its; raises ``InputError`` if nothing says that it ever held it."""
        if job.suspended:
            if job.uid not in self._queued:
                self._queued.add(job.uid)
                said = f"{by_kueue(job.queue)} has yet to admit it: it is placed once Kueue has resumed it"
                self.engine.user_jobs.tell(job, "AwaitsAdmission", said, now_s)
            return False
        if not job.was_suspended and job.uid not in self._queued:
            expected = f"true until {by_kueue(job.queue)} admits it: nothing says that it was, so it is not placed"
            raise InputError(expected, field="spec.suspend", value="false")
        return True

    def _hold(self, job: UserJob) -> None:
        """Suspend a gang that nothing runs of: somebody else has resumed it, or its run was given up."""
        if job.gang and not (job.suspended or job.over or job.left_to or self.engine.runs(job)):
            self._suspend(job)

    def _rest(self, job: UserJob, now_s: float) -> None:
        """Have Kubernetes make no pods of a Job that has ended here, also where somebody has resumed it since."""
        if job.suspended or job.pods == 0:
            self._resting.add(job.uid)
        elif job.uid in self._resting and not (job.over or job.queue or job.left_to) and self._retired(job):
            self._resting.discard(job.uid)
            self.engine.user_jobs.tell(job, "NotTakenOver", _ENDED.format(job.kind), now_s)

    def _suspend(self, job: UserJob) -> bool | None:
        """Suspend a Job; returns whether the server keeps it so, ``None`` if it has not answered yet."""
        return self._single.change(job, self.engine.user_jobs.hold, "a Job is not suspended")

    def _settle(self, there: Mapping[str, UserJob]) -> None:
        """Forget jobs that have ended here, and have Kubernetes make no more pods of them."""
        ended = set(self.controller_store.ended_before(sorted(self._jobs.values()), _LATEST_S))
        for uid in [uid for uid, number in self._jobs.items() if number in ended]:
            if uid in there and not self._single.look(self._retired, there[uid]):
                continue
            self._done |= {uid} & there.keys()
            self._cancelled.discard(self._jobs.pop(uid))
            for records in (self._taken, self._unkept, self._rules, self._spaces):
                records.pop(uid, None)

    def _retired(self, job: UserJob) -> bool:
        """Have Kubernetes make no more pods of a Job; returns whether it allows that."""
        return bool(self._single.change(job, self.engine.user_jobs.retire, "a Job stays as it is"))

    def _take(self, job: UserJob, now_s: float) -> bool | None:
        """Submit a Job unless it was, or cannot be; returns whether it is new, ``None`` if that is not decided yet."""
        anew = self._decided.pop(job.uid, None) is not None  # then nobody has submitted it since
        if not anew and (row := self._submitted(job)) is not None:
            self._note(row)
            if row.status not in ACTIVE and not job.suspended:  # as its label was taken away, and put back
                self.engine.user_jobs.tell(job, "NotTakenOver", _ENDED.format(job.kind), now_s)
            return False
        try:
            if job.tenant not in self.tenants[job.namespace]:
                allowed = ", ".join(self.tenants[job.namespace])
                raise InputError(f"a tenant of namespace {job.namespace} ({allowed})",
                                 field="metadata.labels.commonwatt.io/tenant", value=job.tenant)  # fmt: skip
            if job.queue and not self._is_admitted(job, now_s):
                return False
            file, _ = self._checked(job)
            due_s = due_of(file, now_s)
            if job.gang and not job.suspended and not (is_suspended := self._suspend(job)):
                if is_suspended is None or job.uid in self._single.refused:
                    return is_suspended
                raise InputError("a field that the server keeps: its answer has lost it, so its definition is too old",
                                 field=".".join(KINDS[job.kind].suspend), value="true")  # fmt: skip
            limits, accounts = self.maker.limits_of(job.tenant), self.maker.accounts_of(job.tenant)
            row, _ = self.store.submit(
                job.tenant, file, now_s, due_s=due_s, key=key_of(job), limits=limits, accounts=accounts
            )
        except (ValueError, ServiceError) as error:
            return False if self._refuse(job, str(error), now_s) else None
        self.refused.pop(job.uid, None)
        self._note(row)
        self._rules[job.uid] = job.rules
        if job.ignored:
            said = f"wishes of its pods that are not kept: {', '.join(job.ignored)}"
            self.engine.user_jobs.tell(job, "Ignored", said, now_s)
        there = {"namespace": job.namespace, "name_there": job.name}
        log.info("a %s was taken over", job.kind, extra={"job": row.id, **there})
        return True

    def _note(self, row: JobRow) -> None:
        if (there := row.file.workload) is not None:
            self._jobs[there.uid], self._spaces[there.uid] = row.id, (there.namespace, there.kind)
            pods = there.pods or row.file.nodes or 1
            self._taken[there.uid] = row.tenant, pods, row.file.gpus / pods, row.file

    def _submitted(self, job: UserJob) -> JobRow | None:
        """Return the job that was submitted for a Job, also if its tenant was changed since."""
        for tenant in (job.tenant, *self.tenants[job.namespace]):
            if (row := self.store.submitted(tenant, key_of(job))) is not None:
                return row
        return None

    def _checked(self, job: UserJob) -> tuple[JobFile, list[TimeFigure]]:
        """Return what is submitted for a Job, and its configurations.

        Raises ``InputError`` if it could never start, or its tenant may not have it, and what the engine raises.
        """
        file, asked = self.engine.file_of(job), self.classes.get(job.priority_class)
        said = {key for key, _ in job.notes}
        if asked is not None:
            changes: dict[str, float | None] = {} if WEIGHT in said else {"tardiness_weight": asked.tardiness_weight}
            changes |= {} if DUE in said else {"due_in_s": asked.due_in_s}
            file = file.model_copy(update=changes)
        weight = f"metadata.annotations.{WEIGHT}" if WEIGHT in said else f"priorityClassName {job.priority_class}"
        return file, self.maker.check_for(job.tenant, file, weight_field=weight)

    def _refuse(self, job: UserJob, why: str, now_s: float) -> bool:
        """Say, once, why a Job is not taken over; if others would place its pods, it is suspended where that works.

        Returns whether that is done: the server may have yet to answer.
        """
        if self.refused.get(job.uid, "").startswith(why):
            return True
        if not job.ours_to_place:
            if (is_suspended := job.suspended or self._suspend(job)) is None:
                return False
            why += "; it is suspended" if is_suspended else "; Kubernetes places its pods"
        if not ((jobs := self.engine.user_jobs).tell(job, "NotTakenOver", why, now_s) and jobs.note_refusal(job, why)):
            return False  # too many wait to be told: again at the next look
        self.refused[job.uid] = why
        log.warning("a Job is not taken over", extra={"namespace": job.namespace, "name_there": job.name, "cause": why})
        return True
