"""Power of nodes, and cordons: a cordon of ours, a program of the site that turns machines off and on, the way back.

What is under way is an annotation of the node, written in the same request as the cordon: whoever comes next ends it.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from commonwatt.control.engine import SetPower
from commonwatt.engines.kubernetes.api import KubernetesApi, NotYetAllowedError, RefusedByServerError, path_of
from commonwatt.engines.kubernetes.objects import ASLEEP, CORDON, Node, node_of
from commonwatt.engines.kubernetes.settings import KubernetesSettings
from commonwatt.engines.kubernetes.user_requests import LateError, Pauses
from commonwatt.engines.recorded_engine import command_each
from commonwatt.model.errors import EngineDownError, EngineError, InputError
from commonwatt.model.nodes import Cluster

__all__ = ["Cordons", "HostPower", "autoscaler", "check_hosts"]

_LOG = logging.getLogger("commonwatt.kubernetes.power")
_SETTLE_S = 2.0
"""How long after the cordon a scheduler may still place a pod that it had decided on before."""
_TRIES, _BACKOFF_S = 3, 5.0
_BUSY_S = 0.5  # between two looks at a hook of an earlier controller
_AGAIN_S = 5.0  # after a node could not be changed, or that was not answered
_NODES = "nodes"  # kind of our requests, whose webhooks may hang
_LOOKS = 5  # at a node that is changed between our look and our request
_KEPT = 2000  # characters of a hook's output, its end
_NEVER_READY_S = 600.0
"""How much longer than declared a node may take to wake before its cordon is taken away all the same."""


def check_hosts(cluster: Cluster) -> None:
    """Raise ``InputError`` on nodes with several low-power states, and on parts of nodes."""
    for kind in cluster.classes:
        if len(kind.states) > 1:
            expected = "one state at most: live.kubernetes.power turns nodes off and on, and knows no other"
            raise InputError(expected, field="nodes.states", value=", ".join(s.name for s in kind.states))
    for name in cluster.names:
        if ":" in name:
            expected = "whole nodes: live.kubernetes.power cannot turn off the part of a node with one GPU type"
            raise InputError(expected, field="nodes.name", value=name)


def autoscaler(api: KubernetesApi, nodes: Collection[Node]) -> str:
    """Return which autoscaler turns nodes off here, and where that was seen; "" if none was found.

    Raises ``EngineError`` if the server does not answer, or does not let us look.
    """
    marked = next((node for node in nodes if node.autoscaled), None)
    if marked is not None:
        return f"node {marked.name} has {marked.autoscaled}"
    places = {
        "ConfigMap kube-system/cluster-autoscaler-status": ("configmaps", "cluster-autoscaler-status", "v1"),
        "Deployment kube-system/cluster-autoscaler": ("deployments", "cluster-autoscaler", "apps/v1"),
    }
    for what, (resource, name, group) in places.items():
        try:
            api.get(path_of(resource, "kube-system", name, group=group))
        except RefusedByServerError as error:
            if error.status != 404:
                raise
        else:
            return f"there is the {what}"
    return ""


def _lock(path: Path) -> int:
    """Return a descriptor that holds the lock at *path*, to be inherited by a hook.

    It is held until the hook has ended, with all that it has started, whatever becomes of us. Raises
    ``BlockingIOError`` while another hook has it, ``OSError`` if it cannot be had.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(number)
        raise
    return number


class _Hook:
    """A run of the site's program, in a process group of its own, killed after *limit_s*; it inherits *lock*."""

    def __init__(self, command: Sequence[str], host: str, word: str, limit_s: float, lock: int) -> None:
        self.word, self.error, self._what = word, "", f"{command[0]} {host} {word}"
        self._command, self._limit_s, self._lock = (*command, host, word), limit_s, lock
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether it has ended; ``error`` then says why it failed, if it did."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        kept = b""
        try:
            process = subprocess.Popen(  # noqa: S603
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                start_new_session=True, pass_fds=(self._lock,),
            )  # fmt: skip
        except OSError as error:
            self.error = f"its hook cannot be run: {error.strerror or error}"
            return
        finally:
            os.close(self._lock)
        late = threading.Event()

        def end() -> None:
            late.set()
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(self._limit_s, end)
        timer.daemon = True
        timer.start()
        assert process.stdout is not None
        with process.stdout:
            while data := os.read(process.stdout.fileno(), 65536):
                kept = (kept + data)[-_KEPT:]
        code = process.wait()
        timer.cancel()
        said = " ".join(kept.decode(errors="replace").split())
        if late.is_set():
            self.error = f"its hook did not end within {self._limit_s:g} s"
        elif code:
            self.error = f"its hook exited with {code}{f': {said[-300:]}' if said else ''}"
        _LOG.info("%s: exit code %s: %s", self._what, code, said)


@dataclass
class _Work:
    """What this process does with a host."""

    hook: _Hook | None = None
    tries: int = 0
    next_s: float = 0.0  # before then, no other try
    seen_off: bool = False  # it was not ready since its hook began
    begun_s: float | None = None  # when its last hook succeeded
    adopted: bool = True  # an earlier controller began this
    busy_s: float | None = None  # since when a hook of an earlier controller is waited for
    cordoned_s: float = field(default_factory=time.monotonic)
    later_s: float = 0.0  # before then, the server is not asked to change it


class HostPower:
    """Puts hosts to sleep and wakes them.

    Parameters
    ----------
    cluster
        The declared nodes, each a whole host.
    label
        Our mark.
    settings
        Of the engine: ``power_hook`` is the site's program and its first arguments, and gets the node's name and
        ``off`` or ``on``; empty: no node is put to sleep, and cordons that an earlier configuration left are taken
        away. ``power_limit_s`` is its time limit.
    locks
        Folder of a lock for each host: a hook that a controller has left when it was killed is waited for.
    pauses
        Ask the server to change nodes: what is not answered, or refused, stops one node, and is tried again.

    Raises
    ------
    InputError
        As ``check_hosts``.
    """

    def __init__(
        self, api: KubernetesApi, cluster: Cluster, label: str, settings: KubernetesSettings, locks: Path,
        pauses: Pauses,
    ) -> None:  # fmt: skip
        self._hook, self._limit_s = tuple(settings.power_hook), settings.power_limit_s
        if self._hook:
            check_hosts(cluster)
        self._api, self._cluster, self._label = api, cluster, label
        self._locks, self._pauses = locks, pauses
        self._kinds = [cluster.classes[k] for k in cluster.klass]
        self._indices = {name: n for n, name in enumerate(cluster.names)}
        self._work: dict[str, _Work] = {}
        self._marks: dict[str, dict[str, Any] | None] = {}  # what we wrote that the watch may not have shown yet
        self._failed: dict[str, str] = {}  # why hosts could not be turned off or on, until it is reported

    # -- what is known

    def mark(self, node: Node | None) -> dict[str, Any] | None:
        """Return our annotation of a node: ``state``, ``word`` (what its hook is to do), ``done``, ``since_s``."""
        if node is None or not self._hook:
            return None
        if node.name in self._marks:
            return self._marks[node.name]
        return self._read(node)

    def _read(self, node: Node) -> dict[str, Any] | None:
        try:
            mark = json.loads(node.asleep) if node.asleep else None
        except ValueError:
            return None
        ours = isinstance(mark, dict) and mark.get("by") == self._label and mark.get("word") in ("off", "on")
        return mark if ours else None

    def released(self, node: Node) -> bool:
        """Whether we have taken our cordon away, and the watch has not shown it yet."""
        return self._marks.get(node.name, node) is None and node.cordoned_by != self._label

    def changed(self, states: list[tuple[bool, bool]], nodes: Sequence[Node | None]) -> Iterator[int]:
        """Yield the nodes that began to wake, or to be off, since their *states*, which are brought up to date."""
        for n, node in enumerate(nodes):
            now = self.waking(node), self.is_off(node)
            if now != states[n]:
                yield n
                states[n] = now

    def asleep(self, node: Node | None) -> bool:
        """Whether a node is asleep by us, or on its way there."""
        mark = self.mark(node)
        return mark is not None and mark["word"] == "off"

    def waking(self, node: Node | None) -> bool:
        """Whether we are waking a node."""
        mark = self.mark(node)
        return mark is not None and mark["word"] == "on"

    def is_awake(self, node: Node | None) -> bool:
        """Whether a node is ready, and neither asleep by us nor waking."""
        return node is not None and node.ready == "True" and self.mark(node) is None

    def is_off(self, node: Node | None) -> bool:
        """Whether it draws the power of its state: its hook has ended, or it is not ready any more."""
        mark = self.mark(node)
        if node is None or mark is None or mark["word"] != "off":
            return False
        work = self._work.get(node.name)
        return bool(mark.get("done")) or (node.ready != "True" and work is not None and work.tries > 0)

    def wait_s(self, n: int, node: Node | None) -> float:
        """Seconds until node *n* could run a job."""
        mark, states = self.mark(node), self._kinds[n].states
        if mark is None or not states:
            return 0.0
        if mark["word"] == "off":
            return states[0].wake_s
        return max(1.0, states[0].wake_s - (time.time() - float(mark.get("since_s", 0.0))))

    # -- commands

    def set(self, command: SetPower, node: Node | None, *, used: bool) -> None:
        """Begin to put a node to sleep, or to wake it; raises ``EngineError`` if that is impossible."""
        n, name = command.node, self._cluster.names[command.node]
        if command.state is not None:
            self._kinds[n].state(command.state)
        if not self._hook:
            msg = f"power of node {name}: live.kubernetes.power is not set"
            raise EngineError(msg)
        mark = self.mark(node)
        if command.state is None:
            if node is not None and mark is not None and mark["word"] == "off":
                if cause := self._failed.pop(name, ""):
                    msg = f"node {name} did not wake: {cause}"
                    raise EngineError(msg)
                self.wake(node)
        elif mark is None or mark["word"] != "off":
            what = f"put node {name} to {command.state}"
            if (cause := self._failed.pop(name, "")) or (cause := self._hindrance(node, mark, used=used)):
                msg = f"{what}: {cause}"
                raise EngineError(msg)
            assert node is not None
            self._work[name] = _Work(adopted=False)  # before it is asked for: the answer may come late
            self._cordon(node, {"word": "off", "state": command.state, "done": False}, what)

    def _cordon(self, node: Node, mark: dict[str, Any], what: str) -> None:
        """Cordon a node unless somebody else has. Another change meanwhile, as of its status, is no hindrance."""
        for _ in range(_LOOKS):
            try:
                self._write(node, mark, cordon=True)
            except RefusedByServerError as error:
                if error.status != 409:
                    raise
                refused = error
            else:
                return
            listing = self._api.get(path_of("nodes"), fieldSelector=f"metadata.name={node.name}")
            node = next(map(node_of, listing.get("items") or ()), node)
            if cause := self._hindrance(node, None, used=False):
                msg = f"{what}: {cause}"
                raise EngineError(msg)
        raise refused

    def _hindrance(self, node: Node | None, mark: object, *, used: bool) -> str:
        """Why a node cannot be put to sleep; "" if it can."""
        if node is None or (node.ready != "True" and mark is None):
            return "it is not ready"
        if mark is not None:
            return "it is waking"
        if node.cordoned:
            return "it is cordoned already"
        if node.autoscaled:
            return f"an autoscaler has it in hand: {node.autoscaled}"
        if used:
            return "it is used"
        pod = self._pod_on(node.name)
        return f"pod {pod} is on it" if pod else ""

    def _pod_on(self, host: str) -> str:
        """Return the name of a pod on a host that goes on, those of DaemonSets and of the kubelet left out."""
        for item in self._api.get(path_of("pods"), fieldSelector=f"spec.nodeName={host}").get("items") or ():
            meta = item["metadata"]
            kinds = {owner.get("kind") for owner in meta.get("ownerReferences") or ()}
            over = (item.get("status") or {}).get("phase") in ("Succeeded", "Failed")
            if not over and not kinds & {"DaemonSet", "Node"}:
                return f"{meta.get('namespace', '')}/{meta['name']}"
        return ""

    def wake(self, node: Node) -> None:
        """Begin to wake a node that is asleep; its hook waits for one that is still turning it off."""
        mark = self.mark(node)
        if mark is None or mark["word"] == "on":
            return
        work = self._work.setdefault(node.name, _Work())
        if not (work.adopted or work.tries or mark["done"]):  # nothing was done to it yet
            self._release(node)
            return
        work.tries, work.next_s, work.begun_s = 0, 0.0, None  # before it is asked for: the answer may come late
        self._write(node, {**mark, "word": "on", "done": False})

    def make_ready(self, nodes: Sequence[Node]) -> bool:
        """Wake those of *nodes* that are asleep; returns whether a start there has to wait for one to wake.

        Raises ``EngineError`` while one is being turned off: what is placed there would be lost.
        """
        for node in nodes:
            work = self._work.get(node.name)
            if work is not None and work.hook is not None and work.hook.word == "off":
                msg = f"node {node.name} is being turned off; it is woken as soon as that is done"
                self.wake(node)
                raise EngineError(msg)
        for node in nodes:
            self.wake(node)
        return any(self.mark(node) is not None for node in nodes)

    # -- what goes on

    def advance(self, nodes: Mapping[str, Node]) -> None:
        """Go on with what is under way; raises ``EngineDownError`` if the server does not answer."""
        if not self._hook:
            for left in nodes.values():
                if self._read(left) is not None and left.name not in self._marks:
                    self._step(left, self._work.setdefault(left.name, _Work()), partial(self._release, left))
            return
        for host, n in self._indices.items():
            node = nodes.get(host)
            if node is None:
                continue
            if host in self._marks and self._marks[host] == self._read(node):
                del self._marks[host]
            mark = self.mark(node)
            if mark is None:
                if not self._pauses.is_unsettled(_NODES, host):
                    self._work.pop(host, None)
                continue
            work = self._work.setdefault(host, _Work())
            if work.tries and node.ready != "True":
                work.seen_off = True
            self._step(node, work, partial(self._go_on, n, node, mark, work))

    def _step(self, node: Node, work: _Work, step: Callable[[], None]) -> None:
        """Do a *step* of a node; where the server does not allow it, or does not answer, it is tried again later."""
        if time.monotonic() < work.later_s:
            return
        try:
            step()
        except EngineDownError:
            raise
        except EngineError as error:
            work.later_s = time.monotonic() + _AGAIN_S
            _LOG.warning("power of node %s: %s", node.name, error)
            if not isinstance(error, LateError):  # which may be executed
                self._marks.pop(node.name, None)

    def _go_on(self, n: int, node: Node, mark: dict[str, Any], work: _Work) -> None:
        if work.hook is not None:
            if not work.hook.over:
                return
            if work.hook.word == mark["word"] and not mark["done"]:
                self._ended(node, mark, work, work.hook.error)
            work.hook = None  # now that its end is written down
            return
        if mark["done"]:
            if mark["word"] == "on" and self._is_awake(n, node, mark, work):
                self._release(node)
            return
        now_s = time.monotonic()
        if now_s < work.next_s or (mark["word"] == "off" and now_s < work.cordoned_s + _SETTLE_S):
            return
        if mark["word"] == "off" and (pod := self._pod_on(node.name)):
            self._failed[node.name] = f"pod {pod} came to it"
            if work.adopted or work.tries:
                self.wake(node)  # it may be half off
            else:
                self._release(node)
            return
        self._api.check_may_act()
        try:
            lock = _lock(self._locks / f"{node.name}.lock")
        except BlockingIOError:
            work.busy_s = now_s if work.busy_s is None else work.busy_s
            work.next_s = now_s + _BUSY_S
            if now_s < work.busy_s + self._limit_s:
                return
            work.tries += 1
            error = "its hook, which an earlier controller has started, does not end"
            self._ended(node, mark, work, error)
            return
        except OSError as error:
            work.tries += 1
            self._ended(node, mark, work, f"{self._locks}: {error.strerror or error}")
            return
        work.tries, work.busy_s = work.tries + 1, None
        work.hook = _Hook(self._hook, node.name, mark["word"], self._limit_s, lock)

    def _ended(self, node: Node, mark: dict[str, Any], work: _Work, error: str) -> None:
        """Take note of the end of a hook; after several failures a node is as it was: on, or asleep."""
        if not error:
            work.begun_s = time.monotonic()
            self._failed.pop(node.name, None)
            self._write(node, {**mark, "done": True})
            return
        _LOG.warning("power of node %s: %s (try %d of %d)", node.name, error, work.tries, _TRIES)
        work.next_s = time.monotonic() + _BACKOFF_S * 2 ** (work.tries - 1)
        if work.tries < _TRIES:
            return
        self._failed[node.name] = error
        if mark["word"] == "off":
            self._release(node)
        else:
            self._write(node, {**mark, "word": "off", "done": True})

    def _is_awake(self, n: int, node: Node, mark: Mapping[str, Any], work: _Work) -> bool:
        """Whether a node has woken. What it said before it was off is not believed; that it never wakes, in the end."""
        states = self._kinds[n].states
        wake_s = states[0].wake_s if states else 0.0
        gone_s = time.time() - float(mark.get("since_s", 0.0))
        if node.ready == "True":
            return work.seen_off or gone_s >= wake_s
        return gone_s >= wake_s + _NEVER_READY_S

    def _release(self, node: Node) -> None:
        """Take our mark away, and the cordon, unless the node is drained in our name, too."""
        self._write(node, None, cordon=None if node.cordoned_by == self._label else False)

    def _write(self, node: Node, mark: dict[str, Any] | None, *, cordon: bool | None = None) -> None:
        whole = None if mark is None else {**mark, "by": self._label, "since_s": round(time.time(), 3)}
        note = None if whole is None else json.dumps(whole, sort_keys=True)
        meta: dict[str, Any] = {"annotations": {ASLEEP: note}}
        if cordon:  # not over a cordon that came a moment ago
            meta["resourceVersion"] = node.version
        body = {"metadata": meta, **({} if cordon is None else {"spec": {"unschedulable": cordon or None}})}
        _change(self._api, self._pauses, node, body)
        self._marks[node.name] = whole


class Cordons:
    """Cordons in our name: an annotation tells them from an administrator's, which are left alone."""

    def __init__(self, api: KubernetesApi, hosts: Collection[str], label: str, pauses: Pauses) -> None:
        self._api, self._hosts, self._label, self._pauses = api, tuple(dict.fromkeys(hosts)), label, pauses

    def set(self, wanted: Collection[str], nodes: Mapping[str, Node]) -> None:
        """Cordon exactly the *wanted* nodes, except those that somebody else has cordoned.

        Raises ``EngineError`` if one cannot be, or that is not answered, after the others are done.
        """
        there = [nodes[host] for host in self._hosts if host in nodes]
        command_each(there, lambda node: self._set(node, cordon=node.name in wanted))

    def _set(self, node: Node, *, cordon: bool) -> None:
        slept = bool(node.asleep)  # its cordon is that of its sleep, and goes with it
        if cordon and (not node.cordoned or (slept and not node.cordoned_by)):
            self._patch(node, self._label, cordon=True)
        elif not cordon and node.cordoned_by == self._label:
            self._patch(node, None, cordon=False if node.cordoned and not slept else None)

    def _patch(self, node: Node, by: str | None, *, cordon: bool | None) -> None:
        body = {
            "metadata": {"annotations": {CORDON: by}},
            **({} if cordon is None else {"spec": {"unschedulable": cordon or None}}),
        }
        _change(self._api, self._pauses, node, body)


def _change(api: KubernetesApi, pauses: Pauses, node: Node, body: Mapping[str, Any]) -> None:
    """Change a node; raises ``LateError`` if that is not answered soon, ``EngineDownError`` if the server is down."""
    try:
        pauses.ask(_NODES, api.merge, path_of("nodes", name=node.name), body, about=node.name, seen=node)
    except NotYetAllowedError as error:  # it is no outage: the right may be missing for good
        raise EngineError(str(error)) from error
