"""One run of a job, as the engine handles it: its records on disk, its pods, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from commonwatt.control.engine import Change, JobEnded, JobInterrupted, JobLeft, Outcome
from commonwatt.engines.kubernetes.containers import CREATE, NEVER, PULL
from commonwatt.engines.kubernetes.objects import BY_SCHEDULER, DELETED_THERE, PREEMPTED, Pod, PodSeen, disrupted
from commonwatt.engines.kubernetes.settings import KubernetesSettings, folder_of, mark_of_run
from commonwatt.engines.local.folder import EVICTED, OWN, TAKEN, End, RunFolder
from commonwatt.engines.recorded_engine import SchedulerRun
from commonwatt.engines.run_spec import RunSpec
from commonwatt.engines.state_folder import write_record
from commonwatt.model.errors import EngineDownError, EngineError

__all__ = ["KubernetesRun", "StartRequest", "change_of", "verdict"]

_GIVEN_UP, _DELETED, _CLEARED = "given-up", "deleted", "cleared"
_NOT_RUN, _OVER_LIMIT = 125, 124  # exit codes, as of ``docker run`` and ``timeout``
_CANNOT_RUN = frozenset({"ContainerCannotRun", "StartError"})


@dataclass(slots=True, eq=False)
class KubernetesRun(SchedulerRun):
    """A run whose end was not reported yet.

    Attributes
    ----------
    uids
        Of its pods, by rank, as far as they are known.
    placed
        All its pods are bound to their nodes.
    deferred
        Whether its pods wait for its nodes to wake.
    bound
        Those of its pods, by rank, that are on their nodes, or over.
    preempted
        Whether Kubernetes' scheduler gave the place of a pod of it to another.
    missing_s
        Since when a pod, by rank, is over and has no record of its end.
    decisive
        End of the pod that decides how it ends, once one has failed or was interrupted.
    """

    uids: dict[int, str] = field(default_factory=dict)
    placed: bool = False
    deferred: bool = False
    bound: set[int] = field(default_factory=set)
    preempted: bool = False
    missing_s: dict[int, float] = field(default_factory=dict)
    decisive: End | None = None
    _earlier: bool = False  # whether an earlier engine may have placed it

    @property
    def ranks(self) -> range:
        """Number of its pods: one for each node."""
        return range(max(1, len(self.spec.node_names)))

    @property
    def mark(self) -> str:
        """What its pods are annotated with."""
        return mark_of_run(self.spec)

    @property
    def owner(self) -> str:
        """Uid of the Job that makes its pods; "" if we make them."""
        return ""

    def pod_uid(self, rank: int) -> str:  # noqa: ARG002
        """Return the uid of its pod of a *rank*, if that was written down before the pod was placed; else ""."""
        return ""

    def key(self, rank: int) -> tuple[int, int, int]:
        """Handle, attempt and rank of a pod."""
        return self.spec.handle, self.spec.attempt, rank

    def node_of(self, rank: int) -> int:
        """Return the node of a pod."""
        return self.spec.nodes[rank]

    def rank_folder(self, rank: int) -> RunFolder:
        """Return the records of a pod of it."""
        return RunFolder(folder_of(self.folder.path, rank))

    @property
    def pending(self) -> bool:
        """Whether it has GPUs only in our books: none of its pods has to be there yet."""
        return self.deferred or not (self.placed or self._earlier)

    @property
    def ends_unseen(self) -> bool:
        """Whether it is not known that it was placed: the time before that is nobody's."""
        return not self._earlier

    def __post_init__(self) -> None:
        """Go on from what is on disk: an earlier engine has placed it if its runner began."""
        self._earlier = self.folder.processes() is not None

    @property
    def unbound(self) -> list[int]:
        """Ranks of the pods that have yet to be placed."""
        return [rank for rank in self.ranks if rank not in self.bound]

    def note_seen(self, seen: Mapping[int, PodSeen], hosts: Sequence[str]) -> None:
        """Note which of its pods need no placing any more: they are on their *hosts*, or over."""
        for rank, one in seen.items():
            if one.pod is not None and (one.over or one.pod.node == hosts[rank]):
                self.bound.add(rank)

    def note_preempted(self, seen: Mapping[int, PodSeen], nominated: Collection[str], hosts: Sequence[str]) -> None:
        """Note that Kubernetes' scheduler deletes a pod of it: it says so, or has *nominated* its node for another."""
        for rank, one in seen.items():
            if one.deleted and self.placed and self.asked_s is None:
                said = one.pod is not None and one.pod.disruption in BY_SCHEDULER
                self.preempted |= said or hosts[self.node_of(rank)] in nominated

    def note_placed(self) -> None:
        """Note that its pods were bound to their nodes a moment ago."""
        self.placed, self.deferred, self.waiting_s = True, False, time.monotonic()

    def was_placed(self, seen: Mapping[int, PodSeen]) -> bool | None:
        """Whether an earlier engine had placed its pods; ``None``: one is not there, and may be made late."""
        if any(one.pod is not None and not one.over and not one.pod.node for one in seen.values()):
            return False
        return True if all(one.pod is not None for one in seen.values()) else None

    def write_rank(self, rank: int, spec: RunSpec) -> None:
        """Write down the *spec* of a pod; raises ``EngineDownError`` if that fails."""
        try:
            (folder := self.rank_folder(rank).path).mkdir(mode=0o700, exist_ok=True)
            write_record(folder / "run.json", asdict(spec))
        except OSError as error:
            msg = f"its records cannot be written: {error}"
            raise EngineDownError(msg) from error

    # -- giving it up

    def note_deleted(self) -> None:
        """Write down, before it happens, that we delete its pods: an engine that comes later has to know."""
        with suppress(OSError):
            (self.folder.path / _DELETED).touch(mode=0o600)

    def deleted_by_us(self) -> bool:
        """Whether we stopped it, or deleted its pods."""
        return self.asked_s is not None or (self.folder.path / _DELETED).exists()

    def given_up(self) -> bool:
        """Whether it was given up: what its pods still do does not matter any more."""
        return (self.folder.path / _GIVEN_UP).exists()

    def give_up(self, end: End) -> End:
        """End it whatever its pods do; returns how it ended, which its runner may have written first.

        A runner that is alive, or starts later, sees this and ends its job; the next run waits for that.
        """
        with suppress(OSError):
            (self.folder.path / _GIVEN_UP).touch(mode=0o600)
        written = [self._finish(rank, end) for rank in reversed(self.ranks)]
        return written[-1]

    def _finish(self, rank: int, end: End) -> End:
        folder = self.rank_folder(rank)
        if not folder.path.is_dir():  # the engine died before it made it
            return end
        return folder.give_up(end)

    # -- its end

    def begun(self, end: End) -> bool:
        """Whether a run with this *end* got as far as its command."""
        return self.folder.begun(end)

    def ended(self, seen: Mapping[int, PodSeen], settings: KubernetesSettings) -> End | None:
        """Return how it ended, ``None`` if it has not: all its pods have to be over, unless it was given up."""
        if self.given_up() and (end := self.folder.end()) is not None:
            return end.timely(self.spec, self.now_s())
        over = [rank for rank in self.ranks if seen[rank].over]
        ends = {rank: self._end_of(rank, seen[rank], settings) for rank in over}
        for rank, end in ends.items():
            if end is not None and self.decisive is None and end.exit_code != 0 and not end.stopped:
                self.decisive = end if len(self.ranks) == 1 else replace(end, cause=f"pod {rank}: {end.cause}")
        if len(over) < len(self.ranks):
            return None
        pod_ends = [end for end in ends.values() if end is not None]
        if len(pod_ends) < len(self.ranks):
            return None
        chosen = self.decisive or next((end for end in pod_ends if end.exit_code != 0), pod_ends[0])
        at_s = max(end.at_s for end in pod_ends)
        return replace(chosen, at_s=at_s).timely(self.spec, self.now_s())

    def finished(self, seen: Mapping[int, PodSeen], settings: KubernetesSettings) -> list[Pod]:
        """Return its pods whose job has ended a while ago: a webhook may have added containers that go on.

        How a job ended whose runner left no record is written down before its pod is deleted.
        """
        pods = []
        for rank, one in seen.items():
            container = None if one.pod is None else one.pod.container
            if one.pod is None or one.over or container is None or container.exit_code is None:
                continue
            since_s = self.missing_s.setdefault(rank, time.monotonic())
            if not one.pod.deleting and time.monotonic() > since_s + max(settings.kill_s, settings.lag_s):
                if self.rank_folder(rank).end() is None:
                    asked = self.deleted_by_us()
                    self._finish(rank, verdict(one, self.now_s(), asked=asked, python=settings.python))
                with suppress(OSError):
                    (self.rank_folder(rank).path / _CLEARED).touch(mode=0o600)
                pods.append(one.pod)
        return pods

    def overstayers(self, seen: Mapping[int, PodSeen], settings: KubernetesSettings, end: End | None) -> list[Pod]:
        """Return pods of a gang that have to go, as another failed, by its *end*, or the first ended a while ago."""
        left = [(rank, one.pod) for rank, one in seen.items() if not one.over and one.pod is not None]
        if not left or len(left) == len(self.ranks):
            return []
        if any(self.rank_folder(rank).end() is None for rank, _ in left):
            self.decisive = self.decisive or end
        first = self.folder.end()
        late = first is not None and self.now_s() > first.at_s + settings.kill_s
        return [pod for _, pod in left] if self.decisive is not None or late else []

    def _end_of(self, rank: int, seen: PodSeen, settings: KubernetesSettings) -> End | None:
        folder = self.rank_folder(rank)
        end = folder.end()
        if end is None:
            since_s = self.missing_s.setdefault(rank, time.monotonic())
            may_come = folder.path.is_dir() if seen.pod is None else seen.pod.container is not None
            if may_come and time.monotonic() < since_s + settings.lag_s:
                return None
            end = verdict(seen, self.now_s(), asked=self.deleted_by_us(), python=settings.python)
            return self._finish(rank, end)
        if (folder.path / _CLEARED).exists():  # its pod was deleted after the job had ended, which says nothing of it
            return end if seen.pod is None else self._judged(end, PodSeen(replace(seen.pod, deleting=False)))
        return self._judged(end, seen)

    def _judged(self, end: End, seen: PodSeen) -> End:
        """Return the *end* that the runner wrote, in the light of what its pod says."""
        if self.deleted_by_us() and (end.stopped or end.killed):
            return replace(end, stopped=True, cause="stopped")
        pod = seen.pod
        container = None if pod is None else pod.container
        if end.killed and container is not None and container.reason == "OOMKilled":
            return replace(end, cause=_oom(container.message), reason="out-of-memory")
        if end.stopped or end.killed:
            cause = disrupted(seen)
            if cause:
                return replace(end, exit_code=None, cause=cause)
        return end

    # -- what its pods wait for

    def stalled(self, seen: Mapping[int, PodSeen], settings: KubernetesSettings) -> End | None:
        """Return why it is to be withdrawn: a pod of it does not start; ``None`` if none is late."""
        idle = [one.pod for one in seen.values() if one.pod is not None and not one.over and not _started(one.pod)]
        if not idle:
            self.waiting_s = time.monotonic()
            return None
        late = time.monotonic() > self.waiting_s + settings.start_s
        for pod in idle:
            why = "" if pod.container is None else pod.container.waiting
            if why in NEVER or (late and why in PULL | CREATE):
                return _not_started(pod, self.now_s())
        if not late:
            return None
        why = next((pod.container.waiting for pod in idle if pod.container is not None), "") or "no reason given"
        cause = f"the kubelet did not start it within {settings.start_s:g} s: {why}"
        return End(None, stopped=False, at_s=self.now_s(), cause=cause)


@dataclass
class StartRequest:
    """A run that was written down, and the pods it needs; it *waits* if its nodes have yet to wake."""

    run: KubernetesRun
    specs: Sequence[RunSpec]
    bodies: Sequence[Mapping[str, Any]]
    waits: bool
    error: EngineError | None = None

    def pods(self) -> Iterable[tuple[int, RunSpec, Mapping[str, Any]]]:
        """Rank, spec and manifest of each pod."""
        return zip(range(len(self.specs)), self.specs, self.bodies, strict=True)


def change_of(run: KubernetesRun, change: Change, end: End, *, requeue: bool, away: bool = False) -> Change:
    """Return what the controller hears of the end of a run.

    One that it takes for gone has left at last. Nobody is blamed where Kubernetes' scheduler took its place. One whose
    pod somebody deleted is cancelled, unless those are requeued: then its owner pays for what it used, if it is a
    user's Job and its nodes are not *away*. So it does where Kueue took it: who names a queue on a Job can suspend it.
    """
    if not isinstance(change, JobInterrupted):
        return change
    if run.detached:
        return JobLeft(change.handle, change.at_s, change.lost_s)
    if run.preempted:
        return replace(change, blamed=False, cause=PREEMPTED)
    if run.owner and end.reason == EVICTED:
        return replace(change, blamed=False, paid=not away)
    if not requeue and end.cause == DELETED_THERE:
        return JobEnded(change.handle, change.at_s, Outcome.CANCELLED, DELETED_THERE, "pod-deleted")
    if run.owner and (end.reason == OWN or (end.reason == TAKEN and not away)):
        return replace(change, paid=True)
    return change


def verdict(seen: PodSeen, now_s: float, *, asked: bool, python: str) -> End:
    """Return how a pod that is over ended, by what Kubernetes says: its runner left no record."""
    if asked:
        return End(None, stopped=True, at_s=now_s, cause="stopped")
    pod = seen.pod
    container = None if pod is None else pod.container
    at_s = now_s if container is None or container.finished_s is None else container.finished_s
    if container is not None and container.exit_code is not None:
        if container.reason == "OOMKilled":
            return End(137, stopped=False, at_s=at_s, cause=_oom(container.message), reason="out-of-memory")
        if container.reason in _CANNOT_RUN or container.exit_code in (126, 127):
            cause = f"its image cannot run {python}, which the runner needs: {container.message or container.reason}"
            return End(container.exit_code or _NOT_RUN, stopped=False, at_s=at_s, cause=cause, reason="not-executable")
    if pod is not None and pod.reason == "DeadlineExceeded":
        cause = f"Kubernetes ended its pod at a deadline: {pod.message}".rstrip(": ")
        return End(_OVER_LIMIT, stopped=False, at_s=at_s, cause=cause, reason="time-limit", over_limit=True)
    cause = disrupted(seen)
    if not cause and container is not None and container.exit_code is not None:
        cause = f"its runner ended ({container.reason or 'Error'}, exit code {container.exit_code}) without a record"
    return End(None, stopped=False, at_s=at_s, cause=cause or "its pod ended without a record")


def _not_started(pod: Pod, now_s: float) -> End:
    assert pod.container is not None
    why, said = pod.container.waiting, pod.container.message
    pulled = why in PULL | NEVER
    cause = f"its image is not pulled ({why})" if pulled else f"its container cannot be made ({why})"
    reason = "image-not-pulled" if pulled else "pod-refused"
    return End(_NOT_RUN, stopped=False, at_s=now_s, cause=f"{cause}: {said}".rstrip(": "), reason=reason)


def _started(pod: Pod) -> bool:
    if pod.container is None:
        return pod.phase == "Running"
    return pod.container.running or pod.container.exit_code is not None


def _oom(said: str) -> str:
    return f"it used more memory than its pod may have (OOMKilled){f': {said}' if said else ''}"
