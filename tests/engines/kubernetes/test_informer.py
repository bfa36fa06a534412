"""Lists and watches, over a server that answers what each test wants."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
from contextlib import contextmanager

import pytest

pytest.importorskip("httpx")

import httpx

from commonwatt.engines.kubernetes.access import Access
from commonwatt.engines.kubernetes.api import KubernetesApi, RefusedByServerError, lines_of, path_of
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


def number(one):
    return int(one.get("value", 0))


@contextmanager
def informed(*answers, read=lambda one: one.get("value", 0)):
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

    watched = Watched("/api/v1/pods", read, keep=lambda _: True)
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


@pytest.mark.slow
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


@pytest.mark.long
def test_a_server_that_does_not_answer_is_down_and_what_it_said_is_kept():
    refused = [httpx.ConnectError("refused") for _ in range(200)]
    with informed(page(item("a", 1)), "", *refused) as (informer, watched, _):
        assert informer.look(watched) == {"a": 0}
        until(lambda: informer._lost(watched))
        with pytest.raises(EngineDownError, match="refused"):
            informer.look(watched)
        assert watched.items == {"a": 0}


@pytest.mark.slow
def test_who_may_list_and_not_watch_is_told_so_from_the_start():
    """Else each controller would begin with what was listed, fail a moment later, and begin anew."""
    denied = [status(403, 'User "u" cannot watch resource "pods" in API group ""') for _ in range(200)]
    with informed(page(item("a", 1)), *denied) as (informer, watched, _):
        with pytest.raises(EngineError, match="watch"):
            informer.look(watched)
        assert watched.items == {"a": 0}
        assert not watched.synced


@pytest.mark.slow
def test_answers_that_cannot_be_read_are_no_empty_list():
    html = [httpx.Response(200, text="<html>") for _ in range(200)]
    with informed(*html) as (informer, watched, _), pytest.raises(EngineDownError, match="cannot be read"):
        informer.look(watched)


def test_lines_of_a_watch_end_at_newlines_alone():
    """Go writes what else ends a line as it is."""
    odd = "x\u0085y\u2028z\r\x0b"
    changed = json.dumps({"type": "MODIFIED", "object": item("a", 6, value=odd)}, ensure_ascii=False) + "\n"
    with informed(page(item("a", 1), version=5), changed + event("ADDED", "b", 7)) as (informer, watched, asked):
        until(lambda: len(asked) >= 3)
        assert informer.look(watched) == {"a": odd, "b": 0}
        assert (informer.lists, asked[2]["resourceVersion"]) == (1, "7")


def test_a_line_may_come_in_pieces_and_is_not_endless(monkeypatch):
    async def pieces(*chunks):
        for chunk in chunks:
            yield chunk

    async def lines(*chunks):
        return [line async for line in lines_of(pieces(*chunks))]

    assert asyncio.run(lines(b"a", b"b\nc\nd", b"", b"e")) == [b"ab", b"c", b"de"]
    monkeypatch.setattr("commonwatt.engines.kubernetes.api._MOST_BYTES", 3)
    assert asyncio.run(lines(b"abc", b"\nabc\n")) == [b"abc", b"abc", b""]
    with pytest.raises(ValueError, match="an event of more than"):
        asyncio.run(lines(b"ab", b"cd"))


@pytest.mark.slow
def test_an_object_that_cannot_be_read_is_left_out_or_stays_as_it_was(caplog):
    first = page(item("a", 1, value=5), item("b", 1, value="?"), {"metadata": None}, version=5)
    changes = event("MODIFIED", "a", 6, value="?") + event("ADDED", "c", 7, value="?") + event("ADDED", "d", 8)
    again = event("MODIFIED", "c", 9, value="?")
    with caplog.at_level(logging.WARNING), informed(first, changes + again, read=number) as (informer, watched, asked):
        until(lambda: len(asked) >= 3)
        assert informer.look(watched) == {"a": 5, "d": 0}
        assert (informer.lists, asked[2]["resourceVersion"]) == (1, "9")
    assert [record.uid for record in caplog.records if "cannot be read" in record.message] == ["b", "", "a", "c"]


@pytest.mark.slow
def test_one_that_cannot_be_read_any_more_stays_through_lists_until_it_is_deleted():
    lists = page(item("a", 1, value=5)), status(410, "too old"), page(item("a", 2, value="?"), version=8)
    with informed(*lists, event("ADDED", "b", 9), event("DELETED", "a", 10, value="?"), read=number) as (
        informer,
        watched,
        asked,
    ):
        until(lambda: informer.lists == 2)
        assert watched.items["a"] == 5
        until(lambda: len(asked) >= 6)
        assert (informer.look(watched), watched.gone) == ({"b": 0}, {"a": 5})


@pytest.mark.long
def test_who_looks_is_told_of_whatever_goes_wrong():
    """Nothing goes on as if the last state were that of now."""
    odd = [RuntimeError("of some library") for _ in range(200)]
    with informed(page(item("a", 1)), "", *odd) as (informer, watched, _):
        assert informer.look(watched) == {"a": 0}
        until(lambda: informer._lost(watched))
        with pytest.raises(EngineDownError, match="of some library"):
            informer.look(watched)


def test_where_the_thread_has_ended_there_is_no_last_state(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no client")

    with informed(page(item("a", 1))) as (informer, watched, _):
        informer.look(watched)
        informer.stop()
        with pytest.raises(EngineDownError, match="is not watched any more: it was stopped"):
            informer.look(watched)
    monkeypatch.setattr(httpx, "AsyncClient", broken)
    with informed() as (informer, watched, _), pytest.raises(EngineDownError, match="no client"):
        informer.look(watched)


@pytest.mark.slow
def test_what_is_gone_again_and_again_is_listed_with_pauses():
    """A server may be unable to keep up with its own changes."""
    answers = [answer for _ in range(200) for answer in (page(item("a", 1), version=5), status(410, "too old"))]
    with informed(*answers) as (informer, _, _):
        time.sleep(1.0)
        assert 2 <= informer.lists < 12


@pytest.mark.slow
def test_each_watch_has_a_connection(monkeypatch):
    made = []

    class Client(httpx.AsyncClient):
        def __init__(self, **options):
            made.append(options["limits"])
            super().__init__(**options)

    monkeypatch.setattr(httpx, "AsyncClient", Client)
    api = api_of(lambda _: page())
    informer = Informer(api, *(Watched(path_of("jobs", f"team-{n}"), dict) for n in range(150)))
    until(lambda: made)
    informer.stop()
    api.close()
    assert made[0].max_connections > 150


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
