"""Jobs that are their owners' in Slurm and on the nodes: as users of their own, whom nothing else is trusted with."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from commonwatt.control.engine import JobEnded, JobInterrupted, Outcome, Start, Stop
from commonwatt.engines.run_spec import JobWork
from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.engine import SlurmEngine
from commonwatt.engines.slurm.settings import SlurmSettings
from commonwatt.model.errors import EngineError
from commonwatt.testing.engine_contract import contract_cluster

from .conftest import SETTINGS
from .site import until
from .test_slurm import ends

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can submit jobs as other users"),
]
USERS = frozenset({"games", "daemon"})


@pytest.fixture
def state(site):
    """A state folder that everybody may pass through, as a site's is; so is Slurm's."""
    site.folder.chmod(0o711)
    path = Path(tempfile.mkdtemp(prefix="cw-owners-"))
    path.chmod(0o755)
    yield path / "state"
    shutil.rmtree(path)


def engine_of(state, site, *command, user="games", **changed):
    settings = SlurmSettings(**{**SETTINGS, "python": "/usr/bin/python3", "users": USERS, **changed})
    work = JobWork(command=command, user=user, options=("--nice=3",))
    return SlurmEngine(contract_cluster(), state, lambda name: work, slurm=Slurm(site.conf), settings=settings)


def log_of(state, run="1-1"):
    return (state / "users" / run / "output.log").read_text().splitlines()


def test_a_job_is_its_owners_in_slurm_and_on_the_node(site, state):
    script = 'id -un; pwd; echo "$HOME $USER"; cat "$1"/runs/1-1/run.json; ls "$1"/users; ls "$1"/runs'
    engine = engine_of(state, site, "sh", "-c", script + "; sleep 2", "sh", str(state))
    engine.apply([Start(1, "j", (0,), 1)])
    queue = until(lambda: site.ask("squeue", "--noheader", "--states=RUNNING", "--format=%u %g %y").strip())
    user = pwd.getpwnam("games")
    assert queue == "games games 3"
    (seen,) = ends(engine)
    assert isinstance(seen, JobEnded)
    assert seen.outcome is Outcome.COMPLETED
    name, folder, variables, *rest = log_of(state)
    assert (name, folder, variables) == ("games", str(state / "jobs" / "1"), f"{user.pw_dir} games")
    assert [("Permission denied" in line) for line in rest] == [True] * 3  # nothing of others, and no list of them
    assert (state / "users" / "1-1").stat().st_uid == user.pw_uid
    assert (state / "users" / "1-1").stat().st_mode & 0o777 == 0o700
    assert (state / "runs").stat().st_mode & 0o777 == 0o700


@pytest.mark.long
def test_another_engine_finds_it_and_stops_it(site, state):
    first = engine_of(state, site, "sleep", "600")
    first.apply([Start(1, "j", (0,), 1)])
    until((state / "users" / "1-1" / "runner.json").exists)
    second = engine_of(state, site, "sleep", "600")
    assert second.poll() == []
    assert second.nodes().usable_gpus.tolist() == [2, 2]
    assert second.recorded_runs()[0].nodes == (0,)
    (stopped,) = second.apply([Stop(1)])
    assert (stopped.handle, stopped.later) == (1, False)
    assert second.poll() == []
    second.apply([Start(1, "j", (1,), 1)])  # as the next run of the job
    until((state / "users" / "1-2" / "runner.json").exists)
    second.apply([Stop(1)])
    second.prune([1])
    assert list((state / "users").iterdir()) == list((state / "runs").iterdir()) == []


@pytest.mark.long
def test_a_job_in_the_name_of_another_users_run_is_none_of_ours(site, state):
    """It neither takes its place nor is touched; one that names a run that is nobody's is withdrawn."""
    engine = engine_of(state, site, "sleep", "600")
    engine.apply([Start(1, "j", (0,), 1)])
    until((state / "users" / "1-1" / "runner.json").exists)
    comment = site.ask("squeue", "--noheader", "--format=%k").strip()

    def forge(comment):
        options = ["--parsable", "--uid=daemon", "--output=/dev/null", "--nodelist=n-2", "--gres=gpu:1"]
        return int(site.ask("sbatch", *options, f"--comment={comment}", "--chdir=/", "--wrap=sleep 600"))

    same, nobodys = forge(comment), forge(comment[:-3] + "7 1")
    until(lambda: engine.poll() == [] and str(nobodys) not in site.ask("squeue", "--noheader", "--format=%A").split())
    assert engine._snapshot.job_of(engine._runs[1].spec).user == "games"
    assert str(same) in site.ask("squeue", "--noheader", "--format=%A").split()
    until(lambda: engine.nodes().usable_gpus.tolist() == [2, 1])  # what it has counts as somebody else's
    site.ask("scancel", str(same))
    engine.apply([Stop(1)])


def test_its_owner_may_change_its_comment_and_nothing_comes_of_it(site, state):
    engine = engine_of(state, site, "sleep", "600")
    engine.apply([Start(1, "j", (0,), 1)])
    until((state / "users" / "1-1" / "runner.json").exists)
    comment, number = site.ask("squeue", "--noheader", "--format=%k|%A").strip().split("|")
    for other in ("mine", comment[:-3] + "7 1"):
        site.ask("scontrol", "update", f"JobId={number}", f"Comment={other}")
        for found in (engine, engine_of(state, site, "sleep", "600")):  # as another engine sees it, too
            assert found.poll() == []
            assert found._look().job_of(found._runs[1].spec).id == int(number)
            assert [n - own for n, own in zip(found.nodes().usable_gpus, (1, 0), strict=True)] == [1, 2]
    (stopped,) = engine.apply([Stop(1)])
    assert (stopped.handle, stopped.later) == (1, False)


HOSTILE = """
import os, pathlib, sys, time
own = pathlib.Path(sys.argv[1]) / "users" / "1-1"
other = pathlib.Path(sys.argv[2])
what = sys.argv[3]
(own / "lock").unlink()
if what == "links":
    for name in ("lock", "end.json", "output.log"):
        (own / name).unlink(missing_ok=True)
        (own / name).symlink_to(other / name)
elif what == "folders":
    for name in ("lock", "end.json", "output.log"):
        (own / name).unlink(missing_ok=True)
        (own / name).mkdir()
elif what == "pipes":
    for name in ("lock", "end.json", "output.log"):
        (own / name).unlink(missing_ok=True)
        os.mkfifo(own / name)
elif what == "early":
    (own / "end.json").write_text('{"exit_code": 0, "stopped": false, "at_s": 1.0, "cause": "exit code 0", "ran_s": 0}')
    time.sleep(3)
os.kill(os.getppid(), 9)
"""


@pytest.mark.long
@pytest.mark.parametrize("what", ["links", "folders", "pipes", "early"])
def test_what_a_job_puts_into_its_records_concerns_that_job_alone(site, state, what):
    other = state.parent / "others"
    other.mkdir(mode=0o777)
    other.chmod(0o755)
    began_s = time.time()
    engine = engine_of(
        state, site, "/usr/bin/python3", "-c", HOSTILE, str(state), str(other), what, lag_s=0.5, runner_look_s=60.0
    )
    engine.apply([Start(1, "j", (0,), 1)])
    (seen,) = ends(engine)
    assert isinstance(seen, JobEnded if what == "early" else JobInterrupted)
    if what == "early":  # it is charged for as long as Slurm saw it
        assert seen.at_s > began_s + 2.0
    assert list(other.iterdir()) == []  # nothing was made or read there
    own = json.loads((state / "runs" / "1-1" / "end.json").read_text())
    assert own["at_s"] == pytest.approx(seen.at_s)
    assert engine.nodes().usable_gpus.tolist() == [2, 2]
    assert engine_of(state, site, "true").poll()[0] == seen  # as a later engine sees it
    engine.prune([1])
    assert not (state / "users" / "1-1").exists()


def test_an_unknown_user_is_an_error_and_leaves_nothing(site, state):
    engine = engine_of(state, site, "true", user="nobody-at-all")
    with pytest.raises(EngineError, match="there is no user nobody-at-all on this machine"):
        engine.apply([Start(1, "j", (0,), 1)])
    assert engine.poll() == []
    assert site.ask("squeue", "--noheader").strip() == ""
