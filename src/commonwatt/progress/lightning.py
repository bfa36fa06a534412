"""Progress of a Trainer of PyTorch Lightning.

::

    saving = ModelCheckpoint(os.environ["COMMONWATT_SNAPSHOTS"], save_last=True)
    Trainer(max_epochs=90, callbacks=[saving, LightningCallback()]).fit(model, data, ckpt_path="last")

Lightning handles SIGTERM itself: it ends the training after the current batch, and
``ModelCheckpoint(save_on_exception=True)`` saves then. No callback is called after that, so this checkpoint is reported
when the training continues.
"""

from __future__ import annotations

import math
from typing import Any

from commonwatt.progress import TrainingJob, begin
from commonwatt.progress.library import LibraryCallback

__all__ = ["CommonwattCallback", "LightningCallback"]


class LightningCallback(LibraryCallback):
    """Reports the epochs of ``Trainer.fit``; those in a checkpoint that Lightning has saved count as kept."""

    library, base = "lightning.pytorch", "Callback"

    def __init__(self) -> None:
        super().__init__()
        self._job: TrainingJob | None = None
        self._being_saved: float | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the job at the epoch of the checkpoint the Trainer continues from."""
        self._being_saved = None
        total = trainer.max_epochs if trainer.max_epochs not in (None, -1) else None
        self._job = begin(total, kept=_worked(trainer)) if trainer.is_global_zero else None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Report the fraction of the epoch."""
        if self._job is not None:
            self._saved()
            self._job.at(_worked(trainer))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the epoch."""
        if self._job is not None:
            self._saved()
            self._job.epoch(_worked(trainer))

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Note that a checkpoint is being written; it is complete at the next call of any other hook."""
        self._being_saved = _worked(trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Report the checkpoint at the end of the previous epoch."""
        self._saved()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Report the last checkpoint."""
        self._saved()
        self._job = None

    def _saved(self) -> None:
        if self._job is not None and self._being_saved is not None:
            self._job.epoch(self._being_saved, snapshot=True)
        self._being_saved = None


def _worked(trainer: Any) -> float:
    """Return epochs processed since the start of the training; whole ones if their length is unknown."""
    batches = trainer.num_training_batches
    if not 0 < batches < math.inf:
        return float(trainer.fit_loop.epoch_progress.current.processed)
    return trainer.fit_loop.epoch_loop.batch_progress.total.processed / batches


CommonwattCallback = LightningCallback
"""Former name, kept for version 0.2."""
