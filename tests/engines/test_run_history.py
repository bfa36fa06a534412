"""What an engine remembers of its jobs, and how it forgets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from commonwatt.engines.local.folder import RunFolder
from commonwatt.engines.reports import Reports
from commonwatt.engines.run_history import RunHistory
from commonwatt.engines.run_spec import JobWork, RunSpec
from commonwatt.model.errors import EngineDownError


@pytest.fixture
def past(tmp_path):
    past = RunHistory(tmp_path, Reports(tmp_path / "jobs", lambda name: JobWork(("true",))), now_s=lambda: 5.0)
    for attempt in (1, 2):
        order = RunSpec(7, attempt, "7-j", (0,), 1, ((),), 0.0, 0.0, ("true",), "/", {}, 1.0)
        RunFolder.create(tmp_path / "runs", order)
        past.add(order)
    (tmp_path / "jobs" / "7").mkdir(parents=True)
    return past


@pytest.mark.parametrize("stays", ["7", "7-1", "7-2"])
def test_what_could_not_be_put_aside_whole_is_tried_again_by_whoever_comes_after(past, tmp_path, monkeypatch, stays):
    """Else the next job of the number would find the progress of another."""
    rename = Path.rename

    def refuse(path, to):
        if path.name == stays:
            raise PermissionError(13, "Permission denied", str(path))
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(EngineDownError, match=r"cannot be moved aside: .*Permission denied"):
        past.prune([7], aside=True)
    assert past.not_running([]) == [7]
    assert RunFolder.all_in(tmp_path / "runs")[-1][1].attempt == 2
    assert stays == "7" or not (tmp_path / "jobs" / "7").exists()
    monkeypatch.undo()
    assert past.prune([7], aside=True) == {7}
    assert sorted(path.name for path in (tmp_path / "aside").glob("*/*")) == ["jobs-7", "runs-7-1", "runs-7-2"]
    assert past.not_running([]) == []
