"""1,000 nodes and 100,000 jobs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from commonwatt.report.html import render
from commonwatt.report.plots import save_gantt, save_overview
from tests.report.make_records import LARGE, make
from tests.report.pages import Page, own_part

pytestmark = pytest.mark.long


def test_report_and_figures_stay_small(tmp_path):
    result, records = make(LARGE)
    text = render(result, records)
    assert len(own_part(text).encode()) < 3e6
    page = Page(text)
    for chart in page.data["gantt"].values():
        assert chart["kind"] == "heat"
        assert chart["shape"] == [200, 400]
    for name in ("gpus", "power", "queue"):
        assert max(len(trace["x"]) for trace in page.data["figures"][name]["data"]) <= 2001
    save_overview(result, records, tmp_path / "overview.png")
    save_gantt(records[0], tmp_path / "gantt.png")


def test_memory():
    """In a process of its own: the peak of this one is that of all tests before, which ru_maxrss would hand on."""
    program = (
        "from pathlib import Path; from tests.report.make_records import *; from commonwatt.report.html import render;"
        "render(*make(LARGE)); status = Path('/proc/self/status').read_text();"
        "print(status.split('VmHWM:')[1].split()[0])"
    )
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        check=True,
        text=True,
    )
    assert int(done.stdout) < 1e6  # KiB, the records included
