"""Which nodes are down: not those that others use, or that are closed to jobs."""

from __future__ import annotations

import numpy as np
import pytest

from commonwatt.engines.run_spec import JobWork
from commonwatt.engines.slurm.engine import SlurmEngine
from commonwatt.engines.slurm.node_control import Allocations, NodePower
from commonwatt.engines.slurm.parsing import SlurmNode
from commonwatt.engines.slurm.snapshot import SlurmSnapshot
from commonwatt.model.nodes import Cluster, NodeSpec, PowerState
from commonwatt.testing.engine_contract import contract_cluster

from .site import until

OFF = PowerState(name="off", wake_s=60.0)
CLUSTER = Cluster.of([NodeSpec(name="n", gpu_type="V100", gpus=2, idle_w=100, gpu_w=50, states=(OFF,))])


def places() -> Allocations:
    return Allocations(CLUSTER, NodePower(None, CLUSTER, may_sleep=True), 1)


def sight(*states: str, used=0) -> SlurmSnapshot:
    node = SlurmNode("n", frozenset(states), {"v100": 2}, {"v100": used}, 16, used)
    return SlurmSnapshot(0.0, {"n": node} if states else {}, {})


@pytest.mark.parametrize(
    ("states", "used", "up"),
    [
        (("idle",), 0, True),
        (("allocated",), 2, True),  # others have it
        (("idle", "completing"), 0, True),
        (("idle", "drain"), 0, True),
        (("mixed", "drain"), 1, True),
        (("idle", "maint"), 0, True),
        (("reserved",), 0, True),
        (("down",), 0, False),
        (("down", "not_responding", "drain"), 0, False),
        (("idle", "drain", "invalid_reg"), 0, False),
        (("idle", "not_responding"), 0, False),
        (("allocated", "not_responding"), 2, True),  # what runs there goes on, as far as anybody knows
        (("unknown",), 0, False),
        ((), 0, False),
    ],
)
def test_only_what_fails_is_down(states, used, up):
    view = places().view(sight(*states, used=used))
    assert view.up.tolist() == [up]
    if not up:
        assert view.usable_gpus.tolist() == [0]


@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize("states", [("unknown", "drain"), ("idle", "not_responding")])
def test_a_node_not_heard_of_is_what_it_was(up, states):
    """As after a restart of Slurm's controller, and for a moment after each ``UNDRAIN``."""
    seen = places()
    seen.view(sight("idle" if up else "down", "drain"))
    assert seen.view(sight(*states)).up.tolist() == [up]
    assert seen.view(sight("down", "not_responding")).up.tolist() == [False]


def test_a_drained_node_that_sleeps_is_asleep_and_one_that_wakes_is_waking():
    view = places().view(sight("idle", "drain", "powered_down"))
    assert (view.up.tolist(), view.usable_gpus.tolist(), view.power_state.tolist()) == ([True], [0], [0])
    view = places().view(sight("idle", "drain", "powering_up"))
    assert (view.power_state.tolist(), bool(view.wait_s[0] > 0)) == ([-1], True)
    assert places().view(sight("down", "powered_down")).power_state.tolist() == [-1]


def test_a_real_node_is_down_only_where_slurm_says_so(site, slurm, settings, tmp_path):
    sleeper = JobWork(("sleep", "600"), tmp_path)
    engine = SlurmEngine(contract_cluster(), tmp_path, lambda name: sleeper, slurm=slurm, settings=settings)
    site.ask("sbatch", "--gres=gpu:2", "--nodelist=n-1", "--output=/dev/null", "--wrap=sleep 600")
    site.ask("scontrol", "update", "NodeName=n-2", "State=DRAIN", "Reason=a disk")
    until(lambda: engine.nodes().usable_gpus.tolist() == [0, 0])
    assert engine.nodes().up.tolist() == [True, True]
    site.ask("scontrol", "update", "NodeName=n-2", "State=DOWN", "Reason=a disk")
    until(lambda: not np.all(engine.nodes().up))
    assert engine.nodes().up.tolist() == [True, False]
