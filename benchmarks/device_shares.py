"""Whether two backlogged tenants on one real CPU core get the planned shares of time and energy, and at what cost.

Tenant A1 runs a ResNet of 8 ms, A2 a MobileNet of 5 ms, cut into segments of about 1 ms. There is no meter: powers are
stated, 40 W and 10 W, so shares of energy follow from shares of time. ``cutting``: the same models cut and uncut, in
turns.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
import onnx

from commonwatt.devices.base import LoadedModel, example_inputs
from commonwatt.devices.local import CpuDevice
from commonwatt.devices.run import measure
from commonwatt.devices.tiny_models import tiny_model
from commonwatt.model.timeslice_file import CpuDeviceSpec as CpuSpec
from commonwatt.model.timeslice_file import TimesliceConfig

CASES = (("etf", 0.0), ("etf", 0.5), ("etf", 0.7), ("etf", 1.0), ("tf", 1.0), ("ef", 0.0))
SEGMENT_S = 0.001


def config(policy: str, phi: float, seconds: float) -> TimesliceConfig:
    """Return the run of one row."""
    return TimesliceConfig.model_validate(
        {
            "device": {"kind": "cpu", "segment_s": SEGMENT_S}, "policy": policy, "phi": phi, "quantum_s": 0.1,
            "duration_s": seconds,
            "tenants": [
                {"name": "A1", "power_w": 40, "models": [{"name": "m", "path": "resnet.onnx"}]},
                {"name": "A2", "power_w": 10, "models": [{"name": "m", "path": "mobilenet.onnx"}]},
            ],
        }
    )  # fmt: skip


def share_row(folder: Path, policy: str, phi: float, seconds: float) -> dict[str, float | str | None]:
    """Run one case."""
    result = measure(config(policy, phi, seconds), folder, 0)
    a1 = result.tenants[0]
    return {
        "policy": policy, "phi": phi, "time_share": a1.time_share, "planned_time_share": a1.planned_time_share,
        "energy_share": a1.energy_share, "planned_energy_share": a1.planned_energy_share,
        "system_fairness": result.system_fairness, "steps": result.steps,
        "scheduling_share": result.scheduling_share,
    }  # fmt: skip


def infer_s(model: LoadedModel) -> float:
    """Time of one inference."""
    inputs = example_inputs(model.inputs, np.random.default_rng(0))
    began = perf_counter()
    execution = model.begin(inputs)
    for _ in model.step_names:
        execution.step()
    execution.outputs()
    return perf_counter() - began


def cutting_rows(folder: Path, runs: int) -> list[dict[str, float | int | str]]:
    """Compare models cut and uncut, in turns."""
    rows = []
    for name in ("resnet", "mobilenet", "transformer"):
        cut = {s: CpuDevice(CpuSpec(kind="cpu", segment_s=s)) for s in (None, 0.001, 0.002, 0.005)}
        models = {s: device.load(name, str(folder / f"{name}.onnx")) for s, device in cut.items()}
        times: dict[float | None, list[float]] = {s: [] for s in models}
        for _ in range(runs):
            for s, model in models.items():
                times[s].append(infer_s(model))
        whole = float(np.median(times[None]))
        rows += [
            {
                "model": name, "segment_ms": 1e3 * s, "segments": len(models[s].step_names), "whole_ms": 1e3 * whole,
                "cut_over_whole": float(np.median(times[s])) / whole,
            }
            for s in models if s is not None
        ]  # fmt: skip
        for device in cut.values():
            device.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--runs", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, width, depth in (("resnet", 4, 2), ("mobilenet", 6, 3), ("transformer", 4, 4)):
            onnx.save(tiny_model(kind, width=width, depth=depth), folder / f"{kind}.onnx")
        shares = [share_row(folder, policy, phi, options.seconds) for policy, phi in CASES]
        cutting = cutting_rows(folder, options.runs)
    if options.json:
        print(json.dumps({"shares": shares, "cutting": cutting}))
        return
    print("policy  phi  time of A1  planned  energy  planned    F_S   steps  lost to scheduling")
    for row in shares:
        print(
            f"{row['policy']:6s} {row['phi']:4.1f} {row['time_share']:11.4f} {row['planned_time_share']:8.4f} "
            f"{row['energy_share']:7.4f} {row['planned_energy_share']:8.4f} {row['system_fairness']:6.3f} "
            f"{row['steps']:7d} {100 * row['scheduling_share']:18.2f}%"
        )
    print("\nmodel        uncut, ms  segment, ms  segments  cut / uncut")
    for row in cutting:
        print(
            f"{row['model']:12s} {row['whole_ms']:9.2f} {row['segment_ms']:12.0f} {row['segments']:9d} "
            f"{row['cut_over_whole']:12.3f}"
        )


if __name__ == "__main__":
    main()
