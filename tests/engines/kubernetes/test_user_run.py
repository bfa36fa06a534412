"""How a run of a user's Job ends, by what Kubernetes says of its pods and of the Job."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from commonwatt.control.engine import JobInterrupted
from commonwatt.control.events import report_of
from commonwatt.engines.kubernetes.objects import PodSeen, pod_of
from commonwatt.engines.kubernetes.run import KubernetesRun, change_of
from commonwatt.engines.kubernetes.settings import KubernetesSettings
from commonwatt.engines.kubernetes.snapshot import snapshot_of
from commonwatt.engines.kubernetes.user_gang import user_job_of
from commonwatt.engines.kubernetes.user_run import UserJobRun
from commonwatt.engines.local.folder import RunFolder
from commonwatt.engines.reports import Reports
from commonwatt.engines.run_spec import JobWork, RunSpec

from .test_user_job import item

NOW_S = 1_795_600_800.0  # 2026-11-25 10:00 UTC
SETTINGS = KubernetesSettings(lag_s=0.0)


def run_in(folder, pods=1):
    names = tuple(f"n{k}" for k in range(pods))
    spec = RunSpec(
        handle=1, attempt=1, name="1-train", nodes=tuple(range(pods)), gpus_per_node=1, slots=((),) * pods,
        started_s=NOW_S - 600, base_epochs=0.0, command=("batch/v1/Job", "team-a/train"), folder="/", environment={},
        grace_s=1.0, node_names=names, workload=("team-a", "train", "u1"),
    )  # fmt: skip
    return UserJobRun(RunFolder.create(folder / "runs", spec), spec, now_s=lambda: NOW_S, job=user_job_of(item()))


def pod(rank=0, code=None, phase="Failed", reason="Error", **meta):
    state = {"running": {"startedAt": "2026-11-25T09:51:00Z"}}
    if code is not None:
        times = {"startedAt": "2026-11-25T09:51:00Z", "finishedAt": "2026-11-25T09:59:00Z"}
        state = {"terminated": {"exitCode": code, "reason": reason, **times}}
    owner = {"uid": "u1", "controller": True}
    return pod_of({
        "metadata": {
            "namespace": "team-a", "name": f"train-{rank}", "uid": f"p{rank}", "ownerReferences": [owner],
            "annotations": {"commonwatt.io/cluster": "ours"}, **meta,
        },
        "spec": {"nodeName": f"n{rank}", "schedulerName": "commonwatt"},
        "status": {"phase": phase, "containerStatuses": [{"state": state}]},
    })  # fmt: skip


def marks_of(run):
    return {
        "commonwatt.io/cluster": "ours", "commonwatt.io/job": "1", "commonwatt.io/attempt": "1",
        "commonwatt.io/rank": "0", "commonwatt.io/run": run.mark,
    }  # fmt: skip


def ended(run, *pods, gone=()):
    if not run.has_chosen():
        run.choose([pod(rank) for rank in run.ranks])
    there = {one.uid: one for one in pods}
    return run.ended(run.seen(there, {one.uid: one for one in gone}), SETTINGS)


def failed(job, why="BackoffLimitExceeded"):
    return replace(job, end="Failed", why=f"{why}: said so", timed_out=why == "DeadlineExceeded")


def test_a_gang_leaves_the_nodes_on_which_nothing_of_it_runs_once_all_else_is_on_lost_ones(tmp_path):
    run = run_in(tmp_path, pods=3)
    pods = [pod(0, code=137), pod(1, phase="Running"), pod(2, phase="Running")]
    run.choose(pods)

    def left(gone, *lost):
        there = {one.uid: one for one in pods if one not in gone}
        return run.left(run.seen(there, {one.uid: one for one in gone}), lost)

    assert left([]) == {}
    assert left([], "n1") == {}  # another goes on
    assert left([pods[2]], "n1") == {0: NOW_S - 60, 2: NOW_S}
    assert left([], "n1", "n2") == {0: NOW_S - 60}
    assert left(pods, "n1") == {}  # it is over
    run.released[0] = NOW_S
    assert left([pods[2]], "n1") == {2: NOW_S}


def test_what_succeeds_is_completed_and_took_as_long_as_its_container_ran(tmp_path):
    run = run_in(tmp_path)
    assert ended(run, pod(code=0, phase="Succeeded")) is None  # its Job does not count it yet
    run.job = replace(run.job, succeeded=1)
    end = ended(run, pod(code=0, phase="Succeeded"))
    assert (end.exit_code, end.stopped, end.ran_s, end.at_s) == (0, False, 480.0, NOW_S - 60)


def test_a_job_is_not_complete_if_a_pod_that_had_succeeded_was_deleted(tmp_path, monkeypatch):
    run, now_s = run_in(tmp_path, pods=2), time.monotonic()
    first, second = pod(code=0, phase="Succeeded"), pod(1, code=0, phase="Succeeded")
    run.job = replace(run.job, succeeded=1)
    assert ended(run, first, pod(1, phase="Running")) is None
    assert ended(run, second, gone=(first,)) is None  # Kubernetes may be about to say so
    monkeypatch.setattr(time, "monotonic", lambda: now_s + SETTINGS.lag_s + 5)
    end = ended(run, second, gone=(first,))
    assert (end.exit_code, end.stopped) == (None, False)
    assert end.cause == "1 of its 2 pods count as succeeded: one that had was deleted, or is not its"
    run.job = replace(run.job, end="Complete")
    assert ended(run, second, gone=(first,)).exit_code == 0


def test_a_pod_that_its_job_does_not_own_any_more_is_not_waited_for(tmp_path):
    run = run_in(tmp_path)
    while (end := ended(run, replace(pod(code=0, phase="Succeeded"), owner=""))) is None:
        time.sleep(0.01)
    assert (end.exit_code, end.reason) == (None, "taken-away")


def test_pods_are_charged_beyond_the_failure_of_their_job_and_not_beyond_its_completion(tmp_path):
    run = run_in(tmp_path)
    run.choose([pod()])
    seen = run.seen({"p0": pod(code=137)}, {})
    run.job = replace(run.job, end="Failed", end_s=NOW_S - 300)
    assert run.over_s(seen) == NOW_S - 60
    run.job = replace(run.job, end="Complete")
    assert run.over_s(seen) == NOW_S - 300


def test_a_failed_pod_is_an_interruption_until_its_job_has_failed(tmp_path):
    end = ended(run_in(tmp_path / "again"), pod(code=3))
    assert (end.exit_code, end.cause) == (None, "it failed (exit code 3); its Job tries again")
    run = run_in(tmp_path / "over")
    run.job = failed(run.job)
    end = ended(run, pod(code=3))
    assert end.exit_code == 3
    assert end.cause == "its Job has failed: BackoffLimitExceeded: said so (exit code 3)"


def test_what_failed_or_was_deleted_is_paid_unless_its_nodes_are_not_in_order(tmp_path):
    run = run_in(tmp_path / "failed")
    change = JobInterrupted(1, NOW_S, 60.0, "it failed")
    assert change_of(run, change, ended(run, pod(code=3)), requeue=False).paid
    assert run.folder.end().reason == "own"  # as the next controller reads it
    run = run_in(tmp_path / "deleted")
    run.job = None
    end = ended(run, gone=[pod(phase="Running", deletionTimestamp="2026-11-25T09:59:00Z")])
    assert change_of(run, change, end, requeue=True).paid
    run = run_in(tmp_path / "disrupted")
    change = JobInterrupted(1, NOW_S, 60.0, "it was deleted")
    while (end := ended(run, gone=[pod(phase="Running", deletionTimestamp="2026-11-25T09:59:00Z")])) is None:
        time.sleep(0.01)
    assert change_of(run, change, end, requeue=True).paid  # by whom is unknown; its nodes are in order
    assert change_of(run, change, end, requeue=False).reason == "pod-deleted"
    assert not change_of(run, change, end, requeue=True, away=True).paid


def test_what_its_owner_evicts_or_what_takes_too_much_is_paid_and_what_a_node_lacks_is_not(tmp_path):
    change = JobInterrupted(1, NOW_S, 60.0, "it was evicted")

    def paid(name, away=False, **more):
        run = run_in(tmp_path / f"{name}{away}")
        while (end := ended(run, replace(pod(code=137), **more))) is None:
            time.sleep(0.01)
        return change_of(run, change, end, requeue=False, away=away).paid

    by_api = {"disruption": "EvictionByEvictionAPI"}
    assert paid("api", **by_api)
    assert not paid("api", away=True, **by_api)  # its node is drained
    assert paid("storage", overused=True)
    assert not paid("short", reason="Evicted")


def test_one_that_its_job_has_ended_has_failed_also_if_it_exits_with_0(tmp_path):
    run = run_in(tmp_path / "first")
    run.job = failed(run.job, "DeadlineExceeded")
    end = ended(run, pod(code=0, phase="Succeeded"))
    assert (end.exit_code, end.reason) == (124, "time-limit")
    run = run_in(tmp_path / "later")
    assert ended(run, pod(code=0, phase="Succeeded")) is None  # as the pod is over before its Job says so
    run.job = replace(failed(run.job, "DeadlineExceeded"), succeeded=1)
    end = ended(run, pod(code=0, phase="Succeeded"))
    assert (end.exit_code, end.reason) == (124, "time-limit")


def test_a_failed_pod_is_not_judged_before_its_job_could_be(tmp_path):
    run = run_in(tmp_path)
    run.choose([pod()])
    seen = run.seen({"p0": pod(code=3)}, {})
    assert run.ended(seen, KubernetesSettings(lag_s=1000.0)) is None
    run.job = failed(run.job)
    assert run.ended(seen, KubernetesSettings(lag_s=1000.0)).exit_code == 3


@pytest.mark.parametrize(
    ("why", "reason", "code"), [("DeadlineExceeded", "time-limit", 124), ("BackoffLimitExceeded", "", 124)]
)
def test_a_job_that_failed_without_a_pod_says_why(tmp_path, why, reason, code):
    run = run_in(tmp_path)
    run.job = failed(run.job, why)
    end = ended(run, gone=[pod(phase="Running")])
    assert (end.exit_code, end.reason) == (code, reason)


def test_a_job_that_is_complete_is_completed_though_its_pods_are_gone(tmp_path):
    run = run_in(tmp_path)
    run.job = replace(run.job, end="Complete")
    assert ended(run).exit_code == 0


@pytest.mark.parametrize(
    ("job", "cause"), [(True, "its pod was deleted in Kubernetes, not by commonwatt"), (False, "its Job was deleted")]
)
def test_a_pod_that_is_gone_is_an_interruption(tmp_path, job, cause):
    run = run_in(tmp_path)
    run.job = run.job if job else None
    deadline_s = time.monotonic() + 30.0
    while (end := ended(run, gone=[pod(phase="Running", deletionTimestamp="2026-11-25T09:59:00Z")])) is None:
        assert time.monotonic() < deadline_s
    assert (end.exit_code, end.stopped, end.cause, end.ran_s) == (None, False, cause, 540.0)


def test_one_that_somebody_suspends_says_how_to_hold_it_and_is_paid(tmp_path):
    run = run_in(tmp_path)
    run.job = replace(run.job, suspended=True)
    while (end := ended(run, gone=[pod(phase="Running", deletionTimestamp="2026-11-25T09:59:00Z")])) is None:
        time.sleep(0.01)
    assert (end.exit_code, end.reason) == (None, "own")
    assert end.cause == "its Job was suspended, not by commonwatt: `commonwatt hold` keeps a job from running"


@pytest.mark.parametrize(
    ("suspended", "cause"),
    [
        (True, "Kueue (queue q) suspended its Job"),
        (False, "its pod was deleted, as Kueue (queue q) does to suspend it"),
    ],
)
def test_a_pod_that_kueue_may_have_taken_is_nobodys_fault_and_another_one_is(tmp_path, suspended, cause):
    deleted = "2026-11-25T09:59:00Z"
    kills = {"code": 143, "deletionTimestamp": deleted}  # it exits with an error on SIGTERM
    for name, there, gone in (
        ("gone", (), (pod(phase="Running", deletionTimestamp=deleted),)),
        ("ending", (pod(**kills),), ()),
        ("never-seen", (), ()),
    ):
        run = run_in(tmp_path / name)
        run.job = replace(run.job, queue="q", suspended=suspended)
        deadline_s = time.monotonic() + 30.0
        while (end := ended(run, *there, gone=gone)) is None:
            assert time.monotonic() < deadline_s
        assert (end.exit_code, end.stopped, end.cause, end.reason) == (None, False, cause, "evicted")
        assert run.folder.end().reason == "evicted"  # as the next controller reads it
        change = JobInterrupted(1, NOW_S, 0.0, end.cause)
        assert not change_of(run, change, end, requeue=False).blamed
        assert change_of(run, change, end, requeue=False).paid  # its owner may have written the name of the queue
        assert not change_of(run, change, end, requeue=False, away=True).paid
        plain = KubernetesRun(run.folder, replace(run.spec, workload=()))  # what it writes down is its user's
        assert change_of(plain, change, end, requeue=False).blamed
    run = run_in(tmp_path / "own")
    run.job = replace(run.job, queue="q", suspended=suspended)
    assert "it failed (exit code 3)" in ended(run, pod(code=3)).cause
    assert ended(run, pod(code=3)).reason == "own"


def test_a_pod_that_was_placed_and_deleted_while_nobody_looked_may_have_run(tmp_path):
    run = run_in(tmp_path)
    run.choose([pod()])
    run.note_bound()
    deadline_s = time.monotonic() + 30.0
    while (end := ended(run)) is None:
        assert time.monotonic() < deadline_s
    assert run.begun(end)
    assert (end.exit_code, end.cause, end.ran_s) == (
        None,
        "its pod is not there, and left no record: it was deleted, or never made",
        600.0,
    )


def test_one_that_was_stopped_has_stopped_also_before_it_had_pods(tmp_path):
    run = run_in(tmp_path / "early")
    run.note_deleted()
    assert run.ended(run.seen({}, {}), SETTINGS).stopped
    run = run_in(tmp_path / "late")
    run.choose([pod()])
    run.note_deleted()
    assert run.ended(run.seen({"p0": pod(phase="Running")}, {}), SETTINGS) is None
    assert ended(run, gone=[pod(phase="Running")]).stopped


def test_a_gang_ends_with_its_last_pod_and_as_the_first_that_failed(tmp_path):
    run = run_in(tmp_path, pods=2)
    run.choose([pod(0), pod(1)])
    again = run_in(tmp_path / "later", pods=2)  # what was chosen is on disk
    again.folder = run.folder
    assert [again.pod_uid(rank) for rank in again.ranks] == ["p0", "p1"]
    bad, good = pod(0, code=7), pod(1, phase="Running")
    seen = again.seen({"p0": bad, "p1": good}, {})
    assert again.ended(seen, SETTINGS) is None
    assert again.overstayers(seen, SETTINGS, None) == [good]
    again.note_deleted()
    end = ended(again, bad, gone=[good])
    assert (end.exit_code, end.stopped) == (None, False)
    assert end.cause == "pod 0: it failed (exit code 7); its Job tries again"


def test_what_ends_unseen_waits_for_its_job_whatever_ended_before(tmp_path):
    run = run_in(tmp_path, pods=2)
    done, bad = pod(0, code=0, phase="Succeeded"), pod(1, code=3)
    assert ended(run, done, pod(1, phase="Running")) is None  # the first has its record
    run.unseen = True
    while (end := ended(run, done, bad)) is None:
        time.sleep(0.01)
    assert (end.exit_code, end.stopped) == (None, False)
    assert end.cause == "its pods are over, and its Job may not be looked at"


def test_a_gang_keeps_its_gpus_and_pays_for_them_while_others_of_its_pods_go_on(tmp_path):
    run = run_in(tmp_path, pods=2)
    run.spec = replace(run.spec, workload=(*run.spec.workload, "2"))
    run.job = replace(run.job, kind="JobSet")
    run.choose([pod(0), pod(1)])
    done = {f"p{rank}": pod(rank, code=0, phase="Succeeded") for rank in (0, 1)}
    assert run.over_s(run.seen(done, {})) is None
    assert run.over_s(run.seen({**done, "p1": pod(1, code=3)}, {})) == NOW_S - 60
    run.job = replace(run.job, end="Complete", end_s=NOW_S - 30)
    assert run.over_s(run.seen(done, {})) == NOW_S - 60


def test_a_pod_chosen_before_a_crash_and_gone_since_is_not_waited_for(tmp_path):
    run = run_in(tmp_path)
    run.choose([pod()])
    assert run.seen({}, {}) == {0: PodSeen(None, gone=True)}


def test_annotations_that_somebody_else_wrote_change_nothing(tmp_path):
    run = run_in(tmp_path)
    mine = replace(pod(phase="Running", annotations=marks_of(run)), requests=(("nvidia.com/gpu", 1.0),))
    forged = replace(mine, uid="p9", owner="another", node="n1")
    elsewhere = replace(mine, uid="p8", namespace="team-b", node="n1")
    plain = KubernetesRun(run.folder, replace(run.spec, workload=()))

    def seen(*pods, runs=(run,)):
        return snapshot_of(pods, [], runs, "ours", "commonwatt", 0.0, ("team-a",))

    assert seen(mine, forged, elsewhere).own == {(1, 1, 0): mine}
    assert seen(forged, elsewhere, runs=(plain,)).own == {}
    assert seen(mine, forged).others == {"n1": {"nvidia.com/gpu": 1.0, "pods": 1.0}}
    assert seen(forged, elsewhere).stray == (forged,)  # in our users' namespaces, none keeps GPUs in our name
    assert seen(replace(forged, phase="Failed")).stray == ()


@pytest.mark.parametrize("gone", ["annotations", "ownerReferences"])
def test_a_pod_that_was_chosen_stays_ours_whatever_its_owner_takes_off(tmp_path, monkeypatch, gone):
    """It ran on, charged to nobody, and what had been charged was paid back."""
    run = run_in(tmp_path)
    run.choose([pod(phase="Running")])
    run.note_bound()
    now = pod(phase="Running", **{gone: {} if gone == "annotations" else []})
    shown = snapshot_of([now], [], [run], "ours", "commonwatt", 0.0, ("team-a",))
    assert (list(shown.own.values()), shown.others, shown.stray) == ([now], {}, ())
    monkeypatch.setattr(run, "waiting_s", -1e9)
    assert run.stalled(run.seen({now.uid: now}, {}), SETTINGS) is None
    assert run.over_s(run.seen({now.uid: now}, {})) is None


def test_pods_of_a_run_that_has_ended_before_them_have_to_go_by_their_uid(tmp_path):
    bare, over = pod(phase="Running", annotations={}), pod(1, phase="Failed", annotations={})
    shown = snapshot_of([bare, over], [], [], "ours", "commonwatt", 0.0, ("team-a",), {bare.uid, over.uid})
    assert shown.stray == (bare,)
    assert shown.others.keys() == {"n0"}


def test_a_pod_that_the_next_run_has_chosen_does_not_go(tmp_path):
    run, waits = run_in(tmp_path), replace(pod(phase="Pending", annotations={}), node="")
    run.choose([waits])
    shown = snapshot_of([waits], [], [run], "ours", "commonwatt", 0.0, ("team-a",), {waits.uid})
    assert (shown.own, shown.stray, shown.others) == ({}, (), {})


def test_another_pod_of_the_same_job_with_our_annotations_is_not_the_chosen_one(tmp_path):
    """Its GPUs counted as free."""
    run = run_in(tmp_path)
    mine = pod(phase="Running", annotations=marks_of(run))
    run.choose([mine])
    forged = replace(mine, uid="zz", node="n7", requests=(("nvidia.com/gpu", 8.0),))
    shown = snapshot_of([mine, forged], [], [run], "ours", "commonwatt", 0.0, ("team-a",))
    assert shown.own == {(1, 1, 0): mine}
    assert shown.others["n7"]["nvidia.com/gpu"] == 8.0
    assert shown.stray == (forged,)


def test_one_that_was_stopped_and_exits_with_0_is_complete_and_that_is_said(tmp_path):
    """Kubernetes counts it as success: it makes no other pod, so the job cannot go on."""
    run = run_in(tmp_path)
    run.choose([pod()])
    run.note_deleted()
    end = ended(run, pod(code=0, phase="Succeeded", deletionTimestamp="2026-11-25T09:58:00Z"))
    assert end.exit_code == 0
    assert end.cause.startswith("told to stop, its program ended with exit code 0")
    change = Reports(tmp_path, lambda _: JobWork(command=("x",), epochs=1)).change(run.spec, end)
    said = "train completed: told to stop, its program ended with exit code 0: Kubernetes counts that as success"
    assert report_of(change, "train", (0,), 1).sentence.startswith(said)
    assert report_of(replace(change, reason=""), "train", (0,), 1).sentence == ""
    other = run_in(tmp_path / "other")
    other.choose([pod()])
    other.job = replace(other.job, succeeded=1)
    assert ended(other, pod(code=0, phase="Succeeded")).cause == ""


def test_one_whose_pods_have_yet_to_come_is_pending_and_does_not_wait_anew_for_each_engine(tmp_path):
    run = run_in(tmp_path)
    assert run.pending
    assert time.monotonic() - run.waiting_s == pytest.approx(45.0, abs=1.0)  # of a minute
    run.choose([pod()])
    assert run.pending
    run.note_bound()
    assert not run.pending
    later = UserJobRun(run.folder, run.spec, now_s=lambda: NOW_S, job=run.job)
    assert not later.pending  # it may have run all the time: it is charged since the last reading
    waits = pod_of({"metadata": {"namespace": "team-a", "name": "train-0", "uid": "p0"}})
    later.looked_at(lambda _: run.job, {"p0": waits}, {})
    assert later.pending
