"""The whole control plane over a real Slurm: killed, cut off, robbed of a node, it loses and doubles nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.model.job_file import JobFile, ScriptSpec
from commonwatt.store.queries import events_of
from commonwatt.store.records import RequestKind
from tests.controlplane.chaos import (
    ENDED,
    ROUNDS,
    config_in,
    controller,
    kill,
    problems,
    running,
    store_of,
    stream,
    until_all_end,
    witness,
)
from tests.engines.slurm.conftest import running_site, site  # noqa: F401
from tests.engines.slurm.site import until

pytestmark = pytest.mark.long


def config_over(site, folder, **changed):  # noqa: F811
    return config_in(
        folder,
        engine="slurm",
        live={
            "slurm": {"conf": str(site.conf), "grace_s": 2, "poll_s": 0.2, "start_s": 30, **changed},
            "default_time_limit_s": 30,
        },
    )


@pytest.fixture
def plane(site, tmp_path):  # noqa: F811
    path = config_over(site, tmp_path)
    return path, store_of(path, tenants="ab")


@contextmanager
def administered(site):  # noqa: F811
    """Somebody gives back the nodes that Slurm drains because its controller has forgotten what it began there."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(1.0):
            with suppress(AssertionError):  # it is away just now
                site.resume(site.drained_by_slurm())

    administrator = threading.Thread(target=look)
    administrator.start()
    try:
        yield
    finally:
        over.set()
        administrator.join()


def test_jobs_end_exactly_once_though_the_controller_and_slurmctld_are_killed(plane, site, tmp_path):  # noqa: F811
    path, store = plane
    jobs = stream(path, store, tmp_path, 4, seed=1, longest_s=3.0)
    with running(path):
        late = store.submit("a", witness("late", tmp_path, 5.0, gpus=2), time.time())[0].id
        until(lambda: store.job(late).status == "running")
        time.sleep(2.0)  # Slurm's controller has written down what it started
        site.end("slurmctld", signal.SIGKILL)
        jobs += [late, store.submit("b", witness("later", tmp_path, 0.5), time.time())[0].id]
        time.sleep(1.0)
        site.begin("slurmctld")
        with administered(site):
            until_all_end(store, jobs, 240.0)
    assert problems(store, tmp_path, jobs) == []


@pytest.mark.skipif("COMMONWATT_ROUNDS" not in os.environ, reason="takes its time: COMMONWATT_ROUNDS=100")
def test_jobs_end_exactly_once_however_often_slurmctld_is_killed(plane, site, tmp_path):  # noqa: F811
    path, store = plane
    rng = np.random.default_rng(ROUNDS)
    jobs = []
    with running(path), administered(site):
        for k in range(ROUNDS):
            for n in range(2):
                seconds, epochs = float(rng.uniform(0.2, 3.0)), int(rng.integers(1, 4))
                file = witness(f"j{k}-{n}", tmp_path, seconds, epochs=epochs, gpus=int(rng.integers(1, 3)))
                jobs.append(store.submit("ab"[n], file, time.time())[0].id)
            time.sleep(float(rng.uniform(0.0, 3.0)))
            site.end("slurmctld", signal.SIGKILL)
            time.sleep(float(rng.uniform(0.0, 1.0)))
            site.begin("slurmctld")
        until_all_end(store, jobs, 1200.0)
    assert problems(store, tmp_path, jobs) == []


def kill_with_ancestors(pid: int, generations: int) -> None:
    """A job, its runner and Slurm's shepherd of both, as if their machine had lost its power: none sees another die."""
    family = [pid]
    while len(family) < generations:
        family.append(int(Path(f"/proc/{family[-1]}/stat").read_text().rsplit(")", 1)[1].split()[1]))
    for each in reversed(family):
        with suppress(ProcessLookupError):  # the job dies with its runner
            os.kill(each, signal.SIGKILL)


def test_a_job_of_a_dead_node_goes_on_elsewhere_from_its_snapshot(plane, site, tmp_path):  # noqa: F811
    path, store = plane
    job = store.submit("a", witness("long", tmp_path, 6.0, epochs=12, gpus=2), time.time())[0].id
    child = controller(path)
    try:
        row = until(lambda: (r := store.job(job)).kept_epochs >= 3 and r)
        (node,) = row.nodes
        site.end(node, signal.SIGKILL)
        kill_with_ancestors(int((tmp_path / "long.log").read_text().split()[1]), 3)
        site.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=gone")
        until(lambda: (r := store.job(job)).status == "running" and r.nodes not in {(), (node,)}, 60.0)
        until_all_end(store, [job])
    finally:
        kill(child)
    begins = [line.split() for line in (tmp_path / "long.log").read_text().splitlines() if line.startswith("begin")]
    assert int(begins[-1][2]) >= 3
    assert problems(store, tmp_path, [job]) == []


def test_what_is_cancelled_in_slurm_is_cancelled(plane, site, tmp_path):  # noqa: F811
    path, store = plane
    child = controller(path)
    try:
        job = store.submit("a", witness("gone", tmp_path, 100.0), time.time())[0].id
        until((tmp_path / "gone.log").exists)
        site.ask("scancel", *site.ask("squeue", "--noheader", "--format=%A").split())
        until(lambda: store.job(job).status == "cancelled")
        assert store.job(job).attempts == 1
    finally:
        kill(child)


def test_srun_in_a_batch_script_hands_on_its_environment(plane, tmp_path):
    """As ``sbatch`` without ``--export`` has it: all of it, what the script has set too."""
    path, store = plane
    text = f"#!/bin/bash\nexport OWN=own\nsrun bash -c 'echo $OWN $GIVEN $COMMONWATT_JOB' >{tmp_path}/said\n"
    batch = ScriptSpec(script=text, submit_folder=str(tmp_path))
    file = JobFile(name="j", command=("j",), environment={"GIVEN": "given"}, batch=batch, folder=str(tmp_path))
    with running(path):
        job = store.submit("a", file, time.time())[0].id
        until(lambda: store.job(job).status in ENDED, 120.0)
    assert store.job(job).status == "completed"
    own, given, number = (tmp_path / "said").read_text().split()
    assert (own, given) == ("own", "given")
    assert number.startswith(str(job))


def test_a_job_runs_where_the_features_are_that_it_asks_for(site, tmp_path):  # noqa: F811
    """Of Slurm's, and of ours: Slurm's words say where they differ."""
    site.ask("scontrol", "update", "NodeName=n-2", "AvailableFeatures=pretended,fast")
    watts = {"gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 200}
    nodes = [
        {"name": "n-1", "features": ["pretended", "unknown-to-slurm"], **watts},
        {"name": "n-2", "features": ["pretended", "fast"], **watts},
    ]
    live = {"slurm": {"conf": str(site.conf), "poll_s": 0.2, "start_s": 30}, "default_time_limit_s": 30}
    path = config_in(tmp_path, engine="slurm", nodes=nodes, live=live)
    store = store_of(path, tenants="a")
    with running(path):
        fast = [
            store.submit("a", witness(f"f{k}", tmp_path, 1.0, gpus=2, constraint="[fast]&pretended"), time.time())
            for k in range(2)
        ]
        other = store.submit("a", witness("u", tmp_path, 1.0, constraint="unknown-to-slurm"), time.time())[0].id
        ids = [made[0].id for made in fast]
        until(lambda: all(store.job(job).status in ENDED for job in ids), 120.0)
        until(lambda: "nvalid feature" in (store.job(other).sentence or ""), 60.0)
    assert {row.nodes for row in events_of(store.database, ids, ["started"])} == {("n-2",)}
    assert problems(store, tmp_path, ids) == []


def test_an_interruption_counts_once_and_is_charged_once_whoever_comes_back(site, tmp_path):  # noqa: F811
    """A held job that was cancelled in Slurm waits, where that requeues it; it has not run since."""
    path = config_over(site, tmp_path, on_scancel="requeue")
    store = store_of(path, tenants="a")
    child = controller(path)
    try:
        job = store.submit("a", witness("held", tmp_path, 100.0), time.time())[0].id
        until((tmp_path / "held.log").exists)
        store.ask(RequestKind.HOLD, time.time(), job=job)
        until(lambda: store.job(job).held)
        site.ask("scancel", *site.ask("squeue", "--noheader", "--format=%A").split())
        until(lambda: store.job(job).status == "waiting")
        account = None
        for _ in range(3):
            kill(child)
            begun_s, child = time.time(), controller(path)
            until(lambda begun_s=begun_s: store.setting("controller")["time_s"] > begun_s)
            account = account or store.account(job)
            row = store.job(job)
            assert (row.status, row.attempts, row.settled, row.failures) == ("waiting", 1, 1, 1)
            assert store.account(job) == account
        assert [event.kind for event in store.events(job=job)].count("interrupted") == 1
    finally:
        kill(child)


def test_a_job_wakes_a_node_of_its_pool_and_no_other(site, tmp_path):  # noqa: F811
    """Each type of GPU is a pool; Slurm itself switches the nodes."""
    off = {"states": [{"name": "off", "power_w": 5, "enter_s": 1, "wake_s": 3}]}
    watts = {"idle_w": 100, "gpu_w": 200}
    nodes = [
        {"name": "n", "count": 2, "gpu_type": "V100", "gpus": 2, **watts, **off},
        {"name": "spare", "gpu_type": "T4", "gpus": 1, **watts, **off},
    ]
    path = config_in(
        tmp_path, engine="slurm", nodes=nodes,
        capacity={"policy": "last-value", "step_s": 2, "horizon": 10, "pools": "gpu_type"},
        live={
            "slurm": {"conf": str(site.conf), "grace_s": 2, "poll_s": 0.2, "start_s": 30, "power": True},
            "default_time_limit_s": 60,
        },
    )  # fmt: skip
    store, names = store_of(path, tenants="a"), ("n-1", "n-2", "spare")

    def asleep() -> set[str]:
        states = site.states()
        return {name for name in names if "powered_down" in states[name] and "power_up" not in states[name]}

    with running(path):
        until(lambda: asleep() == set(names), 120.0)
        file = witness("j", tmp_path, 3.0, gpus=2, gpu_types=["V100"])
        job = store.submit("a", file, time.time())[0].id
        seen = set()
        until(lambda: seen.add(frozenset(asleep())) or store.job(job).status in ENDED, 240.0)
        assert all("spare" in states for states in seen)
        assert frozenset({"spare", "n-2"}) in seen or frozenset({"spare", "n-1"}) in seen
        assert {"V100": 2, "T4": 0} in [sample.wanted_by_pool for sample in store.samples(0.0)]
        until(lambda: asleep() == set(names), 120.0)
    assert problems(store, tmp_path, [job]) == []


def test_power_alone_is_switched_while_slurm_places_all_jobs(site, tmp_path):  # noqa: F811
    """Then one partition is handed over: our jobs run there, those of others elsewhere, and all nodes sleep."""
    site.ask("scontrol", "create", "PartitionName=old", "Nodes=spare", "State=UP")
    off = {"states": [{"name": "off", "power_w": 5, "enter_s": 1, "wake_s": 3}]}
    watts = {"idle_w": 100, "gpu_w": 200, **off}
    nodes = [
        {"name": "n", "count": 2, "gpu_type": "V100", "gpus": 2, "partitions": ["main"], **watts},
        {"name": "spare", "gpu_type": "T4", "gpus": 1, "partitions": ["old"], **watts},
    ]
    slurm = {"conf": str(site.conf), "grace_s": 2, "poll_s": 0.2, "start_s": 30, "power": True}
    capacity = {"policy": "last-value", "step_s": 2, "horizon": 10}
    live = {"mode": "power", "slurm": slurm, "default_time_limit_s": 60}
    path = config_in(tmp_path, engine="slurm", nodes=nodes, capacity=capacity, live=live)
    store, names = store_of(path, tenants="a"), {"n-1", "n-2", "spare"}

    def asleep() -> set[str]:
        states = site.states()
        return {name for name in names if "powered_down" in states[name] and "power_up" not in states[name]}

    def sbatch(*options: str) -> str:
        return site.ask("sbatch", "--parsable", "--output=/dev/null", *options, "--wrap=sleep 8").strip()

    def ended(job: str) -> bool:
        return "COMPLETED" in site.ask("scontrol", "show", "job", job)

    try:
        with running(path):
            until(lambda: asleep() == names, 120.0)
            mine = store.submit("a", witness("j", tmp_path, 1.0, gpus=2), time.time())[0].id
            theirs = sbatch("--gres=gpu:v100:2", "--time=1")
            seen = set()
            until(lambda: seen.add(frozenset(asleep())) or ended(theirs), 240.0)
            assert min(len(sleeping) for sleeping in seen) == 2  # Slurm woke one, and it alone
            until(lambda: asleep() == names, 120.0)
            assert store.job(mine).status == "waiting"
            assert max(sample.wanted_gpus for sample in store.samples(0.0)) == 2
        # what is handed over need not be Slurm's default; a mode that has changed in the file is taken
        site.ask("scontrol", "create", "PartitionName=train", "Nodes=n-1,n-2", "State=UP")
        site.ask("scontrol", "update", "PartitionName=main", "Nodes=spare")
        nodes[0]["partitions"] = ["train"]
        capacity["pools"], live["slurm"], live["mode"] = "partition", {**slurm, "place_in": ["train"]}, "live"
        path = config_in(tmp_path, engine="slurm", nodes=nodes, capacity=capacity, live=live)
        with running(path):
            until(lambda: store.job(mine).status in ENDED, 240.0)
            theirs = sbatch("--gres=gpu:1", "--time=1", "--partition=old")
            until(lambda: ended(theirs), 240.0)
            until(lambda: asleep() == names, 120.0)
        assert [event.nodes[0][:2] for event in store.events(job=mine) if event.kind == "started"] == ["n-"]
    finally:
        site.settle()
        site.ask("scontrol", "update", "PartitionName=main", "Nodes=ALL")
        for name in ("old", "train"):
            subprocess.run(["scontrol", "delete", f"PartitionName={name}"], env=site.env, check=False)
    assert problems(store, tmp_path, [mine]) == []
