"""Opens the Slurm engine of a configuration; lists the nodes of a Slurm, and compares a declared cluster with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from commonwatt.engines.meters import Since
from commonwatt.engines.model_servers import Hosting
from commonwatt.engines.run_spec import Images, JobWork
from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.engine import SlurmEngine
from commonwatt.engines.slurm.node_control import NodeMeter
from commonwatt.engines.slurm.settings import SlurmSettings
from commonwatt.model.errors import EngineError, InputError
from commonwatt.model.live import SlurmSpec
from commonwatt.model.nodes import Cluster
from commonwatt.model.units import plural

__all__ = ["Difference", "DiscoveredNode", "differences", "discover", "open_slurm", "slurm_of"]


def slurm_of(spec: SlurmSpec, guard: Callable[[], None] = lambda: None) -> Slurm:
    """Return the client programs; *guard* as for ``Slurm``. Where *spec* says ``read_only``, they change nothing.

    Raises ``InputError`` where its ``conf`` is no file: Slurm's programs would wait two minutes for it.
    """
    conf = None if spec.conf is None else Path(spec.conf)
    if conf is not None and not conf.is_file():
        raise InputError("a slurm.conf that exists", field="conf", value=conf)
    return Slurm(
        conf, timeout_s=spec.command_timeout_s, use_json=spec.use_json, guard=_refuse if spec.read_only else guard
    )


def open_slurm(
    spec: SlurmSpec, cluster: Cluster, folder: Path, work_of: Callable[[str], JobWork], *, images: Images | None = None,
    since: Since | None = None, now_s: Callable[[], float] = time.time,
    guard: Callable[[], None] = lambda: None, hosting: Hosting | None = None,
) -> SlurmEngine:  # fmt: skip
    """Return the engine; relative paths of *spec* start at *folder*, *now_s* is the time. Slurm need not answer yet.

    *guard* is as for ``Slurm``, *hosting* as for ``SlurmEngine``.

    Raises ``InputError`` as ``SlurmEngine`` and ``SlurmSettings`` do.
    """
    named = spec.partition or ",".join(spec.place_in)
    partition = (f"--partition={named}",) if named else ()
    settings = SlurmSettings(
        cluster_id=spec.cluster_id,
        options=(*partition, *spec.options),
        cpus_per_gpu=spec.cpus_per_gpu,
        power=spec.power,
        users=frozenset(spec.users.values()),
        requeue_cancelled=spec.on_scancel == "requeue",
        python=spec.python,
        grace_s=spec.grace_s,
        start_s=spec.start_s,
        lag_s=spec.lag_s,
        look_s=spec.poll_s,
    )
    slurm = slurm_of(spec, guard)
    return SlurmEngine(
        cluster, folder / spec.state, work_of, slurm=slurm, settings=settings, images=images,
        node_energy_j=NodeMeter(slurm, cluster, since or {}, now_s) if spec.meter == "slurm" else None,
        declared_power=spec.meter == "declared", since=since, now_s=now_s, hosting=hosting,
    )  # fmt: skip


def _refuse() -> None:
    msg = "live.slurm.read_only is set: nothing is changed in Slurm"
    raise EngineError(msg)


@dataclass(frozen=True)
class DiscoveredNode:
    """A node with GPUs. Its power has to be declared: Slurm has no figures."""

    name: str
    gpu_type: str | None  # none if Slurm's configuration names no types
    gpus: int
    features: tuple[str, ...]


def discover(slurm: Slurm) -> list[DiscoveredNode]:
    """Return the nodes that have GPUs, by name; a node with several types comes once for each.

    Raises ``EngineError`` if Slurm does not answer.
    """
    return [
        DiscoveredNode(node.name, kind or None, count, node.features)
        for node in sorted(slurm.nodes(), key=lambda node: node.name)
        for kind, count in sorted(node.gpus.items())
        if count
    ]


@dataclass(frozen=True)
class Difference:
    """A node on which a declared cluster and Slurm differ."""

    node: str
    declared: bool  # whether the configuration has it
    sentence: str


def differences(cluster: Cluster, nodes: Sequence[DiscoveredNode]) -> list[Difference]:
    """Return where a declared cluster is not what Slurm has; no types in Slurm fit any."""
    texts: list[tuple[str, str]] = []
    for name, klass in zip(cluster.names, cluster.klass, strict=True):
        kind = cluster.classes[klass]
        own = [node for node in nodes if node.name == name]
        fits = [node for node in own if node.gpu_type in (None, *_spellings(kind.gpu_type, own))]
        gpus = sum(node.gpus for node in fits)
        lacking = [feature for feature in kind.features if own and feature not in own[0].features]
        if not own:
            texts.append((name, "Slurm has no node of this name with GPUs"))
        elif not fits:
            types = ", ".join(sorted({str(node.gpu_type) for node in own}))
            texts.append((name, f"declared with GPUs of type {kind.gpu_type}, has {types}"))
        elif gpus != kind.gpus:
            texts.append((name, f"declared with {plural(kind.gpus, 'GPU')}, has {gpus}"))
        elif lacking:
            texts.append((name, f"declared with features that Slurm does not have there: {', '.join(lacking)}"))
    declared = set(cluster.names)
    texts += [(name, "not declared") for name in dict.fromkeys(n.name for n in nodes) if name not in declared]
    return [Difference(name, name in declared, f"node {name}: {text}") for name, text in texts]


def _spellings(gpu_type: str, own: Sequence[DiscoveredNode]) -> list[str]:
    return [node.gpu_type for node in own if node.gpu_type and node.gpu_type.casefold() == gpu_type.casefold()]
