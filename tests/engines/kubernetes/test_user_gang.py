"""JobSets and PyTorchJobs as jobs of ours: what is read of them, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from commonwatt.engines.kubernetes.user_gang import KINDS, child_of, jobset_of, pytorchjob_of, suspended_in, user_job_of
from commonwatt.engines.kubernetes.user_job import job_file
from commonwatt.model.errors import InputError

from .gangs import jobset, pod_spec, pytorchjob
from .test_external_jobs import CLUSTER, NODES
from .test_user_job import NOTE, item


def there(body, **status):
    """An object as the server shows it."""
    body = json.loads(json.dumps(body))
    body["metadata"] |= {"namespace": "team-a", "uid": "u1"}
    return {**body, "status": status}


def read(body, **status):
    return (jobset_of if body["kind"] == "JobSet" else pytorchjob_of)(there(body, **status))


def file(body):
    return job_file(read(body), CLUSTER, NODES.values(), {})


def workers(pods=1, gpus=1, name="workers", replicas=1, **pod):
    return name, replicas, pods, pod_spec(("true",), gpus, **pod)


POD = "template.spec.template.spec"
DRIVER = ("driver", 1, 1, pod_spec(("true",), 0))


def test_a_jobset_is_all_its_pods_with_gpus_at_once():
    notes = {f"{NOTE}run-time": "1:30:00", f"{NOTE}kind": "llm"}
    made = file(
        jobset("train", DRIVER, workers(3, 8, replicas=2, nodeSelector={"product": "NVIDIA-A100"}), notes=notes)
    )
    assert (made.gpus, made.nodes, made.gpu_types) == (48, 6, ("A100",))
    assert made.times_s == {"A100": {48: 5400.0}}
    assert (made.workload.kind, made.workload.pods, made.workload.uid) == ("JobSet", 6, "u1")
    assert made.command == ("jobset.x-k8s.io/v1alpha2/JobSet", "team-a/train")


def test_the_jobset_in_the_guide_is_taken_over():
    page = Path(__file__).parents[3].joinpath("docs", "how-to", "kubernetes.md").read_text(encoding="utf-8")
    (text,) = (block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "kind: JobSet\n" in block)
    made = file(yaml.safe_load(text))
    assert (made.gpus, made.nodes, made.workload.pods) == (8, 1, 4)
    assert made.times_s == {"A100": {8: 6.5 * 3600}, "V100": {8: 6.5 * 3600}}


def test_a_pytorchjob_is_master_and_workers():
    body = pytorchjob(
        "train", policy={"activeDeadlineSeconds": 60}, Master=(1, pod_spec(("true",), 8)),
        Worker=(3, pod_spec(("true",), 8)),
    )  # fmt: skip
    made = file(body)
    assert (made.gpus, made.nodes, made.time_limit_s) == (32, 4, 60.0)
    assert (made.workload.kind, made.workload.pods) == ("PyTorchJob", 4)


@pytest.mark.parametrize(
    ("pods", "each", "nodes"), [(8, 1, 1), (16, 1, 2), (6, 2, 2), (7, 2, 7), (1, 4, 1), (9, 3, 9), (12, 2, 3)]
)
def test_pods_share_nodes_evenly_on_as_few_as_possible(pods, each, nodes):
    made = file(jobset("train", workers(pods, each)))
    assert (made.nodes, made.gpus) == (nodes, pods * each)
    assert made.gpus // made.nodes % each == 0


@pytest.mark.parametrize(
    ("field", "body"),
    [
        (f"[workers].{POD}.schedulerName", jobset("t", workers(schedulerName="default-scheduler"))),
        (f"[b].{POD}.containers.resources.limits", jobset("t", workers(1, 1, "a"), workers(1, 2, "b"))),
        (f"[x].{POD}.schedulerName", jobset("t", workers(), workers(1, 0, "x", schedulerName="commonwatt"))),
        ("spec", jobset("t", DRIVER)),
        (f"[workers].{POD}", jobset("t", workers(nodeSelector={"product": "H100"}))),
        ("Worker.template.spec.schedulerName", pytorchjob("t", Worker=(2, workers(schedulerName="volcano")[3]))),
        ("commonwatt.io/run-time", jobset("t", workers(), notes={f"{NOTE}run-time": "soon"})),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_over_names_the_field(field, body):
    with pytest.raises(InputError) as error:
        file(body)
    assert error.value.field.endswith(field)


def test_pods_that_do_not_all_start_at_once_are_refused():
    body = jobset("train", workers(2))
    body["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"] = 8
    with pytest.raises(InputError, match=r"workers\]\.template\.spec\.completions.*got '8', expected 2 "):
        file(body)
    body = pytorchjob("train", Worker=(2, pod_spec(("true",), 1)))
    body["spec"]["elasticPolicy"] = {"minReplicas": 1, "maxReplicas": 4}
    with pytest.raises(InputError, match=r"elasticPolicy\.maxReplicas"):
        file(body)


@pytest.mark.parametrize("amount", ["1e400", "-5", "inf", "many"])
@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "memory", "example.com/x"])
def test_a_quantity_that_no_pod_can_have_is_refused_and_stays_finite(resource, amount):
    """Definitions of gangs allow what Kubernetes does not."""
    body = pytorchjob("train", Worker=(2, pod_spec(("true",), 1)))
    pod = body["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["containers"][0]["resources"]["limits"][resource] = amount
    with pytest.raises(InputError, match=f"got '{amount}', expected a quantity of 0 or more") as error:
        file(body)
    at = "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].resources.limits"
    assert error.value.field == f"{at}.{resource}"
    assert all(0 <= n <= 2**63 for _, n in read(body).requests)


def test_one_that_cannot_be_read_is_there_and_refused():
    """Were it left out, its job would be cancelled."""
    body = there(jobset("train", workers()))
    body["spec"]["replicatedJobs"][0]["replicas"] = "many"
    job = KINDS["JobSet"].read(body)
    assert (job.path, job.kind, job.over) == (("team-a", "train"), "JobSet", False)
    with pytest.raises(InputError, match=r"'spec': got .*many.* expected fields of the types"):
        job_file(job, CLUSTER, NODES.values(), {})


def test_failure_by_index_is_refused_where_pods_have_gpus():
    body = jobset("train", DRIVER, workers(2))
    driver, own = (part["template"]["spec"] for part in body["spec"]["replicatedJobs"])
    driver["backoffLimitPerIndex"] = 1
    assert file(body).gpus == 2
    own["backoffLimitPerIndex"] = 1
    with pytest.raises(
        InputError, match=r"workers\]\.template\.spec\.backoffLimitPerIndex.*expected none: all its pods"
    ):
        file(body)


def test_rules_of_all_pods_hold_together():
    groups = [
        workers(1, 1, "a", nodeSelector={"product": "NVIDIA-A100"}),
        workers(1, 1, "b", nodeSelector={"product": "V100"}),
    ]
    with pytest.raises(InputError, match="nodeSelector"):
        file(jobset("train", *groups))


def test_one_that_somebody_else_starts_is_left_alone():
    queue = {"commonwatt.io/tenant": "a", "kueue.x-k8s.io/queue-name": "q"}
    assert read(jobset("t", workers(), labels=queue)).left_to == "Kueue (queue q)"
    assert read(jobset("t", workers(), managedBy="kueue.x-k8s.io/multikueue")).left_to == "kueue.x-k8s.io/multikueue"
    assert read(jobset("t", workers(), managedBy="jobset.sigs.k8s.io/jobset-controller")).left_to == ""
    other = pytorchjob("t", policy={"managedBy": "kueue.x-k8s.io/multikueue"}, Worker=(1, pod_spec(("true",), 1)))
    assert read(other).left_to == "kueue.x-k8s.io/multikueue"


def test_a_job_of_a_gang_is_not_taken_over_by_itself_and_says_whose_it_is():
    child = item()
    child["metadata"]["ownerReferences"] = [{"kind": "JobSet", "name": "train", "uid": "u0", "controller": True}]
    assert user_job_of(child).left_to == "JobSet train"
    assert child_of(child) == ("u1", "u0")
    child["metadata"]["ownerReferences"][0]["kind"] = "CronJob"
    assert user_job_of(child).left_to == ""
    assert child_of(item()) == ("u1", "")


@pytest.mark.parametrize(
    ("body", "kind", "end"),
    [
        (jobset("t", workers()), "Completed", "Complete"),
        (jobset("t", workers()), "Failed", "Failed"),
        (pytorchjob("t", Worker=(1, pod_spec(("true",), 1))), "Succeeded", "Complete"),
        (pytorchjob("t", Worker=(1, pod_spec(("true",), 1))), "Failed", "Failed"),
    ],
)
def test_how_one_has_ended_is_its_condition(body, kind, end):
    said = {
        "type": kind,
        "status": "True",
        "reason": "R",
        "message": "so\nit is",
        "lastTransitionTime": "2026-11-25T10:00:00Z",
    }
    others = [{"type": "Suspended", "status": "True"}, {"type": "Running", "status": "True"}]
    ended = read(body, conditions=[*others, said])
    assert (ended.end, ended.why, ended.over, ended.end_s) == (end, "R: so it is", True, 1_795_600_800.0)
    assert not read(body, conditions=[*others, {**said, "status": "False"}]).over


def test_a_gang_that_failed_at_its_deadline_timed_out():
    late = "PyTorchJob t has failed because it was active longer than specified deadline"
    said = {"type": "Failed", "status": "True", "reason": "PyTorchJobFailed", "message": late}
    gang = pytorchjob("t", Worker=(1, pod_spec(("true",), 1)))
    assert read(gang, conditions=[said]).timed_out
    assert not read(gang, conditions=[{**said, "message": "a pod failed"}]).timed_out
    assert not read(gang, conditions=[{**said, "status": "False"}]).timed_out
    at_once = {**said, "reason": "DeadlineExceeded", "message": ""}
    assert read(jobset("t", workers()), conditions=[at_once]).timed_out


def test_only_a_field_that_the_answer_has_counts_as_suspended():
    assert suspended_in(KINDS["JobSet"], {"spec": {"suspend": True}})
    assert suspended_in(KINDS["PyTorchJob"], {"spec": {"runPolicy": {"suspend": True}}})
    for answer in ({}, {"spec": None}, {"spec": {}}, {"spec": {"runPolicy": {}}}, {"spec": {"suspend": False}}):
        assert not suspended_in(KINDS["JobSet"], answer)
        assert not suspended_in(KINDS["PyTorchJob"], answer)


def test_the_priority_class_of_a_gang_is_that_of_its_first_pods_with_gpus():
    assert read(jobset("t", DRIVER, workers(priorityClassName="urgent"))).priority_class == "urgent"
    assert read(jobset("t", workers())).priority_class == ""
    assert read(pytorchjob("t", Worker=(2, workers(priorityClassName="low")[3]))).priority_class == "low"
