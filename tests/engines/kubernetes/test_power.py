"""Nodes that sleep and wake, on a real Kubernetes, with a hook that takes the power from simulated kubelets."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from commonwatt.control.engine import JobEnded, JobInterrupted, Outcome, SetPower, Start
from commonwatt.controlplane.capacity import PowerCommands
from commonwatt.engines.clocks import RealClock
from commonwatt.engines.kubernetes import power as power_module
from commonwatt.engines.kubernetes.api import path_of
from commonwatt.engines.kubernetes.connect import POWER_RIGHTS, denied_rights, nodes_in
from commonwatt.engines.kubernetes.engine import KubernetesEngine
from commonwatt.engines.kubernetes.power import autoscaler, check_hosts
from commonwatt.model.errors import ClaimLostError, EngineError, InputError
from commonwatt.model.nodes import Cluster, NodeSpec, PowerState
from commonwatt.testing.engine_contract import EngineContract, contract_jobs

from ..patient_lab import unit_of, work
from .site import NAMESPACE, until
from .test_contract import PodLab

pytestmark = pytest.mark.long

SLEEP = PowerState(name="off", power_w=5, wake_s=10)
CLUSTER = Cluster.of([
    NodeSpec(name=f"gpu-{n}", gpu_type="V100", gpus=2, idle_w=100, gpu_w=50, states=[SLEEP]) for n in (0, 1)
])  # fmt: skip


@pytest.fixture
def hook(kube, tmp_path):
    """A program that turns simulated machines off and on. With ``fail`` beside it it fails, with ``slow`` it hangs."""
    path = tmp_path / "hook"
    path.write_text(f"""#!{sys.executable}
import pathlib, subprocess, sys, time
node, word = sys.argv[1:]
here = pathlib.Path(__file__)
with here.with_name("calls").open("a") as file:
    file.write(f"{{node}} {{word}}\\n")
if here.with_name("fail").exists():
    sys.exit("no such BMC")
if here.with_name("waits").exists():
    while not here.with_name("enough").exists():
        time.sleep(0.05)
    with here.with_name("calls").open("a") as file:
        file.write("ended\\n")
if here.with_name("slow").exists():
    child = subprocess.Popen(["sleep", "600"])  # it holds the output open
    here.with_name("pids").write_text(str(child.pid))
    time.sleep(600)
down = pathlib.Path({str(kube.cluster / "kubelet" / "down")!r}, node)
down.touch() if word == "off" else down.unlink(missing_ok=True)
""")
    path.chmod(0o755)
    return path


@pytest.fixture
def engine_on(kube, settings, tmp_path, hook):
    made = []

    def make(limit_s=20.0):
        own = replace(settings, power_hook=(str(hook),), power_limit_s=limit_s)
        engine = KubernetesEngine(
            CLUSTER, tmp_path / "state", lambda name: work(name, 0.2), kube.api(), settings=own, declared_power=True
        )
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.close()


def calls(hook):
    path = hook.with_name("calls")
    return path.read_text().splitlines() if path.exists() else []


def polled(engine, condition):
    """Poll until the *condition* holds; returns what changed meanwhile."""
    changes = []

    def holds():
        changes.extend(engine.poll())
        return condition()

    until(holds, pause_s=0.1)
    return changes


def usable(engine):
    return engine.nodes().usable_gpus.tolist()


def cordoned(kube, name):
    return bool(kube.node(name)["spec"].get("unschedulable"))


class TestKubernetesPower(EngineContract):
    @pytest.fixture
    def lab(self, kube, settings, tmp_path, request, hook):
        unit_s = unit_of(request)
        own = replace(settings, power_hook=(str(hook),))
        engine = KubernetesEngine(CLUSTER, tmp_path, lambda name: work(name, unit_s), kube.api(), settings=own)
        yield PodLab(engine, RealClock(engine), CLUSTER, contract_jobs(unit_s), unit_s)
        engine.close()


def test_a_node_sleeps_and_a_job_wakes_it(engine_on, kube, hook):
    engine = engine_on()
    engine.apply([SetPower(1, "off")])
    assert engine.nodes().power_state.tolist() == [-1, 0]
    polled(engine, lambda: engine._metered[1] == (False, True))
    assert cordoned(kube, "gpu-1")
    engine.readings(up_to_now=True)
    time.sleep(1.0)
    (asleep,) = [r for r in engine.readings(up_to_now=True) if r.node == 1]
    assert asleep.energy_uj / 1e6 == pytest.approx(5 * (asleep.to_s - asleep.from_s), rel=0.01)
    engine.apply([Start(0, "j1", (1,), 1)])
    changes = polled(engine, lambda: not engine._runs)
    assert [type(change) for change in changes] == [JobEnded], changes
    assert changes[0].outcome is Outcome.COMPLETED
    polled(engine, lambda: not cordoned(kube, "gpu-1"))
    assert calls(hook) == ["gpu-1 off", "gpu-1 on"]


def test_a_gang_on_sleeping_nodes_begins_when_all_have_woken(engine_on, kube, hook):
    engine = engine_on()
    engine.apply([SetPower(0, "off"), SetPower(1, "off")])
    polled(engine, lambda: engine._metered == [(False, True)] * 2)
    engine.apply([Start(0, "j1", (0, 1), 1)])
    changes = polled(engine, lambda: not engine._runs)
    assert [(type(change), change.outcome) for change in changes] == [(JobEnded, Outcome.COMPLETED)]
    polled(engine, lambda: not cordoned(kube, "gpu-0") and not cordoned(kube, "gpu-1"))
    assert sorted(calls(hook)) == ["gpu-0 off", "gpu-0 on", "gpu-1 off", "gpu-1 on"]


def test_a_node_of_others_stays_on(engine_on, kube, hook):
    engine = engine_on()
    kube.admin.merge(path_of("nodes", name="gpu-0"), {"spec": {"unschedulable": True}})
    until(lambda: engine.nodes().usable_gpus.tolist() == [0, 2])
    with pytest.raises(EngineError, match="cordoned already"):
        engine.apply([SetPower(0, "off")])
    kube.run("small", "gpu-1", 0)
    with pytest.raises(EngineError, match="pod default/small is on it"):
        engine.apply([SetPower(1, "off")])
    engine.poll()
    assert calls(hook) == []
    assert (cordoned(kube, "gpu-0"), cordoned(kube, "gpu-1")) == (True, False)


def test_a_pod_that_comes_meanwhile_keeps_a_node_on(engine_on, kube, hook):
    engine = engine_on()
    engine.apply([SetPower(1, "off")])
    kube.run("late", "gpu-1", 1)
    polled(engine, lambda: not cordoned(kube, "gpu-1"))
    assert calls(hook) == []
    with pytest.raises(EngineError, match="pod default/late came to it"):
        engine.apply([SetPower(1, "off")])


@pytest.mark.parametrize("change", [{"metadata": {"labels": {"seen": "late"}}}, {"spec": {"unschedulable": True}}])
def test_a_node_that_changes_after_our_look_sleeps_unless_somebody_else_cordoned_it(
    engine_on, kube, change, monkeypatch
):
    engine = engine_on()
    pod_on = engine._power._pod_on

    def changed(host):
        monkeypatch.setattr(engine._power, "_pod_on", pod_on)
        kube.admin.merge(path_of("nodes", name=host), change)
        return pod_on(host)

    monkeypatch.setattr(engine._power, "_pod_on", changed)
    if "spec" in change:
        with pytest.raises(EngineError, match="cordoned already"):
            engine.apply([SetPower(1, "off")])
        assert "commonwatt.io/asleep" not in (kube.node("gpu-1")["metadata"].get("annotations") or {})
    else:
        engine.apply([SetPower(1, "off")])
        assert engine.nodes().power_state.tolist() == [-1, 0]
        assert cordoned(kube, "gpu-1")


def test_a_hook_that_fails_leaves_the_node_on(engine_on, kube, hook, monkeypatch):
    monkeypatch.setattr(power_module, "_BACKOFF_S", 0.1)
    hook.with_name("fail").touch()
    engine = engine_on()
    engine.apply([SetPower(1, "off")])
    polled(engine, lambda: not cordoned(kube, "gpu-1"))
    assert calls(hook) == ["gpu-1 off"] * 3
    with pytest.raises(EngineError, match="exited with 1: no such BMC"):
        engine.apply([SetPower(1, "off")])


def test_a_hook_that_does_not_end_is_killed_with_what_it_began_and_the_node_stays_on(
    engine_on, kube, hook, monkeypatch
):
    monkeypatch.setattr(power_module, "_TRIES", 1)
    hook.with_name("slow").touch()
    engine = engine_on(limit_s=2.0)
    engine.apply([SetPower(1, "off")])
    polled(engine, lambda: not cordoned(kube, "gpu-1"))
    with pytest.raises(EngineError, match=r"its hook did not end within 2 s"):
        engine.apply([SetPower(1, "off")])
    child = Path("/proc", hook.with_name("pids").read_text())
    until(lambda: not child.exists() or child.joinpath("stat").read_text().rsplit(")", 1)[1].split()[0] == "Z")
    assert usable(engine) == [2, 2]


def test_a_node_that_cannot_be_woken_stays_asleep_says_so_and_is_tried_again(engine_on, kube, hook, monkeypatch):
    monkeypatch.setattr(power_module, "_BACKOFF_S", 0.1)
    engine = engine_on()
    engine.apply([SetPower(1, "off")])
    polled(engine, lambda: engine._metered[1] == (False, True))
    hook.with_name("fail").touch()
    engine.apply([Start(0, "j1", (1,), 1)])
    changes = polled(engine, lambda: not engine._runs)
    assert [(type(change), change.begun) for change in changes] == [(JobInterrupted, False)]
    assert calls(hook) == ["gpu-1 off", *["gpu-1 on"] * 3]
    assert engine.nodes().power_state.tolist() == [-1, 0]
    assert cordoned(kube, "gpu-1")
    with pytest.raises(EngineError, match=r"node gpu-1 did not wake: its hook exited with 1: no such BMC"):
        engine.apply([SetPower(1, None)])
    hook.with_name("fail").unlink()
    engine.apply([SetPower(1, None)])
    polled(engine, lambda: not cordoned(kube, "gpu-1"))
    until(lambda: usable(engine) == [2, 2])
    engine.apply([SetPower(1, "off")])  # nothing is left of the failure


def test_decisions_turn_from_a_node_that_did_not_wake_and_it_is_tried_again(engine_on, kube, hook, monkeypatch):
    monkeypatch.setattr(power_module, "_BACKOFF_S", 0.1)
    engine, now = engine_on(), [0.0]
    powers = PowerCommands(engine, lambda: now[0])
    powers.give([SetPower(0, "off"), SetPower(1, "off")])
    polled(engine, lambda: engine._metered == [(False, True)] * 2)
    hook.with_name("fail").touch()
    powers.give([SetPower(0, None)])
    polled(engine, lambda: powers.look() or powers.unwoken)
    assert powers.unwoken == {0: "node gpu-0 did not wake: its hook exited with 1: no such BMC"}
    seen = powers.offered(engine.nodes())
    assert (seen.usable_gpus.tolist(), seen.power_state.tolist(), seen.up.tolist()) == ([0, 2], [-1, 0], [False, True])
    assert calls(hook)[2:] == ["gpu-0 on"] * 3
    now[0] += 60.0
    assert powers.offered(engine.nodes()).usable_gpus.tolist() == [2, 2]
    hook.with_name("fail").unlink()
    powers.give([SetPower(0, None)])
    polled(engine, lambda: not cordoned(kube, "gpu-0"))
    until(lambda: powers.offered(engine.nodes()).usable_gpus.tolist() == [2, 2])
    assert powers._unwoken == {}


def test_a_controller_that_was_replaced_turns_nothing_off(engine_on, kube, hook, monkeypatch):
    """It froze after the cordon; its successor may have woken the node, and placed a job there."""
    engine = engine_on()
    engine.apply([SetPower(1, "off")])

    def replaced():
        raise ClaimLostError("another controller has taken over")

    monkeypatch.setattr(engine._power._api, "_guard", replaced)
    with pytest.raises(ClaimLostError):
        polled(engine, lambda: calls(hook))
    assert calls(hook) == []


@pytest.mark.parametrize("moment", ["cordoned", "off"])
def test_the_next_controller_ends_what_was_begun(engine_on, kube, hook, moment):
    first = engine_on()
    first.apply([SetPower(1, "off")])
    if moment == "off":
        polled(first, lambda: first._metered[1] == (False, True))
    first.close()
    second = engine_on()
    assert second.nodes().power_state.tolist() == [-1, 0]
    polled(second, lambda: second._metered[1] == (False, True))
    second.apply([SetPower(1, None)])
    polled(second, lambda: not cordoned(kube, "gpu-1") and second.nodes().wait_s[1] == 0)
    assert calls(hook)[-1] == "gpu-1 on"
    assert "commonwatt.io/asleep" not in (kube.node("gpu-1")["metadata"].get("annotations") or {})


@pytest.mark.parametrize("word", ["off", "on"])
def test_a_hook_that_a_controller_left_is_waited_for_and_none_runs_beside_it(engine_on, kube, hook, word):
    hook.with_name("waits").touch()
    first = engine_on()
    first.apply([SetPower(1, "off")])
    polled(first, lambda: calls(hook))
    first.close()  # as a kill leaves it: the program goes on
    second = engine_on()
    if word == "on":
        second.apply([SetPower(1, None)])
    polled(second, lambda: second._power._work["gpu-1"].busy_s is not None)
    assert calls(hook) == ["gpu-1 off"]
    hook.with_name("waits").unlink()
    hook.with_name("enough").touch()
    polled(second, lambda: len(calls(hook)) == 3)
    assert calls(hook) == ["gpu-1 off", "ended", f"gpu-1 {word}"]


def test_a_hook_that_a_controller_left_and_that_does_not_end_counts_as_a_failure(engine_on, kube, hook, monkeypatch):
    monkeypatch.setattr(power_module, "_TRIES", 1)
    hook.with_name("waits").touch()
    first = engine_on()
    first.apply([SetPower(1, "off")])
    polled(first, lambda: calls(hook))
    first.close()
    second = engine_on(limit_s=1.0)
    polled(second, lambda: not cordoned(kube, "gpu-1"))
    with pytest.raises(EngineError, match="its hook, which an earlier controller has started, does not end"):
        second.apply([SetPower(1, "off")])
    assert calls(hook) == ["gpu-1 off"]
    hook.with_name("enough").touch()
    until(lambda: calls(hook) == ["gpu-1 off", "ended"])


def test_a_job_that_waits_for_its_node_survives_the_controller(engine_on, kube, hook):
    first = engine_on()
    first.apply([SetPower(1, "off")])
    polled(first, lambda: first._metered[1] == (False, True))
    first.apply([Start(0, "j1", (1,), 1)])
    first.close()
    second = engine_on()
    changes = polled(second, lambda: not second._runs)
    assert [(type(change), change.outcome) for change in changes] == [(JobEnded, Outcome.COMPLETED)]
    assert calls(hook)[-1] == "gpu-1 on"


def test_a_node_drained_while_it_sleeps_stays_cordoned(engine_on, kube):
    engine = engine_on()
    engine.apply([SetPower(1, "off")])
    polled(engine, lambda: engine._metered[1] == (False, True))
    engine.drain([1])
    engine.apply([SetPower(1, None)])
    polled(engine, lambda: not engine._power.waking(engine._look().nodes["gpu-1"]))
    assert cordoned(kube, "gpu-1")
    engine.drain([])
    until(lambda: not cordoned(kube, "gpu-1"))


def test_without_the_setting_no_cordon_is_left(engine_on, kube, settings, tmp_path):
    first = engine_on()
    first.apply([SetPower(1, "off")])
    first.close()
    api = kube.api()
    second = KubernetesEngine(CLUSTER, tmp_path / "state", lambda name: work(name, 0.2), api, settings=settings)
    polled(second, lambda: not cordoned(kube, "gpu-1"))
    second.close()


def test_an_autoscaler_is_seen_with_the_rights_of_the_deployment(kube):
    api = kube.api()
    until(lambda: not denied_rights(api, NAMESPACE, POWER_RIGHTS))
    assert autoscaler(api, nodes_in(api)) == ""
    name = "cluster-autoscaler-status"
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    made = kube.admin.create(path_of("configmaps", "kube-system"), body)
    assert "ConfigMap kube-system/cluster-autoscaler-status" in autoscaler(api, nodes_in(api))
    kube.admin.delete(path_of("configmaps", "kube-system", name), made["metadata"]["uid"])
    label = {"karpenter.sh/nodepool": "gpus"}
    kube.admin.merge(path_of("nodes", name="gpu-0"), {"metadata": {"labels": label}})
    assert autoscaler(api, nodes_in(api)) == "node gpu-0 has karpenter.sh/nodepool"
    kube.admin.merge(path_of("nodes", name="gpu-0"), {"metadata": {"labels": dict.fromkeys(label)}})
    api.close()


def test_what_a_hook_cannot_do_is_refused():
    two = [SLEEP, PowerState(name="nap", power_w=50, wake_s=1)]
    spec = NodeSpec(name="gpu-0", gpu_type="V100", gpus=2, idle_w=100, gpu_w=50, states=two)
    with pytest.raises(InputError, match="one state at most"):
        check_hosts(Cluster.of([spec]))
    with pytest.raises(InputError, match="whole nodes"):
        check_hosts(Cluster.of([spec.model_copy(update={"name": "gpu-0:V100", "states": (SLEEP,)})]))
