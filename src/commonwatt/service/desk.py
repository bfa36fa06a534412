"""What the service needs of the process it runs in, and nothing more."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from commonwatt.live.board import Board
from commonwatt.live.jobs import JobMaker
from commonwatt.live.tally import Counts
from commonwatt.model.scenario import Scenario
from commonwatt.store.store import Store

__all__ = ["Desk"]


@dataclass(frozen=True)
class Desk:
    """Where the service finds the store and the controller. Safe to use from several threads.

    Attributes
    ----------
    config, folder
        The file that is served, and the folder it stands in.
    board
        Returns the cluster as the controller saw it last.
    wake
        Lets the controller look at once for what was asked of it.
    counts
        Returns what the controller counted of itself.
    """

    config: Scenario
    folder: Path
    store: Store
    maker: JobMaker
    board: Callable[[], Board]
    wake: Callable[[], None]
    counts: Callable[[], Counts] = Counts

    def job_log(self, job: int, attempt: int, last_bytes: int) -> bytes | None:
        """Return the end of what a run of a job printed; ``None`` if nothing of it is kept here."""
        live = self.config.live
        state = {"local": live.local.state, "slurm": live.slurm.state}.get(self.config.engine)
        if state is None:
            return None
        path = self.folder / state / "runs" / f"{job}-{attempt}" / "output.log"
        try:
            number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        with os.fdopen(number, "rb") as file:
            if not stat.S_ISREG(os.fstat(number).st_mode):  # a pipe, say, in which nothing may ever come
                return None
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - last_bytes))
            return file.read(last_bytes)
