"""Settings that an operator can change while the server runs."""

from __future__ import annotations

from typing import Any

from commonwatt.devices.session import DeviceSession
from commonwatt.model.errors import InputError
from commonwatt.model.fields import FileModel, quantity
from commonwatt.model.timeslice_file import PolicyName
from commonwatt.serving.worker import Worker
from commonwatt.timeslicing import FairScheduler, make

__all__ = ["ServerSettings", "TenantSettings", "change", "settings"]


class TenantSettings(FileModel):
    """Settings of one tenant."""

    weight: float | None = quantity("weight relative to the other tenants (w)", "-", None, gt=0)
    clock_mhz: float | None = quantity("clock for the tenant's work; null: the device's own", "MHz", None, gt=0)


class ServerSettings(FileModel):
    """Settings of the server; a field that is absent keeps its value."""

    policy: PolicyName | None = quantity("sharing policy", "-", None)
    phi: float | None = quantity("time-fair factor", "-", None, ge=0, le=1)
    quantum_s: float | None = quantity("length of the quantum", "s", None, gt=0)
    tenants: dict[str, TenantSettings] = quantity("tenants by name", "-", dict)


def settings(session: DeviceSession) -> dict[str, Any]:
    """Return the current settings."""
    driver, config = session.driver, session.config
    return {
        "policy": config.policy,
        "phi": config.phi,
        "quantum_s": config.quantum_s,
        "tenants": {
            name: {"weight": tenant.weight, "clock_mhz": driver.clocks_mhz.get(name)}
            for name, tenant in driver.scheduler.tenants.items()
        },
    }


def change(session: DeviceSession, worker: Worker, changed: dict[str, Any]) -> dict[str, Any]:
    """Change settings, all or nothing, and return all of them. Raises ``InputError`` naming the field."""
    wanted = _checked(session, changed)
    config, driver = session.config, session.driver
    new = {
        field: value
        for field in ("policy", "phi", "quantum_s")
        if (value := getattr(wanted, field)) is not None
    }  # fmt: skip
    config = config.model_copy(update=new)
    clocks = {name: t.clock_mhz for name, t in wanted.tenants.items() if "clock_mhz" in t.model_fields_set}
    worker.ask(lambda: _try_clocks(session, clocks))
    with driver.lock:
        scheduler = driver.scheduler
        if new and isinstance(scheduler, FairScheduler):
            scheduler.share_by(make(config.policy, config.phi), round(config.quantum_s * 1e9))
        for name, tenant in wanted.tenants.items():
            if tenant.weight is not None:
                scheduler.update(scheduler.tenants[name], weight=tenant.weight)
        driver.clocks_mhz.update(clocks)
        session.config = config
    return settings(session)


def _checked(session: DeviceSession, changed: dict[str, Any]) -> ServerSettings:
    from commonwatt.data.files import validate

    wanted = validate(changed, ServerSettings)
    for name in wanted.tenants:
        if name not in session.tenants:
            expected = f"one of the tenants {', '.join(session.tenants)}"
            raise InputError(expected, field=f"tenants.{name}", value=name)
    now = session.config.policy
    if wanted.policy is not None and (wanted.policy == "fifo") != (now == "fifo"):
        raise InputError(f"{now}: switching to or from fifo needs a restart", field="policy", value=wanted.policy)
    return wanted


def _try_clocks(session: DeviceSession, clocks: dict[str, float | None]) -> None:
    """Set each clock once, so that an unsupported one is refused now rather than during a request."""
    for name, clock_mhz in clocks.items():
        try:
            session.device.set_clock(clock_mhz)
        except InputError as error:
            raise InputError(error.expected, field=f"tenants.{name}.clock_mhz", value=clock_mhz) from None
        finally:
            session.driver.forget_clock()
