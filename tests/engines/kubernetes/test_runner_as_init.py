"""The runner as the first process of a container: the kernel gives such a process no default handling of signals."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from commonwatt.engines.local import runner
from commonwatt.engines.local.folder import RunFolder
from commonwatt.engines.run_spec import RunSpec

from .site import until

pytestmark = pytest.mark.slow

UNSHARE = ["unshare", "--fork", "--pid", "--mount-proc"]


def namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode == 0


@pytest.fixture
def contained(tmp_path):
    """Start a command under a runner that is process 1 of a namespace; returns its records, and its number outside."""
    if not namespaces():
        pytest.skip("this user may not make namespaces of processes")
    started = []

    def start(script: str, **more) -> tuple[RunFolder, int, subprocess.Popen]:
        spec = RunSpec(
            handle=1, attempt=1, name="j", nodes=(0,), gpus_per_node=1, slots=((),), started_s=0.0, base_epochs=0.0,
            command=("sh", "-c", script), folder="/", environment={}, grace_s=2.0, lock=str(tmp_path / "lock"), **more,
        )  # fmt: skip
        folder = RunFolder.create(tmp_path / "runs", spec)
        outer = subprocess.Popen([*UNSHARE, sys.executable, "-I", runner.__file__, str(folder.path)])
        started.append(outer)
        inner = until(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text).split()
        until(lambda: folder.processes() or folder.end())
        return folder, int(inner[0]), outer

    yield start
    for outer in started:
        outer.kill()
        outer.wait()


@pytest.mark.long
def test_it_prints_what_its_job_prints_and_a_reader_that_does_not_read_keeps_nothing_from_its_end(tmp_path):
    def spec(attempt, script):
        return RunSpec(
            handle=1, attempt=attempt, name="j", nodes=(0,), gpus_per_node=1, slots=((),), started_s=0.0,
            base_epochs=0.0, command=("sh", "-c", script), folder="/", environment={}, grace_s=2.0, echo=True,
        )  # fmt: skip

    def begun(folder):
        command = [sys.executable, "-I", runner.__file__, str(folder.path)]
        return subprocess.Popen(command, stdout=subprocess.PIPE)

    script = f"echo begin; read line < {tmp_path}/go; echo end; exit 4"
    folder = RunFolder.create(tmp_path / "runs", spec(1, script))
    os.mkfifo(tmp_path / "go")
    with begun(folder) as process:
        assert process.stdout.readline() == b"begin\n"  # while the job goes on
        (tmp_path / "go").write_text("\n")
        assert process.stdout.read() == b"end\n"
    assert folder.end().exit_code == 4
    assert (folder.path / "output.log").read_text() == "begin\nend\n"
    folder = RunFolder.create(tmp_path / "runs", spec(2, "head -c 1000000 /dev/zero; exit 5"))
    with begun(folder):  # a pipe holds 64 KiB, and nobody reads it
        until(folder.end)
    assert folder.end().exit_code == 5


def test_it_passes_sigterm_on_and_writes_down_the_end(contained, tmp_path):
    folder, first, outer = contained(f"trap 'echo saved > {tmp_path}/saved; exit 0' TERM; while :; do sleep 0.05; done")
    assert json.loads((folder.path / "runner.json").read_text())["runner"] == 1
    os.kill(first, signal.SIGTERM)
    outer.wait(30)
    assert (tmp_path / "saved").read_text() == "saved\n"
    assert folder.end().stopped
    assert folder.end().exit_code == 0


@pytest.mark.long
def test_it_kills_what_is_deaf_after_the_grace_time(contained):
    folder, first, outer = contained("trap '' TERM; while :; do sleep 0.05; done")
    os.kill(first, signal.SIGTERM)
    outer.wait(30)
    assert folder.end().exit_code == -signal.SIGKILL
    assert folder.end().stopped


def test_it_gathers_orphans_and_passes_the_exit_code_on(contained):
    folder, _, outer = contained("(sleep 0.2 &) ; sleep 0.5; exit 7")
    assert outer.wait(30) == 7
    assert folder.end().exit_code == 7


def test_it_waits_for_parts_of_earlier_runs_too(contained, tmp_path):
    with (tmp_path / "lock-1").open("a") as part:
        fcntl.flock(part, fcntl.LOCK_EX)
        free = threading.Timer(0.6, lambda: fcntl.flock(part, fcntl.LOCK_UN))
        free.start()
        folder, _, outer = contained("exit 0", locks=(str(tmp_path / "lock-1"),))
        assert not free.is_alive()  # it had not begun before
        free.join()
        outer.wait(30)
    assert folder.end().exit_code == 0
