"""Jobs and gangs that users create in Kubernetes: what is read of each kind, and how one is suspended.

Another controller makes the pods of a gang, once it is not suspended. The fields are those of JobSet 0.5 and later, and
of the Training Operator 1.7 and later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from commonwatt.engines.kubernetes.containers import moment_s, requests_of, seconds_of, wrong_quantity
from commonwatt.engines.kubernetes.objects import REQUIRED, is_gated, rules_of
from commonwatt.engines.kubernetes.settings import SCHEDULER
from commonwatt.engines.kubernetes.user_job import (
    DUE,
    RUN_TIME,
    WEIGHT,
    PodGroup,
    UserJob,
    asked,
    by_kueue,
    left_to,
)
from commonwatt.model.job_file import JobFile
from commonwatt.model.units import plural

__all__ = [
    "KINDS", "JobKind", "child_of", "jobset_of", "left_to_kueue", "pytorchjob_of", "reannotated", "reshaped",
    "suspended_in", "user_job_of",
]  # fmt: skip

_JOBSET_CONTROLLER = "jobset.sigs.k8s.io/jobset-controller"
_TRAINING_OPERATOR = "kubeflow.org/training-operator"
_FEWER = "kueue.x-k8s.io/job-min-parallelism"
_OWN_CONTROLLER = "kubernetes.io/job-controller"
_HOST = "kubernetes.io/hostname"
_NAMES = ("job-name", "batch.kubernetes.io/job-name")
"""Labels by which the pods of a Job, and no others, are selected."""
_GROUP = "jobset.sigs.k8s.io/jobset-name"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_ENDS = {"Complete": "Complete", "Completed": "Complete", "Succeeded": "Complete", "Failed": "Failed"}
_BY_INDEX = ("backoffLimitPerIndex", "maxFailedIndexes")
_PAST_DEADLINE = "longer than specified deadline"  # in the message of a PyTorchJob, as its reason does not tell
_Unfit = tuple[str, str, str] | None


@dataclass(frozen=True, slots=True)
class JobKind:
    """A kind of object that is taken over.

    Attributes
    ----------
    resource, group
        Where the API has it: ``jobs`` of ``batch/v1``.
    read
        Returns what it asks for.
    suspend
        Path of the field that suspends it.
    children
        Label of the Jobs that make its pods; "" if it makes them itself.
    """

    resource: str
    group: str
    read: Callable[[Mapping[str, Any]], UserJob]
    suspend: tuple[str, ...] = ("spec", "suspend")
    children: str = ""


def left_to_kueue(kind: JobKind, item: Mapping[str, Any]) -> UserJob:
    """Return what the API's object *item* asks for, left alone if it is in a queue of Kueue."""
    job = kind.read(item)
    return replace(job, left_to=job.left_to or by_kueue(job.queue))


def suspended_in(kind: JobKind, item: Mapping[str, Any]) -> bool:
    """Whether the API's object *item* has the field that suspends it, and it is true."""
    value: Any = item
    for name in kind.suspend:
        value = (value or {}).get(name)
    return value is True


def reshaped(job: UserJob, pods: int, gpus: float) -> list[str]:
    """Return what of a job differs from so many *pods* with so many *gpus* each, as it was taken over, in words."""
    differences = [] if job.pods == pods else [f"{plural(job.pods, 'pod')} now, {pods} when it was taken over"]
    for group in job.groups or (job,):
        if gpus not in dict(group.gpus).values():
            asks = ", ".join(f"{amount:g} of {name}" for name, amount in group.gpus) or "no GPUs"
            return [*differences, f"pods with {asks} now, with {plural(round(gpus), 'GPU')} then"]
    return differences


def reannotated(job: UserJob, then: JobFile, *, by_class: bool) -> list[str]:
    """Return which annotations of a job differ from those it was taken over with, in words.

    *by_class*: its priority class stands for a weight where it has no annotation.
    """
    notes, times = dict(job.notes), then.times_s or {}
    run_s = next((time_s for row in times.values() if isinstance(row, dict) for time_s in row.values()), None)
    figures = (
        (DUE, then.due, str), (RUN_TIME, run_s, lambda text: seconds_of(text, RUN_TIME)),
        (WEIGHT, then.tardiness_weight or None if WEIGHT in notes or not by_class else None, float),
    )  # fmt: skip
    differences = []
    for key, before, read in figures:
        try:
            same = before == ((read(notes[key]) or None) if key in notes else None)
        except ValueError:
            same = False
        if not same:
            was = "none" if before is None else f"{before:g}" if isinstance(before, float) else before
            unit = " s" if key == RUN_TIME and before is not None else ""
            differences.append(f"{key.rpartition('/')[2]} {notes.get(key, 'none')[:60]} now, {was}{unit} then")
    return differences


def child_of(item: Mapping[str, Any]) -> tuple[str, str]:
    """Return the uid of a Job, and that of the object whose controller has made it; "" if there is none."""
    owners = item["metadata"].get("ownerReferences") or ()
    return item["metadata"]["uid"], next((owner["uid"] for owner in owners if owner.get("controller")), "")


def user_job_of(item: Mapping[str, Any]) -> UserJob:
    """Return a Job of the API's object *item*."""
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    template = spec.get("template") or {}
    pod = template.get("spec") or {}
    said = status.get("conditions") or ()
    conditions = {c.get("type"): c for c in said if c.get("status") == "True"}
    ended: Mapping[str, Any] = next((conditions[kind] for kind in ("Complete", "Failed") if kind in conditions), {})
    completions, limit = spec.get("completions"), spec.get("activeDeadlineSeconds")
    wrong = _wrong("spec.template.spec", pod) or _by_index("spec", spec)
    unkept, ignored = _unkept("spec.template.spec", pod, meta["name"])
    if (fewer := (meta.get("annotations") or {}).get(_FEWER)) is not None:
        wrong = wrong or (f"metadata.annotations.{_FEWER}", str(fewer), "none: all its pods start")
    return UserJob(
        **asked(meta), **_ending(ended), suspended=bool(spec.get("suspend")),
        pods=int(spec.get("parallelism", 1)), completions=None if completions is None else int(completions),
        gpus=tuple(sorted((name, n) for name, n in requests_of(pod).items() if "/" in name and n > 0)),
        scheduler=_placed_by(pod),
        limit_s=None if limit is None else float(limit),
        rules=rules_of(pod), priority_class=str(pod.get("priorityClassName") or ""),
        left_to=left_to(meta, spec.get("managedBy"), _OWN_CONTROLLER),
        end=str(ended.get("type") or ""), was_suspended=any(c.get("type") == "Suspended" for c in said),
        requests=tuple(sorted(requests_of(pod).items())), succeeded=int(status.get("succeeded") or 0), ignored=ignored,
        unfit=wrong or unkept,
    )  # fmt: skip


def jobset_of(item: Mapping[str, Any]) -> UserJob:
    """Return a JobSet (``jobset.x-k8s.io/v1alpha2``) of the API's object *item*."""
    spec = item.get("spec") or {}
    groups, unfit, limits_s = [], None, []
    for part in spec.get("replicatedJobs") or ():
        field = f"spec.replicatedJobs[{part.get('name', '')}].template.spec"
        job = (part.get("template") or {}).get("spec") or {}
        pods, completions = int(job.get("parallelism", 1)), job.get("completions")
        group, wrong = _group(f"{field}.template.spec", int(part.get("replicas", 1)) * pods, job.get("template"))
        if group is not None and completions != pods and not (pods == 1 and completions is None):
            expected = f"{pods} (parallelism), as all pods start at once"
            wrong = wrong or (f"{field}.completions", str(completions), expected)
        wrong = wrong or (None if group is None else _by_index(field, job))
        if (limit := job.get("activeDeadlineSeconds")) is not None:
            limits_s.append(float(limit))
        groups.append(group)
        unfit = unfit or wrong
    return _gang(
        "JobSet", item, groups, unfit, suspended=spec.get("suspend"), limit_s=min(limits_s, default=None),
        managed_by=left_to(item["metadata"], spec.get("managedBy"), _JOBSET_CONTROLLER),
    )  # fmt: skip


def pytorchjob_of(item: Mapping[str, Any]) -> UserJob:
    """Return a PyTorchJob (``kubeflow.org/v1``) of the API's object *item*."""
    spec = item.get("spec") or {}
    policy, elastic = spec.get("runPolicy") or {}, spec.get("elasticPolicy") or {}
    groups, unfit = [], None
    for name, part in sorted((spec.get("pytorchReplicaSpecs") or {}).items()):
        field = f"spec.pytorchReplicaSpecs.{name}.template.spec"
        group, wrong = _group(field, int(part.get("replicas", 1)), part.get("template"))
        groups.append(group)
        unfit = unfit or wrong
    if elastic.get("maxReplicas") != elastic.get("minReplicas"):
        unfit = unfit or ("spec.elasticPolicy.maxReplicas", str(elastic.get("maxReplicas")), "that of minReplicas")
    limit = policy.get("activeDeadlineSeconds")
    return _gang(
        "PyTorchJob", item, groups, unfit, suspended=policy.get("suspend"),
        limit_s=None if limit is None else float(limit),
        managed_by=left_to(item["metadata"], policy.get("managedBy"), _TRAINING_OPERATOR),
    )  # fmt: skip


def _unkept(field: str, spec: Mapping[str, Any], job: str = "") -> tuple[_Unfit, tuple[str, ...]]:
    """Return the first rule of the pods of *spec* that we cannot keep, and the names of those that we need not keep.

    Pods of one *job* are on different nodes in any case: that they keep away from each other is no such rule.
    """
    required, ignored = [], []
    affinity = spec.get("affinity") or {}
    for kind in ("podAffinity", "podAntiAffinity"):
        rules = affinity.get(kind) or {}
        if kind == "podAffinity" or any(not _is_of_itself(rule, job) for rule in rules.get(REQUIRED) or ()):
            required += [f"affinity.{kind}.{REQUIRED}"] if rules.get(REQUIRED) else []
    for kind, rules in affinity.items():
        ignored += [f"affinity.{kind}.{_PREFERRED}"] if (rules or {}).get(_PREFERRED) else []
    for spread in spec.get("topologySpreadConstraints") or ():
        need = spread.get("whenUnsatisfiable") != "ScheduleAnyway"
        (required if need else ignored).append("topologySpreadConstraints")
    named = tuple(f"{field}.{name}" for name in dict.fromkeys(ignored))
    if host := spec.get("nodeName"):
        return (f"{field}.nodeName", str(host), f"none: {SCHEDULER} chooses the nodes of its pods"), named
    if not required:
        return None, named
    wish = "whenUnsatisfiable: ScheduleAnyway" if required[0] == "topologySpreadConstraints" else _PREFERRED
    expected = f"none: nodes are chosen by GPUs, whatever pods are there; {wish} is ignored"
    return (f"{field}.{required[0]}", "a rule", expected), named


def _wrong(field: str, spec: Mapping[str, Any]) -> _Unfit:
    """Return a quantity of the pods of *spec* that they cannot have."""
    wrong = wrong_quantity(spec)
    return None if wrong is None else (f"{field}.{wrong[0]}", wrong[1], "a quantity of 0 or more, such as 8 or 16Gi")


def _by_index(field: str, spec: Mapping[str, Any]) -> _Unfit:
    """Return what lets a Job of *spec* go on without pods that have failed for good."""
    expected = "none: all its pods are one job, which fails with the first that fails for good"
    for name in _BY_INDEX:
        if spec.get(name) is not None:
            return f"{field}.{name}", str(spec[name]), expected
    rules = (spec.get("podFailurePolicy") or {}).get("rules") or ()
    if any(rule.get("action") == "FailIndex" for rule in rules):
        return f"{field}.podFailurePolicy.rules.action", "FailIndex", expected
    return None


def _placed_by(spec: Mapping[str, Any]) -> str:
    """Return the scheduler that places the pods of *spec*: ours, if they have our gate; "": their node is given."""
    if spec.get("nodeName"):
        return ""
    return SCHEDULER if is_gated(spec) else str(spec.get("schedulerName") or "")


def _is_of_itself(rule: Mapping[str, Any], job: str) -> bool:
    """Whether a rule of anti-affinity keeps the pods of a *job* from one another's nodes, and no others."""
    selector = rule.get("labelSelector") or {}
    alone = rule.get("topologyKey") == _HOST and not selector.get("matchExpressions")
    labels = selector.get("matchLabels") or {}
    return alone and bool(job) and any(labels.get(name) == job for name in _NAMES)


def _group(field: str, pods: int, template: Mapping[str, Any] | None) -> tuple[PodGroup | None, _Unfit]:
    """Return pods that are alike, ``None`` without GPUs, and what is wrong with them: field, value, expected."""
    pod = (template or {}).get("spec") or {}
    gpus = tuple(sorted((name, n) for name, n in requests_of(pod).items() if "/" in name and n > 0))
    scheduler, wrong = _placed_by(pod), _wrong(field, pod) if pods else None
    if gpus and pods:
        requests, (unkept, ignored) = tuple(sorted(requests_of(pod).items())), _unkept(field, pod)
        name = str(pod.get("priorityClassName") or "")
        return PodGroup(field, pods, gpus, scheduler, rules_of(pod), requests, ignored, name), wrong or unkept
    if pods and scheduler == SCHEDULER:
        return None, wrong or (f"{field}.schedulerName", scheduler, "none: Kubernetes places pods without GPUs")
    return None, wrong


def _gang(
    kind: str, item: Mapping[str, Any], pod_groups: Iterable[PodGroup | None], unfit: _Unfit, *, suspended: object,
    limit_s: float | None, managed_by: str,
) -> UserJob:  # fmt: skip
    groups = tuple(group for group in pod_groups if group is not None)
    first = groups[0] if groups else PodGroup("spec", 0, (), "")
    if unfit is None and (other := next((group for group in groups if group.gpus != first.gpus), None)) is not None:
        asks = ", ".join(f"{amount:g} of {name}" for name, amount in other.gpus)
        wanted = ", ".join(f"{amount:g} of {name}" for name, amount in first.gpus)
        unfit = (f"{other.field}.containers.resources.limits", asks, f"{wanted}, as in {first.field}")
    if unfit is None and not groups:
        unfit = ("spec", "pods without GPUs", "pods with GPUs")
    strangers = (group.scheduler for group in groups if group.scheduler != SCHEDULER)
    conditions = (item.get("status") or {}).get("conditions") or ()
    ended: Mapping[str, Any] = next(
        (c for c in conditions if c.get("status") == "True" and c.get("type") in _ENDS), {}
    )  # fmt: skip
    own = asked(item["metadata"])
    most: dict[str, float] = {}
    for name, amount in (each for group in groups for each in group.requests):
        most[name] = max(most.get(name, 0.0), amount)
    return UserJob(
        **own, **_ending(ended), kind=kind, suspended=suspended is True, pods=sum(group.pods for group in groups),
        completions=None, gpus=first.gpus, scheduler=next(strangers, first.scheduler), limit_s=limit_s,
        left_to=by_kueue(own["queue"]) or managed_by, end=_ENDS.get(str(ended.get("type")), ""),
        groups=groups, unfit=unfit,
        requests=tuple(sorted(most.items())), ignored=tuple(name for group in groups for name in group.ignored),
        priority_class=first.priority_class, stopped=_is_said(conditions, "Suspended"),
    )  # fmt: skip


def _ending(condition: Mapping[str, Any]) -> dict[str, Any]:
    """Return why and when a ``UserJob`` has ended by the *condition* that says so; an empty one: it has not."""
    reason, message = (" ".join(str(condition.get(name) or "").split()) for name in ("reason", "message"))
    return {
        "why": ": ".join(filter(None, (reason, message)))[:300],
        "timed_out": reason == "DeadlineExceeded" or _PAST_DEADLINE in message,
        "end_s": moment_s(condition.get("lastTransitionTime")),
    }


def _is_said(conditions: Iterable[Mapping[str, Any]], kind: str) -> bool:
    return any(c.get("type") == kind and c.get("status") == "True" for c in conditions)


def _read(kind: str, read: Callable[[Mapping[str, Any]], UserJob], item: Mapping[str, Any]) -> UserJob:
    """Return what *read* does, and of what it cannot read that it is there: one that is left out counts as deleted."""
    try:
        return read(item)
    except Exception as error:
        return UserJob(
            **asked(item["metadata"]), kind=kind, suspended=suspended_in(KINDS[kind], item), pods=0, completions=None,
            gpus=(), scheduler=SCHEDULER, unfit=("spec", repr(error), "fields of the types that its definition says"),
        )  # fmt: skip


KINDS: Mapping[str, JobKind] = {
    "Job": JobKind("jobs", "batch/v1", partial(_read, "Job", user_job_of)),
    "JobSet": JobKind("jobsets", "jobset.x-k8s.io/v1alpha2", partial(_read, "JobSet", jobset_of), children=_GROUP),
    "PyTorchJob": JobKind(
        "pytorchjobs", "kubeflow.org/v1", partial(_read, "PyTorchJob", pytorchjob_of), ("spec", "runPolicy", "suspend")
    ),
}
"""What can be taken over, by kind."""
