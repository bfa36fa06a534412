"""The callback in PyTorch Lightning itself: kept is where the library goes on when the training is started again."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import warnings
from types import SimpleNamespace

import pytest

from commonwatt.engines.reports import read_progress
from commonwatt.progress.lightning import LightningCallback

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
BATCHES = 4


@pytest.fixture(scope="module")
def library():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch = pytest.importorskip("torch")
        lightning = pytest.importorskip("lightning.pytorch")
        from lightning.pytorch.utilities.exceptions import SIGTERMException
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)

    class Model(lightning.LightningModule):
        def __init__(self, end=None, number=signal.SIGINT):
            super().__init__()
            self.layer, self.batches, self.end, self.number = torch.nn.Linear(2, 1), 0, end, number

        def training_step(self, batch, index):
            self.batches += 1
            if self.batches == self.end:
                signal.raise_signal(self.number)  # here, not in a thread of the library's
            return self.layer(batch).pow(2).mean()

        def validation_step(self, batch, index):
            self.log("loss", self.layer(batch).pow(2).mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    data = torch.utils.data.DataLoader(torch.ones(2 * BATCHES, 2), batch_size=2)
    return SimpleNamespace(lightning=lightning, Model=Model, data=data, torch=torch, stopped=SIGTERMException)


@pytest.fixture
def fit(library, tmp_path, monkeypatch):
    """Train to so many epochs, from the last checkpoint if there is one; returns the batches worked through."""
    monkeypatch.setenv("COMMONWATT_PROGRESS", str(tmp_path / "progress"))

    def train(epochs, *, validate=False, model=None, **saving):
        checkpoint = library.lightning.callbacks.ModelCheckpoint(tmp_path, save_top_k=-1, **saving)
        trainer = library.lightning.Trainer(
            max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
            callbacks=[LightningCallback(), checkpoint],
        )  # fmt: skip
        model = model or library.Model()
        known = sorted(tmp_path.glob("*.ckpt"), key=os.path.getmtime)
        start = known[-1] if known else None
        try:
            trainer.fit(model, library.data, library.data if validate else None, ckpt_path=start)
        except (SystemExit, KeyboardInterrupt, library.stopped):
            return None
        return model.batches

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # interrupted, the library ignores it ever after
    yield train
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize(
    ("saving", "epochs", "kept"),
    [({}, 2, 2), ({"every_n_epochs": 2}, 3, 2), ({"every_n_train_steps": 3}, 1, 0.75), ({"every_n_epochs": 4}, 3, 0)],
)
def test_it_keeps_what_the_trainer_goes_on_from(fit, tmp_path, saving, epochs, kept, validate):
    assert fit(epochs, validate=validate, **saving) == epochs * BATCHES
    assert read_progress(tmp_path / "progress") == (epochs, kept)
    assert fit(5, validate=validate, **saving) == (5 - kept) * BATCHES
    assert read_progress(tmp_path / "progress")[0] == 5


def test_what_is_done_since_the_last_checkpoint_is_not_kept(fit, library, tmp_path):
    fit(5, model=library.Model(2 * BATCHES + 3))
    done, kept = read_progress(tmp_path / "progress")
    assert kept == 2 <= done < 3


def test_told_to_stop_lightning_may_save(fit, library, tmp_path):
    assert fit(5, model=library.Model(2 * BATCHES + 3, signal.SIGTERM), save_on_exception=True) is None
    assert read_progress(tmp_path / "progress")[1] == 2  # no callback hears of the saving that an exception makes
    assert fit(3, every_n_epochs=9) == (3 - 2.75) * BATCHES
    assert read_progress(tmp_path / "progress") == (3, 2.75)


def test_a_training_that_begins_anew_says_so(fit, tmp_path):
    (tmp_path / "progress").write_text("7")
    fit(1, every_n_epochs=9)
    assert read_progress(tmp_path / "progress") == (1, 0)


def test_only_rank_0_tells(fit, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr("lightning.pytorch.Trainer.is_global_zero", False)
    fit(1)
    assert not (tmp_path / "progress").exists()


def test_data_of_unknown_length_is_counted_in_whole_epochs(fit, library, tmp_path):
    class Endless(library.torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(library.torch.ones(2 * BATCHES, 2))

    library_data, library.data = library.data, library.torch.utils.data.DataLoader(Endless(), batch_size=2)
    try:
        fit(2)
    finally:
        library.data = library_data
    assert read_progress(tmp_path / "progress") == (2, 2)


def test_it_is_one_of_the_librarys_callbacks_and_can_be_sent_elsewhere(library):
    callback = LightningCallback()
    assert isinstance(callback, library.lightning.Callback)
    assert isinstance(callback, LightningCallback)
    copied = pickle.loads(pickle.dumps(callback))
    assert type(copied) is type(callback)
    assert vars(copied) == vars(callback)
