"""Fig. 8 on a real GPU, where there is one: a transformer and a MobileNet at its own clock, power by its meter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from commonwatt.devices.opening import open_device
from commonwatt.devices.summary import measure
from commonwatt.devices.tiny_models import write_tiny_models
from commonwatt.model.errors import InputError, MissingExtraError
from commonwatt.model.timeslice_config import CudaDevice, TimesliceConfig
from commonwatt.model.timeslice_results import TimesliceRunResult
from commonwatt.timeslicing.fairness import phi_fair
from commonwatt.timeslicing.problem import Problem

__all__ = ["RealRun", "gpu_here", "run_really"]

PHIS = (0.0, 0.5, 1.0)
_SIZES = {"transformer": (8, 4), "mobilenet": (8, 8)}  # width and depth


@dataclass(frozen=True)
class RealRun:
    """What two models showed on a device: the last run is the one with fair time."""

    device: str
    results: dict[float, TimesliceRunResult]  # by phi

    @property
    def ratio(self) -> float:
        """Power of the transformer over the MobileNet's, as slices were computed from in the end."""
        a1, a2 = self.results[PHIS[-1]].tenants
        return a1.power_w / a2.power_w

    @property
    def phi_fair(self) -> float:
        """Largest phi with perfect energy fairness at that ratio."""
        return phi_fair(Problem.make(1000, [1, 1], [self.ratio, 1]))


def gpu_here() -> str | None:
    """Return why there is no GPU to run on; ``None`` if there is one."""
    try:
        open_device(CudaDevice(kind="cuda")).close()
    except (InputError, MissingExtraError) as error:
        return str(error)
    return None


def run_really(
    device: dict[str, Any], seconds: float, seed: int, powers_w: tuple[float | None, float | None]
) -> RealRun:
    """Run both models, always backlogged, on *device* (as in a configuration) for so long at each phi.

    *powers_w* are stated where there is no meter.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        for kind, (width, depth) in _SIZES.items():
            write_tiny_models(folder, seed, width=width, depth=depth, kinds=(kind,))
        results = {}
        for phi in PHIS:
            config = {
                "device": device, "phi": phi, "quantum_s": 0.2, "duration_s": seconds,
                "tenants": [
                    {"name": name, "power_w": power_w, "models": [{"name": "m", "path": f"{kind}.onnx"}]}
                    for name, kind, power_w in zip(("A1", "A2"), _SIZES, powers_w, strict=True)
                ],
            }  # fmt: skip
            results[phi] = measure(TimesliceConfig.model_validate(config), folder, seed)
    return RealRun(results[0.0].device, results)
