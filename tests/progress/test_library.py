"""Without its library a callback says what to install; its module can be imported."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from commonwatt.progress.library import _joined_classes


@pytest.mark.parametrize("name", ["lightning", "transformers", "keras"])
def test_a_library_that_is_not_there(name, monkeypatch):
    for loaded in [known for known in sys.modules if known.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, name, None)
    module = import_module(f"commonwatt.progress.{name}")
    callback = getattr(module, f"{name.title()}Callback")
    assert module.CommonwattCallback is callback  # the name in version 0.1
    for kind in [kind for kind in _joined_classes if kind.__name__ == callback.__name__]:
        monkeypatch.delitem(_joined_classes, kind)
    with pytest.raises(ModuleNotFoundError) as missing:
        callback()
    assert str(missing.value) == f"{name} is not installed; run: pip install 'commonwatt[callbacks]'"
