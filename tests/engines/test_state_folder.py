"""A state folder: known wherever it is, and used by one controller at a time."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys

import pytest

from commonwatt.engines import state_folder as state
from commonwatt.engines.slurm.settings import SlurmSettings, prepare
from commonwatt.engines.state_folder import (
    fence_in,
    hold,
    identity_in,
    make_identity,
    set_fence,
    used_by_another,
)
from commonwatt.model.errors import ClaimLostError, EngineError


def test_an_identity_is_made_once_and_goes_with_the_folder(tmp_path):
    made = make_identity(tmp_path / "a", "local")
    assert re.fullmatch(r"local:[0-9a-f]{12}", made)
    assert make_identity(tmp_path / "a", "other") == made
    (tmp_path / "a").rename(tmp_path / "b")
    assert identity_in(tmp_path / "b") == made
    assert identity_in(tmp_path / "a") == ""
    assert prepare(tmp_path / "b", SlurmSettings(), ["n"])[0] == made
    assert make_identity(tmp_path / "c", "local") != made


def test_an_identity_that_was_lost_is_made_anew_and_one_that_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "identity").write_text("")  # as after a power cut
    assert make_identity(tmp_path, "local").startswith("local:")
    (tmp_path / "identity").unlink()
    (tmp_path / "identity").mkdir()
    with pytest.raises(EngineError, match="identity cannot be read"):
        make_identity(tmp_path, "local")


def test_one_controller_at_a_time_and_it_is_said_which(tmp_path):
    first = hold(tmp_path / "s", "sqlite:///one")
    expected = f"another controller, process {os.getpid()} on .* with the store sqlite:///one, already uses .*/s"
    with pytest.raises(EngineError, match=expected):
        hold(tmp_path / "s", "sqlite:///two")
    assert "process" in used_by_another(tmp_path / "s", "sqlite:///two")
    assert used_by_another(tmp_path / "s", "sqlite:///one") is None
    first.release()
    first.release()
    assert used_by_another(tmp_path / "s", "sqlite:///two") is None
    hold(tmp_path / "s", "sqlite:///two").release()


def test_a_folder_is_free_when_its_controller_was_killed(tmp_path):
    source = "import sys, time; from pathlib import Path; from commonwatt.engines.state_folder import hold\n"
    source += "kept = hold(Path(sys.argv[1]), 's'); print('held', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", source, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(EngineError, match=f"process {other.pid} on"):
            hold(tmp_path, "s")
        other.send_signal(signal.SIGKILL)
        other.wait()
    hold(tmp_path, "s").release()


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(state.fcntl, "flock", refuse)
    with pytest.raises(EngineError, match=r"cannot lock files \(flock\): No locks available"):
        hold(tmp_path, "s")


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match=r"state folder .*/file/s cannot be used: Not a directory"):
        hold(tmp_path / "file" / "s", "s")


HOLD = (
    "import sys, time; from pathlib import Path; from commonwatt.engines.state_folder import hold\n"
    "kept = hold(Path(sys.argv[1]), 's'); print('held', flush=True); time.sleep(600)"
)


@pytest.fixture
def frozen(tmp_path):
    """A controller that has the folder and does not release it."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        other.send_signal(signal.SIGSTOP)
        yield other
        other.kill()


def still():
    """The claim is kept."""


@pytest.mark.slow
def test_who_lost_its_claim_while_it_waited_kills_nobody(frozen, tmp_path):
    def lost():
        raise ClaimLostError("another controller has the store")

    with pytest.raises(ClaimLostError):
        hold(tmp_path, "s", claimed=lost)
    assert frozen.poll() is None


@pytest.mark.slow
def test_who_has_claimed_the_store_takes_the_folder_from_a_controller_that_is_frozen(frozen, tmp_path):
    with pytest.raises(EngineError, match="already uses"):
        hold(tmp_path, "another store", claimed=still)
    lock = hold(tmp_path, "s", claimed=still)
    assert frozen.wait(10) == -signal.SIGKILL
    lock.release()


@pytest.mark.slow
def test_a_frozen_controller_of_another_machine_keeps_a_lock_that_excludes_nobody(frozen, tmp_path, monkeypatch):
    monkeypatch.setattr(state, "this_process", lambda: (state.Process(1, "", None), "elsewhere"))
    lock = hold(tmp_path, "s", claimed=still)
    assert frozen.poll() is None
    frozen.send_signal(signal.SIGCONT)
    with pytest.raises(EngineError, match="already uses"):
        hold(tmp_path, "s")
    lock.release()


def test_a_fence_is_made_once_and_replaced_on_request(tmp_path):
    assert fence_in(tmp_path) is None
    set_fence(tmp_path, anew=False)
    text, path = fence_in(tmp_path)
    set_fence(tmp_path, anew=False)
    assert fence_in(tmp_path) == (text, path) == (path.read_text(), tmp_path / "fence")
    set_fence(tmp_path, anew=True)
    assert fence_in(tmp_path)[0] != text
