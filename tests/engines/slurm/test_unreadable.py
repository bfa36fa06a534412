"""Client programs that exit with 0 and print nothing of use: no running job is given up for that. A real Slurm."""

from __future__ import annotations

import shlex
import shutil
import time
from pathlib import Path

import pytest

from commonwatt.control.engine import Outcome, Start, Stop
from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.engine import SlurmEngine
from commonwatt.model.errors import EngineDownError

from .test_failures import begun, engine_on, let_go, said
from .test_slurm import ends

pytestmark = pytest.mark.slow

HEADER = (
    'for word; do case "$word" in --format=*) echo "${word#--format=}" | '
    "sed s/%A.*/JOBID\\|U\\|S\\|C\\|R\\|C/;; esac; done"
)
"""Prints what Slurm prints of no jobs."""

NO_JSON = 'case "$*" in *json*) echo "{\\"jobs\\": []}";; *) %s;; esac'
NO_JOBS = NO_JSON % HEADER
ANSWERS = {"nothing": ":", "words": "echo slurm_load_jobs: done", "half a list": 'echo \'{"jobs": [{"job_id"\''}


class Wrapped:
    """Client programs in front of the real ones; those that are ``broken`` answer by a shell command of ours."""

    def __init__(self, folder: Path, programs: tuple[str, ...]) -> None:
        self.folder = folder
        for name in programs:
            real, script = shutil.which(name), folder / name
            script.write_text(
                f"#!/bin/sh\nif [ -e {folder}/{name}.broken ]; then . {folder}/{name}.broken; exit 0; fi\n"
                f'exec {shlex.quote(str(real))} "$@"\n'
            )
            script.chmod(0o755)

    def break_(self, name: str, command: str) -> None:
        (self.folder / f"{name}.broken").write_text(command + "\n")

    def repair(self, name: str) -> None:
        (self.folder / f"{name}.broken").unlink()


@pytest.fixture
def wrapped(site, tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    made = Wrapped(folder, ("squeue", "sinfo", "scontrol"))
    monkeypatch.setenv("PATH", f"{folder}:{site.env['PATH']}")
    return made


@pytest.fixture
def engine(wrapped, site, tmp_path) -> SlurmEngine:
    return engine_on(tmp_path / "state", Slurm(site.conf))


def believes_nothing(engine: SlurmEngine, seconds: float = 3.0) -> None:
    """Look again and again, for longer than a record may be late: nothing has ended."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        with pytest.raises(EngineDownError):
            engine.poll()
        time.sleep(0.2)


@pytest.mark.long
@pytest.mark.parametrize("answer", ANSWERS)
def test_a_queue_that_cannot_be_read_is_not_empty(engine, wrapped, tmp_path, answer):
    engine.apply([Start(1, "j", (0,), 1)])
    begun(tmp_path / "state")
    wrapped.break_("squeue", ANSWERS[answer])
    believes_nothing(engine)
    with pytest.raises(EngineDownError):
        engine.apply([Stop(1)])
    wrapped.repair("squeue")
    assert engine.poll() == []
    let_go(tmp_path / "state")
    (seen,) = ends(engine)
    assert seen.outcome is Outcome.COMPLETED
    assert said(tmp_path / "state") == ["begin", "end"]


@pytest.mark.long
def test_jobs_that_vanish_all_at_once_are_asked_for_by_number(engine, wrapped, site, tmp_path):
    """Also runs of an earlier controller, whose numbers this one never saw."""
    state = tmp_path / "state"
    for handle in (1, 2):
        engine.apply([Start(handle, "j", (handle - 1,), 1)])
        begun(state, handle)
    wrapped.break_("squeue", NO_JOBS)
    believes_nothing(engine)
    another = engine_on(state, Slurm(site.conf))
    believes_nothing(another)
    wrapped.break_("squeue", NO_JSON % f'exec {shutil.which("squeue", path=site.env["PATH"])} "$@"')
    assert another.poll() == []  # the second form of the list has them
    wrapped.break_("squeue", NO_JOBS)
    wrapped.break_(
        "scontrol", 'case "$*" in ping) echo "Slurmctld(primary) at here is UP";; esac'
    )  # and says nothing else
    believes_nothing(another, 1.0)
    for name in ("squeue", "scontrol"):
        wrapped.repair(name)
    for handle in (1, 2):
        let_go(state, handle)
    seen = ends(another)
    while len(seen) < 2:
        seen += ends(another)
    assert {change.outcome for change in seen} == {Outcome.COMPLETED}


def test_nodes_that_vanish_all_at_once_are_not_gone(engine, wrapped, tmp_path):
    assert engine.nodes().usable_gpus.tolist() == [2, 2]
    wrapped.break_("sinfo", "echo sinfo: done")
    believes_nothing(engine, 1.0)
    wrapped.repair("sinfo")
    engine.poll()
    assert engine.nodes().usable_gpus.tolist() == [2, 2]
