"""Jobs over the API: accepted, listed, explained, changed; and refused with what is wrong."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace

import pytest
import sqlalchemy as sa

from commonwatt.controlplane.snapshot import SnapshotJob
from commonwatt.model.job_file import JobFile
from commonwatt.model.live_results import LedgerPage
from commonwatt.service.app import make_app
from commonwatt.service.context import TtlCache
from commonwatt.store.controller_store import Tick
from commonwatt.store.records import EventRow
from tests.service.conftest import Caller
from tests.service.made import StandIn, job


def test_a_job_is_accepted_and_seen(as_, service):
    ada = as_("ada")
    done = ada.post("/jobs", json=job(gpus=2, epochs=10, environment={"SECRET": "hunter2"}))
    assert done.status_code == 201, done.text
    accepted = done.json()
    assert done.headers["location"] == f"/api/v1/jobs/{accepted['id']}"
    assert (accepted["status"], accepted["tenant"], accepted["gpus_asked"]) == ("waiting", "ada", 2)
    assert service.woken == 1
    assert [r.kind for r in service.ticks.requests()] == ["submit"]
    before = ada.get(f"/jobs/{accepted['id']}/explain").json()
    assert (before["reason"], before["history"]) == ("new", [])
    service.obey()
    after = ada.get(f"/jobs/{accepted['id']}/explain").json()
    assert (after["reason"], after["sentence"]) == ("no-room", "No node has room.")
    assert [event["kind"] for event in after["history"]] == ["waits"]
    seen = ada.get(f"/jobs/{accepted['id']}")
    assert seen.json()["environment"] == ["SECRET"]
    assert "hunter2" not in seen.text


def test_jobs_are_found_by_name_and_number(as_, service):
    ada, bob, operator = as_("ada"), as_("bob"), as_("operator")
    first = ada.post("/jobs", json=job(name="train-A")).json()["id"]
    bob.post("/jobs", json=job(name="train-b"))

    def found(caller, find, **more):
        return [entry["name"] for entry in caller.get("/jobs", params={"find": find, **more}).json()["jobs"]]

    assert found(operator, "TRAIN") == ["train-A", "train-b"]
    assert found(operator, "train", tenant="bob") == found(bob, "train") == ["train-b"]
    assert found(ada, str(first)) == ["train-A"]
    assert found(bob, str(first)) == found(bob, "a-A") == []
    ada.post(f"/jobs/{first}/hold")
    service.obey()
    assert found(operator, "train", held=True) == ["train-A"]
    assert found(operator, "train", held=False) == ["train-b"]
    for wrong in ("", "x" * 129, "a\0b"):
        assert ada.get("/jobs", params={"find": wrong}).status_code == 422


@pytest.mark.slow
def test_pages_hold_every_job_once(as_):
    ada, bob = as_("ada"), as_("bob")
    for k in range(7):
        (ada if k % 2 else bob).post("/jobs", json=job(name=f"j{k}"))
    for order in ("true", "false"):
        names, cursor = [], 0
        while cursor is not None:
            page = as_("operator").get("/jobs", params={"limit": 3, "cursor": cursor, "newest_first": order}).json()
            names += [entry["name"] for entry in page["jobs"]]
            cursor = page["next_cursor"]
        assert names == sorted(names, reverse=order == "true")
        assert len(names) == 7
    mine = ada.get("/jobs").json()
    assert {entry["name"] for entry in mine["jobs"]} == {"j1", "j3", "j5"}
    assert mine["counts"]["waiting"] == 3
    assert ada.get("/jobs", params={"status": "failed"}).json()["jobs"] == []


def test_submitting_again_with_a_key_is_one_job(as_, service):
    ada = as_("ada")
    first = ada.post("/jobs", json=job(), headers={"Idempotency-Key": "k1"})
    again = ada.post("/jobs", json=job(), headers={"Idempotency-Key": "k1"})
    other = ada.post("/jobs", json=job(name="x"), headers={"Idempotency-Key": "k1"})
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 409)
    assert first.json()["id"] == again.json()["id"]
    assert as_("bob").post("/jobs", json=job(), headers={"Idempotency-Key": "k1"}).status_code == 201
    assert len(service.store.jobs()) == 2


@pytest.mark.parametrize(
    ("more", "field", "expected"),
    [
        ({"epochs": 0}, "epochs", "a number, 1 or more"),
        ({"epochs": "10"}, "epochs", "a whole number"),
        ({"gpus": 9}, "gpus", "GPUs that one node, or several alike together, have"),
        ({"gpu_type": "H100"}, "gpu_type", "a GPU type of the cluster (V100, T4)"),
        ({"gpu_types": ["T4", "K80"]}, "gpu_types", "a GPU type of the cluster (V100, T4)"),
        ({"due": "tomorrow"}, "due", "a time such as 2026-12-01T08:00 (ISO 8601)"),
        ({"comand": "x"}, "comand", "did you mean command?"),
        ({"name": "a b"}, "name", "^[A-Za-z0-9]"),
        ({"folder": "relative"}, "folder", "an absolute path"),
        ({"due_in_s": 1e300}, "due_in_s", "a number up to 1e+15"),
        ({"workload": {"namespace": "a", "name": "b", "uid": "c"}}, "workload", "a Job of Kubernetes is taken over by"),
    ],
)
def test_wrong_jobs_are_refused_with_what_is_wrong(as_, service, more, field, expected):
    done = as_("ada").post("/jobs", json=job(**more))
    assert (done.status_code, done.headers["content-type"]) == (422, "application/problem+json")
    told = done.json()
    assert told["field"] == field
    assert expected in told["expected"]
    assert service.store.jobs() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400), (b"{", 400), (b"[]", 422), (b'"x"', 422), (b"\xff\xfe", 400), (b'{"name": "\\ud800"}', 400),
        (b'{"name": "a", "name": "b"}', 400), (b'{"name": NaN}', 400), (b'{"kind": "\\u0000"}', 400),
        (b"[" * 100_000, 400), (b'{"epochs": ' + b"9" * 5000 + b"}", 400), (b'{"epochs": 1' + b"0" * 400 + b"}", 422),
        (b'{"kind": "' + b"x" * 2_000_000 + b'"}', 413),
    ],
)  # fmt: skip
def test_bodies_that_are_no_jobs(as_, content, status):
    done = as_("ada").post("/jobs", content=content, headers={"Content-Type": "application/json"})
    assert (done.status_code, done.headers["content-type"]) == (status, "application/problem+json")


def test_a_body_says_what_it_is(as_):
    done = as_("ada").post("/jobs", content=b"name=x", headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert done.status_code == 415


@pytest.mark.parametrize("past_due", ["warn", "refuse"])
def test_due_dates_that_have_passed(tmp_path, past_due):
    service = StandIn(tmp_path, server={"past_due": past_due})
    ada = Caller(make_app(service.context), service.tokens["ada"])
    done = ada.post("/jobs", json=job(due="2001-01-01", tardiness_weight=0.1))
    if past_due == "warn":
        assert done.status_code == 201
        assert done.json()["warnings"] == ["the due date (2001-01-01) has passed: the job is already late"]
        assert done.json()["late"] is True
    else:
        assert (done.status_code, done.json()["field"]) == (422, "due")
        soon = job(due_in_s=3600, tardiness_weight=0.1)
        first = ada.post("/jobs", json=soon, headers={"Idempotency-Key": "k"}).json()
        assert first["warnings"] == []
        assert abs(first["due_s"] - time.time() - 3600) < 600
    service.close()


@pytest.mark.slow
def test_folders_must_exist_where_the_engine_is_local(tmp_path):
    service = StandIn(tmp_path, engine="local")
    app = make_app(service.context)
    operator, ada = (Caller(app, service.tokens[who]) for who in ("operator", "ada"))
    done = operator.post("/jobs?tenant=ada", json=job(snapshots=str(tmp_path / "missing")))
    assert (done.status_code, done.json()["field"]) == (422, "snapshots")
    assert operator.post("/jobs?tenant=ada", json=job(snapshots=str(tmp_path))).status_code == 201
    for folder in (tmp_path, tmp_path / "missing"):  # which files there are is no business of a tenant's
        done = ada.post("/jobs", json=job(snapshots=str(folder)))
        assert (done.status_code, done.json()["warnings"]) == (201, [])
    service.close()


@pytest.mark.slow
@pytest.mark.parametrize(("action", "check"), [("cancel", "cancelled"), ("hold", True), ("release", False)])
def test_jobs_are_changed_by_asking(as_, service, action, check):
    ada = as_("ada")
    number = ada.post("/jobs", json=job()).json()["id"]
    asked = ada.post(f"/jobs/{number}/{action}")
    assert asked.status_code == 202
    assert [r.kind for r in service.ticks.requests()] == ["submit", action]
    service.obey()
    state = ada.get(f"/jobs/{number}").json()
    assert (state["status"] if action == "cancel" else state["held"]) == check


@pytest.mark.parametrize(("who", "by"), [("ada", "tenant"), ("operator", "operator")])
def test_who_cancelled_is_written_down(as_, service, who, by):
    number = as_("ada").post("/jobs", json=job()).json()["id"]
    assert as_(who).post(f"/jobs/{number}/cancel").status_code == 202
    assert [request.by for request in service.ticks.requests()] == [None, by]


def test_what_has_ended_is_not_changed(as_, service):
    ada = as_("ada")
    number = ada.post("/jobs", json=job()).json()["id"]
    ada.post(f"/jobs/{number}/cancel")
    service.obey()
    assert ada.post(f"/jobs/{number}/cancel").status_code == 202  # once more does nothing
    assert ada.post(f"/jobs/{number}/hold").status_code == 409
    assert service.ticks.requests() == []


@pytest.mark.slow
def test_an_operator_submits_for_a_tenant_it_names(as_):
    operator = as_("operator")
    assert operator.post("/jobs", json=job()).status_code == 422
    assert operator.post("/jobs", params={"tenant": "eve"}, json=job()).status_code == 404
    assert operator.post("/jobs", params={"tenant": "bob"}, json=job()).json()["tenant"] == "bob"
    assert as_("ada").post("/jobs", params={"tenant": "bob"}, json=job()).status_code == 403


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "slurm"])
def test_output(tmp_path, engine):
    stand_in = StandIn(tmp_path, engine=engine)
    app = make_app(stand_in.context)
    ada = Caller(app, stand_in.tokens["ada"])
    number = ada.post("/jobs", json=job()).json()["id"]
    assert ada.get(f"/jobs/{number}/log").status_code == 404
    folder = tmp_path / "state" / "runs" / f"{number}-1"
    folder.mkdir(parents=True)
    (folder / "output.log").write_bytes(b"epoch 1\n<script>alert(1)</script>\xff")
    tick = Tick()
    tick.change(number, attempts=1)
    stand_in.ticks.write(tick)
    seen = ada.get(f"/jobs/{number}/log", params={"last_bytes": 13})
    assert seen.text == "(1)</script>\N{REPLACEMENT CHARACTER}"
    assert seen.headers["content-type"] == "text/plain; charset=utf-8"
    assert seen.headers["x-content-type-options"] == "nosniff"
    assert Caller(app, stand_in.tokens["bob"]).get(f"/jobs/{number}/log").status_code == 404
    stand_in.close()


@pytest.mark.slow
def test_output_of_every_run_and_what_follows(tmp_path):
    stand_in = StandIn(tmp_path, engine="local")
    ada = Caller(make_app(stand_in.context), stand_in.tokens["ada"])
    number = ada.post("/jobs", json=job()).json()["id"]
    for attempt, text in ((1, b"first\n"), (2, "zwei \u00e9\u20ac".encode()[:-1]), (3, b"")):
        folder = tmp_path / "state" / "runs" / f"{number}-{attempt}"
        folder.mkdir(parents=True)
        (folder / "output.log").write_bytes(text)
    tick = Tick()
    tick.change(number, attempts=2)
    stand_in.ticks.write(tick)

    def log(**params):
        return ada.get(f"/jobs/{number}/log", params=params)

    assert log(attempt=1).text == "first\n"
    assert log().headers["commonwatt-attempt"] == "2"
    part = log(attempt=2, after=0)
    assert (part.text, part.headers["commonwatt-next"]) == ("zwei \u00e9", "7")  # of the last sign, a part is there
    with (folder.parent / f"{number}-2" / "output.log").open("ab") as file:
        file.write("\u20ac".encode()[-1:])
    assert log(attempt=2, after=7).text == "\u20ac"
    assert log(attempt=2, after=10**6).text == ""
    assert log(attempt=3).status_code == 404  # not started, as far as the store knows
    assert log(attempt=1, after=0, last_bytes=2).headers["commonwatt-next"] == "2"
    assert log(after=-1).status_code == log(attempt=0).status_code == 422
    assert Caller(ada.app, stand_in.tokens["bob"]).get(f"/jobs/{number}/log", params={"attempt": 1}).status_code == 404
    stand_in.close()


def test_output_that_leads_elsewhere_is_not_shown(tmp_path):
    stand_in = StandIn(tmp_path, engine="local")
    ada = Caller(make_app(stand_in.context), stand_in.tokens["ada"])
    number = ada.post("/jobs", json=job()).json()["id"]
    folder = tmp_path / "state" / "runs" / f"{number}-0"
    folder.mkdir(parents=True)
    (folder / "output.log").symlink_to("/etc/passwd")
    assert ada.get(f"/jobs/{number}/log").status_code == 404
    stand_in.close()


def test_output_that_is_a_pipe_holds_nobody_up(tmp_path):
    stand_in = StandIn(tmp_path, engine="local")
    folder = tmp_path / "state" / "runs" / "1-1"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "output.log")
    seen = []
    asked = threading.Thread(target=lambda: seen.append(stand_in.context.job_log(1, 1, 100)), daemon=True)
    asked.start()
    asked.join(120.0)
    assert seen == [None]
    stand_in.close()


def test_active_jobs_come_from_the_controllers_memory_while_it_is_well(as_, service):
    number = as_("ada").post("/jobs", json=job(name="first")).json()["id"]
    row = replace(service.store.job(number), name="as the controller has it")
    service.now = replace(service.now, rows={number: row})
    names = [as_("ada").get(f"/jobs/{number}").json()["name"], as_("ada").get("/jobs").json()["jobs"][0]["name"]]
    assert names == [row.name] * 2
    assert as_("bob").get(f"/jobs/{number}").status_code == 404
    service.now = replace(service.now, healthy=False)
    names = [as_("ada").get(f"/jobs/{number}").json()["name"], as_("ada").get("/jobs").json()["jobs"][0]["name"]]
    assert names == ["first"] * 2


@pytest.mark.parametrize("path", ["/jobs", "/jobs/{}", "/jobs/{}/explain"])
def test_an_answer_is_of_one_look_at_the_controller(service, path):
    row, _ = service.store.submit("ada", JobFile(**job()), 1.0)
    looks = []

    def snapshot():
        """A snapshot that says which look it is."""
        looks.append(text := f"look {len(looks)}")
        now = replace(SnapshotJob.of(row), reason="no-room", sentence=text)
        return replace(service.now, rows={row.id: replace(row, name=text)}, jobs={row.id: now})

    ada = Caller(make_app(replace(service.context, snapshot=snapshot)), service.tokens["ada"])
    seen = ada.get(path.format(row.id)).json()
    seen = seen["jobs"][0] if "jobs" in seen else seen
    assert seen["name"] == seen["sentence"]


@pytest.mark.parametrize("many", [3, 100, 1005])
def test_the_last_of_a_long_history_is_read_and_no_more(as_, service, many):
    ada = as_("ada")
    number = ada.post("/jobs", json=job()).json()["id"]
    tick = Tick(events=[EventRow(0, float(k), "waits", number, (), 0, "no-room", f"{k}") for k in range(many)])
    service.ticks.write(tick)
    read = []
    listening = sa.event.listens_for(service.database.engine, "before_cursor_execute")
    listening(lambda c, cursor, statement, given, *_: read.append((statement, given)))
    told = [event["sentence"] for event in ada.get(f"/jobs/{number}/explain").json()["history"]]
    assert told == [f"{k}" for k in range(many)][-1000:]
    limits = [given[-2] for statement, given in read if "FROM events" in statement]
    assert limits == ([100] if many < 100 else [100, 1000])


@pytest.mark.slow
def test_events_are_told_from_either_end(as_, service):
    ada = as_("ada")
    number = ada.post("/jobs", json=job()).json()["id"]
    service.ticks.write(Tick(events=[EventRow(0, 1.0, "waits", number, (), 0, "no-room", f"{k}") for k in range(7)]))
    for path in ("/events", f"/jobs/{number}/events"):

        def told(path=path, **params):
            page = ada.get(path, params=params).json()
            return [event["sentence"] for event in page["events"]], page

        _, whole = told()
        ids = [event["id"] for event in whole["events"]]
        assert told(limit=2)[0] == ["0", "1"]
        newest, page = told(limit=2, newest_first=True)
        assert (newest, page["next_after"]) == (["6", "5"], ids[-1])
        assert told(limit=2, newest_first=True, before=ids[5])[0] == ["4", "3"]
        assert told(newest_first=True, after=ids[2], before=ids[5])[0] == ["4", "3"]
        assert told(after=ids[2], before=ids[5])[0] == ["3", "4"]
        assert told(before=0)[0] == told(before=ids[0], newest_first=True)[0] == []
        assert told(after=ids[-1], newest_first=True) == ([], {"events": [], "next_after": ids[-1]})


@pytest.mark.slow
def test_counts_know_of_ones_own_submission_at_once(app, as_):
    app.state.cache = TtlCache(keep_s=1e9)
    waiting = {}
    for who, tenant in (("ada", None), ("bob", None), ("operator", "bob")):
        before = as_(who).get("/jobs").json()["counts"]["waiting"]
        as_(who).post("/jobs", json=job(), params={} if tenant is None else {"tenant": tenant})
        waiting[who] = as_(who).get("/jobs").json()["counts"]["waiting"] - before
    assert waiting == {"ada": 1, "bob": 1, "operator": 1}
    assert as_("bob").get("/jobs").json()["counts"]["waiting"] == 2


@pytest.mark.slow
def test_those_that_ended_last_come_first(as_, service):
    """By when they ended, not by their numbers; a tenant sees its own."""
    numbers = [as_(who).post("/jobs", json=job()).json()["id"] for who in ("ada", "bob", "ada", "ada")]
    for k in (2, 1, 0):
        tick = Tick(events=[EventRow(0, 9.0, kind, numbers[k], (), 1, "x", "y") for kind in ("started", "completed")])
        tick.change(numbers[k], status="completed", ended_s=9.0 - k)
        service.ticks.write(tick)

    def ended(who, **params):
        found = as_(who).get("/jobs/ended", params=params).json()
        assert found["next_cursor"] is None
        return [entry["id"] for entry in found["jobs"]]

    assert ended("operator") == [numbers[0], numbers[1], numbers[2]]
    assert ended("operator", limit=2) == [numbers[0], numbers[1]]
    assert ended("operator", tenant="bob") == ended("bob") == [numbers[1]]
    assert ended("ada") == [numbers[0], numbers[2]]
    assert as_("ada").get("/jobs/ended", params={"tenant": "bob"}).status_code == 403


def test_a_job_that_runs_and_is_held_is_said_to_go_on(as_, service):
    ada = as_("ada")
    number = ada.post("/jobs", json=job()).json()["id"]
    for kind in ("submit", "hold"):
        service.obey()
        if kind == "submit":
            assert ada.post(f"/jobs/{number}/hold").status_code == 202
    listed = next(entry for entry in ada.get("/jobs").json()["jobs"] if entry["id"] == number)
    for told in (ada.get(f"/jobs/{number}/explain").json(), ada.get(f"/jobs/{number}").json(), listed):
        assert (told["reason"], told["sentence"]) == ("held", "it is held until it is released")
    service.run(number, "v-1")
    told = ada.get(f"/jobs/{number}/explain").json()
    assert told["reason"] == "no-room"
    assert told["sentence"].endswith("; it is on hold: it continues, but does not start again until it is released")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "field", "value", "expected"),
    [
        ({"gpu_counts": [-1, 1]}, "gpu_counts", "-1", "whole numbers from 1 to 1024"),
        ({"gpu_counts": [1, 2000]}, "gpu_counts", "2000", "whole numbers from 1 to 1024"),
        ({"gpu_type": "T4", "gpu_types": ["V100"]}, "gpu_type", "T4",
         "one of gpu_types (V100), or only one of the fields gpu_type and gpu_types"),
        ({"version": 3}, "version", "3", "1, the only version"),
        ({"version": True}, "version", "True", "1, the only version"),
    ],
)  # fmt: skip
def test_job_files_that_contradict_themselves(as_, more, field, value, expected):
    done = as_("ada").post("/jobs", json=job(**more)).json()
    assert (done["status"], done["field"], done["value"], done["expected"]) == (422, field, value, expected)


def test_a_type_that_is_asked_for_among_others(as_):
    ada = as_("ada")
    assert ada.post("/jobs", json=job(gpu_type="t4", gpu_types=["V100", "T4"], version=1)).status_code == 201


@pytest.mark.slow
def test_folders_that_only_nodes_of_slurm_may_see(tmp_path):
    service = StandIn(tmp_path, engine="slurm")
    app = make_app(service.context)
    operator, ada = (Caller(app, service.tokens[who]) for who in ("operator", "ada"))
    assert ada.post("/jobs", json=job(snapshots=str(tmp_path / "missing"))).json()["warnings"] == []
    assert operator.post("/jobs?tenant=ada", json=job(snapshots=str(tmp_path))).json()["warnings"] == []
    (told,) = operator.post("/jobs?tenant=ada", json=job(snapshots=str(tmp_path / "missing"))).json()["warnings"]
    assert told.startswith(f"snapshots: {tmp_path}/missing does not exist on the machine of the control plane")
    service.close()


def test_an_operator_is_told_to_name_the_tenant(as_):
    done = as_("operator").post("/jobs", json=job()).json()
    assert done["expected"] == "the job's tenant, as this is an operator's token (--tenant NAME, ?tenant=NAME)"


def test_a_ledger_of_more_than_64_bits_is_told_to_the_last_unit(as_, service):
    mine = as_("ada").post("/jobs", json=job()).json()["id"]
    service.obey()
    much = 2**70 + 1
    service.run(mine, "v-1", energy_uj=much, cost_n=-much, carbon_ug=much, gpu_us=much)
    answer = as_("operator").get("/ledger")
    assert f'"energy_uj":{much},' in answer.text
    (row,) = LedgerPage.model_validate_json(answer.content).ledger
    assert (row.energy_uj, row.cost_n, row.carbon_ug, row.gpu_us) == (much, -much, much, much)
    assert as_("ada").get(f"/jobs/{mine}").json()["energy_j"] == pytest.approx(much * 1e-6)
    assert as_("operator").get("/tenants").json()["tenants"][0]["energy_j"] == pytest.approx(much * 1e-6)
