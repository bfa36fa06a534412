"""Energy counters of GPUs as meters of nodes, with a driver that is made up."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from commonwatt.engines.meters import nvml_energy_j
from commonwatt.model.errors import EngineError, InputError, MissingExtraError
from commonwatt.model.nodes import Cluster, NodeSpec

CLUSTER = Cluster.of([
    NodeSpec(name="a", gpu_type="V100", gpus=2, idle_w=100, gpu_w=250),
    NodeSpec(name="b", gpu_type="T4", gpus=1, idle_w=20, gpu_w=70),
])  # fmt: skip


class NvmlError(Exception):
    pass


@pytest.fixture
def counters(monkeypatch):
    """Counters in millijoules by index; one that is missing has none."""
    made = {0: 1000, 1: 2000, 2: 5_000_000}

    def read(handle):
        if handle not in made:
            raise NvmlError("Not Supported")
        return made[handle]

    def handle_of(index):
        if index > 3:
            raise NvmlError("Invalid Argument")
        return index

    fake = SimpleNamespace(
        NVMLError=NvmlError, nvmlInit=lambda: None, nvmlDeviceGetHandleByIndex=handle_of,
        nvmlDeviceGetTotalEnergyConsumption=read,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return made


def test_a_node_uses_what_its_gpus_count_and_its_idle_power(counters):
    now_s = [1000.0]
    energy_j = nvml_energy_j(CLUSTER, [[2, 0], [1]], lambda: now_s[0])
    before = [energy_j(0), energy_j(1)]
    counters.update({0: 1500, 1: 2250, 2: 5_400_000})
    now_s[0] += 10
    assert [energy_j(0) - before[0], energy_j(1) - before[1]] == [0.5 + 400 + 100 * 10, 0.25 + 20 * 10]


@pytest.mark.parametrize("slots", [[[0, 1], [3]], [[0, 1], [7]]])
def test_gpus_without_a_counter_and_gpus_that_are_not_there_are_refused(slots, counters):
    with pytest.raises(InputError, match=r"live.local.meter.*energy counters \(NVML says"):
        nvml_energy_j(CLUSTER, slots)


def test_a_driver_that_fails_later_is_the_engines_failure(counters):
    energy_j = nvml_energy_j(CLUSTER, [[0, 1], [2]])
    del counters[2]
    assert energy_j(0)
    with pytest.raises(EngineError, match="energy counters of node b: NVML says: Not Supported"):
        energy_j(1)


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MissingExtraError, match=r"commonwatt\[gpu\]"):
        nvml_energy_j(CLUSTER, [[0, 1], [2]])
