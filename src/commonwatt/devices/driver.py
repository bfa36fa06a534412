"""Runs the scheduler's choices on one device, a step at a time; the same in virtual and real time."""

from __future__ import annotations

import logging
import threading
from typing import Any, Literal

import numpy as np

from commonwatt.devices.base import Device, DeviceClock
from commonwatt.devices.batches import Batch, DeviceRequest
from commonwatt.devices.language.generation import Generation, GenerationBatch
from commonwatt.model.arrays import Ints
from commonwatt.model.errors import DeviceError, PluginError, SolverError
from commonwatt.model.plugins import Plugin, one, plugged
from commonwatt.model.timeslice_file import POLICY_NAMES
from commonwatt.timeslicing import Charge, EnergyLedger, QuantumProblem, Scheduler, Task, make_policy

__all__ = ["Driver", "PluggedPolicy", "plugin_trouble", "sharing_policy"]

log = logging.getLogger("commonwatt.devices")

_UNKNOWN = -1.0  # no real clock, so that the next one is set


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
            request: DeviceRequest | Generation = task.work
            batch = request.batched(task, self.scheduler, lambda other: self._same_clock(task, other))
        if batch.abandoned():
            self._account(task, batch, 0, ended=True)
            return True
        before_ns = self.clock.now_ns()
        batch.mark(before_ns)
        error: Exception | None = None
        try:
            self._set_clock(task)
            complete = batch.step()
        except Exception as failure:  # a model's errors belong to its requests
            error, complete = failure, True
        took_ns = self.clock.now_ns() - before_ns
        self.device_ns += took_ns
        self.decisions += 1
        if error is None:
            batch.learn(took_ns, ended=complete)
            self._account(task, batch, took_ns, complete=complete, ended=batch.ended())
        else:
            self._failed(task, batch, took_ns, error)
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

    def _set_clock(self, task: Task) -> None:
        clock_mhz = self.clocks_mhz.get(task.tenant.name)
        if clock_mhz != self._clock_mhz:
            self.device.set_clock(clock_mhz)
            self._clock_mhz = clock_mhz

    def _same_clock(self, task: Task, other: Task) -> bool:
        return self.clocks_mhz.get(task.tenant.name) == self.clocks_mhz.get(other.tenant.name)

    def _failed(self, task: Task, batch: Batch | GenerationBatch, took_ns: int, error: Exception) -> None:
        """Let the requests of a batch run alone, or fail those that had no others beside them."""
        if isinstance(error, DeviceError):
            self.gone = error
        elif len(batch.members) > 1 and isinstance(batch, Batch):
            self._account(task, batch, took_ns, ended=False)
            with self.lock:
                self.scheduler.separate(batch.dissolve())
            return
        for member in batch.members:
            member.request.error = error
        self._account(task, batch, took_ns, ended=True)

    def _account(
        self, task: Task, batch: Batch | GenerationBatch, took_ns: int, *, ended: bool, complete: bool = True
    ) -> None:
        """Charge a step to the tenants of *batch*; tell its requests if they have ended."""
        own, others = Charge(task.tenant, 0, 0.0), []
        for charge, typical_w in batch.charged(took_ns):
            if took_ns:
                self.ledger.book(charge.tenant.name, charge.time_ns, charge.energy_j, typical_w)
            if charge.tenant is task.tenant:
                own = charge
            else:
                others.append(charge)
        if complete:
            for member in batch.members:
                member.request.batch = None
        over = batch.leave(everyone=ended)
        with self.lock:
            self.scheduler.account(
                task, own.time_ns, own.energy_j, ended=False, others=others, output_tokens=own.output_tokens
            )
            if over:
                self.scheduler.finish([member.task for member in over])
        if over:
            now_ns = self.clock.now_ns()
            for member in over:
                member.request.ended_ns = now_ns
                member.request.ended(member.task)


class PluggedPolicy:
    """A plugin's sharing policy. Where it fails, ``etf`` divides in its place, and ``trouble`` says why.

    Attributes
    ----------
    trouble
        The last failure; ``None``: there was none.
    """

    def __init__(self, plugin: Plugin, phi: float) -> None:
        self.name = plugin.name
        self.trouble: str | None = None
        self._plugin, self._inner, self._fallback = plugin, plugged(plugin, phi), make_policy("etf", phi)

    def guarantee(self, problem: QuantumProblem) -> Ints:
        """Return the units each tenant has for certain. Shape [N]."""
        return self._asked("guarantee", problem)

    def slices(self, problem: QuantumProblem) -> Ints:
        """Return the units each tenant gets. Shape [N]."""
        return self._asked("slices", problem)

    def _asked(self, what: Literal["guarantee", "slices"], problem: QuantumProblem) -> Ints:
        try:
            units = getattr(self._inner, what)(problem)
            with self._plugin.blamed("gave no valid answer"):
                return problem.checked(units) if what == "slices" else _possible(problem, units)
        except PluginError as error:
            if str(error) != self.trouble:
                log.warning("a plugin failed, and etf divides in its place", extra={"cause": str(error)})
            self.trouble = str(error)
            fallback: Ints = getattr(self._fallback, what)(problem)
            return fallback


def _possible(problem: QuantumProblem, units: Ints) -> Ints:
    grants = np.asarray(units)
    if grants.shape != problem.demands.shape or not np.issubdtype(grants.dtype, np.integer) or (grants < 0).any():
        msg = f"guarantees are not {len(problem)} whole numbers of units, 0 or more"
        raise SolverError(msg)
    if int(grants.sum()) > problem.quantum:
        msg = "guarantees are above the quantum"
        raise SolverError(msg)
    return grants


def plugin_trouble(scheduler: Scheduler) -> str | None:
    """Return what the plugin by which *scheduler* shares failed with; ``None``: it did not, or there is none."""
    policy = getattr(scheduler, "policy", None)
    return policy.trouble if isinstance(policy, PluggedPolicy) else None


def sharing_policy(name: str, phi: float) -> Any:  # noqa: ANN401
    """Return the sharing policy of that name, ours or a plugin's.

    Raises ``InputError`` for an unknown name, ``PluginError`` for a plugin that cannot be loaded.
    """
    plugin = one("schedulers", name, POLICY_NAMES)
    return make_policy(name, phi) if plugin is None else PluggedPolicy(plugin, phi)
