"""Commands to put nodes to sleep or wake them: one that the engine refuses is told, and nobody else waits for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from commonwatt.control.engine import Engine, SetPower
from commonwatt.control.events import EventKind
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.store.records import EventRow

__all__ = ["Powers"]

log = logging.getLogger("commonwatt.powers")

_AGAIN_S = 600.0
"""How long a node that could not be put to sleep is left on: asking anew takes its time."""


@dataclass
class Powers:
    """Gives power commands one by one, and remembers what was refused.

    Parameters
    ----------
    engine
        Where the nodes are.
    now_s
        The time.
    """

    engine: Engine
    now_s: Callable[[], float]
    _told: dict[int, set[str]] = field(default_factory=dict)  # causes that were told of a node since it last obeyed
    _left_s: dict[int, float] = field(default_factory=dict)  # when a node was not put to sleep
    _new: dict[tuple[float, str], list[int]] = field(default_factory=dict)  # nodes of what is to be told

    def give(self, commands: Collection[SetPower]) -> None:
        """Give *commands*; raises ``EngineDownError`` if the engine does not answer."""
        for command in commands:
            n, now_s = command.node, self.now_s()
            if command.state is not None and now_s < self._left_s.get(n, -_AGAIN_S) + _AGAIN_S:
                continue
            try:
                self.engine.apply([command])
            except EngineDownError:
                raise
            except EngineError as error:
                if command.state is not None:
                    self._left_s[n] = now_s
                self._refused(n, str(error), now_s)
            else:
                self._told.pop(n, None)
                self._left_s.pop(n, None)

    def take(self, names: Sequence[str]) -> list[EventRow]:
        """Return what was refused since it was last taken, once for each node and cause; *names* are those of nodes."""
        new, self._new = self._new, {}
        rows = []
        for (at_s, cause), nodes in new.items():
            named, sentence = (
                tuple(names[n] for n in nodes),
                f"the engine does not put nodes to sleep or wake them: {cause}",
            )
            log.warning("nodes are not put to sleep or woken", extra={"nodes": list(named), "cause": cause})
            rows.append(EventRow(0, at_s, EventKind.NOT_POWERED, None, named, 0, "refused", sentence))
        return rows

    def _refused(self, n: int, cause: str, now_s: float) -> None:
        told = self._told.setdefault(n, set())
        if cause not in told:
            told.add(cause)
            same = next((key for key in self._new if key[1] == cause), (now_s, cause))
            self._new.setdefault(same, []).append(n)
