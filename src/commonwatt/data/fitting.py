"""Jobs of a log that the cluster could never run as they were requested, and the log without them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from commonwatt.data.log import JobLog
from commonwatt.data.malleable import types_ran_on
from commonwatt.data.profiles import Profiles
from commonwatt.model.errors import InputError
from commonwatt.model.nodes import Cluster
from commonwatt.model.scenario import LogWorkload, WeekWorkload

__all__ = ["TOO_LARGE", "UNFIT", "without_unfit"]

TOO_LARGE = "left out: they request more GPUs than the cluster has"
UNFIT = "left out: no node, nor several of one kind with equal parts, has the GPUs they request"


def without_unfit(
    log: JobLog, spec: LogWorkload | WeekWorkload, profiles: Profiles, cluster: Cluster, *, own_types: bool
) -> tuple[JobLog, dict[str, int]]:
    """Return *log* without the jobs that fit no node at the size they request, and how many these are, by why.

    Whether a job fits does not depend on what *spec* lets it do otherwise, so that rows that differ in that have the
    same jobs.

    Parameters
    ----------
    own_types
        Whether a job may only have the GPU type it ran on, if the cluster has that; else it may have any.

    Raises
    ------
    InputError
        No job is left.
    """
    types = {name: profiles.type_named(name) for name in cluster.gpu_types}
    at, names = types_ran_on(log, spec, profiles)
    large, unfit = log.gpus > cluster.total_gpus, np.zeros(len(log), dtype=bool)
    for index, gpus in np.unique(np.stack((at, log.gpus)), axis=1).T:
        own = [name for name, kind in types.items() if kind == names[index]] if own_types else []
        if not any(cluster.shapes(name, int(gpus)) for name in own or types):
            unfit |= (at == index) & (log.gpus == gpus)
    counts = {TOO_LARGE: int(large.sum()), UNFIT: int((unfit & ~large).sum())}
    rows = np.flatnonzero(~unfit)
    if not len(rows):
        expected = f"a job that the cluster, of {cluster.total_gpus} GPUs, can run"
        least = f"{len(log)} jobs of at least {log.gpus.min()} GPUs"
        raise InputError(expected, file=log.path, field="gpus", value=least)
    return (_rows(log, rows.tolist()) if unfit.any() else log), {how: count for how, count in counts.items() if count}


def _rows(log: JobLog, rows: list[int]) -> JobLog:
    columns: dict[str, Any] = {
        name: getattr(log, name)[rows]
        for name in ("submit_s", "duration_s", "gpus", "time_limit_s", "start_s", "censored")
    }
    texts: dict[str, Any] = {name: getattr(log, name) for name in ("job", "tenant", "gpu_type", "nodes", "series")}
    columns |= {name: tuple(column[i] for i in rows) if column else () for name, column in texts.items()}
    columns["treated"] = {how: mask[rows] for how, mask in log.treated.items()}
    return replace(log, **columns)
