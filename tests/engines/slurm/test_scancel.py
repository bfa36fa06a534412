"""Somebody else cancels a job of ours in Slurm: it is cancelled, or queued again where the site wants that."""

from __future__ import annotations

import pytest

from commonwatt.control.engine import JobEnded, JobInterrupted, Outcome, Start, Stop
from commonwatt.engines.slurm.commands import Slurm

from .site import until
from .test_failures import begun, engine_on
from .test_slurm import ends

pytestmark = pytest.mark.slow


def number_of(site) -> str:
    return until(lambda: site.ask("squeue", "--noheader", "--states=RUNNING", "--format=%A").strip())


@pytest.mark.long
@pytest.mark.parametrize("requeue", [False, True])
@pytest.mark.parametrize("another", [False, True])
def test_a_job_that_an_administrator_cancels_stays_cancelled(site, tmp_path, requeue, another):
    """Also if another engine finds it."""
    engine = engine_on(tmp_path, Slurm(site.conf), requeue_cancelled=requeue)
    engine.apply([Start(1, "j", (0,), 1)])
    begun(tmp_path)
    site.ask("scancel", number_of(site))
    if another:
        engine = engine_on(tmp_path, Slurm(site.conf), requeue_cancelled=requeue)
    (seen,) = ends(engine)
    if requeue:
        assert isinstance(seen, JobInterrupted)
    else:
        assert isinstance(seen, JobEnded)
        assert (seen.outcome, seen.reason) == (Outcome.CANCELLED, "cancelled-in-slurm")


@pytest.mark.long
def test_a_job_that_we_stop_is_not_cancelled(site, tmp_path):
    """Neither one that does not listen, and that Slurm kills for us, as an engine sees that comes later."""
    engine = engine_on(tmp_path, Slurm(site.conf), grace_s=0.2, patience_s=0.2)
    engine.apply([Start(1, "j", (0,), 1)])
    begun(tmp_path)
    number = number_of(site)
    engine.request_stop([1])
    run = engine._runs[1]
    run.note_cancel()  # as kill_overdue does before it has Slurm kill it
    site.ask("scancel", "--quiet", number)
    later = engine_on(tmp_path, Slurm(site.conf))
    (seen,) = ends(later)
    assert isinstance(seen, JobInterrupted)
    engine = engine_on(tmp_path / "b", Slurm(site.conf))
    engine.apply([Start(1, "j", (0,), 1)])
    begun(tmp_path / "b")
    (stopped,) = engine.apply([Stop(1)])
    assert stopped.handle == 1
    assert engine.poll() == []
