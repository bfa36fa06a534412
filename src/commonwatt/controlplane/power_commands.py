"""Commands to put nodes to sleep or wake them: a refusal is logged once, and nothing else waits for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from commonwatt.control.engine import Engine, SetPower
from commonwatt.control.events import EventKind
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.store.records import EventRow

__all__ = ["PowerCommands"]

log = logging.getLogger("commonwatt.powers")

_RETRY_S = 600.0
"""How long a node that could not be put to sleep stays on before that is tried again, which takes time."""


@dataclass
class PowerCommands:
    """Gives power commands one by one, and remembers refusals.

    Parameters
    ----------
    engine
        Where the nodes are.
    now_s
        The time.
    """

    engine: Engine
    now_s: Callable[[], float]
    _reported: dict[int, set[str]] = field(default_factory=dict)  # causes by node since it last obeyed
    _refused_s: dict[int, float] = field(default_factory=dict)  # when a node could not be put to sleep
    _fresh: dict[tuple[float, str], list[int]] = field(default_factory=dict)  # nodes by time and cause, to be reported

    def give(self, commands: Collection[SetPower]) -> None:
        """Give *commands*; raises ``EngineDownError`` if the engine does not answer."""
        for command in commands:
            n, now_s = command.node, self.now_s()
            if command.state is not None and now_s < self._refused_s.get(n, -_RETRY_S) + _RETRY_S:
                continue
            try:
                self.engine.apply([command])
            except EngineDownError:
                raise
            except EngineError as error:
                if command.state is not None:
                    self._refused_s[n] = now_s
                self._refuse(n, str(error), now_s)
            else:
                self._reported.pop(n, None)
                self._refused_s.pop(n, None)

    def take(self, names: Sequence[str]) -> list[EventRow]:
        """Return the refusals since the last call, each node and cause once; *names* are those of the nodes."""
        fresh, self._fresh = self._fresh, {}
        rows = []
        for (at_s, cause), nodes in fresh.items():
            named = tuple(names[n] for n in nodes)
            sentence = f"the engine does not put nodes to sleep or wake them: {cause}"
            log.warning("nodes are not put to sleep or woken", extra={"nodes": list(named), "cause": cause})
            rows.append(EventRow(0, at_s, EventKind.NOT_POWERED, None, named, 0, "refused", sentence))
        return rows

    def _refuse(self, n: int, cause: str, now_s: float) -> None:
        reported = self._reported.setdefault(n, set())
        if cause not in reported:
            reported.add(cause)
            same = next((key for key in self._fresh if key[1] == cause), (now_s, cause))
            self._fresh.setdefault(same, []).append(n)
