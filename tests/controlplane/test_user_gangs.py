"""JobSets and PyTorchJobs of users, taken over by the whole control plane: on a real Kubernetes.

A stand-in takes the part of their controllers (``tests/engines/kubernetes/gangs.py``).
"""

from __future__ import annotations

import time

import pytest
import yaml

pytest.importorskip("sqlalchemy")

from commonwatt.engines.kubernetes.api import path_of
from commonwatt.store.records import RequestKind
from tests.cli import console
from tests.engines.kubernetes.gangs import (
    SCHEMAS,
    condition,
    gangs_on,
    jobset,
    made,
    owner_of,
    path_at,
    pod_spec,
    pytorchjob,
    suspended,
)
from tests.engines.kubernetes.site import USERS, until

from .chaos import controller, kill, ledger_problems, running, store_of
from .test_over_kubernetes import config_over
from .test_user_jobs import RUN_TIME, command, ended, lines, of, told, without_preemption

pytestmark = pytest.mark.long


@pytest.fixture
def gangs(kube):
    with gangs_on(kube) as found:
        yield found


@pytest.fixture
def plane(gangs, kube, tmp_path):
    path = config_over(kube, tmp_path, jobs={USERS: ["a", "b"]}, job_kinds=["Job", "JobSet", "PyTorchJob"])
    return path, store_of(path, tenants="ab")


def now(kube, item):
    return kube.admin.get(path_at(item["kind"], item["metadata"]["name"]))


def noted(kube, item):
    return now(kube, item)["metadata"].get("annotations") or {}


def is_suspended(kube, item):
    return suspended(item["kind"], now(kube, item))


def pods_of(kube, item):
    """Pods of a gang, those that its Jobs have made included."""
    uid = item["metadata"]["uid"]
    jobs = {job["metadata"]["uid"] for job in kube.jobs() if owner_of(job).get("uid") == uid}
    return [pod for pod in kube.pods() if owner_of(pod).get("uid") in {uid, *jobs}]


def bound(kube, item):
    return sorted(pod["spec"]["nodeName"] for pod in pods_of(kube, item) if pod["spec"].get("nodeName"))


def gang(kind, name, *work, gpus=2, pods=2, **more):
    """A gang of so many pods with GPUs, of either kind."""
    if kind == "JobSet":
        return jobset(name, ("workers", pods, 1, pod_spec(work, gpus)), **more)
    return pytorchjob(name, Master=(1, pod_spec(work, gpus)), Worker=(pods - 1, pod_spec(work, gpus)), **more)


def script(folder, name, seconds=0.5, code=0):
    """Of a pod that writes down that it began and ended."""
    log = folder / f"{name}.log"
    return "sh", "-c", f"echo begin >> {log}; sleep {seconds}; echo end >> {log}; exit {code}"


@pytest.mark.parametrize("kind", SCHEMAS)
def test_one_is_suspended_placed_whole_and_complete_when_it_says_so(plane, kube, tmp_path, kind):
    path, store = plane
    item = made(kube.admin, gang(kind, "train", *script(tmp_path, "train"), notes={RUN_TIME: "0:30"}))
    assert not suspended(kind, item)
    with running(path):
        row = ended(store, item)
        assert (row.status, row.tenant, row.file.gpus, row.file.nodes) == ("completed", "a", 4, 2)
        assert row.file.times_s == {"V100": {4: 30.0}}
        until(lambda: "Completed" in told(kube, item))
        assert {"Accepted", "Started"} <= told(kube, item).keys()
        until(lambda: noted(kube, item).get("commonwatt.io/status") == "completed")
        assert noted(kube, item)["commonwatt.io/cost"].endswith(" EUR")
    assert bound(kube, item) == ["gpu-0", "gpu-1"]
    assert condition(now(kube, item), "Completed" if kind == "JobSet" else "Succeeded")
    assert lines(tmp_path, "train") == ["begin", "begin", "end", "end"]
    assert ledger_problems(store) == []


@pytest.mark.parametrize("kind", SCHEMAS)
def test_one_that_had_pods_is_resumed_only_after_its_controller_has_deleted_them(plane, gangs, kube, tmp_path, kind):
    path, store = plane
    item = made(kube.admin, gang(kind, "train", *script(tmp_path, "train")))
    until(lambda: len(pods_of(kube, item)) == 2)
    gangs.controllers.paused = True
    with running(path):
        until(lambda: "has yet to delete pods" in (noted(kube, item).get("commonwatt.io/reason") or ""))
        assert is_suspended(kube, item)
        assert bound(kube, item) == []
        gangs.controllers.paused = False
        row = ended(store, item)
        assert (row.status, row.attempts) == ("completed", 1)
    assert lines(tmp_path, "train") == ["begin", "begin", "end", "end"]
    assert ledger_problems(store) == []


@pytest.mark.parametrize("kind", SCHEMAS)
def test_one_that_does_not_fit_as_a_whole_stays_suspended_and_says_why(plane, kube, tmp_path, kind):
    path, store = plane
    without_preemption(path)
    other = kube.run("other", "gpu-1")
    item = made(kube.admin, gang(kind, "train", *script(tmp_path, "train"), notes={RUN_TIME: "1:00"}))
    with running(path):
        until(lambda: is_suspended(kube, item) and not pods_of(kube, item))
        until(lambda: noted(kube, item).get("commonwatt.io/status") == "waiting")
        until(lambda: noted(kube, item).get("commonwatt.io/reason"))
        small = made(kube.admin, gang(kind, "small", *script(tmp_path, "small"), pods=2, gpus=1))
        assert ended(store, small).status == "completed"
        assert lines(tmp_path, "train") == []
        assert pods_of(kube, item) == []
        kube.remove(other)
        assert ended(store, item).status == "completed"
    assert ledger_problems(store) == []


def test_pods_share_nodes_and_those_without_gpus_are_left_to_kubernetes(plane, kube, tmp_path):
    path, store = plane
    driver = ("driver", 1, 1, pod_spec(script(tmp_path, "driver", 2.0), 0))
    workers = ("workers", 2, 2, pod_spec(script(tmp_path, "workers", 0.2), 1))
    item = made(kube.admin, jobset("train", driver, workers, suspend=True))
    with running(path):
        until(lambda: lines(tmp_path, "workers").count("end") == 4)
        assert of(store, item).status == "running"  # its driver goes on
        row = ended(store, item)
        assert (row.status, row.file.gpus, row.file.nodes, row.attempts) == ("completed", 4, 2, 1)
    placed = [pod for pod in pods_of(kube, item) if "commonwatt.io/rank" in (pod["metadata"].get("annotations") or {})]
    assert sorted(pod["spec"]["nodeName"] for pod in placed) == ["gpu-0", "gpu-0", "gpu-1", "gpu-1"]
    assert lines(tmp_path, "driver") == ["begin", "end"]
    assert ledger_problems(store) == []


@pytest.mark.parametrize("kind", SCHEMAS)
def test_one_cancelled_here_is_suspended_and_stays(plane, kube, tmp_path, kind):
    path, store = plane
    item = made(kube.admin, gang(kind, "train", *script(tmp_path, "train", 300)))
    with running(path):
        until(lambda: lines(tmp_path, "train") == ["begin", "begin"])
        assert not is_suspended(kube, item)
        store.ask(RequestKind.CANCEL, time.time(), job=of(store, item).id)
        assert ended(store, item).status == "cancelled"
        until(lambda: is_suspended(kube, item) and not pods_of(kube, item))
        until(lambda: noted(kube, item).get("commonwatt.io/status") == "cancelled")
    with running(path):  # which does not submit it again
        probe = made(kube.admin, gang(kind, "probe", "true"))
        ended(store, probe)
    assert len(store.jobs(limit=100)) == 2
    assert is_suspended(kube, item)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_one_deleted_is_cancelled(plane, kube, tmp_path, kind):
    path, store = plane
    item = made(kube.admin, gang(kind, "train", *script(tmp_path, "train", 300)))
    with running(path):
        until(lambda: lines(tmp_path, "train") == ["begin", "begin"])
        kube.admin.delete(path_at(kind, "train"), item["metadata"]["uid"])
        assert ended(store, item).status == "cancelled"
        until(lambda: not pods_of(kube, item))
        again = made(kube.admin, gang(kind, "train", "true"))  # another one of its name
        assert ended(store, again).status == "completed"
    assert len(store.jobs(limit=100)) == 2


@pytest.mark.parametrize("kind", SCHEMAS)
def test_one_fails_as_its_condition_says(plane, kube, tmp_path, kind):
    path, store = plane
    item = made(kube.admin, gang(kind, "train", *script(tmp_path, "train", 0.1, 3)))
    with running(path):
        row = ended(store, item)
        assert row.status == "failed"
        assert f"its {kind} has failed: " in row.sentence
        until(lambda: "Failed" in told(kube, item))
    assert ledger_problems(store) == []


def test_one_that_its_controller_restarts_is_placed_anew_as_a_whole(plane, kube, tmp_path):
    path, store = plane
    once = f"echo begin >> {tmp_path}/train.log; mkdir {tmp_path}/once && {{ sleep 1; exit 5; }}; sleep 2"
    body = gang("JobSet", "train", "sh", "-c", once)
    body["spec"]["failurePolicy"] = {"maxRestarts": 2}
    item = made(kube.admin, body)
    with running(path):
        row = ended(store, item)
        assert (row.status, row.attempts) == ("completed", 2)
    assert lines(tmp_path, "train").count("begin") == 4
    assert ledger_problems(store) == []


@pytest.mark.parametrize("kind", SCHEMAS)
def test_one_that_somebody_resumes_before_its_turn_is_suspended_again_and_does_not_run(plane, kube, tmp_path, kind):
    path, store = plane
    without_preemption(path)
    kube.run("other", "gpu-1")
    item = made(kube.admin, gang(kind, "train", *script(tmp_path, "train")))
    with running(path):
        until(lambda: is_suspended(kube, item) and of(store, item))
        change = {"suspend": False} if kind == "JobSet" else {"runPolicy": {"suspend": False}}
        version = kube.admin.merge(path_at(kind, "train"), {"spec": change})["metadata"]["generation"]
        until(lambda: is_suspended(kube, item) and now(kube, item)["metadata"]["generation"] > version)
        until(lambda: not pods_of(kube, item))
        assert of(store, item).status == "waiting"
    assert lines(tmp_path, "train") == []


@pytest.mark.parametrize("kind", SCHEMAS)
def test_one_whose_definition_loses_the_field_is_refused_and_none_of_its_pods_placed(
    plane, gangs, kube, tmp_path, kind
):
    path, store = plane
    gangs.prune(kind, *(("suspend",) if kind == "JobSet" else ("runPolicy", "suspend")))
    item = made(kube.admin, gang(kind, "train", *script(tmp_path, "train")))
    with running(path):
        said = until(lambda: told(kube, item).get("NotTakenOver"))
        assert "suspend': got 'true', expected a field that the server keeps" in said
        assert len(until(lambda: pods_of(kube, item))) == 2
        probe = kube.user_job("probe", *command(tmp_path, "probe", 0.1))
        assert ended(store, probe).status == "completed"
        assert bound(kube, item) == []
        gangs.define(kind)  # a newer one
        assert ended(store, item).status == "completed"


def test_one_that_others_would_place_is_suspended_and_refused(plane, kube, tmp_path):
    path, store = plane
    pod = pod_spec(script(tmp_path, "theirs"), 1, schedulerName="default-scheduler")
    item = made(kube.admin, jobset("theirs", ("workers", 1, 1, pod), suspend=True))
    queue = {"commonwatt.io/tenant": "a", "kueue.x-k8s.io/queue-name": "q"}
    kueue = made(kube.admin, gang("PyTorchJob", "kueue", "true", labels=queue, policy={"suspend": True}))
    with running(path):
        said = until(lambda: told(kube, item).get("NotTakenOver"))
        assert "spec.replicatedJobs[workers].template.spec.template.spec.schedulerName" in said
        probe = kube.user_job("probe", *command(tmp_path, "probe", 0.1))
        assert ended(store, probe).status == "completed"
    assert is_suspended(kube, item)
    assert is_suspended(kube, kueue)
    assert told(kube, kueue) == {}
    assert len(store.jobs(limit=100)) == 1


def test_the_controller_is_killed_again_and_again_and_each_gang_runs_once(plane, kube, tmp_path):
    path, store = plane
    without_preemption(path)
    items = {}
    for k, kind in enumerate([*SCHEMAS, *SCHEMAS]):
        child = controller(path)
        try:
            name = f"g{k}"
            items[name] = made(kube.admin, gang(kind, name, *script(tmp_path, name, 0.5 + k), gpus=1))
            time.sleep(1.0 + 0.5 * k)
        finally:
            kill(child)
    with running(path):
        rows = {name: ended(store, item) for name, item in items.items()}
    assert {row.status for row in rows.values()} == {"completed"}
    assert len(store.jobs(limit=100)) == len(items)
    for name, row in rows.items():
        said = [event.sentence for event in store.events(job=row.id) if event.kind == "interrupted"]
        if row.attempts == 1:
            assert sorted(lines(tmp_path, name)) == ["begin", "begin", "end", "end"], said
        else:  # its controller deleted, late, a pod that it had made before the gang was suspended
            assert set(lines(tmp_path, name)) == {"begin", "end"}, said  # never two at once
            assert lines(tmp_path, name).count("end") == 2, said
            assert said
            assert all("deleted" in sentence for sentence in said), said
    assert ledger_problems(store) == []


def test_check_says_which_rights_and_definitions_are_missing(kube, gangs, tmp_path):
    path = config_over(kube, tmp_path, jobs={USERS: ["a"], "team-b": ["b"]}, job_kinds=["JobSet", "PyTorchJob"])
    store_of(path, tenants="ab")

    def found():
        document = console.run("check", path, "--json").document
        return [(line["verdict"], line["found"]) for line in document["checks"] if line["what"] == "users' jobs"]

    first, second = found()
    assert first == ("ok", f"JobSets, PyTorchJobs of namespace {USERS} are taken over for a")
    assert second[0] == "failed"
    assert "patch jobsets, list pytorchjobs, watch pytorchjobs, patch pytorchjobs" in second[1]
    gangs.undefine("PyTorchJob")
    assert found()[0] == ("failed", "the API server does not know PyTorchJob")
    gangs.define("PyTorchJob")


def test_an_api_of_gangs_that_is_down_is_no_outage(plane, kube, tmp_path):
    path, store = plane
    config = yaml.safe_load(path.read_text())
    config["live"]["kubernetes"]["job_kinds"] = ["JobSet", "Job", "PyTorchJob"]  # in whatever order
    path.write_text(yaml.safe_dump(config))
    apis = path_of("apiservices", group="apiregistration.k8s.io/v1")
    api = next(item for item in kube.admin.get(apis)["items"] if "jobset" in item["metadata"]["name"])
    name, service = api["metadata"]["name"], api["spec"]["service"]
    item = made(kube.admin, gang("JobSet", "train", *script(tmp_path, "train", 300), gpus=1))
    child = controller(path)
    try:
        until(lambda: lines(tmp_path, "train") == ["begin", "begin"])
        kill(child)
        kube.admin.merge(f"{apis}/{name}", {"spec": {"service": {**service, "port": 9}}})
        try:
            child = controller(path)
            job = kube.user_job("other", *command(tmp_path, "other", 0.2))
            assert ended(store, job).status == "completed"
            gone = kube.user_job("gone", "sleep", "300")
            until(lambda: (row := of(store, gone)) and row.status == "running")
            kube.remove_job(gone)
            assert ended(store, gone).status == "cancelled"
            assert of(store, item).status == "running"
        finally:
            kube.admin.merge(f"{apis}/{name}", {"spec": {"service": service}})
        store.ask(RequestKind.CANCEL, time.time(), job=of(store, item).id)
        assert ended(store, item).status == "cancelled"
        assert of(store, item).attempts == 1
    finally:
        kill(child)
