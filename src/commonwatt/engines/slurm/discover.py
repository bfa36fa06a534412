"""What nodes a Slurm has, to write a cluster from or to check a declared one against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commonwatt.engines.slurm.commands import Slurm
from commonwatt.model.nodes import Cluster

__all__ = ["FoundNode", "differences", "discover"]


@dataclass(frozen=True)
class FoundNode:
    """A node with GPUs. Slurm knows nothing of power: that has to be declared."""

    name: str
    gpu_type: str | None  # none if Slurm's configuration names no types
    gpus: int
    features: tuple[str, ...]


def discover(slurm: Slurm) -> list[FoundNode]:
    """Return the nodes that have GPUs, by name; one with several types comes once for each.

    Raises ``EngineError`` if Slurm does not answer.
    """
    return [
        FoundNode(node.name, kind or None, count, node.features)
        for node in sorted(slurm.nodes(), key=lambda node: node.name)
        for kind, count in sorted(node.gpus.items())
        if count
    ]


def differences(cluster: Cluster, found: Sequence[FoundNode]) -> list[str]:
    """Say, in a sentence each, where a declared cluster is not what Slurm has; no types in Slurm fit any."""
    said = []
    for name, klass in zip(cluster.names, cluster.klass, strict=True):
        kind = cluster.classes[klass]
        own = [node for node in found if node.name == name]
        fits = [node for node in own if node.gpu_type in (None, *_spellings(kind.gpu_type, own))]
        gpus = sum(node.gpus for node in fits)
        if not own:
            said.append(f"node {name}: Slurm knows no node of this name with GPUs")
        elif not fits:
            types = ", ".join(sorted({str(node.gpu_type) for node in own}))
            said.append(f"node {name}: declared with GPUs of type {kind.gpu_type}, has {types}")
        elif gpus != kind.gpus:
            said.append(f"node {name}: declared with {kind.gpus} GPUs, has {gpus}")
    declared = set(cluster.names)
    said += [f"node {name}: not declared" for name in dict.fromkeys(n.name for n in found) if name not in declared]
    return said


def _spellings(gpu_type: str, own: Sequence[FoundNode]) -> list[str]:
    return [node.gpu_type for node in own if node.gpu_type and node.gpu_type.casefold() == gpu_type.casefold()]
