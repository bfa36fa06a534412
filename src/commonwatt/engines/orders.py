"""From the command to start a job to what its runner is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from commonwatt.control.engine import Start
from commonwatt.engines.images import Images
from commonwatt.engines.local.folder import RunOrder
from commonwatt.engines.past import Past
from commonwatt.engines.reports import Reports
from commonwatt.model.nodes import Cluster

__all__ = ["Orders"]


@dataclass(frozen=True)
class Orders:
    """What all orders of an engine have in common."""

    cluster: Cluster
    reports: Reports
    past: Past
    images: Images
    grace_s: float
    now_s: Callable[[], float]
    look_s: float | None = None  # how often a runner looks whether its run was given up; never if it is our own child
    locked: bool = False  # whether a runner has to wait for the one before it, which may be on another machine

    def order(
        self, command: Start, slots: tuple[tuple[int, ...], ...], environment: Mapping[str, str] | None = None
    ) -> RunOrder:
        """Return the order of the job's next run on these *slots*, with more in its *environment* if it is given.

        Raises ``EngineError`` if there is no place for it.
        """
        gpus = len(command.nodes) * command.gpus_per_node
        work, places, told = self.reports.work(command.handle, command.name, gpus)
        return RunOrder(
            handle=command.handle,
            attempt=self.past.next_attempt(command.handle),
            name=command.name,
            nodes=command.nodes,
            gpus_per_node=command.gpus_per_node,
            slots=slots,
            started_s=self.now_s(),
            base_epochs=self.reports.of(command.handle, None)[1],
            command=self.images.command(work, places),
            folder=str(work.folder),
            environment={**told, **(environment or {})},
            grace_s=self.grace_s,
            limit_s=work.time_limit_s,
            lock=f"{places['own']}/lock" if self.locked else None,
            look_s=self.look_s,
            node_names=tuple(self.cluster.names[n] for n in command.nodes),
            epochs=work.epochs,
            mark=work.mark,
        )
