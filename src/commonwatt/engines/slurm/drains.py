"""Nodes that Slurm is asked to keep everybody's new jobs away from, and which of them it was us who asked."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.reading import SlurmNode
from commonwatt.engines.slurm.sight import Sight
from commonwatt.model.errors import EngineDownError, EngineError

__all__ = ["Drains"]

_DRAINING = frozenset({"drain", "drained", "draining"})
_BEFORE = ", before: "
_NONE = {"", "none", "(null)"}


class Drains:
    """Drains in our name: the reason Slurm keeps of each tells them from an administrator's, which are left alone.

    A node that is down has a reason already, which is kept behind ours and given back with the node.

    Parameters
    ----------
    names
        Of the nodes.
    identity
        Who we are to Slurm.
    """

    def __init__(self, slurm: Slurm, names: Sequence[str], identity: str) -> None:
        self._slurm, self._names, self._ours = slurm, names, f"drained by commonwatt {identity}"

    def set(self, nodes: Collection[int], sight: Sight) -> None:
        """Have exactly *nodes* drained by us, but those that somebody else has drained.

        Raises ``EngineError`` if Slurm refuses one, once the others are as they should be.
        """
        reasons = self._slurm.reasons()
        refused: EngineError | None = None
        for n, name in enumerate(self._names):
            node = sight.nodes.get(name)
            if node is None:  # nobody's jobs begin there
                continue
            try:
                self._set(node, reasons.get(name, ""), drain=n in nodes)
            except EngineDownError:
                raise
            except EngineError as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def _set(self, node: SlurmNode, reason: str, *, drain: bool) -> None:
        who, _, before = reason.partition(_BEFORE)
        drained = bool(node.states & _DRAINING)
        if drain and not drained:
            known = "" if who == self._ours or reason in _NONE else f"{_BEFORE}{reason}"
            self._slurm.update_node(node.name, "DRAIN", f"{self._ours}{known}")
        elif not drain and drained and who == self._ours:
            self._slurm.update_node(node.name, "UNDRAIN")
            if before:
                self._slurm.update_node(node.name, None, before)
