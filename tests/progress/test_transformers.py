"""The callback in the Trainer of Transformers itself: kept is where it goes on when the training is started again."""

from __future__ import annotations

import os
import signal
import warnings
from types import SimpleNamespace

import pytest

from commonwatt.engines.reports import read_progress
from commonwatt.progress.transformers import TransformersCallback

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
STEPS = 4


@pytest.fixture(scope="module")
def library():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")
        pytest.importorskip("accelerate")
        from transformers.trainer_utils import get_last_checkpoint
    transformers.logging.set_verbosity_error()

    class Model(torch.nn.Module):
        def __init__(self, at_step):
            super().__init__()
            self.layer, self.steps, self.at_step = torch.nn.Linear(2, 1), 0, at_step

        def forward(self, x):
            self.steps += 1
            if self.at_step:
                self.at_step(self.steps)
            return {"loss": self.layer(x).pow(2).mean()}

    data = [{"x": torch.ones(2)} for _ in range(2 * STEPS)]
    return SimpleNamespace(transformers=transformers, Model=Model, data=data, last=get_last_checkpoint)


@pytest.fixture
def train(library, tmp_path, monkeypatch):
    """Train to so many epochs, from the last checkpoint if there is one; returns the steps done."""
    monkeypatch.setenv("COMMONWATT_PROGRESS", str(tmp_path / "progress"))
    output = tmp_path / "checkpoints"
    output.mkdir()

    def run(epochs, at_step=None, **saving):
        arguments = library.transformers.TrainingArguments(
            str(output), num_train_epochs=epochs, per_device_train_batch_size=2, report_to=[], use_cpu=True,
            disable_tqdm=True, logging_strategy="no", **saving,
        )  # fmt: skip
        model = library.Model(at_step)
        trainer = library.transformers.Trainer(
            model, arguments, train_dataset=library.data, callbacks=[TransformersCallback()]
        )
        trainer.train(resume_from_checkpoint=library.last(str(output)))
        return model.steps

    return run


@pytest.mark.parametrize(
    ("saving", "epochs", "kept"),
    [
        ({"save_strategy": "epoch"}, 2, 2),
        ({"save_strategy": "steps", "save_steps": 3}, 2, 2),  # at steps 3, 6, and the last one
        ({"save_strategy": "no"}, 2, 0),
    ],
)
def test_it_keeps_what_the_trainer_goes_on_from(train, tmp_path, saving, epochs, kept):
    assert train(epochs, **saving) == epochs * STEPS
    assert read_progress(tmp_path / "progress") == (epochs, kept)
    assert train(5, **saving) == (5 - kept) * STEPS
    assert read_progress(tmp_path / "progress")[0] == 5


def test_what_is_done_since_the_last_checkpoint_is_not_kept(train, tmp_path):
    def crash(step):
        if step == 2 * STEPS + 3:
            msg = "a training that fails"
            raise RuntimeError(msg)

    with pytest.raises(RuntimeError):
        train(5, crash, save_strategy="steps", save_steps=3)
    done, kept = read_progress(tmp_path / "progress")
    assert kept == 9 / STEPS <= done <= 10 / STEPS
    assert train(5, save_strategy="no") == 5 * STEPS - 9


def test_told_to_stop_it_saves_and_ends(train, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            train(5, lambda step: os.kill(os.getpid(), signal.SIGTERM) if step == 6 else None, save_strategy="no")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 143
    assert read_progress(tmp_path / "progress") == (1.5, 1.5)
    assert train(2, save_strategy="no") == 2
    assert read_progress(tmp_path / "progress") == (2, 1.5)


def test_a_training_that_begins_anew_says_so(train, tmp_path):
    (tmp_path / "progress").write_text("7")
    train(1, save_strategy="no")
    assert read_progress(tmp_path / "progress") == (1, 0)


def test_it_is_one_of_the_librarys_callbacks(library):
    assert isinstance(TransformersCallback(), library.transformers.TrainerCallback)
