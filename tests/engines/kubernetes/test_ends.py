"""How a run ended, by what its runner wrote and what its pod says: documents, as 1.20 cannot show all causes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commonwatt.control.engine import JobEnded, JobInterrupted, JobLeft, Outcome
from commonwatt.engines.kubernetes.objects import CLUSTER, PodSeen, pod_of
from commonwatt.engines.kubernetes.run import KubernetesRun, change_of, verdict
from commonwatt.engines.kubernetes.settings import KubernetesSettings, rank_specs
from commonwatt.engines.local.folder import End, RunFolder
from commonwatt.engines.run_spec import RunSpec
from commonwatt.engines.state_folder import write_record

NOW_S = 1e9
SETTINGS = KubernetesSettings(lag_s=0.0, start_s=5.0)
IMMEDIATE = KubernetesSettings(lag_s=0.0, start_s=-1.0)


def seen(phase="Failed", state=None, *, gone=False, condition=None, **status):
    conditions = [] if condition is None else [{"type": "DisruptionTarget", "status": "True", "reason": condition}]
    statuses = [] if state is None else [{"state": state}]
    item = {
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {CLUSTER: "x"}}, "spec": {"nodeName": "a"},
        "status": {"phase": phase, "containerStatuses": statuses, "conditions": conditions, **status},
    }  # fmt: skip
    return PodSeen(pod_of(item), gone)


def terminated(code, reason="Error", message=""):
    return {
        "terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": "2001-09-09T01:46:30Z"}
    }


def waiting(reason, message=""):
    return {"waiting": {"reason": reason, "message": message}}


@pytest.mark.parametrize(
    ("pod", "code", "reason", "words"),
    [
        (seen(state=terminated(137, "OOMKilled")), 137, "out-of-memory", "OOMKilled"),
        (seen(state=terminated(128, "StartError", "exec: python3: not found")), 128, "not-executable", "python3"),
        (seen(state=terminated(127, "ContainerCannotRun")), 127, "not-executable", "python3"),
        (seen(reason="DeadlineExceeded", message="active too long"), 124, "time-limit", "active too long"),
        (seen(reason="Evicted", message="low on memory"), None, "", "evicted its pod (Evicted): low on memory"),
        (seen(reason="OutOfnvidia.com/gpu", message="requested: 2"), None, "", "refused its pod (OutOfnvidia.com/gpu)"),
        (seen(reason="NodeLost"), None, "", "node was lost"),
        (seen(reason="Terminated", message="node shutdown"), None, "", "shut down"),
        (seen(reason="Preempting"), None, "", "critical pod"),
        (seen(reason="UnexpectedAdmissionError"), None, "", "refused"),
        (seen(state=terminated(137, "ContainerStatusUnknown")), None, "", "lost its container"),
        (seen(state=terminated(143), condition="PreemptionByScheduler"), None, "", "another pod"),
        (seen(state=terminated(143), condition="EvictionByEvictionAPI"), None, "", "drained"),
        (seen(state=terminated(143), condition="SomethingNew"), None, "", "disrupted (SomethingNew)"),
        (seen(state=terminated(137), gone=True), None, "", "deleted in Kubernetes, not by commonwatt"),
        (seen(state=terminated(1)), None, "", "exit code 1) without a record"),
        (PodSeen(None, gone=True), None, "", "is not there, and left no record"),
    ],
)  # fmt: skip
def test_what_a_pod_without_a_record_says(pod, code, reason, words):
    end = verdict(pod, NOW_S, asked=False, python="python3")
    assert (end.exit_code, end.reason, end.stopped) == (code, reason, False)
    assert words in end.cause


def test_what_we_stopped_is_stopped_whatever_its_pod_says():
    assert verdict(seen(state=terminated(137, "OOMKilled")), NOW_S, asked=True, python="python3").stopped


@pytest.fixture
def run(tmp_path):
    return run_in(tmp_path)


def run_in(folder, nodes=("a",)):
    spec = RunSpec(
        handle=1, attempt=1, name="j", nodes=tuple(range(len(nodes))), gpus_per_node=1, slots=((),) * len(nodes),
        started_s=NOW_S - 100, base_epochs=0.0, command=("true",), folder="/", environment={}, grace_s=1.0,
        lock=f"{folder}/lock", node_names=nodes,
    )  # fmt: skip
    made = KubernetesRun(RunFolder.create(folder / "runs", spec), spec, placed=True, now_s=lambda: NOW_S)
    for rank in made.ranks[1:]:
        made.rank_folder(rank).path.mkdir()
    return made


def finish(run, rank=0, code=0, *, stopped=False, at_s=NOW_S - 10):
    run.rank_folder(rank).finish(End(code, stopped, at_s, f"exit code {code}", 1.0))


def test_a_run_has_ended_when_its_pod_is_over_and_not_before(run):
    finish(run)
    assert run.ended({0: seen("Running", {"running": {}})}, SETTINGS) is None
    assert run.ended({0: seen("Succeeded", terminated(0, "Completed"))}, SETTINGS).exit_code == 0


def test_a_record_may_come_late(run):
    patient = KubernetesSettings(lag_s=60.0)
    over = {0: seen("Succeeded", terminated(0, "Completed"))}
    assert run.ended(over, patient) is None
    finish(run)
    assert run.ended(over, patient).exit_code == 0


def test_what_killed_a_job_is_what_its_pod_says(run):
    finish(run, code=-9)
    end = run.ended({0: seen(state=terminated(137, "OOMKilled"))}, SETTINGS)
    assert (end.exit_code, end.reason) == (-9, "out-of-memory")


def test_a_stop_that_was_not_ours_is_an_interruption_with_its_cause(run):
    finish(run, code=0, stopped=True)
    end = run.ended({0: seen(state=terminated(0, "Completed"), reason="Evicted")}, SETTINGS)
    assert end.exit_code is None
    assert "evicted" in end.cause


SIDECAR = {"name": "istio-proxy", "state": {"running": {}}}


def beside(state):
    """A pod of ours in which a webhook has added a container that runs on."""
    return seen("Running", containerStatuses=[{"name": "job", "state": state}, SIDECAR])


def test_a_container_that_a_webhook_has_added_does_not_keep_the_pod(run):
    """Such a job never ended."""
    at_once = KubernetesSettings(lag_s=0.0, grace_s=0.0, patience_s=0.0)
    assert run.finished({0: beside({"running": {}})}, at_once) == []
    assert run.finished({0: beside(terminated(0, "Completed"))}, KubernetesSettings()) == []  # its end may come yet
    finish(run)
    now = {0: beside(terminated(0, "Completed"))}
    run.missing_s[0] = -1e9
    assert run.finished(now, at_once) == [now[0].pod]
    assert not run.deleted_by_us()
    assert run.ended({0: PodSeen(now[0].pod, gone=True)}, SETTINGS).exit_code == 0


def test_how_a_job_ended_is_on_disk_before_its_pod_is_deleted_for_such_a_container(run):
    now = {0: beside(terminated(137, "OOMKilled"))}
    run.missing_s[0] = -1e9
    assert run.finished(now, KubernetesSettings()) == [now[0].pod]
    assert run.ended({0: PodSeen(now[0].pod, gone=True)}, SETTINGS).reason == "out-of-memory"


@pytest.mark.parametrize("gone", [True, False])
def test_what_killed_a_job_stays_so_when_its_pod_is_deleted_for_such_a_container(run, gone):
    """It counted as deleted by somebody else, and was started again and again."""
    finish(run, code=-11)
    now = {0: beside(terminated(139))}
    run.missing_s[0] = -1e9
    assert run.finished(now, SETTINGS) == [now[0].pod]
    last = PodSeen(replace(now[0].pod, deleting=True, phase="Failed"), gone)
    assert run.ended({0: last}, SETTINGS).exit_code == -11
    assert run.ended({0: PodSeen(None, gone=True)}, SETTINGS).exit_code == -11  # after a restart


def test_a_run_given_up_has_ended_whatever_its_pod_does(run):
    written = run.give_up(End(None, stopped=False, at_s=NOW_S, cause="node a is lost"))
    assert written.cause == "node a is lost"
    assert run.ended({0: seen("Running", {"running": {}})}, SETTINGS).cause == "node a is lost"


def test_a_record_of_the_runner_outweighs_giving_up(run):
    finish(run, code=3)
    assert run.give_up(End(None, stopped=False, at_s=NOW_S, cause="node a is lost")).exit_code == 3


@pytest.mark.parametrize(
    ("why", "at_once", "reason"),
    [("InvalidImageName", True, "image-not-pulled"), ("ErrImageNeverPull", True, "image-not-pulled"),
     ("ImagePullBackOff", False, "image-not-pulled"), ("CreateContainerConfigError", False, "pod-refused")],
)  # fmt: skip
def test_pods_that_do_not_start(run, why, at_once, reason):
    pods = {0: seen("Pending", waiting(why, "no such image"))}
    assert (run.stalled(pods, SETTINGS) is not None) is at_once
    end = run.stalled(pods, IMMEDIATE)
    assert (end.exit_code, end.reason) == (125, reason)
    assert "no such image" in end.cause


def test_a_pod_that_only_takes_long_is_withdrawn_without_blame(run):
    end = run.stalled({0: seen("Pending", waiting("ContainerCreating"))}, IMMEDIATE)
    assert end.exit_code is None
    assert "ContainerCreating" in end.cause
    assert run.stalled({0: seen("Running", {"running": {}})}, IMMEDIATE) is None


def gang(folder):
    return run_in(folder, nodes=("a", "b"))


RUNS, DONE = seen("Running", {"running": {}}), seen("Succeeded", terminated(0, "Completed"))


def test_a_gang_fails_with_its_first_failure_and_the_others_have_to_go(tmp_path):
    run = gang(tmp_path)
    finish(run, rank=1, code=3)
    pods = {0: RUNS, 1: seen(state=terminated(3))}
    assert run.ended(pods, SETTINGS) is None
    assert run.overstayers(pods, SETTINGS, None) == [RUNS.pod]
    finish(run, rank=0, code=0, stopped=True)
    end = run.ended({0: seen(state=terminated(0), gone=True), 1: pods[1]}, SETTINGS)
    assert (end.exit_code, end.cause) == (3, "pod 1: exit code 3")


def test_who_has_ended_by_its_records_is_not_interrupted_by_what_happens_to_its_node_then(tmp_path):
    lost = End(None, stopped=False, at_s=NOW_S, cause="node a is lost")
    alone, two = run_in(tmp_path / "alone"), gang(tmp_path / "two")
    finish(alone, rank=0)
    assert alone.overstayers({0: RUNS}, SETTINGS, lost) == []
    assert alone.ended({0: DONE}, SETTINGS).exit_code == 0
    for rank in (0, 1):
        finish(two, rank=rank)
    assert two.overstayers({0: DONE, 1: RUNS}, SETTINGS, lost) == []
    assert two.ended({0: DONE, 1: DONE}, SETTINGS).exit_code == 0


def test_half_a_gang_that_has_ended_is_interrupted_with_the_other_half(tmp_path):
    run = gang(tmp_path)
    finish(run, rank=0)
    lost = End(None, stopped=False, at_s=NOW_S, cause="node b is lost")
    assert run.overstayers({0: DONE, 1: RUNS}, SETTINGS, lost) == [RUNS.pod]
    run.note_deleted()
    end = run.ended({0: DONE, 1: PodSeen(RUNS.pod, gone=True)}, SETTINGS)
    assert (end.exit_code, end.cause) == (None, "node b is lost")


def test_a_gang_is_complete_when_all_are_and_late_ones_have_to_go(tmp_path):
    run = gang(tmp_path)
    finish(run, rank=0, at_s=NOW_S - 1)
    assert run.overstayers({0: DONE, 1: RUNS}, SETTINGS, None) == []
    assert run.overstayers({0: DONE, 1: RUNS}, KubernetesSettings(grace_s=0.0, patience_s=0.5), None) == [RUNS.pod]
    finish(run, rank=1, at_s=NOW_S - 3)
    end = run.ended({0: DONE, 1: DONE}, SETTINGS)
    assert (end.exit_code, end.at_s) == (0, NOW_S - 1)


def test_the_first_of_a_gang_waits_for_ranks_that_are_not_in_it_any_more(tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    for rank in (1, 2, 3):
        (own / f"lock-{rank}").touch()
    spec = gang(tmp_path).spec
    first, second = rank_specs(spec, "x", "n", own)
    assert first.locks == (f"{own}/lock-2", f"{own}/lock-3")
    assert (second.lock, second.locks) == (f"{own}/lock-1", ())
    assert first.environment["MASTER_ADDR"] == "commonwatt-x-1-1.commonwatt-gangs.n.svc"
    assert second.environment["COMMONWATT_PROGRESS"] == f"{own}/progress-1"


def test_what_the_controller_hears(run):
    gone = "its pod was deleted in Kubernetes, not by commonwatt"
    change, end = JobInterrupted(1, NOW_S, 0.0, gone), End(None, stopped=False, at_s=NOW_S, cause=gone)
    assert change_of(run, change, end, requeue=True) is change
    cancelled = change_of(run, change, end, requeue=False)
    assert (cancelled.outcome, cancelled.reason) == (Outcome.CANCELLED, "pod-deleted")
    run.detached = True
    assert isinstance(change_of(run, change, end, requeue=True), JobLeft)
    ended = JobEnded(1, NOW_S, Outcome.COMPLETED)
    assert change_of(run, ended, end, requeue=False) is ended


def test_records_of_a_rank_are_in_a_folder_of_its_own(tmp_path):
    run = gang(tmp_path)
    write_record(run.rank_folder(1).path / "run.json", {})
    assert run.rank_folder(1).path == run.folder.path / "rank-1"
    assert [folder.path.name for folder, _ in RunFolder.all_in(tmp_path / "runs")] == ["1-1"]
