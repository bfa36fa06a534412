"""What those who look are shown, and that it is not made anew where nothing has changed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.controlplane import snapshot as view
from commonwatt.controlplane.snapshot import why_of
from commonwatt.store.controller_store import ControllerStore
from commonwatt.store.records import RequestKind, packed, unpacked
from tests.controlplane.bench import Bench, node


@pytest.fixture
def bench(tmp_path):
    b = Bench(tmp_path, nodes=[node("n-1"), node("n-2", gpu_w=300)])
    yield b
    b.close()


def test_nodes_are_drawn_anew_when_anything_about_them_has_changed_and_only_then(bench):
    b = bench
    b.settle()
    seen = [b.snapshot().nodes]

    def changed():
        b.advance(20.0)
        b.settle()
        seen.append(b.snapshot().nodes)
        return seen[-1] is not seen[-2]

    assert not changed()
    job = b.submit(1000.0)
    assert changed()
    assert sorted(n.allocated_gpus for n in b.snapshot().nodes) == [0, 1]
    b.submit(1000.0, times_s={"V100": {4: 1000.0}}, gpus=4)  # it waits
    assert not changed()
    b.ask(RequestKind.DRAIN, node="n-1")
    assert changed()
    assert [n.drained for n in b.snapshot().nodes] == [True, False]
    power_w = sum(n.power_w for n in b.snapshot().nodes)
    controller = b.reconciler.controller
    (there,) = controller.registry.nodes.values()
    controller.registry.retime(0, "V100", 1, 1000.0, 77.0)
    assert changed()
    assert sum(n.power_w for n in b.snapshot().nodes) == pytest.approx(power_w - (200.0, 300.0)[there[0]] + 77.0)
    b.ask(RequestKind.CANCEL, job=job)
    assert changed()
    assert [n.allocated_gpus for n in b.snapshot().nodes] == [0, 0]


def test_a_node_without_usable_gpus_is_down_only_if_the_engine_says_so(bench, monkeypatch):
    b = bench
    b.settle()
    seen = b.engine.nodes()

    def shown(up):
        none = np.zeros_like(seen.usable_gpus)
        monkeypatch.setattr(b.engine, "nodes", lambda: replace(seen, usable_gpus=none, up=up))
        b.advance(20.0)
        b.settle()
        return [(n.state, n.power_w) for n in b.snapshot().nodes]

    assert shown(np.array([True, False])) == [("on", 100.0), ("down", None)]
    assert shown(np.array([True, True])) == [("on", 100.0), ("on", 100.0)]
    assert shown(None) == [("down", None), ("down", None)]


def test_why_a_job_runs_is_said_by_what_is_known_now(bench):
    """Not by what was expected when it began; and it keeps the reason."""
    b = bench
    job = b.submit(100.0, due_in_s=500.0)
    b.settle()
    shown, row = b.snapshot().jobs[job], b.row(job)
    assert row.sentence is None
    assert row.facts["reason"] == row.reason == shown.reason == "cheapest-in-time"
    assert why_of(shown) == why_of(row)
    reason, sentence = why_of(shown)
    where = f"{job}-j runs on {row.nodes[0]} with 1 GPU"
    assert sentence.startswith(f"{where}: the cheapest configuration that meets its due date")
    assert sentence.endswith("; it ends 7 min before its due date")
    slower = replace(shown, expected_end_s=row.due_s + 420.0)
    assert why_of(slower) == (reason, sentence.replace("before", "after"))
    assert b.live.store.events(job=job)[-1].sentence == sentence  # what was said then
    b.ask(RequestKind.CANCEL, job=job)
    b.settle()
    assert (b.row(job).facts, why_of(b.row(job))[1]) == (None, "cancelled")


def test_why_a_job_waits_is_said_by_what_is_known_now(bench):
    b = bench
    for name in ("n-1", "n-2"):
        b.ask(RequestKind.DRAIN, node=name)
    b.settle()
    job = b.submit(100.0, gpus=2, due_in_s=10_000.0)
    b.settle()
    shown = b.snapshot().jobs[job]
    why = f"{job}-j waits: too many of its GPUs are down, drained or allocated to services"
    assert why_of(shown) == why_of(b.row(job)) == ("nodes-down", why)
    late = replace(shown, expected_end_s=b.row(job).due_s + 90.0)
    assert why_of(late)[1].endswith("; it will be late by 90 s or more")
    assert why_of(replace(shown, held=True)) == ("held", "it is held until it is released")


def test_progress_of_many_jobs_is_shown_now_and_then_of_few_at_once(bench, monkeypatch):
    b = bench
    job = b.submit(1000.0, epochs=10)
    b.settle()

    def shown_after(seconds):
        b.advance(seconds)
        b.ask(RequestKind.RELEASE, job=job)
        b.look()
        return b.snapshot().jobs[job].done_epochs

    assert shown_after(50.0) == pytest.approx(0.5)
    monkeypatch.setattr(view, "_FEW", 0)
    assert shown_after(3.0) == pytest.approx(0.5)
    assert shown_after(3.0) == pytest.approx(0.56)


def test_jobs_are_counted_by_tenant_and_shown_as_the_store_has_them(bench):
    b = bench

    def check():
        rows = {row.id: row for row in ControllerStore(b.live.database).active_jobs()}
        snapshot = b.snapshot()
        assert dict(snapshot.rows) == rows
        counted = {key: number for key, number in snapshot.by_tenant.items() if number}
        assert counted == Counter((row.tenant, row.status.value) for row in rows.values())
        assert (snapshot.running, snapshot.waiting) == tuple(
            sum(row.status == status for row in rows.values()) for status in ("running", "waiting")
        )

    jobs = [b.submit(1000.0 * (1 + k), gpus=2, tenant="ab"[k % 2]) for k in range(6)]
    b.settle()
    check()
    b.ask(RequestKind.CANCEL, job=jobs[0])
    b.ask(RequestKind.HOLD, job=jobs[5])
    b.settle()
    check()
    b.advance(5000.0)
    b.settle()
    check()
    b.begin()  # another controller takes over
    b.settle()
    check()


def test_a_job_is_the_same_as_bytes_and_back(bench):
    b = bench
    job = b.submit(100.0)
    b.settle()
    shown = b.snapshot().jobs[job]
    again = unpacked(packed(shown))
    assert (again, again.why) == (shown, shown.why)
