"""The callback in Keras itself: kept is where ``fit`` goes on when the training is started again."""

from __future__ import annotations

import os
import warnings

import pytest

from commonwatt.engines.reports import read_progress
from commonwatt.progress.keras import KerasCallback

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
BATCHES = 4


@pytest.fixture(scope="module")
def keras(tmp_path_factory):
    pytest.importorskip("torch")
    os.environ.setdefault("KERAS_BACKEND", "torch")
    os.environ.setdefault("KERAS_HOME", str(tmp_path_factory.mktemp("keras")))  # else it writes to ~
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("keras")


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("COMMONWATT_PROGRESS", str(tmp_path / "progress"))
    return tmp_path / "progress"


class Crash(Exception):  # noqa: N818
    """The training fails."""


def fit(keras, epochs, callbacks, crash_at=None, **options):
    """Train a tiny model; returns the epochs it began."""
    import numpy as np

    begun = []

    def batch(number, logs=None):
        if crash_at == (begun[-1], number):
            raise Crash

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    watch = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs=None: begun.append(epoch), on_train_batch_end=batch
    )
    ones = np.ones((2 * BATCHES, 2))
    model.fit(ones, ones[:, :1], batch_size=2, epochs=epochs, verbose=0, callbacks=[watch, *callbacks], **options)
    return begun


@pytest.mark.parametrize("first", [False, True])
def test_it_keeps_what_fit_goes_on_from(keras, file, tmp_path, first):
    backup = tmp_path / "backup"

    def callbacks():
        both = [keras.callbacks.BackupAndRestore(backup), KerasCallback(backup)]
        return both[::-1] if first else both

    with pytest.raises(Crash):
        fit(keras, 5, callbacks(), crash_at=(2, 1))
    done, kept = read_progress(file)
    assert kept == 2 <= done < 3
    assert fit(keras, 5, callbacks()) == [2, 3, 4]
    assert read_progress(file) == (5, 5)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", ["model.keras", "{epoch}.keras"])
def test_an_epoch_that_was_not_saved_is_not_kept(keras, file, tmp_path, name, first):
    saved = tmp_path / "saved"
    saving = keras.callbacks.ModelCheckpoint(
        saved / name, monitor="loss", save_best_only=True, initial_value_threshold=0.0
    )
    both = [saving, KerasCallback(saved)]
    fit(keras, 2, both[::-1] if first else both)  # no loss is below 0
    assert read_progress(file) == (2, 0)
    both[0] = keras.callbacks.ModelCheckpoint(saved / name)
    fit(keras, 4, both[::-1] if first else both, initial_epoch=2)
    assert read_progress(file) == (4, 4)


def test_without_a_snapshot_nothing_is_kept(keras, file):
    fit(keras, 2, [KerasCallback()])
    assert read_progress(file) == (2, 0)
    fit(keras, 5, [KerasCallback()], initial_epoch=3)  # the script says that it has 3 epochs
    assert read_progress(file) == (5, 3)


def test_it_is_one_of_the_librarys_callbacks(keras):
    assert isinstance(KerasCallback(), keras.callbacks.Callback)
