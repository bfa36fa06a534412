"""Without its library a callback says what to install; its module can be imported."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from commonwatt.progress.library import _known


@pytest.mark.parametrize("name", ["lightning", "transformers", "keras"])
def test_a_library_that_is_not_there(name, monkeypatch):
    for loaded in [known for known in sys.modules if known.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, name, None)
    callback = import_module(f"commonwatt.progress.{name}").CommonwattCallback
    for known in [known for known in _known if known.__name__ == callback.__name__]:
        monkeypatch.delitem(_known, known)
    with pytest.raises(ModuleNotFoundError) as missing:
        callback()
    assert str(missing.value) == f"{name} is not installed; run: pip install 'commonwatt[callbacks]'"
