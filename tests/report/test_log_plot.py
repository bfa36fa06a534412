import numpy as np
import pytest

from commonwatt.data.demand import usage
from commonwatt.data.log import JobLog, utc
from commonwatt.report.plots import _binned, save_log


def made(count=50, gap_s=7200.0, origin=None, start_s=None):
    names = [f"$j{i}" for i in range(count)]
    return JobLog.of(
        "$log", job=names, tenant=names, submit_s=np.arange(count) * gap_s, duration_s=np.full(count, 3600.0),
        gpus=np.full(count, 2), origin=origin, start_s=start_s,
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    ("log", "parts"),
    [
        (made(origin=utc(1.7e9)), ("UTC", "15 Nov 2023", "daily mean", "if every job started at its submission")),
        (made(count=5, origin=utc(1.7e9)), ("UTC", "14 Nov 23:00")),
        (made(), ("days since 0 s", "peak 2")),
        (made(count=1), ("hours since 0 s",)),
        (made(start_s=np.arange(50) * 7200.0 + 60), ("as logged",)),
    ],
)
def test_what_is_written(tmp_path, log, parts):
    save_log(log, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "$log: " in text
    for part in parts:
        assert part in text, part
    save_log(log, tmp_path / "b.svg")
    assert (tmp_path / "b.svg").read_bytes() == (tmp_path / "a.svg").read_bytes()


def test_mean_and_most_of_bins():
    mean, most = _binned(usage(made(count=2)), np.array([0.0, 1800.0, 7200.0, 9000.0, 20000.0]))
    assert mean == pytest.approx([2, 2 * 1800 / 5400, 2, 2 * 1800 / 11000])
    assert most.tolist() == [2, 2, 2, 2]
