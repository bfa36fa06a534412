"""Batch scripts over the whole way: submitted as with sbatch, run as sbatch runs them, in their order."""

from __future__ import annotations

import os
import time
from pathlib import Path
from unittest import mock

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")

from tests.attacks.site import served, until
from tests.cli.console import run

NODES = [{"name": "n", "count": 2, "gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 100, "partitions": ["gpu"]}]
SCRIPT = """#!/bin/sh
#SBATCH --job-name=train --gpus-per-node=1 {options}
env | sort >env-$SLURM_ARRAY_TASK_ID
echo "out $1 in $(pwd)"
echo err >&2
{body}
"""


class User:
    """Somebody at a shell."""

    def __init__(self, site, folder):
        self.site, self.folder = site, folder

    def submit(self, *arguments, options="", body="true", code=0):
        (self.folder / "job.sbatch").write_text(SCRIPT.format(options=options, body=body))
        env = {
            "COMMONWATT_URL": self.site.url, "COMMONWATT_TOKEN": self.site.operator, "MINE": "1",
            "SLURM_JOB_NAME": "outer", "CUDA_VISIBLE_DEVICES": "7",
        }  # fmt: skip
        before = Path.cwd()
        os.chdir(self.folder)
        try:
            with mock.patch.dict(os.environ, env):
                done = run("submit", "--tenant", "default", "--json", "job.sbatch", *arguments)
        finally:
            os.chdir(before)
        assert done.code == code, done.err
        self.said = done.err
        return done.document if code == 0 else None

    def until(self, job, *status):
        return until(lambda: self.site.status(job) in status and self.site.store.job(job))

    def reason(self, job):
        return self.site.call("GET", f"/jobs/{job}/explain").json()["reason"]

    def env(self, index=""):
        lines = (self.folder / f"env-{index}").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    with served(tmp_path_factory.mktemp("site"), nodes=NODES) as site:
        yield User(site, folder)


@pytest.mark.slow
def test_it_has_the_folder_the_environment_the_arguments_and_the_output_that_sbatch_gives_it(user):
    number = user.submit("fast", options="-o %x-%j.out -e sub-%A.err --mem=1G")["id"]
    assert "--mem: engine local does not limit it" in user.said
    user.until(number, "completed")
    out = (user.folder / f"train-{number}.out").read_text()
    assert (out, (user.folder / f"sub-{number}.err").read_text()) == (f"out fast in {user.folder}\n", "err\n")
    env = user.env()
    assert (env["MINE"], env["HOME"], env["SLURM_JOB_NAME"]) == ("1", os.environ["HOME"], "train")
    assert (env["SLURM_JOB_NODELIST"] in ("n-1", "n-2"), env["SLURM_GPUS_PER_NODE"]) == (True, "1")
    assert (env["SLURM_SUBMIT_DIR"], env["SLURM_JOB_ID"], env["SLURM_NNODES"]) == (str(user.folder), str(number), "1")
    assert env["CUDA_VISIBLE_DEVICES"] != "7"
    assert "COMMONWATT_TOKEN" not in env  # it would let the job speak for its owner
    log = user.site.call("GET", f"/jobs/{number}/log").text
    errors = f"[commonwatt: errors go to {user.folder}/sub-{number}.err]\n"
    assert log == f"{errors}[commonwatt: output goes to {user.folder}/train-{number}.out]\n"
    with mock.patch.dict(os.environ, {"COMMONWATT_URL": user.site.url, "COMMONWATT_TOKEN": user.site.operator}):
        assert [run("log", number, *follow).out for follow in ((), ("--follow",))] == [f"{out}err\n"] * 2


@pytest.mark.long
def test_arrays_shapes_and_dependencies(user):
    wait = "while [ ! -e go ]; do sleep 0.1; done"
    tasks = [job["id"] for job in user.submit(options="--array=3,5 -o %A_%a.out", body=wait)["jobs"]]
    after = user.submit(options=f"-d afterok:{tasks[0]}:{tasks[1]} --nodes=2 -o after.out")["id"]
    until(lambda: user.reason(after) == "dependency")
    assert not (user.folder / "after.out").exists()
    (user.folder / "go").touch()
    row = user.until(after, "completed")
    assert all(user.site.store.job(task).ended_s <= row.began_s for task in tasks)
    assert {event.gpus for event in user.site.store.events(job=after) if event.kind == "started"} == {2}
    assert [len(event.nodes) for event in user.site.store.events(job=after) if event.kind == "started"] == [2]
    assert {path.name for path in user.folder.glob("*_*.out")} == {f"{tasks[0]}_{index}.out" for index in (3, 5)}
    env = user.env("5")
    assert (env["SLURM_ARRAY_JOB_ID"], env["SLURM_ARRAY_TASK_COUNT"], env["SLURM_ARRAY_TASK_MAX"]) == (
        str(tasks[0]), "2", "5",
    )  # fmt: skip


@pytest.mark.long
def test_what_waits_for_a_time_or_for_what_never_comes_says_so(user):
    began_s = time.time()
    failed = user.submit(body="exit 3")["id"]
    never = user.submit(options=f"--dependency=afterok:{failed}")["id"]
    cleanup = user.submit(options=f"--dependency=afternotok:{failed}")["id"]
    later = user.submit(options="--begin=now+6")["id"]
    far = user.submit(options="--begin=now+1hour")["id"]
    until(lambda: user.reason(far) == "begin")
    user.site.call("POST", f"/jobs/{far}/cancel")
    user.until(failed, "failed")
    user.until(cleanup, "completed")
    until(lambda: user.reason(never) == "dependency-never")
    assert user.until(later, "completed").began_s >= began_s + 5  # a second may be lost to rounding
    user.site.call("POST", f"/jobs/{never}/cancel")
    user.until(never, "cancelled")


@pytest.mark.slow
def test_what_this_site_cannot_keep_is_refused(user):
    user.submit(options="--qos=high", code=2)
    assert "engine local has no Slurm that would keep it" in user.said
    user.submit(options="--exclusive", code=2)
    assert "job.sbatch: field 'line 2, --exclusive'" in user.said
    user.submit(options="--nodes=3", code=2)
    user.submit(options="--partition=cpu", code=2)
    assert "in partition cpu" in user.said
    user.submit(options="--constraint=ib", code=2)
    assert "field 'constraint': got 'ib', expected features that nodes have (no node has any)" in user.said
    user.submit(options="--dependency=afterok:4711", code=2)
    assert "numbers of jobs of the same tenant" in user.said
