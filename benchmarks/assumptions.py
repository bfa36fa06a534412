"""How far off two rules are that stand in for measurements: ``python -m benchmarks.assumptions [--json]``.

- The speed of a GPU from its data sheet, against the speeds that Gavel, Zeus and Sia measured, relative to an A100:
  for each rule the root mean square of ln(rule / measured), as a factor.
- Accesses to SG of the published cost model (``maestro``), against the published job table; needs the traces.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from commonwatt.data import third_party
from commonwatt.data.profiles.base import GPU_TYPES
from commonwatt.data.profiles.law import LAW, DataSheet, data_sheets, misfit, relative_speed
from commonwatt.mapping.costs import MODELS, Array, Layer
from commonwatt.mapping.costs._layers import Loops

LayerKind = Literal["fc", "conv", "depthwise", "gemm"]
RULES: dict[str, Callable[[float, float], float]] = {
    "cube root of compute times bandwidth": lambda compute, bandwidth: (compute * bandwidth) ** (1 / 3),
    "bandwidth alone": lambda compute, bandwidth: bandwidth,  # noqa: ARG005
    "geometric mean of compute and bandwidth": lambda compute, bandwidth: (compute * bandwidth) ** 0.5,
    "compute alone": lambda compute, bandwidth: compute,  # noqa: ARG005
}
UNLIKE = "recommendation"
KINDS: tuple[LayerKind, ...] = ("fc", "conv", "depthwise", "gemm")  # by the published code


def sheet(name: str) -> DataSheet:
    return next(each for each in data_sheets() if each.gpu_type == name)


def errors(rule: Callable[[float, float], float]) -> dict[str, dict[str, float]]:
    """Return ln(rule / measured) by class of models and GPU type, relative to the A100."""
    other = sheet("A100")

    def ruled(name: str) -> float:
        own = sheet(name)
        return rule(own.peak_tflops / other.peak_tflops, own.bandwidth_gbs / other.bandwidth_gbs)

    return {
        kind: {
            name: float(np.log(ruled(name) / (speeds[name] / speeds["A100"])))
            for name in GPU_TYPES if name in speeds and name != "A100"
        }
        for kind, speeds in LAW.speed_of_one.items()
    }  # fmt: skip


def factor(values: list[float]) -> float:
    return float(np.exp(np.sqrt(np.mean(np.square(values)))))


def of_sheets() -> dict[str, Any]:
    rows = []
    for name, rule in RULES.items():
        found = errors(rule)
        every = [error for row in found.values() for error in row.values()]
        others = [error for kind, row in found.items() if kind != UNLIKE for error in row.values()]
        rows.append({"rule": name, "every": factor(every), "others": factor(others)})
    own = {kind: row for kind, row in misfit(LAW).items() if kind != UNLIKE}
    flat = [error for row in own.values() for error in row.values()]
    types = {name: [row[name] for row in own.values() if name in row] for name in GPU_TYPES if name != "A100"}
    return {
        "rows": rows, "least": float(np.exp(min(flat))), "most": float(np.exp(max(flat))),
        "mean": float(np.exp(np.mean(flat))), "h100": relative_speed(sheet("H100"), sheet("A100")),
        "types": [{"type": name, "factor": float(np.exp(np.mean(values)))} for name, values in types.items() if values],
    }  # fmt: skip


def of_accesses() -> dict[str, Any] | None:
    traces = third_party.folder()
    path = None if traces is None else traces.parent / "mapping" / "job_analysis.csv"
    if path is None or not path.is_file():
        return None
    with path.open(encoding="utf-8") as file:
        published = list(csv.DictReader(file))
    found = {}
    for dataflow in ("HB", "LB", "SHI"):
        rows = [row for row in published if row["dataflow"] == dataflow]
        same, apart, counted = 0, 0.0, 0
        for high in (32, 64, 128):
            chosen = [row for row in rows if int(row["pe_rows"]) == high]
            layers = [Layer(KINDS[int(r["type_code"])], *(int(float(r[n])) for n in "KCYXRS")) for r in chosen]
            ours = MODELS["maestro"].costs(Loops.of(layers), Array(dataflow, high)).sg_accesses
            theirs = np.array([float(row["l2_accesses"]) for row in chosen])
            plain = np.array([layer.kind != "depthwise" for layer in layers])
            same += int((ours == theirs)[plain].sum())
            counted += int(plain.sum())
            apart = max(apart, float(np.abs(ours / theirs - 1).max()))
        found[dataflow] = {"same": same, "rows": counted, "furthest": apart}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    document: dict[str, Any] = {"sheets": of_sheets(), "accesses": of_accesses()}
    if asked.json:
        print(json.dumps(document))
        return
    for row in document["sheets"]["rows"]:
        print(f"{row['rule']:42} {row['every']:.1f}  without {UNLIKE} {row['others']:.1f}")
    for dataflow, row in (document["accesses"] or {}).items():
        print(f"{dataflow}: {row['same']} of {row['rows']} rows the same, the rest within {row['furthest']:.2%}")


if __name__ == "__main__":
    main()
