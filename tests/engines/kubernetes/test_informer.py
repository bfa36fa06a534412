"""Lists and watches, over a server that answers what each test wants."""

from __future__ import annotations

import json
import ssl
import time
from contextlib import contextmanager

import pytest

pytest.importorskip("httpx")

import httpx

from commonwatt.engines.kubernetes.access import Access
from commonwatt.engines.kubernetes.api import KubernetesApi, RefusedByServerError, path_of
from commonwatt.engines.kubernetes.informer import Informer, Watched
from commonwatt.model.errors import ClaimLostError, EngineDownError, EngineError

from .site import until


def item(name, version, **more):
    return {"metadata": {"uid": name, "name": name, "resourceVersion": str(version)}, **more}


def event(kind, name, version, **more):
    return json.dumps({"type": kind, "object": item(name, version, **more)}) + "\n"


def page(*items, version=1, more=""):
    return httpx.Response(200, json={"metadata": {"resourceVersion": str(version), "continue": more}, "items": items})


def status(code, message="", reason=""):
    return httpx.Response(code, json={"kind": "Status", "code": code, "message": message, "reason": reason})


def api_of(handler):
    access = Access("https://server.test", "n", ssl.create_default_context(), token="t")
    return KubernetesApi(access, transport=httpx.MockTransport(handler))


@contextmanager
def informed(*answers):
    """An informer that gets these answers one after another, and then nothing for a while."""
    asked, left = [], list(answers)

    def handler(request):
        asked.append(dict(request.url.params))
        if not left:
            time.sleep(0.05)
            return httpx.Response(200, text="")
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, text=answer)

    watched = Watched("/api/v1/pods", lambda one: one.get("value", 0), keep=lambda _: True)
    api = api_of(handler)
    informer = Informer(api, watched)
    try:
        yield informer, watched, asked
    finally:
        informer.stop()
        api.close()


def test_a_list_comes_in_pages_and_a_watch_goes_on_from_it():
    with informed(
        page(item("a", 1), more="next"), page(item("b", 2, value=2), version=5),
        event("MODIFIED", "a", 6, value=1) + event("DELETED", "b", 7) + event("BOOKMARK", "x", 9),
    ) as (informer, watched, asked):  # fmt: skip
        until(lambda: len(asked) >= 4)
        assert informer.look(watched) == {"a": 1}
    assert asked[1]["continue"] == "next"
    assert [one["resourceVersion"] for one in asked[2:4]] == ["5", "9"]  # the bookmark's
    assert informer.lists == 1


@pytest.mark.parametrize(
    "gone",
    [status(410, "too old"), json.dumps({"type": "ERROR", "object": {"code": 410, "message": "too old"}}) + "\n"],
    ids=["as an answer", "within the watch"],
)
def test_what_the_server_does_not_have_any_more_is_listed_again(gone):
    with informed(page(item("a", 1)), gone, page(item("b", 8), version=8)) as (informer, watched, asked):
        until(lambda: informer.lists == 2)
        assert informer.look(watched) == {"b": 0}
        until(lambda: len(asked) >= 4)
    assert asked[3]["resourceVersion"] == "8"


def test_a_watch_that_breaks_goes_on_where_it_was():
    broken = httpx.ReadError("reset")
    with informed(page(version=3), event("ADDED", "a", 4), broken, event("ADDED", "b", 5)) as (
        informer,
        watched,
        asked,
    ):
        until(lambda: len(informer.look(watched)) == 2)
    assert [one.get("resourceVersion") for one in asked[1:4]] == ["3", "4", "4"]
    assert informer.lists == 1


def test_a_server_that_does_not_answer_is_down_and_what_it_said_is_kept():
    refused = [httpx.ConnectError("refused") for _ in range(200)]
    with informed(page(item("a", 1)), *refused) as (informer, watched, _):
        assert informer.look(watched) == {"a": 0}
        until(lambda: informer._lost(watched))
        with pytest.raises(EngineDownError, match="refused"):
            informer.look(watched)
        assert watched.items == {"a": 0}


def test_answers_that_cannot_be_read_are_no_empty_list():
    html = [httpx.Response(200, text="<html>") for _ in range(200)]
    with informed(*html) as (informer, watched, _), pytest.raises(EngineDownError, match="cannot be read"):
        informer.look(watched)


def test_what_was_deleted_does_not_come_back():
    with informed(page(version=1), event("ADDED", "a", 2) + event("DELETED", "a", 3)) as (informer, watched, asked):
        until(lambda: len(asked) >= 3)
        informer.put(watched, "a", 5)
        informer.put(watched, "b", 6)
        assert informer.look(watched) == {"b": 6}
        assert watched.gone == {"a": 0}


DENIED = 'pods is forbidden: User "u" cannot list resource "pods" in API group "" at the cluster scope'


def test_a_denial_soon_after_the_server_came_up_is_down_and_later_a_refusal(monkeypatch):
    api = api_of(lambda _: status(403, DENIED, "Forbidden"))
    with pytest.raises(EngineDownError, match=r"not allowed \(yet\) to list pods"):
        api.get("/api/v1/pods")
    monkeypatch.setattr(api, "_came_up_s", time.monotonic() - 60)
    with pytest.raises(RefusedByServerError, match="not allowed to list pods; a Role has to grant it"):
        api.get("/api/v1/pods")
    api.close()


def test_a_quota_is_a_refusal_at_once():
    api = api_of(lambda _: status(403, 'pods "x" is forbidden: exceeded quota: gpus', "Forbidden"))
    with pytest.raises(RefusedByServerError, match="exceeded quota"):
        api.create("/api/v1/namespaces/n/pods", {})
    api.close()


@pytest.mark.parametrize("code", [401, 408, 429, 500, 503])
def test_these_are_down(code):
    api = api_of(lambda _: httpx.Response(code, headers={"Retry-After": "0"}))
    with pytest.raises(EngineDownError):
        api.get("/version")
    api.close()


def test_a_busy_server_is_asked_once_more_and_a_delete_of_what_is_gone_is_done():
    answers = [httpx.Response(429, headers={"Retry-After": "0"}), status(404)]
    api = api_of(lambda _: answers.pop(0))
    api.delete(path_of("pods", "n", "p"), "u")
    assert answers == []
    api.close()


def test_other_refusals_are_errors_of_the_request():
    api = api_of(lambda _: status(422, "spec.x: Invalid value", "Invalid"))
    with pytest.raises(EngineError, match=r"spec.x: Invalid value \(HTTP 422\)") as caught:
        api.create("/api/v1/namespaces/n/pods", {})
    assert not isinstance(caught.value, EngineDownError)
    api.close()


def test_a_webhook_that_fails_refuses_one_object_and_is_no_outage():
    for said in (
        'Internal error occurred: failed calling webhook "jobs.test": Post "https://x": connection refused',
        'admission webhook "jobs.test" denied the request: it cannot be reached',
    ):
        api = api_of(lambda _, said=said: status(500, said, "InternalError"))
        with pytest.raises(EngineError, match="webhook") as caught:
            api.merge("/apis/batch/v1/namespaces/n/jobs/j", {})
        assert not isinstance(caught.value, EngineDownError)
        api.close()


def test_who_may_not_act_asks_and_changes_nothing():
    """A controller that another one has replaced: its guard raises."""
    asked = []

    def handler(request):
        asked.append(request.method)
        return httpx.Response(200, json={})

    def replaced():
        raise ClaimLostError("another controller has the store")

    access = Access("https://server.test", "n", ssl.create_default_context(), token="t")
    api = KubernetesApi(access, guard=replaced, transport=httpx.MockTransport(handler))
    assert api.ask("GET", "/api/v1/pods") == {}
    for method in ("POST", "PATCH", "DELETE"):
        with pytest.raises(ClaimLostError):
            api.ask(method, "/api/v1/namespaces/n/pods/p", {})
    assert asked == ["GET"]
