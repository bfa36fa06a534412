"""Limits of tenants at submission: tardiness weights, due dates, queued jobs; each refusal says what frees room."""

from __future__ import annotations

import threading

import pytest

from commonwatt.controlplane.identity import broken_promises
from commonwatt.controlplane.jobs import JobMaker
from commonwatt.model.errors import QuotaError
from commonwatt.model.job_file import JobFile
from commonwatt.model.live import LiveSpec, TenantLimits
from commonwatt.model.nodes import Cluster
from commonwatt.model.scenario import Scenario
from commonwatt.service.app import make_app
from tests.service.conftest import Caller
from tests.service.made import NODES, StandIn, job


@pytest.fixture
def limited(tmp_path):
    """Make a service with limits; returns a caller by name."""
    made: list[StandIn] = []

    def make(**live) -> StandIn:
        made.append(StandIn(tmp_path, **live))
        return made[-1]

    yield make
    for service in made:
        service.close()


def callers(service: StandIn):
    app = make_app(service.context)
    return lambda who: Caller(app, service.tokens[who])


def test_a_weight_above_the_cap_is_refused(limited):
    as_ = callers(limited(limits={"tardiness_weight": 0.01}, tenant_limits={"bob": {"tardiness_weight": 1.0}}))
    refused = as_("ada").post("/jobs", json=job(tardiness_weight=1e9, due_in_s=60)).json()
    assert (refused["status"], refused["field"]) == (422, "tardiness_weight")
    assert "at most 0.01" in refused["expected"]
    assert as_("ada").post("/jobs", json=job(tardiness_weight=0.01, due_in_s=60)).status_code == 201
    assert as_("bob").post("/jobs", json=job(tardiness_weight=1.0, due_in_s=60)).status_code == 201


def test_tenants_of_an_account_share_its_queue(limited):
    lab = {"tenants": ["ada", "bob"], "queued_jobs": 3, "gpus": 1}
    as_ = callers(limited(tenant_limits={"ada": {"queued_jobs": 2}}, accounts={"lab": lab}))
    answers = [as_(who).post("/jobs", json=job()) for who in ("ada", "ada", "ada", "bob", "bob")]
    assert [answer.status_code for answer in answers] == [201, 201, 403, 201, 403]
    assert "tenant ada has 2 queued jobs and may have 2" in answers[2].text
    assert "account lab has 3 queued jobs and may have 3" in answers[4].text


@pytest.mark.parametrize(("own", "most"), [(None, (4, "account lab")), (2, (2, "tenant ada")), (8, (4, "account lab"))])
def test_a_refusal_names_whose_limit_of_gpus_it_is(limited, own, most):
    accounts = {"lab": {"tenants": ["ada", "bob"], "gpus": 4}, "site": {"tenants": ["ada", "eve"], "gpus": 9}}
    service = limited(limits={"gpus": own}, accounts=accounts)
    assert service.context.maker.most_gpus("ada") == most
    refused = callers(service)("ada").post("/jobs", json=job(gpus=8)).json()
    assert (refused["status"], refused["reason"], refused["field"]) == (403, "quota", "gpus")
    assert f"jobs of {most[1]} may use {most[0]} GPUs at once" in str(refused)


@pytest.mark.slow
def test_thirty_urgent_jobs_share_one_budget(limited):
    service = limited(limits={"tardiness_weight": 1.0, "tardiness_budget": 0.3})
    ada = callers(service)("ada")
    answers = [ada.post("/jobs", json=job(tardiness_weight=0.1, due_in_s=60)) for _ in range(30)]
    assert [answer.status_code for answer in answers] == [201] * 3 + [403] * 27
    refused = answers[3].json()
    assert (refused["reason"], refused["field"], refused["value"]) == ("budget", "tardiness_budget", "0.4")
    assert refused["frees"] == "one of its queued or running jobs ends, or is cancelled"
    assert ada.post("/jobs", json=job()).status_code == 201  # without urgency there is no end
    assert callers(service)("bob").post("/jobs", json=job(tardiness_weight=0.3)).status_code == 201
    ada.post(f"/jobs/{answers[0].json()['id']}/cancel")
    service.obey()
    assert ada.post("/jobs", json=job(tardiness_weight=0.1)).status_code == 201


def test_submissions_at_the_same_time_do_not_exceed_a_limit_together(limited):
    service = limited(limits={"queued_jobs": 5, "tardiness_budget": 0.3})
    limits, done = service.config.live.limits, []

    def submit() -> None:
        for _ in range(5):
            try:
                file = JobFile.model_validate(job(tardiness_weight=0.1))
                done.append(service.store.submit("ada", file, 1.0, limits=limits))
            except QuotaError as error:
                done.append(error)

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([one for one in done if not isinstance(one, QuotaError)]) == 3
    assert len(service.store.jobs()) == 3


def test_queued_jobs_are_limited_and_running_ones_are_not_counted(limited):
    service = limited(limits={"queued_jobs": 2})
    ada = callers(service)("ada")
    first = [ada.post("/jobs", json=job()).json()["id"] for _ in range(2)]
    refused = ada.post("/jobs", json=job())
    assert refused.status_code == 403
    assert (refused.json()["reason"], refused.json()["frees"]) == ("quota", "one of them starts, or is cancelled")
    again = {"Idempotency-Key": "k"}
    service.run(first[0], "v-1")
    assert ada.post("/jobs", json=job(), headers=again).status_code == 201
    assert ada.post("/jobs", json=job(), headers=again).status_code == 200  # accepted before: no new one


def test_what_was_accepted_before_there_were_limits_counts_with_the_cap_and_the_floor(limited):
    service = limited()
    row, _ = service.store.submit("ada", JobFile.model_validate(job(tardiness_weight=1e9)), 1000.0, due_s=1001.0)
    live = LiveSpec(limits=TenantLimits(tardiness_weight=0.5, due_after_s=3600.0))
    maker = JobMaker(Cluster.of(service.config.nodes), 60.0, live.limits_of)
    made = maker.make(row, maker.check(row.file))
    assert (made.tardiness_weight, made.due_s) == (0.5, 4600.0)
    maker = JobMaker(Cluster.of(service.config.nodes), 60.0)
    made = maker.make(row, maker.check(row.file))
    assert (made.tardiness_weight, made.due_s) == (1e9, 1001.0)


def test_a_due_date_sooner_than_the_floor_is_said_to_count_later(limited):
    ada = callers(limited(limits={"due_after_s": 3600.0}))("ada")
    answer = ada.post("/jobs", json=job(tardiness_weight=1.0, due_in_s=60)).json()
    assert answer["warnings"] == ["no job of tenant ada counts as due sooner than 3600 s after its submission"]
    assert answer["due_s"] - answer["submit_s"] == 60.0  # as it was given
    assert ada.post("/jobs", json=job(tardiness_weight=1.0, due_in_s=7200)).json()["warnings"] == []


@pytest.mark.parametrize(
    ("solver", "weights", "limits", "said"),
    [
        ("random-greedy", {"a": 2.0, "b": 1.0}, {"tardiness_weight": 1.0}, ["weights"]),
        ("fair-share", {"a": 2.0, "b": 1.0}, {"tardiness_weight": 1.0}, []),
        ("random-greedy", {"a": 1.0, "b": 1.0}, {"tardiness_weight": 1.0}, []),
        ("random-greedy", {"a": 1.0, "b": 1.0}, {}, ["urgency"]),
        ("random-greedy", {"a": 1.0}, {}, []),
    ],
)  # fmt: skip
def test_promises_that_nothing_keeps_are_said(solver, weights, limits, said):
    document = {"engine": "simulated", "nodes": NODES, "policies": [{"solver": solver}], "live": {"limits": limits}}
    assert [line.what for line in broken_promises(Scenario.model_validate(document), weights)] == said


@pytest.mark.parametrize(("engine", "said"), [("kubernetes", ["files"]), ("local", []), ("slurm", [])])
def test_a_limit_of_files_that_an_engine_cannot_keep_is_said(engine, said):
    document = {"engine": engine, "nodes": NODES, "live": {"files_gb": 1.0}}
    assert [line.what for line in broken_promises(Scenario.model_validate(document), {"a": 1.0})] == said


@pytest.mark.parametrize(
    ("engine", "live", "said"),
    [
        ("kubernetes", {"kubernetes": {"jobs": {"team": ["ada", "bop"]}}}, "live.kubernetes.jobs"),
        ("simulated", {"accounts": {"lab": {"tenants": ["ada", "bop"]}}}, "live.accounts.lab.tenants"),
        ("simulated", {"tenant_limits": {"bop": {"gpus": 1}, "ada": {"gpus": 1}}}, "live.tenant_limits"),
        ("local", {"local": {"users": {"ada": "root", "bob": "daemon", "bop": "bin"}}}, "live.local.users"),
    ],
)
def test_a_tenant_that_does_not_exist_is_said_where_it_is_named(engine, live, said):
    document = {"engine": engine, "nodes": NODES, "policies": [{"solver": "fair-share"}], "live": live}
    lines = list(broken_promises(Scenario.model_validate(document), {"ada": 1.0, "bob": 1.0}))
    assert [line.found for line in lines if line.what == "tenants"] == [f"{said} names tenants that do not exist: bop"]


@pytest.mark.slow
def test_no_entitlement_is_shown_where_none_is_enforced(limited):
    service = limited()
    (ada,) = callers(service)("ada").get("/tenants").json()["tenants"]
    assert ada["entitlement"] is None
    fair = Scenario.model_validate({"engine": "local", "nodes": NODES, "policies": [{"solver": "fair-share"}]})
    object.__setattr__(service.context, "config", fair)
    (ada,) = callers(service)("ada").get("/tenants").json()["tenants"]
    assert ada["entitlement"] == 0.5
