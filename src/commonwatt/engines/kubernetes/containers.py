"""Containers of pods, read from the objects of the API: what they request of a node, and how they are."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from commonwatt.model.errors import InputError

__all__ = [
    "CREATE", "NEVER", "PULL", "Container", "containers_of", "counted", "moment_s", "overused", "quantity_of",
    "requests_of", "seconds_of", "wrong_quantity",
]  # fmt: skip

PULL = frozenset({"ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable"})
"""Why a container waits: its image does not come."""
NEVER = frozenset({"InvalidImageName", "ErrImageNeverPull"})
"""Why a container waits in vain."""
CREATE = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
"""Why a container waits: it cannot be made."""
_QUANTITY = re.compile(r"([+-]?[0-9.]+)([a-zA-Z]*)")
_UNITS = {
    "": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip
_MOST = 2.0**63  # Kubernetes knows none beyond: definitions of others, and users, may
_NODE_SHORT = "The node was low on resource"
_COUNTED = ("cpu", "memory", "pods", "ephemeral-storage")
_CLOCK = re.compile(r"(?:(?:(\d{1,5})-)?(\d{1,5}):)?(\d{1,5}):(\d{1,2})")
_NAMED = re.compile(r".*/.*|hugepages-.*")


@dataclass(frozen=True, slots=True)
class Container:
    """The containers of one of our pods, as one: waiting, running, or terminated with an exit code."""

    waiting: str = ""  # reason
    message: str = ""
    running: bool = False
    exit_code: int | None = None
    reason: str = ""  # of its termination
    finished_s: float | None = None  # the last of them


def quantity_of(text: object) -> float:
    """Return a quantity of Kubernetes (``500m``, ``16Gi``, ``1e3``) as a number; 0 for one that makes no sense.

    It is finite: as in Kubernetes, there is a most.
    """
    number = _number(text)
    return 0.0 if math.isnan(number) else min(_MOST, max(-_MOST, number))


def _number(text: object) -> float:
    try:
        return float(str(text))
    except ValueError:
        match = _QUANTITY.fullmatch(str(text))
    try:
        return float(match[1]) * _UNITS[match[2]] if match else math.nan
    except (ValueError, KeyError):
        return math.nan


def wrong_quantity(spec: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the field and the value of a quantity that no pod with this *spec* can have; ``None``: it has none such.

    Kubernetes checks those of pods and of its own kinds; other kinds may have any.
    """
    groups = [
        (f"{kind}[{n}].resources", each.get("resources"))
        for kind in ("containers", "initContainers")
        for n, each in enumerate(spec.get(kind) or ())
    ]
    groups.append(("resources", spec.get("resources")))
    lists = [(f"{field}.{part}", (own or {}).get(part)) for field, own in groups for part in ("limits", "requests")]
    for field, amounts in [*lists, ("overhead", spec.get("overhead"))]:
        for name, amount in (amounts or {}).items():
            if amount is not None and not 0 <= _number(amount) <= _MOST:
                return f"{field}.{name}", str(amount)
    return None


def moment_s(text: object) -> float | None:
    """Return a time of the API in seconds since 1970; ``None`` for one that makes no sense."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError):
        return None


def requests_of(spec: Mapping[str, Any]) -> dict[str, float]:
    """Return what a pod takes of its node.

    That is the sum of its containers and of the init containers that go on running beside them, or one of the others
    with those that were started before it, whichever is more; what the pod as a whole requests instead, where it does
    (or its limit, where no container requests that resource); and the overhead of its runtime.
    """
    total: dict[str, float] = {}
    for container in spec.get("containers") or ():
        _add(total, _of_container(container))
    beside: dict[str, float] = {}
    peak: dict[str, float] = {}
    for container in spec.get("initContainers") or ():
        own = _of_container(container)
        if container.get("restartPolicy") == "Always":
            _add(beside, own)
            own = {}
        for name in {*own, *beside}:
            peak[name] = max(peak.get(name, 0.0), own.get(name, 0.0) + beside.get(name, 0.0))
    _add(total, beside)
    for name, amount in peak.items():
        total[name] = max(total.get(name, 0.0), amount)
    whole_pod = spec.get("resources") or {}
    total = {**counted(whole_pod.get("limits") or {}), **total, **counted(whole_pod.get("requests") or {})}
    _add(total, counted(spec.get("overhead") or {}))
    return total


def _of_container(container: Mapping[str, Any]) -> dict[str, float]:
    resources = container.get("resources") or {}
    return counted({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def counted(amounts: Mapping[str, Any]) -> dict[str, float]:
    """Return CPUs, memory, storage, pods, and extended resources, such as GPUs, of *amounts*; none is below 0."""
    own = {name: amount for name, amount in amounts.items() if name in _COUNTED or _NAMED.match(name)}
    return {name: max(0.0, quantity_of(amount)) for name, amount in own.items()}


def _add(total: dict[str, float], more: Mapping[str, float]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0.0) + amount


def containers_of(status: Mapping[str, Any], only: str = "") -> Container | None:
    """Return the containers of a pod with this *status* as one; where there is one named *only*, that one.

    Over, they are the one that failed, and have finished with the last. Before, one that is stuck counts, then one that
    runs. While they wait for their init containers, those count.
    """
    every = status.get("containerStatuses") or ()
    counting = [each for each in every if only and each.get("name") == only] or every
    if not (containers := [_container(each.get("state") or {}) for each in counting]):
        return None
    if any(one.waiting == "PodInitializing" for one in containers):
        first = [_container(each.get("state") or {}) for each in status.get("initContainerStatuses") or ()]
        containers = [one for one in first if _is_stuck(one) or one.running or one.exit_code] or containers
    if all(one.exit_code is not None for one in containers):
        ends_s = [one.finished_s for one in containers if one.finished_s is not None]
        killed = (one for one in containers if one.exit_code and one.reason == "OOMKilled")
        chosen = next(killed, next((one for one in containers if one.exit_code), containers[0]))
        return replace(chosen, finished_s=max(ends_s, default=None))
    running = next((one for one in containers if one.running), None)
    waiting = next((one for one in containers if one.exit_code is None), containers[0])
    return next(filter(_is_stuck, containers), running or waiting)


def overused(status: Mapping[str, Any]) -> bool:
    """Whether the kubelet evicted the pod of *status* for what it took itself, and not for what its node was short of.

    The API has one reason for both, ``Evicted``: only the kubelet's message tells them apart.
    """
    message = " ".join(str(status.get("message") or "").split())
    return status.get("reason") == "Evicted" and "exceed" in message and not message.startswith(_NODE_SHORT)


def _is_stuck(container: Container) -> bool:
    return container.waiting in PULL | NEVER | CREATE


def _container(state: Mapping[str, Any]) -> Container:
    if (ended := state.get("terminated")) is not None:
        return Container(
            exit_code=int(ended.get("exitCode", 0)), reason=ended.get("reason") or "",
            message=" ".join(str(ended.get("message") or "").split())[:400],
            finished_s=moment_s(ended.get("finishedAt")),
        )  # fmt: skip
    if state.get("running") is not None:
        return Container(running=True)
    waiting = state.get("waiting") or {}
    return Container(
        waiting=waiting.get("reason") or "", message=" ".join(str(waiting.get("message") or "").split())[:400]
    )


def seconds_of(text: str, field: str) -> float:
    """Return a run time: seconds, or Slurm's ``[[days-]hours:]minutes:seconds``; raises ``InputError``."""
    if text.isdecimal() and len(text) <= 10:
        seconds = float(text)
    elif match := _CLOCK.fullmatch(text):
        days, hours, minutes, rest = (int(part or 0) for part in match.groups())
        seconds = ((days * 24.0 + hours) * 60 + minutes) * 60 + rest
    else:
        seconds = 0.0
    if seconds <= 0:
        expected = "seconds above 0, or a time such as 12:30:00 or 2-00:00:00"
        raise InputError(expected, field=field, value=text)
    return seconds
