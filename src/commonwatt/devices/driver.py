"""Runs the scheduler's choices on one device, a step at a time; the same in virtual and real time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from commonwatt.devices.base import Device, DeviceClock, Execution, LoadedModel, Tensor
from commonwatt.devices.profiles import StepPowers
from commonwatt.model.errors import DeviceError
from commonwatt.timeslicing import EnergyLedger, Scheduler, Task

__all__ = ["DeviceRequest", "Driver"]

_UNKNOWN = -1.0  # no real clock, so that the next one is set


class DeviceRequest:
    """A request for one inference; ``ended`` is called on the driver's thread when it is over."""

    __slots__ = ("at", "ended", "ended_ns", "error", "execution", "inputs", "model", "outputs", "powers")

    def __init__(
        self, model: LoadedModel, powers: StepPowers, inputs: dict[str, Tensor], ended: Callable[[Task], None]
    ) -> None:
        self.model = model
        self.powers = powers
        self.inputs = inputs
        self.ended = ended
        self.execution: Execution | None = None
        self.at = 0  # next step
        self.outputs: dict[str, Tensor] | None = None
        self.error: Exception | None = None
        self.ended_ns = 0


class Driver:
    """Runs what the scheduler picks, accounts for it, and settles energy with the meter at intervals.

    Parameters
    ----------
    settle_ns
        Length of an energy window, ns; much longer than the meter's update interval.

    Notes
    -----
    Other threads may submit and cancel while holding ``lock``; the driver holds it only between steps.
    """

    def __init__(
        self, scheduler: Scheduler, device: Device, clock: DeviceClock, ledger: EnergyLedger, settle_ns: int = 10**9
    ) -> None:
        self.scheduler = scheduler
        self.device = device
        self.clock = clock
        self.ledger = ledger
        self.lock = threading.Lock()
        self.clocks_mhz: dict[str, float | None] = {}  # by tenant; missing: the device's own
        self.device_ns = 0  # in steps
        self.busy_ns = 0  # in and between steps while there was work
        self.decisions = 0
        self.gone: DeviceError | None = None  # the device failed: nothing runs from then on
        self._clock_mhz: float | None = None
        self._settle_ns = settle_ns
        self._window_ns = clock.now_ns()
        self._meter_j = device.energy_j()

    def restart(self) -> None:
        """Reset the measurements."""
        self._window_ns, self._meter_j = self.clock.now_ns(), self.device.energy_j()
        self.device_ns = self.busy_ns = self.decisions = 0

    def step(self) -> bool:
        """Run the next step of the task the scheduler picks; false without work."""
        began_ns = self.clock.now_ns()
        with self.lock:
            task = self.scheduler.next()
        if task is None:
            return False
        request: DeviceRequest = task.work
        if task.cancelled:
            self._end(task, request, 0, 0.0)
            return True
        before_ns = self.clock.now_ns()
        try:
            ended = self._run(task, request)
        except Exception as error:  # a model's errors belong to its request
            request.error = error
            ended = True
            if isinstance(error, DeviceError):
                self.gone = error
        after_ns = self.clock.now_ns()
        took_ns = after_ns - before_ns
        energy_j = request.powers.steps_w[min(request.at, len(request.powers.steps_w)) - 1] * took_ns * 1e-9
        self.device_ns += took_ns
        self.decisions += 1
        self.ledger.book(task.tenant.name, took_ns, energy_j, request.powers.mean_w)
        if ended:
            self._end(task, request, took_ns, energy_j)
        else:
            with self.lock:
                self.scheduler.account(task, took_ns, energy_j, ended=False)
        self.settle_if_due()
        self.busy_ns += self.clock.now_ns() - began_ns
        return True

    def forget_clock(self) -> None:
        """Set the clock again before the next step, as something else has changed it."""
        self._clock_mhz = _UNKNOWN

    def settle_if_due(self) -> None:
        """Close the energy window if it is long enough."""
        if self.clock.now_ns() - self._window_ns >= self._settle_ns:
            self.settle()

    def settle(self) -> None:
        """Close the energy window, so that tenants and idle time sum to the meter, and update the tenants' powers."""
        now_ns, meter_j = self.clock.now_ns(), self.device.energy_j()
        used_j = None if meter_j is None or self._meter_j is None else meter_j - self._meter_j
        added, powers = self.ledger.settle(now_ns - self._window_ns, used_j)
        self._window_ns, self._meter_j = now_ns, meter_j
        with self.lock:
            for name, energy_j in added.items():
                self.scheduler.tenants[name].energy_j += energy_j
            for name, power_w in powers.items():
                tenant = self.scheduler.tenants[name]
                if abs(power_w / tenant.power_w - 1) > 0.005:
                    self.scheduler.update(tenant, power_w=power_w)

    def _run(self, task: Task, request: DeviceRequest) -> bool:
        clock_mhz = self.clocks_mhz.get(task.tenant.name)
        if clock_mhz != self._clock_mhz:
            self.device.set_clock(clock_mhz)
            self._clock_mhz = clock_mhz
        if request.execution is None:
            request.execution = request.model.begin(request.inputs)
        request.at += 1
        request.execution.step()
        if request.at < len(request.model.step_names):
            return False
        request.outputs = request.execution.outputs()
        request.execution = None  # freeing memory is part of this step's time
        return True

    def _end(self, task: Task, request: DeviceRequest, took_ns: int, energy_j: float) -> None:
        request.execution = None
        with self.lock:
            self.scheduler.account(task, took_ns, energy_j, ended=True)
        request.ended_ns = self.clock.now_ns()
        request.ended(task)
