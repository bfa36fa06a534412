"""Progress of a Keras model.

::

    snapshot = f"{os.environ['COMMONWATT_SNAPSHOTS']}/backup"
    model.fit(x, y, epochs=90, callbacks=[BackupAndRestore(snapshot), CommonwattCallback(snapshot)])

Keras tells nobody that it has saved something: an epoch counts as kept when the snapshot's files are others after it.
SIGTERM ends the training where it stands, and the next run goes on from the snapshot.
"""

from __future__ import annotations

import os
from typing import Any

from commonwatt.progress import Job, begin
from commonwatt.progress.library import LibraryCallback
from commonwatt.progress.snapshots import state_of

__all__ = ["CommonwattCallback"]


class CommonwattCallback(LibraryCallback):
    """Tells the epochs of ``fit``.

    Parameters
    ----------
    snapshot
        File or folder to which another callback saves, one from which ``fit`` goes on; without it none is kept.
    """

    library, base = "keras.callbacks", "Callback"

    def __init__(self, snapshot: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        self._snapshot = snapshot
        self._seen: object = None
        self._job: Job | None = None
        self._epochs = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin the job with the first epoch: only now is it known which that is."""
        if self._job is None:
            self._job = begin(self.params.get("epochs"), kept=epoch)  # type: ignore[attr-defined]
            self._seen, self._epochs = state_of(self._snapshot), epoch
        self._look()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Tell the part of the epoch, once Keras knows its steps."""
        steps = self.params.get("steps")  # type: ignore[attr-defined]
        if self._job is not None and steps:
            self._job.step(batch + 1, of=steps)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Tell the epoch."""
        if self._job is not None:
            self._epochs = epoch + 1
            self._job.epoch(self._epochs)
            self._look()

    def on_train_end(self, logs: Any = None) -> None:
        """Count what callbacks after this one have saved last."""
        self._look()
        self._job = None

    def _look(self) -> None:
        """The snapshot may be written by a callback before this one or after it, but not within an epoch."""
        state = state_of(self._snapshot)
        if self._job is not None and state is not None and state != self._seen:
            self._job.epoch(self._epochs, snapshot=True)
        self._seen = state
