"""Nodes that Slurm is asked to keep everybody's new jobs away from, and which of them it was us who asked."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.sight import Sight

__all__ = ["Drains"]

_DRAINING = frozenset({"drain", "drained", "draining"})


class Drains:
    """Drains in our name: the reason Slurm keeps of each tells them from an administrator's, which are left alone.

    Parameters
    ----------
    names
        Of the nodes.
    identity
        Who we are to Slurm.
    """

    def __init__(self, slurm: Slurm, names: Sequence[str], identity: str) -> None:
        self._slurm, self._names, self._reason = slurm, names, f"drained by commonwatt {identity}"

    def set(self, nodes: Collection[int], sight: Sight) -> None:
        """Have exactly *nodes* drained by us, but those that somebody else has drained; raises ``EngineError``."""
        reasons = self._slurm.reasons()
        for n, name in enumerate(self._names):
            node = sight.nodes.get(name)
            drained = node is not None and bool(node.states & _DRAINING)
            if n in nodes and not drained:
                self._slurm.update_node(name, "DRAIN", self._reason)
            elif n not in nodes and drained and reasons.get(name) == self._reason:
                self._slurm.update_node(name, "UNDRAIN")
