"""Two or three tenants on a simulated TX2, as ETF's evaluation sets them up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commonwatt.data.tx2 import TX2_ROWS
from commonwatt.devices.summary import measure
from commonwatt.model.timeslice_config import TimesliceConfig
from commonwatt.model.timeslice_results import RunTenantResult, TimesliceRunResult

__all__ = ["CLOCKS_MHZ", "MOBILENET_RATIO", "RESNET50_W", "Runs", "share", "tenant"]

CLOCKS_MHZ = tuple(mhz for mhz, _, _ in TX2_ROWS["resnet50"])
RESNET50_W = TX2_ROWS["resnet50"][-1][2] * 1e-3
"""ResNet50 at the highest clock, 1300.5 MHz."""

MOBILENET_RATIO = 1 / 0.19
"""Power of ResNet50 at 1300 MHz over MobileNet-V2's at 726 MHz: F_E(TF) = 0.19 in Fig. 5 is its inverse."""


def tenant(name: str, model: str, clock_mhz: float, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return a tenant that runs *model* of the TX2 profiles at *clock_mhz*, always backlogged."""
    return {
        "name": name, "clock_mhz": clock_mhz, "models": [{"name": model, "profile": f"tx2-{model}"}], **more,
    }  # fmt: skip


@dataclass
class Runs:
    """Runs scenarios, and remembers the digest of each."""

    seed: int
    quanta: int
    digests: list[str]

    def run(
        self,
        policy: str,
        phi: float,
        tenants: list[dict[str, Any]],
        quantum_s: float = 0.2,
        **more: Any,  # noqa: ANN401
    ) -> TimesliceRunResult:
        """Run *tenants* for so many quanta of virtual time."""
        config = {
            "device": {"kind": "simulated"}, "policy": policy, "phi": phi, "quantum_s": quantum_s,
            "duration_s": quantum_s * self.quanta, "tenants": tenants,
        }  # fmt: skip
        result = measure(TimesliceConfig.model_validate(config | more), Path(), self.seed)
        self.digests.append(result.input_digest)
        return result


def share(result: TimesliceRunResult, name: str) -> tuple[float, float]:
    """Return the shares of time and energy of the tenant called *name*."""
    found = _of(result, name)
    return found.time_share or 0.0, found.energy_share or 0.0


def _of(result: TimesliceRunResult, name: str) -> RunTenantResult:
    return next(t for t in result.tenants if t.name == name)
