"""Our own pods and the nodes, where webhooks are slow, hang, or refuse: decisions go on, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import httpx
import pytest

from commonwatt.control.engine import JobInterrupted, SetPower, Start
from commonwatt.engines.kubernetes.access import Access
from commonwatt.engines.kubernetes.api import KubernetesApi
from commonwatt.engines.kubernetes.engine import KubernetesEngine
from commonwatt.engines.kubernetes.settings import KubernetesSettings, pod_name
from commonwatt.engines.local.folder import End
from commonwatt.engines.run_spec import JobWork
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.model.nodes import Cluster, NodeSpec, PowerState

from .site import until

pytestmark = pytest.mark.slow

OFF = PowerState(name="off", power_w=5, wake_s=10)
NODES = Cluster.of([NodeSpec(name=name, gpu_type="V100", gpus=8, idle_w=1, gpu_w=1, states=[OFF]) for name in "ab"])


class Watch(httpx.AsyncByteStream):
    """Says after a moment that everything has to be listed again."""

    async def __aiter__(self):
        await asyncio.sleep(0.05)
        yield b'{"type": "ERROR", "object": {"code": 410}}\n'


class Server:
    """Has nodes and pods; each change waits until its *gate*, by method, resource and perhaps name, is open.

    Or it is answered so.
    """

    def __init__(self) -> None:
        self.lock, self.asked, self.gates, self.answers = threading.Lock(), [], {}, {}
        self.after = {}  # gates after it was done, before it is answered
        self.named = []
        status = {
            "allocatable": {"nvidia.com/gpu": "8", "cpu": "64"}, "conditions": [{"type": "Ready", "status": "True"}],
        }  # fmt: skip
        self.nodes = {name: {"metadata": {"name": name, "uid": name}, "status": status} for name in "ab"}
        self.pods, self.version, self.ready = {}, 1, True

    def api(self) -> KubernetesApi:
        access = Access("https://late.test", "default", ssl.create_default_context(), token="t")
        return KubernetesApi(access, transport=httpx.MockTransport(self.answer))

    def answer(self, request: httpx.Request) -> httpx.Response:
        path, method = request.url.path, request.method
        if path == "/readyz":
            return httpx.Response(200 if self.ready else 500)
        resource, *name = path.split("/api/v1/")[1].removeprefix("namespaces/default/").split("/")
        kind = method, "/".join((resource, *name[1:]))
        if method != "GET":
            with self.lock:
                self.asked.append(kind)
                self.named.append((*kind, name[0] if name else ""))
            gate = self.gates.get(self.named[-1] if name else kind) or self.gates.get(kind)
            assert gate is None or gate.wait(60.0)
            if kind in self.answers:
                return self.answers[kind]
        if "watch" in request.url.params:
            return httpx.Response(200, stream=Watch())
        with self.lock:
            done = self.done(method, resource, name, json.loads(request.content or b"{}"))
        assert kind not in self.after or self.after[kind].wait(60.0)
        return done

    def done(self, method, resource, name, body) -> httpx.Response:
        there = self.nodes if resource == "nodes" else self.pods
        if method == "POST" and len(name) > 1:
            self.pods[name[0]]["spec"]["nodeName"] = body["target"]["name"]
            now = datetime.now(UTC).isoformat()
            self.pods[name[0]]["status"]["conditions"] = [{"type": "PodScheduled", "lastTransitionTime": now}]
            return httpx.Response(201, json={})
        if method == "POST":
            meta = body["metadata"]
            meta |= {"uid": f"uid of {meta['name']}", "namespace": "default"}
            there[meta["name"]] = body | {"status": {"phase": "Pending"}}
            return httpx.Response(201, json=there[meta["name"]])
        if not name:
            return httpx.Response(200, json={"metadata": {"resourceVersion": "1"}, "items": list(there.values())})
        if name[0] not in there:
            return httpx.Response(404, json={"reason": "NotFound"})
        if method == "DELETE":
            del there[name[0]]
        elif method == "PATCH":
            there[name[0]] = {**there[name[0]], "spec": body.get("spec", {}), "metadata": {
                **there[name[0]]["metadata"], "annotations": body["metadata"]["annotations"]}}  # fmt: skip
        return httpx.Response(200, json=there.get(name[0], {}))


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def engine(server, tmp_path):
    given = KubernetesSettings(image="x", power_hook=("true",))
    work = JobWork(command=("true",), epochs=1)
    made = KubernetesEngine(NODES, tmp_path / "state", lambda _: work, server.api(), settings=given)
    yield made
    for gate in (*server.gates.values(), *server.after.values()):
        gate.set()
    until(lambda: not made._pauses.busy)
    made.close()


def held_s(readings, node=0):
    """GPU-seconds of all who had GPUs of a node."""
    return sum(holder.gpus * (r.to_s - r.from_s) for r in readings if r.node == node for holder in r.holders)


def polled(engine, condition):
    """Poll until the *condition* holds; returns what changed meanwhile."""
    changes = []

    def holds():
        changes.extend(engine.poll())
        return condition()

    until(holds)
    return changes


@pytest.mark.slow
def test_starts_whose_pods_are_made_late_are_placed_then(server, engine):
    gate = server.gates["POST", "pods"] = threading.Event()
    began_s = time.monotonic()
    for first in (0, 4):
        starts = [Start(first + k, "j", (k % 2,), 1) for k in range(4)]
        assert engine.start_all(starts, lambda: None) == [None] * 4
    for _ in range(3):
        assert engine.poll() == []
    assert time.monotonic() < began_s + 30.0
    assert server.pods == {}
    gate.set()
    assert polled(engine, lambda: all(run.placed for run in engine._runs.values())) == []
    assert sorted(pod["spec"]["nodeName"] for pod in server.pods.values()) == ["a"] * 4 + ["b"] * 4
    assert server.asked.count(("POST", "pods")) == server.asked.count(("POST", "pods/binding")) == 8


def gang_of_two(server, engine, late):
    """Start a gang of two whose pod of a rank is placed *late*; returns its run, and the names of its pods."""
    label = engine._label
    names = [pod_name(label, 1, 1, rank) for rank in range(2)]
    gate = server.gates["POST", "pods/binding", names[late]] = threading.Event()
    assert engine.start_all([Start(1, "j", (0, 1), 1)], lambda: None) == [None]
    return engine._runs[1], names, gate


@pytest.mark.slow
def test_a_pod_that_ends_while_another_is_placed_late_is_left_alone(server, engine):
    run, names, gate = gang_of_two(server, engine, late=0)
    polled(engine, lambda: server.pods[names[1]]["spec"].get("nodeName"))
    run._finish(1, End(0, stopped=False, at_s=time.time(), cause=""))
    server.pods[names[1]]["status"] = {"phase": "Succeeded"}
    assert polled(engine, lambda: engine._by_uid[f"uid of {names[1]}"].over) == []
    for _ in range(3):
        assert engine.poll() == []
    gate.set()
    assert polled(engine, lambda: run.placed) == []
    assert server.pods[names[0]]["spec"]["nodeName"] == "a"
    assert server.named.count(("POST", "pods/binding", names[1])) == 1


@pytest.mark.long
def test_a_binding_that_was_answered_is_not_sent_again_while_others_are_late(server, engine):
    run, names, gate = gang_of_two(server, engine, late=1)
    for _ in range(5):
        assert engine.poll() == []
        time.sleep(0.1)
    assert not run.placed
    gate.set()
    assert polled(engine, lambda: run.placed) == []
    assert [server.named.count(("POST", "pods/binding", name)) for name in names] == [1, 1]


@pytest.mark.long
def test_bindings_that_stay_late_are_given_up_in_the_end(server, tmp_path):
    given = KubernetesSettings(image="x", start_s=2.0)
    work = JobWork(command=("true",), epochs=1)
    made = KubernetesEngine(NODES, tmp_path / "state", lambda _: work, server.api(), settings=given)
    try:
        _, _, gate = gang_of_two(server, made, late=1)
        (ended,) = polled(made, lambda: not made._runs)
        assert isinstance(ended, JobInterrupted)
        assert not ended.begun
    finally:
        gate.set()
        until(lambda: not made._pauses.busy)
        made.close()


@pytest.mark.slow
def test_nobody_pays_for_gpus_while_no_pod_has_them(server, engine):
    gate = server.gates["POST", "pods"] = threading.Event()
    assert engine.start_all([Start(1, "j", (0,), 4)], lambda: None) == [None]
    engine.poll()
    engine.readings(up_to_now=True)
    time.sleep(0.3)
    kept = [reading for reading in engine.readings(up_to_now=True) if reading.node == 0]
    assert kept
    assert all(reading.holders == () for reading in kept)
    assert engine.nodes().in_use[0]
    assert not engine.has_room([0], 5)
    gate.set()
    polled(engine, lambda: engine._runs[1].placed)
    time.sleep(0.1)
    until(lambda: any(reading.holders for reading in engine.readings(up_to_now=True)))


@pytest.mark.long
def test_a_job_is_charged_until_it_has_ended_however_late_that_is_seen(server, engine):
    assert engine.start_all([Start(1, "j", (0,), 4)], lambda: None) == [None]
    (name,) = server.pods
    polled(engine, lambda: engine._by_uid[f"uid of {name}"].node)
    placed_s = time.time()
    engine._runs[1]._finish(0, End(0, stopped=False, at_s=placed_s + 0.2, cause=""))
    time.sleep(1.5)
    server.pods[name]["status"] = {"phase": "Succeeded"}
    polled(engine, lambda: not engine._runs)
    held = [reading for reading in engine.readings(up_to_now=True) if reading.holders]
    assert max(reading.to_s for reading in held) == pytest.approx(placed_s + 0.2, abs=0.05)


@pytest.mark.long
def test_nobody_pays_for_the_time_in_which_a_frozen_controller_heard_nothing(server, engine, monkeypatch):
    """A process that was stopped finds what has ended meanwhile a moment after it goes on, not at once."""
    for name, seconds in (("_PULSE_S", 0.1), ("_STALL_S", 0.6), ("_CATCH_UP_S", 1.5)):
        monkeypatch.setattr(f"commonwatt.engines.kubernetes.informer.{name}", seconds)
    monkeypatch.setattr(engine, "_settings", replace(engine._settings, settle_s=0.0))
    assert engine.start_all([Start(1, "j", (0,), 4)], lambda: None) == [None]
    (name,) = server.pods
    polled(engine, lambda: engine._by_uid[f"uid of {name}"].node)
    until(lambda: any(reading.holders for reading in engine.readings(up_to_now=True)))
    thread = engine.informer._loop
    thread.call_soon_threadsafe(time.sleep, 1.5)
    time.sleep(1.0)
    before_s = time.time()  # still frozen, as far as the thread is
    assert {reading.node for reading in engine.readings(up_to_now=True)} == {1}
    time.sleep(0.8)  # it goes on, and has yet to hear of what happened
    assert {reading.node for reading in engine.readings(up_to_now=True)} == {1}
    engine._runs[1]._finish(0, End(0, stopped=False, at_s=before_s - 0.5, cause=""))
    server.pods[name]["status"] = {"phase": "Succeeded"}
    polled(engine, lambda: not engine._runs)
    held = [reading for reading in engine.readings(up_to_now=True) if reading.holders]
    assert max(reading.to_s for reading in held) == pytest.approx(before_s - 0.5, abs=0.05)


@pytest.mark.long
@pytest.mark.parametrize("ends", [False, True], ids=["runs", "has ended"])
def test_who_is_placed_pays_from_then_on_though_the_answer_comes_late(server, engine, ends):
    """Until it is known whether it was, the readings of its node are kept back: others may come and go meanwhile."""
    gate = server.after["POST", "pods/binding"] = threading.Event()
    began_s = time.time()
    assert engine.start_all([Start(1, "j", (0,), 4)], lambda: None) == [None]
    until(lambda: all(pod["spec"].get("nodeName") for pod in server.pods.values()))
    placed_s = time.time()
    time.sleep(0.4)
    readings = list(engine.readings(up_to_now=True))
    assert {reading.node for reading in readings} == {1}
    assert engine.marks()[0].read_s <= placed_s  # who comes after this engine goes on from there
    over_s = time.time()
    if ends:
        engine._runs[1]._finish(0, End(0, stopped=False, at_s=over_s, cause=""))
        (name,) = server.pods
        server.pods[name]["status"]["phase"] = "Succeeded"
        until(lambda: engine.informer.look(engine._pods)[f"uid of {name}"].over)
    time.sleep(0.3)
    engine._meter([0])  # as when another job comes, or leaves
    gate.set()
    polled(engine, lambda: not engine._runs if ends else engine._runs[1].placed)
    time.sleep(0.2)
    found = [*readings, *engine.readings(up_to_now=True)]
    until_s = over_s if ends else max(reading.to_s for reading in found)
    assert held_s(found) == pytest.approx(4 * (until_s - placed_s), abs=4 * (placed_s - began_s) + 0.3)
    own = sorted((reading.from_s, reading.to_s) for reading in found if reading.node == 0)
    assert all(before[1] == after[0] for before, after in pairwise(own))  # nothing twice, nothing left out


def test_in_a_pause_no_pods_are_made_that_could_not_be_placed(server, engine):
    engine._pauses._of["default", "pods", "bind"] = time.monotonic() + 60.0, 5.0, "no answer"
    (refused,) = engine.start_all([Start(1, "j", (0,), 1)], lambda: None)
    assert "no pods are made or placed for a while, a webhook may hang: no answer" in str(refused)
    assert server.pods == {}
    assert engine._runs == {}


@pytest.mark.long
@pytest.mark.parametrize("leave", ["deleting", "gone"])
def test_who_gives_way_to_a_pod_of_kubernetes_scheduler_is_not_blamed_and_stays_away(server, engine, leave):
    assert engine.start_all([Start(1, "j", (0,), 8)], lambda: None) == [None]
    (name,) = server.pods
    polled(engine, lambda: engine._by_uid[f"uid of {name}"].node)
    server.pods["important"] = {
        "metadata": {"name": "important", "uid": "important", "namespace": "other"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "6"}}}]},
        "status": {"phase": "Pending", "nominatedNodeName": "a"},
    }
    if leave == "deleting":
        server.pods[name]["metadata"]["deletionTimestamp"] = "2026-11-29T00:00:00Z"
        polled(engine, lambda: engine._by_uid[f"uid of {name}"].deleting)
    polled(engine, lambda: "important" in engine._by_uid)
    del server.pods[name]
    (ended,) = polled(engine, lambda: not engine._runs)
    assert isinstance(ended, JobInterrupted)
    assert (ended.blamed, ended.cause) == (False, "Kubernetes' scheduler gave its place to another pod")
    assert engine.nodes().usable_gpus.tolist() == [2, 8]


@pytest.mark.slow
def test_a_pod_that_is_made_after_its_engine_has_ended_is_not_waited_for(server, tmp_path):
    """Nobody would place it: it would keep its GPUs from others until it counts as not started."""
    gate = server.gates["POST", "pods"] = threading.Event()

    def open_engine():
        given = KubernetesSettings(image="x", start_s=600.0, lag_s=600.0)
        work = JobWork(command=("true",), epochs=1)
        return KubernetesEngine(NODES, tmp_path / "state", lambda _: work, server.api(), settings=given)

    first = open_engine()
    assert first.start_all([Start(1, "j", (0,), 1)], lambda: None) == [None]
    first.close()
    second = open_engine()
    try:
        assert second.poll() == []  # the pod may come yet
        gate.set()
        until(lambda: server.pods)
        (ended,) = polled(second, lambda: not second._runs)
        assert isinstance(ended, JobInterrupted)
        assert "the controller ended before it had placed it" in ended.cause
        polled(second, lambda: server.pods == {})
        assert ("POST", "pods/binding") not in server.asked
    finally:
        until(lambda: not first._pauses.busy)
        second.close()


@pytest.mark.slow
def test_pods_of_a_gang_that_are_placed_late_are_waited_for(server, engine):
    gate = server.gates["POST", "pods/binding"] = threading.Event()
    assert engine.start_all([Start(1, "j", (0, 1), 1)], lambda: None) == [None]
    assert engine.poll() == []
    assert not engine._runs[1].placed
    gate.set()
    polled(engine, lambda: engine._runs[1].placed)
    assert sorted(pod["spec"]["nodeName"] for pod in server.pods.values()) == ["a", "b"]


@pytest.mark.slow
def test_a_pod_that_is_refused_late_is_a_start_that_was_refused(server, engine):
    gate = server.gates["POST", "pods"] = threading.Event()
    server.answers["POST", "pods"] = httpx.Response(403, json={"message": "not signed"})
    assert engine.start_all([Start(1, "j", (0,), 1)], lambda: None) == [None]
    gate.set()
    changes = polled(engine, lambda: not engine._runs)
    assert [(type(change), change.begun) for change in changes] == [(JobInterrupted, False)]
    assert "not signed" in changes[0].cause


@pytest.mark.long
def test_a_job_that_is_stopped_before_its_pod_is_made_has_none(server, engine):
    gate = server.gates["POST", "pods"] = threading.Event()
    assert engine.start_all([Start(1, "j", (0,), 1)], lambda: None) == [None]
    assert engine.request_stop([1]) == [1]
    polled(engine, lambda: not engine._runs)
    gate.set()
    polled(engine, lambda: server.asked[-1] == ("DELETE", "pods"))
    assert server.pods == {}
    assert ("POST", "pods/binding") not in server.asked


@pytest.mark.slow
@pytest.mark.parametrize("hangs", [True, False])
def test_a_node_that_cannot_be_changed_stops_no_decision(server, engine, hangs):
    gate = server.gates["PATCH", "nodes"] = threading.Event()
    if not hangs:
        gate.set()
        server.answers["PATCH", "nodes"] = httpx.Response(500, json={"message": "failed calling webhook"})
    for _ in range(2):
        with pytest.raises(EngineError) as caught:
            engine.drain({0})
        assert not isinstance(caught.value, EngineDownError)
        with pytest.raises(EngineError) as caught:
            engine.apply([SetPower(1, "off")])
        assert not isinstance(caught.value, EngineDownError)
        assert engine.poll() == []
        assert engine.nodes().power_state.tolist() == [-1, -1]
    assert engine.start_all([Start(1, "j", (0,), 1)], lambda: None) == [None]
    server.answers.clear()
    gate.set()

    def drained():
        with suppress(EngineError):
            engine.drain({0})
        return engine._look().nodes["a"].cordoned_by

    until(drained)


def test_a_step_of_power_that_is_not_answered_is_done_again(server, engine, monkeypatch):
    monkeypatch.setattr("commonwatt.engines.kubernetes.power._AGAIN_S", 0.1)
    monkeypatch.setattr("commonwatt.engines.kubernetes.power._SETTLE_S", 0.0)
    engine.apply([SetPower(1, "off")])
    until(lambda: engine._look().nodes["b"].asleep)
    gate = server.gates["PATCH", "nodes"] = threading.Event()
    for _ in range(3):
        assert polled(engine, lambda: engine._power._work["b"].hook) == []
    gate.set()
    polled(engine, lambda: engine._metered[1] == (False, True))
    assert engine._power._work["b"].tries == 1


@pytest.mark.long
def test_a_node_that_is_to_sleep_late_and_has_a_pod_by_then_is_let_go(server, tmp_path):
    """Its hook was called to turn on a machine that ran a job."""
    called, hook = tmp_path / "called", tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\necho $1 $2 >> {called}\n")
    hook.chmod(0o755)
    gate = server.gates["PATCH", "nodes"] = threading.Event()
    settings = KubernetesSettings(image="x", power_hook=(str(hook),))
    work = JobWork(command=("true",), epochs=1)
    engine = KubernetesEngine(NODES, tmp_path / "state", lambda _: work, server.api(), settings=settings)
    try:
        with pytest.raises(EngineError):
            engine.apply([SetPower(0, "off")])
        engine.apply([Start(1, "1-j", (0,), 1)])
        gate.set()
        polled(engine, lambda: any(kind == ("PATCH", "nodes") for kind in server.asked[1:]))
        polled(engine, lambda: not (server.nodes["a"].get("spec") or {}).get("unschedulable"))
        assert not called.exists()
    finally:
        engine.close()
