"""Runs of users' gangs: stopped and started elsewhere, and gone on with by another controller."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commonwatt.control.engine import JobEnded, JobInterrupted, JobLeft, Outcome, Start, Stop
from commonwatt.engines.kubernetes.engine import KubernetesEngine
from commonwatt.engines.kubernetes.user_jobs import UserJobs
from commonwatt.engines.run_spec import JobWork

from .gangs import SCHEMAS, gangs_on, jobset, made, owner_of, path_at, pod_spec, pytorchjob, suspended
from .site import USERS, until
from .test_contract import CLUSTER
from .test_user_jobs import changes_of

pytestmark = pytest.mark.long


@pytest.fixture
def gangs(kube):
    with gangs_on(kube) as found:
        yield found


@pytest.fixture
def engine_on(gangs, kube, settings, tmp_path):
    engines = []

    def make(item) -> KubernetesEngine:
        meta = item["metadata"]
        own = replace(settings, user_namespaces=(USERS,), user_kinds=("Job", *SCHEMAS))
        work = JobWork(("none",), workload=(USERS, meta["name"], meta["uid"], "2"))
        engines.append(KubernetesEngine(
            CLUSTER, tmp_path / "state", lambda _: work, kube.api(), settings=own, declared_power=True
        ))  # fmt: skip
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def pods_of(kube, item):
    uid = item["metadata"]["uid"]
    jobs = {job["metadata"]["uid"] for job in kube.jobs() if owner_of(job).get("uid") == uid}
    return [pod for pod in kube.pods() if owner_of(pod).get("uid") in {uid, *jobs}]


def running_on(kube, engine, item):
    def found():
        engine.poll()
        pods = [pod for pod in pods_of(kube, item) if pod["status"]["phase"] == "Running"]
        return len(pods) == 2 and pods

    return sorted(pod["spec"]["nodeName"] for pod in until(found))


def gang(kind, script):
    work = ("sh", "-c", script)
    if kind == "JobSet":
        return jobset("train", ("workers", 1, 2, pod_spec(work, 1)), suspend=True)
    return pytorchjob("train", policy={"suspend": True}, Worker=(2, pod_spec(work, 1)))


@pytest.mark.parametrize("kind", SCHEMAS)
def test_one_is_suspended_when_it_is_stopped_and_its_new_pods_are_bound_elsewhere(engine_on, kube, tmp_path, kind):
    script = f"echo >> {tmp_path}/starts; test -e {tmp_path}/enough || exec sleep 300"
    item = made(kube.admin, gang(kind, script))
    engine = engine_on(item)
    engine.apply([Start(7, "train", (1,), 2)])
    assert running_on(kube, engine, item) == ["gpu-1", "gpu-1"]
    assert engine.nodes().usable_gpus.tolist() == [2, 2]  # its own pods are not pods of others
    (stopped,) = engine.apply([Stop(7)])
    if stopped.later:
        assert isinstance(changes_of(engine)[0], JobInterrupted | JobLeft)
    assert suspended(kind, kube.admin.get(path_at(kind, "train")))
    until(lambda: not pods_of(kube, item))
    (tmp_path / "enough").touch()
    engine.apply([Start(7, "train", (0, 1), 1)])
    (change,) = changes_of(engine)
    assert isinstance(change, JobEnded)
    assert change.outcome is Outcome.COMPLETED
    assert sorted(pod["spec"]["nodeName"] for pod in pods_of(kube, item)) == ["gpu-0", "gpu-1"]
    assert (tmp_path / "starts").read_text() == "\n" * 4
    assert engine.attempts(7) == 2


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_controller_that_dies_between_two_bindings_is_followed_by_one_that_binds_the_other(
    engine_on, kube, monkeypatch, tmp_path, kind
):
    item = made(kube.admin, gang(kind, f"echo >> {tmp_path}/starts; sleep 1"))
    bind = UserJobs._bind

    class Died(BaseException):
        pass

    def die(self, run, rank, *more):
        if rank:
            raise Died
        bind(self, run, rank, *more)

    first = engine_on(item)
    first.apply([Start(7, "train", (0, 1), 1)])
    monkeypatch.setattr(UserJobs, "_bind", die)

    def died():
        try:
            first.poll()
        except Died:
            return True
        return False

    until(died)
    first.close()
    monkeypatch.setattr(UserJobs, "_bind", bind)
    second = engine_on(item)
    assert [run.nodes for run in second.recorded_runs()] == [(0, 1)]
    (change,) = changes_of(second)
    assert isinstance(change, JobEnded)
    assert change.outcome is Outcome.COMPLETED
    assert sorted(pod["spec"]["nodeName"] for pod in pods_of(kube, item)) == ["gpu-0", "gpu-1"]
    assert (tmp_path / "starts").read_text() == "\n\n"
