"""Jobs that users create in Kubernetes, taken over by the whole control plane: on a real Kubernetes."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

import numpy as np
import pytest
import yaml

pytest.importorskip("sqlalchemy")

from commonwatt.engines.kubernetes.api import path_of
from commonwatt.model.errors import EngineError
from commonwatt.store.records import ACTIVE, RequestKind
from tests.cli import console
from tests.engines.kubernetes.site import USERS, until

from .chaos import ROUNDS, controller, kill, ledger_problems, running, store_of, witness
from .test_over_kubernetes import config_over

pytestmark = pytest.mark.long

RUN_TIME = "commonwatt.io/run-time"
WITNESS = (
    "import fcntl, os, sys, time\n"
    "log = open(sys.argv[1] + '.log', 'a', 1); lock = open(sys.argv[1] + '.lock', 'a')\n"
    "try: fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
    "except BlockingIOError: log.write('twice\\n'); sys.exit(9)\n"
    "log.write('begin\\n'); time.sleep(float(sys.argv[2])); log.write('end\\n'); sys.exit(int(sys.argv[3]))\n"
)


def command(folder, name, seconds, code=0):
    """Of a container that notices if it runs twice."""
    return sys.executable, "-I", "-c", WITNESS, str(folder / name), str(seconds), str(code)


def lines(folder, name):
    path = folder / f"{name}.log"
    return path.read_text().split() if path.exists() else []


@pytest.fixture
def plane(kube, tmp_path):
    path = config_over(kube, tmp_path, jobs={USERS: ["a", "b"]})
    return path, store_of(path, tenants="abc")


def of(store, job):
    """The row of a Job of Kubernetes."""
    uid = job["metadata"]["uid"]
    return next((row for row in store.jobs(limit=1000) if row.file.workload and row.file.workload.uid == uid), None)


def ended(store, job):
    return until(lambda: (row := of(store, job)) and row.status not in ACTIVE and row)


def without_preemption(path):
    config = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(config | {"preemption": {"allowed": False}}))


def noted(kube, name):
    return kube.job(name)["metadata"].get("annotations") or {}


def condition(kube, name, kind):
    conditions = kube.job(name).get("status", {}).get("conditions") or ()
    return any(c["type"] == kind and c["status"] == "True" for c in conditions)


def test_a_users_job_is_taken_over_placed_and_ends_as_its_pod_does(plane, kube, tmp_path):
    path, store = plane
    notes = {"commonwatt.io/run-time": "0:30", "commonwatt.io/due": "2036-01-01T00:00", "commonwatt.io/kind": "cnn"}
    good = kube.user_job("good", *command(tmp_path, "good", 0.5), gpus=2, notes=notes)
    bad = kube.user_job("bad", *command(tmp_path, "bad", 0.2, 3), backoffLimit=0, labels={"commonwatt.io/tenant": "b"})
    with running(path):
        row = ended(store, good)
        assert (row.status, row.tenant, row.file.gpus, row.file.kind) == ("completed", "a", 2, "cnn")
        assert row.file.times_s == {"V100": {2: 30.0}}
        assert row.due_s is not None
        row = ended(store, bad)
        assert (row.status, row.tenant) == ("failed", "b")
        assert "BackoffLimitExceeded" in row.sentence
        assert "exit code 3" in row.sentence
    until(lambda: condition(kube, "good", "Complete"))
    assert lines(tmp_path, "good") == ["begin", "end"]
    assert lines(tmp_path, "bad") == ["begin", "end"]
    assert ledger_problems(store) == []


def test_a_priority_class_of_the_site_is_a_weight_and_a_due_date(kube, tmp_path):
    classes = {"urgent": {"tardiness_weight": 0.5, "due_in_s": 900}}
    path = config_over(kube, tmp_path, jobs={USERS: ["a"]}, priority_classes=classes)
    store = store_of(path, tenants="a")
    kinds = path_of("priorityclasses", group="scheduling.k8s.io/v1")
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 10}
    with suppress(EngineError):  # it is there from another test
        kube.admin.create(kinds, body)
    urgent = kube.user_job("urgent", *command(tmp_path, "urgent", 0.2), pod={"priorityClassName": "urgent"})
    plain = kube.user_job("plain", *command(tmp_path, "plain", 0.2))
    with running(path):
        row = ended(store, urgent)
        assert (row.status, row.file.tardiness_weight, row.due_s) == ("completed", 0.5, row.submit_s + 900)
        row = ended(store, plain)
        assert (row.status, row.file.tardiness_weight, row.due_s) == ("completed", 0.0, None)
    assert lines(tmp_path, "urgent") == ["begin", "end"]


def test_the_controller_is_killed_again_and_again_and_each_job_is_one_job_and_runs_once(plane, kube, tmp_path):
    path, store = plane
    without_preemption(path)
    rng = np.random.default_rng(3)
    jobs = {}
    for k in range(3):
        child = controller(path)
        try:
            name = f"j{k}"
            jobs[name] = kube.user_job(name, *command(tmp_path, name, float(rng.uniform(0.2, 2.0))), gpus=1 + k % 2)
            time.sleep(float(rng.uniform(0.5, 3.0)))
            if k == 2:
                kube.end("kube-apiserver")
        finally:
            kill(child)
    kube.begin("kube-apiserver")
    with running(path):
        rows = {name: ended(store, job) for name, job in jobs.items()}
    assert {row.status for row in rows.values()} == {"completed"}
    assert len(store.jobs(limit=100)) == len(jobs)
    for name, job in jobs.items():
        assert lines(tmp_path, name) == ["begin", "end"]
        assert len(kube.pods_of(job)) == 1
        kinds = [event.kind for event in store.events(job=rows[name].id)]
        assert kinds.count("submitted") == kinds.count("completed") == 1
    assert ledger_problems(store) == []


def test_one_deleted_is_cancelled_and_one_of_its_name_is_another_job(plane, kube, tmp_path):
    path, store = plane
    first = kube.user_job("same", *command(tmp_path, "first", 300), gpus=2)
    with running(path):
        until(lambda: lines(tmp_path, "first") == ["begin"])
        kube.remove_job(first)
        until(lambda: not kube.jobs())
        second = kube.user_job("same", *command(tmp_path, "second", 0.2), gpus=2)
        assert ended(store, first).status == "cancelled"
        assert ended(store, second).status == "completed"
        assert of(store, first).id != of(store, second).id
    away = kube.user_job("away", *command(tmp_path, "away", 300), gpus=2)
    with running(path):
        until(lambda: lines(tmp_path, "away") == ["begin"])
    kube.remove_job(away)  # while no controller runs
    until(lambda: not kube.pods_of(away))
    with running(path):
        assert ended(store, away).status == "cancelled"
        left = kube.user_job("left", *command(tmp_path, "left", 300))
        until(lambda: lines(tmp_path, "left") == ["begin"])
    with running(config_over(kube, tmp_path)):  # which names no namespace of users any more
        assert ended(store, left).status == "cancelled"
        placed = [pod for pod in kube.pods_of(left) if pod["spec"].get("nodeName")]
        assert all("deletionTimestamp" in pod["metadata"] for pod in placed)
    assert lines(tmp_path, "first") == lines(tmp_path, "away") == ["begin"]


def test_one_cancelled_here_stays_in_kubernetes_and_makes_no_more_pods(plane, kube, tmp_path):
    path, store = plane
    waits = kube.user_job("waits", *command(tmp_path, "waits", 0.1), gpus=2, pods=2)
    runs = kube.user_job("runs", *command(tmp_path, "runs", 300), gpus=2)
    with running(path):
        until(lambda: of(store, waits) and of(store, runs))
        for job in (waits, runs):
            store.ask(RequestKind.CANCEL, time.time(), job=of(store, job).id)
        for job in (waits, runs):
            assert ended(store, job).status == "cancelled"
        until(lambda: {job["spec"]["parallelism"] for job in kube.jobs()} == {0} and not kube.pods())
    with running(path):  # which does not submit it again
        probe = kube.user_job("probe", *command(tmp_path, "probe", 0.1))
        ended(store, probe)
    assert len(store.jobs(limit=100)) == 3
    assert "end" not in lines(tmp_path, "runs") + lines(tmp_path, "waits")


def test_kubernetes_tries_again_and_a_gang_starts_all_at_once(plane, kube, tmp_path):
    path, store = plane
    script = f"test -e {tmp_path}/once && exit 0; touch {tmp_path}/once; exit 5"
    again = kube.user_job("again", "sh", "-c", script, backoffLimit=3)
    gang = kube.user_job("gang", "sh", "-c", f"echo >> {tmp_path}/gang; sleep 1", gpus=2, pods=2)
    with running(path):
        row = ended(store, gang)
        assert (row.status, row.file.nodes, row.file.gpus) == ("completed", 2, 4)
        assert (tmp_path / "gang").read_text() == "\n\n"
        assert len({pod["spec"]["nodeName"] for pod in kube.pods_of(gang)}) == 2
        row = ended(store, again)
        assert (row.status, row.attempts) == ("completed", 2)
        assert any("tries again" in event.sentence for event in store.events(job=row.id))
    assert ledger_problems(store) == []


def test_those_of_others_are_left_alone_and_those_that_cannot_be_taken_over_are_not(plane, kube, tmp_path):
    path, store = plane
    others = {"schedulerName": "default-scheduler"}
    kueue = {"commonwatt.io/tenant": "a", "kueue.x-k8s.io/queue-name": "q"}
    kube.user_job("kueue", "true", labels=kueue)
    kube.user_job("theirs", "true", pod=others)
    kube.user_job("stranger", "true", labels={"commonwatt.io/tenant": "c"})
    kube.user_job("odd", "true", notes={"commonwatt.io/run-time": "soon"})
    kube.user_job("queue", "true", completions=5)
    kube.user_job("plain", "true", labels={"app": "x"})
    with running(path):
        own = kube.user_job("own", *command(tmp_path, "own", 0.1))
        assert ended(store, own).status == "completed"
        until(lambda: condition(kube, "theirs", "Complete"))  # Kubernetes placed it, and did not keep `suspend`
    assert [row.name for row in store.jobs(limit=100)] == ["own"]
    waiting = {pod["metadata"]["labels"]["job-name"] for pod in kube.pods() if not pod["spec"].get("nodeName")}
    assert waiting == {"kueue", "stranger", "odd", "queue", "plain"}


def test_a_pod_deleted_or_evicted_is_made_and_placed_again_and_ours_are_beside_it(plane, kube, tmp_path):
    path, store = plane
    job = kube.user_job("moved", *command(tmp_path, "moved", 4), gpus=1)
    with running(path):
        until(lambda: lines(tmp_path, "moved") == ["begin"])
        beside = store.submit("a", witness("beside", tmp_path, 0.5, gpus=2), time.time())[0].id
        (pod,) = kube.pods_of(job)
        kube.remove(pod)
        row = ended(store, job)
        until(lambda: store.job(beside).status == "completed")
    assert (row.status, row.attempts) == ("completed", 2)
    assert lines(tmp_path, "moved") == ["begin", "begin", "end"]
    assert ledger_problems(store) == []


def told(kube, about):
    """Reasons and messages of the Events about an object."""
    meta = about["metadata"]
    events = kube.admin.get(path_of("events", meta["namespace"]))["items"]
    return {
        event["reason"]: event["message"]
        for event in events
        if event["involvedObject"].get("uid") == meta["uid"] and event["source"].get("component") == "commonwatt"
    }


def test_kubernetes_itself_says_why_a_job_waits_when_it_starts_and_what_it_cost(plane, kube, tmp_path):
    path, store = plane
    without_preemption(path)
    first = kube.user_job("first", "sleep", "300", gpus=2, pods=2, notes={RUN_TIME: "10:00"})
    first_uid = first["metadata"]["uid"]
    with running(path):
        until(lambda: (row := of(store, first)) and row.status == "running")
        waits = kube.user_job("waits", *command(tmp_path, "waits", 300), notes={RUN_TIME: "5:00"})
        odd = kube.user_job("odd", "true", notes={RUN_TIME: "soon"})
        notes = until(lambda: (n := noted(kube, "waits")).get("commonwatt.io/expected-start") and n)
        assert notes["commonwatt.io/status"] == "waiting"
        assert notes["commonwatt.io/job"] == str(of(store, waits).id)
        assert notes["commonwatt.io/cost"] == "0 EUR"
        assert "run-time': got 'soon'" in until(lambda: told(kube, odd).get("NotTakenOver"))
        refused = until(lambda: (n := noted(kube, "odd")).get("commonwatt.io/status") and n)
        assert refused["commonwatt.io/status"] == "refused"
        assert "run-time': got 'soon'" in refused["commonwatt.io/reason"]
        until(lambda: {"Accepted", "Started"} <= told(kube, first).keys())
        (pod,) = kube.pods_of(waits)
        until(lambda: "Accepted" in told(kube, pod))
        until(lambda: noted(kube, "first").get("commonwatt.io/status") == "running")
        store.ask(RequestKind.CANCEL, time.time(), job=of(store, first).id)
        until(lambda: noted(kube, "first").get("commonwatt.io/status") == "cancelled")
        assert "commonwatt.io/expected-end" not in noted(kube, "first")
        assert float(noted(kube, "first")["commonwatt.io/cost"].removesuffix(" EUR")) > 0
        until(lambda: "Cancelled" in told(kube, first) and "Started" in told(kube, waits))
        own = store.submit("a", witness("own", tmp_path, 300.0), time.time())[0].id
        (pod,) = until(lambda: [p for p in kube.pods() if p["metadata"]["namespace"] == "commonwatt"])
        assert "no run time is known yet" in until(lambda: told(kube, pod).get("Started"))
        store.ask(RequestKind.CANCEL, time.time(), job=own)
    with running(path):  # tells nothing twice
        probe = kube.user_job("probe", *command(tmp_path, "probe", 0.1))
        until(lambda: "Completed" in told(kube, probe))
    ours = [
        (event["reason"], event["message"])
        for event in kube.admin.get(path_of("events", USERS))["items"]
        if event["source"].get("component") == "commonwatt" and event["involvedObject"]["uid"] == first_uid
    ]
    assert len(ours) >= 3
    assert sorted(set(ours)) == sorted(ours)


@pytest.mark.skipif("COMMONWATT_ROUNDS" not in os.environ, reason="takes its time: COMMONWATT_ROUNDS=100")
def test_users_jobs_end_exactly_once_however_often_parts_are_killed(plane, kube, tmp_path):
    path, store = plane
    without_preemption(path)
    rng = np.random.default_rng(ROUNDS)
    jobs = {}
    child = controller(path)
    try:
        for k in range(ROUNDS):
            for n in range(2):
                name, gpus = f"j{k}-{n}", int(rng.integers(1, 3))
                work = command(tmp_path, name, float(rng.uniform(0.2, 3.0)))
                jobs[name] = until(lambda name=name, work=work, gpus=gpus: made(kube, name, work, gpus))
            time.sleep(float(rng.uniform(0.0, 3.0)))
            part = str(rng.choice(["controller", "controller", "kube-apiserver", "etcd", "kube-controller-manager"]))
            if part == "controller":
                kill(child)
                child = controller(path)
                continue
            kube.end(part)
            time.sleep(float(rng.uniform(0.0, 1.0)))
            kube.begin(part)
        rows = {name: ended(store, job) for name, job in jobs.items()}
    finally:
        kill(child)
    assert {row.status for row in rows.values()} == {"completed"}
    assert len(store.jobs(limit=10_000)) == len(jobs)
    assert {name: lines(tmp_path, name) for name in jobs} == {name: ["begin", "end"] for name in jobs}
    assert ledger_problems(store) == []


def made(kube, name, work, gpus):
    """Create a Job once, whatever is down; returns it when it is there."""
    with suppress(EngineError):
        kube.user_job(name, *work, gpus=gpus)
    with suppress(EngineError):
        return kube.job(name)
    return None


def test_check_asks_for_the_rights_in_each_namespace_of_users(kube, tmp_path):
    path = config_over(kube, tmp_path, jobs={USERS: ["a"], "team-b": ["b"]})
    store_of(path, tenants="ab")
    lines = [line for line in console.run("check", path, "--json").document["checks"] if line["what"] == "users' jobs"]
    assert [line["verdict"] for line in lines] == ["ok", "failed"]
    assert lines[0]["found"] == f"Jobs of namespace {USERS} are taken over for a"
    assert "list jobs, watch jobs, patch jobs, get pods" in lines[1]["found"]


def test_check_says_which_fields_of_pods_the_server_does_not_know_and_which_classes_ask_for_too_much(kube, tmp_path):
    classes = {"urgent": {"tardiness_weight": 2.0}, "batch": {"tardiness_weight": 0.1}}
    path = config_over(
        kube, tmp_path, jobs={USERS: ["a", "b"]}, priority_classes=classes, pod={"toleration": [{"key": "x"}]}
    )
    config = yaml.safe_load(path.read_text())
    config["live"] |= {"limits": {"tardiness_weight": 5.0}, "tenant_limits": {"b": {"tardiness_weight": 1.0}}}
    path.write_text(yaml.safe_dump(config))
    store_of(path, tenants="ab")
    found = {(line["verdict"], line["found"]) for line in console.run("check", path, "--json").document["checks"]}
    said = "the API server does not know toleration of live.kubernetes.pod, and leaves that out"
    assert ("failed", said) in found
    assert ("warning", "priority class urgent stands for more tardiness_weight than b may ask for") in found
    assert not any("priority class batch" in text for _, text in found)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"jobs": {USERS: []}}, "live.kubernetes.jobs.team-a"),
        ({"state": ""}, "live.kubernetes.state"),
        ({"image": "-x"}, "live.kubernetes.image"),
        ({"image": "a b"}, "live.kubernetes.image"),
        ({"priority_classes": {"Urgent": {"tardiness_weight": 1}}}, "live.kubernetes.priority_classes"),
    ],
)
def test_settings_that_can_only_be_mistakes_are_refused(kube, tmp_path, changed, said):
    path = config_over(kube, tmp_path, **changed)
    found = console.run("check", path)
    assert found.code == 2
    assert said in found.err
    assert found.err.count("\n") == 1
