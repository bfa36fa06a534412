"""Announcements in Kubernetes: each once, limited in rate, and retried until the server has answered."""

from __future__ import annotations

import json
import ssl
import threading
import time
from dataclasses import replace

import httpx
import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.controlplane.kubernetes_events import Announcer
from commonwatt.controlplane.snapshot import Snapshot, SnapshotJob
from commonwatt.engines.kubernetes.access import Access
from commonwatt.engines.kubernetes.api import KubernetesApi
from commonwatt.engines.kubernetes.user_requests import LateError, Pauses
from commonwatt.model.errors import ClaimLostError, EngineDownError
from commonwatt.model.job_file import JobFile, WorkloadSpec
from commonwatt.store.controller_store import ControllerStore, Tick
from commonwatt.store.records import EventRow, JobStatus
from tests.engines.waiting import until

from .chaos import store_of

NOW_S = 1_795_600_800.0  # 2026-11-25 10:00 UTC


class Server:
    """Keeps the Events and annotations it gets; answers as *status* says."""

    def __init__(self) -> None:
        self.events, self.notes, self.status, self.away, self.takes_s = {}, {}, 201, None, 0.0
        access = Access("https://server", "default", ssl.create_default_context(), token="t")
        self.api = KubernetesApi(access, transport=httpx.MockTransport(self.answer))

    def answer(self, request: httpx.Request) -> httpx.Response:
        if self.status >= 400:
            return httpx.Response(self.status, json={"message": "events is forbidden: no"})
        if self.away and self.away in request.url.path:
            return httpx.Response(503, headers={"Retry-After": "0"}, json={"message": "the webhook does not answer"})
        if request.method == "GET":
            pod = {"metadata": {"name": "own", "uid": "p1"}, "status": {"phase": "Pending"}}
            return httpx.Response(200, json={"items": [pod]} if request.url.path.endswith("/pods") else pod)
        body = json.loads(request.content)
        time.sleep(self.takes_s)
        if request.method == "PATCH":
            self.notes[body["metadata"]["uid"]] = body["metadata"]["annotations"]
            return httpx.Response(200, json=body)
        if body["metadata"]["name"] in self.events:
            return httpx.Response(409, json={"reason": "AlreadyExists"})
        self.events[body["metadata"]["name"]] = body
        return httpx.Response(201, json=body)

    def told(self, uid):
        return [e["reason"] for e in self.events.values() if e["involvedObject"]["uid"] == uid]


class Desk:
    """A store with one Job of a user, and somebody who tells of it."""

    def __init__(self, path) -> None:
        self.store = store_of(path / "live.yaml", tenants="a")
        self.ticks, self.server, self.now_s, self.seconds = ControllerStore(self.store.database), Server(), NOW_S, 0.0
        of = WorkloadSpec(namespace="team-a", name="train", uid="u1")
        file = JobFile(name="train", command=("x",), workload=of)
        self.row, _ = self.store.submit("a", file, NOW_S)
        self.own, _ = self.store.submit("a", JobFile(name="own", command=("x",)), NOW_S)
        self.others = []
        self.announcer = self.another()

    def another(self) -> Announcer:
        return Announcer(
            self.store, lambda: self.server.api, self.snapshot, lambda: True, lambda: self.now_s, "EUR",
            lambda _, row: ("commonwatt", row.name),
        )  # fmt: skip

    def snapshot(self) -> Snapshot:
        rows = {row.id: row for row in (self.row, self.own, *self.others) if row.status in ("waiting", "running")}
        jobs = {number: SnapshotJob.of(row) for number, row in rows.items()}
        return Snapshot(self.now_s, "live", "kubernetes", rows=rows, jobs=jobs)

    def happens(self, kind, text="", *, job=None, **changes):
        self.seconds += 0.25
        at_s = self.now_s + self.seconds
        event = EventRow(0, at_s, kind, (job or self.row).id, (), 1, kind, text)
        self.ticks.write(Tick(events=[event], jobs={self.row.id: changes} if changes else {}))
        if changes:
            self.row = replace(self.row, **changes)


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def test_events_are_told_of_the_job_and_its_pods_once_however_many_tell(desk):
    desk.happens("submitted")
    desk.happens("started", "train runs on n", expected_end_s=NOW_S + 90, status=JobStatus.RUNNING)
    other = desk.another()
    other.look()
    desk.store.keep_setting("announced", 0)  # as if a controller had died before it wrote that down
    desk.another().look()
    assert desk.server.told("u1") == desk.server.told("p1") == ["Accepted", "Started"]
    started = next(e for e in desk.server.events.values() if e["reason"] == "Started")
    assert started["message"] == "train runs on n; it is expected to end at 2026-11-25T10:01Z"
    assert started["involvedObject"]["apiVersion"] in ("batch/v1", "v1")


@pytest.mark.slow
def test_jobs_of_ours_are_told_of_where_they_are_placed(desk):
    desk.happens("submitted", job=desk.own)
    desk.happens("started", "own runs on n", job=desk.own)
    desk.announcer.look()
    assert desk.server.told("p1") == ["Started"]


def test_the_same_is_not_told_again_soon_nor_too_much_and_an_end_always(desk):
    for _ in range(3):
        desk.happens("waits", "it waits for its quota")
    for k in range(20):
        desk.happens("interrupted", f"its pod failed ({k})")
    desk.happens("failed", "it failed", status=JobStatus.FAILED, ended_s=NOW_S)
    desk.announcer.look()
    told = desk.server.told("u1")
    assert told.count("Waiting") == 1
    assert len(told) == 11
    assert told[-1] == "Failed"


def test_annotations_change_at_once_with_the_status_and_else_seldom(desk):
    desk.row = replace(desk.row, reason="no-room", sentence="no room", expected_start_s=NOW_S + 600)
    desk.announcer.look()
    assert desk.server.notes["u1"]["commonwatt.io/reason"] == "no room"
    assert desk.server.notes["u1"]["commonwatt.io/expected-start"] == "2026-11-25T10:10Z"
    desk.row = replace(desk.row, sentence="still no room")
    desk.now_s += 10
    desk.announcer.look()
    assert desk.server.notes["u1"]["commonwatt.io/reason"] == "no room"
    desk.now_s += 25
    desk.announcer.look()
    assert desk.server.notes["u1"]["commonwatt.io/reason"] == "still no room"
    desk.happens("completed", "done", status=JobStatus.COMPLETED, ended_s=NOW_S, reason="completed", sentence="done")
    desk.announcer.look()
    notes = desk.server.notes["u1"]
    assert (notes["commonwatt.io/status"], notes["commonwatt.io/cost"]) == ("completed", "0 EUR")
    assert notes["commonwatt.io/expected-start"] is None


def test_who_comes_later_says_that_jobs_have_ended_if_the_one_before_did_not_come_to_it(desk):
    desk.row = replace(desk.row, status=JobStatus.RUNNING)
    desk.happens("started", "train runs on n", status=JobStatus.RUNNING, attempts=1)
    desk.happens("completed", "done", job=desk.own)  # which has no Job of a user
    desk.announcer.look()
    desk.happens("completed", "done", status=JobStatus.COMPLETED, ended_s=NOW_S, reason="completed", sentence="done")
    desk.store.keep_setting("announced", 1000)  # the Event was sent, the annotations were not
    assert desk.server.notes["u1"]["commonwatt.io/status"] == "running"
    later = desk.another()
    later.look()
    assert desk.server.notes["u1"]["commonwatt.io/status"] == "completed"
    assert not later._final
    desk.now_s += 2 * 3600.0
    desk.server.notes.clear()
    desk.another().look()
    assert desk.server.notes == {}


def test_times_after_all_years_are_left_out_and_keep_nothing_from_others(desk):
    of = WorkloadSpec(namespace="team-b", name="other", uid="u2")
    other, _ = desk.store.submit("a", JobFile(name="other", command=("x",), workload=of), NOW_S)
    desk.others = [other]
    desk.row = replace(desk.row, expected_end_s=NOW_S + 1e15, expected_start_s=1e30)
    desk.happens("started", "train runs on n")
    desk.announcer.look()
    assert desk.server.told("u1") == ["Started"]
    assert desk.server.notes.keys() == {"u1", "u2"}
    assert desk.server.notes["u1"]["commonwatt.io/expected-end"] is None


@pytest.mark.slow
def test_a_server_that_is_down_is_told_later_and_one_that_refuses_is_not_asked_again(desk):
    desk.happens("submitted")
    desk.server.status = 503
    with pytest.raises(EngineDownError):
        desk.announcer.look()
    desk.server.status = 201
    desk.announcer.look()
    assert desk.server.told("u1") == ["Accepted"]
    desk.happens("waits", "it waits")
    desk.server.status = 400
    desk.announcer.look()
    desk.server.status = 201
    desk.announcer.look()
    assert desk.server.told("u1") == ["Accepted"]


def test_a_namespace_whose_webhook_does_not_work_keeps_nothing_from_others(desk):
    of = WorkloadSpec(namespace="team-b", name="other", uid="u2")
    other, _ = desk.store.submit("a", JobFile(name="other", command=("x",), workload=of), NOW_S)
    desk.others = [other]
    desk.server.away = "/namespaces/team-a/"
    desk.happens("submitted")
    desk.happens("submitted", job=other)
    desk.announcer.look()
    assert (desk.server.told("u1"), desk.server.told("u2")) == ([], ["Accepted"])
    assert desk.server.notes.keys() == {"u2"}
    desk.server.away = None
    desk.announcer.look()
    assert desk.server.notes.keys() == {"u2"}  # not at once
    desk.now_s += 31
    desk.announcer.look()
    assert desk.server.notes.keys() == {"u1", "u2"}


@pytest.mark.long
def test_an_answer_that_is_late_is_no_refusal(desk, monkeypatch):
    """A Job that has ended says so as soon as the server has taken it in, and not after a pause."""
    monkeypatch.setattr("commonwatt.controlplane.kubernetes_events._WAIT_S", 0.05)
    desk.announcer.look()
    desk.server.takes_s = 0.3
    desk.happens("completed", "done", status=JobStatus.COMPLETED, ended_s=NOW_S, reason="completed", sentence="done")
    for _ in range(8):
        desk.announcer.look()
        desk.now_s += 2
        time.sleep(0.2)
    assert desk.server.notes["u1"]["commonwatt.io/status"] == "completed"
    assert not desk.announcer._final  # it has been answered, and is not asked again
    assert desk.server.told("u1") == ["Completed"]


def test_connections_in_use_are_not_closed_when_it_stops(desk, monkeypatch):
    """OpenSSL writes by number: what is closed meanwhile may be a database that was opened since."""
    monkeypatch.setattr("commonwatt.controlplane.kubernetes_events._STOP_S", 0.1)
    asked, answers = threading.Event(), threading.Event()

    def hangs(request):
        asked.set()
        answers.wait(30.0)
        return httpx.Response(201, json={})

    access = Access("https://server", "default", ssl.create_default_context(), token="t")
    desk.server.api = KubernetesApi(access, transport=httpx.MockTransport(hangs))
    desk.announcer.every_s = 0.01
    desk.happens("submitted")
    desk.announcer.start()
    assert asked.wait(30.0)
    desk.announcer.stop()
    assert not desk.server.api._client.is_closed
    answers.set()
    desk.announcer._thread.join(30.0)
    desk.announcer.stop()
    assert desk.server.api._client.is_closed


def test_what_happened_long_ago_or_before_it_began_is_not_told(desk):
    desk.now_s -= 60
    desk.happens("started", "earlier")
    desk.now_s += 60
    desk.announcer.look()
    assert desk.server.told("u1") == []
    desk.happens("submitted")
    desk.now_s += 7200
    desk.announcer.look()
    assert desk.server.told("u1") == []


@pytest.mark.slow
def test_a_request_that_is_made_again_is_of_the_term_in_which_it_was_begun():
    """No answer; meanwhile the claim is given up, or had anew: it is not sent a second time."""
    for claim in (None, Held()):
        store, sent, go = ControllerStore(None, Held()), [], threading.Event()

        def answer(request, sent=sent, go=go):
            sent.append(request.method)
            assert go.wait(60.0)
            raise httpx.ReadTimeout("timed out")

        access = Access("https://server.test", "n", ssl.create_default_context(), token="t")
        api = KubernetesApi(access, transport=httpx.MockTransport(answer), guard=store.term())
        pauses = Pauses(api, wait_s=0.05)
        with pytest.raises(LateError):
            pauses.ask("there", api.create_once, "/api/v1/pods", {}, about="pod")
        store.claim = claim
        go.set()
        until(lambda pauses=pauses: not pauses.busy)
        assert sent == ["POST"]
        with pytest.raises(ClaimLostError):
            pauses.ask("there", api.create_once, "/api/v1/pods", {}, about="pod")


@pytest.mark.slow
def test_who_leads_again_announces_under_the_new_claim(desk):
    desk.happens("submitted")
    store, made = ControllerStore(None, Held()), []

    def api_of():
        access = Access("https://server", "default", ssl.create_default_context(), token="t")
        made.append(KubernetesApi(access, transport=httpx.MockTransport(desk.server.answer), guard=store.term()))
        return made[-1]

    announcer = replace(desk.announcer, api_of=api_of, every_s=0.01)
    announcer.look()
    store.claim = Held()
    desk.happens("started", "train runs on n", status=JobStatus.RUNNING)
    announcer.start()
    until(lambda: "Started" in desk.server.told("u1"))
    announcer.stop()
    assert len(made) == 2


class Held:
    """A claim on the store."""

    def check_may_act(self) -> None:
        """It is held."""
