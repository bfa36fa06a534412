"""An engine that fails, hangs and refuses at random."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from commonwatt.control.engine import LiveEngine
from commonwatt.model.errors import EngineDownError, EngineError

__all__ = ["Faulty"]


class Faulty:
    """An engine before or after whose commands something goes wrong; seeded.

    A command may fail before it was carried out, after it was, or take its time; looks may fail, too.
    """

    def __init__(self, engine: LiveEngine, rng: np.random.Generator, how_often: float) -> None:
        self.engine, self.rng, self.how_often = engine, rng, how_often
        self.faults = 0

    def __getattr__(self, name: str):
        return getattr(self.engine, name)

    def apply(self, commands):
        return self._perhaps(lambda: self.engine.apply(commands), (EngineError, EngineDownError))

    def poll(self):
        return self._perhaps(self.engine.poll, (EngineDownError,))

    def progress(self, handles):
        return self._perhaps(lambda: self.engine.progress(handles), (EngineDownError,))

    def recorded_runs(self):
        return self._perhaps(self.engine.recorded_runs, (EngineDownError,))

    def _perhaps(self, call: Callable, errors: tuple[type[EngineError], ...]):
        what = self.rng.random() / self.how_often
        if what >= 1.0:
            return call()
        self.faults += 1
        error = errors[int(self.rng.integers(len(errors)))]
        if what < 0.4:
            raise error("injected: not carried out")
        if what < 0.8:
            call()
            raise error("injected: carried out, but the answer was lost")
        time.sleep(0.3)
        return call()
