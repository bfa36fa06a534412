"""One run of a user's Job: which of its pods take part, and how it ended, as Kubernetes says."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from commonwatt.control.engine import JobEnded, Outcome
from commonwatt.engines.kubernetes.api import DENIED
from commonwatt.engines.kubernetes.objects import Pod, PodSeen, disrupted, taken_away
from commonwatt.engines.kubernetes.run import KubernetesRun
from commonwatt.engines.kubernetes.settings import KubernetesSettings
from commonwatt.engines.kubernetes.user_job import UserJob, by_kueue
from commonwatt.engines.local.folder import EVICTED, LEFT_EARLY, OWN, TAKEN, End
from commonwatt.engines.state_folder import read_json, write_record
from commonwatt.model.errors import EngineDownError

__all__ = ["MADE_S", "UserJobRun", "end_without_run", "maybe_placed", "nodes_of", "runs_over"]

_POD, _BOUND = "pod.json", "bound"
_DONE = "succeeded before"  # in place of a uid
_MOST_BYTES = 4096
_ALL, _OVER_LIMIT = -1, 124  # in place of a rank; an exit code
_BY_API = "EvictionByEvictionAPI"  # by an owner, or to drain a node, which is cordoned first
MADE_S = 60.0
"""How long Kubernetes may take to make the pods of a Job, or to delete them."""
_EXITED_0 = "told to stop, its program ended with exit code 0: Kubernetes counts that as success"
_OWN_S = 15.0
"""How long a new controller waits for them in any case."""
_SOON_S = 1.0
"""How much later than the deletion of its pods a Job may be seen to have failed."""


@dataclass(slots=True, eq=False)
class UserJobRun(KubernetesRun):
    """A run of a Job that a user has created.

    Kubernetes makes its pods, and more of them when they fail. So a pod that failed is the end of the run, and of the
    job only once Kubernetes says that the Job has failed.

    Attributes
    ----------
    job
        As it was seen last; ``None`` if it is gone.
    unseen
        Whether nobody may look at it now.
    """

    job: UserJob | None = None
    unseen: bool = False
    _chosen: dict[int, str] = field(default_factory=dict)  # uid by rank

    @property
    def owner(self) -> str:
        """Uid of its Job."""
        return self.spec.workload[2]

    @property
    def kind(self) -> str:
        """Kind of its Job; "" if it is not known."""
        return self.spec.command[0].rpartition("/")[2] if self.spec.command[0].count("/") > 1 else ""

    @property
    def ranks(self) -> range:
        """Number of its pods: one for each node, or as many on each."""
        return range(int(self.spec.workload[3]) if self._gang else max(1, len(self.spec.node_names)))

    def node_of(self, rank: int) -> int:
        """Return the node of a pod."""
        return self.spec.nodes[rank * len(self.spec.nodes) // len(self.ranks)]

    def __post_init__(self) -> None:
        """Go on from what is on disk: an earlier engine may have waited for its pods, or placed them."""
        self.waiting_s -= min(max(0.0, self.now_s() - self.spec.started_s), MADE_S - _OWN_S)
        self._earlier = self.has_chosen()

    def has_chosen(self) -> bool:
        """Whether it is on disk which pods take part."""
        return self.pod_uid(self.ranks[-1]) != ""

    def pod_uid(self, rank: int) -> str:
        """Return the uid of its pod of a rank; "" if none has been chosen."""
        if rank not in self._chosen:
            try:
                self._chosen[rank] = str(read_json(self.rank_folder(rank).path / _POD, _MOST_BYTES)["uid"])
            except (OSError, ValueError, TypeError, KeyError):
                return ""
        return self._chosen[rank]

    def choose(self, pods: Sequence[Pod]) -> None:
        """Write down which *pods* take part, the last rank last; raises ``EngineDownError`` if that fails.

        Ranks beyond them have succeeded in an earlier run.
        """
        try:
            for rank in self.ranks:
                folder = self.rank_folder(rank).path
                folder.mkdir(mode=0o700, exist_ok=True)
                if rank >= len(pods):
                    self._finish(rank, End(0, stopped=False, at_s=self.now_s(), cause=""))
                own = {"name": pods[rank].name, "uid": pods[rank].uid} if rank < len(pods) else {"uid": _DONE}
                write_record(folder / _POD, own)
        except OSError as error:
            msg = f"start {self.spec.name}: its records cannot be written: {error}"
            raise EngineDownError(msg) from error

    def seen(self, pods: Mapping[str, Pod], gone: Mapping[str, Pod]) -> dict[int, PodSeen]:
        """Return its pods by rank; *pods* are those there are, *gone* the last state of those that were deleted."""
        by_rank = {}
        for rank in self.ranks:
            uid = self.pod_uid(rank)
            if not uid or uid in pods:
                by_rank[rank] = PodSeen(pods.get(uid))
            else:
                by_rank[rank] = PodSeen(gone.get(uid), gone=True)
        return by_rank

    def looked_at(
        self, job_of: Callable[[UserJobRun], UserJob | None], pods: Mapping[str, Pod], gone: Mapping[str, Pod]
    ) -> dict[int, PodSeen]:
        """Look for its Job, and return its pods as ``seen`` does; while nobody may look, its Job stays as it is."""
        try:
            self.job, self.unseen = job_of(self), False
        except DENIED:
            self.unseen = True
        by_rank = self.seen(pods, gone)
        if any(one.pod is not None and not (one.over or one.pod.node) for one in by_rank.values()):
            self._earlier = False  # nobody has placed it
        return by_rank

    def begun(self, end: End) -> bool:
        """Whether a container of it ran."""
        return end.ran_s is not None

    @property
    def ends_unseen(self) -> bool:
        """Whether it may be over without a record of that: it is, Kubernetes ends it."""
        return True

    def ended_s(self) -> float:
        """When its last pod ended, by their records; infinite if one has none."""
        ends = [self.rank_folder(rank).end() for rank in self.ranks]
        return max(math.inf if end is None else end.timely(self.spec, self.now_s()).at_s for end in ends)

    def over_s(self, seen: Mapping[int, PodSeen]) -> float | None:
        """Return when the last of its pods was over; ``None`` if one is not, or it has none yet."""
        if not self.has_chosen() or not all(one.over for one in seen.values()):
            return None
        job = self.job
        if self._gang and job is not None and not job.over and all(map(_succeeded, seen.values())):
            return None  # others of its pods go on: its GPUs stay with it, and it pays for them
        before = {rank for rank in self.ranks if self.pod_uid(rank) == _DONE}
        at_s = max((self._times(one)[0] for rank, one in seen.items() if rank not in before), default=self.now_s())
        completion_s = job.end_s if job is not None and job.end == "Complete" else None  # pods may outlive a failure
        return max(self.spec.started_s, at_s if completion_s is None else min(at_s, completion_s))

    def left(self, seen: Mapping[int, PodSeen], lost: Collection[str]) -> dict[int, float]:
        """Return nodes that it has left, and when, as all its pods that may go on are on *lost* ones."""
        going = {self.node_of(rank): one.pod for rank, one in seen.items() if not one.over}
        if not self.has_chosen() or not going or any(pod is None or pod.node not in lost for pod in going.values()):
            return {}
        left_s: dict[int, float] = {}
        for rank, one in seen.items():
            if (n := self.node_of(rank)) not in going and n not in self.released:
                end = self.rank_folder(rank).end()
                left_s[n] = max(self._times(one)[0] if end is None else end.at_s, left_s.get(n, 0.0))
        return left_s

    def overstayers(self, seen: Mapping[int, PodSeen], settings: KubernetesSettings, end: End | None) -> list[Pod]:
        """Return its pods that have to go, as another has failed; those of one that has succeeded go on."""
        return KubernetesRun.overstayers(self, seen, settings, end) if self.decisive is not None else []

    def ended(self, seen: Mapping[int, PodSeen], settings: KubernetesSettings) -> End | None:
        """Return how it ended, ``None`` if it has not; one that was stopped before it had pods has."""
        if self.deleted_by_us() and not self.has_chosen() and self.folder.end() is None:
            return self.give_up(End(None, stopped=True, at_s=self.now_s(), cause="stopped"))
        if self.unseen and not (self.deleted_by_us() or self.given_up()):
            return self._ended_unseen(seen, settings)
        end = KubernetesRun.ended(self, seen, settings)
        return end if end is None or end.exit_code != 0 else self._completed(end, seen, settings)

    def _ended_unseen(self, seen: Mapping[int, PodSeen], settings: KubernetesSettings) -> End | None:
        """Give it up once nothing of it runs: how it ended is known when its Job may be looked at again."""
        if not self.has_chosen():
            if time.monotonic() < self.waiting_s + min(settings.start_s, MADE_S):
                return None
            cause = "it has no pods, and its Job may not be looked at"
            return self.give_up(End(None, stopped=False, at_s=self.now_s(), cause=cause))
        at_s = self.over_s(seen)
        if at_s is None or time.monotonic() < self.missing_s.setdefault(_ALL, time.monotonic()) + settings.lag_s:
            return None
        ran_s = max((ran for ran in (self._times(one)[1] for one in seen.values()) if ran is not None), default=None)
        cause = "its pods are over, and its Job may not be looked at"
        end = End(None, stopped=False, at_s=at_s, cause=cause, ran_s=ran_s, reason=OWN)
        self.give_up(end)
        return end  # a rank may have succeeded before, which does not make it complete

    def _completed(self, end: End, seen: Mapping[int, PodSeen], settings: KubernetesSettings) -> End | None:
        """Return *end* once the Job says so too: if a pod that had succeeded was deleted, Kubernetes makes another."""
        job = self.job
        if job is not None and job.end == "Failed" and not self.deleted_by_us():
            return _failed(job, None, end.at_s, end.ran_s)
        if job is None or job.end or self._gang or self.deleted_by_us() or job.succeeded >= len(self.ranks):
            return end
        own = [seen[rank] for rank in self.ranks if self.pod_uid(rank) != _DONE]
        if not any(one.deleted or (one.pod is not None and one.pod.owner != self.owner) for one in own):
            return None  # all that succeeded are there: it has yet to count them
        if time.monotonic() < self.missing_s.setdefault(_ALL, time.monotonic()) + settings.lag_s:
            return None
        said = (
            f"{job.succeeded} of its {len(self.ranks)} pods count as succeeded: one that had was deleted, or is not its"
        )
        reason = EVICTED if job.queue else TAKEN
        return End(None, stopped=False, at_s=end.at_s, cause=said, ran_s=end.ran_s, reason=reason)

    def _end_of(self, rank: int, seen: PodSeen, settings: KubernetesSettings) -> End | None:
        if (written := self.rank_folder(rank).end()) is not None:
            return written
        end = self._verdict(rank, seen, settings)
        return None if end is None else self._finish(rank, end)

    def _verdict(self, rank: int, seen: PodSeen, settings: KubernetesSettings) -> End | None:
        """Return how a pod that is over, or gone, ended; ``None`` if Kubernetes has not decided yet."""
        pod, job = seen.pod, self.job
        at_s, ran_s = self._times(seen)
        container = None if pod is None else pod.container
        code = None if container is None else container.exit_code
        failed = job is not None and job.end == "Failed"  # its pods may still exit with 0 on SIGTERM
        if (job is not None and job.end == "Complete") or (self._has_succeeded(pod) and not failed):
            left_early = pod is not None and pod.deleting and self.deleted_by_us()
            said = (_EXITED_0, LEFT_EARLY) if left_early else ("", "")
            return End(0, stopped=False, at_s=at_s, cause=said[0], ran_s=ran_s, reason=said[1])
        if job is not None and job.gang and not job.end and pod is not None and pod.phase == "Succeeded":
            return None  # others of its pods may run yet: a gang is complete when it says so
        if self.deleted_by_us():
            return End(None, stopped=True, at_s=at_s, cause="stopped", ran_s=ran_s)
        if job is not None and failed:
            return _failed(job, code, at_s, ran_s, killed=container is not None and container.reason == "OOMKilled")
        cause = "its Job was deleted" if job is None else disrupted(seen)
        patience_s = min(settings.lag_s, _SOON_S) if cause else settings.lag_s
        since_s = self.missing_s.setdefault(rank, time.monotonic())
        if job is not None and time.monotonic() < since_s + patience_s:
            return None  # it may be about to fail
        if job is not None and job.queue and taken_away(seen):  # it may have resumed it since
            who = by_kueue(job.queue)
            cause = f"{who} suspended its Job" if job.suspended else f"its pod was deleted, as {who} does to suspend it"
            return End(None, stopped=False, at_s=at_s, cause=cause, ran_s=ran_s, reason=EVICTED)
        if job is not None and job.suspended and not job.queue and taken_away(seen):
            cause = f"its {job.kind} was suspended, not by commonwatt: `commonwatt hold` keeps a job from running"
            return End(None, stopped=False, at_s=at_s, cause=cause, ran_s=ran_s, reason=OWN)
        by_hand = taken_away(seen) or (pod is not None and pod.disruption == _BY_API)
        too_much = pod is not None and pod.overused
        reason = OWN if job is None or not cause or too_much else TAKEN if by_hand else ""
        if not cause:
            what = "it used more memory than it may" if container and container.reason == "OOMKilled" else "it failed"
            cause = f"{what} (exit code {code}); its Job tries again"
        return End(None, stopped=False, at_s=at_s, cause=cause, ran_s=ran_s, reason=reason)

    def _has_succeeded(self, pod: Pod | None) -> bool:
        """Whether the success of a pod counts by itself: of a gang, only once that is being stopped anyway."""
        if pod is None or pod.phase != "Succeeded":
            return False
        job = self.job
        return not self._gang or (
            job is not None and not job.end and (self.decisive is not None or self.deleted_by_us())
        )

    @property
    def _gang(self) -> bool:
        return len(self.spec.workload) > 3 and bool(self.spec.workload[3])

    def note_bound(self) -> None:
        """Write down that its pods were bound to their nodes."""
        self.placed, self.waiting_s = True, time.monotonic()
        with suppress(OSError):
            (self.folder.path / _BOUND).touch(mode=0o600)

    def _is_bound(self) -> bool:
        return (self.folder.path / _BOUND).exists()

    def _times(self, seen: PodSeen) -> tuple[float, float | None]:
        """Return when a pod ended, and for how long its container ran; ``None`` if it did not.

        Of a pod that was bound and deleted while nobody looked, nothing is known: it may have run all the time.
        """
        pod, now_s = seen.pod, self.now_s()
        if pod is None:
            return now_s, max(0.0, now_s - self.spec.started_s) if self._is_bound() else None
        finished_s = None if pod.container is None else pod.container.finished_s
        at_s = self.now_s() if finished_s is None else finished_s
        return at_s, None if pod.began_s is None else max(0.0, at_s - pod.began_s)


def end_without_run(job: UserJob, number: int, now_s: float) -> JobEnded:
    """Return how a job has ended whose Job has while nothing of it ran here."""
    at_s = now_s if job.end_s is None else job.end_s
    if job.end == "Complete":
        return JobEnded(number, at_s, Outcome.COMPLETED, waited=True)
    reason = "time-limit" if job.timed_out else "job-failed"
    return JobEnded(number, at_s, Outcome.FAILED, f"its {job.kind} has failed: {job.why}", reason, waited=True)


def _failed(job: UserJob, code: int | None, at_s: float, ran_s: float | None, *, killed: bool = False) -> End:
    """Return how a run ends whose Job has failed."""
    reason = "time-limit" if job.timed_out else "out-of-memory" if killed else ""
    said = f"its {job.kind} has failed: {job.why}" + (f" (exit code {code})" if code else "")
    return End(code or _OVER_LIMIT, stopped=False, at_s=at_s, cause=said, ran_s=ran_s, reason=reason)


def runs_over(
    runs: Iterable[KubernetesRun], seen_of: Callable[[KubernetesRun], Mapping[int, PodSeen]]
) -> Iterator[tuple[float, KubernetesRun]]:
    """Yield those of *runs* that belong to users' Jobs, are over and were charged beyond that, with when they were."""
    for run in runs:
        if isinstance(run, UserJobRun) and not run.charged and (at_s := run.over_s(seen_of(run))) is not None:
            yield at_s, run


def _succeeded(seen: PodSeen) -> bool:
    return seen.pod is not None and seen.pod.phase == "Succeeded"


def maybe_placed(runs: Iterable[KubernetesRun]) -> set[int]:
    """Return the nodes of those of *runs* whose pods may be on them, which is not known yet."""
    late = (run for run in runs if run.pending and (run.has_chosen() if isinstance(run, UserJobRun) else run.uids))
    return {n for run in late for n in run.spec.nodes}


def nodes_of(runs: Iterable[KubernetesRun], *, steady: bool, awake: bool) -> set[int]:
    """Return the nodes on which *runs* may be over that are not known to be: as long, their readings stay open.

    Without a *steady* view of the server, those of users' Jobs: kubelets have yet to say so. If this process was not
    *awake*, all that were placed.
    """
    placed = (run for run in runs if not (run.charged or run.pending))
    return {n for run in placed if not awake or (isinstance(run, UserJobRun) and not steady) for n in run.spec.nodes}
