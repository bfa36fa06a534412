"""Runs of users' Jobs on a real Kubernetes, and behind a server that keeps ``suspend``."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import pytest
import yaml

from commonwatt.control.engine import JobEnded, JobInterrupted, JobLeft, Outcome, Start, Stop
from commonwatt.engines.kubernetes.access import access_of
from commonwatt.engines.kubernetes.api import KubernetesApi, path_of
from commonwatt.engines.kubernetes.engine import KubernetesEngine
from commonwatt.engines.kubernetes.user_gang import user_job_of
from commonwatt.engines.kubernetes.user_job import job_file
from commonwatt.engines.kubernetes.user_jobs import UserJobs
from commonwatt.engines.run_spec import JobWork
from commonwatt.model.errors import EngineError
from commonwatt.model.nodes import Cluster, NodeSpec

from .site import DEPLOY, USERS, until
from .suspending import NOTE, SuspendingServer
from .test_contract import CLUSTER

pytestmark = pytest.mark.long


@pytest.fixture(params=["1.20", "suspend"])
def kubeconfig(request, kube, tmp_path):
    """Of a server that drops ``suspend``, and of one that keeps it."""
    if request.param == "1.20":
        yield kube.kubeconfig("commonwatt")
        return
    path = tmp_path / "suspending.kubeconfig"
    server = SuspendingServer(kube.kubeconfig("commonwatt"), kube.kubeconfig("admin"), path)
    yield path
    server.stop()


@pytest.fixture
def engine_on(kube, settings, tmp_path):
    made, uids = [], {}

    def make(kubeconfig, **jobs) -> KubernetesEngine:
        uids.update({name: job["metadata"]["uid"] for name, job in jobs.items()})
        own = replace(settings, user_namespaces=(USERS,))

        def work(name: str) -> JobWork:
            return JobWork(("batch/v1/Job", name), workload=(USERS, name, uids[name]))

        api = KubernetesApi(access_of(kubeconfig, None))
        made.append(KubernetesEngine(CLUSTER, tmp_path / "state", work, api, settings=own, declared_power=True))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def changes_of(engine, limit_s=60.0):
    end_s = time.monotonic() + limit_s
    while not (changes := engine.poll()):
        assert time.monotonic() < end_s, "nothing changed"
        engine.wait(0.2)
    return list(changes)


def placed(engine, kube, job, number=1):
    """Wait until so many pods of a Job run; returns the names of their nodes."""

    def found():
        engine.poll()
        pods = [pod for pod in kube.pods_of(job) if pod["status"]["phase"] == "Running"]
        return len(pods) == number and "deletionTimestamp" not in pods[0]["metadata"] and pods

    return sorted(pod["spec"]["nodeName"] for pod in until(found))


def test_after_an_outage_its_node_is_read_only_once_kubelets_can_have_said_what_has_ended(engine_on, kube, settings):
    job = kube.user_job("train", "sleep", "300", gpus=2)
    engine = engine_on(kube.kubeconfig("commonwatt"), train=job)
    engine.apply([Start(7, "train", (1,), 2)])
    placed(engine, kube, job)
    until(lambda: 1 in {reading.node for reading in engine.readings(up_to_now=True)})
    kube.end("kube-apiserver")
    until(lambda: not engine._pods.steady)
    assert {reading.node for reading in engine.readings(up_to_now=True)} <= {0}  # what was known is, for a moment
    until(lambda: raises(engine.poll))
    kube.begin("kube-apiserver")
    until(lambda: not raises(engine.poll))
    back_s = time.monotonic()
    assert {reading.node for reading in engine.readings(up_to_now=True)} == {0}
    until(lambda: 1 in {reading.node for reading in engine.readings(up_to_now=True)}, pause_s=1.0)
    assert time.monotonic() > back_s + settings.settle_s - 2.0


def raises(call):
    try:
        call()
    except EngineError:
        return True
    return False


def test_one_is_started_stopped_and_started_again_where_it_is_told_to(engine_on, kubeconfig, kube, tmp_path):
    script = f"echo >> {tmp_path}/starts; test -e {tmp_path}/enough || exec sleep 300"
    job = kube.user_job("train", "sh", "-c", script, gpus=2)
    engine = engine_on(kubeconfig, train=job)
    engine.apply([Start(7, "train", (1,), 2)])
    assert placed(engine, kube, job) == ["gpu-1"]
    assert engine.nodes().usable_gpus.tolist() == [2, 2]
    with pytest.raises(EngineError, match="running already"):
        engine.apply([Start(7, "train", (0,), 2)])
    (stopped,) = engine.apply([Stop(7)])
    if stopped.later:
        assert isinstance(changes_of(engine)[0], JobInterrupted | JobLeft)
    until(lambda: not [pod for pod in kube.pods_of(job) if pod["spec"].get("nodeName")])
    (tmp_path / "enough").touch()
    engine.apply([Start(7, "train", (0,), 2)])
    (change,) = changes_of(engine)
    assert isinstance(change, JobEnded)
    assert change.outcome is Outcome.COMPLETED
    assert (tmp_path / "starts").read_text() == "\n\n"
    assert engine.attempts(7) == 2


def test_a_controller_that_dies_between_two_bindings_is_followed_by_one_that_goes_on(
    engine_on, kube, monkeypatch, tmp_path
):
    job = kube.user_job("gang", "sh", "-c", f"echo >> {tmp_path}/starts; sleep 1", pods=2)
    kubeconfig = kube.kubeconfig("commonwatt")
    first = engine_on(kubeconfig, gang=job)
    until(lambda: len(first.informer.look(first._pods)) == 2)
    bind = UserJobs._bind

    class Died(BaseException):
        pass

    def die(self, run, rank, *more):
        if rank:
            raise Died
        bind(self, run, rank, *more)

    monkeypatch.setattr(UserJobs, "_bind", die)
    with pytest.raises(Died):
        first.apply([Start(7, "gang", (0, 1), 1)])
    first.close()
    monkeypatch.setattr(UserJobs, "_bind", bind)
    second = engine_on(kubeconfig)
    assert [run.nodes for run in second.recorded_runs()] == [(0, 1)]
    (change,) = changes_of(second)
    assert isinstance(change, JobEnded)
    assert change.outcome is Outcome.COMPLETED
    assert sorted(pod["spec"]["nodeName"] for pod in kube.pods_of(job)) == ["gpu-0", "gpu-1"]
    assert (tmp_path / "starts").read_text() == "\n\n"


def test_one_that_was_created_suspended_is_resumed_when_it_is_started(engine_on, kube, tmp_path):
    path = tmp_path / "suspending.kubeconfig"
    server = SuspendingServer(kube.kubeconfig("commonwatt"), kube.kubeconfig("admin"), path)
    try:
        job = kube.user_job("later", "true", pods=0, completions=1, notes={NOTE: "1"})
        engine = engine_on(path, later=job)
        until(engine.user_jobs.all)
        (seen,) = engine.user_jobs.all().values()
        assert (seen.suspended, seen.pods) == (True, 1)
        assert kube.pods_of(job) == []
        engine.apply([Start(7, "later", (0,), 1)])
        (change,) = changes_of(engine)
        assert isinstance(change, JobEnded)
        assert change.outcome is Outcome.COMPLETED
        engine.close()
    finally:
        server.stop()


def test_one_whose_pods_do_not_come_is_withdrawn(engine_on, kubeconfig, kube, monkeypatch):
    job = kube.user_job("slow", "true", pods=0, completions=1)
    engine = engine_on(kubeconfig, slow=job)
    engine._settings = replace(engine._settings, start_s=1.0)
    engine.apply([Start(7, "slow", (0,), 1)])
    (change,) = changes_of(engine)
    assert isinstance(change, JobInterrupted)
    assert (change.begun, change.cause) == (
        False,
        "Kubernetes has not made its pods within 1 s: the Events of its Job say why",
    )


def test_a_gang_that_is_stopped_while_a_node_of_it_is_lost_keeps_that_node_alone(engine_on, kube):
    """The GPUs of healthy nodes are nobody's once Kubernetes has removed their pods: nobody pays for them either."""
    job = kube.user_job("gang", "sleep", "300", gpus=2, pods=2)
    engine = engine_on(kube.kubeconfig("commonwatt"), gang=job)
    engine.apply([Start(7, "gang", (0, 1), 2)])
    assert placed(engine, kube, job, 2) == ["gpu-0", "gpu-1"]
    kube.power("gpu-1", on=False)
    try:
        until(lambda: not engine.poll() and engine._allocations.lost(engine._look()))
        engine.request_stop([7])
        until(lambda: not engine.poll() and engine.has_room([0], 2))
        engine.readings(up_to_now=True)
        time.sleep(1.0)
        holders = {reading.node: reading.holders for reading in engine.readings(up_to_now=True)}
        assert holders[0] == ()
        assert [holder.handle for holder in holders[1]] == [7]
        assert engine._runs.keys() == {7}  # something of it may run yet
    finally:
        kube.power("gpu-1", on=True)
    (change,) = changes_of(engine)
    assert change.handle == 7
    until(lambda: not engine.poll() and engine.has_room([0, 1], 2))


def test_one_on_a_node_that_is_lost_is_not_placed_elsewhere_before_kubernetes_has_removed_its_pod(
    engine_on, kube, tmp_path
):
    job = kube.user_job("lost", "sh", "-c", f"echo >> {tmp_path}/starts; exec sleep 300")
    engine = engine_on(kube.kubeconfig("commonwatt"), lost=job)
    engine.apply([Start(7, "lost", (1,), 1)])
    assert placed(engine, kube, job) == ["gpu-1"]
    (pod,) = kube.pods_of(job)
    kube.power("gpu-1", on=False)
    kube.remove(pod)  # as an eviction does, minutes later; no kubelet carries it out
    until(lambda: len(kube.pods_of(job)) == 2)  # Kubernetes has made another one, which waits
    until(lambda: engine.nodes().usable_gpus.tolist() == [2, 0])
    for _ in range(30):
        assert engine.poll() == []
        engine.wait(0.1)
    assert [pod["spec"].get("nodeName") for pod in kube.pods_of(job)].count(None) == 1
    kube.remove(pod, 0)  # an administrator says that it is gone
    (change,) = changes_of(engine)
    assert isinstance(change, JobInterrupted)
    assert change.begun
    engine.apply([Start(7, "lost", (0,), 1)])
    assert placed(engine, kube, job) == ["gpu-0"]
    kube.power("gpu-1", on=True)


def test_the_job_in_the_guide_is_accepted_and_taken_over(engine_on, kube):
    page = (DEPLOY.parents[1] / "docs" / "how-to" / "kubernetes.md").read_text(encoding="utf-8")
    (text,) = (block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "kind: Job\n" in block)
    body = yaml.safe_load(text)
    made = kube.admin.create(path_of("jobs", USERS, group="batch/v1"), body, dryRun="All")
    cluster = Cluster.of([NodeSpec(name="x", count=2, gpu_type="A100", gpus=8, idle_w=1, gpu_w=1)])
    file = job_file(user_job_of(made), cluster, [], {})
    assert (file.gpus, file.nodes, file.gpu_types, file.kind) == (8, 2, ("A100",), "resnet")
    assert file.times_s == {"A100": {8: 6.5 * 3600}}
    assert (file.due, file.tardiness_weight) == ("2026-12-01T08:00", 0.002)


def test_one_that_runs_into_its_deadline_has_failed_at_its_time_limit(engine_on, kube):
    job = kube.user_job("late", "sleep", "300", activeDeadlineSeconds=8)
    engine = engine_on(kube.kubeconfig("commonwatt"), late=job)
    engine.apply([Start(7, "late", (0,), 1)])
    (change,) = changes_of(engine)
    assert isinstance(change, JobEnded)
    assert (change.outcome, change.reason) == (Outcome.FAILED, "time-limit")
    assert "DeadlineExceeded" in change.cause
