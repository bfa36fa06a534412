"""Progress of simulated jobs, in columns."""

from __future__ import annotations

import numpy as np

from commonwatt.model.arrays import Floats, Ints

__all__ = ["Speeds"]


class Speeds:
    """Progress of all jobs in columns, by handle; infinite epoch time for those that do not run."""

    def __init__(self, jobs: int) -> None:
        self.base_epochs = np.zeros(jobs)  # done at the last start, or kept at the last stop
        self.work_from_s = np.zeros(jobs)
        self.epoch_s = np.full(jobs, np.inf)
        self.epochs = np.ones(jobs)

    def grow(self, jobs: int) -> None:
        """Make room for handles below *jobs*."""
        more = jobs - len(self.epochs)
        if more > 0:
            more += len(self.epochs)  # grow by half at least: handles come one by one
            self.base_epochs = np.append(self.base_epochs, np.zeros(more))
            self.work_from_s = np.append(self.work_from_s, np.zeros(more))
            self.epoch_s = np.append(self.epoch_s, np.full(more, np.inf))
            self.epochs = np.append(self.epochs, np.ones(more))

    def done(self, handles: Ints | int, now_s: float) -> Floats:
        """Epochs *handles* have done at *now_s*."""
        worked = np.maximum(0.0, now_s - self.work_from_s[handles]) / self.epoch_s[handles]
        return np.asarray(np.minimum(self.base_epochs[handles] + worked, self.epochs[handles]))

    def kept(self, handles: Ints | int, now_s: float) -> Floats:
        """Epochs *handles* would continue from if they were stopped at *now_s*."""
        return np.asarray(np.maximum(self.base_epochs[handles], np.floor(self.done(handles, now_s) + 1e-9)))
