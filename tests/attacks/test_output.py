"""A job that prints without end: what is kept of it is bounded, and the job goes on."""

from __future__ import annotations

import stat
import sys

import pytest

from commonwatt.controlplane.identity import shared_user
from commonwatt.model.scenario import Scenario
from tests.attacks.site import NODES, served, until

pytestmark = pytest.mark.slow

PRINTS = """
import sys
line = b"x" * 999 + b"\\n"
for number in range(60):
    for _ in range(1000):
        sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
    __import__("time").sleep(0.05)
sys.stdout.buffer.write(b"the last words\\n")
"""


@pytest.mark.long
def test_output_is_bounded_and_its_end_is_kept(tmp_path):
    """60 MB, of which 4 are kept."""
    with served(tmp_path, live={"output_mb": 4, "reserve_mb": 0}) as site:
        job = site.submit(sys.executable, "-c", PRINTS)
        path, largest = tmp_path / "state" / "runs" / f"{job}-1" / "output.log", 0

        def over() -> bool:
            nonlocal largest
            largest = max(largest, path.stat().st_size if path.exists() else 0)
            return site.status(job) == "completed"

        until(over, 120)
        assert largest < 30_000_000
        text = path.read_bytes()
        assert len(text) <= 4_000_000
        assert text.endswith(b"x\nthe last words\n")
        assert text.startswith(b"[commonwatt: ")
        assert site.call("GET", f"/jobs/{job}/log?last_bytes=15").text == "the last words\n"
        for file in (path.parent, tmp_path / "state" / "jobs" / str(job)):
            assert stat.S_IMODE(file.stat().st_mode) == 0o700
        assert "can read and change the store" in site.log.read_text()


@pytest.mark.long
def test_where_the_disk_is_nearly_full_little_is_kept(tmp_path):
    with served(tmp_path, live={"output_mb": None, "reserve_mb": 1e12}) as site:  # more than there is
        job = site.submit(sys.executable, "-c", PRINTS)
        until(lambda: site.status(job) == "completed", 120)
        text = (tmp_path / "state" / "runs" / f"{job}-1" / "output.log").read_bytes()
        assert len(text) <= 1_000_000
        assert text.endswith(b"the last words\n")


WRITES = """
import os, time
from pathlib import Path
for number in range(40):
    Path(os.environ["COMMONWATT_SNAPSHOTS"], f"{number}.pt").write_bytes(os.urandom(1_000_000))
    time.sleep(SECONDS)
time.sleep(SECONDS * 1000)
"""


@pytest.mark.long
def test_a_job_whose_checkpoints_take_too_much_has_failed(tmp_path):
    """40 MB and then nothing, where 10 MB are allowed; another one is left alone."""
    with served(tmp_path, live={"files_gb": 0.01}) as site:
        job = site.submit(sys.executable, "-c", WRITES.replace("SECONDS", "0.05"))
        small = site.submit(sys.executable, "-c", "import time; time.sleep(6)")
        until(lambda: site.status(job) == "failed", 60)
        detail = site.call("GET", f"/jobs/{job}").json()
        assert detail["reason"] == "files-limit"
        assert "GB, more than 0.01" in detail["sentence"]
        assert detail["attempts"] == 1
        until(lambda: site.status(small) == "completed", 60)


def test_only_engines_with_real_jobs_are_warned_of():
    said = {}
    for engine in ("local", "slurm", "simulated"):
        said[engine] = shared_user(Scenario.model_validate({"engine": engine, "nodes": NODES}))
    assert said["simulated"] is None
    assert "become an operator" in said["local"].found
    assert "on every node" in said["slurm"].found
