"""The engine contract over a system that takes its time to start jobs, and to say that they are over."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from commonwatt.engines.run_spec import JobWork
from commonwatt.testing.engine_contract import Lab

from .test_local import JOBS, WORKER
from .waiting import until

__all__ = ["PatientLab", "unit_of", "work"]


def unit_of(request) -> float:
    """Seconds of a unit: more where a stop has to come in the epoch it is meant for."""
    return 0.4 if request.node.originalname == "test_a_stopped_job_goes_on_from_its_last_snapshot" else 0.2


def work(name: str, unit_s: float, **other) -> JobWork:
    """The work of a job of the contract; *other* has jobs that differ."""
    spec = {**(JOBS | other)[name], "unit_s": unit_s}
    return JobWork((sys.executable, "-I", str(WORKER), json.dumps(spec)), Path("/"), spec["epochs"])


class PatientLab(Lab):
    """Time in which a job is launched, or the other system has yet to say that one is over, does not count."""

    def pass_time(self, units):
        until(self._all_begun)
        until_s, seen = time.time() + units * self.unit_s, []
        while time.time() < until_s or any(run.folder.end() for run in self.engine._runs.values()):
            if not self.engine._runs:
                until_s = min(until_s, time.time() + self.unit_s)
            self.clock.wait_until(max(until_s, time.time() + self.unit_s / 10))
            seen += self.engine.poll()
        return seen

    def done(self, handle):
        """Said right after the job said so, early in an epoch, if it runs: the next one is not kept soon."""
        run = self.engine._runs.get(handle)
        if run is not None and run.folder.processes():
            said, before = super().done, super().done(handle)
            until(lambda: run.folder.end() or (said(handle) != before and said(handle) % 1 == 0.25), pause_s=0.01)
        return super().done(handle)

    def folders_of(self, run):
        """Records of a run: one folder for each of its runners."""
        return [run.folder]

    def _all_begun(self):
        self.engine.wait(0.01)
        folders = [folder for run in self.engine._runs.values() for folder in self.folders_of(run)]
        return all(folder.processes() or folder.end() for folder in folders)
