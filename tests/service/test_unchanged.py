"""Pages of nodes, and answers that a caller has already."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commonwatt.store.controller_store import Tick


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
