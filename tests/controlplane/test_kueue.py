"""Jobs of users in a queue of Kueue: Kueue keeps the quota, we place what it has admitted. On a real Kubernetes.

A stand-in takes the part of Kueue (``tests/engines/kubernetes/kueue.py``). No interruption of a run may count here, and
a pod that somebody deletes would be a cancellation.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
import yaml

pytest.importorskip("sqlalchemy")

from commonwatt.engines.kubernetes.api import path_of
from commonwatt.store.records import RequestKind
from tests.engines.kubernetes.kueue import MULTIKUEUE, Kueue, uid_of
from tests.engines.kubernetes.site import USERS, until

from .chaos import controller, kill, ledger_problems, running, store_of, witness
from .test_over_kubernetes import config_over
from .test_user_jobs import RUN_TIME, command, condition, ended, lines, noted, of, told

pytestmark = pytest.mark.long


@pytest.fixture
def kueue(kube, tmp_path):
    found = Kueue(kube, tmp_path)
    yield found
    found.stop()


def changed(path, **more):
    """Change the configuration; ``live`` is merged."""
    config = yaml.safe_load(path.read_text())
    live = config["live"] | more.pop("live", {})
    path.write_text(yaml.safe_dump({**config, **more, "live": live}))


@pytest.fixture
def plane(kube, kueue, tmp_path):
    own = {"jobs": {USERS: ["a"]}, "kubeconfig": str(kueue.kubeconfig), "on_delete": "cancelled"}
    path = config_over(kube, tmp_path, **own)
    changed(path, live={"retries": 0}, preemption={"allowed": False})
    return path, store_of(path, tenants="ab")


def untouched(kueue):
    """Whether we never wrote ``suspend``, which is Kueue's."""
    return not [spec for spec in kueue.server.patched if "suspend" in spec]


def test_one_is_placed_once_admitted_and_the_quota_holds_the_next_one_back(plane, kueue, kube, tmp_path):
    path, store = plane
    kueue.quota = 2
    first = kueue.user_job("first", *command(tmp_path, "first", 3), gpus=2, notes={RUN_TIME: "0:30"})
    second = kueue.user_job("second", *command(tmp_path, "second", 0.2), gpus=1)
    with running(path):
        until(lambda: "AwaitsAdmission" in told(kube, first))
        assert store.jobs() == []
        assert "Kueue (queue q) has yet to admit it" in told(kube, first)["AwaitsAdmission"]
        kueue.start()
        until(lambda: lines(tmp_path, "first") == ["begin"])
        assert (of(store, second), kueue.is_suspended(second)) == (None, True)  # though two GPUs are free
        until(lambda: "AwaitsAdmission" in told(kube, second))
        rows = [ended(store, job) for job in (first, second)]
    assert [(row.status, row.attempts) for row in rows] == [("completed", 1)] * 2
    assert lines(tmp_path, "first") == lines(tmp_path, "second") == ["begin", "end"]
    until(lambda: condition(kube, "first", "Complete"))
    assert rows[1].started_s >= rows[0].ended_s
    assert untouched(kueue)
    assert ledger_problems(store) == []


def test_an_eviction_is_an_interruption_that_does_not_count_and_it_runs_once_more_when_admitted_anew(
    plane, kueue, kube, tmp_path
):
    path, store = plane
    kueue.start()
    job = kueue.user_job("train", *command(tmp_path, "train", 4), gpus=1)
    with running(path):
        for k in range(1, 3):
            until(lambda k=k: lines(tmp_path, "train").count("begin") == k)
            kueue.evict(job)
            until(lambda: of(store, job).status == "waiting" and not kube.pods_of(job))
            until(lambda: "has yet to admit it again" in (noted(kube, "train").get("commonwatt.io/reason") or ""))
            assert of(store, job).status == "waiting"
            beside = kueue.user_job(f"beside{k}", *command(tmp_path, "beside", 0.1), gpus=2)
            assert ended(store, beside).status == "completed"
            kueue.admit_again(job)
        row = ended(store, job)
    said = [event.sentence for event in store.events(job=row.id) if event.kind == "interrupted"]
    assert len(said) == 2
    assert all("Kueue (queue q) suspended its Job" in sentence for sentence in said)
    assert (row.status, row.attempts) == ("completed", 3)
    assert lines(tmp_path, "train") == ["begin"] * 3 + ["end"]
    assert [event.kind for event in store.events(job=row.id)].count("completed") == 1
    assert untouched(kueue)
    assert ledger_problems(store) == []


def test_one_evicted_and_admitted_anew_while_no_controller_ran_is_not_blamed(plane, kueue, kube, tmp_path):
    path, store = plane
    kueue.start()
    job = kueue.user_job("away", *command(tmp_path, "away", 3), gpus=1)
    with running(path):
        until(lambda: lines(tmp_path, "away") == ["begin"])
    kueue.evict(job, pause=False)
    until(lambda: uid_of(job) not in kueue._leaving and not kueue.is_suspended(job))
    with running(path):
        row = ended(store, job)
    assert (row.status, row.attempts) == ("completed", 2)
    assert lines(tmp_path, "away") == ["begin", "begin", "end"]
    assert untouched(kueue)


@pytest.fixture
def flavors(kube):
    """Nodes of two types, which Kueue tells apart by a label."""
    for name, value in (("gpu-0", "a"), ("gpu-1", "b")):
        kube.admin.merge(path_of("nodes", name=name), {"metadata": {"labels": {"flavor": value}}})
    yield {"a": {"flavor": "a"}, "b": {"flavor": "b"}}
    for name in ("gpu-0", "gpu-1"):
        kube.admin.merge(path_of("nodes", name=name), {"metadata": {"labels": {"flavor": None}}})


def placed_on(kube, job):
    return [pod["spec"].get("nodeName") for pod in kube.pods_of(job)]


def test_it_is_placed_where_the_flavor_that_kueue_chose_is_each_time(plane, kueue, kube, flavors, tmp_path):
    path, store = plane
    nodes = yaml.safe_load(path.read_text())["nodes"]
    changed(path, nodes=[nodes[0] | {"gpu_type": "A100"}, nodes[1]])
    kueue.flavor = flavors["b"]
    kueue.start()
    job = kueue.user_job("moves", *command(tmp_path, "moves", 5), gpus=1, notes={RUN_TIME: "0:30"})
    with running(path):
        until(lambda: lines(tmp_path, "moves") == ["begin"])
        assert placed_on(kube, job) == ["gpu-1"]
        assert of(store, job).file.gpu_types == ("V100",)
        kueue.evict(job)
        until(lambda: of(store, job).status == "waiting" and not kube.pods_of(job))
        kueue.admit_again(job, flavors["a"])
        until(lambda: lines(tmp_path, "moves").count("begin") == 2)
        assert placed_on(kube, job) == ["gpu-0"]
        other = kueue.user_job("other", *command(tmp_path, "other", 0.2), gpus=2)
        until(lambda: of(store, other))
        assert ended(store, job).status == "completed"
        assert ended(store, other).file.gpu_types == ("A100",)
    assert untouched(kueue)


def test_one_admitted_to_some_nodes_of_a_type_only_waits_and_says_so(plane, kueue, kube, flavors, tmp_path):
    path, store = plane
    kueue.start()
    job = kueue.user_job("train", *command(tmp_path, "train", 5), gpus=1)
    with running(path):
        until(lambda: lines(tmp_path, "train") == ["begin"])
        kueue.evict(job)
        until(lambda: of(store, job).status == "waiting")
        kueue.admit_again(job, flavors["a"])  # both nodes are V100
        said = until(lambda: told(kube, job).get("NotTakenOver"))
        assert "a node selector and an affinity that all nodes of a GPU type admit (V100)" in said
        new = kueue.user_job("new", *command(tmp_path, "new", 0.1), gpus=1)
        until(lambda: "NotTakenOver" in told(kube, new))
        assert (of(store, new), of(store, job).status) == (None, "waiting")
        assert set(placed_on(kube, job) + placed_on(kube, new)) == {None}
        kueue.evict(job)
        until(lambda: not kube.pods_of(job))
        kueue.admit_again(job, {})
        assert ended(store, job).status == "completed"
    assert lines(tmp_path, "train") == ["begin", "begin", "end"]


def test_our_preemption_beside_it_makes_its_pods_anew_and_leaves_its_suspension_alone(plane, kueue, kube, tmp_path):
    path, store = plane
    changed(path, preemption={"restart_s": 0})
    kueue.start()
    log = tmp_path / "long.log"
    work = ("sh", "-c", f"echo begin >> {log}; sleep 6; echo end >> {log}")
    job = kueue.user_job("long", *work, gpus=2, pods=2, notes={RUN_TIME: "1:00"}, backoffLimit=9)
    with running(path):
        until(lambda: lines(tmp_path, "long") == ["begin"] * 2)
        now_s = time.time()
        urgent = witness("urgent", tmp_path, 0.5, gpus=1, times_s={"V100": {1: 0.5}}, tardiness_weight=50.0)
        number = store.submit("b", urgent, now_s, due_s=now_s)[0].id
        until(lambda: store.job(number).status == "completed")
        assert of(store, job).status != "completed"
        assert not kueue.is_suspended(job)
        row = ended(store, job)
    assert (row.status, row.attempts) == ("completed", 2)
    assert "preempted" in [event.kind for event in store.events(job=row.id)]
    assert untouched(kueue)
    assert ledger_problems(store) == []


def test_one_cancelled_here_makes_no_more_pods_whatever_kueue_does_and_its_quota_is_free(plane, kueue, kube, tmp_path):
    path, store = plane
    kueue.quota = 2
    kueue.start()
    runs = kueue.user_job("first", *command(tmp_path, "runs", 300), gpus=2)
    evicted = kueue.user_job("second", *command(tmp_path, "evicted", 300), gpus=2)
    with running(path):
        until(lambda: lines(tmp_path, "runs") == ["begin"])
        store.ask(RequestKind.CANCEL, time.time(), job=of(store, runs).id)
        assert ended(store, runs).status == "cancelled"
        until(lambda: lines(tmp_path, "evicted") == ["begin"])  # in the quota that this one has left
        kueue.evict(evicted)
        until(lambda: of(store, evicted).status == "waiting")
        store.ask(RequestKind.CANCEL, time.time(), job=of(store, evicted).id)
        assert ended(store, evicted).status == "cancelled"
        until(lambda: kueue.job(evicted)["spec"]["parallelism"] == 0)
        kueue.admit_again(evicted)
        until(lambda: not kueue.is_suspended(evicted) and not kueue.is_suspended(runs))
    with running(path):  # which takes neither over again
        probe = kueue.user_job("probe", *command(tmp_path, "probe", 0.1), gpus=2)
        assert ended(store, probe).status == "completed"
    assert len(store.jobs(limit=100)) == 3
    assert {job["spec"]["parallelism"] for job in (kueue.job(runs), kueue.job(evicted))} == {0}
    assert kube.pods_of(runs) == kube.pods_of(evicted) == []
    assert untouched(kueue)


def test_what_was_never_suspended_is_not_placed_until_kueue_has_admitted_it(plane, kueue, kube, tmp_path):
    path, store = plane
    job = kueue.user_job("bold", *command(tmp_path, "bold", 0.2), webhook=False)
    with running(path):
        assert "spec.suspend" in until(lambda: told(kube, job).get("NotTakenOver"))
        probe = kube.user_job("probe", *command(tmp_path, "probe", 0.1))
        assert ended(store, probe).status == "completed"
        assert (of(store, job), placed_on(kube, job)) == (None, [None])
        kueue.start()  # which suspends what it has not admitted
        assert ended(store, job).status == "completed"
    assert lines(tmp_path, "bold") == ["begin", "end"]


def test_what_multikueue_manages_or_the_site_leaves_to_kueue_is_left_alone(plane, kueue, kube, tmp_path):
    path, store = plane
    far = kueue.user_job("far", *command(tmp_path, "far", 0.1), managedBy=MULTIKUEUE)
    with running(path):
        probe = kube.user_job("probe", *command(tmp_path, "probe", 0.1))
        assert ended(store, probe).status == "completed"
    config = yaml.safe_load(path.read_text())
    config["live"]["kubernetes"]["kueue"] = "leave"
    path.write_text(yaml.safe_dump(config))
    kueue.start()
    left = kueue.user_job("left", *command(tmp_path, "left", 0.1))
    with running(path):
        until(lambda: kube.pods_of(left))
        probe = kube.user_job("probe2", *command(tmp_path, "probe2", 0.1))
        assert ended(store, probe).status == "completed"
        assert placed_on(kube, left) == [None]
    assert [row.name for row in store.jobs(limit=100)] == ["probe", "probe2"]
    assert told(kube, far) == told(kube, left) == {}
    assert kueue.job(far)["spec"]["parallelism"] == 1
    assert untouched(kueue)


def test_the_controller_is_killed_again_and_again_amid_evictions_and_each_job_ends_once(plane, kueue, kube, tmp_path):
    path, store = plane
    rng = np.random.default_rng(5)
    kueue.quota = 3
    kueue.start()
    jobs = []
    child = controller(path)
    try:
        for k in range(6):
            jobs.append(
                kueue.user_job(f"k{k}", *command(tmp_path, f"k{k}", float(rng.uniform(0.5, 3))), gpus=1 + k % 2)
            )
            time.sleep(float(rng.uniform(0.0, 1.5)))
            admitted = [job for job in jobs if uid_of(job) in kueue.admitted]
            if admitted:
                kueue.evict(admitted[int(rng.integers(len(admitted)))], pause=False)
            time.sleep(float(rng.uniform(0.0, 0.6)))
            kill(child)
            time.sleep(float(rng.uniform(0.0, 0.6)))
            child = controller(path)
        rows = [ended(store, job) for job in jobs]
    finally:
        kill(child)
    assert {row.status for row in rows} == {"completed"}
    assert len(store.jobs(limit=100)) == len(jobs)
    for row in rows:
        done = lines(tmp_path, row.name)
        assert (done[-1], done.count("end")) == ("end", 1)
        assert "twice" not in done
        kinds = [event.kind for event in store.events(job=row.id)]
        assert kinds.count("submitted") == kinds.count("completed") == 1
    assert untouched(kueue)
    assert ledger_problems(store) == []
