"""Opens what a timeslicing configuration names: device, models, powers, scheduler and driver."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from commonwatt.devices.base import Device, DeviceClock, LoadedModel, RealDeviceClock, VirtualDeviceClock
from commonwatt.devices.batches import Batching
from commonwatt.devices.driver import Driver
from commonwatt.devices.local import CpuDevice, CudaDevice
from commonwatt.devices.measured import MeasuredModels
from commonwatt.devices.profiles import (
    KNOWN,
    StepPowers,
    check_fits,
    load_profile,
    modelled_powers,
    profiled_powers,
    stated_powers,
)
from commonwatt.devices.rows import RowPlan
from commonwatt.devices.simulated import SimulatedDevice
from commonwatt.model.errors import InputError
from commonwatt.model.timeslice_file import CpuDeviceSpec, CudaDeviceSpec, ServedModel, SharingTenant, TimesliceConfig
from commonwatt.timeslicing import EnergyLedger, FairScheduler, FifoScheduler, QuantumProblem, Scheduler, make

__all__ = ["DeviceSession", "open_device", "open_session"]


_UNLIMITED_STEP_S = 0.1
"""Step up to which rows are measured where there is no limit."""


@dataclass
class LoadedTenant:
    """A model in a device's memory, and its power there."""

    model: LoadedModel
    powers: StepPowers
    batching: Batching | None = None  # requests run whole and alone


class DeviceSession:
    """One shared device with its tenants' models; see ``open_session``."""

    def __init__(self, config: TimesliceConfig, folder: Path, device: Device, clock: DeviceClock) -> None:
        self.config = config
        self.device = device
        self.clock = clock
        self.folder = folder
        self.tenants = {tenant.name: tenant for tenant in config.tenants}
        self.loaded: dict[tuple[str, str], LoadedTenant] = {}  # by tenant and model
        self._ran: dict[tuple[str, str], dict[int, tuple[int, int]]] = {}  # batches, whenever they were loaded
        self.driver = Driver(_scheduler(config), device, clock, EnergyLedger(_idle_w(config)))

    def load(self, tenant: SharingTenant, spec: ServedModel) -> LoadedTenant:
        """Load a model.

        Raises ``InputError`` for a file that is not a model, or a profile of another model, device or clock.
        """
        model: LoadedModel
        if isinstance(self.device, SimulatedDevice):
            model = self.device.take(spec.name, load_profile(self._path(spec.profile)), tenant.power_w)
        else:
            model = self.device.load(spec.name, str(self.folder / str(spec.path)))
        try:
            loaded = LoadedTenant(model, self._powers(tenant, spec, model))
        except InputError:
            model.close()
            raise
        self.loaded[tenant.name, spec.name] = loaded
        live = self.driver.scheduler.tenants.get(tenant.name)
        if live is not None and live.time_ns == 0:  # its power was unknown until now
            with self.driver.lock:
                self.driver.scheduler.update(live, power_w=self._mean_w(tenant.name))
        return loaded

    def batch_requests(self, tenant: str, model: str) -> None:
        """Let requests to a loaded model be divided and put together; its rows are measured unless they have been."""
        device, loaded = self.device, self.loaded[tenant, model]
        if not isinstance(device, CpuDevice | CudaDevice):
            return
        spec = next(spec for spec in self.tenants[tenant].models if spec.name == model)
        limit_s = self.config.step_limit_s()
        profile = device.rows(loaded.model, _UNLIMITED_STEP_S if limit_s is None else limit_s)
        together = spec.dynamic_batching
        loaded.batching = Batching(
            RowPlan(profile, limit_s, spec.max_batch_size), together is not None,
            across=together is not None and together.across_tenants, ran=self._ran.setdefault((tenant, model), {}),
        )  # fmt: skip

    def batches_run(self, tenant: str, model: str) -> dict[int, tuple[int, int]]:
        """Return number and time (ns) of the batches that a model has run, by rows."""
        return dict(self._ran.get((tenant, model), {}))

    def limit_steps(self) -> None:
        """Keep steps within the limit of the present configuration."""
        for loaded in self.loaded.values():
            if loaded.batching is not None:
                loaded.batching.plan.limit_s = self.config.step_limit_s()

    def unload(self, tenant: str, model: str) -> None:
        """Free a model's memory."""
        self.loaded.pop((tenant, model)).model.close()

    def admit(self, tenant: SharingTenant) -> None:
        """Add *tenant* to the scheduler, at the mean power of its models by time.

        Raises ``InputError`` for a clock that the device does not support.
        """
        if tenant.clock_mhz is not None:
            self.device.set_clock(tenant.clock_mhz)  # refused now rather than during a request
            self.device.set_clock(None)
        mean_w = self._mean_w(tenant.name)
        self.driver.scheduler.add(tenant.name, tenant.weight, mean_w, tenant.queues, tenant.queue_limit)
        self.driver.clocks_mhz[tenant.name] = tenant.clock_mhz

    def power_source(self, tenant: str) -> str:
        """Return the source of the energy of *tenant*: measured, or the least certain source of its models' power."""
        if self.device.kind != "simulated" and self.device.energy_j() is not None:
            return "measured"
        order = ("modelled", "profile-modelled", "stated", "profile-measured")
        sources = {loaded.powers.source for (name, _), loaded in self.loaded.items() if name == tenant}
        return next((source for source in order if source in sources), "modelled")

    def close(self) -> None:
        """Unload all models and close the device."""
        for tenant, model in list(self.loaded):
            self.unload(tenant, model)
        self.device.close()

    def _mean_w(self, tenant: str) -> float:
        """Mean power of its loaded models by time; of all loaded models if it has none; 1 W without any."""
        own = [loaded.powers for (name, _), loaded in self.loaded.items() if name == tenant]
        powers = own or [loaded.powers for loaded in self.loaded.values()]
        time_s = sum(power.time_s for power in powers)
        return sum(power.mean_w * power.time_s for power in powers) / time_s if time_s > 0 else 1.0

    def _path(self, name: str | None) -> str:
        assert name is not None
        return name if name in KNOWN else str(self.folder / name)

    def _powers(self, tenant: SharingTenant, spec: ServedModel, model: LoadedModel) -> StepPowers:
        if tenant.power_w is not None:
            return stated_powers(model, tenant.power_w)
        device = self.config.device
        if spec.profile is not None:
            profile = load_profile(self._path(spec.profile))
            if device.kind != "simulated":
                check_fits(profile, self._path(spec.profile), model.digest, self.device.name)
            return profiled_powers(model, profile, tenant.clock_mhz)
        assert device.kind != "simulated"
        return modelled_powers(model, device.power)


def open_session(config: TimesliceConfig, folder: Path) -> DeviceSession:
    """Open the device of *config* and load the models of all tenants; paths are relative to *folder*.

    Raises ``InputError`` or ``MissingExtraError``, and leaves nothing open then.
    """
    clock: DeviceClock
    device: Device
    if config.device.kind == "simulated":
        virtual = VirtualDeviceClock()
        clock, device = virtual, SimulatedDevice(config.device, virtual)
    else:
        measured = MeasuredModels(None if config.measured is None else folder / config.measured)
        clock, device = RealDeviceClock(), open_device(config.device, measured, config.step_limit_s())
    session = DeviceSession(config, folder, device, clock)
    try:
        for place, tenant in enumerate(config.tenants):
            for number, spec in enumerate(tenant.models):
                if spec.load_at_start:
                    with _placed(f"tenants.{place}", f"models.{number}"):
                        session.load(tenant, spec)
            with _placed(f"tenants.{place}"):
                session.admit(tenant)
    except BaseException:
        session.close()
        raise
    return session


def open_device(
    spec: CpuDeviceSpec | CudaDeviceSpec, measured: MeasuredModels | None = None, longest_s: float | None = None
) -> Device:
    """Return the device of *spec*; raises ``InputError`` or ``MissingExtraError`` if it is not available here.

    Models are cut as in *measured*, into segments of at most *longest_s*.
    """
    if isinstance(spec, CpuDeviceSpec):
        return CpuDevice(spec, measured, longest_s)
    return CudaDevice(spec, measured, longest_s)


class _placed:  # noqa: N801
    """Adds the tenant and model to the field of an ``InputError``."""

    def __init__(self, *path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InputError) and error.file is None and error.field is not None:
            inside = self._path if error.field != "clock_mhz" else self._path[:1]
            raise InputError(error.expected, field=".".join((*inside, error.field)), value=error.value) from None


def _scheduler(config: TimesliceConfig) -> Scheduler:
    if config.policy == "fifo":
        return FifoScheduler()
    policy = make(config.policy, config.phi)
    policy.slices(QuantumProblem.make(10, [1, 1], [1, 2]))  # compiles before anything is timed
    return FairScheduler(policy, round(config.quantum_s * 1e9))


def _idle_w(config: TimesliceConfig) -> float:
    device = config.device
    return device.idle_w if device.kind == "simulated" else device.power.idle_w
