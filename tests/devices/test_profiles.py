from __future__ import annotations

import pytest

from commonwatt.devices.base import StepWork
from commonwatt.devices.profiles import modelled_power_w
from commonwatt.model.timeslice_file import PowerModelSpec

SPEC = PowerModelSpec(idle_w=10, busy_w=5, joules_per_gflop=0.5, joules_per_gb=2)


def test_idle_busy_and_the_work_over_its_time():
    assert modelled_power_w(SPEC, StepWork(4e9, 1e9), 0.5) == pytest.approx(10 + 5 + (2 + 2) / 0.5)


def test_no_work_leaves_idle_and_busy():
    assert modelled_power_w(SPEC, StepWork(0, 0), 1.0) == 15


@pytest.mark.parametrize("time_s", [0.0, -1.0, float("inf"), float("nan")])
def test_a_time_that_is_none(time_s):
    with pytest.raises(ValueError, match="time_s: got"):
        modelled_power_w(SPEC, StepWork(1, 1), time_s)
