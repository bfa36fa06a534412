"""Which Jobs of users are submitted and cancelled, without a Kubernetes."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.control.engine import JobInterrupted, Stop
from commonwatt.controlplane.jobs import JobMaker
from commonwatt.controlplane.user_jobs import UserJobIntake, key_of
from commonwatt.engines.kubernetes.user_gang import pytorchjob_of, user_job_of
from commonwatt.engines.kubernetes.user_job import job_file
from commonwatt.engines.kubernetes.user_requests import LateError
from commonwatt.model.errors import ClaimLostError, EngineError, StoreDownError
from commonwatt.model.live import PriorityClassSpec, TenantLimits
from commonwatt.store.controller_store import ControllerStore, Tick
from commonwatt.store.records import JobStatus, RequestKind
from tests.engines.kubernetes.gangs import pod_spec, pytorchjob
from tests.engines.kubernetes.test_external_jobs import CLUSTER, NODES
from tests.engines.kubernetes.test_user_job import QUEUED, item

from .bench import Bench, node
from .chaos import store_of

NOW_S = 1_795_600_800.0


class Kubernetes:
    """The Jobs there are; what is done with them is written down."""

    def __init__(self) -> None:
        self.there, self.version, self.error, self.done, self.looks = {}, (0,), None, [], 0
        self.user_jobs = SimpleNamespace(
            all=self.all, retire=lambda job: self.done.append(("retire", job.uid)),
            hold=self.hold, hangs=lambda _: self.hanging,
            tell=lambda job, reason, message, _: self.done.append((reason, job.uid, message)) or self.tells,
            short_of_quota=lambda _: self.quota, made_none=lambda _: "", unseen={},
            is_stopping=lambda job: job.uid in self.stopping,
            note_refusal=lambda job, why: self.noted.append((job.uid, why)) or True,
        )  # fmt: skip
        self.running, self.stopping, self.quota, self.noted = set(), set(), "", []
        self.late, self.hanging, self.tells = [], "", True

    def hold(self, job):
        if self.late:
            raise self.late.pop()
        self.done.append(("hold", job.uid))
        return True

    def set(self, *jobs):
        self.there = {job.uid: job for job in jobs}
        self.version = (self.version[0] + 1,)
        self.user_jobs.version = self.version

    def all(self):
        self.looks += 1
        if self.error is not None:
            raise self.error
        return self.there

    def report(self, change):
        self.done.append((change.outcome, change.reason, change.handle))

    def runs(self, job):
        return job.uid in self.running

    def file_of(self, job):
        return job_file(job, CLUSTER, NODES.values(), {})


class Desk:
    def __init__(self, folder) -> None:
        self.store = store_of(folder / "live.yaml", tenants="ab")
        self.ticks, self.kube = ControllerStore(self.store.database), Kubernetes()
        self.limits, self.now_s = TenantLimits(), NOW_S
        self.kube.set()
        self.intake = self.another()

    def another(self):
        maker = JobMaker(CLUSTER, 60.0, lambda _: self.limits)
        classes = {"urgent": PriorityClassSpec(tardiness_weight=0.5, due_in_s=3600.0)}
        return UserJobIntake(self.kube, self.store, self.ticks, maker, {"team-a": ("a", "b")}, classes)

    def look(self):
        self.now_s += 10.0
        return self.intake.look(self.now_s)

    def asked(self, kind):
        return [request.job for request in self.ticks.requests() if request.kind is kind]


def user_job(uid="u1", **more):
    return replace(user_job_of(item()), uid=uid, **more)


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def test_each_uid_is_submitted_once_whoever_looks_and_whatever_is_changed_since(desk):
    desk.kube.set(user_job("u1"), user_job("u2"))
    assert desk.look()
    assert not desk.look()
    desk.intake = desk.another()
    desk.kube.set(user_job("u1", tenant="b"), user_job("u2", notes=(("commonwatt.io/kind", "other"),)))
    assert not desk.look()
    assert [(row.tenant, row.file.workload.uid) for row in desk.store.jobs()] == [("a", "u1"), ("a", "u2")]
    assert len(desk.asked(RequestKind.SUBMIT)) == 2


def test_one_that_is_refused_is_told_so_once_it_is_known_whether_it_is_suspended(desk):
    """A webhook may take its time."""
    desk.kube.set(user_job("u1", scheduler="default-scheduler"))
    desk.kube.late = [LateError(503, "", "not answered yet") for _ in range(2)]
    for _ in range(2):
        desk.look()
        assert desk.kube.noted == []
        assert desk.intake.refused == {}
    desk.look()
    desk.look()
    (noted,) = desk.kube.noted
    assert noted[1].endswith("; it is suspended")
    assert [what for what in desk.kube.done if what[0] == "NotTakenOver"] == [("NotTakenOver", *noted)]


def test_one_whose_start_would_hang_waits_with_that_reason(desk):
    desk.kube.set(user_job("u1"))
    desk.kube.hanging = "requests about namespace team-a are not answered"
    desk.look()
    desk.look()
    assert list(desk.intake.awaiting.values()) == [desk.kube.hanging]
    desk.kube.hanging = ""
    desk.look()
    assert desk.intake.awaiting == {}


@pytest.mark.parametrize(
    ("end", "why", "reported"),
    [
        ("Complete", "", ("completed", "", 2)),
        ("Failed", "DeadlineExceeded: it was active for too long", ("failed", "time-limit", 2)),
        ("Failed", "BackoffLimitExceeded: it failed", ("failed", "job-failed", 2)),
    ],
)
def test_one_that_is_gone_is_cancelled_once_and_one_that_is_over_has_ended_unless_its_run_is_yet_to_report(
    desk, end, why, reported
):
    desk.kube.set(user_job("u1"), user_job("u2"))
    desk.look()
    desk.kube.running = {"u2"}
    desk.kube.set(user_job("u2", end=end, why=why, timed_out="time-limit" in reported))
    assert desk.look()
    assert not desk.look()
    assert (desk.asked(RequestKind.CANCEL), desk.kube.done) == ([1], [])
    desk.kube.running = set()
    desk.look()
    assert (desk.asked(RequestKind.CANCEL), desk.kube.done) == ([1], [reported])


def test_those_of_a_namespace_that_may_not_be_seen_stay(desk):
    desk.kube.set(user_job("u1"))
    desk.look()
    desk.kube.user_jobs.unseen = {("team-a", "Job"): "not allowed to watch jobs"}
    desk.kube.set()
    desk.look()
    assert desk.asked(RequestKind.CANCEL) == []
    desk.intake = desk.another()  # after a restart
    desk.look()
    assert desk.asked(RequestKind.CANCEL) == []
    desk.kube.user_jobs.unseen = {}
    desk.look()
    assert desk.asked(RequestKind.CANCEL) == [1]


def test_one_that_has_ended_here_is_retired_and_not_submitted_again(desk):
    desk.kube.set(user_job())
    desk.look()
    desk.ticks.write(Tick(jobs={1: {"status": JobStatus.FAILED, "ended_s": desk.now_s}}))
    assert not desk.look()
    assert desk.kube.done == [("retire", "u1")]
    desk.intake = desk.another()  # after a restart
    assert not desk.look()
    assert [request.job for request in desk.ticks.requests()] == [1]


@pytest.mark.parametrize("rest", [{"suspended": True}, {"pods": 0}])
def test_one_that_has_ended_here_and_is_resumed_by_somebody_is_retired_again_and_says_so(desk, rest):
    desk.kube.set(user_job())
    desk.look()
    desk.ticks.write(Tick(jobs={1: {"status": JobStatus.FAILED, "ended_s": desk.now_s}}))
    for job in (user_job(), user_job(), user_job(**rest)):  # it is seen late
        desk.kube.set(job)
        desk.look()
    assert desk.kube.done == [("retire", "u1")]
    for job in (user_job(), user_job(), user_job(**rest)):
        desk.kube.set(job)
        desk.look()
    assert desk.kube.done[1:] == [
        ("retire", "u1"),
        ("NotTakenOver", "u1", "its job has ended here: to run it again, delete the Job and create it"),
    ]


def test_a_refusal_that_cannot_be_told_now_is_told_later(desk):
    desk.kube.tells = False
    desk.kube.set(user_job(completions=7))
    desk.look()
    assert desk.intake.refused == {}
    desk.kube.tells = True
    desk.look()
    assert "u1" in desk.intake.refused
    told = len(desk.kube.done)
    desk.look()
    assert len(desk.kube.done) == told
    assert [uid for uid, _ in desk.kube.noted] == ["u1"]


def test_what_is_refused_says_why_once_and_is_taken_when_it_is_put_right(desk):
    desk.limits = TenantLimits(gpus=1, tardiness_weight=0.5)
    much = user_job("u3", notes=(("commonwatt.io/tardiness-weight", "2"),))
    desk.kube.set(user_job("u1", tenant="c"), user_job("u2", gpus=(("nvidia.com/gpu", 2.0),)), much)
    assert not desk.look()
    assert not desk.look()
    told = {uid: message for reason, uid, message in desk.kube.done if reason == "NotTakenOver"}
    assert len(desk.kube.done) == 3
    assert "a tenant of namespace team-a (a, b)" in told["u1"]
    assert "at most 1, the GPUs of tenant a" in told["u2"]
    assert "at most 0.5" in told["u3"]
    assert dict(desk.kube.noted) == told
    desk.kube.set(user_job("u1", tenant="b"))
    assert desk.look()


def test_one_that_others_would_place_is_held_and_one_of_others_left_alone(desk):
    desk.kube.set(user_job("u1", scheduler="default-scheduler"), user_job("u2", left_to="kueue.x-k8s.io/multikueue"))
    assert not desk.look()
    (hold, told) = desk.kube.done
    assert hold == ("hold", "u1")
    assert told[2].endswith("; it is suspended")
    assert desk.store.jobs() == []


def test_a_full_queue_is_tried_again(desk):
    desk.limits = TenantLimits(queued_jobs=1)
    desk.kube.set(user_job("u1"), user_job("u2"))
    assert desk.look()
    assert len(desk.store.jobs()) == 1
    desk.ticks.write(Tick(jobs={1: {"status": JobStatus.RUNNING}}))
    assert desk.look()
    assert len(desk.store.jobs()) == 2


def test_a_server_that_shows_none_cancels_nothing_and_is_not_asked_all_the_time(desk, caplog):
    desk.kube.set(user_job())
    desk.look()
    desk.kube.error = EngineError("not allowed to list jobs")
    desk.kube.set()
    looks = desk.kube.looks
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert not desk.look()
            assert not desk.intake.look(desk.now_s + 1.0)
    assert desk.kube.looks == looks + 3
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    assert desk.asked(RequestKind.CANCEL) == []


def queued(**more):
    return user_job(queue="q", **more)


def reasons(desk):
    return [done[0] for done in desk.kube.done]


def test_one_in_a_queue_of_kueue_is_submitted_once_it_was_suspended_and_is_no_more(desk):
    desk.kube.set(queued(suspended=True))
    assert not desk.look()
    assert not desk.look()
    assert reasons(desk) == ["AwaitsAdmission"]
    desk.kube.set(queued())  # resumed before Kubernetes could say that it was suspended
    assert desk.look()
    assert [row.file.workload.uid for row in desk.store.jobs()] == ["u1"]
    desk.kube.set(queued(), queued(uid="u2"), queued(uid="u3", was_suspended=True))
    assert desk.look()
    assert [row.file.workload.uid for row in desk.store.jobs()] == ["u1", "u3"]
    assert reasons(desk) == ["AwaitsAdmission", "NotTakenOver"]
    assert "'spec.suspend': got 'false'" in desk.kube.done[1][2]


@pytest.mark.parametrize("labels", [{}, QUEUED])
def test_one_whose_namespace_has_no_quota_left_awaits_that_unless_it_runs(desk, labels):
    own = user_job_of(item(labels=labels)) if not labels else queued(was_suspended=True)
    desk.kube.quota = "quota gpus has too little left"
    desk.kube.set(own)
    desk.look()
    assert desk.intake.awaiting == {1: "quota gpus has too little left"}
    desk.kube.running = {"u1"}
    desk.kube.set(own)
    desk.look()
    assert desk.intake.awaiting == {}
    desk.kube.running, desk.kube.quota = set(), ""
    desk.kube.set(own)
    desk.look()
    assert desk.intake.awaiting == {}


def test_one_whose_pods_were_changed_in_number_awaits_that_it_is_undone_also_after_a_restart(desk):
    desk.kube.set(user_job("u1"))
    desk.look()
    assert desk.intake.awaiting == {}
    desk.kube.set(user_job("u1", pods=3))
    for intake in (desk.intake, desk.another()):
        desk.intake = intake
        desk.look()
        assert "its Job was changed (3 pods now, 1 when it was taken over): undo that" in desk.intake.awaiting[1]
    desk.kube.running = {"u1"}
    desk.look()
    assert desk.intake.awaiting == {}
    desk.kube.running = set()
    desk.kube.set(user_job("u1"))
    desk.look()
    assert desk.intake.awaiting == {}


def test_changes_that_come_too_late_are_told_once_also_while_it_runs(desk):
    desk.kube.set(user_job("u1"))
    desk.look()
    desk.kube.running = {"u1"}
    desk.kube.set(user_job("u1", pods=3, tenant="b"))
    desk.look()
    desk.look()
    assert [(reason, uid) for reason, uid, *_ in desk.kube.done] == [("NotFollowed", "u1")]
    assert "(3 pods now, 1 when it was taken over; tenant b now, a then)" in desk.kube.done[0][2]
    desk.kube.set(user_job("u1"))
    desk.look()
    assert len(desk.kube.done) == 1


def annotated(uid="u1", **notes):
    return user_job(uid, notes=tuple(sorted((f"commonwatt.io/{key.replace('_', '-')}", v) for key, v in notes.items())))


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        ({}, {"due": "2026-11-29", "run_time": "9"}, "due 2026-11-29 now, none then; run-time 9 now, none then"),
        ({"due": "2026-12-01T08:00"}, {}, "due none now, 2026-12-01T08:00 then"),
        ({"run_time": "2:00"}, {"run_time": "soon"}, "run-time soon now, 120 s then"),
        ({"tardiness_weight": "2"}, {"tardiness_weight": "5"}, "tardiness-weight 5 now, 2 then"),
        ({"tardiness_weight": "2"}, {}, "tardiness-weight none now, 2 then"),
        ({"tardiness_weight": "0"}, {}, ""),
        ({"run_time": "100", "tardiness_weight": "0.5"}, {"run_time": "1:40", "tardiness_weight": "0.50"}, ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("again", [False, True], ids=["same", "another"])
def test_annotations_that_are_changed_later_are_not_followed_and_that_is_told(desk, then, now, said, again):
    desk.kube.set(annotated(**then))
    desk.look()
    if again:
        desk.intake = desk.another()
    desk.kube.set(annotated(**now))
    desk.look()
    desk.look()
    assert desk.intake.awaiting == {}  # it can be placed as it was taken over
    told = [message for reason, _, message in desk.kube.done if reason == "NotFollowed"]
    changed = f"its Job was changed ({said}): undo that, or delete and create it; it goes on as it was taken over"
    assert told == ([changed] if said else [])


def test_one_that_kueue_holds_again_awaits_it_and_may_come_back_with_other_gpus(desk):
    def pods(product):
        return user_job_of(item(pod={"nodeSelector": {"product": product}}, labels=QUEUED)).rules

    was = {"was_suspended": True}
    desk.kube.set(queued(rules=pods("V100"), **was))
    desk.look()
    assert desk.intake.awaiting == {}
    desk.kube.running = {"u1"}
    desk.kube.set(queued(rules=pods("V100"), suspended=True, **was))
    assert not desk.look()
    assert list(desk.intake.awaiting) == [1]
    assert "Kueue (queue q) has yet to admit it again" in desk.intake.awaiting[1]
    desk.kube.set(queued(rules=pods("V100"), **was))
    desk.look()
    assert "its last run has yet to end" in desk.intake.awaiting[1]
    desk.kube.running = set()
    assert not desk.look()
    assert (desk.intake.awaiting, desk.intake.renewed) == ({}, False)
    desk.kube.set(queued(rules=pods("H100"), **was))
    desk.look()
    assert "cannot be placed as it is now" in desk.intake.awaiting[1]
    assert reasons(desk) == ["NotTakenOver"]
    desk.kube.set(queued(rules=pods("NVIDIA-A100"), **was))
    desk.look()
    assert (desk.intake.awaiting, desk.intake.renewed) == ({}, True)
    assert [figure["gpu_type"] for figure in desk.store.job(1).times] == ["A100"]
    desk.intake = desk.another()
    desk.look()
    assert not desk.intake.renewed
    assert desk.asked(RequestKind.CANCEL) == []
    assert len(desk.asked(RequestKind.SUBMIT)) == 1


@pytest.mark.slow
def test_a_job_that_awaits_admission_is_not_started_says_why_and_starts_when_it_is_there(tmp_path, opened):
    b = opened(Bench(tmp_path, nodes=[node("n-1")]))
    looks = []
    intake = SimpleNamespace(
        look=looks.append, awaiting={1: "Kueue (queue q) has yet to admit it again"}, renewed=False
    )
    b.reconciler._intake = intake
    job = b.submit(1000.0)
    b.settle()
    assert (job, b.status(job)) == (1, JobStatus.WAITING)
    assert "waits: Kueue (queue q) has yet to admit it again" in b.row(job).sentence
    assert b.kinds(job).count("waits") == 1
    assert b.snapshot().jobs[job].expected_start_s is None
    intake.awaiting = {}
    b.settle()
    assert b.status(job) is JobStatus.RUNNING
    intake.awaiting = {1: "Kueue (queue q) has yet to admit it again"}  # its run ends soon: nothing stops it here
    b.settle()
    assert b.status(job) is JobStatus.RUNNING
    b.engine.apply([Stop(job)])
    b.engine._changes.append(JobInterrupted(job, b.clock(), 0.0, "killed"))
    b.settle()
    assert "waits: Kueue (queue q) has yet to admit it again" in b.row(job).sentence
    assert b.kinds(job)[-2:] == ["interrupted", "waits"]
    intake.awaiting, intake.renewed = {}, True  # only a new one knows its other GPU types
    b.look()
    assert b.reconciler.outgrown()
    assert b.status(job) is JobStatus.WAITING
    b.begin()
    b.settle()
    assert b.status(job) is JobStatus.RUNNING
    assert looks


DUE, WEIGHT = "commonwatt.io/due", "commonwatt.io/tardiness-weight"


@pytest.mark.parametrize(
    ("name", "notes", "due_after_s", "weight"),
    [
        ("urgent", {}, 3600.0, 0.5),
        ("", {}, None, 0.0),
        ("system-node-critical", {}, None, 0.0),
        ("urgent", {WEIGHT: "0.25"}, 3600.0, 0.25),
        ("urgent", {DUE: "2030-01-01T00:00"}, 1893456000.0 - NOW_S - 10.0, 0.5),
        ("urgent", {DUE: "2030-01-01T00:00", WEIGHT: "0"}, 1893456000.0 - NOW_S - 10.0, 0.0),
    ],
)
def test_a_priority_class_stands_for_a_weight_and_a_due_date_where_the_job_says_none(
    desk, name, notes, due_after_s, weight
):
    desk.kube.set(replace(user_job_of(item(notes=notes, pod={"priorityClassName": name})), uid="u1"))
    desk.look()
    (row,) = desk.store.jobs()
    assert (row.due_s, row.file.tardiness_weight) == (
        None if due_after_s is None else desk.now_s + due_after_s, weight
    )  # fmt: skip


def test_the_limit_of_a_tenant_holds_for_its_classes(desk):
    desk.limits = TenantLimits(tardiness_weight=0.1)
    desk.kube.set(replace(user_job_of(item(pod={"priorityClassName": "urgent"})), uid="u1"))
    desk.look()
    assert not desk.store.jobs()
    assert desk.intake.refused == {"u1": "field 'priorityClassName urgent': got '0.5', expected at most 0.1"}


def test_one_whose_label_was_taken_away_and_put_back_is_told_that_it_has_ended_here(desk):
    desk.kube.set(user_job())
    desk.look()
    (row,) = desk.store.jobs()
    desk.kube.set()
    desk.look()
    desk.ticks.write(Tick(jobs={row.id: {"status": JobStatus.CANCELLED, "ended_s": desk.now_s}}))
    desk.look()
    desk.kube.set(user_job())
    desk.look()
    desk.look()
    told = [done for done in desk.kube.done if done[0] == "NotTakenOver"]
    assert told == [("NotTakenOver", "u1", "its job has ended here: to run it again, delete the Job and create it")]


@pytest.mark.slow
def test_what_is_denied_again_and_again_is_logged_once(desk, caplog):
    def denied(job):
        raise EngineError("not allowed")

    desk.kube.set(user_job())
    desk.look()
    (row,) = desk.store.jobs()
    desk.kube.user_jobs.retire = denied
    desk.ticks.write(Tick(jobs={row.id: {"status": JobStatus.FAILED, "ended_s": desk.now_s}}))
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            desk.look()
    warned = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert warned == ["a Job stays as it is"]


def odd(of, name, error):
    """Let a call of *of* fail for Job u1."""
    before = getattr(of, name)

    def call(job, *more):
        if job.uid == "u1":
            raise error
        return before(job, *more)

    setattr(of, name, call)
    return before


def test_whatever_fails_of_one_is_logged_once_with_its_name_and_others_go_on(desk, caplog):
    jobs = user_job("u1", name="odd"), user_job("u2")
    before = odd(desk.kube, "file_of", OverflowError("cannot convert float infinity to integer"))
    desk.kube.set(*jobs)
    with caplog.at_level(logging.WARNING):
        assert desk.look()
        assert not desk.look()
        odd(desk.kube.user_jobs, "short_of_quota", KeyError("odd"))
        desk.kube.file_of = before
        assert desk.look()
        desk.look()
    assert [row.file.workload.uid for row in desk.store.jobs()] == ["u2", "u1"]
    assert list(desk.intake.awaiting) == [2]
    assert "cannot be looked at" in desk.intake.awaiting[2]
    desk.ticks.write(Tick(jobs={number: {"status": JobStatus.FAILED, "ended_s": desk.now_s} for number in (1, 2)}))
    odd(desk.kube.user_jobs, "retire", RuntimeError("odd"))
    with caplog.at_level(logging.WARNING):
        desk.look()
    assert desk.kube.done == [("retire", "u2")]
    assert [record.name_there for record in caplog.records] == ["odd"]


@pytest.mark.parametrize("error", [StoreDownError("busy"), ClaimLostError("another controller has the store")])
def test_what_fails_of_the_store_concerns_all(desk, error):
    odd(desk.kube, "file_of", error)
    desk.kube.set(user_job("u1"), user_job("u2"))
    with pytest.raises(type(error)):
        desk.look()


@pytest.mark.slow
def test_a_look_costs_what_has_changed_and_those_that_are_refused_are_tried_again_in_turn(desk, monkeypatch):
    desk.limits = TenantLimits(gpus=1)
    asked, file_of = [], desk.kube.file_of
    monkeypatch.setattr(desk.kube, "file_of", lambda job: asked.append(job.uid) or file_of(job))
    queries, submitted = [], desk.store.submitted
    monkeypatch.setattr(desk.store, "submitted", lambda *what: queries.append(what) or submitted(*what))
    much = {f"u{n}": user_job(f"u{n}", gpus=(("nvidia.com/gpu", 2.0),)) for n in range(100)}
    held = {f"q{n}": queued(uid=f"q{n}", suspended=True) for n in range(100)}

    def looked(**jobs):
        asked.clear()
        queries.clear()
        desk.kube.set(*({**much, **held} | jobs).values())
        desk.intake.look(desk.now_s)
        return set(asked)

    assert (looked(), len(queries)) == (set(much), 3 * 200)
    assert len(looked()) <= 20
    assert queries == []
    assert looked(u7=user_job("u7"), q7=queued(uid="q7")) >= {"u7", "q7"}  # at once
    assert len(desk.store.jobs()) == 2
    desk.limits, seen = TenantLimits(), set()
    for _ in range(12):
        desk.now_s += 5.0
        found = looked(u7=user_job("u7"), q7=queued(uid="q7"))
        assert len(found) <= 25
        seen |= found
    assert seen == much.keys() - {"u7"}
    assert len(desk.store.jobs(limit=1000)) == 101


def test_a_key_that_was_used_for_something_else_is_a_refusal(desk):
    job = user_job("u1")
    file = desk.kube.file_of(job).model_copy(update={"workload": None})
    desk.store.submit("a", file, NOW_S, key=key_of(job))
    desk.kube.set(job, user_job("u2"))
    for _ in range(3):
        desk.look()
    assert len(desk.store.jobs()) == 2
    assert "with another content" in desk.intake.refused["u1"]


def gang(uid="u1", *, gpus=1, pods=2):
    body = pytorchjob("train", Worker=(pods, pod_spec(("true",), gpus)), policy={"suspend": True})
    body["metadata"] |= {"namespace": "team-a", "uid": uid}
    return pytorchjob_of(body)


def test_one_whose_pods_were_changed_in_gpus_awaits_that_it_is_undone_also_after_a_restart(desk):
    desk.kube.set(gang())
    desk.look()
    assert desk.intake.awaiting == {}
    desk.kube.set(gang(gpus=4))
    for intake in (desk.intake, desk.another()):
        desk.intake = intake
        desk.look()
        assert "(pods with 4 of nvidia.com/gpu now, with 1 GPU then): undo that" in desk.intake.awaiting[1]
    assert reasons(desk) == ["NotFollowed", "NotFollowed"]  # one Event: its name follows from what it says
    desk.kube.set(gang(gpus="1e400"))
    desk.look()
    assert list(desk.intake.awaiting) == [1]
    desk.kube.set(gang())
    desk.look()
    assert desk.intake.awaiting == {}


def test_one_with_endless_gpus_is_refused_and_others_are_taken(desk):
    desk.kube.set(gang("u1", gpus="1e400"), gang("u2"))
    assert desk.look()
    assert [row.file.workload.uid for row in desk.store.jobs()] == ["u2"]
    assert "got '1e400', expected a quantity of 0 or more" in desk.intake.refused["u1"]
