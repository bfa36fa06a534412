"""Progress of a Trainer of Hugging Face Transformers.

::

    arguments = TrainingArguments(os.environ["COMMONWATT_SNAPSHOTS"], num_train_epochs=3, save_strategy="epoch")
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[TransformersCallback()])
    trainer.train(resume_from_checkpoint=get_last_checkpoint(arguments.output_dir))

On SIGTERM, a training of one process saves a checkpoint after the current step and exits with 143. A training of
several processes ends at once, as its processes would not agree on the step.
"""

from __future__ import annotations

from typing import Any

from commonwatt.progress import TrainingJob, begin
from commonwatt.progress.library import LibraryCallback

__all__ = ["CommonwattCallback", "TransformersCallback"]

_STOPPED = 143  # as a shell reports a process that SIGTERM ended


class TransformersCallback(LibraryCallback):
    """Reports the epochs of ``Trainer.train``; those in a checkpoint that the Trainer has saved count as kept."""

    library, base = "transformers", "TrainerCallback"

    def __init__(self) -> None:
        super().__init__()
        self._job: TrainingJob | None = None
        self._stopping = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the job at the epoch of the checkpoint the Trainer continues from."""
        self._stopping = False
        self._job = begin(args.num_train_epochs, kept=state.epoch or 0.0) if state.is_world_process_zero else None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report the fraction of the epoch; if a stop was requested, ask for a checkpoint."""
        if self._job is None:
            return
        self._job.at(state.epoch)
        if args.world_size == 1 and self._job.stop_requested:
            self._stopping = control.should_save = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report the epoch."""
        if self._job is not None:
            self._job.epoch(state.epoch)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report that the epochs so far are kept; called after the checkpoint is written."""
        if self._job is not None:
            self._job.epoch(state.epoch, snapshot=True)
        if self._stopping:
            raise SystemExit(_STOPPED)


CommonwattCallback = TransformersCallback
"""Former name, kept for version 0.2."""
