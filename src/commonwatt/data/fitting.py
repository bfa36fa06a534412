"""Jobs of a log on a cluster: partitions they may run in, jobs that no node could run, and jobs of a part of a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from commonwatt.data.log import JobLog
from commonwatt.data.malleable import partitions_of, types_ran_on
from commonwatt.data.profiles import Profiles
from commonwatt.model.arrays import Bools
from commonwatt.model.dependencies import among
from commonwatt.model.errors import InputError
from commonwatt.model.fleet import FractionalModel, Qos
from commonwatt.model.nodes import Cluster
from commonwatt.model.scenario import LogWorkload, WeekWorkload
from commonwatt.model.units import plural

__all__ = [
    "AFTER_UNFIT",
    "TOO_LARGE",
    "UNFIT",
    "UNKNOWN_PARTITION",
    "fractions_of",
    "in_partitions",
    "only_rows",
    "without_fractions",
    "without_unfit",
]

TOO_LARGE = "left out: they request more GPUs than the cluster has"
UNFIT = "left out: no node they may use, nor several of one kind with equal parts, has the GPUs they request"
AFTER_UNFIT = "wait for jobs that are left out: not for these"
UNKNOWN_PARTITION = "in a partition that no node is in: on any node"


def in_partitions(log: JobLog, cluster: Cluster) -> tuple[JobLog, dict[str, int]]:
    """Return *log* with the partitions that some node is in, and how many jobs name only others."""
    there = {name for kind in cluster.classes for name in kind.partitions}
    if not (log.partition and there):
        return replace(log, partition=()), {}
    partitions = {text: ",".join(n for n in text.split(",") if n in there) for text in dict.fromkeys(log.partition)}
    lost = sum(bool(text) and not partitions[text] for text in log.partition)
    return replace(log, partition=tuple(partitions[text] for text in log.partition)), (
        {UNKNOWN_PARTITION: lost} if lost else {}
    )


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
    types = {name: profiles.type_named(name, "nodes.gpu_type") for name in cluster.gpu_types}
    at, names = types_ran_on(log, spec, profiles)
    part, partitions = partitions_of(log)
    large, unfit = log.gpus > cluster.total_gpus, np.zeros(len(log), dtype=bool)
    for index, gpus, p in np.unique(np.stack((at, log.gpus, part)), axis=1).T:
        there = {kind.gpu_type for kind in cluster.classes if kind.admits(partitions[p])}
        own = [name for name in there if types[name] == names[index]] if own_types else []
        if not any(cluster.shapes(name, int(gpus), partitions[p]) for name in own or there):
            unfit |= (at == index) & (log.gpus == gpus) & (part == p)
    counts = {TOO_LARGE: int(large.sum()), UNFIT: int((unfit & ~large).sum())}
    rows = np.flatnonzero(~unfit)
    if not len(rows):
        expected = f"a job that the cluster, of {plural(cluster.total_gpus, 'GPU')}, can run"
        least = f"{plural(len(log), 'job')} of at least {plural(int(log.gpus.min()), 'GPU')}"
        raise InputError(expected, file=log.path, field="gpus", value=least)
    return (only_rows(log, rows.tolist()) if unfit.any() else log), {
        how: count for how, count in counts.items() if count
    }


def only_rows(log: JobLog, rows: list[int]) -> JobLog:
    """Return the jobs in *rows* of *log*."""
    columns: dict[str, Any] = {
        name: getattr(log, name)[rows]
        for name in ("submit_s", "duration_s", "gpus", "time_limit_s", "start_s", "censored", "energy_j")
    }
    texts: dict[str, Any] = {
        name: getattr(log, name)
        for name in ("job", "tenant", "gpu_type", "nodes", "series", "partition", "user", "qos")
    }
    columns |= {name: tuple(column[i] for i in rows) if column else () for name, column in texts.items()}
    for name in ("gpu_milli", "cpus", "memory_gib", "known_s"):  # empty: said of no job
        if len(getattr(log, name)):
            columns[name] = getattr(log, name)[rows]
    columns["treated"] = {how: mask[rows] for how, mask in log.treated.items()}
    if log.after:
        columns["after"], gone = among([log.after[i] for i in rows], {log.job[i] for i in rows})
        columns["treated"][AFTER_UNFIT] = gone
    return replace(log, **columns)


# -- jobs of a part of a GPU


_QOS: dict[str, Qos] = {"LS": "LS", "BE": "BE", "Burstable": "Burstable", "Guaranteed": "Guaranteed"}


def fractions_of(log: JobLog) -> tuple[FractionalModel, ...]:
    """Return the jobs of *log* that ask for a part of a GPU."""
    models = []
    for j in np.flatnonzero(_is_fraction(log)).tolist():
        models.append(
            FractionalModel(
                log.job[j], log.tenant[j], float(log.submit_s[j]), float(log.duration_s[j]), int(log.gpu_milli[j]),
                _QOS.get(log.tenant[j], "LS"),
            )
        )  # fmt: skip
    return tuple(models)


def without_fractions(log: JobLog) -> JobLog:
    """Return *log* without these jobs. Raises ``InputError`` if none is left."""
    rows = np.flatnonzero(~_is_fraction(log)).tolist()
    if not rows:
        raise InputError("a log with a job of a whole GPU", file=log.path, field="gpu_milli", value="none")
    return only_rows(log, rows)


def _is_fraction(log: JobLog) -> Bools:
    if not len(log.gpu_milli):
        raise InputError("a log that says what part of a GPU jobs ask for (alibaba)", file=log.path,
                         field="workload.fractions", value="share")  # fmt: skip
    return np.asarray((log.gpus == 1) & (log.gpu_milli > 0) & (log.gpu_milli < 1000))
