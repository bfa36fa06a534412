"""Submits runs to Slurm: at once, or as soon as their nodes have woken."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.node_control import Allocations, NodePower
from commonwatt.engines.slurm.run import SlurmRun, comment_of
from commonwatt.engines.slurm.settings import SlurmSettings, submission
from commonwatt.engines.slurm.snapshot import SlurmSnapshot
from commonwatt.model.errors import EngineError
from commonwatt.model.nodes import Cluster

__all__ = ["Submitter"]


class Submitter:
    """Submits runs, of jobs and of model servers alike.

    Parameters
    ----------
    allocations, power
        The nodes.
    identity, script
        As ``prepare`` returns them.
    """

    def __init__(
        self, slurm: Slurm, cluster: Cluster, settings: SlurmSettings, allocations: Allocations, power: NodePower,
        identity: str, script: Path,
    ) -> None:  # fmt: skip
        self._slurm, self._cluster, self._settings = slurm, cluster, settings
        self._allocations, self._power = allocations, power
        self._identity, self._script = identity, script

    def begin(self, run: SlurmRun, snapshot: SlurmSnapshot) -> None:
        """Submit a run, or wake its nodes for it first; raises ``EngineError`` if that is refused."""
        sleepers = [n for n in run.spec.nodes if not self._allocations.ready(n, snapshot)]
        for n in sleepers:
            self._power.wake(n, snapshot.nodes[self._cluster.names[n]])
        run.deferred = bool(sleepers)
        if not sleepers:
            self._submit(run, snapshot)

    def advance(self, runs: Iterable[SlurmRun], snapshot: SlurmSnapshot) -> None:
        """Submit those whose nodes have woken; withdraw those that Slurm does not start."""
        self._power.advance(snapshot)
        for run in runs:
            job = snapshot.job_of(run.spec)
            if run.deferred:
                self._submit_deferred(run, snapshot)
            elif job is not None and run.misplaced(job, self._settings.start_s):
                run.note_cancel()
                self._slurm.cancel([job.id])

    def _submit(self, run: SlurmRun, snapshot: SlurmSnapshot) -> None:
        nodes = [self._cluster.names[n] for n in run.spec.nodes]
        gpu_type = self._cluster.classes[self._cluster.klass[run.spec.nodes[0]]].gpu_type
        kind = snapshot.nodes[nodes[0]].type_for(gpu_type)
        comment = comment_of(self._identity, run.spec.handle, run.spec.attempt)
        options = submission(self._settings, run.spec, nodes, kind, run.folder.work, comment)
        run.number = self._slurm.submit(options, self._script, str(run.folder.work), run.spec.user)
        run.folder.note_number(run.number)
        run.deferred, run.waiting_s = False, time.monotonic()

    def _submit_deferred(self, run: SlurmRun, snapshot: SlurmSnapshot) -> None:
        """Submit a run whose nodes were asleep, if all are up; give it up if one did not wake."""
        seen = {n: self._allocations.node(n, snapshot) for n in run.spec.nodes}
        gone = [n for n, node in seen.items() if node is None or node.out or self._power.asleep(n, node)]
        if not gone and not all(self._allocations.ready(n, snapshot) for n in run.spec.nodes):
            return
        cause = f"node {self._cluster.names[gone[0]]} did not wake" if gone else ""
        try:
            if not gone:
                self._submit(run, snapshot)
        except EngineError as error:
            cause = str(error)
        if cause and run.prevented(cause):
            run.deferred = False
