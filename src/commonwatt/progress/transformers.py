"""Progress of a Trainer of Hugging Face Transformers.

::

    arguments = TrainingArguments(os.environ["COMMONWATT_SNAPSHOTS"], num_train_epochs=3, save_strategy="epoch")
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[CommonwattCallback()])
    trainer.train(resume_from_checkpoint=get_last_checkpoint(arguments.output_dir))

Told to stop (SIGTERM), a training of one process saves a checkpoint after the step at work and exits with 143; one of
several ends where it stands, as its processes would not agree on the step.
"""

from __future__ import annotations

from typing import Any

from commonwatt.progress import Job, begin
from commonwatt.progress.library import LibraryCallback

__all__ = ["CommonwattCallback"]

_STOPPED = 143  # as the shell counts a process that SIGTERM ended


class CommonwattCallback(LibraryCallback):
    """Tells the epochs of ``Trainer.train``; kept is what a checkpoint holds that the Trainer has saved."""

    library, base = "transformers", "TrainerCallback"

    def __init__(self) -> None:
        super().__init__()
        self._job: Job | None = None
        self._stopping = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin the job, at the epoch of the checkpoint the Trainer goes on from."""
        self._stopping = False
        self._job = begin(args.num_train_epochs, kept=state.epoch or 0.0) if state.is_world_process_zero else None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Tell the part of the epoch; if told to stop, ask for a checkpoint."""
        if self._job is None:
            return
        self._job.at(state.epoch)
        if args.world_size == 1 and self._job.told_to_stop:
            self._stopping = control.should_save = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Tell the epoch."""
        if self._job is not None:
            self._job.epoch(state.epoch)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Tell that what is done is kept; this is called after the checkpoint is written."""
        if self._job is not None:
            self._job.epoch(state.epoch, snapshot=True)
        if self._stopping:
            raise SystemExit(_STOPPED)
