"""Model servers in Slurm: each is a job of ours there that holds one GPU of its node."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from commonwatt.engines.local.folder import End, RunFolder
from commonwatt.engines.model_servers import FIRST_SERVER, Hosting, ModelServers
from commonwatt.engines.run_spec import RunSpec
from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.node_control import Allocations
from commonwatt.engines.slurm.run import SlurmRun
from commonwatt.engines.slurm.snapshot import SlurmSnapshot, own_jobs
from commonwatt.engines.slurm.submitter import Submitter
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.model.nodes import Cluster

__all__ = ["SlurmServers", "stop_servers"]

log = logging.getLogger("commonwatt.engines")


_ENDS_S = 20.0
"""Time for servers to answer what they have accepted, and for Slurm to take them off their nodes."""
_BLINK_S = 0.2


class SlurmServers(ModelServers[SlurmRun]):
    """Model servers as jobs in Slurm.

    Parameters
    ----------
    free_slots
        Returns the numbers of the GPUs of a node that nobody has; Slurm gives a server the GPU it likes.
    look, ended, stop
        A recent snapshot; how a run has ended; and what stops one, and returns whether Slurm has taken it off its node.
    """

    first_handle = FIRST_SERVER

    def __init__(
        self, cluster: Cluster, hosting: Hosting, submitter: Submitter, allocations: Allocations, *, look_s: float,
        free_slots: Callable[[int], Sequence[int]], look: Callable[[], SlurmSnapshot],
        ended: Callable[[SlurmRun], End | None], stop: Callable[[SlurmRun], bool], now_s: Callable[[], float],
    ) -> None:  # fmt: skip
        self._cluster, self._hosting, self._submitter, self._allocations = cluster, hosting, submitter, allocations
        self._free_slots, self._look, self._ended, self._stop = free_slots, look, ended, stop
        self.look_s, self._now_s = look_s, now_s
        self.runs: dict[int, SlurmRun] = {}
        """Those that are not over, by handle; one that was stopped in vain included."""

    def free_slots(self, node: int) -> Sequence[int]:
        """Return numbers for the GPUs of a node that nobody has."""
        return self._free_slots(node)

    def host(self, node: int) -> str:
        """Return the address of a node: as configured, else as Slurm reaches it, else its name."""
        name = self._cluster.names[node]
        seen = self._allocations.node(node, self._look())
        return self._hosting.addresses.get(name) or (seen.address if seen is not None else "") or name

    def adopt(self, folder: RunFolder, spec: RunSpec) -> SlurmRun:
        """Return the run with these records; without an end on record it counts as on its node."""
        run = SlurmRun(folder, spec, now_s=self._now_s)
        self.runs[spec.handle] = run
        if folder.end() is None:
            self._allocations.enter(run)
        return run

    def start(self, folder: RunFolder, spec: RunSpec) -> SlurmRun:
        """Submit a server; whether Slurm has it is seen at the next looks."""
        run = self.runs[spec.handle] = SlurmRun(folder, spec, now_s=self._now_s)
        self._allocations.enter(run)
        try:
            self._submitter.begin(run, self._look())
        except EngineDownError as error:  # Slurm may have it all the same: it is given up after two looks without it
            log.warning("Slurm did not answer when a model server was submitted", extra={"cause": str(error)})
        except EngineError as error:
            run.prevented(str(error))
        return run

    def ended(self, run: SlurmRun) -> End | None:
        """Return how a run ended."""
        return self._ended(run)

    def stop(self, run: SlurmRun) -> bool:
        """Stop a run; one that Slurm still has keeps its GPU until Slurm says that it is over."""
        try:
            gone = self._stop(run)
        except EngineError as error:
            log.warning("a model server cannot be stopped", extra={"cause": str(error)})
            gone = False
        run.asked_s = time.monotonic() if run.asked_s is None else run.asked_s
        if gone:
            self.release(run)
        run.detached = not gone
        return gone

    def release(self, run: SlurmRun) -> None:
        """Take a run that has ended off its node."""
        self.runs.pop(run.spec.handle, None)
        if run.there:
            self._allocations.leave(run)

    def release_stopped(self) -> None:
        """Take those off their nodes that were stopped, and are over by now."""
        for run in [run for run in self.runs.values() if run.detached and self._ended(run) is not None]:
            self.release(run)


def stop_servers(slurm: Slurm, identity: str) -> int:
    """Stop all model servers that are jobs of *identity*, and wait until they are over; returns how many there were.

    Raises ``EngineError`` if Slurm does not answer.
    """

    def there() -> list[int]:
        return [job.id for (handle, _), job in own_jobs(slurm, identity) if handle >= FIRST_SERVER and not job.over]

    jobs = left = there()
    if jobs:
        slurm.terminate(jobs)
    until_s = time.monotonic() + _ENDS_S
    while left and time.monotonic() < until_s:
        time.sleep(_BLINK_S)
        left = there()
    if left:
        slurm.cancel(left)
    return len(jobs)
