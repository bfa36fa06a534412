"""Tables of networks for the page of workloads: what their layers add up to, and what they ask of arrays (Fig. 6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commonwatt.mapping.costs import Layer

ROWS = {  # of Fig. 6: what the paper calls a network of ours, "" where its row has no name in our copy
    "mobilenet-v2": "", "resnet50": "", "shufflenet-v2": "", "gpt2": "GPT2", "mobilebert": "MobileBert",
    "t5": "TransformerXL", "transformer-xl": "TransformerXL", "dlrm-mlperf": "DLRM", "wide-deep": "WideDeep",
    "ncf": "NCF",
}  # fmt: skip


def networks_table() -> str:
    """Return the networks with the number of their layers, multiply-accumulates and parameters."""
    from commonwatt.data.networks import networks

    rows = ["| network | layers | million MACs | million parameters |", "| --- | ---: | ---: | ---: |"]
    for one in networks():
        name = f"`{one.model}`{'' if one.in_table_3 else ' (not in Table 3)'}"
        rows.append(f"| {name} | {one.layers} | {one.macs / 1e6:,.1f} | {one.parameters / 1e6:,.2f} |")
    return "\n".join(rows)


def figure_6_table() -> str:
    """Return mean cycles and bandwidth of networks: as the published code writes their layers, and in true shapes."""
    from commonwatt.data.layer_batches import as_published
    from commonwatt.data.networks import network_layers

    whats = ("HB cycles", "LB cycles", "HB GB/s")
    heads = [f"{what}, {how}" for what in whats for how in ("as published", "true shapes")]
    rows = [f"| network | {' | '.join(heads)} |", f"| --- |{' ---: |' * len(heads)}"]
    for name, printed in ROWS.items():
        layers = network_layers(name)
        pairs = zip(_means(as_published(layers)), _means(layers), strict=True)
        shown = " | ".join(_shown(value) for pair in pairs for value in pair)
        rows.append(f"| `{name}`{f' ({printed})' * bool(printed)} | {shown} |")
    return "\n".join(rows)


def _means(layers: Sequence[Layer]) -> tuple[float, float, float]:
    """Return the mean cycles on HB64 and LB64, and the mean bandwidth on HB64."""
    from commonwatt.mapping.costs import MODELS, Array, job_table

    table = job_table(layers, (Array("HB", 64), Array("LB", 64)), MODELS["maestro"])
    (hb, lb), gbs = table.latency.mean(axis=0).tolist(), float(table.bandwidth[:, 0].mean())
    return hb, lb, gbs


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


TABLES: dict[str, Callable[[], str]] = {"networks": networks_table, "figure-6": figure_6_table}
