"""What the Slurm engine does on a real Slurm, beyond the contract."""

from __future__ import annotations

import dataclasses
import getpass
import json
import math
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from commonwatt.control.engine import JobEnded, JobInterrupted, Outcome, Start, Stop
from commonwatt.engines.local.folder import End, RunFolder
from commonwatt.engines.run_spec import Images, JobWork, RunSpec
from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.connect import Difference, DiscoveredNode, differences, discover, open_slurm
from commonwatt.engines.slurm.engine import SlurmEngine
from commonwatt.engines.slurm.node_control import NodePower
from commonwatt.engines.slurm.parsing import SlurmJob, SlurmNode
from commonwatt.engines.slurm.run import SlurmRun, await_end
from commonwatt.engines.slurm.snapshot import SlurmSnapshot, look, own_jobs
from commonwatt.model.errors import EngineDownError, EngineError, InputError
from commonwatt.model.live import SlurmSpec
from commonwatt.model.nodes import Cluster, NodeSpec, PowerState
from commonwatt.testing.engine_contract import contract_cluster

from .site import until

TELL = """
import json, os, sys
keys = ("COMMONWATT_JOB", "COMMONWATT_GPUS", "CUDA_VISIBLE_DEVICES", "RUN_IN", "MINE", "DB_PASSWORD")
print(json.dumps([os.environ.get(key) for key in keys]))
sys.exit(3)
"""


def ends(engine: SlurmEngine, count: int = 1) -> list:
    """What the engine reports until it has reported so much."""
    seen: list = []

    def enough():
        engine.wait(1.0)
        seen.extend(engine.poll())
        return len(seen) >= count

    until(enough)
    return seen


def output(folder: Path, run: str) -> str:
    return (folder / "runs" / run / "output.log").read_text()


def sleeper(seconds: float = 600.0) -> JobWork:
    return JobWork(("sleep", str(seconds)), Path("/"))


def test_a_job_gets_its_gpus_its_image_and_nothing_of_our_environment(slurm, settings, tmp_path, monkeypatch):
    """And its exit code decides."""
    monkeypatch.setenv("DB_PASSWORD", "secret")
    work = JobWork((sys.executable, "-c", TELL), Path("/"), environment={"MINE": "a b"}, image="some:image")
    images = Images(("env", "RUN_IN={image}", "{command}"))
    engine = SlurmEngine(contract_cluster(), tmp_path, lambda name: work, slurm=slurm, settings=settings, images=images)
    engine.apply([Start(1, "say 'it'", (1,), 2)])
    engine.apply([Start(2, "other", (0,), 1)])
    seen = ends(engine, 2)
    assert {(type(end), end.handle, end.outcome, end.cause) for end in seen} == {
        (JobEnded, 1, Outcome.FAILED, "exit code 3"), (JobEnded, 2, Outcome.FAILED, "exit code 3"),
    }  # fmt: skip
    assert json.loads(output(tmp_path, "1-1")) == ["say 'it'", "2", "0,1", "some:image", "a b", None]
    assert json.loads(output(tmp_path, "2-1")) == ["other", "1", "0", "some:image", "a b", None]


@pytest.mark.long
def test_jobs_of_others_are_seen_respected_and_left_alone(site, slurm, settings, tmp_path):
    """In JSON and in plain output alike."""
    other = site.ask(
        "sbatch", "--parsable", "--gres=gpu:1", "--nodelist=n-1", "--output=/dev/null",
        "--comment=commonwatt somebody 1 1\nx", "--wrap=sleep 600",
    ).strip()  # fmt: skip
    until(lambda: site.ask("squeue", "--noheader", "--format=%T").strip() == "RUNNING")
    plain = Slurm(site.conf, use_json=False)
    for client in (slurm, plain):
        engine = SlurmEngine(contract_cluster(), tmp_path, lambda name: sleeper(), slurm=client, settings=settings)
        assert engine.nodes().usable_gpus.tolist() == [1, 2]
        with pytest.raises(EngineError, match="1 GPU free, not 2"):
            engine.apply([Start(1, "j", (0,), 2)])
        assert engine.poll() == []
    me = getpass.getuser()
    assert next(job for job in plain.jobs([me]) if job.id == int(other)).state == "RUNNING"
    assert next(job for job in slurm.jobs([me]) if job.id == int(other)).state == "RUNNING"
    assert slurm.jobs(["nobody"]) == plain.jobs(["nobody"]) == []
    assert sorted(slurm.nodes(), key=lambda n: n.name) == sorted(plain.nodes(), key=lambda n: n.name)
    for client, handle in ((slurm, 2), (plain, 3)):  # beside it, and by both ways of reading
        engine = SlurmEngine(contract_cluster(), tmp_path, lambda name: sleeper(), slurm=client, settings=settings)
        engine.poll()
        engine.apply([Start(handle, "j", (0,), 1)])
        until(lambda handle=handle: (tmp_path / "runs" / f"{handle}-1" / "runner.json").exists())
        engine.poll()
        assert engine.nodes().usable_gpus.tolist() == [1, 2]
        engine.apply([Stop(handle)])
        assert engine.poll() == []
    assert site.ask("squeue", "--noheader", "--format=%A %T").split() == [other, "RUNNING"]


def test_a_drained_node_is_not_ours_to_use_whoever_drained_it(site, slurm, settings, tmp_path):
    """And what an administrator drained stays so, though we did, too."""
    engine = SlurmEngine(contract_cluster(), tmp_path, lambda name: sleeper(), slurm=slurm, settings=settings)
    site.ask("scontrol", "update", "NodeName=n-2", "State=DRAIN", "Reason=a disk, maybe=broken|")
    engine.drain([0, 1])
    assert engine.nodes().usable_gpus.tolist() == [0, 0]
    assert slurm.reasons()["n-1"].startswith("drained by commonwatt ")
    assert slurm.reasons()["n-2"] == "a disk, maybe=broken|"
    with pytest.raises(EngineError, match="0 GPUs free"):
        engine.apply([Start(1, "j", (0,), 1)])
    after = SlurmEngine(contract_cluster(), tmp_path, lambda name: sleeper(), slurm=slurm, settings=settings)
    after.drain([])
    until(lambda: after.nodes().usable_gpus.tolist() == [2, 0])
    other = SlurmEngine(contract_cluster(), tmp_path / "b", lambda name: sleeper(), slurm=slurm, settings=settings)
    other.drain([0])
    after.drain([])  # not its own
    assert after.nodes().usable_gpus.tolist() == [0, 0]


@pytest.mark.long
def test_old_records_are_forgotten_or_put_aside(site, slurm, settings, tmp_path):
    """And a number given again is another job, though Slurm still remembers the one before."""
    engine = SlurmEngine(contract_cluster(), tmp_path, lambda name: sleeper(0), slurm=slurm, settings=settings)
    engine.apply([Start(1, "a", (0,), 1), Start(2, "b", (1,), 1)])
    ends(engine, 2)
    assert engine.prunable() == [1, 2]
    engine.prune([2])
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["1-1"]
    assert (tmp_path / "jobs" / "2").is_dir()
    (tmp_path / "jobs" / "1" / "progress").write_text("3")

    work = dataclasses.replace(sleeper(), mark="another")
    after = SlurmEngine(contract_cluster(), tmp_path, lambda name: work, slurm=slurm, settings=settings)
    until(lambda: not after.recorded_runs()[0].nodes)
    after.prune([1], aside=True)
    assert after.poll() == []
    assert after.recorded_runs() == []
    assert sorted(path.name for path in (tmp_path / "aside").glob("*/*")) == ["jobs-1", "runs-1-1"]
    after.apply([Start(1, "a", (0,), 1)])
    until((tmp_path / "runs" / "1-1" / "runner.json").exists)
    time.sleep(settings.lag_s + 0.5)
    assert after.poll() == []
    (found,) = after.recorded_runs()
    assert (found.attempts, found.nodes, found.mark) == (1, (0,), "another")
    after.prune([1])  # it runs
    assert after.recorded_runs() == [found]
    after.apply([Stop(1)])


def test_a_declared_cluster_is_checked_against_what_is_there(slurm):
    found = discover(slurm)
    assert found == [
        DiscoveredNode("n-1", "v100", 2, ("pretended",)), DiscoveredNode("n-2", "v100", 2, ("pretended",)),
        DiscoveredNode("spare", None, 1, ("pretended",)),
    ]  # fmt: skip
    assert differences(contract_cluster(), found) == [
        Difference("spare", declared=False, sentence="node spare: not declared")
    ]

    def declared(name, gpu_type, gpus):
        return NodeSpec(name=name, gpu_type=gpu_type, gpus=gpus, idle_w=1, gpu_w=1)

    specs = [declared("n-1", "V100", 4), declared("n-2", "A100", 2), declared("spare", "T4", 1), declared("x", "T4", 1)]
    assert [one.sentence for one in differences(Cluster.of(specs), found)] == [
        "node n-1: declared with 4 GPUs, has 2",
        "node n-2: declared with GPUs of type A100, has v100",
        "node x: Slurm has no node of this name with GPUs",
    ]


def test_what_slurm_refuses_is_refused_at_once(site, slurm, settings, tmp_path):
    """And leaves nothing behind."""
    settings = dataclasses.replace(settings, options=("--partition=none",))
    engine = SlurmEngine(contract_cluster(), tmp_path, lambda name: sleeper(), slurm=slurm, settings=settings)
    with pytest.raises(EngineError, match="invalid partition"):
        engine.apply([Start(1, "j", (0,), 1)])
    with pytest.raises(EngineError, match="not running"):
        engine.apply([Stop(1)])
    assert engine.nodes().usable_gpus.tolist() == [2, 2]
    assert site.ask("squeue", "--noheader") == ""


def test_a_configuration_opens_the_engine(site, tmp_path):
    spec = SlurmSpec(conf=str(site.conf), state="here", cluster_id="lab", python=sys.executable, poll_s=0.2)
    engine = open_slurm(spec, contract_cluster(), tmp_path, lambda name: JobWork(("true",), Path("/")))
    engine.apply([Start(4, "j", (0,), 1)])
    identity = (tmp_path / "here" / "identity").read_text()
    assert identity.startswith("lab:")
    assert f"commonwatt {identity} 4 1\n" in site.ask("squeue", "--noheader", "--states=all", "--format=%k")
    (end,) = ends(engine)
    assert end.outcome is Outcome.COMPLETED
    readings = engine.readings(up_to_now=True)
    assert all(reading.energy_uj is not None for reading in readings)
    assert engine.power_w() == 200.0
    assert {n: mark[0] for n, mark in engine.marks().items()} == {0: readings[-2].to_s, 1: readings[-1].to_s}


# -- without a Slurm


@pytest.mark.slow
def test_no_client_programs_and_no_controller_are_errors_that_say_so(tmp_path, settings, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    engine = SlurmEngine(contract_cluster(), tmp_path / "state", lambda name: sleeper(), settings=settings)
    for call in (engine.poll, engine.nodes, lambda: engine.apply([Start(1, "j", (0,), 1)])):
        with pytest.raises(EngineError, match="cannot be run"):
            call()
    for name in ("squeue", "sinfo", "scontrol"):
        script = tmp_path / name
        script.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
        script.chmod(0o755)
    with pytest.raises(EngineDownError, match=r"no answer within 0\.3 s"):
        Slurm(timeout_s=0.3).jobs(["me"])
    assert engine.progress(np.array([1])).done_epochs.tolist() == [0]  # is not asked of Slurm


@pytest.mark.parametrize("name", ["n[1-3]", "a,b", "-n", "a b", ""])
def test_a_name_slurm_could_read_as_several_nodes_is_refused(tmp_path, name):
    cluster = contract_cluster()
    with pytest.raises(InputError, match=r"nodes\.name"):
        SlurmEngine(dataclasses.replace(cluster, names=(name, "b")), tmp_path, lambda name: sleeper())


def run_in(folder: Path, end: End | None = None) -> SlurmRun:
    order = RunSpec(1, 1, "j", (0,), 1, ((),), 0.0, 0.0, ("x",), "/", {}, 1.0)
    run = SlurmRun(RunFolder.create(folder, order), order)
    if end is not None:
        run.folder.finish(end)
    return run


@pytest.mark.parametrize(
    ("state", "code", "cause"),
    [
        ("NODE_FAIL", None, "a node of it failed (NODE_FAIL)"),
        ("PREEMPTED", None, "Slurm gave its place to another job (PREEMPTED)"),
        ("TIMEOUT", None, "Slurm ended it at the time limit of its partition (TIMEOUT)"),
        ("CANCELLED", None, "it was cancelled in Slurm, not by commonwatt (CANCELLED)"),
        ("OUT_OF_MEMORY", 137, "it used more memory than Slurm gave it (OUT_OF_MEMORY)"),
        ("FAILED", None, "its batch script ended without a record (FAILED)"),
        ("COMPLETED", 0, "completed, by Slurm's account"),
        (None, None, "it is not in Slurm, and left no record"),
    ],
)
def test_without_a_record_slurm_says_how_it_ended(tmp_path, state, code, cause):
    run = run_in(tmp_path)
    job = None if state is None else SlurmJob(5, "me", state, 1, "None", "")
    assert run.ended(job, lag_s=60.0) is None  # the record may be on its way
    end = run.ended(job, lag_s=0.0)
    assert (end.exit_code, end.stopped, end.cause) == (code, False, cause)
    assert run.folder.end() == end  # for good: a runner that comes late gives way


@pytest.mark.parametrize(
    ("state", "end", "cause"),
    [
        ("PREEMPTED", End(-15, stopped=True, at_s=1.0, cause="x"), "Slurm gave its place to another job (PREEMPTED)"),
        ("COMPLETED", End(0, stopped=True, at_s=1.0, cause="x"), "its stop was requested by others: x"),
        ("NODE_FAIL", End(0, stopped=False, at_s=1.0, cause="exit code 0"), "exit code 0"),  # it had ended before
        (None, End(2, stopped=False, at_s=1.0, cause="exit code 2"), "exit code 2"),  # Slurm has forgotten it
    ],
)  # fmt: skip
def test_the_record_of_an_end_counts_before_what_slurm_says(tmp_path, state, end, cause):
    job = None if state is None else SlurmJob(5, "me", state, 1, "None", "")
    assert run_in(tmp_path, end).ended(job, lag_s=60.0) == dataclasses.replace(end, cause=cause)


@pytest.mark.parametrize(
    ("state", "code", "cause"),
    [
        ("NODE_FAIL", None, "a node of it failed (NODE_FAIL)"),
        ("PREEMPTED", None, "Slurm gave its place to another job (PREEMPTED)"),
        ("CANCELLED", None, "it was cancelled in Slurm, not by commonwatt (CANCELLED)"),
        ("OUT_OF_MEMORY", -9, "killed by SIGKILL"),
        ("FAILED", -9, "killed by SIGKILL"),
        (None, -9, "killed by SIGKILL"),
    ],
)
def test_a_job_killed_an_instant_before_its_runner_has_not_failed_if_slurm_took_it(tmp_path, state, code, cause):
    """A machine that goes down, or a cancelled job, takes its processes one after the other."""
    job = None if state is None else SlurmJob(5, "me", state, 1, "None", "")
    run = run_in(tmp_path, End(-9, stopped=False, at_s=1.0, cause="killed by SIGKILL"))
    end = run.ended(job, lag_s=60.0)
    assert (end.exit_code, end.stopped, end.cause) == (code, False, cause)


def test_a_job_we_have_slurm_kill_was_stopped_though_its_runner_saw_it_killed(tmp_path, settings):
    class Killing(Slurm):
        state = "RUNNING"

        def cancel(self, jobs):
            self.state = "CANCELLED"
            run.folder.finish(End(-9, stopped=False, at_s=1.0, cause="killed by SIGKILL"))

    slurm, run = Killing(), run_in(tmp_path)
    settings = dataclasses.replace(settings, grace_s=0.0, patience_s=0.0)
    end = await_end(run, slurm, settings, lambda: SlurmJob(5, "me", slurm.state, 1, "None", ""))
    assert (end.exit_code, end.stopped) == (-9, True)


@pytest.mark.parametrize(
    ("at_s", "ran_s", "told_s"), [(90.0, None, 100.0), (90.0, 7.0, 107.0), (110.0, 7.0, 110.0), (500.0, None, 150.0)]
)
def test_an_end_lies_between_its_order_and_now_wherever_the_clock_was(tmp_path, settings, at_s, ran_s, told_s):
    """Nodes, or a clock that was set, may be off the controller's."""
    order = RunSpec(1, 1, "j", (0,), 1, ((),), 100.0, 0.0, ("x",), "/", {}, 1.0)
    run = SlurmRun(RunFolder.create(tmp_path, order), order, now_s=lambda: 150.0)
    assert run.ended_s() == math.inf
    assert not run.just_ended(60.0)
    run.folder.finish(End(0, stopped=False, at_s=at_s, cause="exit code 0", ran_s=ran_s))
    assert run.ended(None, lag_s=0.0).at_s == run.ended_s() == told_s
    assert [run.just_ended(150.0 - told_s + more_s) for more_s in (1.0, -1.0)] == [True, False]
    assert await_end(run, Slurm(), settings, lambda: None).at_s == told_s


def test_what_has_no_record_ends_now_by_the_clock_of_the_controller(tmp_path, settings):
    for folder in ("a", "b", "c"):
        run = run_in(tmp_path / folder)
        run.now_s = lambda: 77.0
        if folder == "a":
            assert run.ended(None, lag_s=0.0).at_s == 77.0
        elif folder == "b":
            assert await_end(run, Slurm(), settings, lambda: None).at_s == 77.0
        else:
            assert run.prevented("x")
        assert run.folder.end().at_s == 77.0


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUE_HOLD", "A_NEW_ONE"])
def test_as_long_as_slurm_has_it_a_job_has_not_ended(tmp_path, state):
    run = run_in(tmp_path, End(0, stopped=False, at_s=1.0, cause="exit code 0"))
    assert run.ended(SlurmJob(5, "me", state, 1, "None", ""), lag_s=0.0) is None


def test_a_look_from_before_a_submission_says_nothing_of_it(tmp_path):
    run = run_in(tmp_path)
    assert run.ended(None, lag_s=0.0, seen_s=run.waiting_s - 1.0) is None
    assert run.ended(None, lag_s=0.0, seen_s=run.waiting_s + 1.0) is None  # nor is one look enough
    assert run.ended(None, lag_s=0.0, seen_s=run.waiting_s + 1.0) is None
    assert run.ended(None, lag_s=0.0, seen_s=run.waiting_s + 2.0) is not None


def test_a_job_that_is_over_ends_no_other_run_of_the_same_number(tmp_path):
    """Whose records were put aside while Slurm still knew it."""
    over = SlurmJob(5, "me", "COMPLETED", 1, "None", "")
    run = run_in(tmp_path)
    run.number, run.waiting_s = 6, 100.0
    assert run.ended(over, lag_s=0.0, seen_s=99.0) is None  # submitted since
    assert run.ended(over, lag_s=0.0, seen_s=101.0) is None  # not seen, for the first time
    assert run.ended(over, lag_s=0.0, seen_s=102.0).cause == "it is not in Slurm, and left no record"
    run = run_in(tmp_path / "b")
    run.number = 5
    assert run.ended(over, lag_s=0.0).cause == "completed, by Slurm's account"


class Listing(Slurm):
    """Plain output that depends on nothing but who asks how."""

    def __init__(self, *jobs):
        super().__init__(use_json=False)
        self.rows, self.asked = jobs, []

    def ping(self):
        pass

    def run(self, program, *arguments):
        self.asked.append((program, *arguments))
        mark = arguments[-1].partition("=")[2].partition("|")[0]
        if program == "sinfo":
            return "NODELIST|STATECOMPLETE|GRES|GRES_USED|CPUS(A/I/O/T)|AVAIL_FEATURES|\n"
        return "".join(f"{mark}|{row}\n" for row in ("JOBID|USER|STATE|CPUS|REASON|COMMENT", *self.rows))


def test_a_run_that_slurm_has_twice_is_the_last_that_is_not_over_and_the_others_are_swept_out(tmp_path):
    me = getpass.getuser()
    rows = [
        f"{number}|{me}|{state}|1|None|commonwatt lab 1 1"
        for number, state in ((3, "RUNNING"), (4, "PENDING"), (5, "COMPLETING"), (6, "COMPLETED"), (2, "FAILED"))
    ]
    sight = look(Listing(*rows), "lab")
    assert sight.jobs[1, 1].id == 5
    assert sight.doubled == (3, 4)
    assert [job.id for _, job in own_jobs(Listing(*rows), "lab")] == [3, 4, 5, 6, 2]


def test_what_is_in_hidden_partitions_is_asked_for():
    slurm = Listing()
    slurm.jobs()
    slurm.jobs(["me"])
    slurm.nodes()
    assert all("--all" in command for command in slurm.asked)
    assert [command[0] for command in slurm.asked] == ["squeue", "squeue", "sinfo"]


class Refusing(Slurm):
    def update_node(self, name, state, reason=None):
        raise EngineError("scontrol: Access denied")


def test_a_node_slurm_will_not_wake_is_not_asked_for_for_ever():
    def sight(*states):
        node = SlurmNode("n-1", frozenset(states), {"": 2}, {"": 0}, 8, 0)
        return SlurmSnapshot(0.0, {"n-1": node}, {})

    power = NodePower(Refusing(), contract_cluster(), may_sleep=True)
    power.wake(0, sight("idle", "powering_down").nodes["n-1"])  # does not hear it: asked again when it is down
    assert power.waking(0, None)
    power.advance(sight("idle", "powered_down"))
    assert not power.waking(0, None)
    with pytest.raises(EngineError, match="Access denied"):
        power.wake(0, sight("idle", "powered_down").nodes["n-1"])
    assert not power.waking(0, None)


def test_slurm_has_one_low_power_state():
    states = (PowerState(name="sleep"), PowerState(name="off"))
    cluster = Cluster.of([NodeSpec(name="n", gpu_type="T4", gpus=1, idle_w=1, gpu_w=1, states=states)])
    with pytest.raises(InputError, match="one state at most"):
        NodePower(Refusing(), cluster, may_sleep=True)
    NodePower(Refusing(), cluster, may_sleep=False)


def test_a_job_slurm_puts_back_into_its_queue_is_taken_out_of_it(tmp_path):
    """If it has ended, at once; if not, after a while."""
    waits = SlurmJob(5, "me", "PENDING", 1, "BeginTime", "")
    assert run_in(tmp_path / "a", End(0, stopped=False, at_s=1.0, cause="")).misplaced(waits, 60.0)
    run = run_in(tmp_path / "b")
    assert not run.misplaced(waits, 60.0)
    assert not run.misplaced(dataclasses.replace(waits, state="RUNNING"), 0.0)
    assert run.misplaced(waits, 0.0)
    assert not run.misplaced(waits, 0.0)  # once
    assert run.stop_cause == "Slurm did not start it within 0 s: BeginTime"


@pytest.mark.long
def test_a_change_nobody_asked_for_is_told_with_its_cause(site, slurm, settings, tmp_path):
    """Cancelled by somebody else, where that queues it again: interrupted; it can be started again."""
    settings = dataclasses.replace(settings, requeue_cancelled=True)
    engine = SlurmEngine(contract_cluster(), tmp_path, lambda name: sleeper(), slurm=slurm, settings=settings)
    engine.apply([Start(1, "j", (0,), 1)])
    until((tmp_path / "runs" / "1-1" / "runner.json").exists)
    site.ask("scancel", site.ask("squeue", "--noheader", "--format=%A").strip())
    (seen,) = ends(engine)
    assert isinstance(seen, JobInterrupted)
    assert seen.cause == "it was cancelled in Slurm, not by commonwatt (CANCELLED)"
    engine.apply([Start(1, "j", (1,), 2)])
    assert engine.recorded_runs()[0].attempts == 2
    engine.apply([Stop(1)])
