"""What tenants received of the GPU time they were entitled to, in a run under any policy."""

from __future__ import annotations

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.nodes import Cluster
from commonwatt.model.policies import FairnessResult, TenantShareResult
from commonwatt.model.units import HOUR_S
from commonwatt.placement import water_fill
from commonwatt.simulation.fleet import jain
from commonwatt.simulation.record import JobColumns, Segments

__all__ = ["shares_of"]


def shares_of(
    jobs: JobColumns, segments: Segments, asked_gpus: Ints, weights: dict[str, float], cluster: Cluster
) -> FairnessResult:
    """Return received against entitled GPU time.

    At each moment a tenant's demand is what its jobs that were submitted and have not ended ask for, and its
    entitlement the weighted max-min share of all GPUs under these demands, without memory. What it received beyond
    that does not make up for what it missed at other times. A GPU counts by its ``share_weight``; a job asks for GPUs
    of the type that it had last, or of the least weight if it had none.

    Parameters
    ----------
    asked_gpus
        GPUs each job asks for. Shape [J].
    weights
        Of tenants; 1 for those that are not named.
    """
    names = tuple(dict.fromkeys(jobs.tenant))
    at = {name: k for k, name in enumerate(names)}
    tenant = np.array([at[name] for name in jobs.tenant], dtype=np.int64)
    weight = np.array([weights.get(name, 1.0) for name in names])
    edges = np.unique(np.concatenate((jobs.submit_s, jobs.ended_s, segments.from_s, segments.to_s)))
    each = np.ones(len(cluster)) if cluster.share_weights is None else cluster.share_weights[cluster.klass]
    of_job = np.full(len(tenant), each.min())
    of_job[segments.job] = each[segments.node]
    demand = _over_time(edges, jobs.submit_s, jobs.ended_s, tenant, asked_gpus * of_job, len(names))
    held = _over_time(
        edges, segments.from_s, segments.to_s, tenant[segments.job], segments.gpus * each[segments.node], len(names)
    )  # fmt: skip
    nothing, gpus = np.zeros(len(names)), float((cluster.gpus * each).sum())
    entitled = np.array([water_fill(gpus, weight, row, nothing) for row in demand]).reshape(-1, len(names))
    width_s = np.diff(edges)[:, None]
    total = (entitled * width_s).sum(axis=0)
    kept = (np.minimum(held, entitled) * width_s).sum(axis=0)
    received = (held * width_s).sum(axis=0)
    share = np.where(total > 0, kept / np.where(total > 0, total, 1.0), 1.0)
    return FairnessResult(
        worst_share=float(share.min()),
        mean_share=float(share.mean()),
        evenness=jain(share.tolist()),
        tenants=tuple(
            TenantShareResult(
                tenant=name, weight=float(weight[k]), entitled_gpu_hours=float(total[k]) / HOUR_S,
                received_gpu_hours=float(received[k]) / HOUR_S, kept_share=float(share[k]),
            )
            for k, name in enumerate(names)
        ),
    )  # fmt: skip


def _over_time(edges: Floats, from_s: Floats, to_s: Floats, tenant: Ints, gpus: Floats, tenants: int) -> Floats:
    """Return GPUs by tenant in each interval between *edges*. Shape [E - 1, T]."""
    change = np.zeros((len(edges), tenants))
    np.add.at(change, (np.searchsorted(edges, from_s), tenant), gpus)
    np.subtract.at(change, (np.searchsorted(edges, to_s), tenant), gpus)
    return np.asarray(np.cumsum(change, axis=0)[:-1])
