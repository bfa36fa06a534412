"""A start that was refused, or given up before the job's program began, is none that the job is restarted from."""

from __future__ import annotations

import pytest

from commonwatt.control.engine import JobInterrupted, JobLeft, SetPower, Start, Stopped
from commonwatt.model.errors import EngineError
from commonwatt.store.records import RequestKind

from .bench import Bench, node

RESTART = {"preemption": {"restart_s": 60}, "nodes": [node("n")]}


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path, **RESTART)
    yield made
    made.close()


def refuse(b, times):
    """Have the engine refuse so many starts."""
    left, apply = [times], b.engine.apply

    def refusing(commands):
        if left[0] and any(isinstance(command, Start) for command in commands):
            left[0] -= 1
            msg = "its node does not wake"
            raise EngineError(msg)
        return apply(commands)

    b.engine.apply = refusing


def planned(b, job):
    """What the controller plans with: seconds before work begins, and how often the job was started."""
    handle = b.reconciler.engine.handle_of(job)
    controller = b.reconciler.controller
    problem, _ = controller._problem(controller._candidates(), b.clock(), controller.engine.nodes(), None)
    return float(problem.restart_s[controller._candidates().tolist().index(handle)]), int(
        controller.registry.job("starts")[handle]
    )


@pytest.mark.parametrize("again", [False, True], ids=["same", "another"])
def test_a_start_that_was_refused_is_none_to_restart_from(bench, again):
    b = bench
    refuse(b, 1)
    job = b.submit(100.0)
    b.look()  # it is refused
    b.reconciler.controller.absorb()
    assert planned(b, job) == (0.0, 1)
    b.ask(RequestKind.DRAIN, node="n")
    b.settle()
    row = b.row(job)
    assert (row.status, row.began_s) == ("waiting", None)
    if again:
        b.begin()
        assert planned(b, job)[0] == 0.0
    b.ask(RequestKind.UNDRAIN, node="n")
    b.settle()
    kinds = [kind for kind in b.kinds(job) if kind != "waits"]
    assert kinds[:3] == ["submitted", "started", "not-started"]
    assert "resumed" not in kinds
    b.advance(110.0)
    b.settle()
    assert b.status(job) == "completed"
    row = b.row(job)
    assert row.began_s is not None


def test_one_that_has_begun_before_is_restarted_whatever_is_refused_since(bench):
    b = bench
    job = b.submit(100.0)
    b.settle()
    began_s = b.row(job).began_s
    handle = b.reconciler.engine.handle_of(job)
    b.advance(30.0)
    b.settle()
    b.reconciler.controller.stop_probe(handle, b.clock(), ("preempted", "to make room"))
    refuse(b, 1)
    b.advance(60.0)
    b.look()
    b.reconciler.controller.absorb()
    assert planned(b, job) == (60.0, 2)
    b.advance(60.0)
    b.settle()
    assert b.row(job).began_s == began_s
    kinds = [kind for kind in b.kinds(job) if kind != "waits"]
    assert kinds == ["submitted", "started", "preempted", "resumed", "not-started", "resumed"]


@pytest.mark.slow
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
def test_one_that_is_preempted_before_its_program_began_is_started_not_resumed(bench, begun, later):
    b = bench
    job = b.submit(100.0)
    b.settle()
    controller, handle = b.reconciler.controller, b.reconciler.engine.handle_of(job)
    engine = controller.engine

    def stop(commands):
        b.engine.apply([type(command)(job) for command in commands])
        return [Stopped(handle, 0.0, later=later, begun=begun or later)]

    own, engine.apply = engine.apply, stop
    controller.stop_probe(handle, b.clock(), ("preempted", "to make room"))
    engine.apply = own
    if later:
        b.reconciler.engine._changes.append(JobLeft(handle, b.clock(), 0.0, begun=begun))
        controller.absorb()
    assert planned(b, job) == ((60.0, 1) if begun else (0.0, 1))


def test_an_engine_that_has_one_stop_before_it_began_says_so(bench):
    b = bench
    job = b.submit(100.0)
    b.settle()
    engine = b.reconciler.engine
    engine._terminating.track(job, engine._intent("stop", engine.handle_of(job), 0, (0,), 1, b.clock()))
    engine._absorb([JobInterrupted(job, b.clock(), 0.0, "stopped", begun=False)])
    (left,) = engine.waiting_changes()
    assert (type(left), left.begun) == (JobLeft, False)


def test_who_waits_for_a_node_that_does_not_wake_is_told_which_and_why(bench):
    b = bench
    job = b.submit(100.0)
    b.settle()
    engine, why = b.reconciler.engine, "node n did not wake: its hook exited with 3"
    own, b.engine.apply = b.engine.apply, lambda _: (_ for _ in ()).throw(EngineError(why))
    engine.power_commands.give([SetPower(0, None)])
    b.engine.apply = own
    engine.power_commands.offered = lambda view: view
    engine._absorb([JobInterrupted(job, b.clock(), 0.0, "its nodes did not wake", begun=False)])
    b.settle(1)
    (told,) = (event.sentence for event in b.live.store.events(job=job) if event.kind == "not-started")
    assert told.endswith(f" did not start: {why}")
