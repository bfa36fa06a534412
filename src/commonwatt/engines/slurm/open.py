"""The Slurm engine a configuration describes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from commonwatt.engines.images import Images
from commonwatt.engines.meters import Since
from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.engine import SlurmEngine
from commonwatt.engines.slurm.settings import SlurmSettings
from commonwatt.engines.work import Work
from commonwatt.model.live import SlurmSpec
from commonwatt.model.nodes import Cluster

__all__ = ["open_slurm", "slurm_of"]


def slurm_of(spec: SlurmSpec) -> Slurm:
    """Return the client programs."""
    conf = None if spec.conf is None else Path(spec.conf)
    return Slurm(conf, timeout_s=spec.command_timeout_s, use_json=spec.use_json)


def open_slurm(
    spec: SlurmSpec, cluster: Cluster, folder: Path, work_of: Callable[[str], Work], *, images: Images | None = None,
    since: Since | None = None, now_s: Callable[[], float] = time.time,
) -> SlurmEngine:  # fmt: skip
    """Return the engine; *folder* is where relative paths of *spec* begin, *now_s* the time. Slurm need not answer yet.

    Raises ``InputError`` as ``SlurmEngine`` and ``SlurmSettings`` do.
    """
    partition = () if spec.partition is None else (f"--partition={spec.partition}",)
    settings = SlurmSettings(
        cluster_id=spec.cluster_id,
        options=(*partition, *spec.options),
        cpus_per_gpu=spec.cpus_per_gpu,
        power=spec.power,
        python=spec.python,
        grace_s=spec.grace_s,
        start_s=spec.start_s,
        lag_s=spec.lag_s,
        look_s=spec.poll_s,
    )
    return SlurmEngine(
        cluster, folder / spec.state, work_of, slurm=slurm_of(spec), settings=settings, images=images,
        declared_power=spec.meter == "declared", since=since, now_s=now_s,
    )  # fmt: skip
