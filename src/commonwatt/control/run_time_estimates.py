"""What the controller believes of run times that it does not know.

It observes when jobs work, where, and when they end: never how much is left. Work is measured in seconds of the job's
requested configuration, whatever GPU type that is on; a second elsewhere counts by the believed relative speed. What is
left follows from what a job has *attained* and from what is known beforehand: its declared limit, the run times of
jobs that have ended, or nothing. The table of jobs a controller with estimates registers has relative times only
(``relative_times``), so nothing else can leak in.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from commonwatt.control.engine import JobProgress
from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.jobs import JobArrays
from commonwatt.model.scenario import Knowledge
from commonwatt.model.units import DAY_S
from commonwatt.runtimes import JobFeatures, RuntimeDistribution, RuntimePredictor

__all__ = ["FIRST_REVISION_S", "OUTCOMES", "Remaining", "RunTimeEstimates", "relative_times", "requested_rows"]

OUTCOMES = 10
PLANNED = 8  # the outcome with which backfill plans: the 85th percentile
FIRST_LIMIT_S = DAY_S  # taken for the site's limit until a job declares one, and where nothing is known
FIRST_REVISION_S = 300.0
LEAST_LEFT_S = 1.0
_OVERRUN, _LEAST_OVERRUN_S = 0.1, 60.0  # a job beyond its limit is taken to need a tenth more


@dataclass(frozen=True)
class Remaining:
    """What is believed to be left of jobs, in seconds of their requested configurations. Shapes [J].

    Attributes
    ----------
    now_s, kept_s
        Expected work left if a job is not disturbed, and if it is restarted from its last checkpoint.
    limit_s
        Work left by the time backfill plans with.
    outcomes
        Equally likely amounts left over the expected one, [J, Q]; ``None``: certain.
    attained_gpu_s
        GPU time attained, where nothing is known; ``None``: something is.
    by_limit
        Whether what is left is the time to the job's own limit, so that it may end earlier; ``None``: it is not.
    attained_s
        Work done so far; ``None``: unknown.
    """

    now_s: Floats
    kept_s: Floats
    limit_s: Floats
    outcomes: Floats | None = None
    attained_gpu_s: Floats | None = None
    by_limit: Bools | None = None
    attained_s: Floats | None = None


def requested_rows(table: JobArrays) -> Ints:
    """Return the configuration each job requested, [J]: the first that fits the request, else that of fewest GPUs."""
    job = np.repeat(np.arange(len(table)), np.diff(table.start))
    wished = np.isin(table.requested_type[job], (-1,)) | (table.requested_type[job] == table.config_type)
    asked = wished & (table.config_gpus == table.requested_gpus[job])
    order = np.lexsort((np.where(asked, 0, table.config_gpus), ~asked, job))
    return order[table.start[:-1]].astype(np.int64)


def relative_times(table: JobArrays) -> JobArrays:
    """Return *table* with times relative to each job's requested configuration, and without its number of epochs."""
    unit_s = np.repeat(table.config_time_s[requested_rows(table)], np.diff(table.start))
    return replace(table, config_time_s=table.config_time_s / unit_s, epochs=np.ones(len(table), dtype=np.int64))


_JOB = np.dtype(
    [
        ("attained_s", "f8"),  # work it keeps, of its requested configuration
        ("attained_gpu_s", "f8"),
        ("limit_s", "f8"),
        ("from_s", "f8"),  # when its present run began to work; infinity: it does not run
        ("unit", "f8"),  # seconds there for a second of the requested configuration
        ("gpus", "f8"),
        ("base", "f8"),  # epochs it began its present run with
        ("groups", "i8", RuntimePredictor.levels),
        ("total_s", "f8", OUTCOMES),  # equally likely run times as last believed
        ("revise_s", "f8"),  # attained work at which that is revised
    ]
)


class RunTimeEstimates:
    """Attained work of every job, by handle, and what is believed to be left."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.knowledge = knowledge
        self.predictor = RuntimePredictor()
        self.largest_limit_s = 0.0
        self._all = np.zeros(64, _JOB)
        self._count = 0

    def submitted(self, table: JobArrays, rows: Ints) -> None:
        """Take note of jobs; their handles follow those before."""
        first, self._count = self._count, self._count + len(rows)
        if self._count > len(self._all):
            more = max(self._count, 2 * len(self._all)) - len(self._all)
            self._all = np.concatenate((self._all, np.zeros(more, _JOB)))
        new = self._all[first : self._count]
        new["limit_s"], new["from_s"], new["unit"] = table.time_limit_s[rows], np.inf, 1.0
        names = table.series or table.names
        new["groups"] = self.predictor.groups([
            JobFeatures(
                table.tenants[table.tenant[j]], names[j], table.kinds[j], int(table.requested_gpus[j]),
                float(table.time_limit_s[j]),
            )
            for j in rows
        ])  # fmt: skip
        declared = new["limit_s"][np.isfinite(new["limit_s"])]
        self.largest_limit_s = max(self.largest_limit_s, float(declared.max(initial=0.0)))

    def started(self, handles: Ints, unit: Floats, gpus: Ints, now_s: float, progress: JobProgress) -> None:
        """Jobs have just got their nodes; a second of the requested configuration takes *unit* there. Shapes [J]."""
        jobs = self._all
        jobs["from_s"][handles] = now_s + progress.until_work_s
        jobs["unit"][handles] = unit
        jobs["gpus"][handles] = gpus
        jobs["base"][handles] = progress.done_epochs

    def left(self, handle: int, at_s: float, lost_s: float) -> None:
        """Take note that a job is off its nodes; *lost_s* of its work is lost."""
        job = self._all[handle]
        worked_s = max(0.0, at_s - job["from_s"])
        job["attained_s"] += max(0.0, worked_s - lost_s) / job["unit"]
        job["attained_gpu_s"] += worked_s * job["gpus"]
        job["from_s"] = np.inf

    def ended(self, handle: int, at_s: float) -> None:
        """Take note that a job has ended, whatever the outcome: its run time is known now."""
        self.left(handle, at_s, 0.0)
        if self.knowledge == "predicted":
            own = self._all[[handle]]
            self.predictor.learn(own["groups"], own["attained_s"])

    def remaining(self, handles: Ints, now_s: float, progress: JobProgress) -> Remaining:
        """Return what is believed to be left of jobs."""
        jobs = self._all[handles]
        worked_s = np.maximum(0.0, now_s - jobs["from_s"])
        redo_s = _unsaved_s(worked_s, progress, jobs["base"]) / jobs["unit"]
        attained_s = jobs["attained_s"] + worked_s / jobs["unit"]
        declared = np.isfinite(jobs["limit_s"]) & (self.knowledge != "none")
        site_s = self.largest_limit_s if self.knowledge != "none" else 0.0
        limit_s = np.where(declared, jobs["limit_s"], site_s or FIRST_LIMIT_S)
        allowed_s = _until_limit(limit_s, attained_s)
        if self.knowledge == "user-limit":
            by_limit = declared & (attained_s < limit_s)
            return Remaining(allowed_s, allowed_s + redo_s, allowed_s, by_limit=by_limit, attained_s=attained_s)
        left_s = np.maximum(self._total_s(handles, attained_s) - attained_s[:, None], LEAST_LEFT_S)
        if self.knowledge == "predicted":
            left_s = np.where(declared[:, None], np.minimum(left_s, allowed_s[:, None]), left_s)
        mean_s = left_s.mean(axis=1)
        outcomes = left_s / mean_s[:, None]
        if self.knowledge == "predicted":
            return Remaining(mean_s, mean_s + redo_s, left_s[:, PLANNED], outcomes, attained_s=attained_s)
        gpu_s = jobs["attained_gpu_s"] + worked_s * jobs["gpus"]
        return Remaining(mean_s, mean_s + redo_s, allowed_s, outcomes, gpu_s, attained_s=attained_s)

    def aged(self, running: Collection[int], now_s: float) -> bool:
        """Whether what is believed of any *running* job is to be revised, as it goes on without an end."""
        jobs = self._all[np.fromiter(running, dtype=np.int64, count=len(running))]
        attained_s = jobs["attained_s"] + np.maximum(0.0, now_s - jobs["from_s"]) / jobs["unit"]
        return self.knowledge != "user-limit" and bool((attained_s >= jobs["revise_s"]).any())

    def _total_s(self, handles: Ints, attained_s: Floats) -> Floats:
        """Equally likely run times of jobs, [J, Q], revised where that is due.

        What a job that has run is thought to take is revised when it has run twice as long as at the last revision,
        or as long as was expected. In between, less and less of it is left, as of a job whose run time is known. If
        every tick revised it, the longer a job ran the more of it would seem left, and jobs would displace each other
        for ever, each losing the work since its last checkpoint. A job that has not run is seen afresh at every tick.
        """
        jobs = self._all
        due = (attained_s >= jobs["revise_s"][handles]) | (attained_s <= 0)
        if due.any():
            revised, age_s = handles[due], attained_s[due]
            is_predicted = self.knowledge == "predicted"
            unknown = RuntimeDistribution.unknown(len(revised))
            believed = self.predictor.predict(jobs["groups"][revised]) if is_predicted else unknown
            total_s = believed.outcomes(age_s, OUTCOMES)
            jobs["total_s"][revised] = total_s
            doubled_s = np.maximum(2.0 * age_s, FIRST_REVISION_S)
            jobs["revise_s"][revised] = np.maximum(np.minimum(doubled_s, total_s.mean(axis=1)), age_s + LEAST_LEFT_S)
        return jobs["total_s"][handles]


def _until_limit(limit_s: Floats, attained_s: Floats) -> Floats:
    """Time until the limit; of a job beyond it, a tenth of what it has run."""
    return np.maximum(limit_s - attained_s, np.maximum(_LEAST_OVERRUN_S, _OVERRUN * attained_s))


def _unsaved_s(worked_s: Floats, progress: JobProgress, base: Floats) -> Floats:
    """Seconds of the present run that a restart would repeat: the part of its progress that is in no checkpoint."""
    done = progress.done_epochs - base
    unsaved = progress.done_epochs - progress.kept_epochs
    part = np.divide(unsaved, done, out=np.ones(len(done)), where=done > 0)
    return worked_s * np.clip(part, 0.0, 1.0)
