"""Users' Jobs that end while parts of Kubernetes, or the controller, are away: how they end, and what they are charged.

On a real Kubernetes.
"""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
import time
from base64 import b64encode
from contextlib import closing, contextmanager
from datetime import datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.engines.kubernetes.api import path_of
from commonwatt.engines.kubernetes.containers import moment_s
from commonwatt.model.errors import EngineError
from commonwatt.model.units import MICRO
from commonwatt.store.controller_store import ControllerStore
from commonwatt.store.records import RequestKind
from tests.engines.kubernetes.site import NAMESPACE, USERS, until

from .chaos import controller, kill, ledger_problems, running, store_of, witness
from .test_over_kubernetes import config_over
from .test_user_jobs import command, condition, ended, lines, noted, of, told, without_preemption

pytestmark = pytest.mark.long


@pytest.fixture
def plane(kube, tmp_path):
    path = config_over(kube, tmp_path, jobs={USERS: ["a", "b"]})
    without_preemption(path)
    return path, store_of(path, tenants="ab")


def gpu_s(store, job):
    return store.account(of(store, job).id)["gpu_us"] / MICRO


def kinds(store, job):
    return [event.kind for event in store.events(job=of(store, job).id)]


def test_jobs_that_kubernetes_counts_late_are_completed(plane, kube, tmp_path):
    path, store = plane
    one = kube.user_job("one", *command(tmp_path, "one", 2))
    pair = kube.user_job("pair", "sleep", "2", pods=2)
    with running(path):
        until(lambda: all((row := of(store, job)) and row.status == "running" for job in (one, pair)))
        until(lambda: all(pod["status"]["phase"] == "Running" for job in (one, pair) for pod in kube.pods_of(job)))
        kube.end("kube-controller-manager")
        time.sleep(6.0)  # they end meanwhile, and lag_s passes
        kube.begin("kube-controller-manager")
        for job in (one, pair):
            row = ended(store, job)
            assert (row.status, row.attempts) == ("completed", 1)
            assert not {"interrupted", "not-started", "cancelled"} & set(kinds(store, job))
    assert gpu_s(store, one) < 4.0
    assert ledger_problems(store) == []


def test_a_job_that_kubernetes_ends_while_it_waits_here_ends_so_here(plane, kube, tmp_path):
    path, store = plane
    fill = kube.user_job("fill", "sleep", "300", gpus=2, pods=2)
    with running(path):
        until(lambda: (row := of(store, fill)) and row.status == "running")
        late = kube.user_job("late", *command(tmp_path, "late", 1), activeDeadlineSeconds=3)
        row = ended(store, late)
        assert (row.status, row.reason, row.attempts) == ("failed", "time-limit", 0)
        assert "its Job has failed: DeadlineExceeded" in row.sentence
        kube.remove_job(fill)
        assert ended(store, fill).status == "cancelled"
    assert condition(kube, "late", "Failed")
    assert lines(tmp_path, "late") == []


def test_jobs_that_end_while_no_controller_runs_are_charged_until_then(plane, kube, tmp_path):
    path, store = plane
    child = controller(path)
    try:
        wide = kube.user_job("wide", "sleep", "10", pods=2)  # a node for each
        until(lambda: (row := of(store, wide)) and row.status == "running")
        jobs = [
            kube.user_job("short", *command(tmp_path, "short", 8)),
            wide,
            kube.user_job("fails", *command(tmp_path, "fails", 8, 1), backoffLimit=0),
        ]
        until(lambda: all((row := of(store, job)) and row.status == "running" for job in jobs))
        own = store.submit("a", witness("own", tmp_path, 0.1), time.time())[0].id
    finally:
        kill(child)
    time.sleep(25.0)
    with running(path):
        assert [ended(store, job).status for job in jobs] == ["completed", "completed", "failed"]
        until(lambda: store.job(own).status == "completed")
    assert gpu_s(store, jobs[0]) == pytest.approx(9, abs=3)
    assert gpu_s(store, jobs[1]) == pytest.approx(22, abs=6)
    assert gpu_s(store, jobs[2]) == pytest.approx(9, abs=3)
    assert ledger_problems(store) == []


def test_pods_that_outlive_their_jobs_deadline_are_charged_though_no_controller_ran(plane, kube, tmp_path):
    path, store = plane
    child = controller(path)
    try:
        script = "trap '' TERM; end=$(($(date +%s) + 15)); while [ $(date +%s) -lt $end ]; do sleep 0.2; done"
        pod = {"terminationGracePeriodSeconds": 60}
        job = kube.user_job("late", "sh", "-c", script, activeDeadlineSeconds=4, pod=pod)
        until(lambda: (row := of(store, job)) and row.status == "running")
        until(lambda: [one["status"]["phase"] for one in kube.pods_of(job)] == ["Running"])
    finally:
        kill(child)
    until(lambda: condition(kube, "late", "Failed"))
    until(lambda: not kube.pods_of(job))
    with running(path):
        assert ended(store, job).status == "failed"
    assert gpu_s(store, job) > 12.0
    assert ledger_problems(store) == []


def test_a_pod_that_a_job_adopts_and_that_has_other_gpus_is_not_placed(plane, kube, tmp_path):
    path, store = plane
    labels = {"mine": "yes"}
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "aaa", "namespace": USERS, "labels": labels},
        "spec": {"restartPolicy": "Never", "schedulerName": "commonwatt", "containers": [{
            "name": "main", "image": "none", "command": ["sleep", "300"],
            "resources": {"limits": {"nvidia.com/gpu": "2"}}}]},
    }  # fmt: skip
    kube.admin.create(path_of("pods", USERS), pod)
    template = {
        "metadata": {"labels": labels},
        "spec": {**pod["spec"], "containers": [{
            **pod["spec"]["containers"][0], "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    }  # fmt: skip
    body = {
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "adopts", "labels": {"commonwatt.io/tenant": "a"}},
        "spec": {"manualSelector": True, "selector": {"matchLabels": labels}, "template": template},
    }  # fmt: skip
    job = kube.admin.create(path_of("jobs", USERS, group="batch/v1"), body)
    with running(path):
        refused = until(lambda: told(kube, job).get("NotStarted"))
        assert "pod aaa requests 2 of nvidia.com/gpu, and is to have 1 of nvidia.com/gpu" in refused
        other = kube.user_job("other", *command(tmp_path, "other", 0.2), gpus=2, pods=2)
        assert ended(store, other).status == "completed"
        assert "nodeName" not in kube.admin.get(path_of("pods", USERS, "aaa"))["spec"]
        assert gpu_s(store, job) < 1.0  # of the moments in which it was tried


def test_a_job_that_ends_while_the_server_is_away_is_charged_until_then(plane, kube, tmp_path):
    path, store = plane
    with running(path):
        job = kube.user_job("away", *command(tmp_path, "away", 4))
        until(lambda: lines(tmp_path, "away") == ["begin"])
        kube.end("kube-apiserver")
        until(lambda: lines(tmp_path, "away") == ["begin", "end"])
        time.sleep(8.0)
        kube.begin("kube-apiserver")
        assert ended(store, job).status == "completed"
    (pod,) = kube.pods_of(job)
    over = pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"]  # as the kubelet noticed it
    ran_s = datetime.fromisoformat(over).timestamp() - of(store, job).began_s
    assert gpu_s(store, job) < ran_s + 2.5
    assert ledger_problems(store) == []


def test_pods_that_fail_and_are_tried_again_are_charged_to_the_tenant_and_so_is_one_that_is_deleted(
    plane, kube, tmp_path
):
    path, store = plane
    child = controller(path)
    try:
        gone = kube.user_job("gone", *command(tmp_path, "gone", 300))
        until(lambda: lines(tmp_path, "gone") == ["begin"])
        fails = kube.user_job("fails", *command(tmp_path, "fails", 2, 1), backoffLimit=1)
        row = ended(store, fails)
        assert (row.status, lines(tmp_path, "fails").count("begin")) == ("failed", 2)
        assert gpu_s(store, fails) > 2.0  # ends are in whole seconds
        taken = kube.user_job("taken", *command(tmp_path, "taken", 4))
        until(lambda: lines(tmp_path, "taken") == ["begin"])
        time.sleep(2.0)
        for pod in kube.pods_of(taken):
            kube.remove(pod, 0)
        assert (ended(store, taken).status, of(store, taken).attempts) == ("completed", 2)
        assert gpu_s(store, taken) > 5.0
    finally:
        kill(child)
    began_s = of(store, gone).began_s
    kube.remove_job(gone)
    seen_s = time.time()
    with running(path):
        assert ended(store, gone).status == "cancelled"
    assert gpu_s(store, gone) > seen_s - began_s - 1.0
    assert ledger_problems(store) == []


@pytest.mark.parametrize("rank", ["0", "1"])
def test_when_one_of_its_pods_goes_the_others_are_stopped_and_all_start_anew(plane, kube, tmp_path, rank):
    path, store = plane
    script = f"test -e {tmp_path}/enough || exec sleep 300"
    with running(path):
        job = kube.user_job("pair", "sh", "-c", script, pods=2)

        def ranked():
            pods = [pod for pod in kube.pods_of(job) if pod["status"]["phase"] == "Running"]
            return {(pod["metadata"].get("annotations") or {}).get("commonwatt.io/rank"): pod for pod in pods}

        pods = until(lambda: (found := ranked()).keys() == {"0", "1"} and found)
        (tmp_path / "enough").touch()
        kube.remove(pods[rank], 0)
        row = ended(store, job)
        assert (row.status, row.attempts) == ("completed", 2)
    assert ledger_problems(store) == []


def test_a_job_that_kubernetes_ends_at_its_deadline_has_failed_though_its_program_exits_with_0(plane, kube, tmp_path):
    path, store = plane
    script = f"trap 'exit 0' TERM; echo begin >> {tmp_path}/late.log; while :; do sleep 0.1; done"
    with running(path):
        job = kube.user_job("late", "sh", "-c", script, activeDeadlineSeconds=5)
        row = ended(store, job)
        assert (row.status, row.reason) == ("failed", "time-limit")
    assert condition(kube, "late", "Failed")


def test_a_job_whose_parallelism_is_changed_while_it_waits_takes_no_gpus_until_that_is_undone(plane, kube, tmp_path):
    path, store = plane
    fill = kube.user_job("fill", "sleep", "300", gpus=2, pods=2)
    with running(path):
        until(lambda: (row := of(store, fill)) and row.status == "running")
        job = kube.user_job("less", *command(tmp_path, "less", 0.2), gpus=2, pods=2)
        until(lambda: of(store, job))
        kube.admin.merge(path_of("jobs", USERS, "less", group="batch/v1"), {"spec": {"parallelism": 1}})
        kube.remove_job(fill)
        until(lambda: "was changed (1 pod now, 2 when it was taken over)" in (of(store, job).sentence or ""))
        other = kube.user_job("other", *command(tmp_path, "other", 0.2), gpus=2, pods=2)
        assert ended(store, other).status == "completed"
        assert (of(store, job).attempts, gpu_s(store, job)) == (0, 0.0)
        until(lambda: "NotFollowed" in told(kube, job))
        kube.admin.merge(path_of("jobs", USERS, "less", group="batch/v1"), {"spec": {"parallelism": 2}})
        assert ended(store, job).status == "completed"


def may(kube, verb):
    """Whether our token may do that with Jobs of users: roles are in force a moment after they are written."""
    asked = {"namespace": USERS, "verb": verb, "group": "batch", "resource": "jobs"}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    body = {**review, "spec": {"resourceAttributes": asked}}
    with closing(kube.api()) as api:
        return api.create(path_of("selfsubjectaccessreviews", group="authorization.k8s.io/v1"), body)["status"][
            "allowed"
        ]


@contextmanager
def unbound(kube):
    """Without our rights in the users' namespace."""
    binding = path_of("rolebindings", USERS, "commonwatt-users-jobs", group="rbac.authorization.k8s.io/v1")
    was = kube.admin.get(binding)
    kube.admin.ask("DELETE", binding)
    until(lambda: not may(kube, "list"))
    try:
        yield
    finally:
        meta = {key: was["metadata"][key] for key in ("name", "namespace")}
        kube.admin.create(binding.rpartition("/")[0], {**was, "metadata": meta})


def test_a_job_that_may_not_be_stopped_says_so(plane, kube, tmp_path):
    path, store = plane
    role = path_of("roles", USERS, "commonwatt-users-jobs", group="rbac.authorization.k8s.io/v1")
    rules = kube.admin.get(role)["rules"]
    less = [{**rule, "verbs": [verb for verb in rule["verbs"] if verb not in ("patch", "delete")]} for rule in rules]
    with running(path):
        job = kube.user_job("stays", *command(tmp_path, "stays", 300))
        until(lambda: lines(tmp_path, "stays") == ["begin"])
        kube.admin.merge(role, {"rules": [rule for rule in less if rule["verbs"]]})
        until(lambda: not may(kube, "patch"))
        try:
            store.ask(RequestKind.CANCEL, time.time(), job=of(store, job).id)
            assert "cannot delete resource" in until(lambda: told(kube, job).get("NotStopped"))
            own = store.submit("a", witness("own", tmp_path, 0.1), time.time())[0].id
            until(lambda: store.job(own).status == "completed")
        finally:
            kube.admin.merge(role, {"rules": rules})
        assert ended(store, job).status == "cancelled"


@contextmanager
def webhook_away(kube, *rules, url="https://127.0.0.1:1/", **more):
    """With a webhook that nobody answers, so that what it is asked about is refused."""
    group = "admissionregistration.k8s.io/v1"
    hook = {
        "name": "away.example.com", "rules": [{"apiVersions": ["v1"], **rule} for rule in rules],
        "failurePolicy": "Fail", "clientConfig": {"url": url}, "sideEffects": "None", "admissionReviewVersions": ["v1"],
        **more,
    }  # fmt: skip
    body = {"apiVersion": group, "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "away"}}
    hooks = path_of("validatingwebhookconfigurations", group=group)
    made = kube.admin.create(hooks, {**body, "webhooks": [hook]})
    try:
        yield
    finally:
        kube.admin.delete(f"{hooks}/away", made["metadata"]["uid"])


@contextmanager
def labelled(kube, namespace):
    """Label a namespace for as long; returns the selector by which a webhook is called for it alone."""
    space = path_of("namespaces", name=namespace)
    kube.admin.merge(space, {"metadata": {"labels": {"hooked": "yes"}}})
    try:
        yield {"matchLabels": {"hooked": "yes"}}
    finally:
        kube.admin.merge(space, {"metadata": {"labels": {"hooked": None}}})


def test_a_webhook_that_is_away_stops_nothing_but_the_jobs_it_is_asked_about(plane, kube, tmp_path):
    path, store = plane
    with running(path):
        job = kube.user_job("stays", *command(tmp_path, "stays", 300))
        until(lambda: lines(tmp_path, "stays") == ["begin"])
        change_jobs = {"apiGroups": ["batch"], "operations": ["UPDATE"], "resources": ["jobs"]}
        delete_pods = {"apiGroups": [""], "operations": ["DELETE"], "resources": ["pods"]}
        with webhook_away(kube, change_jobs, delete_pods):
            until(lambda: is_refused(kube, job))
            store.ask(RequestKind.CANCEL, time.time(), job=of(store, job).id)
            assert "failed calling webhook" in until(lambda: told(kube, job).get("NotStopped"))
            own = store.submit("a", witness("own", tmp_path, 0.1), time.time())[0].id
            until(lambda: store.job(own).status == "completed")
        assert ended(store, job).status == "cancelled"


def test_a_pod_of_ours_that_nobody_may_delete_runs_on_and_is_stopped_later(plane, kube, tmp_path):
    path, store = plane
    rule = {"apiGroups": [""], "operations": ["DELETE"], "resources": ["pods"]}
    with labelled(kube, NAMESPACE) as selector, running(path):
        stays = store.submit("a", witness("stays", tmp_path, 300, time_limit_s=600), time.time())[0].id
        until(lambda: lines(tmp_path, "stays"))
        (pod,) = [pod for pod in kube.pods() if pod["metadata"]["namespace"] == NAMESPACE]
        with webhook_away(kube, rule, namespaceSelector=selector):
            until(lambda: undeletable(kube, pod))
            store.ask(RequestKind.CANCEL, time.time(), job=stays)
            job = kube.user_job("other", *command(tmp_path, "other", 0.2))
            assert ended(store, job).status == "completed"
            assert "end" not in lines(tmp_path, "stays")
            time.sleep(10.0)  # longer than it may take to stop
            assert store.job(stays).status != "completed"
        until(lambda: pod["metadata"]["uid"] not in {one["metadata"]["uid"] for one in kube.pods()})
        until(lambda: store.job(stays).status == "cancelled")
    assert ledger_problems(store) == []


def undeletable(kube, pod):
    """Whether nobody can delete a pod, seen without doing it."""
    path = path_of("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
    try:
        kube.admin.ask("DELETE", path, {"dryRun": ["All"]})
    except EngineError:
        return True
    return False


def test_one_that_cannot_be_suspended_is_stopped_by_deleting_its_pods(plane, kube, tmp_path):
    path, store = plane
    with running(path):
        job = kube.user_job("stays", *command(tmp_path, "stays", 300))
        until(lambda: lines(tmp_path, "stays") == ["begin"])
        with webhook_away(kube, {"apiGroups": ["batch"], "operations": ["UPDATE"], "resources": ["jobs"]}):
            until(lambda: is_refused(kube, job))
            store.ask(RequestKind.CANCEL, time.time(), job=of(store, job).id)
            assert ended(store, job).status == "cancelled"
            assert "NotStopped" not in told(kube, job)
            assert lines(tmp_path, "stays")[:1] == ["begin"]


def test_a_webhook_for_placements_that_is_away_stops_only_the_jobs_of_its_namespace(plane, kube, tmp_path):
    path, store = plane
    rule = {"apiGroups": [""], "operations": ["CREATE"], "resources": ["pods/binding"]}
    with labelled(kube, USERS) as selector, running(path):
        with webhook_away(kube, rule, namespaceSelector=selector):
            time.sleep(2.0)  # until it is called; if it is not, the job runs, and the test fails
            job = kube.user_job("held", *command(tmp_path, "held", 0.2))
            until(lambda: (row := of(store, job)) and row.attempts)
            own = store.submit("a", witness("own", tmp_path, 0.1), time.time())[0].id
            until(lambda: store.job(own).status == "completed")
            assert lines(tmp_path, "held") == []
        assert ended(store, job).status == "completed"


@pytest.mark.parametrize("namespace", [USERS, NAMESPACE])
def test_a_webhook_that_hangs_stops_nothing_but_the_jobs_it_is_asked_about(plane, kube, tmp_path, namespace):
    path, store = plane
    rule = {"apiGroups": [""], "operations": ["CREATE"], "resources": ["pods/binding"]}

    def submit(name, where):
        if where == USERS:
            job = kube.user_job(name, *command(tmp_path, name, 0.2))
            return lambda: of(store, job)
        number = store.submit("a", witness(name, tmp_path, 0.1), time.time())[0].id
        return lambda: store.job(number)

    with socket.create_server(("127.0.0.1", 0)) as silent, labelled(kube, namespace) as selector, running(path):
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/"
        with webhook_away(kube, rule, url=url, timeoutSeconds=30, namespaceSelector=selector):
            time.sleep(2.0)
            held = submit("held", namespace)
            until(lambda: (row := held()) and row.attempts)
            for name in ("first", "second"):
                row_of = submit(name, NAMESPACE if namespace == USERS else USERS)
                until(lambda row_of=row_of: (row := row_of()) and row.status == "completed")
            assert lines(tmp_path, "held") == []
        until(lambda: held().status == "completed")


@contextmanager
def slow_webhook(kube, folder, takes_s, *rules, **more):
    """With a webhook that allows everything, and takes its time; yields how often it was asked."""
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "hook.key",
            "-out", folder / "hook.crt"]  # fmt: skip
    subprocess.run(make, check=True, capture_output=True)
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_) -> None:
            pass

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
            asked.append((request["operation"], request["resource"]["resource"]))
            time.sleep(takes_s)
            answer = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
                      "response": {"uid": request["uid"], "allowed": True}}  # fmt: skip
            content = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "hook.crt", folder / "hook.key")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = False  # those at work are waited for
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        bundle = b64encode((folder / "hook.crt").read_bytes()).decode()
        where = {"url": f"https://127.0.0.1:{server.server_port}/", "caBundle": bundle}
        try:
            with webhook_away(kube, *rules, clientConfig=where, timeoutSeconds=30, **more):
                yield asked
        finally:
            server.shutdown()


def test_jobs_whose_webhooks_are_slow_run_once_and_others_do_not_wait(plane, kube, tmp_path):
    path, store = plane
    rules = [{"apiGroups": ["batch"], "operations": ["UPDATE"], "resources": ["jobs"]},
             {"apiGroups": [""], "operations": ["CREATE"], "resources": ["pods/binding"]}]  # fmt: skip
    with labelled(kube, USERS) as selector, running(path):
        with slow_webhook(kube, tmp_path, 3.0, *rules, namespaceSelector=selector) as asked:
            time.sleep(2.0)
            job = kube.user_job("slow", *command(tmp_path, "slow", 0.2), suspend=True)
            pair = kube.user_job("pair", "sleep", "1", pods=2, suspend=True)
            own = [store.submit("a", witness(f"own-{n}", tmp_path, 0.1), time.time())[0].id for n in range(3)]
            for number in own:
                until(lambda number=number: store.job(number).status == "completed")
            for each in (job, pair):
                row = ended(store, each)
                assert (row.status, row.attempts) == ("completed", 1)
            assert {("UPDATE", "jobs"), ("CREATE", "pods")} <= set(asked)
        assert lines(tmp_path, "slow") == ["begin", "end"]
    assert ledger_problems(store) == []


def test_jobs_whose_placements_are_answered_late_pay_from_when_they_were_placed(plane, kube, tmp_path):
    path, store = plane
    rule = {"apiGroups": [""], "operations": ["CREATE"], "resources": ["pods/binding"]}
    slow = partial(slow_webhook, kube, tmp_path, 0.3, rule)
    with labelled(kube, USERS) as selector, running(path), slow(namespaceSelector=selector):
        time.sleep(2.0)
        jobs = [kube.user_job(f"late-{n}", "sleep", "2", gpus=1) for n in range(6)]
        for job in jobs:
            assert ended(store, job).status == "completed"
    for job in jobs:
        (pod,) = kube.pods_of(job)
        (state,) = (each["state"]["terminated"] for each in pod["status"]["containerStatuses"])
        (bound,) = (each for each in pod["status"]["conditions"] if each["type"] == "PodScheduled")
        held_s = moment_s(state["finishedAt"]) - moment_s(bound["lastTransitionTime"])  # in whole seconds
        assert held_s - 1.1 < gpu_s(store, job) < held_s + 1.1
    assert ledger_problems(store) == []


def test_each_refused_job_is_told_so_though_webhooks_take_their_time(plane, kube, tmp_path):
    path, store = plane
    rules = [{"apiGroups": ["batch"], "operations": ["UPDATE"], "resources": ["jobs"]},
             {"apiGroups": [""], "operations": ["CREATE"], "resources": ["events"]}]  # fmt: skip
    with labelled(kube, USERS) as selector, slow_webhook(kube, tmp_path, 1.5, *rules, namespaceSelector=selector):
        odd = [kube.user_job(f"odd-{n}", "true", notes={"commonwatt.io/run-time": "soon"}) for n in range(3)]
        with running(path):
            for job in odd:
                until(lambda job=job: "NotTakenOver" in told(kube, job))
                name = job["metadata"]["name"]
                until(lambda name=name: noted(kube, name).get("commonwatt.io/status") == "refused")
    assert store.jobs() == []


def is_refused(kube, job):
    """Whether a Job can be changed by nobody: a webhook is called only some time after it is there."""
    try:
        note = {"metadata": {"annotations": {"example.com/tried": str(time.time())}}}
        kube.admin.merge(path_of("jobs", USERS, job["metadata"]["name"], group="batch/v1"), note)
    except EngineError:
        return True
    return False


@pytest.mark.parametrize("restarted", [True, False])
def test_a_job_that_may_not_be_stopped_runs_on_and_stops_nothing_else(plane, kube, tmp_path, restarted):
    path, store = plane
    child = controller(path)
    try:
        job = kube.user_job("stays", *command(tmp_path, "stays", 300))
        until(lambda: lines(tmp_path, "stays") == ["begin"])
        if restarted:
            kill(child)
        with unbound(kube):
            child = controller(path) if restarted else child
            store.ask(RequestKind.CANCEL, time.time(), job=of(store, job).id)
            until(lambda: not ControllerStore(store.database).requests())
            own = store.submit("a", witness("own", tmp_path, 0.1), time.time())[0].id
            until(lambda: store.job(own).status == "completed")
        assert ended(store, job).status == "cancelled"
        until(lambda: not [pod for pod in kube.pods_of(job) if pod["status"]["phase"] == "Running"])
    finally:
        kill(child)
    assert ledger_problems(store) == []


def test_a_job_whose_pods_went_while_it_may_not_be_seen_gives_its_gpus_back_and_waits(plane, kube, tmp_path):
    path, store = plane
    child = controller(path)
    try:
        job = kube.user_job("gone", "sleep", "4", gpus=2, pods=2)
        until(lambda: [pod["status"]["phase"] for pod in kube.pods_of(job)] == ["Running"] * 2)
        kill(child)
        with unbound(kube):
            for pod in kube.pods_of(job):
                kube.remove(pod, 0)
            child = controller(path)
            until(lambda: of(store, job).status == "waiting")
            until(lambda: "may not be looked at" in (of(store, job).sentence or ""))
            own = store.submit("a", witness("own", tmp_path, 0.1, gpus=2), time.time())[0].id
            until(lambda: store.job(own).status == "completed")
        assert ended(store, job).status == "completed"
    finally:
        kill(child)
    assert (of(store, job).attempts, ledger_problems(store)) == (2, [])


def test_a_namespace_that_may_not_be_seen_stops_nothing_elsewhere(kube, tmp_path):
    path = config_over(kube, tmp_path, jobs={USERS: ["a"], "team-gone": ["b"]})
    store = store_of(path, tenants="ab")
    with running(path):
        job = kube.user_job("here", *command(tmp_path, "here", 0.2))
        own = store.submit("a", witness("own", tmp_path, 0.1), time.time())[0].id
        assert ended(store, job).status == "completed"
        until(lambda: store.job(own).status == "completed")


def test_jobs_stay_as_they_are_while_their_namespace_may_not_be_seen(plane, kube, tmp_path):
    path, store = plane
    child = controller(path)
    try:
        job = kube.user_job("stays", *command(tmp_path, "stays", 40))
        until(lambda: lines(tmp_path, "stays") == ["begin"])
        kill(child)
        with unbound(kube):
            child = controller(path)
            own = store.submit("a", witness("own", tmp_path, 0.1), time.time())[0].id
            until(lambda: store.job(own).status == "completed")
            assert of(store, job).status == "running"
        assert ended(store, job).status == "completed"
    finally:
        kill(child)
    assert lines(tmp_path, "stays") == ["begin", "end"]
    assert (of(store, job).attempts, ledger_problems(store)) == (1, [])


def test_a_job_whose_pods_cannot_be_made_gives_its_gpus_back_and_waits(kube, tmp_path):
    path = config_over(kube, tmp_path, jobs={USERS: ["a", "b"]}, start_s=4)
    without_preemption(path)
    store = store_of(path, tenants="ab")
    with running(path):
        job = kube.user_job("none", "true", gpus=2, pods=2, pod={"priorityClassName": "nonexistent"})
        until(lambda: (row := of(store, job)) and "the Events of its Job say why" in (row.sentence or ""))
        until(lambda: of(store, job).reason == "admission")
        assert "Kubernetes has not made its pods within" in of(store, job).sentence
        own = kube.user_job("own", *command(tmp_path, "own", 0.2), gpus=2)
        assert ended(store, own).status == "completed"
        assert of(store, job).attempts <= 2


def test_nodes_that_a_gang_has_left_are_others_while_its_last_pod_is_on_a_lost_one(plane, kube, tmp_path):
    path, store = plane
    with running(path):
        gang = kube.user_job("gang", "sleep", "300", gpus=2, pods=2)
        until(lambda: [pod["status"]["phase"] for pod in kube.pods_of(gang)] == ["Running"] * 2)
        kube.power("gpu-0", on=False)
        try:
            until(lambda: of(store, gang).status == "waiting")  # preempted: it cannot stay
            began_s = time.monotonic()
            other = kube.user_job("other", *command(tmp_path, "other", 0.2), gpus=2)
            row = ended(store, other)
            assert row.status == "completed"
            assert time.monotonic() < began_s + 10.0
        finally:
            kube.power("gpu-0", on=True)
    assert ledger_problems(store) == []


def test_nodes_that_a_gang_has_left_are_not_its_own_again_for_the_next_controller(plane, kube, tmp_path):
    path, store = plane
    child = controller(path)
    try:
        gang = kube.user_job("gang", "sleep", "300", gpus=2, pods=2)
        until(lambda: [pod["status"]["phase"] for pod in kube.pods_of(gang)] == ["Running"] * 2)
        began_s = time.time()
        kube.power("gpu-0", on=False)
        until(lambda: of(store, gang).status == "waiting")
        store.ask(RequestKind.CANCEL, time.time(), job=of(store, gang).id)
        other = kube.user_job("other", *command(tmp_path, "other", 12), gpus=2)
        until(lambda: (row := of(store, other)) and row.status == "running")
        left_s = time.time()
        time.sleep(2.0)
        kill(child)
        time.sleep(5.0)
        child = controller(path)
        assert ended(store, other).status == "completed"
        time.sleep(3.0)
        own, idle = gpu_s(store, gang), [row for row in store.ledger() if row["row"] == "idle"]
        assert own < 2 * (left_s - began_s) + 2 * (time.time() - began_s) + 4.0  # of two nodes, then of the lost one
        assert all(row["gpu_us"] >= 0 for row in idle)
    finally:
        kill(child)
        kube.power("gpu-0", on=True)
    assert ledger_problems(store) == []
