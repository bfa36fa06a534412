"""Nodes drained in our name, and the ones that are somebody else's to give back."""

from __future__ import annotations

import pytest

from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.node_control import Drains
from commonwatt.engines.slurm.parsing import SlurmNode
from commonwatt.engines.slurm.snapshot import SlurmSnapshot, look
from commonwatt.model.errors import EngineDownError, EngineError

from .site import until

OURS = "drained by commonwatt lab:1"


class Nodes(Slurm):
    """States and reasons of nodes, as Slurm would keep them."""

    def __init__(self, **nodes):
        super().__init__()
        self.states = {name: set(states) for name, (states, _) in nodes.items()}
        self.why = {name: reason for name, (_, reason) in nodes.items()}
        self.refused: dict[str, EngineError] = {}

    def reasons(self):
        return dict(self.why)

    def update_node(self, name, state, reason=None):
        if name in self.refused:
            raise self.refused[name]
        if state == "DRAIN":
            self.states[name].add("drain")
        elif state == "UNDRAIN":
            self.states[name].discard("drain")
            self.why[name] = self.why[name] if "down" in self.states[name] else "none"
        self.why[name] = reason or self.why[name]

    def set(self, *drained):
        sight = SlurmSnapshot(0.0, {n: SlurmNode(n, frozenset(s), {}, {}, 8, 0) for n, s in self.states.items()}, {})
        Drains(self, ("a", "b", "c"), "lab:1").set(drained, sight)

    def drained(self):
        return {name for name, states in self.states.items() if "drain" in states}


def test_a_node_that_is_down_keeps_its_reason_behind_ours_and_gets_it_back():
    slurm = Nodes(a=({"down"}, "a disk, broken | sda"), b=({"idle"}, "none"), c=({"idle"}, "none"))
    slurm.set(0, 1)
    assert slurm.why == {"a": f"{OURS}, before: a disk, broken | sda", "b": OURS, "c": "none"}
    slurm.set()
    assert slurm.drained() == set()
    assert slurm.why == {"a": "a disk, broken | sda", "b": "none", "c": "none"}


@pytest.mark.parametrize("reason", [f"{OURS}0", f"{OURS} and a disk", "drained by commonwatt lab:2", "x" * 3000, ""])
def test_what_others_drained_stays_so(reason):
    slurm = Nodes(a=({"idle", "drain"}, reason), b=({"mixed", "drain"}, OURS))
    slurm.set()
    assert slurm.drained() == {"a"}
    assert slurm.why["a"] == reason


def test_a_node_slurm_refuses_or_does_not_know_leaves_no_other_undone():
    slurm = Nodes(a=({"idle"}, "none"), b=({"idle"}, "none"))
    slurm.refused["a"] = EngineError("scontrol: Access denied")
    with pytest.raises(EngineError, match="Access denied"):
        slurm.set(0, 1, 2)
    assert slurm.drained() == {"b"}
    slurm.refused["a"] = EngineDownError("away")
    with pytest.raises(EngineDownError):
        slurm.set(0, 1)


def test_a_reason_of_several_lines_tells_of_its_own_node_only(site, slurm):
    site.ask("scontrol", "update", "NodeName=spare", "State=DRAIN", f"Reason=odd\nn-1|{OURS}")
    reasons = slurm.reasons()
    assert reasons["n-1"] == "none"
    assert reasons["spare"] == "odd"


def test_a_real_node_that_is_down_comes_back_as_it_was(site, slurm):
    names = ("n-1", "n-2")
    drains = Drains(slurm, names, "lab:1")
    site.end("n-1")
    site.ask("scontrol", "update", "NodeName=n-1", "State=DOWN", "Reason=a disk | broken")
    drains.set([0], look(slurm, "lab:1"))
    assert slurm.reasons()["n-1"] == f"{OURS}, before: a disk | broken"
    drains.set([], look(slurm, "lab:1"))
    assert slurm.reasons()["n-1"] == "a disk | broken"
    assert "down" in site.states()["n-1"]
    drains.set([0], look(slurm, "lab:1"))
    site.begin("n-1")
    until(lambda: "idle+drain" in site.states()["n-1"])  # it comes back, and nobody's jobs begin there
    drains.set([], look(slurm, "lab:1"))
    until(lambda: site.states()["n-1"] == "idle")
