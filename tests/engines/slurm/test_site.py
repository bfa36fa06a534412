"""The Slurm of these tests is in order again, whatever a test did to it."""

from __future__ import annotations

import shutil
import signal

import pytest

from .site import until

pytestmark = pytest.mark.long


def test_nodes_take_jobs_again_after_the_controller_has_lost_its_memory(site):
    """A node refuses a job whose number it knows of one that Slurm's controller forgot, and is drained for it."""
    ask = ("sbatch", "--parsable", "--no-requeue", "--output=/dev/null", "--nodelist=n-1")
    site.ask(*ask, "--wrap=sleep 2")
    until(lambda: site.ask("squeue", "--noheader", "--format=%T").strip() == "RUNNING")
    site.end("slurmctld", signal.SIGKILL)
    shutil.rmtree(site.folder / "state")
    (site.folder / "state").mkdir()
    site.begin("slurmctld")
    site.settle()
    for _ in range(3):
        job = site.ask(*ask, "--wrap=true").strip()
        ended = ("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T")
        until(lambda ended=ended: site.ask(*ended).strip() == "COMPLETED", 30.0)
    assert site.states()["n-1"] == "idle"
