"""Tenants on a simulated TX2, as in ETF's evaluation; and Fig. 8 on a real GPU with its own clock and meter."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from commonwatt.data.tx2 import TX2_ROWS
from commonwatt.devices.run import measure
from commonwatt.devices.session import open_device
from commonwatt.devices.tiny_models import write_tiny_models
from commonwatt.model.errors import InputError, MissingExtraError
from commonwatt.model.results import ReproducePoint, ReproduceRow
from commonwatt.model.timeslice_file import CudaDeviceSpec, TimesliceConfig
from commonwatt.model.timeslice_results import TimesliceRunResult
from commonwatt.reproduce.papers.etf_plots import Panel
from commonwatt.timeslicing import QuantumProblem, phi_fair

__all__ = [
    "ALIKE",
    "CHOSEN",
    "CLOCKS_MHZ",
    "MOBILENET_RATIO",
    "RESNET50_W",
    "EtfFigure",
    "RealRun",
    "Runs",
    "between",
    "closed_phi_fair",
    "gain",
    "gpu_here",
    "grows_with_disparity",
    "largest_fair",
    "power_ratio",
    "run_really",
    "share",
    "tenant",
]

PHIS = (0.0, 0.5, 1.0)
_SIZES = {"transformer": (8, 4), "mobilenet": (8, 8)}  # width and depth


@dataclass(frozen=True)
class RealRun:
    """Runs of two models on a device; the last one has fair time."""

    device: str
    results: dict[float, TimesliceRunResult]  # by phi

    @property
    def ratio(self) -> float:
        """Power of the transformer over that of the MobileNet, from which the last slices were computed."""
        a1, a2 = self.results[PHIS[-1]].tenants
        return a1.power_w / a2.power_w

    @property
    def phi_fair(self) -> float:
        """Largest phi with perfect energy fairness at that ratio."""
        return phi_fair(QuantumProblem.make(1000, [1, 1], [self.ratio, 1]))


def gpu_here() -> str | None:
    """Return why no GPU is available; ``None`` if there is one."""
    try:
        open_device(CudaDeviceSpec(kind="cuda")).close()
    except (InputError, MissingExtraError) as error:
        return str(error)
    return None


def run_really(
    device: dict[str, Any], seconds: float, seed: int, powers_w: tuple[float | None, float | None]
) -> RealRun:
    """Run both models, always backlogged, on *device* (as in a configuration) for *seconds* at each phi.

    *powers_w* are the stated powers of a device without a meter.
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


ALIKE, NO_CHANGE = 0.05, 0.01
"""Energies are fair if they differ by less; a change of F_S by less is none."""
CHOSEN = (
    f"Thresholds of ours, ETF: energies are perfectly fair if the least is more than {1 - ALIKE:.0%} of the greatest, "
    "and the largest phi with that is looked for in steps of 0.1; the improvement grows if it never falls by more than "
    f"{NO_CHANGE:.0%} from one clock to the next and is more than {NO_CHANGE:.0%} larger at the end. The device is in "
    "use while it is not idle. A lower clock in Fig. 10 is that of A2 in Fig. 9."
)


@dataclass
class Runs:
    """Runs scenarios and collects their digests."""

    seed: int
    quanta: int
    digests: list[str]
    long_quanta: int  # where quanta are long

    def run(
        self,
        policy: str,
        phi: float,
        tenants: list[dict[str, Any]],
        quantum_s: float = 0.2,
        **more: Any,  # noqa: ANN401
    ) -> TimesliceRunResult:
        """Run *tenants* for ``quanta`` quanta of virtual time."""
        config = {
            "device": {"kind": "simulated"}, "policy": policy, "phi": phi, "quantum_s": quantum_s,
            "duration_s": quantum_s * self.quanta, "tenants": tenants,
        }  # fmt: skip
        result = measure(TimesliceConfig.model_validate(config | more), Path(), self.seed)
        self.digests.append(result.input_digest)
        return result


def share(result: TimesliceRunResult, name: str) -> tuple[float, float]:
    """Return the shares of time and energy of the tenant called *name*."""
    tenant = next(t for t in result.tenants if t.name == name)
    return tenant.time_share or 0.0, tenant.energy_share or 0.0


def between(result: TimesliceRunResult, start: float, stop: float) -> tuple[list[float], list[float]]:
    """Return the shares of time and energy between two parts of the run."""
    samples = result.timeline
    first, last = samples[int(start * (len(samples) - 1))], samples[int(stop * (len(samples) - 1))]
    times = [b - a for a, b in zip(first.time_s, last.time_s, strict=True)]
    energies = [b - a for a, b in zip(first.energy_j, last.energy_j, strict=True)]
    return [t / sum(times) for t in times], [e / sum(energies) for e in energies]


def largest_fair(results: dict[float, TimesliceRunResult]) -> float:
    """Return the largest phi with perfect energy fairness."""
    return max(phi for phi, result in results.items() if (result.energy_fairness or 0.0) > 1 - ALIKE)


def power_ratio(result: TimesliceRunResult) -> float:
    """Return the power of A1 over A2."""
    a1, a2 = result.tenants
    return a1.power_w / a2.power_w


def closed_phi_fair(ratio: float) -> float:
    """Return the largest phi with perfect energy fairness of two tenants, by its formula."""
    return phi_fair(QuantumProblem.make(1000, [1, 1], [ratio, 1]))


def gain(result: TimesliceRunResult) -> float:
    """Return the throughput of the second tenant over that of the first."""
    return result.tenants[1].throughput_per_s / result.tenants[0].throughput_per_s


def grows_with_disparity(lines: dict[str, list[float]]) -> tuple[bool, str]:
    """Return whether ETF's improvement never falls as power disparity rises, and is larger at its end; and how it goes.

    *lines* have F_S of TF, EF and ETF from the largest disparity to none.
    """
    least = 1 - NO_CHANGE
    holds, said = True, []
    for name in ("TF", "EF"):
        gains = [etf / other for etf, other in zip(lines["ETF"], lines[name], strict=True)]
        holds &= all(more >= least * less for more, less in pairwise(gains)) and gains[0] > (1 + NO_CHANGE) * gains[-1]
        level = sum(gain >= least * gains[0] for gain in gains)
        said.append(f"over {name} from {gains[-1]:.2f} to {gains[0]:.2f}, at {level} clocks within "
                    f"{NO_CHANGE:.0%} of the latter")  # fmt: skip
    return holds, f"{'; '.join(said)}; a change of {NO_CHANGE:.0%} counts as none"


@dataclass
class EtfFigure:
    """Rows and points of one figure of the paper. ``panels`` draw it, each on its own axes."""

    number: str
    rows: list[ReproduceRow] = field(default_factory=list)
    points: list[ReproducePoint] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)

    def row(
        self, what: str, paper: float | str | bool | None, ours: float | str | bool | None, unit: str = "-",
        note: str = "", *, comparable: bool = True,
    ) -> None:  # fmt: skip
        """Add a finding."""
        self.rows.append(
            ReproduceRow(
                quantity=f"Fig. {self.number}: {what}", paper=paper, ours=ours, unit=unit, comparable=comparable,
                note=note,
            )
        )  # fmt: skip

    def point(self, series: str, what: str, x: float, value: float | None, unit: str = "-") -> None:
        """Add a point of a line."""
        self.points.append(
            ReproducePoint(
                series=series, quantity=f"Fig. {self.number}: {what}", x=x, mean=value, sd=None, unit=unit
            )
        )  # fmt: skip
