"""Progress of a Keras model.

::

    snapshot = f"{os.environ['COMMONWATT_SNAPSHOTS']}/backup"
    model.fit(x, y, epochs=90, callbacks=[BackupAndRestore(snapshot), KerasCallback(snapshot)])

Keras does not announce what it saves: an epoch counts as kept when the checkpoint's files have changed after it.
SIGTERM ends the training at once, and the next run continues from the checkpoint.
"""

from __future__ import annotations

import os
from typing import Any

from commonwatt.progress import TrainingJob, begin, state_of
from commonwatt.progress.library import LibraryCallback

__all__ = ["CommonwattCallback", "KerasCallback"]


class KerasCallback(LibraryCallback):
    """Reports the epochs of ``fit``.

    Parameters
    ----------
    snapshot
        File or folder to which another callback saves and from which ``fit`` continues; without it no epoch is kept.
    """

    library, base = "keras.callbacks", "Callback"

    def __init__(self, snapshot: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        self._snapshot = snapshot
        self._seen: object = None
        self._job: TrainingJob | None = None
        self._epochs = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start the job with the first epoch, whose number is available only now."""
        if self._job is None:
            self._job = begin(self.params.get("epochs"), kept=epoch)  # type: ignore[attr-defined]
            self._seen, self._epochs = state_of(self._snapshot), epoch
        self._look()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Report the fraction of the epoch, once Keras knows its number of steps."""
        steps = self.params.get("steps")  # type: ignore[attr-defined]
        if self._job is not None and steps:
            self._job.step(batch + 1, of=steps)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Report the epoch."""
        if self._job is not None:
            self._epochs = epoch + 1
            self._job.epoch(self._epochs)
            self._look()

    def on_train_end(self, logs: Any = None) -> None:
        """Count what callbacks after this one saved last."""
        self._look()
        self._job = None

    def _look(self) -> None:
        """The checkpoint may be written by a callback before or after this one, but not within an epoch."""
        state = state_of(self._snapshot)
        if self._job is not None and state is not None and state != self._seen:
            self._job.epoch(self._epochs, snapshot=True)
        self._seen = state


CommonwattCallback = KerasCallback
"""Former name, kept for version 0.2."""
