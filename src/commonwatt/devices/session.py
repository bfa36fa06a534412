"""Opens what a timeslicing configuration names: device, models, powers, scheduler and driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from commonwatt.devices.base import Device, DeviceClock, LoadedModel, RealDeviceClock, VirtualDeviceClock
from commonwatt.devices.batches import Batching
from commonwatt.devices.driver import Driver, sharing_policy
from commonwatt.devices.language.base import LanguageModel
from commonwatt.devices.language.generation import CachePool, LanguagePlan
from commonwatt.devices.local import CpuDevice, CudaDevice
from commonwatt.devices.measured import MeasuredModels
from commonwatt.devices.profiles import (
    TX2_PROFILES,
    StepPowers,
    check_fits,
    load_profile,
    modelled_power_w,
    modelled_powers,
    profiled_powers,
    stated_powers,
)
from commonwatt.devices.rows import RowPlan
from commonwatt.devices.simulated import SimulatedDevice
from commonwatt.model.errors import InputError
from commonwatt.model.timeslice_file import (
    CpuDeviceSpec,
    CudaDeviceSpec,
    LanguageSpec,
    ServedModel,
    SharingTenant,
    TimesliceConfig,
)
from commonwatt.timeslicing import (
    EnergyLedger,
    FairScheduler,
    FifoScheduler,
    QuantumProblem,
    Scheduler,
    VtcScheduler,
)

__all__ = ["Checks", "DeviceSession", "open_device", "open_session"]


Checks = Mapping[tuple[str, str], Callable[[LoadedModel], None]]
"""By tenant and model: raises ``InputError`` for a loaded model that is not as it was stated to be."""

_NO_CHECKS: Checks = {}
_UNLIMITED_STEP_S = 0.1
"""Step up to which rows are measured where there is no limit."""


@dataclass
class LoadedTenant:
    """A model in a device's memory, and its power there."""

    model: LoadedModel
    powers: StepPowers
    batching: Batching | None = None  # requests run whole and alone
    language: LanguagePlan | None = None  # it generates no text


class DeviceSession:
    """One shared device with its tenants' models; see ``open_session``."""

    def __init__(
        self, config: TimesliceConfig, folder: Path, device: Device, clock: DeviceClock, checks: Checks = _NO_CHECKS
    ) -> None:  # fmt: skip
        self.config = config
        self.checks = checks
        self.device = device
        self.clock = clock
        self.folder = folder
        self.tenants = {tenant.name: tenant for tenant in config.tenants}
        self.loaded: dict[tuple[str, str], LoadedTenant] = {}  # by tenant and model
        self._pools: dict[str, CachePool] = {}  # of models that tenants share, by digest
        self._ran: dict[tuple[str, str], dict[int, tuple[int, int]]] = {}  # batches, whenever they were loaded
        self.driver = Driver(_scheduler(config), device, clock, EnergyLedger(_idle_w(config)))

    def load(self, tenant: SharingTenant, spec: ServedModel) -> LoadedTenant:
        """Load a model.

        Raises ``InputError`` for a file that is not a model, or a profile of another model, device or clock.
        """
        model: LoadedModel
        if spec.language is not None:
            model = self._language(spec)
        elif isinstance(self.device, SimulatedDevice):
            model = self.device.take(spec.name, load_profile(self._path(spec.profile)), tenant.power_w)
        else:
            model = self.device.load(spec.name, str(self.folder / str(spec.path)))
        try:
            check = self.checks.get((tenant.name, spec.key))
            if check is not None:
                check(model)
            if isinstance(model, LanguageModel) and spec.language is not None:
                model.check(spec.language)
            loaded = LoadedTenant(model, self._powers(tenant, spec, model))
        except InputError:
            self._close(model)
            raise
        if isinstance(model, LanguageModel):
            loaded.language = self._plan(tenant, spec, model)
        self.loaded[tenant.name, spec.key] = loaded
        live = self.driver.scheduler.tenants.get(tenant.name)
        if live is not None and live.time_ns == 0:  # its power was unknown until now
            with self.driver.lock:
                self.driver.scheduler.update(live, power_w=self._mean_w(tenant.name))
        return loaded

    def batch_requests(self, tenant: str, model: str) -> None:
        """Let requests to a loaded model be divided and put together; its rows are measured unless they have been."""
        device, loaded = self.device, self.loaded[tenant, model]
        if not isinstance(device, CpuDevice | CudaDevice) or loaded.language is not None:
            return
        spec = next(spec for spec in self.tenants[tenant].models if spec.key == model)
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
            if loaded.language is not None:
                loaded.language.rows.limit_s = self.config.language_step_s

    def unload(self, tenant: str, model: str) -> None:
        """Free a model's memory."""
        gone = self.loaded.pop((tenant, model))
        if gone.language is not None and gone.language.across:
            gone.language.pool.tokens -= self._spec(tenant, model).kv_cache_tokens
        self._close(gone.model)

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

    def generates(self, tenant: str) -> bool:
        """Return whether a tenant has a language model, loaded or not."""
        return any(model.language is not None for model in self.tenants[tenant].models)

    def cache_pools(self, tenant: str) -> tuple[CachePool, ...]:
        """Return the key-value caches of a tenant's loaded models; without turns other tenants use them, too."""
        loaded = (loaded.language for (name, _), loaded in self.loaded.items() if name == tenant)
        return tuple(plan.pool for plan in loaded if plan is not None)

    def token_counter(self, tenant: str) -> float | None:
        """Return a tenant's virtual token counter; ``None`` unless the policy is vtc."""
        scheduler = self.driver.scheduler
        return scheduler.counters.get(tenant, 0.0) if isinstance(scheduler, VtcScheduler) else None

    def close(self) -> None:
        """Unload all models and close the device."""
        for tenant, model in list(self.loaded):
            self.unload(tenant, model)
        self.device.close()

    def _close(self, model: LoadedModel) -> None:
        if all(loaded.model is not model for loaded in self.loaded.values()):
            model.close()

    def _spec(self, tenant: str, model: str) -> LanguageSpec:
        spec = next(spec for spec in self.tenants[tenant].models if spec.key == model).language
        assert spec is not None
        return spec

    def _language(self, spec: ServedModel) -> LanguageModel:
        """Load a language model, or return the one that another tenant has loaded from there."""
        assert isinstance(self.device, CpuDevice | CudaDevice)
        path = str(self.folder / str(spec.path))
        for (tenant, name), loaded in self.loaded.items():
            others = (other.path for other in self.tenants[tenant].models if other.key == name)
            if isinstance(loaded.model, LanguageModel) and path in (str(self.folder / str(other)) for other in others):
                return loaded.model
        model = self.device.language(path)
        model.measure(self.config.language_step_s)
        return model

    def _plan(self, tenant: SharingTenant, spec: ServedModel, model: LanguageModel) -> LanguagePlan:
        settings, device = spec.language, self.config.device
        assert settings is not None
        assert device.kind != "simulated"
        power, stated = device.power, tenant.power_w
        pool = CachePool(0) if self.config.takes_turns else self._pools.setdefault(model.digest, CachePool(0))
        pool.tokens += settings.kv_cache_tokens
        return LanguagePlan(
            pool, RowPlan(model.profile, self.config.language_step_s, settings.prefill_tokens), settings.max_sequences,
            min(settings.context_tokens or model.context_tokens, model.context_tokens, settings.kv_cache_tokens),
            settings.default_max_tokens, not self.config.takes_turns,
            lambda work, time_s: modelled_power_w(power, work, time_s) if stated is None else stated,
        )  # fmt: skip

    def _mean_w(self, tenant: str) -> float:
        """Mean power of its loaded models by time; of all loaded models if it has none; 1 W without any."""
        own = [loaded.powers for (name, _), loaded in self.loaded.items() if name == tenant]
        powers = own or [loaded.powers for loaded in self.loaded.values()]
        time_s = sum(power.time_s for power in powers)
        return sum(power.mean_w * power.time_s for power in powers) / time_s if time_s > 0 else 1.0

    def _path(self, name: str | None) -> str:
        assert name is not None
        return name if name in TX2_PROFILES else str(self.folder / name)

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


def open_session(config: TimesliceConfig, folder: Path, checks: Checks = _NO_CHECKS) -> DeviceSession:
    """Open the device of *config* and load the models of all tenants; paths are relative to *folder*.

    *checks* are done whenever a model is loaded.

    Raises ``InputError`` or ``MissingExtraError``, and leaves nothing open then.
    """
    clock: DeviceClock
    device: Device
    for tenant in config.tenants:
        if tenant.repository is not None:  # `serve` has replaced it by the models it found there
            field = f"tenants.{tenant.name}.repository"
            raise InputError("none, as only `timeslice serve` reads repositories", field=field, value=tenant.repository)
    if config.device.kind == "simulated":
        virtual = VirtualDeviceClock()
        clock, device = virtual, SimulatedDevice(config.device, virtual)
    else:
        measured = MeasuredModels(None if config.measured is None else folder / config.measured)
        clock, device = RealDeviceClock(), open_device(config.device, measured, config.step_limit_s())
    session = DeviceSession(config, folder, device, clock, checks)
    try:
        for tenant in config.tenants:
            for spec in tenant.models:
                if spec.load_at_start:
                    with _placed(f"tenants.{tenant.name}", f"models.{spec.name}"):
                        session.load(tenant, spec)
            with _placed(f"tenants.{tenant.name}"):
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
    if config.policy == "vtc":
        return VtcScheduler(config.token_weights.prompt, config.token_weights.answer)
    policy = sharing_policy(config.policy, config.phi)
    policy.slices(QuantumProblem.make(10, [1, 1], [1, 2]))  # compiles before anything is timed
    return FairScheduler(policy, round(config.quantum_s * 1e9))


def _idle_w(config: TimesliceConfig) -> float:
    device = config.device
    return device.idle_w if device.kind == "simulated" else device.power.idle_w
