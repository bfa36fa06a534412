"""Progress of a Trainer of PyTorch Lightning.

::

    saving = ModelCheckpoint(os.environ["COMMONWATT_SNAPSHOTS"], save_last=True)
    Trainer(max_epochs=90, callbacks=[saving, CommonwattCallback()]).fit(model, data, ckpt_path="last")

SIGTERM is Lightning's own affair: it ends the training after the batch at work, and
``ModelCheckpoint(save_on_exception=True)`` saves then. That is told when the training goes on: callbacks are not called
after it.
"""

from __future__ import annotations

import math
from typing import Any

from commonwatt.progress import Job, begin
from commonwatt.progress.library import LibraryCallback

__all__ = ["CommonwattCallback"]


class CommonwattCallback(LibraryCallback):
    """Tells the epochs of ``Trainer.fit``; kept is what a checkpoint holds that Lightning has saved."""

    library, base = "lightning.pytorch", "Callback"

    def __init__(self) -> None:
        super().__init__()
        self._job: Job | None = None
        self._being_saved: float | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the job, at the epoch of the checkpoint the Trainer goes on from."""
        self._being_saved = None
        total = trainer.max_epochs if trainer.max_epochs not in (None, -1) else None
        self._job = begin(total, kept=_worked(trainer)) if trainer.is_global_zero else None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Tell the part of the epoch."""
        if self._job is not None:
            self._saved()
            self._job.at(_worked(trainer))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Tell the epoch."""
        if self._job is not None:
            self._saved()
            self._job.epoch(_worked(trainer))

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Take note that a checkpoint is being written: it is there when this callback is called for something else."""
        self._being_saved = _worked(trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Tell what was kept at the end of the epoch before."""
        self._saved()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Tell what was kept last."""
        self._saved()
        self._job = None

    def _saved(self) -> None:
        if self._job is not None and self._being_saved is not None:
            self._job.epoch(self._being_saved, snapshot=True)
        self._being_saved = None


def _worked(trainer: Any) -> float:
    """Return epochs worked through since the beginning of the training, whole ones if their length is not known."""
    batches = trainer.num_training_batches
    if not 0 < batches < math.inf:
        return float(trainer.fit_loop.epoch_progress.current.processed)
    return trainer.fit_loop.epoch_loop.batch_progress.total.processed / batches
