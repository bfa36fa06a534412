"""Pages of nodes, and answers that a caller has already."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace

import pytest

from commonwatt.model.errors import StoreError
from commonwatt.model.live_results import NodePage
from commonwatt.service.context import AnswerCache
from commonwatt.store.controller_store import Tick


@pytest.mark.slow
def test_nodes_come_in_pages(as_, service):
    ada = as_("ada")
    names = [node["name"] for node in ada.get("/nodes").json()["nodes"]]
    assert len(names) == 3
    assert ada.get("/nodes").json()["next_after"] is None
    first = ada.get("/nodes?limit=2").json()
    assert ([node["name"] for node in first["nodes"]], first["next_after"]) == (names[:2], 2)
    last = ada.get("/nodes?limit=2&after=2").json()
    assert ([node["name"] for node in last["nodes"]], last["next_after"]) == (names[2:], None)
    assert ada.get("/nodes?after=99").json()["nodes"] == []
    assert ada.get("/cluster?nodes=false").json()["nodes"] == []
    assert len(ada.get("/cluster").json()["nodes"]) == 3


@pytest.mark.parametrize("path", ["/nodes", "/cluster", "/ledger"])
def test_what_has_not_changed_is_not_sent_again(as_, service, path):
    ada = as_("ada")
    first = ada.get(path)
    again = ada.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert as_("bob").get(path, headers={"If-None-Match": first.headers["etag"]}).status_code == 200
    service.now = replace(service.now, ticks=service.now.ticks + 1)
    service.ticks.write(Tick())
    later = ada.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert later.status_code == 200
    assert later.headers["etag"] != first.headers["etag"]


def test_an_answer_is_made_once_for_all_who_see_the_same():
    made = []

    def make(name):
        made.append(name)
        return NodePage(nodes=(), next_after=len(made))

    async def ask(*names):
        return [await answers.response(name, lambda name=name: make(name)) for name in names]

    answers = AnswerCache(most=2)
    first, again = asyncio.run(ask("a", "a"))
    assert (json.loads(first.body), first.headers["etag"]) == ({"nodes": [], "next_after": 1}, "a")
    assert again.body == first.body
    asyncio.run(ask("b", "a", "c"))  # b was asked for longest ago
    assert made == ["a", "b", "c"]
    asyncio.run(ask("a", "b"))
    assert made == ["a", "b", "c", "b"]


def test_an_answer_asked_for_by_several_at_once_is_made_once():
    made = []

    def make():
        made.append(1)
        time.sleep(0.05)  # so that the others come meanwhile
        return NodePage(nodes=())

    async def ask():
        answers = AnswerCache()
        return await asyncio.gather(*(answers.response("a", make) for _ in range(5)))

    assert len({answer.body for answer in asyncio.run(ask())}) == len(made) == 1


def test_an_answer_that_failed_is_made_again():
    def fails():
        raise StoreError("down")

    answers = AnswerCache()
    with pytest.raises(StoreError):
        asyncio.run(answers.response("a", fails))
    assert json.loads(asyncio.run(answers.response("a", lambda: NodePage(nodes=()))).body)["nodes"] == []


def test_a_tenant_sees_its_own_jobs_on_nodes_as_the_snapshot_or_the_store_has_them(as_, service):
    rows = {row.id: row for row in service.store.jobs(limit=1000)}
    seen = {}
    for known in ({}, rows):
        service.now = replace(service.now, rows=known, ticks=service.now.ticks + 1)
        for name in ("ada", "bob"):
            seen.setdefault(name, []).append([node["jobs"] for node in as_(name).get("/nodes").json()["nodes"]])
    assert all(first == second for first, second in seen.values())
    own = {name: {job for jobs in first for job in jobs} for name, (first, _) in seen.items()}
    assert all(rows[job].tenant == name for name, jobs in own.items() for job in jobs)
