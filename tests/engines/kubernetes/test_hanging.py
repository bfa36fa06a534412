"""What hangs, is denied or gets no pods in one namespace costs the others nothing."""

from __future__ import annotations

import json
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import httpx
import pytest

from commonwatt.engines.kubernetes import user_requests
from commonwatt.engines.kubernetes.access import Access
from commonwatt.engines.kubernetes.api import KubernetesApi, NotYetAllowedError, RefusedByServerError
from commonwatt.engines.kubernetes.informer import Informer, Watched
from commonwatt.engines.kubernetes.settings import KubernetesSettings
from commonwatt.engines.kubernetes.user_gang import user_job_of
from commonwatt.engines.kubernetes.user_jobs import UserJobs
from commonwatt.engines.kubernetes.user_requests import LateError, Pauses
from commonwatt.model.errors import ClaimLostError, EngineDownError, EngineError

from .site import until
from .test_informer import page
from .test_user_job import item
from .test_user_run import pod, run_in

pytestmark = pytest.mark.slow

PATIENT = KubernetesSettings(lag_s=0.0, start_s=1000.0)


class Clock:
    """A clock that tests advance, in place of ``time.monotonic``."""

    def __init__(self, monkeypatch) -> None:
        self.now_s = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)


class Away:
    """A server that does not answer, or is not ready."""

    @staticmethod
    def ready():
        return False


class Cluster:
    """Pods and Jobs as the watches have shown them, and a server; what takes *slow_s* seconds hangs."""

    def __init__(self, clock=None, *, pods=(), denied=(), slow=(), held=None) -> None:
        self.clock, self.denied, self.slow, self.asked, self.ready = clock, denied, slow, [], True
        self.held = held  # until it is set nothing is answered
        access = Access("https://server", "default", ssl.create_default_context(), token="t")
        api = KubernetesApi(access, transport=httpx.MockTransport(self.answer), roles_s=0.0)
        self.jobs = UserJobs(api, "ours", ["team-a"])
        self.jobs.pods, self.jobs.informer = Watched("/api/v1/pods", None), self
        self.jobs.pods.synced = True
        self.show(pods)

    def show(self, pods) -> None:
        self.jobs.pods.items = {one.uid: one for one in pods}
        self.jobs.pods.version += 1

    def look(self, watched):
        return watched.items

    def find(self, watched, uid):
        return user_job_of(item()) if watched is self.jobs._jobs[0][1] and uid == "u1" else watched.items.get(uid)

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/readyz":
            return httpx.Response(200 if self.ready else 500, text="ok")
        resource = request.url.path.split("/namespaces/")[1].split("/")[1]
        self.asked.append((request.method, resource))
        assert self.held is None or self.held.wait(60.0)
        if resource in self.slow:
            self.clock.now_s += 10.0
            raise httpx.ReadTimeout("timed out")
        if (request.method, resource) in self.denied:
            said = f'cannot {request.method.lower()} resource "{resource}" in API group ""'
            return httpx.Response(403, json={"reason": "Forbidden", "message": said})
        return httpx.Response(200, json={"spec": (json.loads(request.content) or {}).get("spec") or {}})


def test_what_hangs_is_asked_again_after_a_pause_that_grows(monkeypatch):
    clock, pauses, asked = Clock(monkeypatch), Pauses(Away, 5.0, wait_s=1e6), []

    def hangs():
        asked.append(clock.now_s)
        clock.now_s += 10.0
        raise EngineDownError("no answer")

    for _ in range(60):
        with pytest.raises(EngineDownError, match="no answer"):
            pauses.ask("there", hangs)
        assert pauses.ask("elsewhere", lambda: 1) == 1
        clock.now_s += 1.0
    waited = [later - sooner for sooner, later in pairwise(asked)]
    assert len(asked) == 4
    assert waited == sorted(waited)
    assert waited[0] > 15.0 - 1e-6
    clock.now_s += 1000.0
    assert pauses.ask("there", lambda: 2) == 2
    assert pauses.ask("there", lambda: 3) == 3


def test_requests_that_hang_side_by_side_are_one_pause(monkeypatch):
    clock, pauses = Clock(monkeypatch), Pauses(Away, 5.0, slow_s=-1.0, wait_s=1e6)

    def hangs(others):
        if others:
            with pytest.raises(EngineDownError):
                pauses.ask("there", hangs, others - 1, about=others)
        raise EngineDownError("no answer")

    with pytest.raises(EngineDownError):
        pauses.ask("there", hangs, 7)
    clock.now_s += 5.1
    assert pauses.ask("there", lambda: 1) == 1


def test_what_is_refused_at_once_is_asked_again_at_once(monkeypatch):
    Clock(monkeypatch)
    pauses, asked = Pauses(Away), []

    def refuses():
        asked.append(1)
        raise RefusedByServerError(403, "Forbidden", "no")

    for _ in range(3):
        with pytest.raises(RefusedByServerError):
            pauses.ask("there", refuses)
    assert len(asked) == 3


class Slow:
    """A request that is not answered before it is let go."""

    def __init__(self, answer="done") -> None:
        self.answer, self.asked, self.go = answer, 0, threading.Event()

    def __call__(self, *what):
        self.asked += 1
        assert self.go.wait(60.0)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def in_the_end(pauses, of, request, *what, **more):
    """Ask until there is an answer: after late ones, nobody waits for it at once."""
    found = []

    def answered():
        with suppress(LateError):
            found.append(pauses.ask(of, request, *what, **more))
        return found

    return until(answered)[0]


@pytest.mark.slow
def test_who_asks_goes_on_without_an_answer_and_gets_it_later():
    pauses, slow = Pauses(Away, wait_s=0.2), Slow()
    for _ in range(3):
        with pytest.raises(LateError):
            pauses.ask("there", slow, "this")
    assert slow.asked == 1
    with pytest.raises(LateError):  # requests about one object keep their order
        pauses.ask("there", lambda: 1)
    assert in_the_end(pauses, "there", int, 1, about="another") == 1
    assert in_the_end(pauses, "elsewhere", int, 1) == 1
    assert pauses.busy
    slow.go.set()
    until(lambda: not pauses.busy)
    assert pauses.ask("there", slow, "this") == "done"
    assert slow.asked == 1
    assert in_the_end(pauses, "there", slow, "this") == "done"
    assert slow.asked == 2


@pytest.mark.slow
def test_an_answer_that_came_late_is_none_to_another_request_and_for_a_while_only(monkeypatch):
    pauses, slow = Pauses(Away, wait_s=0.2), Slow()
    for other in (True, False):
        slow.go.clear()
        with pytest.raises(LateError):
            pauses.ask("there", slow, "this")
        slow.go.set()
        until(lambda: not pauses.busy)
        before = slow.asked
        if other:
            assert in_the_end(pauses, "there", slow, "that") == "done"
        else:
            Clock(monkeypatch).now_s += 31.0
            assert in_the_end(pauses, "there", slow, "this") == "done"
        assert slow.asked == before + 1


def test_few_requests_of_a_kind_are_open_at_a_time():
    pauses, slow = Pauses(Away, wait_s=0.05), Slow()
    for number in range(20):
        with pytest.raises(LateError):
            pauses.ask("there", slow, about=number)
    assert slow.asked == 8
    assert in_the_end(pauses, "elsewhere", int, 1, about=0) == 1
    slow.go.set()
    until(lambda: not pauses.busy)
    assert [in_the_end(pauses, "there", slow, about=number) for number in range(20)] == ["done"] * 20
    assert slow.asked == 20


def test_what_is_told_in_the_background_is_told_in_order_and_once():
    pauses, told, slow = Pauses(Away, wait_s=0.05), [], Slow()
    pauses.send("there", slow)
    for number in range(10):
        pauses.send("there", told.append, number)
    pauses.send("elsewhere", told.append, "there")
    until(lambda: told)
    assert told == ["there"]
    slow.go.set()
    until(lambda: not pauses.busy)
    assert told == ["there", *range(10)]


@pytest.mark.slow
def test_what_cannot_be_told_is_left_out_after_a_while_and_the_rest_is_told(monkeypatch, caplog):
    monkeypatch.setattr(user_requests, "_TRIES", 2)
    pauses, told = Pauses(Away, wait_s=0.05), []

    def fails():
        told.append("tried")
        raise EngineDownError("no answer")

    def breaks():
        raise ValueError("whatever it is")

    pauses.send("there", fails)
    pauses.send("there", breaks)
    pauses.send("there", told.append, "next")
    until(lambda: not pauses.busy)
    assert told == ["tried", "tried", "next"]
    assert "left out" in caplog.text


@pytest.mark.slow
def test_a_failure_that_came_late_is_told_and_pauses():
    pauses, slow = Pauses(Away, 30.0, slow_s=0.0, wait_s=0.2), Slow(EngineDownError("no answer"))
    with pytest.raises(LateError):
        pauses.ask("there", slow)
    slow.go.set()
    until(lambda: not pauses.busy)
    for _ in range(3):
        with pytest.raises(EngineDownError, match="no answer") as caught:
            pauses.ask("there", slow)
        assert not isinstance(caught.value, LateError)
    assert slow.asked == 1


@pytest.mark.slow
def test_a_job_whose_webhooks_are_slow_is_neither_given_up_nor_stopped_twice(tmp_path):
    held = threading.Event()
    cluster, job = Cluster(held=held), user_job_of(item(suspend=True))
    assert not cluster.jobs.resume(job)
    waits = replace(pod(phase="Pending"), node="", container=None)
    run = run_in(tmp_path)
    assert not cluster.jobs.place(run, user_job_of(item()), [waits], {0: "n0"})
    assert run.has_chosen()
    assert cluster.asked == [("PATCH", "jobs"), ("POST", "pods")]
    cluster.jobs.stop(run, [pod(phase="Running")])
    assert run.denied_s is not None  # asked again later, and no pod is deleted meanwhile
    assert len(cluster.asked) == 2
    held.set()
    until(lambda: not cluster.jobs.pauses.busy)
    assert cluster.jobs.resume(job)
    assert cluster.jobs.place(run, user_job_of(item()), [waits], {0: "n0"})

    def stops():
        cluster.jobs.stop(run, [pod(phase="Running")])
        return run.denied_s is None  # else its answer is late, on a busy machine

    until(stops)
    assert cluster.asked == [("PATCH", "jobs"), ("POST", "pods"), ("PATCH", "jobs")]


def test_jobs_of_namespaces_that_hung_are_tried_one_after_another(monkeypatch):
    clock = Clock(monkeypatch)
    jobs, one = Cluster(clock).jobs, user_job_of(item())
    two, other = (replace(one, uid=name, namespace=name) for name in ("team-b", "team-c"))
    jobs.pauses._of |= dict.fromkeys([("team-a", "jobs"), ("team-b", "pods", "bind")], (clock.now_s + 5, 5.0, "late"))
    assert all("are not answered" in jobs.hangs(job) for job in (one, two))
    clock.now_s += 6.0
    for _ in range(2):
        assert jobs.hangs(one) == jobs.hangs(other) == ""
        assert "one after another" in jobs.hangs(two)
    clock.now_s += 61.0
    assert jobs.hangs(two) == ""
    assert "one after another" in jobs.hangs(one)
    jobs.pauses._of["team-b", "pods", "bind"] = (clock.now_s + 5, 10.0, "late")
    assert "are not answered" in jobs.hangs(two)
    assert jobs.hangs(one) == ""


def test_a_refusal_is_an_answer_however_late_it_is():
    pauses, slow = Pauses(Away, slow_s=0.0, wait_s=0.05), Slow(RefusedByServerError(403, "Forbidden", "not signed"))
    with pytest.raises(LateError):
        pauses.ask("there", slow)
    slow.go.set()
    until(lambda: not pauses.busy)
    with pytest.raises(RefusedByServerError, match="not signed"):
        pauses.ask("there", slow)
    assert in_the_end(pauses, "there", str, "signed") == "signed"


@pytest.mark.slow
def test_what_hangs_in_many_namespaces_leaves_connections_to_others():
    pauses, slow = Pauses(Away, wait_s=0.01), Slow()
    for number in range(60):
        with pytest.raises(LateError):
            pauses.ask(number, slow)
        pauses.send(f"events of {number}", slow)
    assert slow.asked <= 80
    slow.go.set()
    until(lambda: not pauses.busy)


@pytest.mark.slow
def test_waiting_for_answers_has_a_budget():
    """Answers that are just in time are not waited for one after another."""
    pauses, answered = Pauses(Away, wait_s=0.4), 0
    for number in range(12):
        with suppress(LateError):
            pauses.ask(number, time.sleep, 0.3)
            answered += 1
    assert answered <= 4


@pytest.mark.slow
def test_many_answers_that_are_late_by_a_little_have_that_budget_too():
    pauses, began_s, answered = Pauses(Away, wait_s=1.0), time.monotonic(), 0
    for number in range(100):
        with suppress(LateError):
            pauses.ask("there", time.sleep, 0.16, about=number)
            answered += 1
    assert answered < 20
    assert time.monotonic() < began_s + 6.0


def test_what_hangs_often_does_not_count_as_new_after_one_answer(monkeypatch):
    clock, pauses = Clock(monkeypatch), Pauses(Away, 5.0, wait_s=1e6)

    def hangs():
        clock.now_s += 10.0
        raise EngineDownError("no answer")

    for pause_s in (5.0, 10.0, 20.0):
        with pytest.raises(EngineDownError):
            pauses.ask("there", hangs)
        assert pauses.hung("there")
        clock.now_s += pause_s + 0.1
    assert pauses.ask("there", int, 1) == 1
    assert not pauses.hung("there")
    with pytest.raises(EngineDownError):
        pauses.ask("there", hangs)
    clock.now_s += 19.9
    assert pauses.hangs("there")


@pytest.mark.slow
def test_a_late_answer_is_none_about_an_object_that_has_changed_since():
    """It was resumed, late, and suspended by hand: to resume it again takes another request."""
    held = threading.Event()
    cluster, job = Cluster(held=held), user_job_of(item(suspend=True))
    assert not cluster.jobs.resume(job)
    held.set()
    until(lambda: not cluster.jobs.pauses.busy)
    until(lambda: cluster.jobs.resume(replace(job)))
    assert cluster.asked == [("PATCH", "jobs")] * 2


class Site:
    """An API server as an engine has it."""

    def __init__(self) -> None:
        self.access, self.closed = SimpleNamespace(server=f"https://{id(self)}"), False

    def ready(self):
        return True

    def close(self):
        self.closed = True


def test_requests_of_an_earlier_engine_of_this_process_keep_their_order():
    first, other, slow = Site(), Site(), Slow()
    other.access = first.access
    pauses = Pauses.left_or_new(first)
    pauses._patience_s = 0.0
    with pytest.raises(LateError):
        pauses.ask("there", slow, about="job")
    pauses.close()
    assert not first.closed
    later = Pauses.left_or_new(other)
    with pytest.raises(LateError):
        later.ask("there", int, 1, about="job")
    slow.go.set()
    until(lambda: not later.busy)
    assert in_the_end(later, "there", int, 1, about="job") == 1
    later.close()
    assert other.closed
    assert Pauses.left_or_new(Site()) is not later


def test_what_cannot_wait_in_line_is_said_to_be_left_out(monkeypatch):
    monkeypatch.setattr(user_requests, "_MOST_DUE", 2)
    pauses, told, slow = Pauses(Away), [], Slow()
    assert pauses.send("there", slow)
    assert pauses.send("there", told.append, 1)
    assert not pauses.send("there", told.append, 2)
    slow.go.set()
    until(lambda: not pauses.busy)
    assert told == [1]
    assert pauses.send("there", told.append, 2)
    until(lambda: told == [1, 2])


@pytest.mark.slow
def test_a_job_that_is_given_up_while_it_is_resumed_is_suspended_again():
    """What is known of it is from before the request that comes late."""
    held = threading.Event()
    cluster, job = Cluster(held=held), user_job_of(item(suspend=True))
    assert not cluster.jobs.resume(job)
    with pytest.raises(LateError):
        cluster.jobs.retire(job)
    held.set()
    until(lambda: not cluster.jobs.pauses.busy)
    cluster.jobs.retire(job)
    assert cluster.asked == [("PATCH", "jobs")] * 2
    cluster.jobs.retire(job)
    assert len(cluster.asked) == 2


def test_a_webhook_for_pods_that_hangs_refuses_the_placement_of_some_and_is_no_outage(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    cluster = Cluster(clock, slow=("pods",))
    waits = [replace(pod(rank, phase="Pending"), node="", container=None) for rank in (0, 1)]
    for tries in range(5):
        with pytest.raises(RefusedByServerError, match="does not answer"):
            cluster.jobs.place(run_in(tmp_path / str(tries), pods=1), user_job_of(item()), waits, {0: "n0"})
    assert cluster.asked == [("POST", "pods")] * 2  # once more, as it may have been executed; and then not for a while
    assert cluster.jobs.hold(user_job_of(item()))  # Jobs have another webhook
    cluster.ready = False
    with pytest.raises(EngineDownError):
        cluster.jobs.place(run_in(tmp_path / "down", pods=1), user_job_of(item()), waits, {0: "n0"})


def test_who_may_not_suspend_deletes_the_pods(tmp_path):
    run, runs = run_in(tmp_path), pod(phase="Running")
    cluster = Cluster(denied=[("PATCH", "jobs")])
    cluster.jobs.stop(run, [runs])
    assert cluster.asked == [("PATCH", "jobs"), ("DELETE", "pods")]
    assert run.denied_s is None
    cluster.denied = [("PATCH", "jobs"), ("DELETE", "pods")]
    cluster.jobs.stop(run, [runs])
    assert run.denied_s is not None
    until(lambda: cluster.asked[-1] == ("POST", "events"))


def test_a_job_without_pods_waits_longer_each_time_unless_more_come(tmp_path, monkeypatch):
    clock, job = Clock(monkeypatch), user_job_of(item())
    cluster, run = Cluster(clock), run_in(tmp_path)
    assert cluster.jobs.podless(run, PATIENT) == ""
    for tries in (1, 2):
        run.waiting_s = clock.now_s
        clock.now_s += 61.0
        assert "has not made its pods within 60 s" in cluster.jobs.podless(run, PATIENT)
        clock.now_s += 60.0 * 2**tries - 1
        assert f"tried {'1 time' if tries == 1 else '2 times'}" in cluster.jobs.made_none(job)
        clock.now_s += 2.0
        assert cluster.jobs.made_none(job) == ""
    clock.now_s -= 2.0
    assert cluster.jobs.made_none(job)
    cluster.show([pod(phase="Pending")])
    assert cluster.jobs.made_none(job) == ""


def test_a_job_whose_pods_cannot_be_placed_waits_too(tmp_path, monkeypatch):
    """Something has written another scheduler into them: they are there, and are never placed."""
    clock, job, there = Clock(monkeypatch), user_job_of(item()), pod(phase="Pending")
    cluster, run = Cluster(clock, pods=[there]), run_in(tmp_path)
    run.waiting_s = clock.now_s
    clock.now_s += 61.0
    assert "do not wait to be placed by commonwatt" in cluster.jobs.podless(run, PATIENT)
    assert "do not wait to be placed" in cluster.jobs.made_none(job)


def test_pods_of_a_job_that_are_deleted_for_long_do_not_keep_it_from_being_placed(tmp_path, monkeypatch):
    """As one on a node that is lost: a new one is there, and has to be placed."""
    clock = Clock(monkeypatch)
    cluster, run = Cluster(clock), run_in(tmp_path)
    old = pod(1, phase="Running", deletionTimestamp="2026-11-25T09:00:00Z")
    new = replace(pod(phase="Pending"), node="", container=None)
    run.waiting_s = clock.now_s
    assert not cluster.jobs.place(run, user_job_of(item()), [old, new], {0: "n0"})
    clock.now_s += 11.0
    assert cluster.jobs.place(run, user_job_of(item()), [old, new], {0: "n0"})
    assert cluster.asked == [("POST", "pods")]


def test_who_looks_later_does_not_wait_for_a_list_that_hangs(monkeypatch):
    def handler(request):
        if request.url.path == "/apis/hangs":
            time.sleep(30.0)
        return page() if "watch" not in dict(request.url.params) else httpx.Response(200, text="")

    access = Access("https://server.test", "n", ssl.create_default_context(), token="t")
    api = KubernetesApi(access, transport=httpx.MockTransport(handler))
    there, hangs = Watched("/api/v1/pods", lambda one: one), Watched("/apis/hangs", lambda one: one)
    hangs.synced = there.synced = False
    informer = Informer(api, there)
    try:
        until(lambda: there.synced)
        informer.began_s -= 60.0
        monkeypatch.setattr(informer._changed, "wait_for", lambda *_: pytest.fail("it waits"), raising=False)
        with pytest.raises(EngineDownError, match="has not listed /apis/hangs yet"):
            informer.look(hangs)
        assert informer.look(there) == {}
    finally:
        monkeypatch.undo()
        informer.stop()
        api.close()


def test_an_extension_that_is_down_does_not_make_roles_count_as_not_loaded_yet():
    answers = {
        "/api/v1/nodes": httpx.Response(200, json={}),
        "/apis/x/v1/things": httpx.Response(503, headers={"Retry-After": "0"}, json={"message": "no"}),
        "/api/v1/pods": httpx.Response(403, json={"message": 'u cannot list resource "pods" in API group ""'}),
    }
    access = Access("https://server.test", "n", ssl.create_default_context(), token="t")
    api = KubernetesApi(access, roles_s=1e-9, transport=httpx.MockTransport(lambda request: answers[request.url.path]))
    api.get("/api/v1/nodes")
    with pytest.raises(EngineDownError):
        api.get("/apis/x/v1/things")
    with pytest.raises(EngineError, match="a Role has to grant it") as caught:
        api.get("/api/v1/pods")
    assert not isinstance(caught.value, NotYetAllowedError)
    api.close()


def test_what_is_sent_behind_a_request_of_an_earlier_term_is_sent_all_the_same():
    """It went with it, and nobody was told."""
    gate, sent = threading.Event(), []

    def earlier():
        gate.wait(60.0)
        raise ClaimLostError("the term is over")

    pauses = Pauses(Away)
    assert pauses.send("team-a", earlier)
    assert pauses.send("team-a", sent.append, 1)
    gate.set()
    until(lambda: sent == [1])
